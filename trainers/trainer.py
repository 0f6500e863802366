"""The training loop: collect, advantage, update, log, checkpoint."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rollenv.agents.generation import Sampling
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.scoring import score
from rollenv.agents.tiny.warm_up import tiny_agent
from rollenv.core import RollenvError
from rollenv.curriculum import Curriculum, Schedule
from rollenv.rollout.episode import Limits
from rollenv.rollout.evaluate import Evaluation, evaluate
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.places import make_workers
from rollenv.rollout.types import Group, Task
from rollenv.trainers import checkpoint
from rollenv.trainers.batch import Minibatch, Row, minibatches, turn_rows
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.losses import ppo_clip, token_mean
from rollenv.trainers.optimizer import MasterAdamW
from rollenv.trainers.run_dir import RunDir, read_rows
from rollenv.trainers.threads import idle_cores
from rollenv.wrappers.factory import with_tokenizer


class TrainingError(RollenvError):
    """Training cannot go on; the checkpoints are good."""


#: ``watch(stage, done, total, numbers)``, called whenever there is something new to show.
Watch = Callable[[str, int, int, dict[str, float]], None]

logger = logging.getLogger(__name__)

#: Episodes of each evaluation that are kept to be looked at.
SHOWN_EPISODES = 6


@dataclass(slots=True)
class Result:
    """What a run ends with: the metrics rows of its first and last evaluation, and its time in seconds."""

    before: dict[str, Any]
    after: dict[str, Any]
    seconds: float
    checkpoint: str


class Trainer:
    """Trains a language model on an environment.

    Args:
        config: the run's settings.
        run: where to write. If it holds checkpoints, training goes on from the last one, to the same numbers that an
            uninterrupted run gives: everything random follows the seed and the number of the iteration.
        watch: told about progress.
    """

    def __init__(self, config: TrainConfig, run: RunDir, watch: Watch = lambda *_: None):
        self.config, self.run, self.watch = config, run, watch
        self.threads = config.threads or idle_cores()
        torch.set_num_threads(self.threads)
        logger.info("%d CPU threads%s", self.threads, "" if config.threads else ": as many cores as were idle")
        clock = time.perf_counter()
        self.levels = _curriculum(config)
        own_tokenizer = "" if config.model.path == "tiny" else config.model.path  # the tiny one's is not made yet
        self.wrappers = with_tokenizer(config.env.wrappers, own_tokenizer)
        self.agent, self.optimizer, self.iteration = self._restore() or self._begin()
        rollout = config.rollout
        limits = Limits(reset=rollout.reset_deadline, step=rollout.step_deadline)
        with contextlib.ExitStack() as stack:
            workers = stack.enter_context(make_workers(rollout.workers))
            at_once = rollout.max_concurrent or None
            self.manager = stack.enter_context(
                RolloutManager(self.agent, workers, limits=limits, max_concurrent=at_once, run_dir=run.path)
            )
            self._held = stack.pop_all()
        self.begin_seconds = time.perf_counter() - clock

    def close(self) -> None:
        """End the workers; calling it again does nothing."""
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
        started = time.perf_counter()
        if self.iteration == 0:
            self._log(self._evaluate() | {"time/begin": self.begin_seconds})
        while self.iteration < self.config.iterations:
            clock, tokens = time.perf_counter(), self.agent.engine.stats.total
            groups = self._collect()
            collected = time.perf_counter()
            rows = turn_rows(groups, self.config.algorithm)
            metrics = self._update(rows)
            self.agent.weights_changed()
            self.iteration += 1
            metrics |= rollout_metrics(groups)
            if self.levels is not None:
                metrics["level"] = self.levels[1].level
            updated = time.perf_counter()
            metrics |= {"time/collect": collected - clock, "time/update": updated - collected}
            metrics["tokens_per_s"] = (self.agent.engine.stats.total - tokens) / (collected - clock)
            last = self.iteration == self.config.iterations
            if last or self.iteration % self.config.eval.every == 0:
                metrics |= self._evaluate()
            self._log(metrics)
            if last or self.iteration % self.config.checkpoint_every == 0:
                self._save()
        history = [row for row in read_rows(self.run.metrics_file) if "eval/success" in row]
        last_checkpoint = str(checkpoint.checkpoints(self.run.checkpoints)[-1])
        return Result(history[0], history[-1], time.perf_counter() - started, last_checkpoint)

    # -- the steps of an iteration -----------------------------------------------------------------------------------

    def _collect(self) -> list[Group]:
        """Play the next batch of tasks."""
        rollout = self.config.rollout
        count = rollout.groups_per_batch + rollout.extra_groups
        first = self.iteration * count
        levels = [self.levels[1].choose(first + i) for i in range(count)] if self.levels else []
        groups = self.manager.batch(
            [self._task(i, levels) for i in range(count)],
            rollout.groups_per_batch,
            rollout.group_size,
            extra_groups=rollout.extra_groups,
            extra_members=rollout.extra_members,
        )
        if self.levels:
            for group in groups:
                for trajectory in group:
                    self.levels[1].record(levels[group.number], trajectory.success)
        return groups

    def _task(self, number: int, levels: Sequence[int]) -> Task:
        """A task of this iteration, with its seed and level."""
        env, seed = self.config.env, task_seed(self.config.seed, self.iteration, number)
        level = self.levels[0][levels[number]] if self.levels else {}
        return Task(env.id, seed, {**env.kwargs, **level}, self.wrappers, env.options)

    def _update(self, rows: Sequence[Row]) -> dict[str, float]:
        """Policy-gradient steps over the batch; metrics are means over the steps."""
        settings = self.config.optimizer
        rng = random.Random(task_seed(self.config.seed, self.iteration, -1))
        trained = sum(row.advantage != 0 for row in rows)
        if not trained:
            logger.warning(
                "iteration %d taught nothing: in every group all rewards were equal; look at the sampled episodes, and "
                "try easier tasks, larger groups or a longer warm-up",
                self.iteration + 1,
            )
        lr = self._learning_rate()
        self.optimizer.set_lr(lr)
        steps: list[dict[str, float]] = []
        skipped = 0
        for _ in range(settings.epochs if trained else 0):
            idle = self.config.algorithm.entropy != 0  # rows without advantage matter to the entropy alone
            for batch in minibatches(rows, settings.minibatch_sequences, rng, idle=idle):
                step = self._step(batch)
                if step is None:
                    skipped += 1
                else:
                    steps.append(step)
        if skipped and not steps:
            raise self._not_finite("not one loss or gradient of the iteration was a finite number")
        if not self.optimizer.finite():
            raise self._not_finite("a weight is no longer a finite number")
        means = {name: sum(s[name] for s in steps) / len(steps) for name in steps[0]} if steps else {}
        counts = {"optimizer_steps": len(steps), "skipped_steps": skipped, "trained_rows": trained}
        return means | counts | {"lr": lr}

    def _step(self, batch: Minibatch) -> dict[str, float] | None:
        """One optimizer step; None if its loss or gradient was not finite, which leaves the weights as they were."""
        algorithm, settings = self.config.algorithm, self.config.optimizer
        scores = score(
            self.agent.model,
            [row.prompt for row in batch.rows],
            [row.response for row in batch.rows],
            self.config.rollout.temperature,
            entropy_gradient=algorithm.entropy != 0,
        )
        loss = ppo_clip(
            scores.logprobs,
            right_aligned([row.logprobs for row in batch.rows], scores.logprobs),
            scores.mask.new_tensor([row.advantage for row in batch.rows], dtype=torch.float32)[:, None],
            scores.mask,
            low=algorithm.clip_low,
            high=algorithm.clip_high,
            tokens=batch.tokens,
        )
        entropy = token_mean(scores.entropy, scores.mask, batch.tokens)
        self.optimizer.zero_grad()
        norm = float("nan")
        if torch.isfinite(loss.value):
            (loss.value - algorithm.entropy * entropy).backward()
            norm = self.optimizer.step(settings.max_grad_norm)
        if not math.isfinite(norm):
            if settings.on_nonfinite == "stop":
                raise self._not_finite(f"the loss is {loss.value.item()} and the norm of the gradient {norm}")
            logger.warning("iteration %d: a step was left out, its loss or gradient is not finite", self.iteration + 1)
            return None
        return {
            "loss": loss.value.item(),
            "entropy": token_mean(scores.entropy.detach(), scores.mask).item(),
            "kl": loss.kl,
            "ratio": loss.ratio,
            "clip_fraction": loss.clip_fraction,
            "grad_norm": norm,
        }

    def _not_finite(self, what: str) -> TrainingError:
        saved = checkpoint.checkpoints(self.run.checkpoints)
        last = f"the last checkpoint, {saved[-1]}, is good" if saved else "there is no checkpoint yet"
        return TrainingError(
            f"training stopped in iteration {self.iteration + 1}: {what}; {last}. Try a lower optimizer.lr or "
            "optimizer.max_grad_norm in a new run"
        )

    def _learning_rate(self) -> float:
        """Linear warm-up, then linear decay to ``final_lr`` times the rate."""
        settings = self.config.optimizer
        warm = min(1.0, (self.iteration + 1) / (settings.warmup_iterations + 1))
        left = 1 - self.iteration / self.config.iterations
        return settings.lr * warm * (settings.final_lr + (1 - settings.final_lr) * left)

    def _evaluate(self) -> dict[str, float]:
        """Success on the evaluation episodes, always the same ones; some are kept to be looked at."""
        settings = self.config.eval
        self.manager.keep_views = True
        result: Evaluation = evaluate(
            self.agent,
            self.config.env.id,
            settings.kwargs,
            n=settings.episodes,
            seed=settings.seed,
            wrappers=self.wrappers,
            manager=self.manager,
        )
        self.manager.keep_views = False
        for trajectory in result.trajectories[:SHOWN_EPISODES]:
            self.run.append(self.run.episodes_file, {"iteration": self.iteration, **trajectory.to_dict()})
        names = ("success", "low", "high", "reward", "turns", "failed")
        return {f"eval/{name}": getattr(result, name) for name in names} | {"time/eval": result.seconds}

    def _log(self, metrics: dict[str, float]) -> None:
        self.run.append(self.run.metrics_file, {"iteration": self.iteration, **metrics})
        self.watch("training", self.iteration, self.config.iterations, metrics)

    # -- starting and stopping ---------------------------------------------------------------------------------------

    def _begin(self) -> tuple[LocalAgent, MasterAdamW, int]:
        config = self.config
        self.run.cut_back(-1)
        prompt = StepPrompt(**config.prompt.model_dump())
        sampling = Sampling(config.rollout.temperature, config.rollout.max_new_tokens)
        if config.model.path == "tiny":
            agent = tiny_agent(
                config.env.id,
                config.env.kwargs,
                prompt,
                sampling,
                size=config.model.size,
                warm_up=config.model.warm_up,
                seed=config.seed,
                report=self.watch,
                wrappers=self.wrappers,
            )
        else:
            agent = LocalAgent.load(config.model.path)
            agent.prompt, agent.sampling = prompt, sampling
        return agent, self._optimizer(agent), 0

    def _restore(self) -> tuple[LocalAgent, MasterAdamW, int] | None:
        saved = checkpoint.checkpoints(self.run.checkpoints)
        if not saved:
            return None
        agent, state, about = checkpoint.load(saved[-1])
        optimizer = self._optimizer(agent)
        try:
            optimizer.load_state_dict(state)
            if self.levels is not None:
                self.levels[1].load_state_dict(about["schedule"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"the {error} is missing" if isinstance(error, KeyError) else str(error)
            raise checkpoint.damaged(saved[-1], why) from error
        self.run.cut_back(about["iteration"])
        return agent, optimizer, about["iteration"]

    def _optimizer(self, agent: LocalAgent) -> MasterAdamW:
        settings = self.config.optimizer
        return MasterAdamW(agent.model, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay)

    def _save(self) -> None:
        more = {} if self.levels is None else {"schedule": self.levels[1].state_dict()}
        keep = self.config.keep_checkpoints
        checkpoint.save(self.run.checkpoints, self.iteration, self.agent, self.optimizer, keep, more)


def _curriculum(config: TrainConfig) -> tuple[Curriculum, Schedule] | None:
    settings = config.curriculum
    if not settings.enabled:
        return None
    env_id = config.env.id
    curriculum = Curriculum(env_id, settings.levels) if settings.levels else Curriculum.for_env(env_id)
    schedule = Schedule(
        len(curriculum),
        seed=config.seed,
        window=settings.window,
        up=settings.up,
        down=settings.down,
        review=settings.review,
    )
    return curriculum, schedule


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """What the trajectories of a batch were like."""
    trajectories = [t for group in groups for t in group]
    played = [t for t in trajectories if t.status != "failed"]
    n = max(len(played), 1)
    varied = sum(len({t.reward for t in group if t.status != "failed"}) > 1 for group in groups)
    return {
        "reward": sum(t.reward for t in played) / n,
        "success": sum(t.success for t in played) / n,
        "turns": sum(len(t.turns) for t in played) / n,
        "tokens": sum(len(turn.prompt_ids) + len(turn.response_ids) for t in played for turn in t.turns),
        "informative_groups": varied / max(len(groups), 1),
        "failed": len(trajectories) - len(played),
    }


def task_seed(*parts: int) -> int:
    """A seed that follows from the parts alone, spread evenly over 48 bits."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest(), "big")


def right_aligned(rows: Sequence[Sequence[float]], like: torch.Tensor) -> torch.Tensor:
    """The rows as a tensor of the shape and kind of ``like``, each at its right end, zeros before it."""
    longest = like.shape[1]
    return torch.tensor([[0.0] * (longest - len(r)) + list(r) for r in rows], device=like.device, dtype=like.dtype)
