"""Guess a hidden number from the hints higher and lower."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

from rollenv.core.errors import UsageError
from rollenv.envs.game.base import SMALL, TextGame, box, numbers, turns
from rollenv.envs.splits import check_split, in_split


class GuessTheNumber(TextGame):
    """Find a number; every guess is answered with whether it is higher or lower.

    Pays 1 for the number, and at the turn limit 1 - distance / range of the last guess, if that lies in the range.

    Args:
        min_number, max_number: the number lies between them, both included.
        action_format: ``boxed``, or ``bare`` for nothing but the number.
        split: ``train`` or ``test`` for the numbers of that split (one in four is for tests); ``all`` for any.
    """

    size_names = ("min_number", "max_number", "max_turns")
    random_sizes = [
        (low, low + span, math.isqrt(span - 1) + 2)  # ceil(sqrt(span)) + 1 turns
        for low in range(1, 11)
        for span in range(5, 51)
    ]
    state_names = ("secret", "guessed", "last", "board")

    min_number: int
    max_number: int

    def __init__(
        self,
        min_number: int | None = 1,
        max_number: int | None = 20,
        max_turns: int | None = 10,
        action_format: Literal["boxed", "bare"] = "boxed",
        split: str = "all",
    ):
        check_split(split)
        self.split = split
        self.boxed = action_format == "boxed"
        super().__init__(min_number=min_number, max_number=max_number, max_turns=max_turns)
        self.secret = self.last = 0
        self.guessed: list[int] = []
        self.board = ""

    def _resized(self) -> None:
        if not self.min_number < self.max_number:
            raise UsageError(f"min_number must be less than max_number; got {self.min_number} and {self.max_number}")
        self._span = self.max_number - self.min_number
        if not _of_split(self.min_number, self.max_number, self.split):
            raise UsageError(f"no number from {self.min_number} to {self.max_number} is in split {self.split!r}")
        self._prompt = _instructions(self.min_number, self.max_number, self.max_turns, self.boxed)

    def _new_game(self) -> None:
        secrets = _of_split(self.min_number, self.max_number, self.split)
        self.secret = self.last = secrets[self.randint(len(secrets))]
        self.guessed = []
        self.board = "Guesses so far: "

    def _parse(self, text: str) -> Any:
        if (number := SMALL.get(text)) is not None:
            return number
        found = numbers(text, 1)
        return found[0] if found else None

    def _play(self, move: int) -> tuple[str, float, bool | None]:
        self.last = move
        if move == self.secret:
            return f"{move} is right.", 1.0, True
        if move in self.guessed:
            return f"you guessed {move} before.", 0.0, None
        if not self.min_number <= move <= self.max_number:
            return f"{move} is outside the range.", 0.0, None
        hint = "higher" if self.secret > move else "lower"
        self.board += f", {move} ({hint})" if self.guessed else f"{move} ({hint})"
        self.guessed.append(move)
        return f"the number is {hint} than {move}.", 0.0, None

    def _late_reward(self) -> float:
        in_range = self.min_number <= self.last <= self.max_number
        return 1 - abs(self.last - self.secret) / self._span if in_range else 0.0

    def _suffix(self) -> str:
        return self.board

    render = _suffix

    def _next_move(self) -> str:
        """Return the middle of the range that the hints leave."""
        low = max((g + 1 for g in self.guessed if g < self.secret), default=self.min_number)
        high = min((g - 1 for g in self.guessed if g > self.secret), default=self.max_number)
        return str((low + high) // 2)

    def sample_random_action(self) -> str:
        random = self._rollenv_random_actions or self.action_rng  # `_pick` of a new range takes twice as long
        return self._write(str(self.min_number + int(random.random() * (self._span + 1))))


@functools.lru_cache(maxsize=64)
def _of_split(low: int, high: int, split: str) -> Sequence[int]:
    every = range(low, high + 1)
    return every if split == "all" else [n for n in every if in_split(str(n), split, 4)]


@functools.lru_cache(maxsize=1024)
def _instructions(low: int, high: int, limit: int, boxed: bool) -> str:
    answer = f"Answer with your guess, as in {box(str(high))}." if boxed else "Answer with nothing but your guess."
    return (
        f"This is Guess the Number. I have drawn a whole number from {low} to {high}; find it within {turns(limit)}. "
        f"After a guess I say whether the number is higher or lower.\n{answer}"
    )
