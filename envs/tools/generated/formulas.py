"""Formulas of a spreadsheet, evaluated on their syntax tree: no code is run, and the work is bounded."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Mapping

#: Cells by column and row: numbers, texts, and formulas that begin with "=".
Cells = Mapping[str, Mapping[str, float | str]]
Value = float | str

#: Limits: rows, characters of a formula, nesting depth of formulas and references, and steps for one sheet.
MOST_ROWS, _MOST_FORMULA, _MOST_DEPTH, _MOST_WORK = 1000, 300, 60, 200_000

CELL = re.compile(r"([A-Z])([1-9]\d{0,3})")
_RANGE = re.compile(r"\b[A-Z][1-9]\d{0,3}:[A-Z][1-9]\d{0,3}\b")
_QUOTED = re.compile(r'"[^"]*"')
_REFERENCE = re.compile(r'"[^"]*"|(\$?)\b([A-Z])(\$?)([1-9]\d{0,3})\b')


class FormulaError(ValueError):
    """A mistake in a formula."""


def range_of(text: str) -> list[tuple[str, int]]:
    """Return the cells of a range such as ``B2:C9``, row by row."""
    first, _, last = text.strip().upper().partition(":")
    one, two = CELL.fullmatch(first), CELL.fullmatch(last or first)
    if not one or not two or int(one[2]) > int(two[2]) or one[1] > two[1] or int(two[2]) > MOST_ROWS:
        raise FormulaError(f"{text[:40]!r} is not a range such as B2:C9 in columns A to Z and rows 1 to {MOST_ROWS}")
    columns = [chr(n) for n in range(ord(one[1]), ord(two[1]) + 1)]
    return [(column, row) for row in range(int(one[2]), int(two[2]) + 1) for column in columns]


def shifted(formula: str, rows: int) -> str:
    """Shift the references of a formula down by ``rows`` (up if negative), except those with a ``$`` before the row."""

    def move(match: re.Match[str]) -> str:
        if match[2] is None or match[3]:
            return match[0]
        return f"{match[1]}{match[2]}{max(1, int(match[4]) + rows)}"

    return _REFERENCE.sub(move, formula)


@functools.lru_cache(maxsize=4096)
def parse(formula: str) -> ast.expr:
    """Parse a formula to a syntax tree, in which ranges and texts are constants."""
    body = formula.removeprefix("=").replace("$", "")
    if len(body) > _MOST_FORMULA or not body.isascii() or not body.isprintable():
        raise FormulaError(f"a formula has at most {_MOST_FORMULA} plain characters")
    quoted = _QUOTED.findall(body)
    parts = [_RANGE.sub(lambda m: f"'{m[0]}'", part.upper()) for part in _QUOTED.split(body)]
    text = "".join(part + (repr(quoted[n][1:-1]) if n < len(quoted) else "") for n, part in enumerate(parts))
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise FormulaError(f"{formula[:60]!r} is not a formula") from None


class SheetValues:
    """The values of a sheet's cells, each computed once."""

    def __init__(self, cells: Cells):
        self._cells = cells
        self._known: dict[tuple[str, int], Value | None] = {}
        self._depth = self._work = 0

    def all(self) -> dict[str, dict[str, Value | None]]:
        """Return the values of all cells; None for an error."""
        ordered = sorted((int(row), column) for column, rows in self._cells.items() for row in rows)
        for row, column in ordered:
            self.shown(column, row)
        return {
            column: {row: self._known[column, int(row)] for row in rows} for column, rows in self._cells.items() if rows
        }

    def shown(self, column: str, row: int) -> Value | None:
        """Return the value of a cell: empty text if it is empty, None for an error."""
        try:
            return self._cell(column, row)
        except FormulaError:
            return None

    def formula(self, text: str) -> Value:
        """Return the value of a formula in this sheet."""
        value = self._value(parse(text))
        return round(value, 6) if isinstance(value, float) else value

    def _cell(self, column: str, row: int) -> Value:
        if (column, row) not in self._known:
            self._known[column, row] = None  # an error if the cell refers to itself
            content = self._cells.get(column, {}).get(str(row), "")
            self._known[column, row] = self._computed(content) if str(content).startswith("=") else content
        known = self._known[column, row]
        if known is None:
            raise FormulaError(f"the cell {column}{row} has an error")
        return known

    def _computed(self, formula: Value) -> Value | None:
        try:
            return self.formula(str(formula))
        except FormulaError:
            return None

    def _value(self, node: ast.expr) -> Value:
        self._depth += 1
        self._work += 1
        try:
            if self._work > _MOST_WORK:
                raise FormulaError("the formulas of this sheet take too long")
            if self._depth > _MOST_DEPTH:
                raise FormulaError("the formula, or the chain of cells that it refers to, is nested too deeply")
            match node:
                case ast.Constant(value=bool()):
                    raise FormulaError("there are numbers and texts")
                case ast.Constant(value=(int() | float()) as number) if abs(number) < 1e15:
                    return float(number)
                case ast.Name() if reference := CELL.fullmatch(node.id):
                    return self._cell(reference[1], int(reference[2]))
                case ast.UnaryOp(op=ast.USub()):
                    return -self._number(node.operand)
                case ast.BinOp():
                    left, right = self._number(node.left), self._number(node.right)
                    match node.op:
                        case ast.Add():
                            result = left + right
                        case ast.Sub():
                            result = left - right
                        case ast.Mult():
                            result = left * right
                        case ast.Div() if right:
                            result = left / right
                        case _:
                            raise FormulaError("division by zero, or an operator other than + - * /")
                    if abs(result) > 1e15:
                        raise FormulaError("the result is too large")
                    return result
                case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS and not node.keywords:
                    arguments = [self._argument(each) for each in node.args]
                    try:
                        return float(_FUNCTIONS[name](*arguments))
                    except (TypeError, ValueError, ZeroDivisionError, IndexError, OverflowError):
                        raise FormulaError(f"{name} cannot be computed from these arguments") from None
            raise FormulaError(
                f"a formula has numbers, cells, + - * / and the functions {', '.join(sorted(_FUNCTIONS))}"
            )
        finally:
            self._depth -= 1

    def _number(self, node: ast.expr) -> float:
        value = self._value(node)
        if isinstance(value, str):
            if value:
                raise FormulaError(f"{value[:40]!r} is not a number")
            return 0.0
        return float(value)

    def _argument(self, node: ast.expr) -> list[Value]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if ":" in node.value and _RANGE.fullmatch(node.value):
                cells = range_of(node.value)
                self._work += len(cells)
                return [self._cell(column, row) for column, row in cells]
            return [node.value]
        return [self._value(node)]


def _numbers(*arguments: list[Value]) -> list[float]:
    return [float(one) for each in arguments for one in each if not isinstance(one, str)]


def _matching(where: list[Value], like: list[Value]) -> list[int]:
    wanted = like[0].lower() if isinstance(like[0], str) else like[0]
    return [n for n, one in enumerate(where) if (one.lower() if isinstance(one, str) else one) == wanted]


def _average(*arguments: list[Value]) -> float:
    numbers = _numbers(*arguments)
    return sum(numbers) / len(numbers)


_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "SUM": lambda *arguments: sum(_numbers(*arguments)),
    "AVERAGE": _average,
    "MIN": lambda *arguments: min(_numbers(*arguments)),
    "MAX": lambda *arguments: max(_numbers(*arguments)),
    "COUNT": lambda *arguments: len(_numbers(*arguments)),
    "SUMIF": lambda where, like, what: sum(_numbers([what[n] for n in _matching(where, like)])),
    "COUNTIF": lambda where, like: len(_matching(where, like)),
    "ROUND": lambda number, digits: round(float(number[0]), int(digits[0])),
}
