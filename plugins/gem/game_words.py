"""GEM's guessing games and word grids."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rollenv.envs.game import crosswords
from rollenv.envs.game.base import box, words
from rollenv.envs.game.crosswords import Crosswords, Entry
from rollenv.envs.game.guess_the_number import GuessTheNumber
from rollenv.envs.game.hangman import LETTERS, Hangman
from rollenv.envs.game.mastermind import Mastermind, pegs
from rollenv.envs.game.word_search import WordSearch
from rollenv.envs.game.wordle import Wordle, marks
from rollenv.plugins.gem.game import Computed, GemGuessing, GemTextGame, alias_attribute, boxed, rows_of
from rollenv.plugins.gem.utils import LanguageGameReward


class GuessTheNumberEnv(GemGuessing, GuessTheNumber):
    """Guess the Number with GEM's rules: 0 does not count as a guess, unless it lies in the range."""

    grammar = boxed(r"\d+")
    success_share = 1.0
    pays_last_step = False

    def __init__(
        self, min_number: int | None = 1, max_number: int | None = 20, max_turns: int | None = 20, **extra: Any
    ):
        allowed = None if max_turns is None else max(max_turns, 1)
        super().__init__(min_number=min_number, max_number=max_number, max_turns=allowed, _extra=extra)
        if not self._is_random:  # with no turns, the first guess is the last
            self._resize(min_number=min_number, max_number=max_number, max_turns=max_turns)

    def _resized(self) -> None:
        if self.min_number != self.max_number:
            super()._resized()
            return
        only = self.min_number
        self._span = 0
        self._prompt = f"This is Guess the Number with one number, {only}.\nAnswer with it, as in {box(str(only))}."

    def _parse(self, text: str) -> Any:
        number = super()._parse(text)
        return None if number == 0 < self.min_number else number

    def _late_reward(self) -> float:
        in_range = self.min_number <= self.last <= self.max_number
        return super()._late_reward() if in_range else LanguageGameReward.invalid_action_reward

    game_number = alias_attribute("secret")

    @property
    def previous_guesses(self) -> set[int]:
        return set(self.guessed)

    @previous_guesses.setter
    def previous_guesses(self, value: Iterable[int]) -> None:
        self._resume()
        self.guessed = list(value)
        hints = (f"{guess} ({'higher' if self.secret > guess else 'lower'})" for guess in self.guessed)
        self.board = f"Guesses so far: {', '.join(hints)}"


class MastermindEnv(GemGuessing, Mastermind):
    """Mastermind."""

    grammar = boxed(r"\d+(?:\s+\d+)*")
    pays_steps = False

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

    game_code = alias_attribute("code", list, tuple)
    milestone = alias_attribute("best")

    @property
    def previous_guesses(self) -> set[tuple[int, ...]]:
        return set(self.guesses)

    @previous_guesses.setter
    def previous_guesses(self, value: Iterable[Sequence[int]]) -> None:
        self._resume()
        self.guesses = [tuple(guess) for guess in value]
        lines = (f"{' '.join(map(str, guess))}: {_pegs(self.code, guess)}" for guess in self.guesses)
        self.board = "\n".join(["Guesses so far:", *lines]) if self.guesses else "No guesses yet."

    def get_current_success_internal_reward(self, blackpeg: int) -> float:
        """Return the reward of black pegs as a share of the code, and record them."""
        gain = max(0, blackpeg - self.best)
        self.best += gain
        return gain / self.code_length

    def _evaluate_guess(self, player_guess: Sequence[int]) -> tuple[int, int]:
        """Black and white pegs."""
        self._begin()
        return pegs(self.code, player_guess)


class WordleEnv(GemGuessing, Wordle):
    """Wordle. ``only_real_words`` is stored without effect, the same as in GEM."""

    grammar = boxed(r"[a-zA-Z]+(?:\s+[a-zA-Z]+)*")
    success_share = 0.5
    pays_steps = False

    def __init__(
        self, word_length: int | None = 5, only_real_words: bool | None = True, max_turns: int | None = 20, **extra: Any
    ):
        super().__init__(word_length=word_length, max_turns=max_turns, _extra=extra)
        self.only_real_words = bool(only_real_words)

    def _parse(self, text: str) -> Any:
        return text.upper().replace(" ", "")

    secret_word = alias_attribute("secret", taken=str.upper)

    @property
    def previous_guesses(self) -> set[str]:
        return set(self.guesses)

    @previous_guesses.setter
    def previous_guesses(self, value: Iterable[str]) -> None:
        self._resume()
        self.guesses = list(value)
        lines = (f"{guess} {marks(self.secret, guess)}" for guess in self.guesses)
        self.board = "\n".join(["Guesses so far:", *lines]) if self.guesses else "No guesses yet."

    @property
    def milestones(self) -> list[int]:
        """1 for every place that was green before."""
        self._begin()
        return [self.green >> i & 1 for i in range(self.word_length)]

    @milestones.setter
    def milestones(self, value: Sequence[int]) -> None:
        self._resume()
        self.green = sum(1 << i for i, green in enumerate(value) if green)

    @Computed
    def all_words(self) -> list[str]:
        return _listed()

    @Computed
    def available_words(self) -> list[str]:
        """The words of the length."""
        return [word.lower() for word in words(self.word_length)]

    def get_current_success_internal_reward(self, feedback: Sequence[str]) -> float:
        """Return the reward of newly green places, and record them."""
        new = sum(1 << i for i, mark in enumerate(feedback) if mark == "G") & ~self.green
        self.green |= new
        return 0.5 * new.bit_count() / self.word_length

    def _evaluate_guess(self, player_guess: str) -> list[str]:
        """G, Y or X for every letter."""
        self._begin()
        return list(marks(self.secret, player_guess.upper()))


class HangmanEnv(GemTextGame, Hangman):
    """Hangman with GEM's rule: when all letters are shown, the word must still be named."""

    grammar = boxed(r"[a-zA-Z]+", re.IGNORECASE)
    request = "What is your guess?"
    history = GemGuessing.history
    success_share = 0.5

    def __init__(
        self, word_length: int | None = 5, hardcore: bool | None = False, max_turns: int | None = 20, **extra: Any
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

    def _is_valid(self, move: str, before: str) -> bool:
        return super()._is_valid(move, before) or len(move) == self.word_length > 1

    def get_task_suffix(self) -> str:
        self._begin()
        return f"The word now: {self._render_board()}\n{self.request}"

    def _render_board(self, *_: Any, **__: Any) -> str:
        return " ".join(self.board)

    @property
    def secret_word(self) -> str:
        self._begin()
        return self.secret

    @secret_word.setter
    def secret_word(self, value: str) -> None:
        self._resume()
        self.secret, self.word_length = value.upper(), len(value)
        if len(self.shown) != len(value):
            self.shown = "_" * len(value)

    board = alias_attribute("shown", list, "".join)

    @property
    def guessed_letters(self) -> set[str]:
        return {guess for guess in (*self.shown, *self.tried) if len(guess) == 1 and guess != "_"}

    @guessed_letters.setter
    def guessed_letters(self, value: Iterable[str]) -> None:
        self._resume()
        self.tried = [letter for letter in value if letter not in self.shown]

    @Computed
    def all_words(self) -> list[str]:
        return _listed(self.hardcore)

    @Computed
    def available_words(self) -> list[str]:
        """The words of the length."""
        return [word.lower() for word in words(self.word_length, self.hardcore)]

    def get_current_success_internal_reward(self, player_guess: str) -> None:
        """Nothing, as in GEM."""


def _listed(hard: bool = False) -> list[str]:
    """All words there are, of every length."""
    return [word.lower() for length in range(3, 9) for word in words(length, hard)]


def _pegs(code: Sequence[int], guess: Sequence[int]) -> str:
    black, white = pegs(code, guess)
    return f"{black} black, {white} white"


class CrosswordsEnv(GemTextGame, Crosswords):
    """Crosswords, also with fewer turns than letters."""

    grammar = boxed(r"\d+\s+\d+\s+[a-zA-Z]")
    request = "What is your guess?"
    history = GemGuessing.history
    a_turn_for_each_cell = False

    def __init__(
        self, hardcore: bool | None = False, max_turns: int | None = 100, num_words: int | None = 5, **extra: Any
    ):
        self._clues: dict[str, str] = {}  # those that were set, and how many cells there are to be paid for
        self._total = 0
        super().__init__(hardcore=hardcore, max_turns=max_turns, num_words=num_words, _extra=extra)

    @property
    def solution(self) -> list[list[str]]:
        """The letters, . where there is none."""
        self._begin()
        return self._cells(self.letters)

    @solution.setter
    def solution(self, value: Sequence[Sequence[str]]) -> None:
        self._resume()
        entries = tuple(_words_in(["".join(row).upper() for row in value]))
        if set(entries) != set(self.entries):
            self.entries, self.filled = entries, []
            self._restored()

    @property
    def board(self) -> list[list[str]]:
        """The letters found, _ for the others and . where there is none."""
        self._begin()
        return self._cells(self.filled)

    @board.setter
    def board(self, value: Sequence[Sequence[str]]) -> None:
        self._resume()
        cells = ((r * self.width + c, cell) for r, row in enumerate(value) for c, cell in enumerate(row))
        self.filled = [cell for cell, letter in cells if letter not in ("_", ".")]
        self._restored()

    def _cells(self, known: Container[int]) -> list[list[str]]:
        shown = {cell: letter if cell in known else "_" for cell, letter in self.letters.items()}
        return rows_of([shown.get(cell, ".") for cell in range(self.width * self.height)], self.width)

    @property
    def placed_words(self) -> dict[str, tuple[int, int, str]]:
        """Row, column and direction of every word."""
        self._begin()
        return {word: (row, col, "down" if down else "across") for word, row, col, down in self.entries}

    @placed_words.setter
    def placed_words(self, value: Mapping[str, tuple[int, int, str]]) -> None:
        self._resume()
        self.entries = tuple((word.upper(), row, col, way == "down") for word, (row, col, way) in value.items())
        self._restored()

    @property
    def clues(self) -> dict[str, str]:
        self._begin()
        known = crosswords.clues(self.hardcore) | self._clues
        return {word: known.get(word, "") for word in self.placed_words}

    @clues.setter
    def clues(self, value: Mapping[str, str]) -> None:
        self._resume()
        self._clues = {word.upper(): clue for word, clue in value.items()}
        self._restored()

    @property
    def total_letter_cells(self) -> int:
        self._begin()
        return self._total or len(self.letters)

    @total_letter_cells.setter
    def total_letter_cells(self, value: int) -> None:
        self._resume()
        self._total = value

    @Computed
    def word_data(self) -> list[dict[str, Any]]:
        """All words there are, with their clues."""
        known = crosswords.clues(self.hardcore).items()
        return [{"word": word.lower(), "clues": {"1": clue}, "hardcore": self.hardcore} for word, clue in known]

    def _new_game(self) -> None:
        self._clues, self._total = {}, 0
        super()._new_game()

    def _clue(self, i: int, entry: Entry) -> str:
        word, row, col, down = entry
        if word in crosswords.clues(self.hardcore) and word not in self._clues:
            return super()._clue(i, entry)
        way = "down" if down else "across"
        return f"{i + 1}. {way} from ({row}, {col}), {len(word)} letters: {self._clues.get(word, '?')}"

    def _play(self, move: tuple[int, int, str]) -> tuple[str, float, bool | None]:
        found = len(self.filled)
        feedback, reward, won = super()._play(move)
        return feedback, 1 / self.total_letter_cells if len(self.filled) > found else reward, won

    def _is_valid(self, move: tuple[int, int, str], before: str) -> bool:
        row, col, _ = move
        cell = row * self.width + col
        return col < self.width and cell in self.letters and cell not in self.filled

    def _parse_action(self, action: str) -> tuple[int | None, int | None, str | None]:
        found = self._find(action)
        row, col, letter = self._parse(found[1]) if found else (None, None, None)
        return row, col, letter


class WordSearchEnv(GemTextGame, WordSearch):
    """Word search that shows the number of words instead of the words."""

    grammar = boxed(r"\d+\s+\d+\s+\d+\s+\d+")
    request = "What is your guess?"
    history = GemGuessing.history
    state_names = (*WordSearch.state_names, "words", "tried")

    def __init__(
        self, hardcore: bool | None = False, max_turns: int | None = 20, num_words: int | None = 5, **extra: Any
    ):
        self.words: list[str] = []
        self.tried: list[list[int]] = []
        super().__init__(hardcore=hardcore, max_turns=max_turns, num_words=num_words, _extra=extra)

    def _new_game(self) -> None:
        super()._new_game()
        self.words, self.tried = self.hidden.copy(), []

    def _play(self, move: list[int]) -> tuple[str, float, bool | None]:
        played = super()._play(move)
        self.tried.append(move)
        return played

    def _is_valid(self, move: list[int], before: str) -> bool:
        row, col, end_row, end_col = move
        return max(move) < self.side and (row == end_row or col == end_col) and move not in self.tried

    def _parse_action(self, action: str) -> tuple[int | None, ...]:
        found = self._find(action)
        return tuple(self._parse(found[1])) if found else (None,) * 4

    def _words_known(self) -> str:
        return "how many you found is told"

    def _wanted(self) -> str:
        return f"Words found: {self.num_words - len(self.hidden)} of {self.num_words}"

    @property
    def game_board(self) -> list[list[str]]:
        self._begin()
        return rows_of(list(self.grid), self.side)

    @game_board.setter
    def game_board(self, value: Sequence[Sequence[str]]) -> None:
        self._resume()
        self.side, self.grid, self.marked = len(value), "".join(map("".join, value)), []
        self._restored()

    @property
    def placed_words(self) -> dict[str, tuple[int, int, str]]:
        """Row, column and direction of every word."""
        self._begin()
        positions = ((word, self._position_of(word)) for word in self.words)
        return {word: (row, col, "across" if row == end_row else "down") for word, (row, col, end_row, _) in positions}

    @placed_words.setter
    def placed_words(self, value: Iterable[str]) -> None:
        self._resume()
        self.words = list(value)
        self.hidden, self.num_words = self.words.copy(), len(self.words)
        self._tell()

    @property
    def correct_words(self) -> set[str]:
        """The words that were found."""
        return set(self.words) - set(self.hidden)

    @correct_words.setter
    def correct_words(self, value: Container[str]) -> None:
        self._resume()
        self.hidden = [word for word in self.words if word not in value]
        self._tell()

    @property
    def highlighted_positions(self) -> set[tuple[int, int]]:
        """The cells of the words that were found."""
        return {divmod(cell, self.side) for cell in self.marked}

    @highlighted_positions.setter
    def highlighted_positions(self, value: Iterable[tuple[int, int]]) -> None:
        self._resume()
        self.marked = [row * self.side + col for row, col in value]
        self._restored()

    attempts = alias_attribute("tried", lambda moves: list(map(tuple, moves)), lambda moves: list(map(list, moves)))

    @Computed
    def word_list(self) -> list[str]:
        """All words there are."""
        return [word.lower() for length in range(3, 9) for word in words(length, self.hardcore)]


def _words_in(rows: Sequence[str]) -> Iterator[Entry]:
    """Yield the words of two or more letters in a grid, where dots separate words."""
    for down, lines in ((False, rows), (True, ["".join(column) for column in zip(*rows, strict=True)])):
        for i, line in enumerate(lines):
            for word in re.finditer(r"[A-Z]{2,}", line):
                yield (word[0], word.start(), i, True) if down else (word[0], i, word.start(), False)
