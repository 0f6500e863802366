"""GEM's games of guessing: a number, a code, a word."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from rollenv.compat.gem.constants import LanguageGameReward
from rollenv.compat.gem.game import GemGuessing, GemTextGame, Told, boxed
from rollenv.envs.game.base import box, words
from rollenv.envs.game.guess_the_number import GuessTheNumber
from rollenv.envs.game.hangman import LETTERS, Hangman
from rollenv.envs.game.mastermind import Mastermind, pegs
from rollenv.envs.game.wordle import Wordle, marks


class GuessTheNumberEnv(GemGuessing, GuessTheNumber):
    """Guess the Number with GEM's rules: 0 is no guess, unless it lies in the range."""

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

    @property
    def game_number(self) -> int:
        """The hidden number."""
        self._begin()
        return self.secret

    @game_number.setter
    def game_number(self, value: int) -> None:
        self._resume()
        self.secret = value

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

    @property
    def game_code(self) -> list[int]:
        """The hidden code."""
        self._begin()
        return list(self.code)

    @game_code.setter
    def game_code(self, value: list[int]) -> None:
        self._resume()
        self.code = tuple(value)

    @property
    def previous_guesses(self) -> set[tuple[int, ...]]:
        return set(self.guesses)

    @previous_guesses.setter
    def previous_guesses(self, value: Iterable[Sequence[int]]) -> None:
        self._resume()
        self.guesses = [tuple(guess) for guess in value]
        lines = (f"{' '.join(map(str, guess))}: {_pegs(self.code, guess)}" for guess in self.guesses)
        self.board = "\n".join(["Guesses so far:", *lines]) if self.guesses else "No guesses yet."

    @property
    def milestone(self) -> int:
        """The most black pegs so far."""
        return self.best

    @milestone.setter
    def milestone(self, value: int) -> None:
        self._resume()
        self.best = value

    def get_current_success_internal_reward(self, blackpeg: int) -> float:
        """Return the pay of black pegs, as a share of the code; they are remembered."""
        gain = max(0, blackpeg - self.best)
        self.best += gain
        return gain / self.code_length

    def _evaluate_guess(self, player_guess: Sequence[int]) -> tuple[int, int]:
        """Black and white pegs."""
        self._begin()
        return pegs(self.code, player_guess)


class WordleEnv(GemGuessing, Wordle):
    """Wordle. ``only_real_words`` is kept and does nothing, as in GEM."""

    grammar = boxed(r"[a-zA-Z]+(?:\s+[a-zA-Z]+)*")
    success_share = 0.5
    pays_steps = False

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
        self._resume()
        self.secret = value.upper()

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

    @Told
    def all_words(self) -> list[str]:
        return _listed()

    @Told
    def available_words(self) -> list[str]:
        """The words of the length."""
        return [word.lower() for word in words(self.word_length)]

    def get_current_success_internal_reward(self, feedback: Sequence[str]) -> float:
        """Return the pay of places that are green for the first time; they are remembered."""
        new = sum(1 << i for i, mark in enumerate(feedback) if mark == "G") & ~self.green
        self.green |= new
        return 0.5 * new.bit_count() / self.word_length

    def _evaluate_guess(self, player_guess: str) -> list[str]:
        """G, Y or X for every letter."""
        self._begin()
        return list(marks(self.secret, player_guess.upper()))


class HangmanEnv(GemTextGame, Hangman):
    """Hangman that continues when every letter is shown, until the word is named, as GEM's does."""

    grammar = boxed(r"[a-zA-Z]+", re.IGNORECASE)
    request = "What is your guess?"
    history = GemGuessing.history
    success_share = 0.5

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

    @property
    def board(self) -> list[str]:
        """The letters, _ for a hidden one."""
        self._begin()
        return list(self.shown)

    @board.setter
    def board(self, value: Sequence[str]) -> None:
        self._resume()
        self.shown = "".join(value)

    @property
    def guessed_letters(self) -> set[str]:
        return {guess for guess in (*self.shown, *self.tried) if len(guess) == 1 and guess != "_"}

    @guessed_letters.setter
    def guessed_letters(self, value: Iterable[str]) -> None:
        self._resume()
        self.tried = [letter for letter in value if letter not in self.shown]

    @Told
    def all_words(self) -> list[str]:
        return _listed(self.hardcore)

    @Told
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
