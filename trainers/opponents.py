"""The other seats of a game: earlier weights of the run, a second learner, or other agents."""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollenv.agents.base import Agent, EnvHandle, Session, update_weights_of
from rollenv.agents.by_name import opponent_named
from rollenv.agents.engines.local import load_weights
from rollenv.agents.local import LocalAgent
from rollenv.agents.seats import Seats
from rollenv.agents.tiny.warm_up import Report
from rollenv.core.env_spec import Wrappers
from rollenv.rollout.seats import by_seat, score_of
from rollenv.rollout.types import Group
from rollenv.trainers import checkpoint
from rollenv.trainers.batches import weights_for_player
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.run import ReportConfig
from rollenv.trainers.config.seats import PastConfig
from rollenv.trainers.policies.lora import merged_weights
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.training_state import TrainingState, begin, restore
from rollenv.trainers.updater import Updater


class PastSelves(Agent):
    """A pool of earlier weights; every group is played against one of them.

    Args:
        folder: where each is saved, as a model that ``local:FOLDER`` plays.
        learner: the agent whose weights are kept.
    """

    def __init__(self, settings: PastConfig, folder: Path, learner: LocalAgent, seed: int):
        self.settings, self.folder, self.learner, self.seed = settings, folder, learner, seed
        self.iteration = 0
        self.pool: dict[int, LocalAgent] = {}
        self.games: dict[int, list[float]] = {}
        """By the iteration: the learner's wins, where a draw counts half, and the number of games."""

    def start(self, env: EnvHandle, seed: int) -> Session:
        raise NotImplementedError("an agent is drawn for each group: see draw()")

    def draw(self, group: int) -> tuple[Agent, str]:
        """Draw an agent and its name; depends on the run's seed, the iteration and the group's number only."""
        settings, rng = self.settings, random.Random(f"{self.seed} {self.iteration} {group}")
        if rng.random() < settings.current:
            return self.learner, "learner"
        known = sorted(self.pool)
        weights = [1.0] * len(known)
        if settings.draw == "recent":
            weights = [2.0**place for place in range(len(known))]
        elif settings.draw == "hard":  # no game yet counts as a half; 1 % keeps all of them in play
            shares = [(1 + self.games[i][0]) / (2 + self.games[i][1]) for i in known]
            weights = [max((1 - share) ** 2, 0.01) for share in shares]
        chosen = rng.choices(known, weights)[0]
        return self.pool[chosen], f"past:{chosen}"

    def keep(self, iteration: int) -> None:
        """Add the learner's weights to the pool, if they are due."""
        self.iteration = iteration
        if iteration % self.settings.every:
            return
        self.learner.save(self.folder / f"{iteration:06d}")
        learner = self.learner
        model = copy.deepcopy(learner.model).requires_grad_(False)
        self._add(iteration, LocalAgent(model, learner.tokenizer, learner.prompt, learner.sampling))

    def _add(self, iteration: int, agent: LocalAgent) -> None:
        self.pool[iteration] = agent
        self.games.setdefault(iteration, [0.0, 0.0])
        for old in sorted(self.pool)[: -self.settings.size]:
            del self.pool[old], self.games[old]

    def tidy(self) -> None:
        """Delete the folders that the last checkpoint does not name."""
        for folder in self.folder.iterdir():
            if folder.name.isdecimal() and int(folder.name) not in self.pool:
                shutil.rmtree(folder, ignore_errors=True)

    def record(self, groups: Sequence[Group]) -> dict[str, float]:
        """Count the results of a batch, and return the learner's share of wins against the pool."""
        wins = games = 0.0
        for trajectory in (t for group in groups for t in group if t.complete):
            for name in trajectory.record.get("seats", ()):
                kind, _, at = name.partition(":")
                if kind == "past":
                    won = score_of(trajectory, trajectory.seat)
                    wins, games = wins + won, games + 1
                    if (counts := self.games.get(int(at))) is not None:
                        counts[0], counts[1] = counts[0] + won, counts[1] + 1
        return {"past/wins": wins / games} if games else {}

    def state(self) -> dict[str, Any]:
        """Return the counts by iteration."""
        return {str(iteration): counts for iteration, counts in self.games.items()}

    def load(self, iteration: int, state: dict[str, Any]) -> None:
        """Read the pool of a checkpoint from its folders, and drop what was kept later."""
        self.iteration = iteration
        for at, counts in state.items():
            saved = LocalAgent.load(self.folder / f"{int(at):06d}", sampling=self.learner.sampling)
            saved.model.requires_grad_(False)
            self.games[int(at)] = list(counts)
            self._add(int(at), saved)


class Rival:
    """A second learner, with an optimizer and checkpoints of its own in the run's folder ``rival``.

    With adapters, both learners' are on one base model, the first one's.
    """

    def __init__(self, config: TrainConfig, run: RunDir, base: TrainingState, wrappers: Wrappers, report: Report):
        iteration = base.iteration
        self.config = config.model_copy(update={"seed": config.seed + 1, "report": ReportConfig()})
        self.run = RunDir(run.path / "rival")
        for saved in checkpoint.checkpoints(self.run.checkpoints):  # written just before a kill: the main one was not
            if int(saved.name.removeprefix("step-")) > iteration:
                shutil.rmtree(saved)
        restored = restore(self.config, self.run, wrappers, report) if iteration else None
        if iteration and (restored is None or restored.iteration != iteration):
            raise checkpoint.CheckpointError(f"{self.run.checkpoints} has no checkpoint of iteration {iteration}")
        self.state: TrainingState = restored or begin(self.config, wrappers, report)
        if config.model.lora.rank:
            share_base(base, self.state)
        self.learner = Updater(self.config, self.state, self.run)

    def learn(self, groups: Sequence[Group]) -> dict[str, float]:
        """Update the weights by the rival's turns of a batch; metrics are named ``rival/...``."""
        metrics: dict[str, float] = {}
        if own := by_seat(groups, "rival"):  # it may have had no turn
            metrics |= self.learner.update(self.learner.compute_advantages(own, metrics))
        self.state.iteration += 1
        return {f"rival/{name}": value for name, value in metrics.items()}


def share_base(learner: TrainingState, rival: TrainingState) -> None:
    """Give the adapters of a rival the learner's base model, which is then in memory once."""
    base = dict(learner.policy.model.named_parameters())
    for name, weight in rival.policy.model.named_parameters():
        if ".lora_" not in name:
            weight.data = base[name].data
    if rival.player is rival.base_agent:
        load_weights(rival.base_agent.model, merged_weights(rival.policy.model))


class Opponents:
    """Everybody in the seats of a run but its learner."""

    def __init__(self, config: TrainConfig, run: RunDir, state: TrainingState, wrappers: Wrappers, report: Report):
        self.config, self.run, self.state = config, run, state
        self.settings = config.seats
        self.past = self.rival = None
        if "past" in self.settings.others:
            self.past = PastSelves(self.settings.past, run.path / "past", state.base_agent, config.seed)
            if state.iteration:
                self.past.load(state.iteration, state.seats)
            else:
                self.past.keep(0)
        if "rival" in self.settings.others:
            self.rival = Rival(config, run, state, wrappers, report)
        self.evaluated_against = opponent_named(self.settings.opponent)

    def seated(self, learner: Agent) -> Seats:
        """Return the agent of all seats that the training plays with."""
        of: dict[str, Any] = {"self": learner, "past": self.past, "rival": self.rival and self.rival.state.player}
        names = {"self": "learner"}
        agents = [of[name] if name in of else opponent_named(name) for name in self.settings.others]
        return Seats(
            [learner, *agents],
            ["learner", *(names.get(name, name) for name in self.settings.others)],
            rotate=self.settings.rotate,
            seconds=self.settings.deadline,
        )

    def evaluated(self, learner: Agent) -> Seats:
        """Return the agent of all seats in evaluations."""
        names = ["learner", self.settings.opponent]
        return Seats([learner, self.evaluated_against], names, rotate=True, seconds=self.settings.deadline)

    def learn(self, groups: Sequence[Group]) -> dict[str, float]:
        """Train the rival on a batch, and count results against the past."""
        metrics = self.past.record(groups) if self.past else {}
        return metrics | (self.rival.learn(groups) if self.rival else {})

    def publish(self, run_on_loop: Any) -> None:
        """Give the rival's player its new weights, and keep the learner's if they are due."""
        if self.rival:
            weights = weights_for_player(self.rival.state.policy, self.config.weight_form)
            run_on_loop(update_weights_of(self.rival.state.player, weights))
        if self.past:
            self.past.keep(self.state.iteration + 1)

    def save(self, batches: dict[str, Any]) -> dict[str, Any]:
        """Save the rival, and return the part of a checkpoint."""
        if self.rival:
            keep = self.config.keep_checkpoints + 1  # the learner's new checkpoint may never be written
            self.rival.state.save(self.rival.run, keep, batches)
        return {"seats": self.past.state()} if self.past else {}

    def saved(self) -> None:
        """Delete what only earlier checkpoints needed."""
        if self.past:
            self.past.tidy()
