"""Rewards by domain, from a recipe's settings."""

from __future__ import annotations

import os

from rollenv.agents.chat.endpoint import Endpoint, Patience
from rollenv.core.errors import UsageError
from rollenv.rollout.types import Trajectory
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.rewards import AnyDomainReward, FormatReward, InstructionsReward, LengthReward
from rollenv.trainers.config.tasks import pattern_of, task_domains
from rollenv.trainers.rewards.base import Reward, Sum, domains
from rollenv.trainers.rewards.instructions import Instructions, RowInstructions
from rollenv.trainers.rewards.judge import TEMPLATE, Judge
from rollenv.trainers.rewards.shape import Format, Overlong


class DomainRewards:
    """The rewards of ``rewards.domains``, which are added to the environments' own; 0 for domains without an entry."""

    def __init__(self, config: TrainConfig):
        parts: dict[str, list[tuple[float, Reward]]] = {}
        patterns = dict.fromkeys(one.domain for one in config.rewards.domains)
        for path, env in task_domains(config.env, config.tasks):  # checked before anything is played
            matching = pattern_of(patterns, path)
            for one in config.rewards.domains:
                if one.domain == matching and isinstance(one, InstructionsReward) and one.column:
                    RowInstructions(one.column, one.arguments).check(env.id, env.kwargs)
        for one in config.rewards.domains:
            parts.setdefault(one.domain, []).append((one.weight, _reward(one)))
        self._rewards: dict[str, Reward] = {pattern: Sum(rewards) for pattern, rewards in parts.items()}
        self._judges = [r for rewards in parts.values() for _, r in rewards if isinstance(r, Judge)]
        self._added: dict[str, list[float]] = {}

    async def __call__(self, trajectory: Trajectory) -> float:
        pattern = pattern_of(self._rewards, list(domains(trajectory)))
        if pattern is None:
            return 0.0
        added = await self.of(pattern, trajectory)
        self._added.setdefault(pattern, []).append(added)
        return added

    async def of(self, pattern: str, trajectory: Trajectory) -> float:
        """Compute the reward of a domain, given by its pattern in the settings."""
        return await self._rewards[pattern](trajectory)

    def metrics(self) -> dict[str, float]:
        """Return the mean added reward of each domain since the last call, and the judges' counts since the start."""
        added, self._added = self._added, {}
        return {f"added/{domain}": sum(values) / len(values) for domain, values in added.items()} | self.counts()

    def counts(self) -> dict[str, float]:
        """Return the judges' counts since the start."""
        counts: dict[str, float] = {}
        for judge in self._judges:
            for name, value in judge.metrics().items():
                counts[name] = counts.get(name, 0) + value
        return counts


def _reward(settings: AnyDomainReward) -> Reward:
    if isinstance(settings, FormatReward):
        return Format(settings.pattern, matched=settings.matched, missed=settings.missed)
    if isinstance(settings, LengthReward):
        return Overlong(settings.longest, settings.buffer)
    if isinstance(settings, InstructionsReward):
        rows = RowInstructions(settings.column, settings.arguments)
        return Instructions(rows if settings.column else settings.checks, partial=settings.partial)
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
