"""The sliding puzzle: put numbered tiles in order."""

from __future__ import annotations

import functools
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.envs import pictures
from rollenv.envs.game.base import TextGame, box, turns

#: Directions of the tile; the empty cell moves the other way.
MOVES = ("up", "down", "left", "right")
OPPOSITE = {"up": "down", "down": "up", "left": "right", "right": "left"}
_ACTIONS = tuple(map(box, MOVES))

Tiles = tuple[int, ...]


class FifteenPuzzle(TextGame):
    """Slide tiles into the empty cell until they are in order.

    Pays 1 when solved, and at the turn limit the share of cells that are right, the empty one included. Up to 3x3, the
    start is uniform over all positions with a solution within ``max_turns``; from 4x4 on, it comes from as many or
    fewer (at least half as many) random moves that never take the last one back. The oracle's solution is a shortest
    one up to 3x3, and the way back to where the tiles came from on larger boards.
    """

    picture = staticmethod(pictures.fifteen)
    picture_words = pictures.FIFTEEN_WORDS
    size_names = ("num_rows", "max_turns")
    random_sizes = ((2, 10), (3, 20), (4, 50))
    state_names = ("tiles", "home")

    num_rows: int

    def __init__(self, max_turns: int | None = 20, num_rows: int | None = 3):
        super().__init__(num_rows=num_rows, max_turns=max_turns)
        #: Tiles row by row, 0 for the empty cell.
        self.tiles: Tiles = ()
        #: Moves from the current to the solved position, the next one last.
        self.home: list[str] = []
        self.board_text = ""

    def _resized(self) -> None:
        if not 2 <= self.num_rows <= 10:
            raise UsageError(f"num_rows must be 2 to 10, got {self.num_rows}")
        self._beside = beside_empty(self.num_rows)
        self._layout = "\n".join(["%3d" * self.num_rows] * self.num_rows)
        self._prompt = _instructions(self.num_rows, self.max_turns)

    def _new_game(self) -> None:
        n = self.num_rows
        if n > 3:
            self.tiles, self.home = solved(n), []
            self._scramble()
        else:
            starts, way = near_positions(n, self.max_turns)
            self.tiles = starts[self.randint(len(starts))]
            tiles, goal, moves = self.tiles, solved(n), []
            while tiles != goal:
                moves.append(way[tiles])
                tiles = _slide(tiles, self._beside[tiles.index(0)][moves[-1]])
            self.home = moves[::-1]
        self._placed()

    def _scramble(self) -> None:
        """Scramble with random moves, at most as many as turns, none of which undoes the one before."""
        most = min(self.max_turns, 20 * self.num_rows**2)  # more moves do not mix better
        least = (most + 1) // 2
        length = least + self.randint(most - least + 1)
        tiles, home, last = list(self.tiles), self.home, ""
        empty = len(tiles) - 1
        for draw in self.np_random.random(length).tolist():
            ways = self._beside[empty]
            names = [name for name in ways if name != last]
            move = names[int(draw * len(names))]
            beside = ways[move]
            tiles[empty], tiles[beside] = tiles[beside], 0
            empty, last = beside, OPPOSITE[move]
            home.append(last)
        self.tiles = tuple(tiles)
        if self.tiles == solved(self.num_rows):
            home.clear()
            self._scramble()

    def _placed(self) -> None:
        self.empty = self.tiles.index(0)
        self._draw()

    _restored = _placed

    def _set_state(self, state: dict[str, Any]) -> None:
        super()._set_state({**state, "tiles": tuple(state["tiles"])})

    def _parse(self, text: str) -> Any:
        word = text[:9].lower()
        return word if len(text) < 9 and word in OPPOSITE else None

    def _play(self, move: str) -> tuple[str, float, bool | None]:
        beside = self._beside[self.empty].get(move)
        if beside is None:
            return f"no tile can move {move}.", 0.0, None
        tiles = list(self.tiles)
        tile = tiles[beside]
        tiles[self.empty] = tile
        tiles[beside] = 0
        self.tiles, self.empty = tuple(tiles), beside
        if self.home and self.home[-1] == move:
            self.home.pop()
        else:
            self.home.append(OPPOSITE[move])
        self._draw()
        if self.tiles == solved(self.num_rows):
            return f"tile {tile} moved {move}, and all tiles are in order.", 1.0, True
        return f"tile {tile} moved {move}.", 0.0, None

    def _late_reward(self) -> float:
        goal = solved(self.num_rows)
        return sum(a == b for a, b in zip(self.tiles, goal, strict=True)) / len(goal)

    def _draw(self) -> None:
        self.board_text = (self._layout % self.tiles).replace("  0", " __")

    def _suffix(self) -> str:
        return f"The board now:\n{self.board_text}"

    def render(self) -> str:
        return self.board_text

    def _next_move(self) -> str:
        if self.num_rows <= 3:
            return near_positions(self.num_rows, self.max_turns)[1].get(self.tiles, self.home[-1])
        return self.home[-1]

    def sample_random_action(self) -> str:
        return self._pick(_ACTIONS)


@functools.cache
def solved(n: int) -> Tiles:
    """Return the position with all tiles in order."""
    return (*range(1, n * n), 0)


@functools.cache
def beside_empty(n: int) -> list[dict[str, int]]:
    """Return, for every position of the empty cell, its legal moves with the cell of the moved tile."""
    out = []
    for cell in range(n * n):
        row, col = divmod(cell, n)
        near = {"up": (row + 1, col), "down": (row - 1, col), "left": (row, col + 1), "right": (row, col - 1)}
        out.append({name: r * n + c for name, (r, c) in near.items() if 0 <= r < n and 0 <= c < n})
    return out


def _slide(tiles: Tiles, cell: int) -> Tiles:
    """Return the position after the tile in a cell moved into the empty one."""
    after = list(tiles)
    after[tiles.index(0)], after[cell] = tiles[cell], 0
    return tuple(after)


def near_positions(n: int, moves: int) -> tuple[list[Tiles], dict[Tiles, str]]:
    """List the unsolved positions of ``n`` x ``n`` tiles whose shortest solution has at most ``moves`` moves.

    Returns:
        The positions; and for every position, the first move of a shortest solution ("" if it is solved).
    """
    return _near_positions(n, min(moves, {2: 6, 3: 31}[n]))  # no position is farther away


@functools.cache
def _near_positions(n: int, moves: int) -> tuple[list[Tiles], dict[Tiles, str]]:
    beside = beside_empty(n)
    way: dict[Tiles, str] = {solved(n): ""}
    starts: list[Tiles] = []
    layer = [solved(n)]
    for _ in range(moves):
        outer = []
        for tiles in layer:
            for name, cell in beside[tiles.index(0)].items():
                after = _slide(tiles, cell)
                if after not in way:
                    way[after] = OPPOSITE[name]
                    outer.append(after)
        starts += outer
        layer = outer
    return starts, way


@functools.lru_cache(maxsize=64)
def _instructions(n: int, limit: int) -> str:
    last = f"{n * n - 1}"
    return (
        f"This is the sliding puzzle with {last} tiles on {n} rows and columns. Put them in order, row by row from "
        f"1 to {last}, with the empty cell (__) last, within {turns(limit)}. A tile beside the empty cell slides into "
        "it: with up the tile below it, with down the tile above it, with left the tile to its right, with right the "
        "tile to its left.\nAnswer with up, down, left or right, as in \\boxed{up}."
    )
