"""Gradients of complete groups while the last episodes of the same batch are played (RollPacker, arXiv 2509.21009).

The loss of a batch is a sum over tokens, each with a weight of its own. So its gradient is the sum of the gradients of
its groups, in any order, where advantages come from a group alone and weights are known up to one factor, the number of
units of the whole batch. The weights of the model stay the same until all episodes have ended.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

import numpy as np
import torch
from numpy.typing import NDArray

from rollenv.core.errors import UsageError
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Group, Task
from rollenv.trainers.batches import Batches
from rollenv.trainers.columns import TrainingError
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.experience import Experience, Floats, experience
from rollenv.trainers.policies.local import LocalPolicy
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.sources import TaskSource
from rollenv.trainers.training_state import TrainingState
from rollenv.trainers.updater import StepTotals, Updater


class GradientSum:
    """A sum of gradients in float64: rounded to float32, it does not depend on the order of its parts."""

    def __init__(self, weights: Iterable[torch.nn.Parameter]):
        self.weights = list(weights)
        self._sums: dict[int, torch.Tensor] = {}

    def take(self) -> None:
        """Add the gradients that the weights have, and remove them from there."""
        for number, weight in enumerate(self.weights):
            if weight.grad is not None:
                if number in self._sums:
                    self._sums[number] += weight.grad
                else:
                    self._sums[number] = weight.grad.double()
                weight.grad = None

    def give(self, factor: float) -> None:
        """Set the gradients of the weights to the sum times a factor."""
        for number, total in self._sums.items():
            self.weights[number].grad = total.mul_(factor).to(self.weights[number].dtype)

    def clear(self) -> None:
        """Begin again at zero."""
        self._sums.clear()
        for weight in self.weights:
            weight.grad = None


@dataclass(slots=True)
class _Part:
    """What an update needs of a group whose gradient is in the sum."""

    columns: Mapping[str, Floats] = field(default_factory=dict)
    """(r,) each, for the group's ``r`` response tokens."""
    units: int = 0
    totals: StepTotals = field(default_factory=StepTotals)


class EarlyUpdater(Updater):
    """Adds gradients one group at a time; :meth:`update` then takes one step with their sum."""

    def __init__(self, config: TrainConfig, state: TrainingState, run: RunDir):
        super().__init__(config, state, run)
        assert isinstance(state.policy, LocalPolicy)
        self.sum = GradientSum(state.policy.weights.values())
        self._parts: dict[int, _Part] = {}
        self._merged: list[_Part] = []
        """The parts of the whole batch in the order of its groups, once they are all there."""

    def begin(self) -> None:
        """Begin a batch; what a batch that was given up has left is dropped."""
        self._parts, self._merged = {}, []
        self.sum.clear()

    def add(self, group: Group) -> None:
        """Compute the gradient of a complete group with weights that lack the factor of the whole batch."""
        if any(trajectory.record.get("seats") for trajectory in group):
            raise UsageError("batches.kind=early cannot split games by seats; set batches.kind=collect in a new run")
        self.state.version = self.state.player.version
        part = self._parts[group.number] = _Part()
        data = experience([group], self.config.samples, replay=self.config.loss.routing == "replay")
        if not len(data):
            return
        self._assign(data, [group], {})
        part.columns, part.units = data.columns, self._units(data)
        data.columns["weights"] *= part.units
        if step := np.flatnonzero(self._trainable(data)).tolist():
            part.totals = self._accumulate(data, step, 1, part.totals)
            self.sum.take()

    def compute_advantages(self, groups: Sequence[Group], metrics: dict[str, float]) -> Experience:
        """See :class:`Updater`; computes the gradients of the groups that were not added before, too.

        Raises:
            TrainingError: advantages of the whole batch are not those of its groups.
        """
        for group in groups:
            if group.number not in self._parts:
                self.add(group)
        self._merged = [self._parts[group.number] for group in groups]
        data = super().compute_advantages(groups, metrics)
        units = self._units(data)
        for name, factor in (("advantages", 1.0), ("weights", float(units))):
            if not np.allclose(data.columns[name] * factor, self._column(name), rtol=1e-6, atol=1e-12):
                raise TrainingError(
                    f"iteration {self.state.iteration + 1}: the {name} of a batch are not those of its groups, so that "
                    "gradients cannot be computed before it is complete; set batches.kind=collect in a new run"
                )
        return data

    def _column(self, name: str) -> Floats:
        return np.concatenate([part.columns[name] for part in self._merged if part.columns])

    def _read_models(self, data: Experience) -> dict[str, Floats]:
        """See :class:`Updater`; for the whole batch, nothing is computed twice."""
        if not self._merged:
            return super()._read_models(data)
        names = next(part.columns.keys() for part in self._merged if part.columns)
        return {name: self._column(name) for name in ("proximal", "reference", "teacher") if name in names}

    def _units(self, data: Experience) -> int:
        """Return the number of units with equal weight (``loss.aggregate``)."""
        labels = {"token": np.arange(len(data)), "prompt": data.prompt, "episode": data.trajectory}
        kept = data.kept[data.trajectory]
        return len(np.unique(labels.get(self.config.loss.aggregate, data.sequence)[kept]))

    def _take_steps(self, data: Experience, useful: NDArray[np.bool_], totals: StepTotals) -> None:
        if useful.any():
            self.sum.give(1 / self._units(data))
            sizes = [len(part.columns.get("weights", ())) for part in self._merged]
            starts = [0, *itertools.accumulate(sizes)]
            own = StepTotals()
            for part, start in zip(self._merged, starts, strict=False):
                own.entropies += [(rows + start, values) for rows, values in part.totals.entropies]
                own.shown += [(rows + start, numbers) for rows, numbers in part.totals.shown]
            self._end_step([part.totals for part in self._merged], own, totals)
        self.begin()


class EarlyBatches(Batches):
    """Plays every batch with the newest weights, while ``early`` computes gradients of the groups that are complete.

    Args:
        manager: a manager whose event loop runs in its own thread.
    """

    def __init__(
        self,
        manager: RolloutManager,
        source: TaskSource,
        config: TrainConfig,
        again: Iterable[Task] = (),
        *,
        early: EarlyUpdater,
    ):
        super().__init__(manager, source, config, again)
        self.early = early

    def _next(self, metrics: dict[str, float]) -> list[Group]:
        self.early.begin()
        self._bounded = self._make_filter()
        ready: SimpleQueue[Group | None] = SimpleQueue()
        playing = self.manager.start(self._play(ready, torch.get_num_threads()))
        playing.add_done_callback(lambda _: ready.put(None))
        seconds = 0.0
        try:
            while (group := ready.get()) is not None and not playing.done():
                began = time.perf_counter()
                self.early.add(group)
                seconds += time.perf_counter() - began
            metrics["time/early"] = seconds
            return playing.result()
        except BaseException:
            playing.cancel()
            raise

    async def _play(self, ready: SimpleQueue[Group | None], threads: int) -> list[Group]:
        torch.set_num_threads(threads)  # the setting is per thread
        return await self.manager.batch_async(self.tasks, **self._sizes, keep=self._filter, complete=ready.put)
