"""GEM's games of words in a grid."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rollenv.compat.gem.game import GemGuessing, GemTextGame, Told, boxed, rows_of
from rollenv.envs.game import crosswords
from rollenv.envs.game.base import words
from rollenv.envs.game.crosswords import Crosswords, Entry
from rollenv.envs.game.word_search import WordSearch


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

    @Told
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
        said, reward, won = super()._play(move)
        return said, 1 / self.total_letter_cells if len(self.filled) > found else reward, won

    def _is_valid(self, move: tuple[int, int, str], before: str) -> bool:
        row, col, _ = move
        cell = row * self.width + col
        return col < self.width and cell in self.letters and cell not in self.filled

    def _parse_action(self, action: str) -> tuple[int | None, int | None, str | None]:
        found = self._find(action)
        row, col, letter = self._parse(found[1]) if found else (None, None, None)
        return row, col, letter


class WordSearchEnv(GemTextGame, WordSearch):
    """Word search that tells how many words there are, and not which."""

    grammar = boxed(r"\d+\s+\d+\s+\d+\s+\d+")
    request = "What is your guess?"
    history = GemGuessing.history
    state_names = (*WordSearch.state_names, "words", "tried")

    def __init__(
        self,
        hardcore: bool | None = False,
        max_turns: int | None = 20,
        num_words: int | None = 5,
        **extra: Any,
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

    def _told(self) -> str:
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
        places = ((word, self._place(word)) for word in self.words)
        return {word: (row, col, "across" if row == end_row else "down") for word, (row, col, end_row, _) in places}

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

    @property
    def attempts(self) -> list[tuple[int, ...]]:
        return list(map(tuple, self.tried))

    @attempts.setter
    def attempts(self, value: Iterable[Sequence[int]]) -> None:
        self._resume()
        self.tried = list(map(list, value))

    @Told
    def word_list(self) -> list[str]:
        """All words there are."""
        return [word.lower() for length in range(3, 9) for word in words(length, self.hardcore)]


def _words_in(rows: Sequence[str]) -> Iterator[Entry]:
    """The words of two letters and more in a grid, separated by dots."""
    for down, lines in ((False, rows), (True, ["".join(column) for column in zip(*rows, strict=True)])):
        for i, line in enumerate(lines):
            for word in re.finditer(r"[A-Z]{2,}", line):
                yield (word[0], word.start(), i, True) if down else (word[0], i, word.start(), False)
