"""GEM's games on boards."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollenv.core.env import StepResult
from rollenv.envs.game.base import box
from rollenv.envs.game.fifteen_puzzle import FifteenPuzzle, solved
from rollenv.envs.game.game_2048 import DIRECTIONS, Game2048
from rollenv.envs.game.minesweeper import Minesweeper, grid_of
from rollenv.envs.game.sokoban.board import Board, BoardState, bits
from rollenv.envs.game.sokoban.env import LEGEND, Sokoban
from rollenv.envs.game.sudoku import Sudoku
from rollenv.envs.game.sudoku_square import MOST_EMPTY
from rollenv.envs.game.tower_of_hanoi import PEGS, TowerofHanoi
from rollenv.plugins.gem.game import Computed, GemGame, GemTextGame, alias_attribute, boxed, rows_of
from rollenv.plugins.gem.utils import LanguageGameReward

_DIRECTION = r"up|down|left|right"


class MinesweeperEnv(GemTextGame, Minesweeper):
    """Minesweeper with GEM's rules: the last reveal wins if all mines are flagged; flags do not protect cells."""

    grammar = boxed(r"[a-zA-Z]+\s\d+\s\d+")

    def __init__(
        self,
        rows: int | None = 8,
        cols: int | None = 8,
        num_mines: int | None = 10,
        max_turns: int | None = 20,
        **extra: Any,
    ):
        super().__init__(rows=rows, cols=cols, num_mines=num_mines, max_turns=max_turns, _extra=extra)

    def _play(self, move: tuple[str, int]) -> tuple[str, float, bool | None]:
        what, cell = move
        if what == "reveal" and cell >= 0 and not self.mines:
            self.mines = self._lay_mines(cell)
        if what == "reveal" and cell >= 0 and self.flagged & self.mines & 1 << cell:
            return f"cell {self.tables.names[cell]} held a mine under its flag.", LanguageGameReward.fail_reward, False
        feedback, reward, won = super()._play(move)
        if won is False:
            return feedback, LanguageGameReward.fail_reward, False
        return feedback, reward, None if won and self.mines & ~self.flagged else won

    def sample_random_action(self, reveal_or_flag: str | None = None) -> str:
        """Return a cell with a verb: the requested one, or one flag for nine reveals."""
        self._begin()
        verb = reveal_or_flag or ("flag" if self.action_rng.random() < 0.1 else "reveal")
        return box(f"{verb} {self._pick(self.tables.words)}")

    @property
    def grid(self) -> list[list[int]]:
        """The mines around every cell, -1 for a mine; all 0 before the first reveal."""
        self._begin()
        around, mines = self.tables.around, self.mines
        numbers = [-1 if mines >> c & 1 else (mines & around[c]).bit_count() for c in range(self.tables.size)]
        return rows_of(numbers, self.cols)

    @grid.setter
    def grid(self, value: Sequence[Sequence[int]]) -> None:
        self._resume()
        self.rows, self.cols = len(value), len(value[0])
        self.tables = grid_of(self.rows, self.cols)
        self.mines = _bits(value, -1)
        self._restored()

    @property
    def revealed(self) -> list[list[bool]]:
        self._begin()
        return self._marked(self.open)

    @revealed.setter
    def revealed(self, value: Sequence[Sequence[bool]]) -> None:
        self._resume()
        self.open = _bits(value, True)
        self._restored()

    @property
    def flags(self) -> list[list[bool]]:
        self._begin()
        return self._marked(self.flagged)

    @flags.setter
    def flags(self, value: Sequence[Sequence[bool]]) -> None:
        self._resume()
        self.flagged = _bits(value, True)
        self._restored()

    def _marked(self, cells: int) -> list[list[bool]]:
        return rows_of([bool(cells >> c & 1) for c in range(self.tables.size)], self.cols)

    @property
    def first_reveal(self) -> bool:
        """True before the mines are placed."""
        return not self.mines

    @first_reveal.setter
    def first_reveal(self, value: bool) -> None:
        self._resume()
        if value:
            self.mines = 0


class FifteenPuzzleEnv(GemTextGame, FifteenPuzzle):
    """The sliding puzzle."""

    grammar = boxed(_DIRECTION)
    success_share = 1.0

    def __init__(self, max_turns: int | None = 20, num_rows: int | None = 2, **extra: Any):
        super().__init__(num_rows=num_rows, max_turns=max_turns, _extra=extra)

    @property
    def greatest_num(self) -> int:
        return len(solved(self.num_rows)) - 1

    @property
    def board(self) -> list[list[int | None]]:
        """The tiles, None for the empty cell."""
        self._begin()
        return rows_of([tile or None for tile in self.tiles], self.num_rows)

    @board.setter
    def board(self, value: Sequence[Sequence[int | None]]) -> None:
        self._resume()
        if len(value) != self.num_rows:
            self._resize(num_rows=len(value), max_turns=self.max_turns)
        self.tiles, self.home = tuple(int(tile or 0) for row in value for tile in row), []
        self._placed()

    def _is_solved(self) -> bool:
        self._begin()
        return self.tiles == solved(self.num_rows)


class SudokuEnv(GemTextGame, Sudoku):
    """Sudoku. As many cells are emptied as ``clues`` says, at most as many as leave one solution for sure."""

    grammar = boxed(r"\d+\s\d+\s\d+")
    history = "Your moves so far are listed below as the game goes on."

    def __init__(self, clues: int | None = 30, max_turns: int | None = 100, scale: int | None = 9, **extra: Any):
        if clues is not None and scale in MOST_EMPTY:
            clues = min(clues, MOST_EMPTY[scale])
        super().__init__(clues=clues, max_turns=max_turns, scale=scale, _extra=extra)

    @property
    def board(self) -> list[list[int]]:
        self._begin()
        return rows_of(self.grid, self.scale)

    @board.setter
    def board(self, value: Sequence[Sequence[int]]) -> None:
        self._resume()
        self.grid = [int(digit) for row in value for digit in row]
        self.left = self.grid.count(0)
        self._restored()

    full_grid = alias_attribute(
        "solution",
        lambda digits: rows_of(digits, math.isqrt(len(digits))),
        lambda rows: [int(digit) for row in rows for digit in row],
    )
    init_num_empty = alias_attribute("clues")

    def is_safe(self, grid: Sequence[Sequence[int]], row: int, col: int, num: int) -> bool:
        """Return whether the number is neither in the row, nor in the column, nor in the block."""
        n = math.isqrt(self.scale)
        top, left = row - row % n, col - col % n
        block = (grid[r][left : left + n] for r in range(top, top + n))
        return num not in grid[row] and all(line[col] != num for line in grid) and not any(num in b for b in block)


class TowerofHanoiEnv(GemTextGame, TowerofHanoi):
    """The Tower of Hanoi."""

    grammar = boxed(r"[ABCabc]\s*(?:,\s*)?[ABCabc]")
    history = SudokuEnv.history
    success_share = 1.0
    pays_last_step = False

    def __init__(self, num_disks: int | None = 3, max_turns: int | None = 100, **extra: Any):
        super().__init__(num_disks=num_disks, max_turns=max_turns, _extra=extra)

    @property
    def board(self) -> dict[str, list[int]]:
        """The disks on every peg, the lowest first."""
        self._begin()
        largest_first = range(len(self.where) - 1, -1, -1)
        return {name: [d + 1 for d in largest_first if self.where[d] == i] for i, name in enumerate(PEGS)}

    @board.setter
    def board(self, value: Mapping[str, Sequence[int]]) -> None:
        self._resume()
        peg_of = {disk: PEGS.index(name) for name, disks in value.items() for disk in disks}
        self.where = [peg_of[disk] for disk in sorted(peg_of)]


def _tile(exponent: int) -> int:
    return 1 << exponent if exponent else 0


def _exponent(tile: int) -> int:
    return max(int(tile).bit_length() - 1, 0)


class Game2048Env(GemTextGame, Game2048):
    """2048."""

    grammar = boxed(_DIRECTION, re.IGNORECASE)
    pays_steps = False

    def __init__(self, target_tile: int | None = 2048, max_turns: int | None = 1000, board_size: int = 4, **extra: Any):
        extra["board_size"] = board_size
        super().__init__(target_tile=target_tile, max_turns=max_turns, _extra=extra)

    def _parse(self, text: str) -> Any:
        return text.lower()

    def _play(self, move: str) -> tuple[str, float, bool | None]:
        if move not in DIRECTIONS:  # the pattern takes a dotless i for an i
            return f"there is no direction {move}.", 0.0, None
        return super()._play(move)

    @property
    def board(self) -> list[list[int]]:
        """The tiles, 0 for an empty cell."""
        self._begin()
        return [list(map(_tile, row)) for row in self.rows]

    @board.setter
    def board(self, value: Sequence[Sequence[int]]) -> None:
        self._resume()
        self.board_size = len(value)
        self.rows = tuple(tuple(map(_exponent, row)) for row in value)

    max_tile_achieved = alias_attribute("top", _tile, _exponent)
    init_max_tile_achieved = alias_attribute("first", _tile, _exponent)

    def _parse_action(self, action: str) -> str | None:
        found = self._find(action)
        return found[1].lower() if found else None


class SokobanEnv(GemGame, Sokoban):
    """Sokoban, also with fewer turns than a level takes."""

    grammar = boxed(_DIRECTION, re.IGNORECASE)
    #: GEM's, the names of the moves; :class:`~rollenv.envs.game.sokoban.env.Sokoban` has a space of Gymnasium's.
    action_space: Any = list(DIRECTIONS)

    def __init__(
        self,
        dim_room: tuple[int, int] | None = (6, 6),
        max_turns: int | None = 100,
        num_boxes: int | None = 3,
        **extra: Any,
    ):
        super().__init__(dim_room=dim_room, num_boxes=num_boxes, max_turns=max_turns, _extra=extra)

    def _parse(self, action: str) -> tuple[list[int], bool]:
        if self.action_format != "boxed" or self.actions_per_turn > 1:
            return super()._parse(action)
        found = self._find(action)
        return ([], False) if found is None else super()._parse(f"\\boxed{{{found[1]}}}")

    def _parse_action(self, action: str) -> str | None:
        found = self._find(action)
        return found[1].lower() if found else None

    def _step(self, action: str) -> StepResult:
        before = self.state
        observation, reward, terminated, truncated, info = super()._step(action)
        if self.rewards == self.reward_schemes["gem"]:
            reward = self._paid(before, terminated, truncated, info["valid"])
        malformed_last = terminated and not info["valid"] and self.turn == self.max_turns
        return observation, reward, terminated, truncated or malformed_last, info

    def _count_boxes_on_targets(self) -> int:
        self._begin()
        return (self.state.boxes & self.board.targets).bit_count()

    def _check_if_all_boxes_on_target(self) -> bool:
        self._begin()
        return self.state.boxes == self.board.targets

    def _paid(self, before: BoardState, terminated: bool, truncated: bool, valid: bool) -> float:
        """GEM's rewards, with what a user changed in ``LanguageGameReward``."""
        if not valid:
            return LanguageGameReward.format_error_reward
        if terminated or truncated:
            return LanguageGameReward.success_reward * (1.0 if terminated else self._share_done())
        changed = self.state != before
        return LanguageGameReward.internal_step_reward if changed else LanguageGameReward.invalid_action_reward

    def _get_instructions(self) -> str:
        """GEM's order: the limit before the symbols."""
        instructions, limit = super()._get_instructions(), f" You have {self.max_turns} turns."
        if limit not in instructions:
            return instructions
        return instructions.replace(limit, "").replace(f"\n{LEGEND}", f"{limit}\n{LEGEND}")

    @property
    def move_limit(self) -> int:
        """The longest solution of a level; the turn limit does not bound it."""
        return max(super().move_limit, 10 * self.num_boxes)

    @property
    def room_fixed(self) -> np.ndarray[Any, Any]:
        """0 for a wall, 1 for floor, 2 for a target."""
        return self._room(BoardState(-1, 0))

    @room_fixed.setter
    def room_fixed(self, value: Any) -> None:
        self._resume()
        self._build(np.asarray(value), _cells(value, 2))

    @property
    def room_state(self) -> np.ndarray[Any, Any]:
        """The same with 3 for a box on a target, 4 for a box and 5 for the player."""
        self._begin()
        return self._room(self.state)

    @room_state.setter
    def room_state(self, value: Any) -> None:
        self._resume()
        room, player = np.asarray(value), _cells(value, 5)
        old = self.board  # in the same room, what the player stands on is known though not shown
        same = (old.height, old.width, old.walls) == (*room.shape, _cells(room, 0))
        self._build(room, _cells(room, 2, 3) | (old.targets & player if same else 0))
        self.state = BoardState(player.bit_length() - 1, _cells(room, 3, 4))

    def _build(self, room: np.ndarray[Any, Any], targets: int) -> None:
        """Copy the walls of a room."""
        self.dim_room = height, width = room.shape
        self.board, self._plan = Board(height, width, _cells(room, 0), targets), None
        self._prepare_text()

    def _room(self, state: BoardState) -> np.ndarray[Any, Any]:
        self._begin()
        board = self.board
        room = np.ones(board.height * board.width, dtype=int)
        for cells, symbol in ((board.walls, 0), (board.targets, 2), (state.boxes, 4), (state.boxes & board.targets, 3)):
            room[list(bits(cells))] = symbol
        if state.player >= 0:
            room[state.player] = 5
        return room.reshape(board.height, board.width)

    @property
    def player_position(self) -> np.ndarray[Any, Any]:
        """Row and column."""
        self._begin()
        return np.array(divmod(self.state.player, self.board.width))

    @player_position.setter
    def player_position(self, value: Sequence[int]) -> None:
        self._resume()
        row, col = map(int, value)
        self.state = self.state._replace(player=row * self.board.width + col)

    @Computed
    def box_mapping(self) -> dict[tuple[int, int], tuple[int, int]]:
        """A box for every target."""
        width = self.board.width
        pairs = zip(bits(self.board.targets), bits(self.state.boxes), strict=False)
        return {divmod(target, width): divmod(box, width) for target, box in pairs}

    @Computed
    def num_gen_steps(self) -> int:
        """Return the number of steps that GEM would take to make a room of this size."""
        return int(1.7 * sum(self.dim_room))


def _bits(board: Sequence[Sequence[int]], what: int) -> int:
    """Return the cells with this value as a bit set."""
    return sum(1 << i for i, value in enumerate(value for row in board for value in row) if value == what)


def _cells(room: Any, *symbols: int) -> int:
    """Return the cells of a room with one of these symbols as a bit set."""
    return sum(1 << int(i) for i in np.flatnonzero(np.isin(room, symbols)))
