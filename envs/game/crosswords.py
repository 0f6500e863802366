"""Crosswords: find crossing words from clues, letter by letter."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

from rollenv.core.errors import UsageError
from rollenv.envs import pictures
from rollenv.envs.game.base import TextGame, box, numbers, read_lines, turns
from rollenv.envs.game.hangman import LETTERS

#: A placed word: word, row, column, and whether it runs down.
Entry = tuple[str, int, int, bool]


class Crosswords(TextGame):
    """Fill a small crossword. Only correct letters are entered, as in GEM. Each pays its share of the cells.

    The words are short enough for one turn a cell.

    Args:
        num_words: words to cross, 1 to 12.
    """

    picture = staticmethod(pictures.crossword)
    picture_words = pictures.CROSSWORD_WORDS
    size_names = ("hardcore", "max_turns", "num_words")
    random_sizes = ((False, 20, 3), (True, 20, 3))
    state_names = ("entries", "filled")

    #: True to choose words short enough for one turn per cell.
    a_turn_for_each_cell: ClassVar[bool] = True

    hardcore: bool
    num_words: int

    def __init__(self, hardcore: bool | None = False, max_turns: int | None = 40, num_words: int | None = 4):
        super().__init__(hardcore=hardcore, max_turns=max_turns, num_words=num_words)
        self.entries: tuple[Entry, ...] = ()
        #: Cells (row * width + column) with a letter found, in the order found.
        self.filled: list[int] = []
        self.board_text = ""

    def _resized(self) -> None:
        if not 1 <= self.num_words <= 12:
            raise UsageError(f"num_words must be 1 to 12, got {self.num_words}")
        longest = (self.max_turns + self.num_words - 1) // self.num_words if self.a_turn_for_each_cell else 99
        self._pool = tuple(word for word in clues(self.hardcore) if len(word) <= longest)
        if len(self._pool) < 3 * self.num_words:
            raise UsageError(
                f"{self.num_words} words do not fit into {turns(self.max_turns)}, one for each letter; "
                "raise max_turns or lower num_words"
            )

    def _instructions(self) -> str:
        return (
            f"This is a crossword of {self.num_words} words. In the grid _ is a cell to fill and . not part of a word; "
            "rows and columns count from 0.\nAnswer with row, column and letter, as in \\boxed{0 2 E}.\n"
            f"Fill every cell within {turns(self.max_turns)}, one letter a turn; a wrong letter is not entered."
        )

    def _new_game(self) -> None:
        self.entries = ()
        while not self.entries:
            self.entries = self._lay_out()
        self.filled = []
        self._restored()

    def _lay_out(self) -> tuple[Entry, ...]:
        """Lay out random crossing words from row and column 0 on; empty if the attempt got stuck."""
        cells: dict[tuple[int, int], str] = {}
        entries: list[Entry] = []
        for _ in range(20 * self.num_words):
            word = self._pool[self.randint(len(self._pool))]
            if any(word == other for other, *_ in entries):
                continue
            if entry := self._fit(word, cells, entries):
                entries.append(entry)
                cells.update(zip(entry_cells(entry), word, strict=True))
                if len(entries) == self.num_words:
                    top, left = (min(cell[axis] for cell in cells) for axis in (0, 1))
                    return tuple((w, r - top, c - left, down) for w, r, c, down in entries)
        return ()

    def _fit(self, word: str, cells: dict[tuple[int, int], str], entries: list[Entry]) -> Entry | None:
        if not entries:
            return word, 0, 0, False
        ways = [
            (word, row - i, col, True) if not down else (word, row, col - i, False)
            for other, row0, col0, down in entries
            for (row, col), letter in zip(entry_cells((other, row0, col0, down)), other, strict=True)
            for i, mine in enumerate(word)
            if mine == letter
        ]
        if not ways:
            return None
        first = self.randint(len(ways))
        return next((way for way in ways[first:] + ways[:first] if _fits(way, cells)), None)

    def _set_state(self, state: dict[str, Any]) -> None:
        super()._set_state({**state, "entries": tuple(map(tuple, state["entries"]))})

    def _restored(self) -> None:
        self.width = 1 + max(c for entry in self.entries for _, c in entry_cells(entry))
        self.height = 1 + max(r for entry in self.entries for r, _ in entry_cells(entry))
        placed = {
            cell: letter for entry in self.entries for cell, letter in zip(entry_cells(entry), entry[0], strict=True)
        }
        self.letters = {r * self.width + c: letter for (r, c), letter in sorted(placed.items())}
        lines = [f"{'':3}" + "".join(f"{c:3}" for c in range(self.width))]
        for r in range(self.height):
            cells = range(r * self.width, (r + 1) * self.width)
            lines.append(f"{r:3}" + "".join("  _" if cell in self.letters else "  ." for cell in cells))
        self.board_text = "\n".join([*lines, *(self._clue(i, entry) for i, entry in enumerate(self.entries))])
        self._actions = [box(f"{cell // self.width} {cell % self.width} ") for cell in self.letters]
        for cell in self.filled:
            self._show(cell)

    def _clue(self, i: int, entry: Entry) -> str:
        word, row, col, down = entry
        way = "down" if down else "across"
        return f"{i + 1}. {way} from ({row}, {col}), {len(word)} letters: {clues(self.hardcore)[word]}"

    def _show(self, cell: int) -> None:
        row, col = divmod(cell, self.width)
        at = (3 * self.width + 4) * (row + 1) + 3 * col + 5
        self.board_text = f"{self.board_text[:at]}{self.letters[cell]}{self.board_text[at + 1 :]}"

    def _parse(self, text: str) -> Any:
        parts = text.replace(",", " ").split(None, 3)
        if len(parts) != 3:
            return None
        cell, letter = numbers(" ".join(parts[:2]), 2), parts[2]
        if cell is None or not (len(letter) == 1 and letter.isalpha() and letter.isascii()):
            return None
        return *cell, letter.upper()

    def _play(self, move: tuple[int, int, str]) -> tuple[str, float, bool | None]:
        row, col, letter = move
        cell = row * self.width + col if 0 <= col < self.width else -1
        if cell not in self.letters:
            return f"cell ({row}, {col}) is not part of a word.", 0.0, None
        if cell in self.filled:
            return f"cell ({row}, {col}) is filled.", 0.0, None
        if self.letters[cell] != letter:
            return f"{letter} is wrong at ({row}, {col}).", 0.0, None
        self.filled.append(cell)
        self._show(cell)
        reward = 1 / len(self.letters)
        if len(self.filled) == len(self.letters):
            return f"{letter} at ({row}, {col}) completes the crossword.", reward, True
        return f"{letter} is right at ({row}, {col}).", reward, None

    def _suffix(self) -> str:
        return f"The crossword now:\n{self.board_text}"

    def render(self) -> str:
        return self.board_text

    def _next_move(self) -> str:
        cell = next(cell for cell in self.letters if cell not in self.filled)
        return f"{cell // self.width} {cell % self.width} {self.letters[cell]}"

    def sample_random_action(self) -> str:
        return f"{self._pick(self._actions)[:-1]}{self._pick(LETTERS)}}}"


def entry_cells(entry: Entry) -> list[tuple[int, int]]:
    """Return the cells of a word in order."""
    word, row, col, down = entry
    return [(row + i, col) if down else (row, col + i) for i in range(len(word))]


def _fits(entry: Entry, cells: dict[tuple[int, int], str]) -> bool:
    """Return whether a word agrees with the letters that it crosses, and touches no others."""
    word, row, col, down = entry
    step_r, step_c = (1, 0) if down else (0, 1)
    if (row - step_r, col - step_c) in cells or (row + step_r * len(word), col + step_c * len(word)) in cells:
        return False
    for (r, c), letter in zip(entry_cells(entry), word, strict=True):
        there = cells.get((r, c))
        if there is not None and there != letter:
            return False
        if there is None and ((r + step_c, c + step_r) in cells or (r - step_c, c - step_r) in cells):
            return False
    return True


@functools.cache
def clues(hard: bool) -> dict[str, str]:
    """Return the clues by word, in upper case and alphabetical order."""
    lines = read_lines("clues_hard.txt" if hard else "clues.txt")
    return {word.upper(): clue for word, clue in (line.split("\t") for line in lines)}
