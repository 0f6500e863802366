"""Loading a run's configuration: recipes, ``key=value`` settings, and errors that name the right key."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Collection, Iterator, Sequence
from importlib import resources
from operator import itemgetter
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rollenv.agents.engines.base import Sampling
from rollenv.core.arguments import NOTHING, toml_value, value_of
from rollenv.core.errors import UsageError, did_you_mean
from rollenv.core.registry import DATA, spec
from rollenv.envs.data.own import SETTINGS, is_data
from rollenv.envs.data.rows import SUFFIXES
from rollenv.rollout.records.folders import is_run
from rollenv.trainers.config.own import check_functions
from rollenv.trainers.config.presets import preset
from rollenv.trainers.config.run import AnyPrompt, TrainConfig
from rollenv.trainers.config.section import BUILT_IN, OWN, Union, union_of
from rollenv.trainers.config.tasks import pattern_of, task_domains

logger = logging.getLogger(__name__)


def recipes() -> dict[str, Path]:
    """Return the bundled recipes by name."""
    folder = Path(str(resources.files("rollenv.trainers.recipes")))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_config(recipe: str, overrides: Sequence[str] = ()) -> TrainConfig:
    """Load a recipe, with overrides.

    Args:
        recipe: name of a bundled recipe, path of a TOML file, or an environment's id or a file of questions, for which
            settings are chosen.
        overrides: ``key=value``; keys are dotted, values are TOML.
    """
    recipe, overrides = with_data(recipe, overrides)
    data = _read_recipe(recipe, overrides)
    section = data.get("env")
    written = section.get("id") if isinstance(section, dict) else None
    keys = _apply(data, overrides)
    config = parse_config(data, overrides)
    if written and config.env.id != written:
        config = _without_refused_arguments(config, written, keys)
    if config.rewards.domains:
        _check_domains(config)
    check_functions(config, Path(recipe).parent if Path(recipe).is_file() else Path())
    _refuse_unused_keys(config, keys if overrides else list(_flat(data)))
    return config


def with_data(recipe: str, overrides: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the id of a file or folder of questions, and the settings for its columns as keys; others as they are."""
    if recipe not in recipes() and not recipe.startswith(f"{DATA}:") and is_data(recipe):
        if is_run(Path(recipe)):
            raise UsageError(
                f"{recipe} is a run's folder: continue it with `rollenv train --resume run_dir={recipe}`, or learn its "
                f"episodes with `rollenv sft {recipe}`"
            )
        recipe = f"{DATA}:{recipe}"
    if recipe.startswith(f"{DATA}:"):
        for key in (override.partition("=")[0] for override in overrides):
            known = "." in key or key in (*SETTINGS, *TrainConfig.model_fields)
            if not known and (hint := did_you_mean(key, SETTINGS, form=repr)):
                raise UsageError(f"there is no key {key!r}; {hint}")
        overrides = [f"env.kwargs.{o}" if o.partition("=")[0] in SETTINGS else o for o in overrides]
    return recipe, overrides


def is_env_id(recipe: str) -> bool:
    """Return whether a recipe is an environment's id, not a bundled recipe or file."""
    return ":" in recipe and Path(recipe).suffix != ".toml" and not Path(recipe).is_file()


def load_prompt(settings: Sequence[str]) -> AnyPrompt:
    """Load the settings of a prompt.

    Args:
        settings: optionally a recipe, then ``key=value`` settings of its prompt, such as ``examples=5``.
    """
    plain: dict[str, Any] = {"env": {"id": ""}, "model": {"path": ""}}
    more = [*settings]
    if "=" not in more[0]:
        plain["prompt"] = _read_recipe(more.pop(0)).get("prompt", {})
    overrides = [f"prompt.{setting}" for setting in more]
    _apply(plain, overrides)
    return parse_config(plain, overrides).prompt


#: The number of updates unless one is set.
_ENDLESS = 10**9

#: Sections of updates without an environment.
_OF_UPDATES = ("algorithm", "loss", "correction", "kl", "optimizer", "rewards", "model", "seed", "iterations", "report")


def load_updates(settings: Sequence[str], sampling: Sampling) -> TrainConfig:
    """Load the settings of updates with given episodes, ``key=value``; the learning rate is constant by default.

    Args:
        sampling: how the episodes were sampled.
    """
    for setting in settings:
        if (section := setting.partition("=")[0].partition(".")[0]) not in _OF_UPDATES:
            raise UsageError(f"{section!r} is no setting of updates; there are {', '.join(_OF_UPDATES)}")
    plain: dict[str, Any] = {"env": {"id": ""}, "model": {"path": "", "sync": "copy"}, "iterations": _ENDLESS}
    plain |= {"prompt": {"kind": "conversation"}, "optimizer": {"final_lr": 1.0, "warmup_iterations": 0}}
    plain["rollout"] = {"temperature": sampling.temperature, "max_new_tokens": sampling.max_new_tokens}
    keys = _apply(plain, settings)
    if plain.get("algorithm", {}).get("name") == "imitation":
        raise UsageError("a Learner trains on rewards or preferences; for given answers use `rollenv sft`")
    config = parse_config(plain, settings)
    _refuse_unused_keys(config, keys)
    if config.algorithm.name == "ppo":
        raise UsageError("algorithm.name=ppo needs a critic, which only runs have; take another algorithm")
    return config


def _read_recipe(recipe: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    path = recipes().get(recipe, Path(recipe))
    if path.is_file():
        return _read(path)
    if is_env_id(recipe):
        from rollenv.trainers.chosen_recipe import choose_recipe

        own: dict[str, Any] = {"model": {"path": "tiny"}, "env": {"kwargs": {}}}
        chosen_by = ("model=", "model.path=", "env.kwargs=", "env.kwargs.", "env.images=")
        _apply(own, [o for o in overrides if o.startswith(chosen_by)])
        if not isinstance(kwargs := own["env"]["kwargs"], dict):
            raise UsageError(f"env.kwargs is a section, not {kwargs!r}: set env.kwargs.NAME=VALUE")
        images = {"images": own["env"]["images"]} if own["env"].get("images") else {}
        return choose_recipe(recipe, str(own["model"]["path"]), {**kwargs, **images})
    beside = (path for path in Path(recipe).parent.glob("*") if path.is_file())
    near = [str(path) for path in beside if path.name.endswith((*SUFFIXES, ".toml"))]
    others = f"bundled are {', '.join(recipes())}, or pass a TOML file, an environment's id, or a file of questions"
    hint = did_you_mean(recipe, [*recipes(), *near], others, form=repr, by=lambda name: Path(name).stem)
    raise UsageError(f"there is no recipe {recipe!r}; {hint}")


def _check_domains(config: TrainConfig) -> None:
    """Refuse entries of ``rewards.domains`` without an effect."""
    patterns = dict.fromkeys(one.domain for one in config.rewards.domains)
    paths = [path for path, _ in task_domains(config.env, config.tasks)]
    reached = {pattern_of(patterns, path) for path in paths}
    for pattern in patterns:
        if pattern not in reached:
            known = dict.fromkeys(name for path in paths for name in path)
            raise UsageError(
                f"rewards.domains: {pattern!r} matches no task; there are tasks of {', '.join(known)}, and the first "
                "matching entry is used"
            )


def _without_refused_arguments(config: TrainConfig, written: str, own: Sequence[str]) -> TrainConfig:
    """Drop a recipe's constructor arguments that another environment does not accept.

    Args:
        own: keys that the user set; these stay.
    """
    for name in ("env", "eval"):
        section = getattr(config, name)
        from_recipe = {k for k in section.kwargs if not {f"{name}.kwargs", f"{name}.kwargs.{k}"} & {*own}}
        refused = {k for k in from_recipe if not spec(config.env.id).accepts({k: section.kwargs[k]})}
        if refused:
            logger.warning(
                "%s.kwargs of %s that %s does not take are left out: %s", name, written, config.env.id, sorted(refused)
            )
            left = {k: value for k, value in section.kwargs.items() if k not in refused}
            config = config.model_copy(update={name: section.model_copy(update={"kwargs": left})})
    return config


def _read(path: Path, children: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a recipe and merge it into the recipe that it extends."""
    if path in children:
        raise UsageError(f"{path} extends itself: {' -> '.join(p.name for p in (*children, path))}")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error
    if isinstance(data.get("model"), str):
        data["model"] = {"path": data["model"]}
    if isinstance(data.get("algorithm"), str):
        chosen = preset(data.pop("algorithm"))
        _merge(chosen, data)
        data = chosen
    if "extends" not in data:
        return data
    name = data.pop("extends")
    if not isinstance(name, str):
        raise UsageError(f"{path}: extends names a recipe, got {name!r}")
    parent = recipes().get(name, path.parent / name)
    if not parent.is_file():
        raise UsageError(f"{path} extends {name!r}, which is neither a bundled recipe nor a file beside it")
    extended = _read(parent, (*children, path))
    _merge(extended, data)
    return extended


def _merge(below: dict[str, Any], above: dict[str, Any], section: str = "") -> None:
    """Merge a table into the one below it. A key that chooses a section's variant drops the keys of another one."""
    union = union_of(section)
    if union and union.tag in above and above[union.tag] != below.get(union.tag, union.default):
        for key in below.keys() - union.common:
            del below[key]
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            _merge(below[key], value, f"{section}.{key}")
        else:
            below[key] = value


def _set(data: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key. A table replaces the one that is there."""
    *sections, name = key.split(".")
    for i, section in enumerate(sections):
        data = data.setdefault(section, {})
        if not isinstance(data, dict):
            raise UsageError(f"{'.'.join(sections[: i + 1])} is a value, not a section; {key} cannot be set")
    if isinstance(value, dict):
        data.pop(name, None)
    _merge(data, {name: value}, ".".join(sections))


def _apply(data: dict[str, Any], overrides: Sequence[str]) -> list[str]:
    """Apply presets, then keys that choose a variant, then others; return the keys that are set, without presets."""
    settings = []
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise UsageError(f"{override!r} is not of the form key=value")
        value = value_of(text)
        if key == "algorithm" and isinstance(value, str):
            _merge(data, preset(value))
            continue
        if key == "launch" and isinstance(value, str):  # a file of its own, with or without the title
            if not Path(value).is_file():
                raise UsageError(f"launch: there is no file {value}")
            read = _read(Path(value))
            data[key] = read.get(key, read)
            continue
        key = {"model": "model.path"}.get(key, key)
        section, _, name = key.rpartition(".")
        union = union_of(section)
        settings.append((union is None or name != union.tag, key, value))
    for _, key, value in sorted(settings, key=itemgetter(0)):
        _set(data, key, value)
    return [key for _, key, _ in settings]


def as_data(overrides: Sequence[str]) -> dict[str, Any]:
    """Return ``key=value`` settings as nested data."""
    data: dict[str, Any] = {}
    _apply(data, overrides)
    return data


def with_settings(config: TrainConfig, overrides: Sequence[str]) -> TrainConfig:
    """Return a configuration with ``key=value`` settings applied."""
    data = config.model_dump(mode="json")
    keys = _apply(data, overrides)
    changed = parse_config(data, overrides)
    _refuse_unused_keys(changed, keys)
    return changed


def _refuse_unused_keys(config: TrainConfig, keys: Sequence[str]) -> None:
    """Raise UsageError for a key that was set and does nothing under the other settings.

    Args:
        keys: the user's keys, or all keys of a recipe that is loaded without overrides. A recipe's key for a choice
            that the user overrides is not an error.
    """
    for key, when in config.unused_keys().items():
        if any(k == key or k.startswith(key + ".") for k in keys):
            raise UsageError(f"{key} does nothing here, only with {when}; leave it out")


def parse_config(data: dict[str, Any], overrides: Sequence[str] = ()) -> TrainConfig:
    """Validate plain data.

    Args:
        overrides: settings that are in ``data`` already; they are parsed again as text or None where the schema wants
            that.
    """
    try:
        return TrainConfig.model_validate(data)
    except ValidationError as error:
        if _parse_again(data, overrides, error):
            return parse_config(data)
        lines = [_explain(e["loc"], e["type"], e["msg"], e.get("input")) for e in error.errors()]
        raise UsageError("; ".join(lines)) from error


def _parse_again(data: dict[str, Any], overrides: Sequence[str], error: ValidationError) -> bool:
    """Set refused values as text where the schema wants text, or as None; return whether any was changed."""
    wrong = {".".join(map(str, _plain_location(e["loc"])[0])): e["type"] for e in error.errors()}
    changed = False
    for key, _, text in (override.partition("=") for override in overrides):
        value = text if wrong.get(key) == "string_type" else None
        if key in wrong and (value or text.lower() in NOTHING):
            _set(data, key, value)
            changed = True
    return changed


def changed_keys(old: TrainConfig, new: TrainConfig) -> list[str]:
    """List every setting that differs, as ``key: old -> new``."""
    a, b = _flat(old.model_dump(mode="json")), _flat(new.model_dump(mode="json"))
    return [f"{k}: {a.get(k)!r} -> {b.get(k)!r}" for k in sorted(a.keys() | b.keys()) if a.get(k) != b.get(k)]


def differences(config: TrainConfig) -> list[str]:
    """Return every setting that is not the default, as ``key = value``; a section's variant has its own defaults.

    Keys without effect are left out: a recipe with them is refused.
    """
    return _differences("", config, None, config.unused_keys())


def _differences(key: str, value: Any, default: Any, idle: Collection[str]) -> list[str]:
    if key in idle:
        return []
    if not isinstance(value, BaseModel):
        return [] if value == default else [f"{key} = {toml_value(value)}"]
    same = type(value) is type(default)
    lines = []
    for name, field in type(value).model_fields.items():
        own = field.get_default(call_default_factory=True)
        known = getattr(default, name) if same else own
        if not same and (union := union_of(key)) and name == union.tag:
            known = None  # the choice itself is shown
        lines += _differences(f"{key}.{name}".lstrip("."), getattr(value, name), known, idle)
    return lines + [f"{key}.{name} = {toml_value(own)}" for name, own in (value.model_extra or {}).items()]


# pydantic's own texts name variants instead of keys, and neither the nearest key nor the variants that read one.
def _explain(location: tuple[int | str, ...], kind: str, message: str, value: Any) -> str:
    keys, tag = _plain_location(location)
    key = ".".join(map(str, keys))
    if kind == "union_tag_invalid" and (union := _union_above(keys)):
        given = value.get(union.tag) if isinstance(value, dict) else value
        hint = did_you_mean(str(given), union.names, form=repr)
        text = f"{key}.{union.tag} is one of {union}, not {given!r}; {hint}"
        return text.removesuffix("; ")
    if kind in ("model_type", "model_attributes_type") and key:
        return f"{key} is a section, not {value!r}: set {_first_keys(keys, key)}"
    if kind == "value_error":
        text = message.removeprefix("Value error, ")
        return f"{key}: {text}".removeprefix(": ")
    if kind != "extra_forbidden":
        text = f"{key}: {message[:1].lower()}{message[1:]}"
        return text if kind == "missing" else f"{text}, got {value!r}"
    union = _union_above(keys[:-1])
    if union and (readers := [name for name, model in union.variants.items() if keys[-1] in model.model_fields]):
        return (
            f"{key} does nothing under {'.'.join(map(str, keys[:-1]))}.{union.tag}={tag!r}, "
            f"only under {', '.join(readers)}; leave it out"
        )
    known = all_keys()
    same_name = sorted((k for k in known if k.rpartition(".")[2] == keys[-1]), key=lambda k: k.count("."))
    if near := same_name[:3]:
        return f"there is no key {key!r}; did you mean {' or '.join(map(repr, near))}?"
    return f"there is no key {key!r}; {did_you_mean(key, known, most=2, form=repr)}".removesuffix("; ")


def _plain_location(location: Sequence[int | str]) -> tuple[list[int | str], str]:
    """Return the keys as written, without the variants that pydantic inserts, and the last variant."""
    keys: list[int | str] = []
    tag = ""
    for key in location:
        union = _union_above(keys)
        if union and union.open and key in (BUILT_IN, OWN):
            continue
        if union and key in union.variants:
            tag = str(key)
            if not any(key in model.model_fields for model in union.variants.values()):
                continue
        keys.append(key)
    return keys, tag


def _union_above(keys: Sequence[int | str]) -> Union | None:
    """Return the variants of the section, or list entry, that contains a key."""
    return union_of(next((str(key) for key in reversed(keys) if isinstance(key, str)), ""))


def _first_keys(keys: Sequence[int | str], key: str) -> str:
    """Describe the keys of a section: the key that chooses its variant, or all of them."""
    if union := _union_above(keys):
        return f"{key}.{union.tag}, which is one of {union}"
    return ", ".join(k for k in all_keys() if k.rpartition(".")[0] == key)


def all_keys() -> list[str]:
    """List the keys of all variants, once each."""
    return list(dict.fromkeys(_walk_keys(TrainConfig, "")))


def _walk_keys(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name
        union = union_of(prefix + name)
        below = list(union.variants.values()) if union else [field.annotation]
        for section in below:
            if isinstance(section, type) and issubclass(section, BaseModel):
                yield from _walk_keys(section, f"{prefix}{name}.")


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict) and value:
            out |= _flat(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out
