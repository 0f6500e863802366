"""Arithmetic in text, evaluated by walking its syntax tree: no code is run, and every size is bounded."""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping

from rollenv.core import syntax

#: Limits on an expression.
MAX_CHARACTERS = 1000
MAX_DEPTH = 100
MAX_BITS = 4096

Number = int | float

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_COMPARE: dict[type[ast.cmpop], Callable[[Number, Number], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def evaluate(expression: str, names: Mapping[str, int] | None = None) -> Number:
    """Evaluate an expression of numbers, names, ``+ - * / // % **``, comparisons and parentheses.

    Takes microseconds for any input: length, depth and every intermediate value are bounded, so ``9**9**9`` is refused
    before it is computed.

    Raises:
        ValueError: the expression is not valid; the message is meant for its author.
    """
    return evaluate_tree(parse(expression), names or {})


def parse(expression: str) -> ast.expr:
    """Parse an expression within the limits."""
    if len(expression) > MAX_CHARACTERS:
        raise ValueError(f"the expression has more than {MAX_CHARACTERS} characters")
    return _parse(expression.strip())


@functools.lru_cache(maxsize=4096)
def _parse(expression: str) -> ast.expr:
    if not expression.isascii():
        raise ValueError("the expression has characters that are no digits, operators or parentheses")
    try:
        return syntax.parse(expression, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError("this is not an expression of numbers and + - * / // % **") from error


def evaluate_tree(tree: ast.expr, names: Mapping[str, int]) -> Number:
    """Evaluate a parsed expression."""
    try:
        return _value(tree, names, 0)
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except OverflowError:
        raise ValueError("the result is too large") from None


def _value(node: ast.expr, names: Mapping[str, int], depth: int) -> Number:
    if depth > MAX_DEPTH:
        raise ValueError(f"the expression is nested more than {MAX_DEPTH} deep")
    match node:
        case ast.Constant(value=bool() as truth):
            raise ValueError(f"{truth} is not a number")
        case ast.Constant(value=(int() | float()) as number):
            return _bounded(number)
        case ast.Name() if node.id in names:
            return names[node.id]
        case ast.UnaryOp() if type(node.op) in _UNARY:
            return _UNARY[type(node.op)](_value(node.operand, names, depth + 1))
        case ast.BinOp() if type(node.op) in _BINARY:
            left, right = _value(node.left, names, depth + 1), _value(node.right, names, depth + 1)
            if isinstance(node.op, ast.Pow):
                _check_power(left, right)
            return _bounded(_BINARY[type(node.op)](left, right))
        case ast.Compare(ops=[op], comparators=[other]) if type(op) in _COMPARE:
            return _COMPARE[type(op)](_value(node.left, names, depth + 1), _value(other, names, depth + 1))
    raise ValueError(_refusal(node))


def _check_power(base: Number, exponent: Number) -> None:
    """Refuse large powers before computing them."""
    if isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1:
        if abs(exponent) * abs(base).bit_length() > 2 * MAX_BITS:
            raise ValueError("the power is too large")
    elif base < 0 and not float(exponent).is_integer():
        raise ValueError("a root of a negative number")


def _bounded(value: Number) -> Number:
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise ValueError("a number is too large")
    elif not isinstance(value, float) or not math.isfinite(value):
        raise ValueError("the result is not a finite number")
    return value


def _refusal(node: ast.expr) -> str:
    match node:
        case ast.Name():
            return f"{node.id[:40]} is not a number"
        case ast.BinOp(op=ast.BitXor()):
            return "^ is not power here; write **"
        case ast.Tuple():
            return "write numbers without commas"
    return "only numbers, + - * / // % **, comparisons and parentheses are known"


def calculator(expression: str) -> str:
    """The value of an arithmetic expression, as in 12 * (3 + 4)."""
    return str(evaluate(expression))
