"""The base of all sections of the configuration, and sections of which one key decides about the others."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]
Discount = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]
#: A path, or a name that is not a path; ~ is the home folder.
HomePath = Annotated[str, AfterValidator(os.path.expanduser)]
Scope = Literal["none", "group", "batch"]

#: Options of ``ray.remote`` that are given already, or are for one actor alone.
_NOT_OF_ALL = {"max_restarts", "max_concurrency", "name", "namespace", "lifetime", "get_if_exists"}


def _for_actors(options: dict[str, Any]) -> dict[str, Any]:
    """Options for all actors of a kind; Ray checks their names."""
    if taken := sorted(_NOT_OF_ALL & options.keys()):
        raise ValueError(f"{taken[0]} cannot be given for actors that rollenv makes and ends")
    resources = options.get("resources") or {}
    if not isinstance(resources, dict):
        raise ValueError("resources are numbers by name")
    needs = {name: options[name] for name in ("num_cpus", "num_gpus", "memory") if name in options}
    for name, value in {**needs, **resources}.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError(f"{name} is a finite number of at least 0, not {value!r}")
    return options


#: Options of ``ray.remote``.
ActorOptions = Annotated[dict[str, Any], AfterValidator(_for_actors)]


class Section(BaseModel):
    """Base of all sections: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Union:
    """A section with variants: the key ``tag`` decides which other keys there are."""

    tag: str
    variants: Mapping[str, type[Section]]
    common: frozenset[str]
    """Keys that every variant has with the same meaning."""

    @property
    def default(self) -> str:
        """The variant where none is named."""
        return next(iter(self.variants))


#: Unions by the name of the section, wherever it is.
_UNIONS: dict[str, Union] = {}


def union(section: str, tag: str, models: Any, base: type[Section] = Section) -> BeforeValidator:
    """Register a section's variants, the default one first.

    Args:
        models: a union of sections, each with the values of its tag as a Literal.
        base: the section with the keys that all variants have in common.

    Returns:
        A validator that adds the default tag where none was given.
    """
    variants = {
        str(value): model for model in get_args(models) for value in get_args(model.model_fields[tag].annotation)
    }
    _UNIONS[section] = Union(tag, variants, frozenset(base.model_fields))
    default = _UNIONS[section].default
    return BeforeValidator(lambda value: {tag: default, **value} if isinstance(value, dict) else value)


def union_of(path: str) -> Union | None:
    """The variants of a section, by its dotted path; None for a section that has none."""
    return _UNIONS.get(path.rpartition(".")[2])
