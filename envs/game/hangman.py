"""Hangman: find a hidden word letter by letter."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

from rollenv.envs import pictures
from rollenv.envs.game.base import TextGame, box, letters, turns, words
from rollenv.envs.game.wordle import check_length

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ACTIONS = tuple(map(box, LETTERS))


class Hangman(TextGame):
    """Guess letters, or the whole word. The game is won when every letter is shown, or the word is named.

    Pays 0.5 / length for every place that is filled, and 0.5 for winning.

    The oracle guesses the letter that most of the words still possible have. Ten turns are too few to be sure of a word
    of three letters in that way, so with its last turn it looks at the hidden word.

    Args:
        word_length: number of letters, 3 to 8.
        hardcore: draw from rarer words (of 6 letters and more).
    """

    picture = staticmethod(pictures.hangman)
    picture_words = pictures.HANGMAN_WORDS
    size_names = ("word_length", "max_turns")
    random_sizes = ((3, 10), (5, 15), (7, 20))
    state_names = ("secret", "shown", "tried")

    word_length: int

    def __init__(self, word_length: int | None = 5, hardcore: bool = False, max_turns: int | None = 15):
        self.hardcore = hardcore
        super().__init__(word_length=word_length, max_turns=max_turns)
        self.secret = ""
        #: The word with _ for hidden letters.
        self.shown = ""
        self.tried: list[str] = []

    def _resized(self) -> None:
        check_length(self.word_length)
        self._prompt = _instructions(self.word_length, self.max_turns)

    def _new_game(self) -> None:
        listed = words(self.word_length, self.hardcore)
        self.secret = listed[self.randint(len(listed))]
        self.shown = "_" * self.word_length
        self.tried = []

    def _parse(self, text: str) -> Any:
        return letters(text)

    def _play(self, move: str) -> tuple[str, float, bool | None]:
        secret = self.secret
        if move == secret:
            reward = 0.5 + 0.5 * self.shown.count("_") / self.word_length
            self.shown = secret
            return f"{secret} is the word.", reward, True
        if len(move) not in (1, self.word_length):
            return f"{move[:40]} has {len(move)} letters, but the word has {self.word_length}.", 0.0, None
        if move in self.tried or move in self.shown:
            return f"you guessed {move} before.", 0.0, None
        if len(move) > 1 or move not in secret:
            self.tried.append(move)
            what = "not the word" if len(move) > 1 else "not in the word"
            return f"{move} is {what}.", 0.0, None
        self.shown = "".join(b if b == move else a for a, b in zip(self.shown, secret, strict=True))
        reward = 0.5 * secret.count(move) / self.word_length
        if self.shown == secret:
            return self._completed(reward)
        return f"{move} is in the word.", reward, None

    def _completed(self, reward: float) -> tuple[str, float, bool | None]:
        """Return the outcome of a won game, whose last letter was just found."""
        return f"that completes the word {self.secret}.", reward + 0.5, True

    def _suffix(self) -> str:
        return f"The word now: {' '.join(self.shown)}\nMissed: {', '.join(self.tried) or 'nothing'}"

    render = _suffix

    def _next_move(self) -> str:
        if self.turn == self.max_turns - 1:
            return self.secret
        fitting = [word for word in words(self.word_length, self.hardcore) if self._fits(word)]
        return _likeliest_letter(tuple(fitting), self.shown)

    def _fits(self, word: str) -> bool:
        shown = self.shown
        return all(a == b or (a == "_" and b not in shown) for a, b in zip(shown, word, strict=True)) and not any(
            missed in word for missed in self.tried
        )

    def sample_random_action(self) -> str:
        return self._pick(_ACTIONS)


@functools.lru_cache(maxsize=256)
def _likeliest_letter(fitting: tuple[str, ...], shown: str) -> str:
    """Return a word if at most two fit, else the hidden letter that most of them contain."""
    if len(fitting) <= 2:
        return fitting[0]
    counts = Counter(letter for word in fitting for letter in sorted(set(word)) if letter not in shown)
    return max(sorted(counts), key=counts.__getitem__)


@functools.lru_cache(maxsize=64)
def _instructions(length: int, limit: int) -> str:
    return (
        f"This is Hangman. Find the hidden English word of {length} letters. A letter that the word has is shown in "
        "all its places; _ is a place still hidden.\n"
        f"Answer with a letter, as in \\boxed{{E}}, or with the whole word, as in \\boxed{{{words(length)[0]}}}.\n"
        f"Win within {turns(limit)}."
    )
