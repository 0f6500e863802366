"""Minesweeper: reveal every cell without a mine."""

from __future__ import annotations

import functools
from typing import Any

from rollenv.core.errors import Unsolvable, UsageError
from rollenv.envs import pictures
from rollenv.envs.game.base import TextGame, box, numbers, turns

VERBS = ("reveal", "flag")


class Minesweeper(TextGame):
    """Reveal all safe cells. The first reveal never hits a mine, and has no mine beside it if the board has room.

    Pays for every safe cell that comes to light its share of them; a mine ends the episode. A flag keeps its cell
    hidden, whether the cell itself is revealed or others around it are.

    The oracle deduces what single numbers allow; where they allow nothing it looks at the hidden mines.
    """

    picture = staticmethod(pictures.minesweeper)
    picture_words = pictures.MINES_WORDS
    size_names = ("rows", "cols", "num_mines", "max_turns")
    random_sizes = [(n, n, n * n // 5, n * n) for n in range(5, 9)]
    state_names = ("mines", "open", "flagged")

    rows: int
    cols: int
    num_mines: int

    def __init__(
        self, rows: int | None = 8, cols: int | None = 8, num_mines: int | None = 10, max_turns: int | None = 100
    ):
        super().__init__(rows=rows, cols=cols, num_mines=num_mines, max_turns=max_turns)
        #: Bit masks of cells, cell ``row * cols + col``; the mines are laid at the first reveal.
        self.mines = self.open = self.flagged = 0
        self.board_text = ""

    def _resized(self) -> None:
        if not (0 < self.rows <= 99 and 0 < self.cols <= 99 and 0 < self.num_mines < self.rows * self.cols):
            raise UsageError(
                "a board needs 1 to 99 rows and cols, at least one mine and one safe cell; "
                f"got rows={self.rows}, cols={self.cols}, num_mines={self.num_mines}"
            )
        self.tables = grid_of(self.rows, self.cols)

    def _instructions(self) -> str:
        return (
            f"This is Minesweeper on {self.rows} rows and {self.cols} columns, counted from 0, with {self.num_mines} "
            f"mines. Reveal every cell without a mine within {turns(self.max_turns)}; a revealed mine ends the game, "
            "but the first cell is safe.\n"
            "Answer with \\boxed{reveal ROW COLUMN} to reveal a cell, as in \\boxed{reveal 1 2}, or with "
            "\\boxed{flag ROW COLUMN} to set or remove a flag, as in \\boxed{flag 3 0}.\n"
            "On the board . is a hidden cell, F a flag, and a number counts the mines in the up to 8 cells around it. "
            "Cells that are revealed or flagged cannot be revealed."
        )

    def _new_game(self) -> None:
        self.mines = self.open = self.flagged = 0
        self.board_text = self.tables.blank

    def _parse(self, text: str) -> Any:
        return self.tables.moves.get(text) or self._parse_slowly(text)

    def _parse_slowly(self, text: str) -> tuple[str, int] | None:
        verb, *cell = text.replace(",", " ").split(None, 3) or [""]
        found = numbers(" ".join(cell), 2)
        if found is None or not (verb.isascii() and verb.isalpha()):
            return None
        row, col = found
        return verb.lower(), row * self.cols + col if 0 <= row < self.rows and 0 <= col < self.cols else -1

    def _play(self, move: tuple[str, int]) -> tuple[str, float, bool | None]:
        what, cell = move
        if cell < 0:
            return "this cell is outside the board.", 0.0, None
        if what not in VERBS:
            return f"you can {' or '.join(VERBS)} a cell, nothing else.", 0.0, None
        bit, name = 1 << cell, self.tables.names[cell]
        if self.open & bit:
            return f"cell {name} was revealed before.", 0.0, None
        if what == "flag":
            self.flagged ^= bit
            self._draw(bit)
            return f"you {'set a flag on' if self.flagged & bit else 'took the flag from'} cell {name}.", 0.0, None
        if self.flagged & bit:
            return f"cell {name} has a flag; remove it to reveal the cell.", 0.0, None
        grid = self.tables
        if not self.mines:
            self.mines = self._lay_mines(cell)
        if self.mines >> cell & 1:
            return f"cell {name} held a mine.", 0.0, False
        new = grid.opened_from(cell, self.mines, shut=self.open | self.flagged)
        self.open |= new
        self._draw(new)
        reward = new.bit_count() / (grid.size - self.num_mines)
        if self.open | self.mines == grid.full:
            return f"you revealed {name}, the last safe cell.", reward, True
        return f"you revealed cell {name}.", reward, None

    def _lay_mines(self, first: int) -> int:
        free = self.tables.full & ~self.tables.around[first] & ~(1 << first)
        if free.bit_count() < self.num_mines:
            free = self.tables.full & ~(1 << first)
        mines, n = 0, self.tables.size
        while mines.bit_count() < self.num_mines:
            mines |= 1 << self.randint(n) & free
        return mines

    def _draw(self, cells: int) -> None:
        """Update the text of some cells."""
        chars, grid, mines = list(self.board_text), self.tables, self.mines
        while cells:
            low = cells & -cells
            cells ^= low
            cell = low.bit_length() - 1
            if self.open & low:
                symbol = str((mines & grid.around[cell]).bit_count())
            else:
                symbol = "F" if self.flagged & low else "."
            chars[grid.offsets[cell]] = symbol
        self.board_text = "".join(chars)

    def _restored(self) -> None:
        self.board_text = self.tables.blank
        self._draw(self.open | self.flagged)

    def _suffix(self) -> str:
        return f"The board now:\n{self.board_text}"

    def render(self) -> str:
        return self.board_text

    def _next_move(self) -> str:
        safe = (self._deduce_safe() if self.mines else 0) or self.tables.full & ~self.open & ~self.mines
        if not safe:
            raise Unsolvable(f"{self}: no safe cell is left")
        cell = (safe & -safe).bit_length() - 1
        if not self.mines:
            cell = self.rows // 2 * self.cols + self.cols // 2
        verb = "flag" if self.flagged >> cell & 1 else "reveal"
        return f"{verb} {self.tables.words[cell]}"

    def _deduce_safe(self) -> int:
        """Return the hidden cells that single numbers prove safe, given the mines inferred from others."""
        around, hidden = self.tables.around, self.tables.full & ~self.open
        near = [(around[c] & hidden, (self.mines & around[c]).bit_count()) for c in bits(self.open)]
        sure = 0
        for cells, n in near:
            if cells.bit_count() == n:
                sure |= cells
        safe = 0
        for cells, n in near:
            if (cells & sure).bit_count() == n:
                safe |= cells & ~sure
        return safe

    def sample_random_action(self) -> str:
        return self._pick(self.tables.actions)


class Grid:
    """Tables for one size of the board: neighbours as bits, and texts."""

    def __init__(self, rows: int, cols: int):
        self.size = rows * cols
        self.full = (1 << self.size) - 1
        self.around = [sum(1 << n for n in neighbours(rows, cols, cell)) for cell in range(self.size)]
        where = [divmod(cell, cols) for cell in range(self.size)]
        self.words = [f"{row} {col}" for row, col in where]
        self.names = [f"({row}, {col})" for row, col in where]
        self.moves = {f"{what} {self.words[c]}": (what, c) for what in VERBS for c in range(self.size)}
        self.actions = tuple(box(f"reveal {word}") for word in self.words) + tuple(
            box(f"flag {word}") for word in self.words
        )
        lines = [f"{'':3}" + "".join(f"{col:3}" for col in range(cols))]
        lines += [f"{row:3}" + "  ." * cols for row in range(rows)]
        self.blank = "\n".join(lines)
        self.offsets = [(3 * cols + 4) * (row + 1) + 3 * col + 5 for row, col in where]

    def opened_from(self, cell: int, mines: int, shut: int = 0) -> int:
        """Find the cells that open with a cell: recursively its neighbours, if none of them is a mine.

        Args:
            cell: index ``row * cols + col``, not a mine.
            mines, shut: bit masks of the mines, and of cells that do not change (open or flagged).

        Returns:
            Bit mask of the cells that open.
        """
        opened, todo = 0, [cell]
        while todo:
            cell = todo.pop()
            near = self.around[cell]
            opened |= 1 << cell
            if not mines & near:
                near &= ~(opened | shut)
                todo += bits(near)
                opened |= near
        return opened


def neighbours(rows: int, cols: int, cell: int) -> list[int]:
    """List the up to 8 cells around a cell. ``cell``: index ``row * cols + col``."""
    row, col = divmod(cell, cols)
    return [
        r * cols + c
        for r in range(max(row - 1, 0), min(row + 2, rows))
        for c in range(max(col - 1, 0), min(col + 2, cols))
        if (r, c) != (row, col)
    ]


def bits(mask: int) -> list[int]:
    """List the positions of the set bits, lowest first."""
    out = []
    while mask:
        low = mask & -mask
        out.append(low.bit_length() - 1)
        mask ^= low
    return out


@functools.lru_cache(maxsize=64)
def grid_of(rows: int, cols: int) -> Grid:
    """Return the tables for a board size, shared by all games."""
    return Grid(rows, cols)
