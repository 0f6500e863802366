"""Sudoku: fill a square so that no row, column or block repeats a digit."""

from __future__ import annotations

import functools
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.envs import pictures
from rollenv.envs.game.base import TextGame, numbers, turns
from rollenv.envs.game.sudoku_square import MOST_EMPTY, square_of


class Sudoku(TextGame):
    """Fill the empty cells of a puzzle that has exactly one solution.

    Only right digits are entered, as in GEM. Pays for every one its share of the empty cells.

    Every puzzle can be solved by steps that each need one rule: a cell has one digit left, or a digit has one cell left
    in a row, column or block. The oracle takes such steps.

    Args:
        clues: the number of cells to fill (GEM's name for it), 50 at most of a 9x9 and 10 of a 4x4.
        scale: 4 or 9 rows, columns and digits.
    """

    picture = staticmethod(pictures.sudoku)
    picture_words = pictures.SUDOKU_WORDS
    size_names = ("clues", "max_turns", "scale")
    random_sizes = ((10, 15, 4), (50, 50, 9))
    state_names = ("grid", "solution", "left")

    clues: int
    scale: int

    def __init__(self, clues: int | None = 30, max_turns: int | None = 40, scale: int | None = 9):
        super().__init__(clues=clues, max_turns=max_turns, scale=scale)
        #: Digits row by row, 0 for an empty cell.
        self.grid: list[int] = []
        self.solution: list[int] = []
        #: The number of empty cells.
        self.left = 0
        self.board_text = ""

    def _resized(self) -> None:
        if self.scale not in MOST_EMPTY or not 1 <= self.clues <= MOST_EMPTY[self.scale]:
            most = ", ".join(f"scale={scale} with clues from 1 to {n}" for scale, n in MOST_EMPTY.items())
            raise UsageError(f"Sudoku has {most}; got scale={self.scale}, clues={self.clues}")
        self._square = square_of(self.scale)
        self._prompt = _instructions(self.scale, self.max_turns)

    def _new_game(self) -> None:
        self.solution = self._square.fill(self.np_random)
        self.grid, self.left = self._square.dig(self.solution, self.clues, self.np_random), self.clues
        self.board_text = self._square.draw(self.grid)

    def _restored(self) -> None:
        self.board_text = self._square.draw(self.grid)

    def _parse(self, text: str) -> Any:
        return self._square.moves.get(text) or self._parse_slowly(text)

    def _parse_slowly(self, text: str) -> tuple[int, int] | None:
        found = numbers(text, 3)
        if found is None:
            return None
        row, col, digit = found
        inside = min(found) >= 1 and max(found) <= self.scale
        return ((row - 1) * self.scale + col - 1, digit) if inside else (-1, 0)

    def _play(self, move: tuple[int, int]) -> tuple[str, float, bool | None]:
        cell, digit = move
        if cell < 0:
            return f"row, column and digit are 1 to {self.scale}.", 0.0, None
        name, grid = self._square.names[cell], self.grid
        if grid[cell]:
            return f"{name} is filled.", 0.0, None
        if self.solution[cell] != digit:
            if any(grid[peer] == digit for peer in self._square.peers[cell]):
                return f"{digit} is in the row, column or block of {name} already.", 0.0, None
            return f"{digit} is wrong at {name}.", 0.0, None
        grid[cell] = digit
        self.left -= 1
        at = self._square.offsets[cell]
        self.board_text = f"{self.board_text[:at]}{digit}{self.board_text[at + 1 :]}"
        if not self.left:
            return f"{digit} at {name} completes the puzzle.", 1 / self.clues, True
        return f"{digit} is right at {name}.", 1 / self.clues, None

    def _suffix(self) -> str:
        return f"The puzzle now:\n{self.board_text}"

    def render(self) -> str:
        return self.board_text

    def _next_move(self) -> str:
        """Return a cell whose digit follows by one rule; if there is none (foreign positions), the first empty cell."""
        empty = [cell for cell, digit in enumerate(self.grid) if not digit]
        cell = next((c for c in empty if self._square.follows(self.grid, c, self.solution[c])), empty[0])
        row, col = divmod(cell, self.scale)
        return f"{row + 1} {col + 1} {self.solution[cell]}"

    def sample_random_action(self) -> str:
        return self._pick(self._square.actions)


@functools.lru_cache(maxsize=64)
def _instructions(scale: int, limit: int) -> str:
    return (
        f"This is Sudoku with the digits 1 to {scale}. Rows and columns are numbered from 1 to {scale}, . is an empty "
        "cell. Fill every empty cell so that no row, no column and no block contains a digit twice; the digits that "
        f"are there stay.\nAnswer with row, column and digit, as in \\boxed{{1 2 3}}.\nThere is exactly one solution; "
        f"only its digits are entered, and each try takes one of {turns(limit)}."
    )
