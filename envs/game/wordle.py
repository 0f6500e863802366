"""Wordle: find a hidden word from letters marked green, yellow or grey."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.envs import pictures
from rollenv.envs.game.base import TextGame, box, letters, turns, words


class Wordle(TextGame):
    """Find a word; every letter of a guess is marked G (in place), Y (elsewhere in the word) or X (not in it).

    Pays 0.5 / length for every place that turns green for the first time, and 0.5 for the word.

    Args:
        word_length: number of letters, 3 to 8.
        only_real_words: refuse guesses that are not in the word list (they cost a turn). GEM has this argument too, on
            by default, but without effect.
    """

    picture = staticmethod(pictures.wordle)
    picture_words = pictures.WORDLE_WORDS
    size_names = ("word_length", "max_turns")
    random_sizes = ((3, 15), (4, 20), (5, 25))
    state_names = ("secret", "guesses", "green", "board")

    word_length: int

    def __init__(self, word_length: int | None = 5, only_real_words: bool = False, max_turns: int | None = 15):
        self._refuses_unknown = only_real_words
        super().__init__(word_length=word_length, max_turns=max_turns)
        self.secret = ""
        self.guesses: list[str] = []
        #: Places that have been green, as bits.
        self.green = 0
        self.board = ""

    def _resized(self) -> None:
        check_length(self.word_length)
        self._prompt = _instructions(self.word_length, self.max_turns, self._refuses_unknown)

    def _new_game(self) -> None:
        listed = words(self.word_length)
        self.secret = listed[self.randint(len(listed))]
        self.guesses = []
        self.green = 0
        self.board = "No guesses yet."

    def _parse(self, text: str) -> Any:
        return letters(text)

    def _play(self, move: str) -> tuple[str, float, bool | None]:
        if len(move) != self.word_length:
            return f"{move[:40]} has {len(move)} letters, but the word has {self.word_length}.", 0.0, None
        if move in self.guesses:
            return f"you guessed {move} before.", 0.0, None
        if self._refuses_unknown and move not in known_words(self.word_length):
            return f"{move} is not in the word list.", 0.0, None
        marked = marks(self.secret, move)
        green = _green(marked) & ~self.green
        self.green |= green
        self.board = f"{self.board}\n{move} {marked}" if self.guesses else f"Guesses so far:\n{move} {marked}"
        self.guesses.append(move)
        reward = 0.5 * green.bit_count() / self.word_length
        if move == self.secret:
            return f"{move} is the word.", reward + 0.5, True
        return f"you guessed {move}, marked {marked}.", reward, None

    def _suffix(self) -> str:
        return self.board

    render = _suffix

    def _next_move(self) -> str:
        """Return the likeliest word that agrees with all marks, by the frequency of its letters at their positions."""
        fitting = list(words(self.word_length))
        for guess in self.guesses:
            feedback = marks(self.secret, guess)
            fitting = [word for word in fitting if marks(word, guess) == feedback]
        return likeliest(tuple(fitting))

    def sample_random_action(self) -> str:
        return self._pick(boxed_words(self.word_length))


def check_length(length: int) -> None:
    """Raise unless the word list has words of this length."""
    if not 3 <= length <= 8:
        raise UsageError(f"word_length must be 3 to 8, got {length}")


def marks(secret: str, guess: str) -> str:
    """Mark a guess with G (right place), Y (another place) or X for every letter.

    A letter is marked G or Y at most as often as the word has it; G counts first.
    """
    left = [a for a, b in zip(secret, guess, strict=True) if a != b]
    out = ""
    for a, b in zip(secret, guess, strict=True):
        if a == b:
            out += "G"
        elif b in left:
            left.remove(b)
            out += "Y"
        else:
            out += "X"
    return out


@functools.lru_cache(maxsize=8192)
def _green(marked: str) -> int:
    """Return the places marked G, as bits."""
    return sum(1 << i for i, mark in enumerate(marked) if mark == "G")


@functools.lru_cache(maxsize=256)
def likeliest(fitting: tuple[str, ...]) -> str:
    """Return the word whose letters are most frequent in the others, in the same place first."""
    placed = [Counter(column) for column in zip(*fitting, strict=True)]
    anywhere = Counter(letter for word in fitting for letter in sorted(set(word)))

    def score(word: str) -> int:
        here = sum(count[letter] for count, letter in zip(placed, word, strict=True))
        return here + sum(anywhere[letter] for letter in sorted(set(word)))

    return max(fitting, key=score)


@functools.cache
def known_words(length: int) -> frozenset[str]:
    """Return the words that count as real."""
    return frozenset(words(length) + words(length, True))


@functools.cache
def boxed_words(length: int) -> tuple[str, ...]:
    """Return the words of a length as actions."""
    return tuple(box(word) for word in words(length))


@functools.lru_cache(maxsize=64)
def _instructions(length: int, limit: int, real: bool) -> str:
    refused = " A guess that is not a word costs a turn." if real else ""
    return (
        f"This is Wordle. Find the hidden English word of {length} letters within {turns(limit)}. Each letter of a "
        "guess is marked: G is in the right place, Y belongs in another place, X is not in the word (or not once more)."
        f"{refused}\n"
        f"Answer with your word, as in \\boxed{{{words(length)[0]}}}."
    )
