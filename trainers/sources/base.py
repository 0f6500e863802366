"""The interface of task sources, and the tasks that they give."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, TypeVar

from rollenv.core import UsageError
from rollenv.rollout.types import Group, Task

T = TypeVar("T")

#: The path of a draw: a number or a name from every source that the task came through, so that each finds its own.
Origin = tuple[int | str, ...]


class DataChanged(UsageError):
    """A run is continued with another data set."""


class TaskSource(Protocol):
    """An endless iterator over tasks.

    Tasks follow from the settings, the number of draws so far and the recorded outcomes, so that a source that was
    restored from :meth:`state_dict` goes on exactly as the saved one would have.
    """

    def __iter__(self) -> Iterator[Task]: ...

    def __next__(self) -> Task:
        """The next task."""
        ...

    def record(self, task: Task, group: Group) -> None:
        """Record the outcome of a task, once.

        Args:
            task: one that this source gave; also one from before it was restored.
            group: the trajectories of the task. Those that failed do not count.

        Raises:
            UsageError: the task is not from this source.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """The cursor and what was learned from outcomes, as JSON data."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the :meth:`state_dict` of a source with the same settings.

        Raises:
            UsageError: it is the state of another source. Nothing has changed then.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers for the log."""
        ...


class Drawn(Task):
    """A task from a source.

    As a task it equals any other with the same fields; what a source needs to know of this draw is apart from them, so
    that two draws of one task in a batch can be kept apart.

    Args:
        origin: see :data:`Origin`; the outermost source's part comes first.
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
    def of(cls, task: Task, origin: Origin) -> Drawn:
        """A task with another origin."""
        return cls(**_values(task), origin=origin)

    def __eq__(self, other: object) -> bool:
        return _values(self) == _values(other) if isinstance(other, Task) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*_values(self).values(), self.origin)


def _values(task: Task) -> dict[str, Any]:
    return {f.name: getattr(task, f.name) for f in fields(Task)}


def origin_of(task: Task, source: object) -> Origin:
    """The origin of a task that a source gave.

    Raises:
        UsageError: it has none.
    """
    if not isinstance(task, Drawn) or not task.origin:
        raise UsageError(f"this {task.env_id} task was not drawn from {type(source).__name__}; record what it gave")
    return task.origin


def own_part(task: Task, source: object, known: Callable[[int], bool]) -> int:
    """The number with which a source marked a task.

    Args:
        known: whether a number is one of the source's.

    Raises:
        UsageError: the task is not from this source.
    """
    origin = origin_of(task, source)
    if len(origin) != 1 or not isinstance(origin[0], int) or not known(origin[0]):
        raise UsageError(f"a task of origin {origin!r} was not drawn from this {type(source).__name__}")
    return origin[0]


@dataclass(frozen=True)
class TaskTemplate:
    """All of a task but its seed."""

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
    ) -> Drawn:
        """A task of this kind.

        Args:
            origin: the names and numbers by which sources know it; see :data:`Origin`.
            kwargs: more constructor arguments; they replace those of the template.
            agent_seed: of the agent's random numbers, for a task that is drawn more than once.
        """
        more = {**self.options, **(options or {})}
        return Drawn(self.env_id, seed, {**self.kwargs, **(kwargs or {})}, self.wrappers, more, agent_seed, origin)


def task_seed(*parts: int | str) -> int:
    """A seed that depends only on the parts, uniform over 48 bits."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest(), "big")


def read_state(source: object, state: Mapping[str, Any], read: Callable[[Mapping[str, Any]], T]) -> T:
    """Take values out of a saved state.

    Args:
        source: the source that the state should belong to, for the error message.
        read: takes them out; any error in it means that the state is another source's.

    Raises:
        UsageError: it is not such a state.
    """
    try:
        return read(state)
    except UsageError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"this is not the state of a {type(source).__name__}: {error!r}") from error


def count(value: Any) -> int:
    """A number of draws, as a state holds it.

    Raises:
        ValueError: it is something else.
    """
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a whole number from 0, got {value!r:.80}")
    return value
