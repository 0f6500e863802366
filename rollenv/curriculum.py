"""Difficulty that follows the agent: :class:`Curriculum` lists levels, :class:`Schedule` moves along them.

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

from rollenv.core import Env, UsageError
from rollenv.registry import spec

Level = Mapping[str, Any]


def _levels(**values: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """One level for each position; a list that is too short stays at its last value."""
    return tuple(
        {name: given[min(i, len(given) - 1)] for name, given in values.items()}
        for i in range(max(map(len, values.values())))
    )


_SOKOBAN = _levels(
    dim_room=[(6, 6), (6, 6), (6, 6), (7, 7), (8, 8), (8, 8)],
    num_boxes=[1, 1, 2, 2, 3, 4],
    min_moves=[1, 5, 1, 8, 8, 10],
    max_turns=[15, 20, 25, 35, 50, 50],
)
_FROZEN_LAKE = _levels(size=[3, 4, 5, 6], max_actions=[8, 10, 14, 18], max_turns=[8, 10, 14, 18])
_RG = _levels(level=range(4))

#: The bundled ladders by the start of an id; the longest start that fits counts.
LADDERS: dict[str, tuple[dict[str, Any], ...]] = {
    "game:Sokoban-": _SOKOBAN,
    "ragen:Sokoban": _levels(
        dim_room=[(6, 6), (6, 6), (7, 7), (8, 8)],
        num_boxes=[1, 1, 1, 2],
        min_moves=[1, 4, 4, 6],
        max_actions=[10, 10, 15, 25],
        max_turns=[5, 5, 5, 5],
    ),
    "roll:Sokoban": _levels(
        dim_room=[(6, 6), (6, 6), (7, 7), (8, 8)],
        num_boxes=[1, 1, 1, 2],
        min_moves=[1, 4, 4, 6],
        max_actions=[10, 10, 15, 25],
        max_turns=[10, 10, 15, 25],
    ),
    "ragen:FrozenLake": _FROZEN_LAKE,
    "roll:FrozenLake": _FROZEN_LAKE,
    "game:GuessTheNumber-": _levels(min_number=[1], max_number=[5, 10, 20, 50, 100], max_turns=[4, 5, 6, 7, 8]),
    "game:Mastermind-": _levels(code_length=[2, 2, 3, 4], num_numbers=[4, 6, 6, 8], max_turns=[10, 10, 20, 30]),
    "game:Minesweeper-": _levels(
        rows=[4, 5, 6, 8], cols=[4, 5, 6, 8], num_mines=[2, 5, 6, 12], max_turns=[16, 25, 36, 64]
    ),
    "game:FifteenPuzzle-": _levels(num_rows=[2, 3, 4], max_turns=[10, 20, 50]),
    "game:TowerofHanoi-": _levels(num_disks=[2, 3, 4, 5], max_turns=[6, 10, 20, 35]),
    "game:Hangman-": _levels(word_length=[3, 5, 7], max_turns=[10, 15, 20]),
    "game:Wordle-": _levels(word_length=[3, 4, 5], max_turns=[15, 20, 25]),
    "game:Game2048-": _levels(target_tile=[16, 32, 64, 128, 256], max_turns=[20, 30, 50, 100, 200]),
    "math:Arithmetic-": _levels(
        terms=[(2, 2), (2, 3), (3, 5), (4, 8)],
        operands=[(0, 9), (0, 9), (0, 99), (0, 999)],
        operators=["+-", "+-", "+-*", "+-*"],
    ),
    "tool:Calculator-": _levels(
        terms=[(2, 2), (2, 3), (3, 5), (4, 8)], operands=[(0, 99), (100, 9_999), (100, 99_999), (1_000, 999_999)]
    ),
    "gym:FrozenLake": _levels(
        map_name=["4x4", "4x4", "8x8", "8x8"], is_slippery=[False, True, False, True], max_turns=[20, 100, 40, 200]
    ),
    "gym:CartPole": _levels(max_turns=[50, 100, 200, 500]),
    "rg:": _RG,
    # where reasoning-gym's own curriculum has levels that its data set refuses, or none at all
    "rg:acre": (),
    "rg:caesar_cipher": _RG[:2],
    "rg:composite": (),
    "rg:gsm_symbolic": (),
    "rg:jugs": _RG[:2],
    "rg:knight_swap": _levels(min_nodes=[6], max_nodes=[6, 8, 9], min_pieces=[2], max_pieces=[2]),
    "rg:list_functions": (),
    "rg:modulo_grid": _levels(level=[0, 2, 3, 4, 5]),
    "rg:survo": _RG[:2],
    "multi:Nim-": _levels(num_piles=[1, 2, 3, 4], max_pile=[8, 6, 7, 9], max_take=[2, 3, 3, 4]),
}


class Curriculum:
    """The levels of one environment, easy ones first.

    Args:
        env_id: a registered id.
        levels: constructor arguments for each level, or for each argument its values along the levels (a list that is
            shorter than the longest stays at its last value).

    Raises:
        UnknownEnv: no such id.
        UsageError: no levels, or levels that are not arguments by name.
    """

    def __init__(self, env_id: str, levels: Sequence[Level] | Mapping[str, Sequence[Any]]):
        self.env_id = spec(env_id).id
        if isinstance(levels, Mapping):
            for name, values in levels.items():
                if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                    raise UsageError(f"the levels of {env_id}: {name!r} needs a list of values, got {values!r}")
            levels = _levels(**levels) if levels else ()
        if not levels or not all(isinstance(level, Mapping) for level in levels):
            raise UsageError(f"the levels of {env_id} are a list of argument dicts, at least one; got {levels!r}")
        self.levels: tuple[dict[str, Any], ...] = tuple(dict(level) for level in levels)

    @classmethod
    def for_env(cls, env_id: str) -> Curriculum:
        """The bundled levels.

        Raises:
            UsageError: if there are none for this id.
        """
        known = max((start for start in LADDERS if env_id.startswith(start)), key=len, default=None)
        spec(env_id)
        if known is None or not LADDERS[known]:
            raise UsageError(f"no levels are bundled for {env_id}; pass your own: Curriculum({env_id!r}, [...])")
        return cls(env_id, LADDERS[known])

    def __len__(self) -> int:
        return len(self.levels)

    def __getitem__(self, level: int) -> dict[str, Any]:
        """The constructor arguments of a level."""
        if not 0 <= level < len(self.levels):
            raise UsageError(f"{self.env_id} has the levels 0 to {len(self.levels) - 1}, not {level}")
        return dict(self.levels[level])

    def make(self, level: int, **kwargs: Any) -> Env:
        """The environment at a level; ``kwargs`` override the level's."""
        return spec(self.env_id).make(**{**self[level], **kwargs})


class Schedule:
    """Chooses levels so that the agent neither always wins nor always loses.

    The level rises when, of the last ``window`` episodes at it, at least a share ``up`` succeeded, and falls when at
    most ``down`` did. After every move the new level needs a full window of its own before the next one, so that luck
    does not make it swing. A share ``review`` of the episodes is drawn from the levels below, against forgetting; what
    happens there, or arrives late from a level just left, counts in :meth:`rates` but does not move the level.

    Args:
        levels: how many there are.
        seed: of the draws of :meth:`choose`.
        window: episodes that a decision looks back on.
        up, down: success rates, ``0 <= down < up <= 1``.
        review: the share of episodes at earlier levels, from 0 to less than 1.
        start: the first level.

    Raises:
        UsageError: for arguments outside these ranges.
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
                "levels and window are at least 1, and start is a level; "
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
        """The level to play, a function of (seed, episode number, current level)."""
        draw = random.Random(f"{self.seed}/{episode}")  # a string, as it is hashed with SHA-512 and not added up
        reviews = draw.random() < self.review
        return draw.randrange(self.level) if reviews and self.level else self.level

    def record(self, level: int, success: bool) -> None:
        """Tell the outcome of an episode that was played at ``level``."""
        if not 0 <= level < len(self._recent):
            raise UsageError(f"there are the levels 0 to {len(self._recent) - 1}, not {level}")
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
        """For every level, the success rate of its last episodes; None where none was recorded."""
        return [sum(recent) / len(recent) if recent else None for recent in self._recent]

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs, as JSON data."""
        return {"level": self.level, "recent": [[int(s) for s in recent] for recent in self._recent]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a :meth:`state_dict` of a schedule with as many levels.

        Raises:
            UsageError: if the state is not one.
        """
        try:
            level, recent = int(state["level"]), [[bool(s) for s in one] for one in state["recent"]]
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"this is not the state of a schedule: {error!r}") from error
        if len(recent) != len(self._recent) or not 0 <= level < len(recent):
            raise UsageError(
                f"the state is of a schedule with {len(recent)} levels, at level {level}; "
                f"this one has {len(self._recent)}"
            )
        self.level = level
        self._recent = [deque(one, maxlen=self.window) for one in recent]
