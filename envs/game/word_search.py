"""Word search: find words hidden in a square of letters."""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

from rollenv.core.errors import UsageError
from rollenv.envs import pictures
from rollenv.envs.game.base import TextGame, box, numbers, turns, words


class WordSearch(TextGame):
    """Find all hidden words; they run across or down. Each pays an equal share.

    Args:
        hardcore: longer and rarer words, with only their lengths given.
        num_words: hidden words, 1 to 20.
    """

    picture = staticmethod(pictures.letters)
    picture_words = pictures.LETTERS_WORDS
    size_names = ("hardcore", "max_turns", "num_words")
    random_sizes = ((False, 20, 5), (True, 20, 5))
    state_names: ClassVar[tuple[str, ...]] = ("side", "grid", "hidden", "marked")

    hardcore: bool
    num_words: int

    def __init__(self, hardcore: bool | None = False, max_turns: int | None = 20, num_words: int | None = 5):
        super().__init__(hardcore=hardcore, max_turns=max_turns, num_words=num_words)
        #: Number of rows and columns.
        self.side = 0
        #: All letters, row by row.
        self.grid = ""
        #: Words not found yet.
        self.hidden: list[str] = []
        #: Cells of the words that were found.
        self.marked: list[int] = []
        self.board = ""

    def _resized(self) -> None:
        if not 1 <= self.num_words <= 20:
            raise UsageError(f"num_words must be 1 to 20, got {self.num_words}")
        self._prompt = _instructions(self._words_known(), self.num_words, self.max_turns)

    def _words_known(self) -> str:
        """Return the text of the board about the words to find."""
        return "their lengths are given" if self.hardcore else "they are listed"

    def _new_game(self) -> None:
        pool = _pool(self.hardcore)
        chosen: list[str] = []
        while len(chosen) < self.num_words:
            word = pool[self.randint(len(pool))]
            if word not in chosen:
                chosen.append(word)
        self.hidden = sorted(chosen)
        letters = sum(map(len, self.hidden))
        self.side = max(max(map(len, self.hidden)) + 1, math.ceil(math.sqrt(2.5 * letters)))
        size = self.side**2
        noise = (self.np_random.random(size) * 26).astype("uint8") + 65
        background = noise.tobytes().decode("ascii")
        while not (placed := self._lay_out()):
            pass
        self.grid = "".join([placed.get(cell, letter) for cell, letter in enumerate(background)])
        self.marked = []
        self._restored()

    def _lay_out(self) -> dict[int, str]:
        """Place all words at random where they agree with each other; return their letters, empty on failure."""
        placed: dict[int, str] = {}
        for word in self.hidden:
            for _ in range(50):
                draw = self.randint(2 * self.side * (self.side - len(word) + 1))
                draw, down = divmod(draw, 2)
                line, start = divmod(draw, self.side - len(word) + 1)
                cells = self._line(line, start, len(word), bool(down))
                if all(placed.get(cell, letter) == letter for cell, letter in zip(cells, word, strict=True)):
                    placed.update(zip(cells, word, strict=True))
                    break
            else:
                return {}
        return placed

    def _line(self, line: int, start: int, length: int, down: bool) -> range:
        """Return the cells of a segment of a row or a column."""
        first, step = (start * self.side + line, self.side) if down else (line * self.side + start, 1)
        return range(first, first + step * length, step)

    def _restored(self) -> None:
        self._board = _layout(self.side) % tuple(self.grid)
        self._mark(self.marked)
        self._tell()

    def _mark(self, cells: list[int]) -> None:
        chars = list(self._board)
        for cell in cells:
            row, col = divmod(cell, self.side)
            at = (3 * self.side + 4) * (row + 1) + 3 * col + 5
            chars[at] = chars[at].lower()
        self._board = "".join(chars)

    def _tell(self) -> None:
        self.board = f"{self._board}\n{self._wanted()}"

    def _wanted(self) -> str:
        """Return the text about the words that are left to find."""
        wanted = [str(len(word)) for word in self.hidden] if self.hardcore else self.hidden
        what = "Words to find, by their number of letters" if self.hardcore else "Words to find"
        return f"{what}: {', '.join(wanted)}"

    def _parse(self, text: str) -> Any:
        return numbers(text, 4)

    def _play(self, move: list[int]) -> tuple[str, float, bool | None]:
        row, col, end_row, end_col = move
        if min(move) < 0 or max(move) >= self.side:
            return f"rows and columns are 0 to {self.side - 1}.", 0.0, None
        name = f"({row}, {col}) to ({end_row}, {end_col})"
        if row != end_row and col != end_col:
            return f"{name} is neither across nor down.", 0.0, None
        first, last = sorted((row * self.side + col, end_row * self.side + end_col))
        cells = range(first, last + 1, 1 if row == end_row else self.side)
        word = self.grid[first : last + 1 : cells.step]
        if word not in self.hidden:
            return f"{name} is not a hidden word.", 0.0, None
        self.hidden.remove(word)
        self.marked += cells
        self._mark(list(cells))
        self._tell()
        reward = 1 / self.num_words
        if not self.hidden:
            return f"you found {word}, the last word.", reward, True
        return f"you found {word}.", reward, None

    def _suffix(self) -> str:
        return f"The letters now, those of words you found in lower case:\n{self.board}"

    def render(self) -> str:
        return self.board

    def _next_move(self) -> str:
        return " ".join(map(str, self._position_of(self.hidden[0])))

    def _position_of(self, word: str) -> tuple[int, int, int, int]:
        """Return row and column of the first and the last letter of the word's first occurrence."""
        for down in (False, True):
            for line in range(self.side):
                cells = self._line(line, 0, self.side, down)
                at = self.grid[cells.start : cells.stop : cells.step].find(word)
                if at >= 0:
                    end = at + len(word) - 1
                    return (at, line, end, line) if down else (line, at, line, end)
        raise AssertionError("every hidden word is in the grid")

    def sample_random_action(self) -> str:
        """Return a random segment of a row or a column."""
        random, side = self.action_rng.random, self.side
        line, start, end = int(random() * side), int(random() * side), int(random() * side)
        if random() < 0.5:
            return f"\\boxed{{{line} {start} {line} {end}}}"
        return f"\\boxed{{{start} {line} {end} {line}}}"


@functools.cache
def _pool(hard: bool) -> tuple[str, ...]:
    return words(6, True) + words(7, True) + words(8, True) if hard else words(4) + words(5) + words(6)


@functools.cache
def _layout(side: int) -> str:
    """Return a template for the square that takes the letters row by row."""
    lines = [f"{'':3}" + "".join(f"{col:3}" for col in range(side))]
    return "\n".join(lines + [f"{row:3}" + "  %s" * side for row in range(side)])


@functools.lru_cache(maxsize=64)
def _instructions(words_known: str, n: int, limit: int) -> str:
    return (
        f"This is a word search: {n} words are hidden in the square of letters, across or down; {words_known}. Rows "
        "and columns count from 0.\n"
        f"Answer with the row and column of the first letter and those of the last one, as in {box('1 0 1 4')}.\n"
        f"Find all of them within {turns(limit)}."
    )
