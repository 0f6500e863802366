"""Suites of environments, and their parts that can be played here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollenv.core import UsageError
from rollenv.env_spec import EnvSpec, load_entry_point, takes
from rollenv.errors import did_you_mean
from rollenv.registry import list_envs, spec
from rollenv.rollout.evaluate import tasks_of
from rollenv.rollout.types import Task

#: Suites of several families: a description, and the prefixes of their ids.
_SUITES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "tool-use": ("All generated and published tasks with tools.", ("tools:",)),
    "generated": (
        "Generated tasks with tools: shop, office, files, database, sheet, search.",
        ("tools:Shop", "tools:Office", "tools:Files", "tools:SQL", "tools:Sheet", "tools:Search"),
    ),
    "shop": ("A shop's back office.", ("tools:Shop",)),
    "office": ("Calendar and mail.", ("tools:Office",)),
    "files": ("A file system.", ("tools:Files",)),
    "database": ("An SQLite database.", ("tools:SQL",)),
    "sheet": ("A spreadsheet.", ("tools:Sheet",)),
    "search": ("Questions over a generated corpus.", ("tools:Search",)),
    "workbench": (
        "WorkBench: 690 requests at an office, judged by five tables (arXiv 2405.00823).",
        ("tools:WorkBench",),
    ),
    "bfcl": ("Berkeley Function Calling Leaderboard v4, the categories whose data is there.", ("tools:BFCL",)),
    "dbbench": ("AgentBench's database tasks (arXiv 2308.03688).", ("tools:DBBench",)),
    "spider": ("Spider's questions with InterCode's reward (arXiv 2306.14898).", ("tools:Spider",)),
    "terminal": ("A shell: generated tasks, AgentBench's OS, InterCode-Bash.", ("shell:", "os:")),
    "tau2": ("tau2-bench with a scripted user, judged by its database (arXiv 2506.07982).", ("tools:Tau2",)),
}


@dataclass(frozen=True)
class Part:
    """A category of a suite."""

    env_id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def category(self) -> str:
        """The name in tables: the id without its namespace."""
        return self.env_id.partition(":")[2]

    def tasks(self, n: int | None, seed: int = 0) -> list[Task]:
        """Its tasks.

        Args:
            n: at most so many; None for all of a data set and 100 of what is generated.
        """
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
    return [suite(name) for name in _SUITES]


def suite(name: str, settings: Mapping[str, Any] | None = None, calls: str = "") -> Suite:
    """Return the suite of a name, or one environment as a suite.

    Generated tasks are from the split ``test``, which training does not use, unless the settings choose another.

    Args:
        name: name of a suite, or an environment's id.
        settings: constructor arguments of its environments; each has to take them all.
        calls: format of tool calls (:data:`rollenv.tools.calls.CALL_FORMS`); empty for each environment's own.

    Raises:
        UsageError: there is no such suite and no such environment.
    """
    if ":" in name:
        return Suite(name, "", (_part(spec(name), settings or {}, calls),))
    if name not in _SUITES:
        hint = did_you_mean(name, _SUITES, "`rollenv bench --list` shows all.", form=repr)
        raise UsageError(f"there is no suite {name!r}; {hint} An environment's id, as in tools:Shop-v0, works too")
    about, beginnings = _SUITES[name]
    specs = [each for each in list_envs() if each.id.startswith(beginnings) and not _is_part_of(each.id)]
    parts = tuple(_part(each, settings or {}, calls) for each in specs if not each.missing)
    missing = {
        each.id.partition(":")[2]: "; ".join(getattr(need, "hint", str(need)) for need in each.missing)
        for each in specs
        if each.missing
    }
    return Suite(name, about, parts, missing)


#: Ids that repeat the tasks of other ids, or are for training; excluded from suites.
_LEFT_OUT = (
    "tools:WorkBench-v0", "tools:DBBench-v0", "tools:Tiny", "os:AgentBench-v0-dev", "os:AgentBench-v0-train",
)  # fmt: skip


def _is_part_of(env_id: str) -> bool:
    """Return whether an id is excluded from suites: other ids cover its tasks, or it is for training."""
    return env_id in _LEFT_OUT or env_id.startswith("tools:Tiny") or env_id.endswith("-easy")


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
