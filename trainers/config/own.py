"""The functions that a recipe names, and their keyword arguments as keys."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from rollenv.core.errors import UsageError, did_you_mean
from rollenv.core.plugins import function_at
from rollenv.trainers.config.section import OwnVariant, Section

if TYPE_CHECKING:
    from rollenv.trainers.config.run import TrainConfig


def check_functions(config: TrainConfig, folder: Path = Path()) -> None:
    """Import all functions that a recipe names, and check the keys that are their arguments.

    Args:
        folder: where modules are found, besides the current folder.

    Raises:
        UsageError: a function cannot be imported, or does not take its keys.
    """
    for path, name in own_functions(config).items():
        function = function_at(name, path, folder)
        if path.startswith("rewards.") and path != "rewards.group":
            from rollenv.trainers.rewards.function import FunctionReward  # not above: it needs this package

            FunctionReward(function, path)
    for path, section in _own_sections(config):
        own_arguments(section, path)


def own_functions(config: TrainConfig) -> dict[str, str]:
    """Return the functions of the user that a recipe names, ``module:function`` by the key."""
    rewards = config.rewards
    found = {"rewards.group": rewards.group, "rewards.function": rewards.function}
    found |= {f"eval.measures.{at}": name for at, name in enumerate(config.eval.measures)}
    found |= {f"rewards.domains.{at}.function": getattr(one, "function", "") for at, one in enumerate(rewards.domains)}
    for path, section in _own_sections(config):
        if section._function is None:
            found[f"{path}.{section.tag}"] = getattr(section, section.tag)
    return {path: name for path, name in found.items() if name}


def _own_sections(config: TrainConfig) -> Iterator[tuple[str, OwnVariant]]:
    every = [("algorithm", config.algorithm), ("loss", config.loss), *_task_sections("tasks", config.tasks)]
    yield from ((path, section) for path, section in every if isinstance(section, OwnVariant))


def _task_sections(path: str, tasks: Section) -> Iterator[tuple[str, Section]]:
    """Yield a section of tasks, and those of a mixture's parts."""
    yield path, tasks
    for at, part in enumerate(getattr(tasks, "parts", ())):
        yield from _task_sections(f"{path}.parts.{at}.tasks", part.tasks)


def own_arguments(section: OwnVariant, path: str) -> dict[str, Any]:
    """Return the checked arguments of a section's function.

    Args:
        path: the section's key, for errors.

    Raises:
        UsageError: a key is unknown, missing, or of the wrong type.
    """
    function, name = section.function, getattr(section, section.tag)
    try:
        parameters = [*inspect.signature(function, eval_str=True).parameters.values()]
    except NameError:  # an annotation that only a type checker can resolve
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # written in C: it says itself what it does not take
        return section.model_extra or {}
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise UsageError(f"{path}.{section.tag}: {name} takes nothing; its first parameter has to")
    takes = {one.name: one for one in parameters[1:] if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    if shared := takes.keys() & type(section).model_fields.keys():
        raise UsageError(
            f"{path}.{section.tag}: {name} has an argument {min(shared)!r}, a key of every {path}; rename it"
        )
    given = dict(section.model_extra or {})
    others = any(one.kind is one.VAR_KEYWORD for one in parameters)
    for key, value in given.items():
        if key in takes:
            given[key] = _checked(value, takes[key].annotation, f"{path}.{key}, an argument of {name}")
        elif not others:
            known = [*takes, *(type(section).model_fields.keys() - {section.tag})]
            hint = did_you_mean(key, known, f"it takes {', '.join(takes) or 'none'}", form=repr)
            raise UsageError(f"there is no key {path}.{key}: {name} has no such argument; {hint}")
    for key, one in takes.items():
        if one.default is one.empty and key not in given:
            raise UsageError(f"{path}.{key} is missing, an argument of {name} without a default")
    return given


def _checked(value: Any, annotation: Any, what: str) -> Any:
    if annotation is inspect.Parameter.empty or isinstance(annotation, str):
        return value
    try:
        how = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)
        return TypeAdapter[Any](annotation, config=how).validate_python(value)
    except PydanticUserError:  # a type with a configuration of its own
        return value
    except ValidationError as error:
        text = error.errors()[0]["msg"]
        raise UsageError(f"{what}: {text[:1].lower()}{text[1:]}, got {value!r}") from error
