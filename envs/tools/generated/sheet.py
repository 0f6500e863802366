"""A spreadsheet, judged by the values of its cells: functions, optionally a Python interpreter, and requests."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from rollenv.core.errors import UsageError
from rollenv.core.tools.backend import ToolError, tool
from rollenv.core.tools.python import PythonCodeTool
from rollenv.envs.tools.base import Call
from rollenv.envs.tools.generated import words
from rollenv.envs.tools.generated.formulas import (
    CELL,
    MOST_ROWS,
    FormulaError,
    SheetValues,
    Value,
    parse,
    range_of,
    shifted,
)
from rollenv.envs.tools.generated.generate import GeneratedToolEnv
from rollenv.envs.tools.generated.goals import Fact, Goal, GoalDraw, GoalKind, Path, World

Row = Annotated[int, Field(ge=1, le=MOST_ROWS)]
Column = Annotated[str, Field(pattern="^[A-Z]$")]
#: Maximum number of cells that are read or changed at once, and maximum length of the text of one.
_MOST_CELLS, _MOST_TEXT = 2000, 300

REGIONS = ("north", "south", "east", "west")
HEADER = ("item", "region", "units", "price")


def plain(value: Value | None) -> Value:
    """Convert a value for display: whole numbers without decimals."""
    if value is None:
        return "#ERROR"
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _cell(cell: str) -> tuple[str, int]:
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
        """Write a cell; an empty text clears it."""
        rows = self.cells.setdefault(column, {})
        if content == "":
            rows.pop(str(row), None)
            if not rows:
                del self.cells[column]
        else:
            rows[str(row)] = content

    def last_row(self) -> int:
        """Return the last row of the table, by its first column."""
        return max((int(row) for row in self.cells.get("A", {})), default=1)

    @tool
    def describe(self) -> dict[str, Any]:
        """The header of the table, by column, and its last row."""
        header = {column: rows["1"] for column, rows in sorted(self.cells.items()) if "1" in rows}
        return {"header": header, "last_row": self.last_row()}

    @tool
    def read_range(self, range: str) -> list[list[Value]]:
        """The values of a range such as A1:D9, row by row."""
        values = SheetValues(self.cells)
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
        values = SheetValues(self.cells)
        rows = sorted(map(int, self.cells.get(column, {})))
        return [row for row in rows if str(plain(values.shown(column, row))).lower() == text.strip().lower()]

    @tool
    def calculate(self, formula: str) -> Value:
        """The value of a formula, without writing it anywhere.

        Args:
            formula: of cells, numbers, + - * / and SUM, AVERAGE, MIN, MAX, COUNT, ROUND, SUMIF(range, value, range).
        """
        try:
            return plain(SheetValues(self.cells).formula(formula))
        except FormulaError as error:
            raise ToolError(str(error)) from None

    @tool
    def set_cell(self, cell: str, content: float | str) -> str:
        """Write a number, a text or a formula such as =SUM(C2:C9) into a cell.

        Args:
            cell: such as C7.
            content: an empty text empties the cell.
        """
        column, row = _cell(cell)
        self.put(column, row, _content(content))
        return f"{column}{row} is {plain(SheetValues(self.cells).shown(column, row))}"

    @tool
    def fill_down(self, cell: str, last_row: Row) -> str:
        """Copy a cell to the rows below it; the rows in its formula go along.

        Args:
            cell: such as C2.
            last_row: the last row that gets a copy.
        """
        column, row = _cell(cell)
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
        values, last = SheetValues(self.cells), self.last_row()
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
    """Return the content to store; text that is a number becomes one."""
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
    """Generate a table of items; no two have the same name, units or price."""
    items = words.pairs(rng, words.COLOURS, words.THINGS, size)
    units, prices = rng.sample(range(11, 990), size), rng.sample(range(300, 40_000), size)
    rows = [HEADER, *((items[n], rng.choice(REGIONS), float(units[n]), prices[n] / 100) for n in range(size))]
    cells = {letter: {str(n): row[at] for n, row in enumerate(rows, 1)} for at, letter in enumerate("ABCD")}
    return kind({"cells": cells})


class SheetWithPython(Sheet):
    """A spreadsheet with values that programs can read. Each program runs on its own in a sandbox."""

    interpreter: PythonCodeTool

    @tool
    def run_python(self, code: str) -> str:
        """Run a Python program and see what it prints. It finds the sheet in `cells`, as in cells["B7"].

        Args:
            code: the program; what it changes stays in it.
        """
        shown = SheetValues(self.cells).all()
        cells = {f"{column}{row}": plain(value) for column, rows in shown.items() for row, value in rows.items()}
        begin = f"cells = __import__('json').loads({json.dumps(cells)!r})"
        done = self.interpreter.answer(f"{begin}\n{code}", "")
        text = done.observation.removeprefix("Code execution result: ").rstrip()
        if done.has_error:
            raise ToolError(text)
        return text or "(nothing was printed)"


@functools.cache
def _with_python(sandbox: str | None, image: str | None) -> type[SheetWithPython]:
    tool = PythonCodeTool(keep_error_last_line=True, sandbox=sandbox, image=image)
    return type("SheetWithPython", (SheetWithPython,), {"interpreter": tool})


_DESCRIBE: list[Call] = [("describe", {})]
#: Columns of numbers by name.
_NUMBERS = {"units": "C", "price": "D"}
_FREE = "GHJK"


class _Row(NamedTuple):
    """A row of the table."""

    number: int
    item: str
    region: str
    units: float
    price: float


def _rows(draw: GoalDraw) -> list[_Row]:
    cells = draw.state["cells"]
    return [_Row(int(n), *(cells[letter][n] for letter in "ABCD")) for n in cells["A"] if n != "1"]


def _columns(*letters: str) -> list[Path]:
    return [("cells", letter) for letter in letters]


def _target(draw: GoalDraw) -> str:
    return f"{draw.rng.choice(_FREE)}{draw.rng.randint(2, 30)}"


def _number(value: float) -> str:
    return str(plain(round(value, 2)))


def _correct(draw: GoalDraw, breaks: bool) -> Goal | None:
    row = draw.rng.choice(_rows(draw))
    name, value = draw.rng.choice(
        (("units", float(draw.rng.randint(1000, 1999))), ("price", draw.rng.randint(100, 999) + 0.5))
    )
    ask = draw.say(f"Correct the {name} of the {row.item}", f"The {name} of the {row.item} is wrong")
    fact = Fact(
        ("what", "value", "number", name), f"It has to be {_number(value)}.", f"{ask}.", "What is the right value?"
    )
    act = [("set_cell", {"cell": f"{_NUMBERS[name]}{row.number}", "content": plain(value)})]
    look = [[*_DESCRIBE, ("find_rows", {"column": "A", "text": row.item})]]
    return Goal(
        f"{ask}: it has to be {_number(value)}.", look, act, blocks=["set_cell"], fact=fact, reads=_columns("A")
    )


def _add(draw: GoalDraw, breaks: bool) -> Goal | None:
    row = draw.rng.choice(_rows(draw))
    more = draw.rng.randint(5, 80)
    ask = draw.say(
        f"Add {more} to the units of the {row.item}.", f"The {row.item} has {more} units more than the table says."
    )
    look = [
        [*_DESCRIBE, ("find_rows", {"column": "A", "text": row.item})],
        [("read_range", {"range": f"C{row.number}"})],
    ]
    act = [("set_cell", {"cell": f"C{row.number}", "content": int(row.units) + more})]
    return Goal(ask, look, act, blocks=["set_cell"], reads=[*_columns("A"), ("cells", "C", str(row.number))])


def _whole(draw: GoalDraw, breaks: bool) -> Goal | None:
    function, word = draw.rng.choice((("SUM", "sum"), ("MAX", "highest"), ("MIN", "lowest")))
    name, target, last = draw.rng.choice(("units", "price")), _target(draw), len(_rows(draw)) + 1
    ask = draw.say(f"Write the {word} of all {name} values", f"We need the {word} of the column {name}; write it")
    letter = _NUMBERS[name]
    fact = Fact(("where", "cell", "which"), f"Into {target}.", f"{ask} into the cell meant for it.", "Into which cell?")
    act = [("set_cell", {"cell": target, "content": f"={function}({letter}2:{letter}{last})"})]
    return Goal(
        f"{ask} into the cell {target}.",
        [_DESCRIBE],
        act,
        blocks=["set_cell", "fill_down"],
        fact=fact,
        reads=_columns(letter),
    )


def _of_region(draw: GoalDraw, breaks: bool) -> Goal | None:
    region, target, last = draw.rng.choice(REGIONS), _target(draw), len(_rows(draw)) + 1
    ask = draw.say(
        f"Write into {target} how many units the region {region} has in all.",
        f"Into the cell {target}: the sum of the units of the region {region}.",
    )
    act = [("set_cell", {"cell": target, "content": f'=SUMIF(B2:B{last}, "{region}", C2:C{last})'})]
    return Goal(ask, [_DESCRIBE], act, blocks=["set_cell", "fill_down"], reads=_columns("B", "C"))


def _amounts(draw: GoalDraw, breaks: bool) -> Goal | None:
    last = len(_rows(draw)) + 1
    ask = draw.say(
        "Fill column E with units times price for every row, under the header amount.",
        "The table needs a column E with the header amount: in each row the units multiplied by the price.",
    )
    act: list[Call] = [
        ("set_cell", {"cell": "E1", "content": "amount"}),
        ("set_cell", {"cell": "E2", "content": "=C2*D2"}),
        ("fill_down", {"cell": "E2", "last_row": last}),
    ]
    return Goal(ask, [_DESCRIBE], act, blocks=["set_cell"], reads=_columns("A", "C", "D"))


def _sort(draw: GoalDraw, breaks: bool) -> Goal | None:
    name, descending = draw.rng.choice(("units", "price", "item")), draw.rng.random() < 0.5
    orders = ("from A to Z", "from Z to A") if name == "item" else ("the lowest first", "the highest first")
    order = orders[descending]
    ask = draw.say(f"Sort the table by {name}, {order}.", f"Put the rows in order by {name}, {order}.")
    column = {"item": "A", **_NUMBERS}[name]
    act = [("sort_table", {"column": column, "descending": descending})]
    return Goal(ask, [_DESCRIBE], act, reads=_columns(*"ABCD"))


def _clear(draw: GoalDraw, breaks: bool) -> Goal | None:
    row = draw.rng.choice(_rows(draw))
    ask = draw.say(
        f"Empty the row of the {row.item}, from A to D.", f"The {row.item} is no longer sold; empty its row, A to D."
    )
    look = [[*_DESCRIBE, ("find_rows", {"column": "A", "text": row.item})]]
    act = [("clear_range", {"range": f"A{row.number}:D{row.number}"})]
    return Goal(ask, look, act, blocks=["clear_range", "set_cell"], reads=_columns(*"ABCD"))


def _append(draw: GoalDraw, breaks: bool) -> Goal | None:
    last = len(_rows(draw)) + 2
    item = words.name(draw.rng).lower() + " " + draw.rng.choice(words.THINGS)
    values = (item, draw.rng.choice(REGIONS), draw.rng.randint(10, 99), draw.rng.randint(10, 99) + 0.25)
    row = ", ".join(map(str, values))
    ask = draw.say(f"Add a row below the last one: {row}.", f"The table needs a new last row: {row}.")
    act: list[Call] = [
        ("set_cell", {"cell": f"{letter}{last}", "content": v}) for letter, v in zip("ABCD", values, strict=True)
    ]
    return Goal(ask, [_DESCRIBE], act, blocks=["set_cell"], reads=_columns(*"ABCD"))


def _average(draw: GoalDraw, breaks: bool) -> Goal | None:
    name, last = draw.rng.choice(("units", "price")), len(_rows(draw)) + 1
    letter = _NUMBERS[name]
    means = {each: f"{sum(getattr(row, each) for row in _rows(draw)) / (last - 1):.2f}" for each in _NUMBERS}
    value, rivals = means[name], list(means.values())
    ask = draw.say(
        f"What is the average {name}, to two decimals?", f"Tell me the average of the column {name}, to two decimals."
    )
    look = [_DESCRIBE, [("calculate", {"formula": f"=AVERAGE({letter}2:{letter}{last})"})]]
    done, reads = f"The average is {value}.", _columns(letter)
    return Goal(ask, look, done=done, answers=[value], reads=reads, rivals=lambda _: rivals)


def _revenue(draw: GoalDraw, breaks: bool) -> Goal | None:
    row = draw.rng.choice(_rows(draw))
    ask = draw.say(
        f"What are all units of the {row.item} worth, at its price?",
        f"How much is the stock of the {row.item} worth: units times price?",
    )
    look = [
        [*_DESCRIBE, ("find_rows", {"column": "A", "text": row.item})],
        [("calculate", {"formula": f"=C{row.number}*D{row.number}"})],
    ]
    worth, rivals = _worth(row), [_worth(each) for each in _rows(draw)]
    reads = [*_columns("A"), *(("cells", letter, str(row.number)) for letter in "CD")]
    done = f"It is worth {worth}."
    return Goal(ask, look, done=done, answers=[worth], reads=reads, rivals=lambda _: rivals)


def _worth(row: _Row) -> str:
    return f"{row.units * row.price:.2f}"


def _which(draw: GoalDraw, breaks: bool) -> Goal | None:
    rows, name = _rows(draw), draw.rng.choice(("units", "price"))
    function, word = draw.rng.choice((("MAX", "highest"), ("MIN", "lowest")))
    found = (max if function == "MAX" else min)(rows, key=lambda row: getattr(row, name))
    ask = draw.say(f"Which item has the {word} {name}?", f"Tell me the item with the {word} {name}.")
    letter, value = _NUMBERS[name], _number(getattr(found, name))
    look = [
        _DESCRIBE,
        [("calculate", {"formula": f"={function}({letter}2:{letter}{len(rows) + 1})"})],
        [("find_rows", {"column": letter, "text": value})],
        [("read_range", {"range": f"A{found.number}:D{found.number}"})],
    ]
    done, items, reads = f"It is the {found.item}.", [row.item for row in rows], _columns("A", letter)
    return Goal(ask, look, done=done, answers=[found.item], reads=reads, rivals=lambda _: items)


class SheetEnv(GeneratedToolEnv):
    """A spreadsheet: values are corrected, added up, sorted, filled in and asked for.

    Args:
        python: whether there is a function ``run_python``, whose programs have the values in ``cells``. They run in a
            sandbox, and can make episodes nondeterministic (clock, random numbers).
        sandbox, image: ``local`` or ``docker``, and the containers' image; see
            :func:`~rollenv.sandbox.backends.chosen`.
    """

    intro = "You look after a spreadsheet: a table in columns A to D with a header in row 1; other columns are free."
    templates = tuple(
        map(
            GoalKind, (_correct, _add, _whole, _of_region, _amounts, _sort, _clear, _append, _average, _revenue, _which)
        )
    )

    def __init__(self, *, python: bool = False, sandbox: str | None = None, image: str | None = None, **settings: Any):
        super().__init__(**settings)
        if not python and (sandbox or image):
            raise UsageError("sandbox= and image= are for python=True: nothing else here runs programs")
        self.kind = _with_python(sandbox, image) if python else Sheet
        if self.missing == "functions":
            raise UsageError("missing='functions': one function writes nearly everything here")

    def world(self, rng: random.Random) -> Sheet:
        return make_sheet(rng, self.size, self.kind)

    def compared(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values of the cells: every formula with the right value is right."""
        return SheetValues(state["cells"]).all()
