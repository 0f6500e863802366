r"""GEM's games by GEM's names: rollenv's own, with GEM's constructors, attributes, action grammar and rules of ending.

What differs from rollenv's own games is here and nowhere else:

- **Constructors** take GEM's arguments in GEM's order with GEM's defaults, and ignore names that nobody knows.
- **Actions** are read as GEM reads them, to the letter: the last ``\boxed{...}`` that matches the game's grammar
  counts, and nothing else does.
- **Ends**: a limit sets both flags; Hangman and Minesweeper end when GEM's do.
- **Texts**: the state ends with a request for the next action, and the games of guessing leave the history to a
  wrapper.
- **Attributes** that GEM's callers read are properties; where GEM's is a list or an array, it is made when it is read.

What still differs from GEM on purpose is listed in ``docs/gem_games.md``, which a test against GEM itself keeps true.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any

import numpy as np

from rollenv.compat.gem.core import GemEnv
from rollenv.compat.gem.game import GemGame, GemGuessing, GemTextGame, boxed
from rollenv.core import StepResult
from rollenv.envs.games.base import box, words
from rollenv.envs.games.crosswords import Crosswords, clues
from rollenv.envs.games.fifteen_puzzle import FifteenPuzzle, solved
from rollenv.envs.games.game_2048 import DIRECTIONS, Game2048
from rollenv.envs.games.guess_the_number import GuessTheNumber
from rollenv.envs.games.hangman import LETTERS, Hangman
from rollenv.envs.games.mastermind import Mastermind
from rollenv.envs.games.minesweeper import Minesweeper
from rollenv.envs.games.sudoku import Sudoku
from rollenv.envs.games.sudoku_square import MOST_EMPTY
from rollenv.envs.games.tower_of_hanoi import PEGS, TowerofHanoi
from rollenv.envs.games.wiki_game import WikiGame
from rollenv.envs.games.word_search import WordSearch
from rollenv.envs.games.wordle import Wordle
from rollenv.envs.sokoban.board import State, bits
from rollenv.envs.sokoban.env import LEGEND, Sokoban

_DIRECTION = r"up|down|left|right"


class GuessTheNumberEnv(GemGuessing, GuessTheNumber):
    """Guess the Number with GEM's rules: 0 is no guess, unless it lies in the range."""

    grammar = boxed(r"\d+")

    def __init__(
        self, min_number: int | None = 1, max_number: int | None = 20, max_turns: int | None = 20, **extra: Any
    ):
        super().__init__(min_number=min_number, max_number=max_number, max_turns=max_turns, _extra=extra)

    def _parse(self, text: str) -> Any:
        number = super()._parse(text)
        return None if number == 0 < self.min_number else number

    @property
    def game_number(self) -> int:
        """The hidden number."""
        self._begin()
        return self.secret

    @game_number.setter
    def game_number(self, value: int) -> None:
        self.secret = value

    @property
    def previous_guesses(self) -> set[int]:
        return set(self.guessed)


class MastermindEnv(GemGuessing, Mastermind):
    """Mastermind."""

    grammar = boxed(r"\d+(?:\s+\d+)*")

    def __init__(
        self,
        code_length: int | None = 4,
        num_numbers: int | None = 6,
        duplicate_numbers: bool | None = False,
        max_turns: int | None = 20,
        **extra: Any,
    ):
        extra["duplicate_numbers"] = bool(duplicate_numbers)
        super().__init__(code_length=code_length, num_numbers=num_numbers, max_turns=max_turns, _extra=extra)

    @property
    def game_code(self) -> list[int]:
        """The hidden code."""
        self._begin()
        return list(self.code)

    @game_code.setter
    def game_code(self, value: list[int]) -> None:
        self.code = tuple(value)

    @property
    def previous_guesses(self) -> set[tuple[int, ...]]:
        return set(self.guesses)


class MinesweeperEnv(GemTextGame, Minesweeper):
    """Minesweeper as GEM ends it: won by the last reveal if every mine has a flag by then; a flag saves nobody."""

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
            return f"cell {self.tables.names[cell]} held a mine under its flag.", 0.0, False
        said, reward, won = super()._play(move)
        return said, reward, None if won and self.mines & ~self.flagged else won

    def sample_random_action(self, reveal_or_flag: str | None = None) -> str:
        """A cell with a verb: the one that was asked for, or one flag for nine reveals."""
        self._begin()
        verb = reveal_or_flag or ("flag" if self.action_rng.random() < 0.1 else "reveal")
        return box(f"{verb} {self._pick(self.tables.words)}")

    @property
    def grid(self) -> list[list[int]]:
        """The mines around every cell, -1 for a mine; all 0 before the first reveal."""
        self._begin()
        around, mines = self.tables.around, self.mines
        numbers = [-1 if mines >> c & 1 else (mines & around[c]).bit_count() for c in range(self.tables.size)]
        return _rows(numbers, self.cols)

    @property
    def revealed(self) -> list[list[bool]]:
        return self._marked(self.open)

    @property
    def flags(self) -> list[list[bool]]:
        return self._marked(self.flagged)

    def _marked(self, cells: int) -> list[list[bool]]:
        return _rows([bool(cells >> c & 1) for c in range(self.tables.size)], self.cols)

    @property
    def first_reveal(self) -> bool:
        """Whether no mine is laid yet."""
        return not self.mines


class WordleEnv(GemGuessing, Wordle):
    """Wordle. ``only_real_words`` is kept and does nothing, as in GEM."""

    grammar = boxed(r"[a-zA-Z]+(?:\s+[a-zA-Z]+)*")

    def __init__(
        self,
        word_length: int | None = 5,
        only_real_words: bool | None = True,
        max_turns: int | None = 20,
        **extra: Any,
    ):
        super().__init__(word_length=word_length, max_turns=max_turns, _extra=extra)
        self.only_real_words = bool(only_real_words)

    def _parse(self, text: str) -> Any:
        return text.upper().replace(" ", "")

    @property
    def secret_word(self) -> str:
        self._begin()
        return self.secret

    @secret_word.setter
    def secret_word(self, value: str) -> None:
        self.secret = value.upper()

    @property
    def previous_guesses(self) -> set[str]:
        return set(self.guesses)


class HangmanEnv(GemTextGame, Hangman):
    """Hangman that goes on when every letter is shown, until the word is named, as GEM's does."""

    grammar = boxed(r"[a-zA-Z]+", re.IGNORECASE)
    request = "What is your guess?"
    history = GemGuessing.history

    def __init__(
        self,
        word_length: int | None = 5,
        hardcore: bool | None = False,
        max_turns: int | None = 20,
        **extra: Any,
    ):
        extra["hardcore"] = bool(hardcore)
        super().__init__(word_length=word_length, max_turns=max_turns, _extra=extra)

    def _parse(self, text: str) -> Any:
        return text.upper()

    def sample_random_word(self) -> str:
        """A word of the list."""
        self._begin()
        return box(self._pick(words(self.word_length, self.hardcore)))

    def sample_random_letter(self) -> str:
        self._begin()
        return box(self._pick(LETTERS))

    def sample_random_action(self) -> str:
        """A word or a letter, one as likely as the other."""
        return self.sample_random_word() if self.action_rng.random() < 0.5 else self.sample_random_letter()

    def _completed(self, reward: float) -> tuple[str, float, bool | None]:
        return "all letters are shown; name the word to win.", reward, None

    def _suffix(self) -> str:
        return f"The word now: {' '.join(self.shown)}\n{self.request}"

    @property
    def secret_word(self) -> str:
        self._begin()
        return self.secret

    @secret_word.setter
    def secret_word(self, value: str) -> None:
        self.secret = value.upper()

    @property
    def board(self) -> list[str]:
        """The letters, _ for a hidden one."""
        self._begin()
        return list(self.shown)

    @property
    def guessed_letters(self) -> set[str]:
        return {guess for guess in (*self.shown, *self.tried) if len(guess) == 1 and guess != "_"}


class FifteenPuzzleEnv(GemTextGame, FifteenPuzzle):
    """The sliding puzzle."""

    grammar = boxed(_DIRECTION)

    def __init__(self, max_turns: int | None = 20, num_rows: int | None = 2, **extra: Any):
        super().__init__(num_rows=num_rows, max_turns=max_turns, _extra=extra)

    @property
    def greatest_num(self) -> int:
        return len(solved(self.num_rows)) - 1

    @property
    def board(self) -> list[list[int | None]]:
        """The tiles, None for the empty cell."""
        self._begin()
        return _rows([tile or None for tile in self.tiles], self.num_rows)


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
        return _rows(self.grid, self.scale)

    @property
    def full_grid(self) -> list[list[int]]:
        """The solution."""
        self._begin()
        return _rows(self.solution, self.scale)

    @property
    def init_num_empty(self) -> int:
        return self.clues


class TowerofHanoiEnv(GemTextGame, TowerofHanoi):
    """The Tower of Hanoi."""

    grammar = boxed(r"[ABCabc]\s*(?:,\s*)?[ABCabc]")
    history = SudokuEnv.history

    def __init__(self, num_disks: int | None = 3, max_turns: int | None = 100, **extra: Any):
        super().__init__(num_disks=num_disks, max_turns=max_turns, _extra=extra)

    @property
    def board(self) -> dict[str, list[int]]:
        """The disks on every peg, the lowest first."""
        self._begin()
        largest_first = range(self.num_disks - 1, -1, -1)
        return {name: [d + 1 for d in largest_first if self.where[d] == i] for i, name in enumerate(PEGS)}


class Game2048Env(GemTextGame, Game2048):
    """2048."""

    grammar = boxed(_DIRECTION, re.IGNORECASE)

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
        return [[1 << tile if tile else 0 for tile in row] for row in self.rows]

    @property
    def max_tile_achieved(self) -> int:
        return 1 << self.top

    @property
    def init_max_tile_achieved(self) -> int:
        return 1 << self.first


class CrosswordsEnv(GemTextGame, Crosswords):
    """Crosswords, also with fewer turns than letters."""

    grammar = boxed(r"\d+\s+\d+\s+[a-zA-Z]")
    request = "What is your guess?"
    history = GemGuessing.history
    a_turn_for_each_cell = False

    def __init__(
        self,
        hardcore: bool | None = False,
        max_turns: int | None = 100,
        num_words: int | None = 5,
        **extra: Any,
    ):
        super().__init__(hardcore=hardcore, max_turns=max_turns, num_words=num_words, _extra=extra)

    @property
    def solution(self) -> list[list[str]]:
        """The letters, . where there is none."""
        self._begin()
        return self._cells(self.letters)

    @property
    def board(self) -> list[list[str]]:
        """The letters found, _ for the others and . where there is none."""
        self._begin()
        return self._cells(self.filled)

    def _cells(self, known: Container[int]) -> list[list[str]]:
        shown = {cell: letter if cell in known else "_" for cell, letter in self.letters.items()}
        return _rows([shown.get(cell, ".") for cell in range(self.width * self.height)], self.width)

    @property
    def placed_words(self) -> dict[str, tuple[int, int, str]]:
        """Row, column and direction of every word."""
        self._begin()
        return {word: (row, col, "down" if down else "across") for word, row, col, down in self.entries}

    @property
    def clues(self) -> dict[str, str]:
        return {word: clues(self.hardcore)[word] for word in self.placed_words}

    @property
    def total_letter_cells(self) -> int:
        self._begin()
        return len(self.letters)


class WordSearchEnv(GemTextGame, WordSearch):
    """Word search that tells how many words there are, and not which."""

    grammar = boxed(r"\d+\s+\d+\s+\d+\s+\d+")
    request = "What is your guess?"
    history = GemGuessing.history
    state_names = (*WordSearch.state_names, "words")

    def __init__(
        self,
        hardcore: bool | None = False,
        max_turns: int | None = 20,
        num_words: int | None = 5,
        **extra: Any,
    ):
        self.words: list[str] = []
        super().__init__(hardcore=hardcore, max_turns=max_turns, num_words=num_words, _extra=extra)

    def _new_game(self) -> None:
        super()._new_game()
        self.words = self.hidden.copy()

    def _told(self) -> str:
        return "how many you found is told"

    def _wanted(self) -> str:
        return f"Words found: {self.num_words - len(self.hidden)} of {self.num_words}"

    @property
    def game_board(self) -> list[list[str]]:
        self._begin()
        return _rows(list(self.grid), self.side)

    @property
    def placed_words(self) -> dict[str, tuple[int, int, str]]:
        """Row, column and direction of every word."""
        self._begin()
        places = ((word, self._place(word)) for word in self.words)
        return {word: (row, col, "across" if row == end_row else "down") for word, (row, col, end_row, _) in places}

    @property
    def correct_words(self) -> set[str]:
        """The words that were found."""
        return set(self.words) - set(self.hidden)


class SokobanEnv(GemGame, Sokoban):
    """Sokoban, also with fewer turns than a level takes."""

    grammar = boxed(_DIRECTION, re.IGNORECASE)

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

    def _step(self, action: str) -> StepResult:
        observation, reward, terminated, truncated, info = super()._step(action)
        malformed_last = terminated and not info["valid"] and self.turn == self.max_turns
        return observation, reward, terminated, truncated or malformed_last, info

    def _instructions(self) -> str:
        """GEM's order: the limit before the symbols."""
        told, limit = super()._instructions(), f" You have {self.max_turns} turns."
        return told.replace(limit, "").replace(f"\n{LEGEND}", f"{limit}\n{LEGEND}") if limit in told else told

    @property
    def move_limit(self) -> int:
        """How long the solution of a level may be: as long as it has to, whatever the limit."""
        return max(super().move_limit, 10 * self.num_boxes)

    @property
    def room_fixed(self) -> np.ndarray[Any, Any]:
        """0 for a wall, 1 for floor, 2 for a target."""
        return self._room(State(-1, 0))

    @property
    def room_state(self) -> np.ndarray[Any, Any]:
        """The same with 3 for a box on a target, 4 for a box and 5 for the player."""
        self._begin()
        return self._room(self.state)

    def _room(self, state: State) -> np.ndarray[Any, Any]:
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


class WikiGameEnv(GemGame, WikiGame):
    """The wiki game of GEM's main branch, on the encyclopedia made here unless a server is named."""

    def __init__(self, max_turns: int | None = 20, **extra: Any):
        super().__init__(max_turns=max_turns, _extra=extra)


def _rows(cells: list[Any], width: int) -> list[list[Any]]:
    return [cells[i : i + width] for i in range(0, len(cells), width)]


#: The class here for each of rollenv's own.
CLASSES: dict[str, str] = {
    f"{base.__module__}:{base.__name__}": cls.__name__
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, GemGame) and cls.__name__.endswith("Env")
    for base in [next(base for base in cls.__mro__ if not issubclass(base, GemEnv))]
}
