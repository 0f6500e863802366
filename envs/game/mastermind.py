"""Mastermind: find a hidden code of numbers from black and white pegs."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.envs import pictures
from rollenv.envs.game.base import TextGame, box, numbers, turns

Code = tuple[int, ...]


class Mastermind(TextGame):
    """Find a code; every guess gets a black peg for each number in its place and a white one for each out of place.

    Pays for the most black pegs so far, as a share of the code, so that a solved code has paid 1.

    Args:
        num_numbers: the largest number in a code, from 1.
    """

    picture = staticmethod(pictures.mastermind)
    picture_words = pictures.MASTERMIND_WORDS
    size_names = ("code_length", "num_numbers", "max_turns")
    random_sizes = ((2, 4, 10), (4, 6, 20), (4, 8, 30))
    state_names = ("code", "guesses", "best", "board")

    code_length: int
    num_numbers: int

    def __init__(
        self,
        code_length: int | None = 4,
        num_numbers: int | None = 6,
        duplicate_numbers: bool = False,
        max_turns: int | None = 20,
    ):
        self.duplicate_numbers = duplicate_numbers
        super().__init__(code_length=code_length, num_numbers=num_numbers, max_turns=max_turns)
        self.code: Code = ()
        self.guesses: list[Code] = []
        self.best = 0
        self.board = ""

    def _resized(self) -> None:
        if self.code_length < 1 or self.num_numbers < 1:
            raise UsageError(
                f"code_length and num_numbers must be at least 1, got {self.code_length}, {self.num_numbers}"
            )
        if self.num_numbers**self.code_length > 10**6:
            raise UsageError(f"{self.num_numbers} ** {self.code_length} codes are more than a million; use fewer")
        if self.code_length > self.num_numbers and not self.duplicate_numbers:
            raise UsageError(
                f"a code of {self.code_length} different numbers needs num_numbers >= {self.code_length}, "
                f"got {self.num_numbers}; or pass duplicate_numbers=True"
            )

    def _instructions(self) -> str:
        example = " ".join(str(i % self.num_numbers + 1) for i in range(self.code_length))
        twice = "may occur more than once" if self.duplicate_numbers else "occurs at most once"
        return (
            f"This is Mastermind. The hidden code has {self.code_length} numbers from 1 to {self.num_numbers}; each "
            f"{twice}. Find it within {turns(self.max_turns)}. A guess gets a black peg for each number in the right "
            "place, and a white peg for each that belongs in another place.\n"
            f"Answer with the numbers and spaces between them, as in \\boxed{{{example}}}."
        )

    def _new_game(self) -> None:
        self.code = self._draw(self.np_random.random)
        self.guesses = []
        self.best = 0
        self.board = "No guesses yet."

    def _draw(self, random: Callable[[], float]) -> Code:
        n = self.num_numbers
        if self.duplicate_numbers:
            return tuple([int(random() * n) + 1 for _ in range(self.code_length)])
        left = list(range(1, n + 1))
        return tuple([left.pop(int(random() * (n - i))) for i in range(self.code_length)])

    def _set_state(self, state: dict[str, Any]) -> None:
        super()._set_state({**state, "code": tuple(state["code"]), "guesses": list(map(tuple, state["guesses"]))})

    def _parse(self, text: str) -> Any:
        return _code(text) if len(text) < 100 else _code.__wrapped__(text)

    def _play(self, move: Code) -> tuple[str, float, bool | None]:
        if len(move) != self.code_length:
            return f"your guess has {len(move)} numbers, but the code has {self.code_length}.", 0.0, None
        shown = shown_code(move)
        if move in self.guesses:
            return f"you guessed {shown} before.", 0.0, None
        if min(move) < 1 or max(move) > self.num_numbers:
            return f"{shown} has numbers outside 1 to {self.num_numbers}.", 0.0, None
        black, white = pegs(self.code, move)
        gain = max(0, black - self.best)
        self.best += gain
        line = f"{shown}: {black} black, {white} white"
        self.board = f"{self.board}\n{line}" if self.guesses else f"Guesses so far:\n{line}"
        self.guesses.append(move)
        return f"{line}.", gain / self.code_length, True if black == self.code_length else None

    def _suffix(self) -> str:
        return self.board

    render = _suffix

    def _next_move(self) -> str:
        """Return the first code that agrees with all answers."""
        answers = [(guess, pegs(self.code, guess)) for guess in self.guesses]
        for code in _codes(self.code_length, self.num_numbers, self.duplicate_numbers):
            if all(pegs(code, guess) == answer for guess, answer in answers):
                return shown_code(code)
        raise AssertionError("the hidden code agrees with its own answers")

    def sample_random_action(self) -> str:
        if self.num_numbers**self.code_length > 10_000:
            return box(shown_code(self._draw(self.action_rng.random)))
        return self._pick(_boxed_codes(self.code_length, self.num_numbers, self.duplicate_numbers))


def _codes(length: int, n: int, duplicates: bool) -> Iterator[Code]:
    """Yield all codes in order."""
    each = range(1, n + 1)
    if duplicates:
        return itertools.product(each, repeat=length)
    return itertools.permutations(each, length)


@functools.lru_cache(maxsize=16)
def _boxed_codes(length: int, n: int, duplicates: bool) -> tuple[str, ...]:
    """Return all codes as actions."""
    return tuple(box(shown_code(code)) for code in _codes(length, n, duplicates))


@functools.lru_cache(maxsize=4096)
def shown_code(code: Code) -> str:
    """Join the numbers with spaces."""
    return " ".join(map(str, code))


@functools.lru_cache(maxsize=4096)
def _code(text: str) -> Code | None:
    found = numbers(text)
    return tuple(found) if found else None


def pegs(code: Sequence[int], guess: Sequence[int]) -> tuple[int, int]:
    """Score a guess: the numbers of black pegs (right place) and white pegs (another place)."""
    black, left = sum(map(operator.eq, code, guess)), list(code)
    for number in guess:
        if number in left:
            left.remove(number)
    return black, len(code) - len(left) - black
