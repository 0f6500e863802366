"""Decomposition of assert statements into calls of the program's functions and expected values.

``assert f(1, 2) == 3`` becomes the call ``f(1, 2)``, which is made in the program's process, and the value 3, which is
compared outside. Other tests need a judge (:mod:`rollenv.envs.code.tests`).
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from rollenv.core import syntax
from rollenv.core.errors import UsageError

Kind = Literal["equal", "same", "true", "false"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The expectation on a call's result: equal or identical (None, True, False) to a value, truthy or falsy."""

    kind: Kind
    value: Any = None

    def holds(self, got: Any) -> bool:
        """Return whether a value matches, by Python's equality: 1 equals True and 1.0."""
        if self.kind == "same":
            return got is self.value
        if self.kind == "equal":
            return bool(got == self.value)
        return bool(got) is (self.kind == "true")


@dataclass(frozen=True, slots=True)
class Plan:
    """The decomposition of asserts: for each, expressions to evaluate with the program, and expected values.

    None instead of the calls means that the assert cannot be decomposed.
    """

    calls: tuple[tuple[tuple[str, Wanted], ...] | None, ...]
    functions: tuple[str, ...]
    """Functions of the program that the asserts use."""
    modules: tuple[str, ...]
    """Modules that the asserts use without importing them."""
    setup: str
    """Statements before asserts that the program or the arguments of calls may need."""


@functools.lru_cache(maxsize=1024)
def plan(asserts: tuple[str, ...], setup: str = "", context: str = "", entry_point: str = "") -> Plan:
    """Decompose the asserts of a task.

    Args:
        asserts: assert statements, or a definition of ``check(candidate)`` with calls for the function under test.
        entry_point: the function under test, which the context may define too; ``Solution().name`` for a method.
    """
    trees = [parse_code(text) for text in asserts]
    tested = set(re.findall(r"^\w+", entry_point))
    known = (_bound(parse_code(setup)) | _bound(parse_code(context))) - tested
    free = set().union(*(_free(tree) for tree in trees)) - known
    modules = tuple(sorted(name for name in free & _attributed(trees) if name in sys.stdlib_module_names))
    functions = {inner[2] for tree in trees if (inner := _inner(tree))} or free - set(modules) | tested
    functions = functions or _outermost(trees) - known  # a function named like a built-in
    calls = tuple(_calls(tree, functions) for tree in trees)
    needed = _needed(parse_code(setup), [source for one in calls if one for source, _ in one])
    return Plan(calls, tuple(sorted(functions)), modules, needed)


def _needed(setup: ast.Module, sources: Sequence[str]) -> str:
    """Return the imports, class definitions, and statements that define names in the sources.

    Other statements may have expected values, which must not reach the program's process.
    """
    types = (ast.Import, ast.ImportFrom, ast.ClassDef)
    kept: set[ast.stmt] = set()
    names = set().union(*(_used(parse_code(source)) for source in sources))
    while more := {s for s in setup.body if s not in kept and (isinstance(s, types) or _makes(s) & names)}:
        kept |= more
        names = names.union(*(_used(one) for one in more))
    return "\n".join(_unparsed(one) for one in setup.body if one in kept)


def _used(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _makes(statement: ast.stmt) -> set[str]:
    """Return the names that a statement defines, or whose values it may change."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return {statement.name}
    if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return set().union(*(_used(target) for target in targets))
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return _used(statement.value.func)
    return _used(statement)


#: Strings, and integers so long that Python parses and prints them only in hexadecimal.
_LONG = re.compile(
    r""" "(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|(?<![\w.])[1-9]\d{3999,}(?![\w.]) """, re.VERBOSE | re.DOTALL
)


def parse_code(text: str) -> ast.Module:
    """Parse Python code with integers of any length; return an empty module for other text."""
    if len(text) > 4000:
        text = _LONG.sub(lambda found: found[0] if found[0][0] in "\"'" else hex(int(Decimal(found[0]))), text)
    try:
        return syntax.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


class _Hexadecimal(ast.NodeTransformer):
    """Replaces long integers by hexadecimal ones, which Python can parse."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if type(node.value) is int and node.value.bit_length() > 10_000:
            return ast.Name(hex(node.value))
        return node


def _unparsed(node: ast.AST) -> str:
    return ast.unparse(_Hexadecimal().visit(copy.deepcopy(node)))


def _bound(tree: ast.AST) -> set[str]:
    """Return the names that statements define, at any depth."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
    return found


def _free(tree: ast.AST) -> set[str]:
    """Return the names that statements use, and that neither they nor Python define."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - _bound(tree) - set(dir(builtins))


def _attributed(trees: Sequence[ast.AST]) -> set[str]:
    nodes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {node.value.id for node in nodes if isinstance(node.value, ast.Name)}


def _outermost(trees: Sequence[ast.Module]) -> set[str]:
    """Return the functions of the outermost calls in asserts."""
    tests = [s.test for tree in trees for s in tree.body if isinstance(s, ast.Assert)]
    calls = [test.left if isinstance(test, ast.Compare) else test for test in tests]
    return {call.func.id for call in calls if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}


def _calls(tree: ast.Module, functions: set[str]) -> tuple[tuple[str, Wanted], ...] | None:
    inner = _inner(tree)
    statements, names = (inner[0], {inner[1]: inner[2]}) if inner else (tree.body, {name: name for name in functions})
    found = []
    for statement in statements:
        if isinstance(statement, ast.Pass) or _is_true(statement):
            continue
        call = _call(statement.test, names) if isinstance(statement, ast.Assert) else None
        if call is None:
            return None
        found.append(call)
    return tuple(found) or None


def _inner(tree: ast.Module) -> tuple[list[ast.stmt], str, str] | None:
    """Return the statements of ``check(candidate)``, its parameter, and the name of the function under test."""
    match [s for s in tree.body if not (isinstance(s, ast.Assign | ast.Expr) and _literal(s.value)[0])]:
        case [
            ast.FunctionDef(name=check, args=ast.arguments(args=[only])) as define,
            ast.Expr(ast.Call(ast.Name(called), [ast.Name(function)], [])),
        ] if check == called:
            return define.body, only.arg, function
    return None


def with_call_of_check(code: str, entry_point: str) -> str | None:
    """Return tests with a call of their ``check``, unless they call it themselves.

    None if they would pass every program, because nothing outside definitions and conditions asserts or calls one of
    their functions.
    """
    body = parse_code(code).body
    own = {s.name: s for s in body if isinstance(s, ast.FunctionDef)}
    todo: list[ast.AST] = list(body)
    asserts, called = False, set()
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.If):
            continue
        asserts |= isinstance(node, ast.Assert)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called.add(node.func.id)
        todo += ast.iter_child_nodes(node)
    if entry_point and "check" in own.keys() - called:
        return f"{code}\ncheck({entry_point if own['check'].args.args else ''})"
    return code if asserts or own.keys() & called else None


def with_calls_of_tests(code: str) -> str:
    """Return pytest's form, as KodCode has it, with a call of each test and without imports of the program.

    Code without functions ``test_*`` is returned unchanged.

    Raises:
        UsageError: the tests need pytest: fixtures, parameters or its functions.
    """
    body = parse_code(code).body
    tests = [s for s in body if isinstance(s, ast.FunctionDef) and s.name.startswith("test_")]
    if not tests or any(isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) for s in body):
        return code
    if "pytest" in set().union(*map(_used, body)) or any(test.args.args for test in tests):
        raise UsageError("these tests need pytest (its fixtures, parameters or functions), which does not run here")
    kept = [s for s in body if not (isinstance(s, ast.ImportFrom) and s.module == "solution")]
    return "\n".join([*map(_unparsed, kept), *(f"{test.name}()" for test in tests)])


def _is_true(statement: ast.stmt) -> bool:
    test = statement.test if isinstance(statement, ast.Assert) else getattr(statement, "value", None)
    if isinstance(statement, ast.Assert):
        return isinstance(test, ast.Constant) and bool(test.value)
    return isinstance(statement, ast.Expr) and isinstance(test, ast.Constant)


def _call(test: ast.expr, names: dict[str, str]) -> tuple[str, Wanted] | None:
    """Return the call of a function under test in an assert, and the expectation; None for any other assert."""
    kind: Kind = "true"
    value: Any = None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        kind, test = "false", test.operand
    elif isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right = test.left, test.comparators[0]
        if isinstance(test.ops[0], ast.Eq) and _literal(left)[0]:
            left, right = right, left
        readable, value = _literal(right)
        same = isinstance(test.ops[0], ast.Is) and (value is None or isinstance(value, bool))
        if not readable or not (same or isinstance(test.ops[0], ast.Eq)):
            return None
        kind, test = "same" if same else "equal", left
    if not isinstance(test, ast.Call) or not isinstance(test.func, ast.Name) or test.func.id not in names:
        return None
    for node in ast.walk(call := copy.deepcopy(test)):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    return _unparsed(call), Wanted(kind, value)


def _literal(node: ast.expr) -> tuple[bool, Any]:
    """Return whether an expression is a literal, and its value."""
    try:
        return True, ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False, None
