"""The functions of a spreadsheet, with or without a Python interpreter, and sheets to call them on."""

from __future__ import annotations

import functools
import json
import random
from typing import Annotated, Any

from pydantic import Field

from rollenv.envs.tools.generated import words
from rollenv.envs.tools.generated.goals import World
from rollenv.envs.tools.sheet.formulas import CELL, MOST_ROWS, Evaluation, FormulaError, Value, parse, range_of, shifted
from rollenv.tools.backend import ToolError, tool
from rollenv.tools.python import PythonCodeTool

Row = Annotated[int, Field(ge=1, le=MOST_ROWS)]
Column = Annotated[str, Field(pattern="^[A-Z]$")]
#: The most cells that are read or changed at once, and the longest text of one.
_MOST_CELLS, _MOST_TEXT = 2000, 300

REGIONS = ("north", "south", "east", "west")
HEADER = ("item", "region", "units", "price")


def plain(value: Value | None) -> Value:
    """A value as it is shown: whole numbers without decimals."""
    if value is None:
        return "#ERROR"
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _place(cell: str) -> tuple[str, int]:
    found = CELL.fullmatch(cell.strip().upper())
    if not found or int(found[2]) > MOST_ROWS:
        raise ToolError(f"{cell[:40]!r} is not a cell such as B7, in columns A to Z and rows 1 to {MOST_ROWS}")
    return found[1], int(found[2])


def _cells_of(text: str) -> list[tuple[str, int]]:
    try:
        cells = range_of(text)
    except FormulaError as error:
        raise ToolError(str(error)) from None
    if len(cells) > _MOST_CELLS:
        raise ToolError(f"{text} has {len(cells)} cells; at most {_MOST_CELLS} are read or changed at once")
    return cells


class Sheet(World):
    """A table with a header in row 1, and room for results beside it."""

    @property
    def cells(self) -> dict[str, dict[str, float | str]]:
        """The contents of the cells, by column and row."""
        return self.state["cells"]  # type: ignore[no-any-return]

    def put(self, column: str, row: int, content: float | str) -> None:
        """Write a cell; an empty text empties it.

        Args:
            row: from 1.
            content: a number, a text or a formula.
        """
        rows = self.cells.setdefault(column, {})
        if content == "":
            rows.pop(str(row), None)
            if not rows:
                del self.cells[column]
        else:
            rows[str(row)] = content

    def last_row(self) -> int:
        """The last row of the table, by its first column."""
        return max((int(row) for row in self.cells.get("A", {})), default=1)

    @tool
    def describe(self) -> dict[str, Any]:
        """The header of the table, by column, and its last row."""
        header = {column: rows["1"] for column, rows in sorted(self.cells.items()) if "1" in rows}
        return {"header": header, "last_row": self.last_row()}

    @tool
    def read_range(self, range: str) -> list[list[Value]]:
        """The values of a range such as A1:D9, row by row."""
        values = Evaluation(self.cells)
        rows: dict[int, list[Value]] = {}
        for column, row in _cells_of(range):
            rows.setdefault(row, []).append(plain(values.shown(column, row)))
        return list(rows.values())

    @tool
    def find_rows(self, column: Column, text: str) -> list[int]:
        """The rows whose cell in a column has exactly this value.

        Args:
            column: a letter.
            text: the whole value, as it is shown.
        """
        values = Evaluation(self.cells)
        rows = sorted(map(int, self.cells.get(column, {})))
        return [row for row in rows if str(plain(values.shown(column, row))).lower() == text.strip().lower()]

    @tool
    def calculate(self, formula: str) -> Value:
        """The value of a formula, without writing it anywhere.

        Args:
            formula: of cells, numbers, + - * / and SUM, AVERAGE, MIN, MAX, COUNT, ROUND, SUMIF(range, value, range).
        """
        try:
            return plain(Evaluation(self.cells).formula(formula))
        except FormulaError as error:
            raise ToolError(str(error)) from None

    @tool
    def set_cell(self, cell: str, content: float | str) -> str:
        """Write a number, a text or a formula such as =SUM(C2:C9) into a cell.

        Args:
            cell: such as C7.
            content: an empty text empties the cell.
        """
        column, row = _place(cell)
        self.put(column, row, _content(content))
        return f"{column}{row} is {plain(Evaluation(self.cells).shown(column, row))}"

    @tool
    def fill_down(self, cell: str, last_row: Row) -> str:
        """Copy a cell to the rows below it; the rows in its formula go along.

        Args:
            cell: such as C2.
            last_row: the last row that gets a copy.
        """
        column, row = _place(cell)
        content = self.cells.get(column, {}).get(str(row), "")
        for below in range(row + 1, last_row + 1):
            moved = shifted(content, below - row) if isinstance(content, str) and content.startswith("=") else content
            self.put(column, below, moved)
        return f"{column}{row} is copied down to row {last_row}"

    @tool
    def clear_range(self, range: str) -> str:
        """Empty all cells of a range."""
        for column, row in _cells_of(range):
            self.put(column, row, "") if column in self.cells else None
        return f"{range} is empty"

    @tool
    def sort_table(self, column: Column, descending: bool = False) -> str:
        """Sort the rows of the table, columns A to D, by a column.

        Args:
            column: a letter, A to D.
            descending: the highest first.
        """
        values, last = Evaluation(self.cells), self.last_row()
        keys = {row: values.shown(column, row) for row in range(2, last + 1)}
        order = sorted(keys, key=lambda row: _sort_key(keys[row]), reverse=descending)
        old = {letter: dict(self.cells.get(letter, {})) for letter in "ABCD"}
        for new, row in enumerate(order, 2):
            for letter in old:
                content = old[letter].get(str(row), "")
                formula = isinstance(content, str) and content.startswith("=")
                self.put(letter, new, shifted(str(content), new - row) if formula else content)
        return f"the table is sorted by column {column}"


def _sort_key(value: Value | None) -> tuple[int, float, str]:
    if isinstance(value, str) or value is None:
        return (1, 0.0, (value or "").lower())
    return (0, float(value), "")


def _content(content: float | str) -> float | str:
    """Return the stored content; a text that is a number is one."""
    if isinstance(content, str):
        text = content.strip()
        if len(text) > _MOST_TEXT:
            raise ToolError(f"a cell holds at most {_MOST_TEXT} characters, not {len(text)}")
        if text.startswith("="):
            try:
                parse(text)
            except FormulaError as error:
                raise ToolError(str(error)) from None
            return text
        try:
            content = float(text)
        except ValueError:
            return text
    if not abs(content) < 1e15:
        raise ToolError("a number is below 1e15")
    return float(content)


def make_sheet(rng: random.Random, size: int, kind: type[Sheet] = Sheet) -> Sheet:
    """A table of items; no two have the same name, units or price."""
    items = words.pairs(rng, words.COLOURS, words.THINGS, size)
    units, prices = rng.sample(range(11, 990), size), rng.sample(range(300, 40_000), size)
    rows = [HEADER, *((items[n], rng.choice(REGIONS), float(units[n]), prices[n] / 100) for n in range(size))]
    cells = {letter: {str(n): row[at] for n, row in enumerate(rows, 1)} for at, letter in enumerate("ABCD")}
    return kind({"cells": cells})


class SheetWithPython(Sheet):
    """A spreadsheet whose values programs can read. Programs run in a sandbox; each begins anew."""

    @tool
    def run_python(self, code: str) -> str:
        """Run a Python program and see what it prints. It finds the sheet in `cells`, as in cells["B7"].

        Args:
            code: the program; what it changes stays in it.
        """
        shown = Evaluation(self.cells).all()
        cells = {f"{column}{row}": plain(value) for column, rows in shown.items() for row, value in rows.items()}
        begin = f"cells = __import__('json').loads({json.dumps(cells)!r})"
        done = _interpreter().answer(f"{begin}\n{code}", "")
        text = done.observation.removeprefix("Code execution result: ").rstrip()
        if done.has_error:
            raise ToolError(text)
        return text or "(nothing was printed)"


@functools.cache
def _interpreter() -> PythonCodeTool:
    return PythonCodeTool(keep_error_last_line=True)
