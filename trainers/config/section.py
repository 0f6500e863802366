"""The base of all configuration sections, and sections with variants."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    ValidationError,
    WrapValidator,
    model_validator,
)

from rollenv.core.arguments import toml_value
from rollenv.core.errors import RollenvError, did_you_mean
from rollenv.core.plugins import entry_points, function_at, load

Share = Annotated[float, Field(ge=0, le=1)]
Discount = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]
#: A path, or a name that is not a path; ~ is the home folder.
HomePath = Annotated[str, AfterValidator(os.path.expanduser)]
Scope = Literal["none", "group", "batch"]

#: Options of ``ray.remote`` that rollenv sets, or that suit a single actor only.
_RESERVED = {"max_restarts", "max_concurrency", "name", "namespace", "lifetime", "get_if_exists"}


def _for_actors(options: dict[str, Any]) -> dict[str, Any]:
    """Check options of Ray actors; Ray itself checks their names."""
    if reserved := sorted(_RESERVED & options.keys()):
        raise ValueError(f"{reserved[0]} cannot be set: rollenv starts and ends these actors")
    resources = options.get("resources") or {}
    if not isinstance(resources, dict):
        raise ValueError("resources must be numbers by name")
    needs = {name: options[name] for name in ("num_cpus", "num_gpus", "memory") if name in options}
    for name, value in {**needs, **resources}.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a finite number of at least 0, not {value!r}")
    return options


#: Options of ``ray.remote``.
ActorOptions = Annotated[dict[str, Any], AfterValidator(_for_actors)]


class Section(BaseModel):
    """Base of all sections: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, data: Any) -> Any:
        """Refuse true and false for a number, which would be 1 and 0, and more than the 64 bits that TOML has."""
        for key, value in data.items() if isinstance(data, dict) else ():
            wanted = cls.model_fields[key].annotation if key in cls.model_fields else None
            wrong = isinstance(value, bool) or (isinstance(value, int) and not -(2**63) <= value < 2**63)
            if wrong and {int, float} & {wanted, *get_args(wanted)}:
                raise ValueError(f"{key} takes a number{' of 64 bits' * (abs(value) > 1)}, not {toml_value(value)}")
        return data

    def problems(self, run: Any) -> Iterator[str]:
        """Yield texts about settings that exclude others of the run, with the key to change and the reason.

        Args:
            run: the whole :class:`~rollenv.trainers.config.run.TrainConfig`.
        """
        yield from ()

    def unused(self, run: Any) -> dict[str, str]:
        """Return keys of the run that do nothing under its settings, each with what it needs."""
        return {}

    def sections(self) -> Iterator[Section]:
        """Yield this section and all below it, except those in lists."""
        yield self
        for name in type(self).model_fields:
            if isinstance(value := getattr(self, name), Section):
                yield from value.sections()


def unless(works: Any, needed: str, section: str, *keys: str) -> dict[str, str]:
    """Return what the keys of a section, or the section itself, need, unless they work."""
    if works:
        return {}
    return dict.fromkeys((f"{section}.{key}" for key in keys), needed) if keys else {section: needed}


@dataclass(frozen=True, slots=True)
class Union:
    """A section with variants, chosen by its key ``tag``."""

    tag: str
    variants: Mapping[str, type[Section]]
    common: frozenset[str]
    """Keys that every variant has with the same meaning."""
    open: type[Section] | None = None
    """The section of a function of the user, if it can be a variant; see :class:`OwnVariant`."""
    group: str = ""
    """The entry points of further variants."""

    def __str__(self) -> str:
        """The values of the tag."""
        return ", ".join([*self.names, *([f"or {OWN}"] if self.open else [])])

    @property
    def names(self) -> list[str]:
        """The variants that have names."""
        return [*self.variants, *(sorted(entry_points(self.group, frozenset(self.variants))) if self.group else [])]

    @property
    def default(self) -> str:
        """The default variant."""
        return next(iter(self.variants))


#: Unions by the last part of a section's path.
_UNIONS: dict[str, Union] = {}


def union(
    section: str,
    tag: str,
    models: Any,
    base: type[Section] = Section,
    *,
    open: type[Section] | None = None,
    group: str = "",
) -> WrapValidator:
    """Register a section's variants, the default one first, and return a validator that adds the default tag.

    Args:
        base: the section with the common keys of all variants.
        open: the section of functions of the user, if they can be variants too.
        group: entry points of further variants, if installed packages can add some.
    """
    variants = {
        str(value): model for model in get_args(models) for value in get_args(model.model_fields[tag].annotation)
    }
    _UNIONS[section] = Union(tag, variants, frozenset(base.model_fields), open, group)
    default = _UNIONS[section].default

    def validate(value: Any, validate_own: Callable[[Any], Any]) -> Any:
        if isinstance(value, dict):
            value = {tag: default, **value}
        kind = value[tag] if isinstance(value, dict) else getattr(value, tag, "")
        added = group and str(kind) not in variants and str(kind) in entry_points(group)
        return by_entry_point(group, value) if added else validate_own(value)

    return WrapValidator(validate)


def union_of(path: str) -> Union | None:
    """Return the variants of a section, by its dotted path; None if it has none."""
    return _UNIONS.get(path.rpartition(".")[2])


def by_entry_point(group: str, value: Any) -> Any:
    """Validate a section by the model of an installed package: the entry point of a group that its ``kind`` names."""
    if not isinstance(value, dict):
        return value
    kind, known = value.get("kind", ""), entry_points(group)
    if str(kind) not in known:
        said = f"kind is one of {', '.join(sorted(known))}, not {kind!r}; {did_you_mean(str(kind), known)}"
        raise ValueError(said.removesuffix("; "))
    try:
        model: type[Section] = load(group, kind)
        if not (isinstance(model, type) and issubclass(model, Section)):
            raise ValueError(f"the entry point {kind} of {group} is no section, but {model!r}")
        return model.model_validate(value)
    except ValidationError as error:
        first, keys = error.errors()[0], list(model.model_fields)
        key, said = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            said = f"there is no such key; {did_you_mean(key, keys, ', '.join(keys))}"
        raise ValueError(f"{key}: {said}".removeprefix(": ")) from None
    except RollenvError as error:
        raise ValueError(str(error)) from error


# -- functions of the user ---------------------------------------------------------------------------------------------

#: The variants of an open union: rollenv's own, and the user's.
BUILT_IN, OWN = "built-in", "module:function"


def own_or_built_in(tag: str) -> Discriminator:
    """Choose between the built-in variants of an open union, and a function of the user."""

    def chosen(value: Any) -> str:
        return OWN if ":" in str(value.get(tag) if isinstance(value, dict) else getattr(value, tag, "")) else BUILT_IN

    return Discriminator(chosen)


class OwnVariant(Section):
    """A function of the user, ``module:function``; its keyword arguments are further keys of the section.

    The keys are checked when the function is loaded, so a run's settings can be read without it.
    """

    model_config = ConfigDict(extra="allow")

    #: The key with the function.
    tag: ClassVar = "name"
    _function: Callable[..., Any] | None = PrivateAttr(None)

    @property
    def function(self) -> Callable[..., Any]:
        """The function. Raises UsageError if it cannot be imported."""
        return self._function or function_at(getattr(self, self.tag), "the function")


class OwnFunction(OwnVariant):
    """A function of the user in a section whose variants have names."""

    name: str

    @classmethod
    def of(cls, function: Callable[..., Any], before: Section) -> Self:
        """Return the section of a function that may be no module's, with the common keys of another section.

        Args:
            function: its name is stored. The arguments of a ``functools.partial`` become keys.
        """
        inner = getattr(function, "func", function)
        name = f"{getattr(inner, '__module__', '')}:{getattr(inner, '__qualname__', type(inner).__name__)}"
        common = {key: getattr(before, key) for key in before.model_fields_set & cls.model_fields.keys() - {"name"}}
        settings = before.model_extra or {} if before.model_dump()["name"] == name else {}
        section = cls(**{**common, **settings, **getattr(function, "keywords", {}), "name": name})
        section._function = inner
        return section


def arguments(section: Section, base: type[Section]) -> dict[str, Any]:
    """Return the keys of a variant that are not common to all variants: the arguments of its function."""
    own = type(section).model_fields.keys() - base.model_fields.keys() - {"name"}
    return {name: getattr(section, name) for name in own} | (section.model_extra or {})
