"""The filter of answers for reasoning-gym's scorers: unsafe ones, and wrong ones that two scorers take for right.

Nine data sets score an answer with ``eval``, or with sympy's parser, which calls ``eval`` too: an answer could run any
code, or name the variable with the gold answer. These receive only literals and plain formulas.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

#: Data sets that call ``eval`` on the answer, for partial scores of lists.
EVALUATES_LISTS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
#: Data sets that pass it to ``sympy.parse_expr``.
EVALUATES_FORMULAS = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)

_FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh"}
    | {"exp", "log", "ln", "sqrt", "Abs", "abs", "Rational", "Integer"}
)
_CONSTANTS = frozenset({"pi", "E"})
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
_HARMLESS = (ast.Expression, ast.UnaryOp, ast.USub, ast.UAdd, ast.Load, *_OPERATORS)
_MAX_LENGTH, _MAX_NODES, _MAX_POWER, _MAX_NUMBER = 4000, 400, 64, 10**15


def may_be_scored(dataset: str, answer: str, item: dict[str, Any]) -> bool:
    """Return whether an answer is for the data set's scorer; others count as none.

    An answer may have 4,000 characters or four times the length of the gold answer. Lists must be literals. Formulas
    may have numbers, one-letter variables, ``+ - * / **``, brackets and the usual functions, and powers up to 64:
    larger or nested ones could keep sympy busy for hours.
    """
    gold = item["answer"] or ""
    if len(answer) > max(_MAX_LENGTH, 4 * len(gold)):
        return False
    if dataset in EVALUATES_LISTS:
        return answer.strip() in (gold, *item["metadata"].get("valid_answers", ())) or _is_literal(answer)
    if dataset == "game_of_life_halting":  # its scorer takes every text for right
        return answer.strip().lower() == str(item["answer"]).lower()
    if dataset == "puzzle24" and not (_is_formula(answer) and _makes_24(answer, item["metadata"]["numbers"])):
        return False
    return dataset not in EVALUATES_FORMULAS or answer.strip() == gold or _is_formula(answer)


def _makes_24(formula: str, numbers: Sequence[int]) -> bool:
    """Return whether a formula uses each number once and equals 24; the scorer takes any numbers, and 24.9."""
    from sympy import parse_expr  # type: ignore[import-untyped, import-not-found, unused-ignore]

    used = sorted(int(number) for number in re.findall(r"\d+", formula))
    return used == sorted(numbers) and bool(parse_expr(formula.strip()) == 24)


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _is_formula(text: str) -> bool:
    try:
        tree = ast.parse(text.strip(), mode="eval")
        nodes = list(ast.walk(tree))
        return len(nodes) <= _MAX_NODES and all(map(_is_harmless, nodes)) and _power_depth(tree) <= 2
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False


def _is_harmless(node: ast.AST) -> bool:
    match node:
        case ast.BinOp(op=ast.Pow(), right=exponent):
            parts = list(ast.walk(exponent))
            return all(map(_is_small_power, parts)) and not any(isinstance(n, ast.Call) for n in parts)
        case ast.BinOp(op=op):
            return isinstance(op, _OPERATORS)
        case ast.Constant(value=value):
            return type(value) in (int, float) and abs(value) <= _MAX_NUMBER  # type: ignore[arg-type]
        case ast.Name(id=name):
            return (len(name) == 1 and name.isascii()) or name in _CONSTANTS or name in _FUNCTIONS
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return name in _FUNCTIONS
    return isinstance(node, _HARMLESS)


def _is_small_power(node: ast.AST) -> bool:
    if isinstance(node, ast.Pow | ast.Mult):  # nested powers, and equivalent products
        return False
    return not isinstance(node, ast.Constant) or (isinstance(node.value, int | float) and abs(node.value) <= _MAX_POWER)


def _power_depth(node: ast.AST) -> int:
    inner = max(map(_power_depth, ast.iter_child_nodes(node)), default=0)
    return inner + (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow))
