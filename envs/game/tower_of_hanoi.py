"""The Tower of Hanoi."""

from __future__ import annotations

import functools
import re
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.envs import pictures
from rollenv.envs.game.base import TextGame, box, turns

PEGS = "ABC"
_MOVE = re.compile(r"([ABC])\s*(?:,\s*)?([ABC])")
#: The usual moves as (from, to); a lookup is faster than the pattern.
_MOVES = {f"{a} {b}": (i, j) for i, a in enumerate(PEGS) for j, b in enumerate(PEGS)}
_ACTIONS = tuple(box(f"{a} {b}") for a in PEGS for b in PEGS if a != b)


class TowerofHanoi(TextGame):
    """Move all disks from peg A to peg C, one at a time, never a larger one onto a smaller one.

    Pays 1 when solved, and at the turn limit the share of disks on C.

    Args:
        num_disks: disks, 1 to 20; a solution takes 2 ** num_disks - 1 turns.
    """

    picture = staticmethod(pictures.hanoi)
    size_names = ("num_disks", "max_turns")
    random_sizes = ((3, 10), (4, 20), (5, 35))
    state_names = ("where",)

    num_disks: int

    def __init__(self, num_disks: int | None = 4, max_turns: int | None = 20):
        super().__init__(num_disks=num_disks, max_turns=max_turns)
        #: The peg of every disk, smallest first.
        self.where: list[int] = []

    def _resized(self) -> None:
        if not 1 <= self.num_disks <= 20:
            raise UsageError(f"num_disks must be 1 to 20, got {self.num_disks}")
        self._prompt = _instructions(self.num_disks, self.max_turns)

    def _new_game(self) -> None:
        self.where = [0] * self.num_disks

    def _parse(self, text: str) -> Any:
        if move := _MOVES.get(text):
            return move
        found = _MOVE.fullmatch(text.upper())
        return (PEGS.index(found[1]), PEGS.index(found[2])) if found else None

    def _play(self, move: tuple[int, int]) -> tuple[str, float, bool | None]:
        start, end = move
        if start == end:
            return "a disk must move to another peg.", 0.0, None
        where = self.where
        if start not in where:
            return f"peg {PEGS[start]} is empty.", 0.0, None
        disk = where.index(start)
        if end in where[:disk]:
            return f"disk {disk + 1} cannot go on the smaller disk on peg {PEGS[end]}.", 0.0, None
        where[disk] = end
        feedback = f"disk {disk + 1} moved from {PEGS[start]} to {PEGS[end]}"
        if where.count(2) == self.num_disks:
            return f"{feedback}, and all disks are on C.", 1.0, True
        return f"{feedback}.", 0.0, None

    def _late_reward(self) -> float:
        return self.where.count(2) / self.num_disks

    def _suffix(self) -> str:
        return f"The pegs now, from bottom to top:\n{self.render()}"

    def render(self) -> str:
        return _draw(tuple(self.where))

    def _next_move(self) -> str:
        """Return the next move of the shortest solution."""
        goal, move = 2, ""
        for peg in reversed(self.where):
            if peg != goal:
                move = f"{PEGS[peg]} {PEGS[goal]}"
                goal = 3 - peg - goal  # the smaller disks must move out of the way
        return move

    def sample_random_action(self) -> str:
        return self._pick(_ACTIONS)


@functools.lru_cache(maxsize=4096)
def _draw(where: tuple[int, ...]) -> str:
    disks = range(len(where) - 1, -1, -1)
    return "\n".join(f"{name}:" + "".join(f" {d + 1}" for d in disks if where[d] == i) for i, name in enumerate(PEGS))


@functools.lru_cache(maxsize=64)
def _instructions(n: int, limit: int) -> str:
    return (
        f"This is the Tower of Hanoi with {n} disks on peg A; disk 1 is the smallest, disk {n} the largest. Move all "
        f"of them to peg C within {turns(limit)}.\n"
        "Answer with the peg to take from and the peg to put on, as in \\boxed{A C}.\n"
        "One disk moves at a time, from the top of a peg, and never onto a smaller one."
    )
