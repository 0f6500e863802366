"""Batches of stored episodes instead of played ones: demonstrations, episodes or rows of files; each once per epoch."""

from __future__ import annotations

import logging
import math
from pathlib import Path

from rollenv.agents.demonstrator import Demonstrator
from rollenv.agents.local import LocalAgent
from rollenv.agents.tiny.warm_up import Report
from rollenv.core.errors import UsageError
from rollenv.rollout.filters import differ, rewards_of
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.records import storage
from rollenv.rollout.types import Group, Trajectory
from rollenv.trainers.batches import Batches
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.algorithms import BradleyTerry, Kto, Preference
from rollenv.trainers.config.batches import StoredConfig
from rollenv.trainers.reward_model import accuracy_of_lengths, pairs_of
from rollenv.trainers.sources.base import TaskSource
from rollenv.trainers.stored_episodes import ORACLE, Epochs, Unusable, is_held_out, read_stored

logger = logging.getLogger(__name__)

#: Episodes that an expert plays at a time, between two reports of progress.
_CHUNK = 64


class StoredBatches(Batches):
    """Yields ``batches.size`` groups at a time, in an order that depends only on the seed and the number of the batch.

    Args:
        agent: the model to train, with its tokenizer and prompts.
        folder: where an expert's episodes are kept, for a resumed run.
        begin: the number of batches that were trained on before.
    """

    plays = False

    def __init__(
        self,
        manager: RolloutManager,
        source: TaskSource,
        config: TrainConfig,
        agent: LocalAgent,
        folder: Path,
        begin: int,
        report: Report,
    ):
        super().__init__(manager, source, config)
        assert isinstance(config.batches, StoredConfig)
        self.settings, self.number = config.batches, begin
        compared = config.algorithm if isinstance(config.algorithm, Preference) else None
        given = config.batches.data
        if given == [ORACLE]:
            file = folder / "demonstrations.jsonl"
            _demonstrate(self, agent, file, report)
            given = [str(file)]
        self.unusable = Unusable(config.batches.unusable)
        found = read_stored(given, agent, compared, config.batches.where, report, self.unusable)
        self.unusable.tell()
        self.held_out = [group for group in found if is_held_out(group, self.settings.held_out)]
        self.groups = [group for group in found if not is_held_out(group, self.settings.held_out)]
        if isinstance(compared, BradleyTerry):
            self.held_out, self.groups = pairs_of(self.held_out), pairs_of(self.groups)
            if self.held_out and self.groups:
                self.measured = {"accuracy_of_lengths": accuracy_of_lengths(self.groups, self.held_out)}
        labels = {group.trajectories[0].success for group in self.groups if len(group.trajectories) == 1}
        apart = len(labels) > 1 or any(differ(rewards_of(group, False)) for group in self.groups)
        if found and compared and not apart:
            raise UsageError(
                f"{', '.join(config.batches.data)} has no pair: no group's episodes differ in their returns"
                + (", or all labels are equal" if isinstance(compared, Kto) else "")
            )
        if not self.groups:
            where = f" where {config.batches.where!r}" if config.batches.where else ""
            raise UsageError(
                f"{', '.join(config.batches.data)} has nothing to train on{where}"
                + (f": all {len(found)} rows are held out; lower batches.held_out" if found else "")
            )
        if self.settings.held_out and not self.held_out:
            share = f"batches.held_out={self.settings.held_out:g}"
            logger.warning("none of %d rows is held out (%s): nothing measures the loss; raise it", len(found), share)
        self._epochs = Epochs(self.groups, config.seed, min(self.settings.size, len(self.groups)))

    @property
    def updates(self) -> int:
        """Number of batches in ``batches.epochs`` epochs; 0 if it is not set."""
        return math.ceil(self._epochs.batches * self.settings.epochs)

    def _next(self, metrics: dict[str, float]) -> list[Group]:
        self.number += 1
        rows = self._epochs.batch(self.number - 1)
        metrics |= {"epoch": self.number / self._epochs.batches, "rows": float(len(rows))}
        metrics |= {"unusable": float(len(self.unusable.reasons))} if self.unusable.reasons else {}
        return rows

    async def _record(self, groups: list[Group]) -> dict[str, float]:
        """Leave the task source as it is: nothing was played."""
        return {}


# -- an expert ---------------------------------------------------------------------------------------------------------


def _demonstrate(batches: StoredBatches, agent: LocalAgent, file: Path, report: Report) -> None:
    """Play the expert's episodes and keep them in a file, unless an earlier process has."""
    if file.exists():
        return
    wanted, played = batches.settings.episodes, list[Trajectory]()
    manager = batches.manager.with_agent(Demonstrator(agent, batches.settings.noise))
    while len(played) < wanted:
        played += [t for group in manager.batch(batches.tasks, min(_CHUNK, wanted - len(played))) for t in group]
        report("demonstrations", len(played), wanted, {})
        if not any(t.complete for t in played):
            raise UsageError(f"the expert finished none of {len(played)} episodes: {played[0].error}")
    partial = file.with_suffix(".partial.jsonl")
    partial.unlink(missing_ok=True)
    storage.write(partial, played)
    partial.replace(file)
