"""Sokoban rules on bitboards.

A cell is an index ``row * width + column``; a set of cells is an int with those bits set. The outer ring is always
wall, so shifting a set by one cell can never wrap into a neighbouring row unnoticed: it lands on a wall.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

#: Characters of the XSB level format, which Boxoban uses as well.
WALL, FLOOR, PLAYER, BOX, TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET = "#", " ", "@", "$", ".", "*", "+"

DIRECTIONS = ("up", "down", "left", "right")


class BoardState(NamedTuple):
    """The changing part of a level: the player's cell and the set of boxes."""

    player: int
    boxes: int


@dataclass(frozen=True, slots=True)
class Board:
    """The fixed part of a level: walls and targets of a ``height`` x ``width`` room."""

    height: int
    width: int
    walls: int
    targets: int

    @property
    def steps(self) -> tuple[int, int, int, int]:
        """Index offsets of :data:`DIRECTIONS`."""
        return (-self.width, self.width, -1, 1)

    def move(self, state: BoardState, step: int) -> BoardState | None:
        """Move the player by an index offset, one of :attr:`steps`: the next state, or None if the move is blocked."""
        cell = state.player + step
        if self.walls >> cell & 1:
            return None
        if not state.boxes >> cell & 1:
            return BoardState(cell, state.boxes)
        if (self.walls | state.boxes) >> (cell + step) & 1:
            return None
        return BoardState(cell, state.boxes ^ (1 << cell) ^ (1 << (cell + step)))

    def solved(self, state: BoardState) -> bool:
        return state.boxes == self.targets

    def rows(self, state: BoardState, symbols: dict[str, str] | None = None) -> list[list[str]]:
        """Draw the board as rows of cells. ``symbols``: text for each XSB character; by default the character."""
        cells = [WALL if self.walls >> i & 1 else FLOOR for i in range(self.height * self.width)]
        for i in bits(self.targets):
            cells[i] = TARGET
        for i in bits(state.boxes):
            cells[i] = BOX_ON_TARGET if self.targets >> i & 1 else BOX
        cells[state.player] = PLAYER_ON_TARGET if self.targets >> state.player & 1 else PLAYER
        if symbols:
            cells = [symbols[c] for c in cells]
        return [cells[r * self.width : (r + 1) * self.width] for r in range(self.height)]


def layers(board: Board, player: int, boxes: int) -> Iterator[tuple[int, int]]:
    """Group the cells that the player can walk to by distance; ``boxes`` is a bit mask.

    Returns:
        Pairs of (moves to walk there plus one, bit mask of cells), nearest first.
    """
    width = board.width
    free = ~(board.walls | boxes)
    frontier = seen = 1 << player
    moves = 1
    while frontier:
        yield moves, frontier
        frontier = (frontier << width | frontier >> width | frontier << 1 | frontier >> 1) & free & ~seen
        seen |= frontier
        moves += 1


def reached(board: Board, player: int, boxes: int, stands: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """List the steps (pushes or pulls) whose standing cell the player can walk to.

    Args:
        stands: pairs of (step, bit mask of the cells where the player stands for it).

    Returns:
        Tuples of (moves to walk there plus one, cell, step), nearest first.
    """
    found: list[tuple[int, int, int]] = []
    width, wanted = board.width, 0
    for _, cells in stands:
        wanted |= cells
    free = ~(board.walls | boxes)
    frontier = 1 << player
    moves = 1
    while frontier and wanted:  # layers() inlined, without the cost of a generator
        if frontier & wanted:
            for step, cells in stands:
                hit = cells & frontier
                while hit:
                    low = hit & -hit
                    hit ^= low
                    found.append((moves, low.bit_length() - 1, step))
            wanted &= ~frontier
        free &= ~frontier
        frontier = (frontier << width | frontier >> width | frontier << 1 | frontier >> 1) & free
        moves += 1
    return found


def bits(cells: int) -> Iterator[int]:
    """Yield the indices in a set of cells, in ascending order."""
    while cells:
        low = cells & -cells
        yield low.bit_length() - 1
        cells ^= low


def parse_level(text: str) -> tuple[Board, BoardState]:
    """Parse one level in XSB format. Rows may have different lengths; a missing outer wall is added.

    Raises:
        ValueError: for an unknown character, a player count other than one, or unequal boxes and targets.
    """
    lines = [line for line in text.replace("\r", "").split("\n") if line]
    known = WALL + FLOOR + PLAYER + BOX + TARGET + BOX_ON_TARGET + PLAYER_ON_TARGET
    if unknown := sorted(set("".join(lines)) - set(known)):
        raise ValueError(f"unknown character {unknown[0]!r}; a level is drawn with {known!r}")
    width = max(map(len, lines), default=0)
    lines = [line.ljust(width, WALL) for line in lines]
    ring = "".join(lines[:1] + lines[-1:]) + "".join(line[0] + line[-1] for line in lines)
    if set(ring) != {WALL}:
        lines = [WALL * width, *lines, WALL * width]
        lines = [WALL + line + WALL for line in lines]
    grid = "".join(lines)

    def cells(characters: str) -> int:
        return sum(1 << i for i, c in enumerate(grid) if c in characters)

    players, boxes, targets = cells("@+"), cells("$*"), cells(".*+")
    if players.bit_count() != 1:
        raise ValueError(f"a level needs exactly one player '@'; this one has {players.bit_count()}")
    if boxes.bit_count() != targets.bit_count() or not boxes:
        raise ValueError(
            f"a level needs as many boxes as targets; this one has {boxes.bit_count()} and {targets.bit_count()}"
        )
    board = Board(len(lines), len(lines[0]), cells(WALL), targets)
    return board, BoardState(players.bit_length() - 1, boxes)
