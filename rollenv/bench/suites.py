"""Suites of environments, and their parts that can be played here."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollenv.core.env_spec import EnvSpec, load_entry_point, takes
from rollenv.core.errors import UsageError, did_you_mean
from rollenv.core.plugins import load_all
from rollenv.core.registry import list_envs, spec
from rollenv.panels import Panel
from rollenv.rollout.evaluate import tasks_of
from rollenv.rollout.types import Task


@dataclass(frozen=True)
class SuiteSpec:
    """The ids of a suite. Other packages add suites through the entry point group ``rollenv.suites``."""

    about: str
    beginnings: tuple[str, ...]
    """Beginnings of the ids."""
    left_out: tuple[str, ...] = ()
    """Ids that no suite plays: they repeat tasks of other ids, or are for training."""


#: Suites of environments that come with rollenv.
_SUITES = {
    name: SuiteSpec(each["about"], tuple(each["beginnings"]))
    for name, each in tomllib.loads(Path(__file__).with_name("suites.toml").read_text("utf-8")).items()
}


def _suite_specs() -> dict[str, SuiteSpec]:
    """Return rollenv's suites and those of other packages."""
    return _SUITES | load_all("rollenv.suites", _SUITES, SuiteSpec)


@dataclass(frozen=True)
class Part:
    """A category of a suite."""

    env_id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    fixed: tuple[Task, ...] = ()
    """Its tasks, if they are a panel's."""

    @property
    def category(self) -> str:
        """The name in tables: the id without its namespace."""
        return self.env_id.partition(":")[2]

    def tasks(self, n: int | None, seed: int = 0) -> list[Task]:
        """Its tasks.

        Args:
            n: at most so many; None for all of a data set and 100 of what is generated.
        """
        if self.fixed:
            return list(self.fixed)
        kwargs = dict(self.kwargs)
        if n is not None and spec(self.env_id).indexed:
            return tasks_of(self.env_id, kwargs, None, seed)[:n]
        return tasks_of(self.env_id, kwargs, n, seed)


@dataclass(frozen=True)
class Suite:
    """A set of categories."""

    name: str
    about: str
    parts: tuple[Part, ...]
    """Parts that can be played here."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Categories that cannot be played here, with their missing requirements."""


def suites() -> list[Suite]:
    """All named suites."""
    return [suite(name) for name in _suite_specs()]


def suite(name: str, settings: Mapping[str, Any] | None = None, calls: str = "") -> Suite:
    """Return the suite of a name, or one environment as a suite.

    Generated tasks are from the split ``test``, which training does not use, unless the settings choose another.

    Args:
        name: name of a suite, or an environment's id.
        settings: constructor arguments of its environments; each has to take them all.
        calls: format of tool calls (:data:`rollenv.core.tools.calls.CALL_FORMS`); empty for each environment's own.

    Raises:
        UsageError: there is no such suite and no such environment.
    """
    if ":" in name:
        return Suite(name, "", (_part(spec(name), settings or {}, calls),))
    known = _suite_specs()
    if name not in known:
        hint = did_you_mean(name, known, "`rollenv bench --list` shows all.", form=repr)
        raise UsageError(f"there is no suite {name!r}; {hint} An environment's id, as in tools:Shop-v0, works too")
    left_out = {env_id for each in known.values() for env_id in each.left_out}
    specs = [
        each
        for each in list_envs()
        if each.id.startswith(known[name].beginnings)
        and each.id not in left_out
        and not (each.id.startswith("tools:Tiny") or each.id.endswith("-easy"))  # they are for training
    ]
    parts = tuple(_part(each, settings or {}, calls) for each in specs if not each.missing)
    missing = {
        each.id.partition(":")[2]: "; ".join(getattr(need, "hint", str(need)) for need in each.missing)
        for each in specs
        if each.missing
    }
    return Suite(name, known[name].about, parts, missing)


def suite_of(panel: Panel) -> Suite:
    """Return a panel as a suite: a category for each of its parts."""
    tasks = iter(panel.tasks())
    each = ((part, tuple(itertools.islice(tasks, part.members))) for part in panel.parts)
    return Suite(panel.name, panel.about, tuple(Part(part.env, part.kwargs, fixed) for part, fixed in each))


def _part(env_spec: EnvSpec, settings: Mapping[str, Any], calls: str) -> Part:
    factory = load_entry_point(env_spec.entry_point, env_spec.id)
    kwargs = dict(settings)
    if calls and _takes(factory, "calls"):
        kwargs["calls"] = calls
    if not env_spec.indexed and "split" not in env_spec.kwargs and _takes(factory, "split"):
        kwargs.setdefault("split", "test")
    return Part(env_spec.id, kwargs)


def _takes(factory: Callable[..., Any], name: str) -> bool:
    """Return whether a constructor takes an argument, itself or through a base class."""
    for each in factory.__mro__ if isinstance(factory, type) else (factory,):
        if takes(each, name):
            return True
        if not takes(each, "settings"):  # only **settings passes further arguments to the base class
            return False
    return False


def all_tasks(parts: Sequence[Part], n: int | None, seed: int = 0) -> list[Task]:
    """Return the tasks of all parts, one part after the other.

    Args:
        n: maximum tasks of each part; None for all of a data set, or 100 generated ones.
        seed: seed of the first task of each part.
    """
    return [task for part in parts for task in part.tasks(n, seed)]
