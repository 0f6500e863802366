"""The training loop: collect, compute advantages, update, publish, log, checkpoint."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollenv.agents.base import update_weights_of
from rollenv.agents.engines.cpu_threads import CpuThreads
from rollenv.core.env_spec import Wrappers
from rollenv.core.interrupt import Terminated, Termination
from rollenv.core.plugins import function_at, users_code
from rollenv.core.wrappers.factory import with_tokenizer
from rollenv.panels.check import Watched
from rollenv.panels.trained import FILE, task_rows
from rollenv.rollout import validation
from rollenv.rollout.evaluate import evaluate
from rollenv.rollout.filters import differ, rewards_of
from rollenv.rollout.group_reward import GroupReward, group_function
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.records.folders import hide_secrets
from rollenv.rollout.seats import by_seat
from rollenv.rollout.types import Group, Trajectory
from rollenv.rollout.workers.factory import make_workers
from rollenv.trainers import checkpoint
from rollenv.trainers.alarms import alarms
from rollenv.trainers.batches import Batches, batches_of, weights_for_player
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.batches import StoredConfig
from rollenv.trainers.config.run import EvalPart
from rollenv.trainers.config.tasks import EnvConfig
from rollenv.trainers.early import EarlyBatches, EarlyUpdater
from rollenv.trainers.opponents import Opponents
from rollenv.trainers.player_engines import close, concurrent_harnesses, limits_of, make_player, with_harness
from rollenv.trainers.preflight import preflight
from rollenv.trainers.ranks import ALONE, Ranks
from rollenv.trainers.reward_model import RewardModel
from rollenv.trainers.rewards.configured import DomainRewards
from rollenv.trainers.rollout_processes import RolloutProcesses, start_rollout_processes
from rollenv.trainers.run_dir import RunDir, read_rows
from rollenv.trainers.stored import StoredBatches
from rollenv.trainers.tracking import Trackers, trackers_of
from rollenv.trainers.training_state import begin, restore
from rollenv.trainers.updater import Updater

#: ``watch(stage, done, total, numbers)``, called on progress.
Watch = Callable[[str, int, int, dict[str, float]], None]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class TrainingResult:
    """The outcome of a run: the metrics rows of its first and last evaluation, and its time in seconds."""

    before: dict[str, Any]
    after: dict[str, Any]
    seconds: float
    checkpoint: str


def _rewards_of(config: TrainConfig) -> DomainRewards | None:
    """Create what rewards episodes besides their environments, if anything does: here, or in Ray actors."""
    if config.placement.roles.rewards.actors:
        from rollenv.trainers.roles import RemoteRewards  # not above: it needs Ray

        return RemoteRewards(config)
    return DomainRewards(config) if config.rewards.per_episode else None


class Trainer:
    """Trains a language model on an environment.

    Args:
        run: the run folder. If it has checkpoints, training resumes from the last one and gives the same numbers as an
            uninterrupted run: all randomness depends on the seed, the iteration and the cursor of the task source.
        ranks: the ranks that train the model. This is the first; the others call
            :func:`~rollenv.trainers.worker_rank.run_worker_rank`.
        advantage: instead of ``algorithm.name``, a function from an
            :class:`~rollenv.trainers.advantages.AdvantageInput` to (R,) advantages. The run stores its name and, for a
            ``functools.partial``, the arguments, as keys of ``algorithm``.
        loss: instead of ``loss.name``, a function from a :class:`~rollenv.trainers.losses.LossInput` to a tensor (n,).
    """

    def __init__(
        self,
        config: TrainConfig,
        run: RunDir,
        watch: Watch = lambda *_: None,
        ranks: Ranks = ALONE,
        *,
        advantage: Callable[..., Any] | None = None,
        loss: Callable[..., Any] | None = None,
    ):
        if advantage or loss:
            config = run.with_functions(config, advantage, loss)
        self.config, self.run, self.watch = config, run, watch
        preflight(config)
        rollout = config.rollout
        self.threads = CpuThreads(config.threads, sharers=2 if config.plays_aside and not rollout.shards else 1)
        self.wrappers = with_tokenizer(config.env.wrappers, config.model.tokenizer)
        self.begun: dict[str, float] = {}
        self.termination = Termination()
        self._to_save: dict[str, Any] = {}  # the tasks' part of a checkpoint, as of the last step that was finished
        with contextlib.ExitStack() as stack:
            # Rewards and weights, from a checkpoint if there is one.
            if config.placement.roles.used:
                from rollenv.rollout.ray_calls import connected

                stack.enter_context(connected(cpus=config.actor_cpus))
            self.rewards = _rewards_of(config)
            with timed("begin", self.begun):
                restored = restore(config, run, self.wrappers, self._report_warm_up, ranks)
                at = restored.iteration if restored else -1
                run.cut_back(at - bool(restored and restored.unlogged), at)
                self.rows = read_rows(run.metrics_file)
                self.state = state = restored or begin(config, self.wrappers, self._report_warm_up, ranks)
            for part in (self.rewards, state.reference, state.teacher):
                stack.callback(close, part)

            # The player samples with the trained tensors, with a copy, or from another process (`weight_form`). Rollout
            # processes are forked from this one and share the base agent's memory: each batch tells them its version.
            if not config.plays_here:
                state.base_agent.save(run.path / "player")
            self.manager = manager = self._shards(stack) if rollout.shards else self._manager(stack)
            if config.rewards.group:
                manager.group_reward = GroupReward(group_function(config.rewards.group), manager.limits.reward)
            self.opponents: Opponents | None = None
            if config.seats.others:
                self.opponents = Opponents(config, run, state, self.wrappers, self._report_warm_up)
                manager.agent = self.opponents.seated(state.player)
            if restored and config.played_rank:  # the player has only the base model, without the checkpoint's adapter
                manager.run(update_weights_of(state.player, weights_for_player(state.policy, config.weight_form)))
                state.player.version = state.base_agent.version

            # What is learned from, and what learns.
            self.batches, self.learner = self._learning()
            stack.callback(self.batches.close)
            self._playing_since = time.perf_counter(), state.player.tokens
            self.processes = self._processes(stack)

            self.trackers = Trackers(trackers_of(config.trackers))
            self.trackers.start(run.path, hide_secrets(self.config.model_dump(mode="json")))
            stack.callback(self._finish)
            self._held = stack.pop_all()

    def _manager(self, stack: contextlib.ExitStack) -> RolloutManager:
        """Create the manager of a player in this process."""
        rollout = self.config.rollout
        player = make_player(
            self.config.player, self.state.base_agent, self.run.path / "player", self.config.played_rank
        )
        self.state.player = player = with_harness(self.config.harness, player)
        stack.callback(close, player)
        manager = RolloutManager(
            player,
            stack.enter_context(make_workers(rollout.workers)),
            limits=limits_of(rollout),
            max_concurrent=rollout.max_concurrent or concurrent_harnesses(self.config.harness),
            reward=self.rewards,
            run_dir=self.run.path,
            thread=self.config.plays_aside,
        )
        return stack.enter_context(manager)

    def _shards(self, stack: contextlib.ExitStack) -> RolloutManager:
        """Create the manager of shards, whose thread monitors them during updates too."""
        from rollenv.rollout.ray_calls import connected
        from rollenv.rollout.shards import ShardedManager
        from rollenv.trainers.rollout_shards import TrainingShards

        stack.enter_context(connected(cpus=self.config.rollout.shard_cpus))
        self.state.player = fleet = TrainingShards(self.config, self.state.base_agent, self.run.path / "player")
        manager = stack.enter_context(ShardedManager(fleet, thread=True, run_dir=self.run.path))
        with timed("shards", self.begun):
            manager.run(fleet.ready())
        return manager

    def _learning(self) -> tuple[Batches, Updater]:
        """Create the source of the batches, and what learns from them: here SFT and RL part."""
        config, state, run, manager = self.config, self.state, self.run, self.manager
        if isinstance(config.batches, StoredConfig):
            stored = StoredBatches(
                manager, state.source, config, state.base_agent, run.path, state.iteration, self._report_warm_up
            )
            self.config = run.with_iterations(config, stored.updates or config.iterations)
            return stored, Updater(self.config, state, run)
        if config.batches.kind == "early":
            early = EarlyUpdater(config, state, run)
            return EarlyBatches(manager, state.source, config, state.again, early=early), early
        left = config.iterations - state.iteration
        return batches_of(config, manager, state.source, state.again, left), Updater(config, state, run)

    def _processes(self, stack: contextlib.ExitStack) -> RolloutProcesses | None:
        """Start the processes that play parts of a batch, if there are any."""
        config, manager = self.config, self.manager
        if config.rollout.workers != "inline" or not config.plays_here or config.plays_aside:
            return None
        processes = start_rollout_processes(config.rollout.processes, self.state.base_agent, manager.limits)
        if processes:
            stack.callback(processes.close)
            manager.processes = processes
            self.threads.own_processes = lambda: processes.seconds
        return processes

    def close(self) -> None:
        """Close workers and trackers; may be called repeatedly."""
        self._held.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._held.__exit__(kind, error, trace)
        if kind is None:
            self.state.ranks.send_command("end")

    def fit(self) -> TrainingResult:
        """Train to the last iteration.

        Raises:
            TrainingError: losses, gradients or weights are no longer finite.
            Terminated: by SIGTERM or SIGHUP, after saving; episodes under way are given up, an update is finished.
        """
        self._to_save = {**self.batches.state(), "unlogged": self.state.unlogged}
        with self.termination.handled():
            try:
                return self._fit()
            except KeyboardInterrupt:
                if not self.termination.asked:
                    raise
                self.termination.busy = True
                self._save_where_it_is()
                raise Terminated from None

    def save_and_stop(self) -> None:
        """Save a checkpoint from another thread, between two steps, and let no more steps begin."""
        while not self._to_save:  # the first step has not begun
            time.sleep(0.1)
        self.termination.stepping.acquire()
        self._save_where_it_is()

    def _save_where_it_is(self) -> None:
        if not (self.run.checkpoints / f"step-{self.state.iteration:06d}").exists():
            self._save()

    def _fit(self) -> TrainingResult:
        started, state, config = time.perf_counter(), self.state, self.config
        if state.unlogged:  # by a run that was terminated in the evaluation
            self._finish_iteration(state.unlogged)
            state.unlogged = {}
        if not self._evaluations():  # a resumed run's file may be damaged
            self._log(self._evaluate() | self.begun)
        if config.iterations == 0:
            self._save()
        while state.iteration < config.iterations:
            self.threads.adapt()
            metrics: dict[str, float] = {}
            sharing = self.processes.sharing(self.threads.count) if self.processes else contextlib.nullcontext()
            with timed("collect", metrics, self.threads.own_processes), sharing:
                played = self._collect(metrics)
            groups = by_seat(played)
            with self.termination.deferred():
                with timed("update", metrics), self.batches.resting():
                    # Other seats may have ended all games before the learner's turn, which is no failure.
                    if groups or not any(t.complete for group in played for t in group):
                        metrics |= self.learner.update(self.learner.compute_advantages(groups, metrics))
                    if self.opponents:
                        metrics |= self.opponents.learn(played)
                with timed("publish", metrics):
                    self.batches.publish(state.policy)
                    if self.opponents:
                        self.opponents.publish(self.manager.run)
                state.iteration += 1
                self._to_save = {**self.batches.state(), "unlogged": metrics}
            self._finish_iteration(metrics)
        history = self._evaluations()
        last_checkpoint = str(checkpoint.checkpoints(self.run.checkpoints)[-1])
        return TrainingResult(history[0], history[-1], time.perf_counter() - started, last_checkpoint)

    def _finish_iteration(self, metrics: dict[str, float]) -> None:
        """Evaluate, log and save what is due after an update."""
        iteration, config = self.state.iteration, self.config
        last = iteration == config.iterations
        if last or iteration % config.eval.every == 0:
            metrics = metrics | self._evaluate()
        with self.termination.deferred():
            self._log(metrics)
            self._to_save = self.batches.state()
            if last or iteration % config.checkpoint_every == 0:
                self._save()

    def _evaluations(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if "time/eval" in row]

    # -- the steps of an iteration -----------------------------------------------------------------------------------

    def _collect(self, metrics: dict[str, float]) -> list[Group]:
        """Return the next batch, and add its metrics."""
        player = self.state.player
        if self.config.batches.kind != "stream":  # a stream has played since the last batch
            self._playing_since = time.perf_counter(), player.tokens
        groups = self.batches.next(metrics)
        if self.config.eval.panel:
            self.run.append(self.run.path / FILE, *task_rows(self.state.iteration, (group.task for group in groups)))
        clock, tokens = self._playing_since
        self._playing_since = time.perf_counter(), player.tokens
        if not self.batches.plays:
            return groups
        metrics["tokens_per_s"] = (player.tokens - tokens) / (self._playing_since[0] - clock)
        metrics |= rollout_metrics(groups, self.config.rewards.success_only)
        if self.rewards:
            metrics |= self.rewards.metrics()
        if self.manager.group_reward:
            metrics |= self.manager.group_reward.metrics()
        return groups

    def _save(self) -> None:
        agent, batches = self.state.base_agent, self.batches
        if isinstance(agent, RewardModel) and isinstance(batches, StoredBatches):  # the scale of scores it trained on
            shown = batches.groups[:: max(1, len(batches.groups) // 200)]
            scale = self.learner.measure(shown)
            agent.mean, agent.std = scale["scores/mean"], max(scale["scores/std"], 1e-6)
        more = self.opponents.save(self._to_save) if self.opponents else {}
        self.state.save(self.run, self.config.keep_checkpoints, {**self._to_save, **more})
        if self.opponents:
            self.opponents.saved()

    def _evaluate(self) -> dict[str, float]:
        """Play the evaluation episodes, save them and return their metrics."""
        settings = self.config.eval
        metrics: dict[str, float] = {}
        played: list[Trajectory] = []
        player = copy.copy(self.state.player)  # the training's player may keep playing
        panel = settings.the_panel if settings.panel else None
        fixed: dict[str, Any] = {"temperature": settings.temperature}
        if panel:
            said = {"temperature": panel.protocol.temperature, "max_new_tokens": panel.protocol.max_tokens}
            fixed |= {name: value for name, value in said.items() if value is not None}
        if given := {name: value for name, value in fixed.items() if value is not None}:
            player.sampling = dataclasses.replace(player.sampling, **given, routes=False)
        agent = self.opponents.evaluated(player) if self.opponents else player
        manager = self.manager.with_agent(agent, keep_views=True)
        with timed("eval", metrics):
            if self.batches.held_out:
                measured = self.learner.measure(self.batches.held_out) | self.batches.measured
                metrics |= {f"eval/{name}": value for name, value in measured.items()}
            for part in evaluated_environments(self.config, self.wrappers):
                on_panel = Watched(panel) if panel and not part.name else None
                result = evaluate(
                    player,
                    part.env.id,
                    part.env.kwargs,
                    n=part.episodes,
                    seed=settings.seed,
                    wrappers=part.env.wrappers,
                    options=part.env.options,
                    tasks=on_panel.panel.tasks() if on_panel else (),
                    k=on_panel.panel.protocol.k if on_panel else 1,
                    manager=manager,
                    watch=on_panel,
                )
                played += result.trajectories
                graded = [t for t in result.trajectories if t.complete]
                names = ["failed", *(("success", "low", "high", "reward", "turns") if graded else ())]
                if graded and result.repeats:
                    names += ["distinct", "tasks_low", "tasks_high"]
                metrics |= {f"eval/{part.name}{name}": getattr(result, name) for name in names}
                if self.rewards and graded:
                    metrics[f"eval/{part.name}trained_reward"] = sum(t.reward for t in graded) / len(graded)
                if result.failed:
                    of, error = len(result.trajectories), next(t.error for t in result.trajectories if not t.complete)
                    logger.warning("%d of %d episodes of the evaluation failed: %s", result.failed, of, error)
            for name in self.config.eval.measures:
                config = self.config.model_copy(update={"run_dir": str(self.run.path)})
                with users_code(f"eval.measures={name}"):
                    found = function_at(name, "eval.measures", self.run.path)(player, config)
                found = validation.numbers(found, f"the answer of eval.measures {name!r}")
                metrics |= {f"eval/{key}": value for key, value in found.items()}
        if played or self.config.eval.measures:
            self.manager.run(self._forget())
        self._playing_since = time.perf_counter(), self.state.player.tokens
        if self.rewards:
            self.rewards.metrics()  # drop the evaluation's counts
        self.run.keep_episodes(self.state.iteration, played)
        self.trackers.episodes(self.state.iteration, played)
        return metrics

    async def _forget(self) -> None:
        """Clear the cache after an evaluation, since a run that is resumed here has not played it."""
        if self.config.plays_here:
            self.state.base_agent.engine.forget()

    def _log(self, metrics: dict[str, float]) -> None:
        watched = metrics
        if not self.batches.plays:  # the entropy falls as the model learns the given answers
            watched = {name: value for name, value in metrics.items() if name != "entropy"}
        for alarm in alarms(watched, self.rows):
            logger.warning("iteration %d: %s", self.state.iteration, alarm)
            self.trackers.alarm(self.state.iteration, alarm)
        self.rows.append({"iteration": self.state.iteration, **metrics})
        self.run.append(self.run.metrics_file, self.rows[-1])
        self.trackers.log(self.state.iteration, metrics)
        self.watch("training", self.state.iteration, self.config.iterations, metrics)

    def _report_warm_up(self, stage: str, done: int, total: int, numbers: dict[str, float]) -> None:
        self.threads.adapt()
        self.watch(stage, done, total, numbers)

    def _finish(self) -> None:
        files, settings = [self.run.metrics_file], self.config.model_dump(mode="json")
        if hide_secrets(settings) == settings:
            files.append(self.run.config_file)
        self.trackers.finish([path for path in files if path.exists()])


def evaluated_environments(config: TrainConfig, wrappers: Wrappers) -> list[EvalPart]:
    """Return the environments of an evaluation: the run's own, then ``eval.parts``, whose metrics have prefixes."""
    own = EnvConfig(id=config.env.id, kwargs=config.eval.kwargs, wrappers=wrappers)
    main = EvalPart(env=own, episodes=config.eval.episodes)
    parts = [main] if config.env.id else []
    for part in config.eval.parts:
        env = part.env.model_copy(update={"wrappers": with_tokenizer(part.env.wrappers, config.model.tokenizer)})
        parts.append(part.model_copy(update={"name": f"{part.name or part.env.id}/", "env": env}))
    return parts


@contextlib.contextmanager
def timed(stage: str, metrics: dict[str, float], more: Callable[[], float] = float) -> Iterator[None]:
    """Measure a block: seconds as ``time/STAGE``, CPU seconds (with ended child processes) as ``cpu/STAGE``."""
    clock, worked = time.perf_counter(), sum(os.times()[:4]) + more()
    yield
    metrics[f"time/{stage}"] = time.perf_counter() - clock
    metrics[f"cpu/{stage}"] = sum(os.times()[:4]) + more() - worked


def rollout_metrics(groups: Sequence[Group], success_only: bool = False) -> dict[str, float]:
    """Compute the metrics of the trajectories of a batch."""
    trajectories = [t for group in groups for t in group]
    played = [t for t in trajectories if t.status != "failed"]
    n = max(len(played), 1)
    judged = [t.success for t in played if t.success is not None]
    trained = {"trained_reward": sum(t.reward for t in played) / n}
    equal = [group for group in groups if not differ(rewards_of(group, success_only))]
    solved = [{t.success for t in group if t.complete} for group in equal]
    turns = [turn for t in played for turn in t.turns]
    return {
        "reward": sum(t.own_reward for t in played) / n,
        **(trained if any(t.env_reward is not None for t in played) else {}),
        "reward_std": float(np.std([t.reward for t in played])) if played else 0.0,
        **({"success": sum(judged) / max(len(judged), 1)} if judged or not played else {}),
        "turns": sum(len(t.turns) for t in played) / n,
        "tokens": sum(len(turn.prompt_ids) + len(turn.response_ids) for turn in turns),
        "response_tokens": sum(len(turn.response_ids) for turn in turns),
        "informative_groups": (len(groups) - len(equal)) / max(len(groups), 1),
        "too_easy": solved.count({True}) / max(len(groups), 1),
        "too_hard": solved.count({False}) / max(len(groups), 1),
        "truncated": sum(t.status == "truncated" for t in played) / n,
        "unfinished": sum(turn.finish == "unfinished" for turn in turns) / max(len(turns), 1),
        "failed": len(trajectories) - len(played),
    }
