"""Sokoban levels: a generator that plays backwards from the solved room, and Boxoban level files."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rollenv.core.errors import UsageError
from rollenv.envs.game.grid import same_if_turned
from rollenv.envs.game.sokoban.board import WALL, Board, BoardState, bits, parse_level, reached
from rollenv.envs.game.sokoban.solver import solve
from rollenv.envs.splits import in_split

#: A draw from [0, 1).
Random = Callable[[], float]

#: One in this many rooms belongs to the test split.
TEST_SHARE = 10
#: States expanded while playing backwards; more makes solutions longer and generation slower.
EXPANSIONS = 60


@dataclass(frozen=True, slots=True)
class Level:
    """A room with the initial player and boxes."""

    board: Board
    start: BoardState
    solution_bound: int
    """Upper bound on the moves of the shortest solution; 0 if none is known."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Constraints on generated levels.

    ``max_moves`` bounds the known solution. ``min_moves`` bounds the shortest solution from below; above 1, every level
    is solved to check it. ``split`` separates the rooms (walls and targets, however turned) of "train" and
    "test".
    """

    height: int
    width: int
    boxes: int
    max_moves: int
    min_moves: int = 1
    split: str = "all"


def generate(rules: Rules, random: Random, tries: int = 2000) -> Level:
    """Generate a solvable level with every box off its target; (almost) every random stream gives another level."""
    for _ in range(tries):
        board, cells = _room(rules, random)
        if board is None:
            continue
        if rules.split != "all":
            rows = board.rows(BoardState(0, 0))
            rows[0][0] = WALL  # not the player, whom the room does not have yet
            if not in_split(same_if_turned(rows), rules.split, TEST_SHARE):
                continue
        player = cells[rules.boxes]
        level = _play_backwards(board, player, rules.max_moves, random)
        if level is None:
            continue
        if rules.min_moves > 1:
            if level.solution_bound < rules.min_moves:
                continue
            solution = solve(level.board, level.start, weights=(1,))
            if solution is None or len(solution) < rules.min_moves:
                continue
        return level
    raise UsageError(
        f"no Sokoban level found in {tries} rooms for {rules}; allow more moves, fewer boxes or a larger room"
    )


def _room(rules: Rules, random: Random) -> tuple[Board | None, list[int]]:
    """Carve a room; return it (None if too small) and its floor cells in random order, targets first."""
    # A random walk with a changing brush, as in gym-sokoban: mostly straight, 35 % turns.
    brushes, walks, inside = _brushes(rules.height, rules.width)
    cell = (1 + int(random() * (rules.height - 2))) * rules.width + 1 + int(random() * (rules.width - 2))
    walk = walks[int(random() * 4)]
    floor = 0
    for _ in range(int(2.5 * (rules.height + rules.width))):
        if random() < 0.35:
            walk = walks[int(random() * 4)]
        floor |= brushes[int(random() * 8)] << cell
        cell = walk[cell]
    floor &= inside
    cells = list(bits(floor))
    n = rules.boxes
    if len(cells) < 2 * n + 3:
        return None, cells
    for i in range(n + 1):
        j = i + int(random() * (len(cells) - i))
        cells[i], cells[j] = cells[j], cells[i]
    walls = (1 << rules.height * rules.width) - 1 & ~floor
    return Board(rules.height, rules.width, walls, sum(1 << c for c in cells[:n])), cells


@functools.lru_cache(64)
def _brushes(height: int, width: int) -> tuple[tuple[int, ...], list[list[int]], int]:
    """Return the tables for a room size.

    The eight brushes, with the walker's cell in their corner; for each direction, the next cell of a walker from each
    cell, stopping at the outer wall; and the mask of the inner cells.
    """
    right, down = 1 << 1, 1 << width
    brushes = (
        1 | right,
        1 | down,
        1 | right | down,
        1 | right | down << 1,
        1 | down | down << 1,
        1 | right | down | down << 1,
        1 | right | right << 1,
        1 | down | down << width,
    )
    inside = (1 << width - 2) - 1 << 1
    inner = sum(inside << r * width for r in range(1, height - 1))
    cells = range(height * width)
    walks = [[c + s if c + s in cells and inner >> c + s & 1 else c for c in cells] for s in (-width, width, -1, 1)]
    return brushes, walks, inner


def _pulls(board: Board, player: int, boxes: int) -> list[tuple[int, int, int]]:
    """List the possible pulls as ``(moves, box cell, step)``: the box goes to cell + step, the player beyond."""
    width = board.width
    free = ~(board.walls | boxes)
    up, down = boxes & free << width & free << 2 * width, boxes & free >> width & free >> 2 * width
    left, right = boxes & free << 1 & free << 2, boxes & free >> 1 & free >> 2
    # To pull a box up, the player stands above it.
    stands = ((-width, up >> width), (width, down << width), (-1, left >> 1), (1, right << 1))
    return [(moves, cell - step, step) for moves, cell, step in reached(board, player, boxes, stands)]


def _play_backwards(board: Board, player: int, max_moves: int, random: Random) -> Level | None:
    """Pull the boxes away from their targets, best first by distance, and draw a start among the states.

    The draw is from the half with the longer known solutions of the states with every box off target; then the player
    takes up to three random steps. None if no such state was reached.
    """
    targets = tuple(bits(board.targets))
    done = player, board.targets
    cost = {done: 0}  # moves of the known solution
    queue: list[tuple[float, int, tuple[int, int], tuple[int, ...], int]] = [(0.0, 0, done, targets, 0)]
    found: list[tuple[int, tuple[int, int]]] = []
    aparts = [_distances_from(board.height, board.width, target) for target in targets]
    wander = int(random() * 4)
    for _ in range(EXPANSIONS):
        if not queue:
            break
        _, _, state, boxes_at, far = heapq.heappop(queue)
        known, before = cost[state], state[1]
        for moves, box, step in _pulls(board, *state):
            boxes = before ^ (1 << box) ^ (1 << box + step)
            child = box + 2 * step, boxes
            # The last push ends the level, so the walk before the first pull is free.
            total = known + (moves if known else 1)
            if child in cost or total + wander > max_moves:
                continue
            cost[child] = total
            which = boxes_at.index(box)
            moved = (*boxes_at[:which], box + step, *boxes_at[which + 1 :])
            apart = aparts[which]
            distance = far + apart[box + step] - apart[box]
            heapq.heappush(queue, (-distance - 3 * random(), len(cost), child, moved, distance))
            if not boxes & board.targets:
                found.append((total, child))
    if not found:
        return None
    found.sort()
    total, start = found[int(len(found) * (1 + random()) / 2)]
    return Level(board, _wander(board, BoardState(*start), wander, random), total + wander)


@functools.lru_cache(4096)
def _distances_from(height: int, width: int, cell: int) -> tuple[int, ...]:
    """Return the Manhattan distances from a cell to all cells."""
    row, column = divmod(cell, width)
    return tuple(abs(r - row) + abs(c - column) for r in range(height) for c in range(width))


def _wander(board: Board, state: BoardState, steps: int, random: Random) -> BoardState:
    """Take up to ``steps`` random steps that push nothing."""
    for _ in range(steps):
        around = [state.player + s for s in board.steps if not (board.walls | state.boxes) >> (state.player + s) & 1]
        if around:
            state = BoardState(around[int(random() * len(around))], state.boxes)
    return state


def load_levels(path: str | Path) -> list[Level]:
    """Load all levels of a Boxoban file, or of every ``*.txt`` below a folder, sorted by name.

    Levels are in XSB format, each after a line that starts with ``;``.
    """
    path = Path(path)
    files = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
    levels = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read the Sokoban levels in {file}: {error}") from error
        for number, chunk in enumerate(_chunks(text)):
            try:
                board, start = parse_level(chunk)
            except ValueError as error:
                raise UsageError(f"{file}, level {number}: {error}") from error
            levels.append(Level(board, start, 0))
    if not levels:
        raise UsageError(
            f"no Sokoban levels in {path}: expected Boxoban's format, a line '; 0' and then rows of '#@$. '"
        )
    return levels


def _chunks(text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(";"):
            if any(map(str.strip, lines)):
                yield "\n".join(lines)
            lines = []
        else:
            lines.append(line)
    if any(map(str.strip, lines)):
        yield "\n".join(lines)
