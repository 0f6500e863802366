"""Sources of batches for a training loop: played one after another, or by a rollout that never stops."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from rollenv.agents.base import renew
from rollenv.core import UsageError
from rollenv.rollout.filters import Bounded, Filter, mean_between, varied
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.stream import RolloutStream, TailBatches
from rollenv.rollout.types import Group, Task
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.run import Stream, Tail
from rollenv.trainers.sources import Drawn, TaskSource


class Batches(ABC):
    """Yields batches of groups, and hands new weights to the player.

    Args:
        source: of the tasks. It is used on the manager's event loop only, which may be in another thread.
        again: tasks that were begun before a checkpoint, and come first.
    """

    colocated = False
    """True if running episodes have to pause for an update."""

    def __init__(self, manager: RolloutManager, source: TaskSource, config: TrainConfig, again: Iterable[Task] = ()):
        self.manager, self.source, self.rollout = manager, source, config.rollout
        self._success_only = config.rewards.success_only
        self.sleep: int = getattr(config.player, "sleep", 0)
        #: Those of ``again`` that have not come yet.
        self._waiting = deque(again)
        self.tasks = self._drawn()
        self._dropped: list[Group] = []
        self._refilled = 0
        self._bounded = self._bound()

    def next(self, metrics: dict[str, float]) -> list[Group]:
        """The next batch; the source learns how its tasks went, those that were dropped too.

        Args:
            metrics: where numbers for the log go.
        """
        groups = self._next(metrics)
        metrics |= self.manager.run(self._record(groups))
        return groups

    @abstractmethod
    def _next(self, metrics: dict[str, float]) -> list[Group]: ...

    def update(self, weights: Any) -> None:
        """Let the manager's agent play with new weights.

        Args:
            weights: as the agent's ``update_weights`` takes them.
        """
        self.manager.run(renew(self.manager.agent, weights))

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """Keep players off a device that they share with the trainer, as long as the block runs.

        Unfinished turns wait with the tokens they have. :meth:`update` ends the rest.
        """
        agent: Any = self.manager.agent
        if self.sleep:
            self.manager.run(agent.sleep(self.sleep))
        elif self.colocated:
            self.manager.run(agent.suspend())
        yield

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the source's state, and tasks drawn from it and not yet returned."""
        return self.manager.run(self._state())

    def close(self) -> None:
        """End what is still played."""
        return None

    def _drawn(self) -> Iterator[Task]:
        """Yield the tasks to play, without an end."""
        while True:
            yield self._waiting.popleft() if self._waiting else next(self.source)

    def _begun(self) -> list[Task]:
        """Tasks that are being played for a later batch."""
        return []

    async def _state(self) -> dict[str, Any]:
        self._tell_source([])
        pending = [*self._begun(), *self._waiting]
        return {"source": self.source.state_dict(), "pending": [plain_task(task) for task in pending]}

    async def _record(self, groups: list[Group]) -> dict[str, float]:
        self._tell_source(groups)
        dropped, self._refilled = self._refilled, 0
        return self.source.metrics() | ({"refilled": float(dropped)} if self.rollout.refill else {})

    def _tell_source(self, groups: Iterable[Group]) -> None:
        """Report to the source how tasks went: those of these groups, and those dropped since the last time."""
        dropped, self._dropped = self._dropped, []
        self._refilled += len(dropped)
        for group in sorted([*groups, *dropped], key=lambda group: group.number):
            self.source.record(group.task, group)

    def _bound(self) -> Bounded:
        keep = self.rollout.keep
        only = self._success_only
        filters = [varied(keep.std, success_only=only)]
        filters += [mean_between(*keep.mean, success_only=only)] if keep.mean else []
        return Bounded(
            lambda group: all(passes(group) for passes in filters), self.rollout.refill, self.rollout.groups_per_batch
        )

    def _keep(self, group: Group) -> bool:
        finite = all(math.isfinite(t.reward) for t in group)  # others are an error that judging explains
        kept = not finite or self._bounded(group)
        self._dropped.extend([] if kept else [group])
        return kept

    @property
    def _filter(self) -> Filter | None:
        return self._keep if self.rollout.refill else None

    @property
    def _sizes(self) -> dict[str, int]:
        """Sizes of a batch, under the names of managers' and streams' arguments."""
        rollout = self.rollout
        return {
            "groups": rollout.groups_per_batch,
            "group_size": rollout.group_size,
            "extra_groups": rollout.extra_groups,
            "extra_members": rollout.extra_members,
        }


class Collected(Batches):
    """Every batch is played with the newest weights, while training waits."""

    def _next(self, metrics: dict[str, float]) -> list[Group]:
        self._bounded = self._bound()
        return self.manager.batch(self.tasks, **self._sizes, keep=self._filter)


class Tails(Batches):
    """A batch source like :class:`Collected`, with long tasks in batches of their own; see :class:`TailBatches`."""

    def __init__(self, manager: RolloutManager, source: TaskSource, config: TrainConfig, again: Iterable[Task] = ()):
        super().__init__(manager, source, config)
        self.tails = TailBatches(manager, self.tasks, **self._sizes, keep=self._filter)
        self.tails.long.extend(again)

    def _next(self, metrics: dict[str, float]) -> list[Group]:
        self._bounded = self._bound()
        groups = self.manager.run(self.tails.next_batch())
        metrics["put_by"] = len(self.tails.long)
        return groups

    def _begun(self) -> list[Task]:
        return list(self.tails.long)


class Streamed(Batches):
    """Plays during updates, on an event loop in a thread of its own; see :class:`RolloutStream`.

    Args:
        manager: its event loop has a thread of its own.
        again: tasks that were begun before a checkpoint.
        batches: how many are needed, so that no more is begun at the end.
    """

    def __init__(
        self,
        manager: RolloutManager,
        source: TaskSource,
        config: TrainConfig,
        again: Iterable[Task] = (),
        *,
        batches: int,
    ):
        super().__init__(manager, source, config, again)
        assert isinstance(config.batches, Stream)
        self.colocated = config.batches.colocated
        bound = config.batches.max_staleness
        self.stream = RolloutStream(
            manager, self.tasks, **self._sizes, max_staleness=bound, keep=self._filter, batches=batches
        )
        self._open = False

    def _next(self, metrics: dict[str, float]) -> list[Group]:
        groups = self.manager.run(self._follow(torch.get_num_threads()))
        metrics |= self.stream.staleness(groups)
        return groups

    async def _follow(self, threads: int) -> list[Group]:
        torch.set_num_threads(threads)  # each thread has a number of its own
        if not self._open:
            await self.stream.__aenter__()
            self._open = True
        return await self.stream.next_batch()

    def update(self, weights: Any) -> None:
        """See :class:`Batches`; unfinished responses go on after the tokens they have."""
        self.manager.run(self.stream.update_weights(weights))

    def close(self) -> None:
        """End the stream; unfinished tasks are lost, unless :meth:`state` was saved."""
        if self._open and self.manager.reacts():
            self.manager.run(self.stream.__aexit__(None, None, None))
        self._open = False

    def _begun(self) -> list[Task]:
        return self.stream.pending


def batches_of(
    config: TrainConfig, manager: RolloutManager, source: TaskSource, again: Iterable[Task], left: int
) -> Batches:
    """The batches that the settings ask for.

    Args:
        again: tasks that were begun before a checkpoint.
        left: how many batches the run still needs.
    """
    if isinstance(config.batches, Stream):
        return Streamed(manager, source, config, again, batches=left)
    kind = Tails if isinstance(config.batches, Tail) else Collected
    return kind(manager, source, config, again)


def plain_task(task: Task) -> dict[str, Any]:
    """A task as JSON data, with what its source marked it with."""
    names = ("env_id", "seed", "kwargs", "wrappers", "options", "agent_seed")
    return {name: getattr(task, name) for name in names} | {"origin": list(getattr(task, "origin", ()))}


def read_task(plain: Mapping[str, Any]) -> Task:
    """A task from :func:`plain_task`.

    Raises:
        UsageError: it is something else.
    """
    try:
        return Drawn(**plain)
    except TypeError as error:
        raise UsageError(f"this is not a saved task: {plain!r:.200}") from error
