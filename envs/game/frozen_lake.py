"""FrozenLake as RAGEN and ROLL play it: a random map, a random start and goal, described as text."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from typing import Any

from rollenv.core.errors import EpisodeOver, UsageError
from rollenv.envs import pictures
from rollenv.envs.game.grid import GridGame, Rewards, same_if_turned

LEGEND = "P is you, _ is ice, O a hole, G the goal, X you in a hole, √ you on the goal"

#: Row and column steps of :attr:`FrozenLake.directions`; the neighbours of a direction are its two sideways ones.
STEPS = ((0, -1), (1, 0), (0, 1), (-1, 0))


class FrozenLake(GridGame):
    """Reach the goal without falling into a hole. If the ice does not slip, it can be reached within the limit.

    Args:
        frozen: probability of a cell to be ice rather than a hole.
        success_rate: on slippery ice, the probability of the intended direction; the rest is split between both sides.
        rewards: ``ragen`` (1 at the goal, -0.1 for a malformed action), ``roll`` (-0.01 for one) or ``gem``
            (it ends the episode with -0.1).
    """

    picture = staticmethod(pictures.frozen_lake)
    picture_words = pictures.LAKE_WORDS
    directions = ("left", "down", "right", "up")
    reward_schemes = {
        "gem": Rewards(),
        "ragen": Rewards(invalid_ends=False),
        "roll": Rewards(invalid=-0.01, invalid_ends=False),
    }

    def __init__(
        self,
        size: int = 4,
        frozen: float = 0.8,
        is_slippery: bool = True,
        success_rate: float = 1 / 3,
        *,
        max_turns: int = 5,
        max_actions: int | None = 10,
        actions_per_turn: int = 5,
        action_format: str = "answer",
        rewards: str | Rewards | Mapping[str, Any] = "ragen",
    ):
        super().__init__(
            max_turns=max_turns,
            max_actions=max_actions,
            actions_per_turn=actions_per_turn,
            action_format=action_format,
            rewards=rewards,
        )
        if size < 2 or not 0 < frozen <= 1 or not 0 <= success_rate <= 1:
            raise UsageError(
                f"size must be at least 2, frozen in (0, 1] and success_rate in [0, 1]; "
                f"got size={size}, frozen={frozen}, success_rate={success_rate}"
            )
        self.size, self.frozen = size, frozen
        self.success_rate = success_rate if is_slippery else 1.0
        self.holes: frozenset[int] = frozenset()
        self.goal = self.player = 0

    def _new_game(self, options: dict[str, Any]) -> None:
        cells = self.size * self.size
        while True:
            start, goal = self.randint(cells), self.randint(cells)
            holes = frozenset(
                c for c in range(cells) if self.np_random.random() >= self.frozen and c not in (start, goal)
            )
            if 0 < self._distance(start, goal, holes) <= self.move_limit:
                break
        self.player, self.goal, self.holes = start, goal, holes

    def _distance(self, start: int, goal: int, holes: frozenset[int]) -> int:
        """Return the number of moves from start to goal around the holes; -1 if there is no path."""
        distance = {start: 0}
        queue = [start]
        for cell in queue:
            if cell == goal:
                return distance[cell]
            for direction in range(4):
                after = neighbour(self.size, cell, direction)
                if after not in distance and after not in holes:
                    distance[after] = distance[cell] + 1
                    queue.append(after)
        return -1

    def _move(self, direction: int) -> tuple[str, float]:
        meant = direction
        if self.success_rate < 1:
            draw = self.np_random.random()
            if draw >= self.success_rate:
                left = draw < (1 + self.success_rate) / 2
                direction = (direction + (-1 if left else 1)) % 4
        before, self.player = self.player, neighbour(self.size, self.player, direction)
        name = self.directions[direction]
        if self.player in self.holes:
            return f"you fell into a hole going {name}", 0.0
        if self.player == before:
            return f"the border stopped you going {name}", 0.0
        return (f"you went {name}" if direction == meant else f"you slipped {name}"), 0.0

    def _outcome(self) -> bool | None:
        if self.player == self.goal:
            return True
        return False if self.player in self.holes else None

    def _suffix(self) -> str:
        return f"The lake now:\n{self.render()}\n"

    def _instructions(self) -> str:
        ice = "The ice is slippery: you may slide sideways. " if self.success_rate < 1 else ""
        return f"This is FrozenLake: walk over the ice to the goal. {ice}{LEGEND}.\n{self._how_to_answer()}"

    def render(self) -> str:
        cells = ["O" if c in self.holes else "_" for c in range(self.size * self.size)]
        cells[self.goal] = "G"
        cells[self.player] = {"G": "√", "O": "X"}.get(cells[self.player], "P")
        return "\n".join(" ".join(cells[r : r + self.size]) for r in range(0, len(cells), self.size))

    # -- abilities ---------------------------------------------------------------------------------------------------

    def oracle_action(self) -> str:
        """Return the move with the highest probability of reaching the goal in the remaining moves (value iteration).

        Among equal moves it is the one with which the goal is reached sooner. If more moves than turns are left, the
        action holds several; each is the best for where those before it may have led.
        """
        if self._rollenv_over:
            raise EpisodeOver(f"{self}: the episode is over; there is no next action")
        turns = self.max_turns - self.turn
        moves = min(self.move_limit - self.actions, turns * self.actions_per_turn)
        names, cells = [], {self.player: 1.0}
        for left in range(moves, moves - -(-moves // turns), -1):
            direction = self._best_direction(cells, left - 1)
            names.append(self.directions[direction])
            cells = self._after(cells, direction)
            if not cells:
                break
        return self.format_action(*names)

    def _best_direction(self, cells: Mapping[int, float], then: int) -> int:
        """Return the best direction of a move with ``then`` moves after it; of equal ones, the best with fewer moves.

        Without the second rule an expert with moves to spare would wait at the border.

        Args:
            cells: probabilities of where the player is.
        """
        best = [0, 1, 2, 3]
        for values in reversed(best_chances(self.size, self.holes, self.goal, self.success_rate, then)):
            chances = [
                round(sum(p * _chance(self.size, cell, d, self.success_rate, values) for cell, p in cells.items()), 12)
                for d in best
            ]
            best = [d for d, chance in zip(best, chances, strict=True) if chance == max(chances)]
            if len(best) == 1:
                break
        return best[0]

    def _after(self, cells: Mapping[int, float], direction: int) -> dict[int, float]:
        """Return the probabilities of where the player is after a move, apart from the ends of the episode."""
        after: dict[int, float] = {}
        for cell, p in cells.items():
            for share, d in _slides(direction, self.success_rate):
                to = neighbour(self.size, cell, d)
                if share and to != self.goal and to not in self.holes:
                    after[to] = after.get(to, 0.0) + p * share
        return after

    def state_key(self) -> str:
        return self.render()

    def alike_key(self) -> str:
        return same_if_turned([line.split() for line in self.render().splitlines()])

    def _get_state(self) -> dict[str, Any]:
        return super()._get_state() | {"player": self.player, "goal": self.goal, "holes": sorted(self.holes)}

    def _set_state(self, state: dict[str, Any]) -> None:
        super()._set_state(state)
        self.player, self.goal, self.holes = state["player"], state["goal"], frozenset(state["holes"])


def neighbour(size: int, cell: int, direction: int) -> int:
    """Return the index of the cell one step away, in a direction of :data:`STEPS`; at the edge, the same cell."""
    row, column = divmod(cell, size)
    row, column = row + STEPS[direction][0], column + STEPS[direction][1]
    return row * size + column if 0 <= row < size and 0 <= column < size else cell


def _chance(size: int, cell: int, direction: int, success_rate: float, values: tuple[float, ...]) -> float:
    """Return the expected value of a move that slides to either side with half of the remaining probability."""
    return sum(share * values[neighbour(size, cell, d)] for share, d in _slides(direction, success_rate))


def _slides(direction: int, success_rate: float) -> tuple[tuple[float, int], ...]:
    """Return where a move goes, with probabilities."""
    aside = (1 - success_rate) / 2
    return (success_rate, direction), (aside, (direction - 1) % 4), (aside, (direction + 1) % 4)


def best_chances(
    size: int, holes: frozenset[int], goal: int, success_rate: float, moves: int
) -> list[tuple[float, ...]]:
    """Compute the probability of reaching the goal under the best policy, by value iteration.

    Returns:
        For 0, 1, ... ``moves`` moves, or up to the number from which on nothing changes, a probability for each of
        the ``size * size`` cells.
    """
    table, lock = _table(size, holes, goal, success_rate)
    with lock:
        while len(table) <= moves and (len(table) < 2 or table[-1] != table[-2]):  # until it converges
            values = table[-1]
            table.append(
                tuple(
                    values[cell]
                    if cell == goal or cell in holes
                    else max(_chance(size, cell, direction, success_rate, values) for direction in range(4))
                    for cell in range(size * size)
                )
            )
        return table[: moves + 1]


@functools.lru_cache(maxsize=256)
def _table(
    size: int, holes: frozenset[int], goal: int, success_rate: float
) -> tuple[list[tuple[float, ...]], threading.Lock]:
    """Return the probabilities by the number of moves left, as far as computed, and the lock for extending them."""
    return [tuple(float(cell == goal) for cell in range(size * size))], threading.Lock()
