"""A maze with one reward, at its end: the task of benchmarks/algorithms.py.

The prompt is the name of the cell, which is one token. Nothing has to be read, so what is measured is credit alone.
Members of a group come through the same cells again and again.
"""

from __future__ import annotations

import random
import string
from collections.abc import Mapping
from typing import Any

from rollenv.core.registry import ABILITIES, register
from rollenv.envs.game.frozen_lake import STEPS
from rollenv.envs.game.grid import GridGame, Rewards

Cell = tuple[int, int]

#: Names of the cells, row by row: one token each.
NAMES = string.ascii_uppercase + string.ascii_lowercase + string.digits


class Maze(GridGame):
    """Walk from a random cell to the last one of a maze that is always the same: 1 there, 0 everywhere else.

    Args:
        size: rows and columns.
        loops: the share of inner walls that are taken away from a maze without loops.
        layout: the maze, as a seed.
        away: starts are at least so many moves from the goal.
        max_turns: before the episode is lost.
        near: paid at the limit, times the share of the way to the goal that was gone; 0 for a sparse reward.
        memory: how many earlier cells name a state besides the present one, for algorithms that compare states.
    """

    directions = ("left", "down", "right", "up")
    reward_schemes: Mapping[str, Rewards] = {}

    def __init__(
        self,
        size: int = 6,
        loops: float = 0.2,
        layout: int = 0,
        *,
        away: int = 6,
        max_turns: int = 30,
        near: float = 0,
        memory: int = 0,
    ):
        rewards = Rewards(success=1.0, partial=near, invalid=0.0, invalid_ends=False)
        super().__init__(
            max_turns=max_turns, max_actions=None, actions_per_turn=1, action_format="bare", rewards=rewards
        )
        self.size, self.goal = size, (size - 1, size - 1)
        self.doors = carve(size, loops, random.Random(layout))
        self.distance = distances(self.doors, self.goal)
        self.starts = sorted(cell for cell, far in self.distance.items() if away <= far <= max_turns)
        self.cell = self.begun = self.goal
        self.memory, self.way = memory, ""

    def _new_game(self, options: dict[str, Any]) -> None:
        self.cell = self.begun = self.starts[self.randint(len(self.starts))]
        self.way = ""

    def _move(self, direction: int) -> tuple[str, float]:
        after = beside(self.cell, direction)
        self.way += self._suffix()
        if frozenset((self.cell, after)) not in self.doors:
            return "there is a wall", 0.0
        self.cell = after
        return f"you went {self.directions[direction]}", 0.0

    def _outcome(self) -> bool | None:
        return True if self.cell == self.goal else None

    def _share_done(self) -> float:
        return max(0.0, 1 - self.distance[self.cell] / self.distance[self.begun])

    def _suffix(self) -> str:
        return NAMES[self.cell[0] * self.size + self.cell[1]]

    def _instructions(self) -> str:
        return f"Find the way out of the maze. {self._how_to_answer()}"

    def oracle_action(self) -> str:
        ways = [(self.distance[beside(self.cell, d)], d) for d in range(4) if self._open(d)]
        return self.directions[min(ways)[1]]

    def _open(self, direction: int) -> bool:
        return frozenset((self.cell, beside(self.cell, direction))) in self.doors

    def state_key(self) -> str:
        return self.way[len(self.way) - self.memory :] + self._suffix()

    def _get_state(self) -> dict[str, Any]:
        return super()._get_state() | {"cell": list(self.cell), "begun": list(self.begun), "way": self.way}

    def _set_state(self, state: dict[str, Any]) -> None:
        super()._set_state(state)
        self.cell, self.begun = (tuple(state[name]) for name in ("cell", "begun"))
        self.way = state["way"]


def beside(cell: Cell, direction: int) -> Cell:
    """The cell one step away, inside or not."""
    return cell[0] + STEPS[direction][0], cell[1] + STEPS[direction][1]


def carve(size: int, loops: float, rng: random.Random) -> set[frozenset[Cell]]:
    """The pairs of cells without a wall between them: a random spanning tree, and a share of the other pairs."""
    cells = [(row, column) for row in range(size) for column in range(size)]
    pairs = [frozenset((cell, beside(cell, d))) for cell in cells for d in (1, 2) if beside(cell, d) in cells]
    rng.shuffle(pairs)
    area = {cell: cell for cell in cells}
    doors: set[frozenset[Cell]] = set()
    for one, other in map(sorted, pairs):
        if area[one] != area[other]:
            doors.add(frozenset((one, other)))
            area = {cell: area[one] if of == area[other] else of for cell, of in area.items()}
    return doors | {pair for pair in pairs if pair not in doors and rng.random() < loops}


def distances(doors: set[frozenset[Cell]], goal: Cell) -> dict[Cell, int]:
    """Moves to the goal from every cell."""
    found, queue = {goal: 0}, [goal]
    for cell in queue:
        for after in (beside(cell, d) for d in range(4)):
            if after not in found and frozenset((cell, after)) in doors:
                found[after] = found[cell] + 1
                queue.append(after)
    return found


register("bench:Maze-v0", Maze, abilities=ABILITIES)
