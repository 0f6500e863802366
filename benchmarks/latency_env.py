"""An environment that takes its time: what it says follows from seed and actions, how long it takes does not."""

from __future__ import annotations

import hashlib
import random
import time
from typing import Any

import rollenv

ID = "bench:Latency-v0"


class Latency(rollenv.Env):
    """A chain of hashes over seed and actions.

    Args:
        turns: the length of an episode.
        mu: mean seconds of a turn; times are max(0, N(mu, sigma)).
        sigma: their standard deviation.
        slow: the share of turns that take 20 times as long.
        stop: the share of episodes in which a turn never ends.
    """

    def __init__(
        self, turns: int = 5, mu: float = 0.1, sigma: float = 0.05, slow: float = 0.0, stop: float = 0.0
    ) -> None:
        self.turns, self.mu, self.sigma, self.slow, self.stop = turns, mu, sigma, slow, stop
        self._clock = random.SystemRandom()

    def _reset(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self.turn = 0
        self.chain = f"{self.np_random.random():.15f}"
        self.stops_at = self._clock.randrange(self.turns) if self._clock.random() < self.stop else -1
        return self.chain, {}

    def _step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.turn == self.stops_at:
            time.sleep(1e6)
        seconds = max(0.0, self._clock.gauss(self.mu, self.sigma))
        time.sleep(seconds * 20 if self._clock.random() < self.slow else seconds)
        self.turn += 1
        self.chain = hashlib.sha256(f"{self.chain} {action}".encode()).hexdigest()
        over = self.turn == self.turns
        return self.chain, 1.0, over, False, {"success": True} if over else {}


def register() -> None:
    """Make it known."""
    rollenv.register(ID, "latency_env:Latency")


def checked(trajectory: Any) -> str:
    """The checksum that the trajectory ends with; AssertionError if its turns do not lead to it."""
    chain = trajectory.turns[0].observation
    env = Latency()
    assert env.reset(trajectory.task.seed)[0] == chain, "another task's episode"
    for turn in trajectory.turns:
        assert turn.observation == chain, "a turn of another episode"
        chain = hashlib.sha256(f"{chain} {turn.text}".encode()).hexdigest()
    assert trajectory.final_observation == chain
    return chain
