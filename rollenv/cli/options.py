"""Options that several commands have: a dataclass for each noun, whose fields are options."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import typer


def option(*names: str, default: Any = None, **how: Any) -> Any:
    """Make a field that is an option of the command line; arguments as of ``typer.Option``."""
    return dataclasses.field(default=default, metadata={"option": (names, how)})


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace every parameter whose type is a dataclass of options by an option for each of its fields."""
    signature = inspect.signature(command, eval_str=True)
    groups, parameters = dict[str, type[Any]](), []
    for parameter in signature.parameters.values():
        if dataclasses.is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation  # type: ignore[assignment]
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{parameter} is no option or argument of a command")
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    for group in groups.values():
        kinds = get_type_hints(group)
        for each in dataclasses.fields(group):
            names, how = each.metadata["option"]
            made, kind = typer.Option(each.default, *names, **how), inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(each.name, kind, annotation=kinds[each.name], default=made))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{each.name: given.pop(each.name) for each in dataclasses.fields(group)})
        command(**given)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
