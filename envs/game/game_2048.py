"""2048: slide and merge tiles until one reaches the target."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.envs import pictures
from rollenv.envs.game.base import TextGame, box, turns

DIRECTIONS = ("up", "down", "left", "right")
_ACTIONS = tuple(map(box, DIRECTIONS))

#: Exponents: 0 for an empty cell, 3 for the tile 8.
Row = tuple[int, ...]
Rows = tuple[Row, ...]


class Game2048(TextGame):
    """Slide all tiles one way; equal tiles that meet merge, and after a move a 2 (or a 4, one time in ten) appears.

    Pays for every doubling of the largest tile, so that the target has paid 1; a 4 that appears pays with the next
    move. The game is lost when nothing can move.

    The oracle looks one new tile and one move ahead.

    A move adds at most 4 to the sum of all tiles, which starts at 8 at most: a target above 4 * max_turns + 8 is out of
    reach (512 in 50 turns, 2048 in 100), but the reward still measures progress.

    Args:
        target_tile: a power of two, 8 or more.
    """

    picture = staticmethod(pictures.tiles)
    size_names = ("target_tile", "max_turns")
    random_sizes = ((16, 20), (32, 30), (64, 50))
    state_names = ("rows", "top", "first")

    target_tile: int

    def __init__(self, target_tile: int | None = 128, max_turns: int | None = 100, board_size: int = 4):
        if not 2 <= board_size <= 8:
            raise UsageError(f"board_size must be 2 to 8, got {board_size}")
        self.board_size = board_size
        super().__init__(target_tile=target_tile, max_turns=max_turns)
        self.rows: Rows = ()
        #: Exponents of the largest tile that was rewarded, and of the largest one at the start.
        self.top = self.first = 1

    def _resized(self) -> None:
        if self.target_tile < 8 or self.target_tile & (self.target_tile - 1):
            raise UsageError(f"target_tile must be a power of two from 8 on, got {self.target_tile}")
        self._goal = self.target_tile.bit_length() - 1
        self._prompt = _instructions(self.target_tile, self.max_turns)

    def _new_game(self) -> None:
        self.rows = ((0,) * self.board_size,) * self.board_size
        self._add_tile()
        self._add_tile()
        self.top = self.first = max(map(max, self.rows))

    def _add_tile(self) -> None:
        n = self.board_size
        flat = [tile for row in self.rows for tile in row]
        count = flat.count(0)
        draw = self.np_random.random() * count * 10
        steps, tenth = divmod(int(draw), 10)
        cell = -1
        for _ in range(steps + 1):
            cell = flat.index(0, cell + 1)
        r, c = divmod(cell, n)
        row = self.rows[r]
        changed = (*row[:c], 2 if tenth == 0 else 1, *row[c + 1 :])
        self.rows = (*self.rows[:r], changed, *self.rows[r + 1 :])

    def _set_state(self, state: dict[str, Any]) -> None:
        super()._set_state({**state, "rows": tuple(map(tuple, state["rows"]))})

    def _parse(self, text: str) -> Any:
        word = text[:9].lower()
        return word if len(text) < 9 and word in DIRECTIONS else None

    def _play(self, move: str) -> tuple[str, float, bool | None]:
        after = slide(self.rows, move)
        if after == self.rows:
            return f"nothing can move {move}.", 0.0, None
        top = max(map(max, after))
        reward = (top - self.top) / (self._goal - self.first) if top > self.top else 0.0
        self.rows, self.top = after, top
        self._add_tile()
        if top >= self._goal:
            return f"the tiles moved {move}, and made {1 << top}.", reward, True
        if stuck(self.rows):
            return f"the tiles moved {move}, and now nothing can move.", reward, False
        return f"the tiles moved {move}.", reward, None

    def _suffix(self) -> str:
        return f"The board now:\n{self.render()}"

    def render(self) -> str:
        return "\n".join(map(_draw, self.rows))

    def _next_move(self) -> str:
        """Return the move with the highest expected value, over all cells for a new 2 and the best move after it."""
        outlook = {d: _after_new_tile(after) for d in DIRECTIONS if (after := slide(self.rows, d)) != self.rows}
        return max(outlook, key=outlook.__getitem__)

    def sample_random_action(self) -> str:
        return self._pick(_ACTIONS)


@functools.lru_cache(maxsize=1 << 17)
def slide_left(row: Row) -> Row:
    """Move all tiles to the start of a row and merge equal neighbours, each at most once."""
    tiles = [tile for tile in row if tile]
    out = []
    i = 0
    while i < len(tiles):
        merges = i + 1 < len(tiles) and tiles[i] == tiles[i + 1]
        out.append(tiles[i] + merges)
        i += 1 + merges
    return (*out, *(0,) * (len(row) - len(out)))


@functools.lru_cache(maxsize=1 << 17)
def slide_right(row: Row) -> Row:
    """Move all tiles to the end of a row; see :func:`slide_left`."""
    return slide_left(row[::-1])[::-1]


def slide(rows: Rows, direction: str) -> Rows:
    """Return the board after a move, without the new tile. ``rows``: the board, 0 for an empty cell."""
    if direction == "left":
        return tuple(map(slide_left, rows))
    if direction == "right":
        return tuple(map(slide_right, rows))
    one_way = slide_left if direction == "up" else slide_right
    return tuple(zip(*map(one_way, zip(*rows, strict=True)), strict=True))


def stuck(rows: Rows) -> bool:
    """Return whether the board is full and no neighbours are equal."""
    if any(0 in row for row in rows):
        return False
    lines = (*rows, *zip(*rows, strict=True))
    return not any(a == b for line in lines for a, b in itertools.pairwise(line))


@functools.lru_cache(maxsize=1 << 16)
def line_value(line: Row) -> float:
    """Return a heuristic value of a row or column: large tiles, empty cells, equal neighbours, monotonic order."""
    steps = [((1 << a) - (1 << b), a == b != 0) for a, b in itertools.pairwise(line)]
    falls, rises = (sum(max(0, way * step) for step, _ in steps) for way in (1, -1))
    merges = sum(1 << tile for tile, (_, equal) in zip(line, steps, strict=False) if equal)
    return sum(tile << tile for tile in line) + line.count(0) + merges - 0.5 * min(falls, rises)


def board_value(rows: Rows) -> float:
    """Sum :func:`line_value` over all rows and columns."""
    return sum(map(line_value, rows)) + sum(map(line_value, zip(*rows, strict=True)))


def _after_new_tile(rows: Rows) -> float:
    values = []
    for r, row in enumerate(rows):
        for c, tile in enumerate(row):
            if not tile:
                board = (*rows[:r], (*row[:c], 1, *row[c + 1 :]), *rows[r + 1 :])
                answers = [board_value(after) for d in DIRECTIONS if (after := slide(board, d)) != board]
                values.append(max(answers, default=-1e6))
    return sum(values) / len(values)


@functools.lru_cache(maxsize=1 << 16)
def _draw(row: Row) -> str:
    return "".join(f"{1 << tile if tile else '.':>6}" for tile in row)


@functools.lru_cache(maxsize=64)
def _instructions(target: int, limit: int) -> str:
    return (
        f"This is 2048. Make a tile of {target} within {turns(limit)}. A move slides all tiles one way as far as they "
        "go; two equal tiles that meet merge into their sum, and then a new tile, 2 or 4, appears on an empty cell.\n"
        "Answer with up, down, left or right, as in \\boxed{left}."
    )
