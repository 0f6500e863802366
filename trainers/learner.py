"""Training without an environment: updates with episodes that the caller brings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rollenv.agents.base import update_weights_of
from rollenv.agents.engines.local import load_weights
from rollenv.agents.gateway.session import GatewaySample, GatewaySession
from rollenv.agents.local import LocalAgent, NoEngine
from rollenv.core.errors import UsageError
from rollenv.rollout.records.sessions import trajectory_of
from rollenv.rollout.types import Group, Trajectory
from rollenv.trainers import checkpoint
from rollenv.trainers.batches import as_saved
from rollenv.trainers.config.load import load_updates
from rollenv.trainers.models import initial_policy
from rollenv.trainers.ranks import ALONE
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.trainer import rollout_metrics, timed
from rollenv.trainers.training_state import assemble
from rollenv.trainers.updater import Updater

#: Maximum number of episodes of an update that are kept for inspection.
_KEPT = 16

Episode = Group | Trajectory | GatewaySession | GatewaySample


class Learner:
    """Trains a model with episodes that the caller brings, for training loops of your own.

    ::

        learner = Learner(agent, "optimizer.lr=1e-5")
        metrics = learner.update(sessions)
        gateway.run(learner.publish())

    Args:
        agent: the agent that plays with the model; or one loaded with ``plays=False``, if other programs play.
        settings: keys of a recipe, such as ``algorithm.name=rloo``. There are those of ``algorithm``, ``loss``,
            ``correction``, ``kl``, ``optimizer``, ``rewards``, ``model.lora``, ``model.precision``, ``seed``,
            ``iterations`` and ``report``. The learning rate is constant by default.
        model: the model, if the agent plays with an engine of its own, such as vLLM: a folder or name.
        run_dir: folder for settings, metrics, episodes and checkpoints, for ``rollenv view``; training continues from
            the last checkpoint in it.
        accept_changes: continue with another model than the run was started with.
    """

    def __init__(
        self,
        agent: Any,
        *settings: str,
        model: str | Path = "",
        run_dir: str | Path = "",
        accept_changes: bool = False,
    ):
        self.agent, self.run = agent, RunDir(Path())
        self.about: dict[str, Any] = {}
        """Plain data that :meth:`save` stored with the checkpoint that training continues from."""
        self.base = agent if not model else LocalAgent.load(model, plays=False)
        if not isinstance(self.base, LocalAgent):
            raise UsageError(f"{type(agent).__name__} holds no model to train: name it with model=")
        config = load_updates([*settings, *([f"model.path={model}"] if model else [])], agent.sampling)
        if config.report.tokens and not run_dir:
            raise UsageError("report.tokens are stored in a folder: Learner(..., run_dir=FOLDER)")
        if run_dir:
            config = config.model_copy(update={"run_dir": str(run_dir)})
            self.run, config = RunDir.open(config, "own loop", accept_changes)
        self.config, saved = config, checkpoint.checkpoints(self.run.checkpoints) if run_dir else []
        base = self.base
        self.state = state = assemble(config, base, lambda _: initial_policy(config, base, ALONE))
        state.player = agent
        if saved:
            _, states, self.about = checkpoint.load(saved[-1], plays=False)
            for name, part in state.states.items():
                part.load_state_dict(states[name])
            state.iteration = int(self.about["iteration"])
        if run_dir:
            self.run.cut_back(state.iteration)
        self._updater, self._published = Updater(config, state, self.run), not saved

    def update(self, episodes: Iterable[Episode]) -> dict[str, float]:
        """Take the optimizer steps of one batch.

        Args:
            episodes: finished sessions of a gateway or their samples, trajectories or groups. Those with an equal task
                are a group.

        Returns:
            Metrics, as in a run's ``metrics.jsonl``.

        Raises:
            UsageError: there is no episode with tokens, or a session is not finished or has no reward.
            TrainingError: a loss, gradient or weight is not finite.
        """
        groups, state = grouped(episodes), self.state
        played = [trajectory for group in groups for trajectory in group]
        if not any(trajectory.turns for trajectory in played):
            raise UsageError(f"none of {len(played)} episodes has an answer to train on")
        if isinstance(self.base.engine, NoEngine) and self.base is self.agent:
            self.base.version = state.iteration
        metrics = rollout_metrics(groups)
        with timed("update", metrics):
            metrics |= self._updater.update(self._updater.compute_advantages(groups, metrics))
        state.iteration += 1
        self._published = False
        if self.run.path != Path():
            self.run.append(self.run.metrics_file, {"iteration": state.iteration, **metrics})
            self.run.keep_episodes(state.iteration, played[:_KEPT])
        return metrics

    async def publish(self) -> None:
        """Load the trained weights into the agent's engine, in the event loop in which it plays.

        This is for loops of your own (a :class:`.Trainer` has ``Batches.publish``): ``gateway.run(learner.publish())``
        for a gateway in a thread. Calls in progress continue with the new weights after their tokens.
        """
        policy = self.state.policy
        weights = policy.named_weights()
        if self.agent is not self.base:
            weights = as_saved(policy.model, weights)
        await update_weights_of(self.agent, weights)
        self._published = True

    def save(self, more: dict[str, Any] | None = None) -> Path:
        """Write a checkpoint below ``run_dir``, and return its folder.

        Args:
            more: plain data to store with it, such as a position in your data; then in :attr:`about`.
        """
        if self.run.path == Path():
            raise UsageError("checkpoints need a folder: Learner(..., run_dir=FOLDER)")
        if not isinstance(self.base.engine, NoEngine):
            if not self._published:
                raise UsageError("await publish() before save(): the agent still has the weights of an earlier update")
        else:
            load_weights(self.base.model, self.state.policy.named_weights())
            self.base.version = self.state.iteration
        keep, states = self.config.keep_checkpoints, self.state.states
        return checkpoint.save(self.run.checkpoints, self.state.iteration, self.base, states, keep, more)


def grouped(episodes: Iterable[Episode]) -> list[Group]:
    """Convert episodes to groups by their tasks."""
    groups: list[Group] = []
    by_task: dict[str, Group] = {}
    samples: dict[str, list[GatewaySample]] = {}

    def add(task: str, trajectory: Trajectory) -> None:
        if task not in by_task:
            by_task[task] = Group(trajectory.task, [])
            groups.append(by_task[task])
        by_task[task].trajectories.append(trajectory)

    for episode in episodes:
        if isinstance(episode, Group):
            groups.append(episode)
        elif isinstance(episode, Trajectory):
            add(repr(episode.task), episode)
        elif isinstance(episode, GatewaySession | GatewaySample):
            for sample in episode.samples() if isinstance(episode, GatewaySession) else [episode]:
                samples.setdefault(sample.session, []).append(sample)
        else:
            raise UsageError(
                f"an episode is a gateway's session, one of its samples, a Trajectory or a Group, not {episode!r:.80}"
            )
    for session, parts in samples.items():
        trajectory, name = trajectory_of(parts), parts[0].task or session
        trajectory.member = len(by_task[name].trajectories) if name in by_task else 0
        add(name, trajectory)
    return groups
