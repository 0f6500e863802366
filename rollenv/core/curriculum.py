"""Difficulty that adapts to the agent: :class:`Curriculum` lists levels, :class:`Schedule` chooses among them.

A level is a set of constructor arguments of one environment id::

    curriculum = Curriculum.for_env("game:Sokoban-v0-easy")      # or Curriculum(env_id, {"num_boxes": [1, 2, 3]})
    schedule = Schedule(len(curriculum), seed=0)
    for episode in range(1000):
        level = schedule.choose(episode)
        env = curriculum.make(level)
        ...
        schedule.record(level, success)
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from rollenv.core.env import Env
from rollenv.core.errors import UsageError, reads
from rollenv.core.registry import levels_of, spec

Level = Mapping[str, Any]


class Curriculum:
    """The levels of one environment, easy ones first.

    Args:
        levels: a list of constructor arguments, or a mapping from arguments to lists of values (shorter lists repeat
            their last value).

    Raises:
        UnknownEnv: no such id.
        UsageError: no levels, or levels that are not arguments by name.
    """

    def __init__(self, env_id: str, levels: Sequence[Level] | Mapping[str, Sequence[Any]]):
        self.env_id = spec(env_id).id
        self.levels = levels_of(levels, env_id)
        if not self.levels:
            raise UsageError(f"the levels of {env_id} are a list of argument dicts, at least one; got {levels!r}")

    @classmethod
    def for_env(cls, env_id: str) -> Curriculum:
        """Return the levels that the environment was registered with."""
        levels = spec(env_id).levels
        if not levels:
            raise UsageError(f"no levels are registered for {env_id}; pass your own: Curriculum({env_id!r}, [...])")
        return cls(env_id, levels)

    def __len__(self) -> int:
        return len(self.levels)

    def __getitem__(self, level: int) -> dict[str, Any]:
        """The constructor arguments of a level."""
        if not 0 <= level < len(self.levels):
            raise UsageError(f"{self.env_id} has levels 0 to {len(self.levels) - 1}, not {level}")
        return dict(self.levels[level])

    def make(self, level: int, **kwargs: Any) -> Env:
        """Make the environment at a level; ``kwargs`` override the constructor arguments of the level."""
        return spec(self.env_id).make(**{**self[level], **kwargs})


class Schedule:
    """Chooses levels so that the agent neither always wins nor always loses.

    The level rises when the success rate of the last ``window`` episodes at it is at least ``up``, and falls when it is
    at most ``down``. After each move, the new level needs a full window of its own before the next move. A share
    ``review`` of the episodes is drawn from easier levels, against forgetting; their results, and late results of a
    level just left, count in :meth:`rates` but do not move the level.

    Args:
        seed: seed of the draws of :meth:`choose`.
        window: number of recent episodes that decide.
        up, down: success rates, ``0 <= down < up <= 1``.
        review: share of the episodes that replay easier levels, from 0 to less than 1.
    """

    def __init__(
        self,
        levels: int,
        *,
        seed: int = 0,
        window: int = 50,
        up: float = 0.8,
        down: float = 0.2,
        review: float = 0.1,
        start: int = 0,
    ):
        if levels < 1 or window < 1 or not 0 <= start < levels:
            raise UsageError(
                "levels and window must be at least 1, and start must be a level; "
                f"got levels={levels}, window={window}, start={start}"
            )
        if not 0 <= down < up <= 1 or not 0 <= review < 1:
            raise UsageError(
                f"0 <= down < up <= 1 and 0 <= review < 1 must hold; got up={up}, down={down}, review={review}"
            )
        self.seed, self.window, self.up, self.down, self.review = seed, window, up, down, review
        self.level = start
        self._recent: list[deque[bool]] = [deque(maxlen=window) for _ in range(levels)]

    def choose(self, episode: int) -> int:
        """Return the level to play, a function of (seed, episode number, current level)."""
        draw = random.Random(f"{self.seed}/{episode}")  # a string, because it is hashed with SHA-512
        reviews = draw.random() < self.review
        return draw.randrange(self.level) if reviews and self.level else self.level

    def record(self, level: int, success: bool) -> None:
        """Record the outcome of an episode, and change the level if the success rate calls for it."""
        if not 0 <= level < len(self._recent):
            raise UsageError(f"there are levels 0 to {len(self._recent) - 1}, not {level}")
        recent = self._recent[level]
        recent.append(bool(success))
        if level != self.level or len(recent) < self.window:
            return
        rate = sum(recent) / self.window
        if rate >= self.up and level + 1 < len(self._recent):
            self._move_to(level + 1)
        elif rate <= self.down and level > 0:
            self._move_to(level - 1)

    def _move_to(self, level: int) -> None:
        self.level = level
        self._recent[level].clear()

    def rates(self) -> list[float | None]:
        """Return the success rate of the recent episodes of every level; None for a level without any."""
        return [sum(recent) / len(recent) if recent else None for recent in self._recent]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON data."""
        return {"level": self.level, "recent": [[int(s) for s in recent] for recent in self._recent]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the :meth:`state_dict` of a schedule with the same number of levels."""
        with reads("this is not the state of a schedule"):
            level, recent = int(state["level"]), [[bool(s) for s in one] for one in state["recent"]]
        if len(recent) != len(self._recent) or not 0 <= level < len(recent):
            raise UsageError(
                f"the state belongs to a schedule with {len(recent)} levels, at level {level}; "
                f"this one has {len(self._recent)}"
            )
        self.level = level
        self._recent = [deque(one, maxlen=self.window) for one in recent]
