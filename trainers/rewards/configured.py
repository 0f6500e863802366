"""Rewards by domain, from a recipe's settings."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import numpy as np

from rollenv.agents.chat.endpoint import Endpoint, Patience
from rollenv.core.errors import UsageError
from rollenv.core.plugins import function_at
from rollenv.rollout.types import Trajectory
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.rewards import AnyDomainReward, FormatReward, LearnedDomainReward, OwnReward, PackageReward
from rollenv.trainers.config.tasks import pattern_of, task_domains
from rollenv.trainers.rewards.base import Reward, Sum, domains
from rollenv.trainers.rewards.format import Format
from rollenv.trainers.rewards.function import FunctionReward
from rollenv.trainers.rewards.judge import TEMPLATE, Judge


class DomainRewards:
    """The rewards of ``rewards.domains``, which are added to the environments' own; 0 for domains without an entry.

    ``rewards.function`` replaces the environments' own before.
    """

    def __init__(self, config: TrainConfig):
        name = config.rewards.function
        self.function = FunctionReward(function_at(name, "rewards.function")) if name else None
        self.own = config.rewards.own
        parts: dict[str, list[tuple[float, Reward]]] = {}
        self._names: dict[str, list[str]] = {}
        patterns = dict.fromkeys(one.domain for one in config.rewards.domains)
        for path, env in task_domains(config.env, config.tasks):  # checked before anything is played
            matching = pattern_of(patterns, path)
            for one in config.rewards.domains:
                if one.domain == matching:
                    one.check(env.id, env.kwargs)
        for one in config.rewards.domains:
            parts.setdefault(one.domain, []).append((one.weight, _reward(one)))
            names = self._names.setdefault(one.domain, [])
            again = sum(name.startswith(one.kind) for name in names)
            names.append(f"{one.kind}-{again + 1}" if again else one.kind)
        self._rewards = {pattern: Sum(rewards) for pattern, rewards in parts.items()}
        self._judges = [r for rewards in parts.values() for _, r in rewards if isinstance(r, Judge)]
        self._added: dict[str, list[list[float]]] = {}
        self._running, self._since, self._seconds = 0, 0.0, 0.0

    async def __call__(self, trajectory: Trajectory) -> float:
        if self.function:
            own = await self.function(trajectory)
        else:
            own = (self.own - 1) * trajectory.own_reward  # a sum with the environment's, which is there
        pattern = pattern_of(self._rewards, list(domains(trajectory)))
        if pattern is None:
            return own
        with self._clock():
            terms = await self.of(pattern, trajectory)
        self._added.setdefault(pattern, []).append(terms)
        return own + sum(terms)

    @contextlib.contextmanager
    def _clock(self) -> Iterator[None]:
        """Count the seconds in which at least one reward is computed."""
        if not self._running:
            self._since = time.perf_counter()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._seconds += time.perf_counter() - self._since

    async def of(self, pattern: str, trajectory: Trajectory) -> list[float]:
        """Compute the rewards of a domain, given by its pattern in the settings."""
        return await self._rewards[pattern].terms(trajectory)

    def metrics(self) -> dict[str, float]:
        """Return the mean rewards and the seconds since the last call, and the judges' counts since the start."""
        added, self._added = self._added, {}
        metrics, self._seconds = {"time/reward": self._seconds}, 0.0
        for domain, rows in added.items():
            means = np.mean(rows, axis=0).tolist()
            metrics[f"added/{domain}"] = sum(means)
            if len(means) > 1:
                names = self._names[domain]
                metrics |= {f"added/{domain}/{name}": mean for name, mean in zip(names, means, strict=True)}
        return metrics | self.counts()

    def counts(self) -> dict[str, float]:
        """Return the judges' counts since the start."""
        counts: dict[str, float] = {}
        for judge in self._judges:
            for name, value in judge.metrics().items():
                counts[name] = counts.get(name, 0) + value
        return counts


def _reward(settings: AnyDomainReward | PackageReward) -> Reward:
    if isinstance(settings, FormatReward):
        return Format(settings.pattern, matched=settings.matched, missed=settings.missed)
    if isinstance(settings, LearnedDomainReward):
        from rollenv.trainers.rewards.learned import LearnedReward  # not above: it needs torch

        return LearnedReward(settings.path, settings.clip)
    if isinstance(settings, OwnReward):
        return FunctionReward(function_at(settings.function, "rewards.domains")).score
    if isinstance(settings, PackageReward):
        return settings.reward()
    key = os.environ.get(settings.key_variable) if settings.key_variable else None
    if settings.key_variable and key is None:
        raise UsageError(f"rewards.domains: the environment variable {settings.key_variable} is not set")
    return Judge(
        Endpoint(settings.url, key, concurrency=settings.concurrency, patience=Patience(settings.timeout, retries=2)),
        settings.model,
        template=settings.template or TEMPLATE,
        attempts=settings.attempts,
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
    )
