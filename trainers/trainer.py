"""The training loop: collect, advantage, update, log, checkpoint."""

from __future__ import annotations

import hashlib
import logging
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
from rollenv.curriculum import Curriculum, Schedule
from rollenv.rollout.evaluate import Evaluation, evaluate
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Group, Task
from rollenv.trainers import checkpoint
from rollenv.trainers.batch import Row, minibatches, turn_rows
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.losses import ppo_clip, token_mean
from rollenv.trainers.run_dir import RunDir, read_rows

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
        if config.threads:
            torch.set_num_threads(config.threads)
        clock = time.perf_counter()
        self.levels = _curriculum(config)
        self.agent, self.optimizer, self.iteration = self._restore() or self._begin()
        #: Plays what is learned from, and what is measured.
        self.manager = RolloutManager(self.agent, run_dir=run.path)
        self.examiner = RolloutManager(self.agent, keep_views=True)
        self.begin_seconds = time.perf_counter() - clock

    def fit(self) -> Result:
        """Train to the last iteration."""
        started = time.perf_counter()
        if self.iteration == 0:
            self._log(self._evaluate() | {"time/begin": self.begin_seconds})
        while self.iteration < self.config.iterations:
            clock = time.perf_counter()
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
            metrics["tokens_per_s"] = metrics["tokens"] / (updated - clock)
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
        env, rollout = self.config.env, self.config.rollout
        seeds = [task_seed(self.config.seed, self.iteration, i) for i in range(rollout.groups_per_batch)]
        if self.levels is None:
            tasks = [Task(env.id, seed, env.kwargs) for seed in seeds]
            return self.manager.collect(tasks, rollout.group_size)
        curriculum, schedule = self.levels
        levels = [schedule.choose(self.iteration * len(seeds) + i) for i in range(len(seeds))]
        tasks = [Task(env.id, s, {**env.kwargs, **curriculum[n]}) for s, n in zip(seeds, levels, strict=True)]
        groups = self.manager.collect(tasks, rollout.group_size)
        for level, group in zip(levels, groups, strict=True):
            for trajectory in group:
                schedule.record(level, trajectory.success)
        return groups

    def _update(self, rows: Sequence[Row]) -> dict[str, float]:
        """Policy-gradient steps over the rows that carry a signal; metrics are means over the steps."""
        algorithm, settings = self.config.algorithm, self.config.optimizer
        rng = random.Random(task_seed(self.config.seed, self.iteration, -1))
        rows = [row for row in rows if row.advantage]
        if not rows:
            logger.warning(
                "iteration %d taught nothing: in every group all rewards were equal; look at the sampled episodes, and "
                "try easier tasks, larger groups or a longer warm-up",
                self.iteration + 1,
            )
        lr = self._learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        steps: list[dict[str, float]] = []
        for _ in range(settings.epochs):
            for batch in minibatches(rows, settings.minibatch_sequences, rng):
                scores = score(
                    self.agent.model,
                    [row.prompt for row in batch],
                    [row.response for row in batch],
                    self.config.rollout.temperature,
                )
                loss = ppo_clip(
                    scores.logprobs,
                    right_aligned([row.logprobs for row in batch], scores.logprobs),
                    torch.tensor([row.advantage for row in batch], device=scores.mask.device, dtype=torch.float32)[
                        :, None
                    ],
                    scores.mask,
                    low=algorithm.clip_low,
                    high=algorithm.clip_high,
                )
                entropy = token_mean(scores.entropy, scores.mask)
                self.optimizer.zero_grad()
                (loss.value - algorithm.entropy * entropy).backward()
                norm = torch.nn.utils.clip_grad_norm_(self.agent.model.parameters(), settings.max_grad_norm)
                self.optimizer.step()
                steps.append(
                    {
                        "loss": loss.value.item(),
                        "entropy": entropy.item(),
                        "kl": loss.kl,
                        "ratio": loss.ratio,
                        "clip_fraction": loss.clip_fraction,
                        "grad_norm": norm.item(),
                    }
                )
        means = {name: sum(s[name] for s in steps) / len(steps) for name in steps[0]} if steps else {}
        return means | {"lr": lr, "optimizer_steps": len(steps), "trained_rows": len(rows)}

    def _learning_rate(self) -> float:
        """Linear warm-up, then linear decay to ``final_lr`` times the rate."""
        settings = self.config.optimizer
        warm = min(1.0, (self.iteration + 1) / (settings.warmup_iterations + 1))
        left = 1 - self.iteration / self.config.iterations
        return settings.lr * warm * (settings.final_lr + (1 - settings.final_lr) * left)

    def _evaluate(self) -> dict[str, float]:
        """Success on the evaluation episodes, always the same ones; some are kept to be looked at."""
        settings = self.config.eval
        result: Evaluation = evaluate(
            self.agent,
            self.config.env.id,
            settings.kwargs,
            n=settings.episodes,
            seed=settings.seed,
            manager=self.examiner,
        )
        for trajectory in result.trajectories[:SHOWN_EPISODES]:
            self.run.append(self.run.episodes_file, {"iteration": self.iteration, **trajectory.to_dict()})
        names = ("success", "low", "high", "reward", "turns", "failed")
        return {f"eval/{name}": getattr(result, name) for name in names} | {"time/eval": result.seconds}

    def _log(self, metrics: dict[str, float]) -> None:
        self.run.append(self.run.metrics_file, {"iteration": self.iteration, **metrics})
        self.watch("training", self.iteration, self.config.iterations, metrics)

    # -- starting and stopping ---------------------------------------------------------------------------------------

    def _begin(self) -> tuple[LocalAgent, torch.optim.Optimizer, int]:
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
            )
        else:
            agent = LocalAgent.load(config.model.path)
            agent.prompt, agent.sampling = prompt, sampling
        return agent, self._optimizer(agent), 0

    def _restore(self) -> tuple[LocalAgent, torch.optim.Optimizer, int] | None:
        saved = checkpoint.checkpoints(self.run.checkpoints)
        if not saved:
            return None
        agent, state, about = checkpoint.load(saved[-1])
        optimizer = self._optimizer(agent)
        optimizer.load_state_dict(state)
        if self.levels is not None:
            self.levels[1].load_state_dict(about["schedule"])
        self.run.cut_back(about["iteration"])
        return agent, optimizer, about["iteration"]

    def _optimizer(self, agent: LocalAgent) -> torch.optim.Optimizer:
        settings = self.config.optimizer
        return torch.optim.AdamW(
            agent.model.parameters(), lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay
        )

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
