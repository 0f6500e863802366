"""The training loop: collect, judge, update, publish, log, checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollenv.env_spec import Wrappers
from rollenv.rollout.episode import Limits
from rollenv.rollout.evaluate import evaluate
from rollenv.rollout.filters import Bounded, varied
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Group, Trajectory
from rollenv.rollout.workers.places import make_workers
from rollenv.trainers import checkpoint
from rollenv.trainers.alarms import alarms
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.run import EnvConfig, EvalPart
from rollenv.trainers.learner import Learner
from rollenv.trainers.parts import begin, restore
from rollenv.trainers.rewards.configured import domain_rewards
from rollenv.trainers.run_dir import RunDir, read_rows
from rollenv.trainers.threads import Threads
from rollenv.trainers.tracking import TensorBoardTracker, Trackers, WandbTracker
from rollenv.wrappers.factory import with_tokenizer

#: ``watch(stage, done, total, numbers)``, called whenever there is something new to show.
Watch = Callable[[str, int, int, dict[str, float]], None]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Result:
    """The outcome of a run: the metrics rows of its first and last evaluation, and its time in seconds."""

    before: dict[str, Any]
    after: dict[str, Any]
    seconds: float
    checkpoint: str


class Trainer:
    """Trains a language model on an environment.

    Args:
        config: the run's settings.
        run: where to write. If it holds checkpoints, training continues from the last one, to the same numbers that an
            uninterrupted run gives: everything random follows the seed, the number of the iteration and the cursor of
            the task source.
        watch: receives the progress.
    """

    def __init__(self, config: TrainConfig, run: RunDir, watch: Watch = lambda *_: None):
        self.config, self.run, self.watch = config, run, watch
        self.threads = Threads(config.threads)
        self.rewards = domain_rewards(config)
        own_tokenizer = "" if config.model.path == "tiny" else config.model.path  # the tiny one's is not made yet
        self.wrappers = with_tokenizer(config.env.wrappers, own_tokenizer)
        self.begun: dict[str, float] = {}
        with timed("begin", self.begun):
            found = restore(config, run, self.wrappers, self._warming_up)
            run.cut_back(found.iteration if found else -1)
            self.rows = read_rows(run.metrics_file)
            self.parts = found or begin(config, self.wrappers, self._warming_up)
        self.learner = Learner(config, self.parts, run)
        rollout = config.rollout
        limits = Limits(reset=rollout.reset_deadline, step=rollout.step_deadline)
        at_once = rollout.max_concurrent or None
        with contextlib.ExitStack() as stack:
            workers = stack.enter_context(make_workers(rollout.workers))
            self.manager = stack.enter_context(
                RolloutManager(
                    self.parts.player,
                    workers,
                    limits=limits,
                    max_concurrent=at_once,
                    reward=self.rewards,
                    run_dir=run.path,
                )
            )
            self.trackers = Trackers(
                [
                    WandbTracker(config.trackers.project) if name == "wandb" else TensorBoardTracker()
                    for name in config.trackers.use
                ]
            )
            self.trackers.start(run.path, config.model_dump(mode="json"))
            stack.callback(self._finish)
            self._held = stack.pop_all()

    def close(self) -> None:
        """End the workers and trackers; calling it again does nothing."""
        self._held.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def fit(self) -> Result:
        """Train to the last iteration.

        Raises:
            TrainingError: losses, gradients or weights are no longer finite.
        """
        started, parts, config = time.perf_counter(), self.parts, self.config
        if parts.iteration == 0 or not self._evaluations():  # of a resumed run, the file may be damaged
            self._log(self._evaluate() | self.begun)
        if config.iterations == 0:
            parts.save(self.run, config.keep_checkpoints)
        while parts.iteration < config.iterations:
            self.threads.adapt()
            metrics: dict[str, float] = {}
            with timed("collect", metrics):
                groups = self._collect(metrics)
            with timed("update", metrics):
                metrics |= self.learner.update(self.learner.judge(groups, metrics))
                parts.sync.publish(parts.policy, parts.player)
            parts.iteration += 1
            last = parts.iteration == config.iterations
            if last or parts.iteration % config.eval.every == 0:
                metrics |= self._evaluate()
            self._log(metrics)
            if last or parts.iteration % config.checkpoint_every == 0:
                parts.save(self.run, config.keep_checkpoints)
        history = self._evaluations()
        last_checkpoint = str(checkpoint.checkpoints(self.run.checkpoints)[-1])
        return Result(history[0], history[-1], time.perf_counter() - started, last_checkpoint)

    def _evaluations(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if "eval/success" in row]

    # -- the steps of an iteration -----------------------------------------------------------------------------------

    def _collect(self, metrics: dict[str, float]) -> list[Group]:
        """Play the next batch of tasks and record its metrics."""
        rollout, engine, source = self.config.rollout, self.parts.player.engine, self.parts.source
        clock, tokens = time.perf_counter(), engine.stats.total
        dropped: list[Group] = []
        bounded = Bounded(varied(), rollout.refill, rollout.groups_per_batch)

        def keep(group: Group) -> bool:
            told = all(math.isfinite(t.reward) for t in group)  # others are an error that judging explains
            kept = not told or bounded(group)
            dropped.extend([] if kept else [group])
            return kept

        groups = self.manager.batch(
            source,
            rollout.groups_per_batch,
            rollout.group_size,
            extra_groups=rollout.extra_groups,
            extra_members=rollout.extra_members,
            keep=keep if rollout.refill else None,
        )
        for group in sorted([*groups, *dropped], key=lambda group: group.number):
            source.record(group.task, group)
        metrics["tokens_per_s"] = (engine.stats.total - tokens) / (time.perf_counter() - clock)
        metrics |= rollout_metrics(groups) | source.metrics() | (self.rewards.metrics() if self.rewards else {})
        if rollout.refill:
            metrics["refilled"] = len(dropped)
        return groups

    def _evaluate(self) -> dict[str, float]:
        """Success on the evaluation episodes, always the same ones; some are kept to be looked at."""
        settings = self.config.eval
        metrics: dict[str, float] = {}
        played: list[Trajectory] = []
        with timed("eval", metrics), self._as_evaluated():
            for part in evaluated(self.config, self.wrappers):
                result = evaluate(
                    self.parts.player,
                    part.env.id,
                    part.env.kwargs,
                    n=part.episodes,
                    seed=settings.seed,
                    wrappers=part.env.wrappers,
                    options=part.env.options,
                    manager=self.manager,
                )
                played += result.trajectories
                names = ("success", "low", "high", "reward", "turns", "failed")
                metrics |= {f"eval/{part.name}{name}": getattr(result, name) for name in names}
        self.run.keep_episodes(self.parts.iteration, played)
        self.trackers.episodes(self.parts.iteration, played)
        return metrics

    @contextlib.contextmanager
    def _as_evaluated(self) -> Iterator[None]:
        """Play as in evaluations, and afterwards as in training again, however that ended."""
        player, temperature = self.parts.player, self.config.eval.temperature
        trained, self.manager.keep_views = player.sampling, True
        try:
            if temperature is not None:
                player.sampling = dataclasses.replace(trained, temperature=temperature)
            yield
        finally:
            player.sampling, self.manager.keep_views = trained, False
            if self.rewards:
                self.rewards.metrics()  # what was added here is not the training's

    def _log(self, metrics: dict[str, float]) -> None:
        for alarm in alarms(metrics, self.rows):
            logger.warning("iteration %d: %s", self.parts.iteration, alarm)
        self.rows.append({"iteration": self.parts.iteration, **metrics})
        self.run.append(self.run.metrics_file, self.rows[-1])
        self.trackers.log(self.parts.iteration, metrics)
        self.watch("training", self.parts.iteration, self.config.iterations, metrics)

    def _warming_up(self, stage: str, done: int, total: int, numbers: dict[str, float]) -> None:
        self.threads.adapt()
        self.watch(stage, done, total, numbers)

    def _finish(self) -> None:
        self.trackers.finish([path for path in (self.run.config_file, self.run.metrics_file) if path.exists()])


def evaluated(config: TrainConfig, wrappers: Wrappers) -> list[EvalPart]:
    """What an evaluation plays, each with what stands before its metrics.

    Args:
        config: of the run.
        wrappers: around its main environment.
    """
    own = EnvConfig(id=config.env.id, kwargs=config.eval.kwargs, wrappers=wrappers)
    main = EvalPart(env=own, episodes=config.eval.episodes)
    tokenizer = "" if config.model.path == "tiny" else config.model.path
    return [main, *(_named(part, tokenizer) for part in config.eval.parts)]


def _named(part: EvalPart, tokenizer: str) -> EvalPart:
    env = part.env.model_copy(update={"wrappers": with_tokenizer(part.env.wrappers, tokenizer)})
    return part.model_copy(update={"name": f"{part.name or part.env.id}/", "env": env})


@contextlib.contextmanager
def timed(stage: str, metrics: dict[str, float]) -> Iterator[None]:
    """Measure a stage: seconds by the clock as ``time/STAGE``, and of processor time (with ended child processes) as
    ``cpu/STAGE``.

    Args:
        stage: its name.
        metrics: where the two numbers go.
    """
    clock, worked = time.perf_counter(), sum(os.times()[:4])
    yield
    metrics[f"time/{stage}"] = time.perf_counter() - clock
    metrics[f"cpu/{stage}"] = sum(os.times()[:4]) - worked


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Metrics of the trajectories of a batch."""
    trajectories = [t for group in groups for t in group]
    played = [t for t in trajectories if t.status != "failed"]
    n = max(len(played), 1)
    varied = sum(len({t.reward for t in group if t.status != "failed"}) > 1 for group in groups)
    return {
        "reward": sum(t.reward for t in played) / n,
        "reward_std": float(np.std([t.reward for t in played])) if played else 0.0,
        "success": sum(t.success for t in played) / n,
        "turns": sum(len(t.turns) for t in played) / n,
        "tokens": sum(len(turn.prompt_ids) + len(turn.response_ids) for t in played for turn in t.turns),
        "response_tokens": sum(len(turn.response_ids) for t in played for turn in t.turns),
        "informative_groups": varied / max(len(groups), 1),
        "failed": len(trajectories) - len(played),
    }
