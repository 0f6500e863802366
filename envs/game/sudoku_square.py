"""Sudoku squares: fill one at random, and empty cells so that the solution stays unique."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from rollenv.envs.game.base import box

#: Maximum number of empty cells by size.
MOST_EMPTY = {4: 10, 9: 50}


class Square:
    """Tables for one size: rows, columns and blocks of the cells, and text templates."""

    def __init__(self, scale: int):
        self.scale = scale
        block = math.isqrt(scale)
        cells = [divmod(cell, scale) for cell in range(scale * scale)]
        blocks = [r // block * block + c // block for r, c in cells]
        self.full = (1 << scale) - 1
        #: Indices of every cell's row, column and block among all 3 * scale units.
        self.homes = [(r, scale + c, 2 * scale + b) for (r, c), b in zip(cells, blocks, strict=True)]
        units = [[i for i, homes in enumerate(self.homes) if u in homes] for u in range(3 * scale)]
        #: The other cells of every cell's row, column and block, separately and together.
        self.units = [
            [tuple(i for i in unit if i != cell) for unit in units if cell in unit] for cell in range(len(cells))
        ]
        self.peers = [tuple(sorted(set().union(*three))) for three in self.units]
        self.names = [f"row {r + 1}, column {c + 1}" for r, c in cells]
        words = [f"{r + 1} {c + 1} {d}" for r, c in cells for d in range(1, scale + 1)]
        self.moves = {word: divmod(i, scale) for i, word in enumerate(words)}
        self.moves = {word: (cell, digit + 1) for word, (cell, digit) in self.moves.items()}
        self.actions = tuple(map(box, words))

        def line(head: str, parts: Sequence[str]) -> str:
            groups = (" ".join(parts[i : i + block]) for i in range(0, len(parts), block))
            return f"{head} {' | '.join(groups)}"

        digits = range(1, scale + 1)
        lines = [line("  ", [str(d) for d in digits])]
        for r in digits:
            lines += [line("  ", ["-"] * scale).replace("|", "+")] * (r > 1 and (r - 1) % block == 0)
            lines.append(line(f"{r}:", ["."] * scale))
        self.blank = "\n".join(lines)
        self.offsets = [i for i, char in enumerate(self.blank) if char == "."]

    def draw(self, grid: Sequence[int]) -> str:
        """Return the square as text."""
        chars = list(self.blank)
        for offset, digit in zip(self.offsets, grid, strict=True):
            if digit:
                chars[offset] = str(digit)
        return "".join(chars)

    def fill(self, rng: np.random.Generator) -> list[int]:
        """Fill a random square: the blocks on the diagonal first, then always the cell with the fewest choices."""
        n, block = self.scale, math.isqrt(self.scale)
        grid = [0] * (n * n)
        free = [self.full] * (3 * n)
        for k in range(block):
            for i, digit in enumerate(rng.permutation(n).tolist()):
                cell = (block * k + i // block) * n + block * k + i % block
                grid[cell] = digit + 1
                for unit in self.homes[cell]:
                    free[unit] &= ~(1 << digit)
        todo = [cell for cell, digit in enumerate(grid) if not digit]
        # Two random blocks of a 4x4 may contradict each other.
        return grid if self._complete(grid, free, todo, rng) else self.fill(rng)

    def _complete(self, grid: list[int], free: list[int], todo: list[int], rng: np.random.Generator) -> bool:
        """Fill the cells in ``todo`` by backtracking; ``free`` are the missing digits of each unit, as bits."""
        if not todo:
            return True
        at, choices = self._tightest(free, todo)
        cell = todo.pop(at)
        row, col, block = self.homes[cell]
        bits = [1 << d for d in range(self.scale) if choices >> d & 1]
        if len(bits) > 1:
            first = int(rng.random() * len(bits))
            bits = bits[first:] + bits[:first]
        for bit in bits:
            free[row] ^= bit
            free[col] ^= bit
            free[block] ^= bit
            grid[cell] = bit.bit_length()
            if self._complete(grid, free, todo, rng):
                return True
            free[row] ^= bit
            free[col] ^= bit
            free[block] ^= bit
        todo.insert(at, cell)
        return False

    def _tightest(self, free: list[int], todo: list[int]) -> tuple[int, int]:
        """Return the cell in ``todo`` with the fewest choices, and its choices as bits."""
        homes, fewest, at, choices = self.homes, 99, 0, 0
        for i, cell in enumerate(todo):
            row, col, block = homes[cell]
            bits = free[row] & free[col] & free[block]
            count = bits.bit_count()
            if count < fewest:
                fewest, at, choices = count, i, bits
                if count < 2:
                    break
        return at, choices

    def dig(self, solution: list[int], holes: int, rng: np.random.Generator) -> list[int]:
        """Empty some cells of a solved square so that the solution stays unique.

        When a cell is emptied, one rule must determine its digit, which proves that the solution is unique. The order
        favours some digits, which allows more holes than a uniform order.

        Args:
            solution: digits 1 to ``scale``, row by row.

        Returns:
            The square with 0 for every empty cell.
        """
        digits = np.array(solution) - 1
        while True:
            when = rng.random(len(solution)) + 0.3 * rng.permutation(self.scale)[digits]
            grid = self._dig(solution, holes, when.argsort().tolist())
            if grid is not None:
                return grid

    def _dig(self, solution: list[int], holes: int, order: list[int]) -> list[int] | None:
        grid, used = solution.copy(), [self.full] * (3 * self.scale)
        for cell in order:
            bit = 1 << solution[cell] - 1
            row, col, block = self.homes[cell]
            used[row] ^= bit
            used[col] ^= bit
            used[block] ^= bit
            grid[cell] = 0
            if used[row] | used[col] | used[block] | bit == self.full or self._only_cell(grid, used, cell, bit):
                holes -= 1
                if not holes:
                    return grid
                continue
            grid[cell] = solution[cell]
            used[row] ^= bit
            used[col] ^= bit
            used[block] ^= bit
        return None

    def _only_cell(self, grid: list[int], used: list[int], cell: int, bit: int) -> bool:
        """Return whether the cell is the only one of its row, column or block that can take its digit."""
        homes = self.homes
        for unit in self.units[cell]:
            for other in unit:
                if not grid[other]:
                    row, col, block = homes[other]
                    if not (used[row] | used[col] | used[block]) & bit:
                        break
            else:
                return True
        return False

    def follows(self, grid: list[int], cell: int, digit: int) -> bool:
        """Return whether one rule determines the digit of an empty cell.

        Args:
            grid: digits row by row, 0 for an empty cell.
            cell: index of the empty cell.
            digit: the digit to prove, 1 to ``scale``.
        """
        used = [0] * (3 * self.scale)
        for other, filled in enumerate(grid):
            if filled:
                for unit in self.homes[other]:
                    used[unit] |= 1 << filled - 1
        bit = 1 << digit - 1
        row, col, block = self.homes[cell]
        return used[row] | used[col] | used[block] | bit == self.full or self._only_cell(grid, used, cell, bit)


@functools.cache
def square_of(scale: int) -> Square:
    """Return the tables for a size, shared by all games."""
    return Square(scale)
