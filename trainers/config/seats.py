"""Settings of the seats of a game."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, field_validator

from rollenv.agents.by_name import check_opponent
from rollenv.core.errors import UsageError
from rollenv.trainers.config.section import Positive, Section, Share, unless


class PastConfig(Section):
    """The pool of earlier weights of the run (fictitious self-play, arXiv 1603.01121)."""

    every: int = Field(20, ge=1)
    """Iterations between two that are kept. The first one is the initial model."""
    size: int = Field(5, ge=1)
    """How many are kept, each in memory and as a folder of the run; the oldest is dropped."""
    draw: Literal["uniform", "recent", "hard"] = "uniform"
    """How one is drawn for a group: all alike; twice as often for each that is newer; or by how rarely the learner
    beats it, with the weight (1 - x)**2 for its share of wins x (as AlphaStar, doi 10.1038/s41586-019-1724-z)."""
    current: Share = 0.5
    """The share of groups that are played against the current weights instead."""


class SeatsConfig(Section):
    """Who takes the seats of a game. Without ``others``, the learner takes all of them."""

    others: list[str] = Field(default_factory=list)
    """Who takes the other seats, the last one all that are left: ``self``; ``past``, earlier weights of this run;
    ``rival``, a second model with an optimizer and checkpoints of its own, which this run trains too; or an agent:
    random, oracle, noisy:SHARE, local:FOLDER, chat:MODEL@URL, module:Class."""
    rotate: bool = True
    """Move the agents by the task's seed, so that the learner plays all roles."""
    deadline: Positive = 600.0
    """Seconds for an answer of another agent, after which it forfeits."""
    past: PastConfig = PastConfig()
    opponent: str = "random"
    """The agent in the other seats of evaluations."""

    @field_validator("others", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("others", "opponent")
    @classmethod
    def _known(cls, value: Any) -> Any:
        for name in [value] if isinstance(value, str) else value:
            if isinstance(value, str) or name not in ("self", "past", "rival"):
                try:
                    check_opponent(name)
                except UsageError as error:
                    raise ValueError(str(error)) from error
        return value

    def problems(self, run: Any) -> Iterator[str]:
        if not self.others:
            return
        if not run.plays_here:
            yield "seats.others needs a player in this process: take player.kind=local without rollout.shards"
        if run.batches.kind != "collect":
            yield f"seats.others cannot be played with batches.kind={run.batches.kind}; take collect"
        if run.harness.name or run.rewards.per_episode or run.rewards.group:
            yield "seats.others cannot be played with a harness or reward functions: rewards are those of seats"
        if "rival" in self.others and run.placement.ranks > 1:
            yield "seats.others=rival trains in one process: take placement.ranks=1"

    def unused(self, run: Any) -> dict[str, str]:
        return {
            **unless(self.others, "seats.others", "seats", "rotate", "deadline", "opponent"),
            **unless("past" in self.others, "seats.others=past", "seats.past"),
        }
