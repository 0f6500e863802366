"""The interface of task sources, and their tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, TypeVar

from rollenv.core.errors import UsageError, reads
from rollenv.rollout.types import Group, Task

T = TypeVar("T")

#: The path of a sampled task: a number or name from each of its nested sources, the outermost first.
Origin = tuple[int | str, ...]


class DataChanged(UsageError):
    """A run is resumed with another data set."""


class TaskSource(Protocol):
    """An endless iterator over tasks.

    Tasks depend only on the settings, the number of tasks so far and the recorded outcomes, so a source restored from
    :meth:`state_dict` continues exactly like the saved one.
    """

    def __iter__(self) -> Iterator[Task]: ...

    def __next__(self) -> Task:
        """Return the next task."""
        ...

    def record(self, task: Task, group: Group) -> None:
        """Record the outcome of a task, once. Failed trajectories do not count."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor and the statistics of outcomes, as JSON data."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the :meth:`state_dict` of a source with the same settings."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return numbers for the log."""
        ...


class SourcedTask(Task):
    """A task from a source.

    It equals any task with the same fields. ``origin`` is not compared; it distinguishes two samples of one task in a
    batch.
    """

    __slots__ = ("origin",)
    origin: Origin

    def __init__(
        self,
        env_id: str,
        seed: int,
        kwargs: dict[str, Any] | None = None,
        wrappers: dict[str, dict[str, Any]] | None = None,
        options: dict[str, Any] | None = None,
        agent_seed: int | None = None,
        origin: Origin = (),
    ):
        Task.__init__(self, env_id, seed, kwargs or {}, wrappers or {}, options or {}, agent_seed)
        object.__setattr__(self, "origin", tuple(origin))

    @classmethod
    def of(cls, task: Task, origin: Origin) -> SourcedTask:
        """Copy a task with another origin."""
        return cls(**_values(task), origin=origin)

    def __eq__(self, other: object) -> bool:
        return _values(self) == _values(other) if isinstance(other, Task) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*_values(self).values(), self.origin)


def _values(task: Task) -> dict[str, Any]:
    return {f.name: getattr(task, f.name) for f in fields(Task)}


def origin_of(task: Task, source: object) -> Origin:
    """Return the origin of a task."""
    if not isinstance(task, SourcedTask) or not task.origin:
        raise UsageError(
            f"this {task.env_id} task is not from {type(source).__name__}; record only tasks of the source"
        )
    return task.origin


def own_part(task: Task, source: object, known: Callable[[int], bool]) -> int:
    """Return a source's own part of a task's origin."""
    origin = origin_of(task, source)
    if len(origin) != 1 or not isinstance(origin[0], int) or not known(origin[0]):
        raise UsageError(f"a task of origin {origin!r} is not from this {type(source).__name__}")
    return origin[0]


@dataclass(frozen=True)
class TaskTemplate:
    """A task without its seed."""

    env_id: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor."""
    wrappers: dict[str, dict[str, Any]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    """Options of every reset."""

    def task(
        self,
        seed: int,
        origin: Origin,
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        agent_seed: int | None = None,
    ) -> SourcedTask:
        """Create a task.

        Args:
            agent_seed: seed of the agent's random numbers, for tasks that are sampled more than once.
        """
        more = {**self.options, **(options or {})}
        return SourcedTask(
            self.env_id, seed, {**self.kwargs, **(kwargs or {})}, self.wrappers, more, agent_seed, origin
        )


def task_seed(*parts: int | str) -> int:
    """Hash the parts to a seed, uniform over 48 bits."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest(), "big")


def read_state(source: object, state: Mapping[str, Any], read: Callable[[Mapping[str, Any]], T]) -> T:
    """Read values from a saved state.

    Args:
        read: reads the values; any error in it means that the state belongs to another source.
    """
    with reads(f"this is not the state of a {type(source).__name__}"):
        found = read(state)
    return found


def count(value: Any) -> int:
    """Check that a value of a saved state is a count."""
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a whole number from 0, got {value!r:.80}")
    return value
