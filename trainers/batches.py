"""Batch sources of a training loop: batches in turn, a stream, or batches with a separate tail of long tasks."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from rollenv.agents.base import update_weights_of
from rollenv.agents.engines.adapters import Adapter
from rollenv.core.errors import UsageError
from rollenv.rollout.filters import Bounded, Filter
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.stream import RolloutStream, TailBatches
from rollenv.rollout.types import Group, Task
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.batches import StreamConfig, TailConfig
from rollenv.trainers.config.run import WeightForm
from rollenv.trainers.policies.base import Policy
from rollenv.trainers.sources import SourcedTask, TaskSource


def weights_for_player(policy: Policy, form: WeightForm) -> Iterator[tuple[str, torch.Tensor]] | Adapter | None:
    """Return what the player's ``update_weights`` gets: nothing, the adapter or all weights.

    ``TrainConfig.weight_form`` decides. The player's engine then transfers them: to vLLM in this process from memory
    (``engines.vllm_local``), to its server by a folder or an adapter's name (``vllm_http``), NCCL or IPC
    (``vllm_transfer``), to shards by ``ray_shards``.
    """
    if form == "shared":
        return None
    if form == "adapter":
        return policy.adapter()
    return as_saved(policy.model, policy.named_weights()) if form == "checkpoint" else policy.named_weights()


def as_saved(model: PreTrainedModel, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield weights under the names and in the shapes of a checkpoint, a layer at a time.

    The two differ where transformers joins weights as it loads them, as those of experts.
    """
    for _, layer in itertools.groupby(weights, key=lambda pair: re.match(r".*?\.\d+\.|", pair[0])[0]):  # type: ignore[index]
        yield from revert_weight_conversion(model, dict(layer)).items()


class Batches(ABC):
    """Yields batches of groups and passes new weights to the player.

    Args:
        source: used on the manager's event loop only, which may run in another thread.
        again: unfinished tasks of a checkpoint; they are played first.
    """

    colocated = False
    """True if running episodes pause during an update."""
    plays = True
    """False if the groups are given, not played."""

    def __init__(self, manager: RolloutManager, source: TaskSource, config: TrainConfig, again: Iterable[Task] = ()):
        self.manager, self.source, self.rollout = manager, source, config.rollout
        self._success_only, self.weight_form = config.rewards.success_only, config.weight_form
        self.sleep: int = getattr(config.player, "sleep", 0)
        self.held_out: list[Group] = []
        """Given groups that are not trained on, but measured in evaluations."""
        self.measured: dict[str, float] = {}
        """Numbers of those, which need no model."""
        self._waiting = deque(again)
        self.tasks = self._next_tasks()
        self._dropped: list[Group] = []
        self._refilled = 0
        self._bounded = self._make_filter()

    def next(self, metrics: dict[str, float]) -> list[Group]:
        """Return the next batch, and record its groups and the dropped ones in the source."""
        groups = self._next(metrics)
        metrics |= self.manager.run(self._record(groups))
        return groups

    @abstractmethod
    def _next(self, metrics: dict[str, float]) -> list[Group]: ...

    def publish(self, policy: Policy) -> None:
        """Load the trained weights into the manager's agent."""
        self.manager.run(update_weights_of(self.manager.agent, weights_for_player(policy, self.weight_form)))

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """Pause players that share a device with the trainer; turns keep their tokens, :meth:`publish` resumes them."""
        agent: Any = self.manager.agent
        if self.sleep:
            self.manager.run(agent.sleep(self.sleep))
        elif self.colocated:
            self.manager.run(agent.suspend())
        yield

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the source's state and its unfinished tasks."""
        return self.manager.run(self._state())

    def close(self) -> None:
        """Cancel unfinished episodes."""
        return None

    def _next_tasks(self) -> Iterator[Task]:
        """Yield the tasks to play, endlessly."""
        while True:
            yield self._waiting.popleft() if self._waiting else next(self.source)

    def _running_tasks(self) -> list[Task]:
        """Return the tasks that are played for a later batch."""
        return []

    async def _state(self) -> dict[str, Any]:
        self._record_in_source([])
        pending = [*self._running_tasks(), *self._waiting]
        return {"source": self.source.state_dict(), "pending": [plain_task(task) for task in pending]}

    async def _record(self, groups: list[Group]) -> dict[str, float]:
        self._record_in_source(groups)
        dropped, self._refilled = self._refilled, 0
        metrics = self.source.metrics()
        if self.rollout.refill:
            metrics["refilled"] = float(dropped)
        return metrics

    def _record_in_source(self, groups: Iterable[Group]) -> None:
        """Record the results of these groups, and of those dropped since the last call."""
        dropped, self._dropped = self._dropped, []
        self._refilled += len(dropped)
        for group in sorted([*groups, *dropped], key=lambda group: group.number):
            self.source.record(group.task, group)

    def _make_filter(self) -> Bounded:
        rollout, success_only = self.rollout, self._success_only
        return Bounded(lambda group: rollout.keep.passes(group, success_only), rollout.refill, rollout.groups_per_batch)

    def _keep(self, group: Group) -> bool:
        finite = all(math.isfinite(t.reward) for t in group)  # the learner's Shaper raises an error for others
        kept = not finite or self._bounded(group)
        if not kept:
            self._dropped.append(group)
        return kept

    @property
    def _filter(self) -> Filter | None:
        return self._keep if self.rollout.refill else None

    @property
    def _sizes(self) -> dict[str, int]:
        """Size arguments of managers and streams."""
        rollout = self.rollout
        return {
            "groups": rollout.groups_per_batch,
            "group_size": rollout.group_size,
            "extra_groups": rollout.extra_groups,
            "extra_members": rollout.extra_members,
        }


class Collected(Batches):
    """Plays every batch with the newest weights, while training waits."""

    def _next(self, metrics: dict[str, float]) -> list[Group]:
        self._bounded = self._make_filter()
        return self.manager.batch(self.tasks, **self._sizes, keep=self._filter)


class Tails(Batches):
    """A batch source like :class:`Collected`, with long tasks in batches of their own; see :class:`TailBatches`."""

    def __init__(self, manager: RolloutManager, source: TaskSource, config: TrainConfig, again: Iterable[Task] = ()):
        super().__init__(manager, source, config)
        self.tails = TailBatches(manager, self.tasks, **self._sizes, keep=self._filter)
        self.tails.long.extend(again)

    def _next(self, metrics: dict[str, float]) -> list[Group]:
        self._bounded = self._make_filter()
        groups = self.manager.run(self.tails.next_batch())
        metrics["put_by"] = len(self.tails.long)
        return groups

    def _running_tasks(self) -> list[Task]:
        return list(self.tails.long)


class StreamedBatches(Batches):
    """Plays during updates; see :class:`RolloutStream`.

    Args:
        manager: a manager whose event loop runs in its own thread.
        batches: the number of batches to produce; no more tasks are begun near the end.
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
        assert isinstance(config.batches, StreamConfig)
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
        torch.set_num_threads(threads)  # the setting is per thread
        if not self._open:
            await self.stream.__aenter__()
            self._open = True
        return await self.stream.next_batch()

    def publish(self, policy: Policy) -> None:
        """See :class:`Batches`; unfinished responses continue after their tokens so far."""
        self.manager.run(self.stream.update_weights(weights_for_player(policy, self.weight_form)))

    def close(self) -> None:
        """Close the stream; unfinished tasks are lost unless :meth:`state` was saved."""
        if self._open and self.manager.reacts():
            self.manager.run(self.stream.__aexit__(None, None, None))
        self._open = False

    def _running_tasks(self) -> list[Task]:
        return self.stream.pending


def batches_of(
    config: TrainConfig, manager: RolloutManager, source: TaskSource, again: Iterable[Task], left: int
) -> Batches:
    """Create the batch source of the settings."""
    if isinstance(config.batches, StreamConfig):
        return StreamedBatches(manager, source, config, again, batches=left)
    kind = Tails if isinstance(config.batches, TailConfig) else Collected
    return kind(manager, source, config, again)


def plain_task(task: Task) -> dict[str, Any]:
    """Convert a task to JSON data, including its source's ``origin``."""
    names = ("env_id", "seed", "kwargs", "wrappers", "options", "agent_seed")
    return {name: getattr(task, name) for name in names} | {"origin": list(getattr(task, "origin", ()))}


def read_task(plain: Mapping[str, Any]) -> Task:
    """Restore a task of :func:`plain_task`."""
    try:
        return SourcedTask(**plain)
    except TypeError as error:
        raise UsageError(f"this is not a saved task: {plain!r:.200}") from error
