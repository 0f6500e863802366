"""What an agent is: something that starts a :class:`Session` for every episode and is asked for one action a turn."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Protocol

from rollenv.core import Env, Unsolvable


@dataclass(slots=True)
class Action:
    """What an agent said in one turn. Agents without tokens leave the rest empty."""

    text: str
    prompt_ids: tuple[int, ...] = ()
    response_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Log-probability of each response token under the distribution it was drawn from."""
    policy_version: int = 0


class Session(Protocol):
    """An agent in one episode."""

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        """The next action, given what the environment returned last."""
        ...


class Agent(Protocol):
    """Starts sessions; may share a model between them."""

    def start(self, env: Env, seed: int) -> Session:
        """A session for the episode about to be played in ``env``; every draw it makes follows ``seed``."""
        ...


class RandomAgent:
    """Plays the environment's own random actions."""

    def start(self, env: Env, seed: int) -> Session:
        return _Random(env)


class OracleAgent:
    """Plays the expert's actions; of these the share ``noise`` is replaced by random ones."""

    def __init__(self, noise: float = 0.0):
        self.noise = noise

    def start(self, env: Env, seed: int) -> Session:
        return _Oracle(env, self.noise, random.Random(seed))


@dataclass(slots=True)
class _Random:
    env: Env

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        return Action(self.env.sample_random_action())


@dataclass(slots=True)
class _Oracle:
    env: Env
    noise: float
    rng: random.Random

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        return Action(noisy_expert(self.env, self.noise, self.rng) or self.env.sample_random_action())


def noisy_expert(env: Env, noise: float, rng: random.Random) -> str | None:
    """The expert's action, or with probability ``noise`` a random one; None where the expert sees no way to finish."""
    if noise and rng.random() < noise:
        return env.sample_random_action()
    try:
        return env.oracle_action()
    except Unsolvable:
        return None
