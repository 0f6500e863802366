"""Runs in the judge's sandbox: tests that are not calls with expected values, without the program under test.

A job is a line of JSON on standard input: statements of the data set, tests, the names of the program's functions, and
the calls so far with their answers. Stubs of the program's functions return the known answers, and change arguments as
the program did where a test asks for it. From the first call that differs from the last round on, they return
placeholders. The output is a line of JSON: the verdict of each test, all calls in order, and whether every answer was
known.

Objects stay in the program's process and are represented by :class:`Remote`, whose own equality is never used.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import datetime
import decimal
import fractions
import importlib
import io
import json
import marshal
import os
import pickle
import random
import sys
import types
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from typing import Any

MAX_DEPTH, MAX_DIGITS, MAX_COLLISIONS = 110, 10_000, 100
MAX_CALLS = 2000
#: Exceptions of the program that would affect the control flow of tests.
_NEVER_RAISED = (AssertionError, StopIteration, StopAsyncIteration)


class Raised(Exception):
    """An exception instead of a result: its name and text."""


def decode(data: Any, own: Sequence[Any] = ()) -> Any:
    """Decode JSON data into a value of built-in types and fractions only, in linear time.

    Args:
        own: objects to which the data may refer by number.
    """
    try:
        return _decode(data, 0, own)
    except Raised:
        raise
    except Exception as error:  # malformed data are a wrong answer
        raise Raised("ValueError", "unreadable") from error


_OF_HEX: dict[str, Callable[[str], Any]] = {"i": lambda text: int(text, 16), "b": bytes.fromhex, "a": bytearray.fromhex}


def _decode(data: Any, depth: int, own: Sequence[Any]) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError("nested too deep")
    if type(data) is list:
        return [_decode(one, depth + 1, own) for one in data]
    if type(data) is not dict:
        return data
    ((tag, inner),) = data.items()
    if tag == "e":
        raise Raised(*map(str, inner))
    if tag == "m":
        return own[inner]
    if tag in _OF_HEX:
        return _OF_HEX[tag](inner)
    if tag in _NUMBERS:
        if max(map(len, inner)) > MAX_DIGITS or len(inner) > MAX_DIGITS:
            raise ValueError("too large")
        return _NUMBERS[tag](inner)
    parts = [_decode(one, depth + 1, own) for one in inner]
    return _BUILD[tag](parts)


def _hashable(parts: list[Any]) -> list[Any]:
    """Return the parts, unless too many hash collisions would make a set of them quadratic."""
    if parts and max(Counter(map(hash, parts)).values()) > MAX_COLLISIONS:
        raise ValueError("too many collisions")
    return parts


def _dict(pairs: list[Any]) -> dict[Any, Any]:
    _hashable([key for key, _ in pairs])
    return dict(pairs)


def _decimal(text: str) -> decimal.Decimal:
    value = decimal.Decimal(text)
    if value.is_snan() or (value.is_finite() and max(abs(value.adjusted()), len(text)) > MAX_DIGITS):
        raise ValueError("a signalling NaN cannot be compared, and one with so many digits would take long")
    return value


def _builtin_type(name: str) -> type:
    if not isinstance(kind := getattr(builtins, name), type):
        raise ValueError("no type")
    return kind


def _cut(parts: list[Any]) -> Iterator[Any]:
    yield from parts
    raise Raised("ValueError", "more than is read from a generator")


class _Awaitable(Coroutine[Any, Any, Any]):
    """A coroutine with a known result."""

    def __init__(self, parts: list[Any]):
        (self._result,) = parts

    def __await__(self) -> Generator[Any, Any, Any]:
        yield from ()
        return self._result

    def send(self, value: Any) -> Any:
        raise StopIteration(self._result)

    def throw(self, *error: Any) -> Any:
        raise StopIteration(self._result)

    def close(self) -> None:
        pass


_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "fractions.Fraction": lambda pair: fractions.Fraction(int(pair[0], 16), int(pair[1], 16)),
    "decimal.Decimal": _decimal,
    "k": _builtin_type,
}
_BUILD: dict[str, Callable[[list[Any]], Any]] = {
    "cut": _cut,
    "w": _Awaitable,
    "collections.Counter": lambda pairs: Counter(_dict(pairs)),
    "collections.deque": deque,
    "datetime.date": lambda parts: datetime.date(*parts),
    "datetime.time": lambda parts: datetime.time(*parts),
    "datetime.datetime": lambda parts: datetime.datetime(*parts),
    "datetime.timedelta": lambda parts: datetime.timedelta(*parts),
    "t": tuple,
    "s": lambda parts: set(_hashable(parts)),
    "z": lambda parts: frozenset(_hashable(parts)),
    "d": _dict,
    "g": iter,
    "c": lambda parts: complex(*parts),
    "r": lambda parts: range(*parts),
}


def _changeable(value: Any) -> list[Any]:
    """Return the containers in a value that a program could change, each once."""
    found: dict[int, Any] = {}
    todo = [value]
    while todo:
        one = todo.pop()
        if id(one) in found or not isinstance(one, tuple | list | dict | set | bytearray | deque):
            continue
        found[id(one)] = one
        if isinstance(one, dict):
            todo += one.values()
        elif isinstance(one, tuple | list | deque):
            todo += one
    return [one for one in found.values() if not isinstance(one, tuple)]


def _change(one: Any, data: Any) -> None:
    """Give a container other contents of the same kind."""
    if isinstance(one, dict) and isinstance(data, dict):
        one.clear()
        dict.update(one, data)
    elif isinstance(one, set) and isinstance(data, set):
        one.clear()
        one.update(data)
    elif type(one) is type(data) and isinstance(one, list | bytearray | deque):
        one.clear()
        one.extend(data)
    else:
        raise Raised("TypeError", "unreadable")


class Stop(BaseException):
    """A test cannot continue without further answers."""


class Later:
    """A placeholder for an unknown answer.

    Every operation on it returns another placeholder, so that later calls are found too; the verdict is ignored.
    """

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __hash__(self) -> int:
        return 0

    def __len__(self) -> int:
        return 0

    def __index__(self) -> int:
        return 0

    def __int__(self) -> int:
        return 0

    def __float__(self) -> float:
        return 0.0

    def __complex__(self) -> complex:
        return 0j

    def __str__(self) -> str:
        return ""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise Stop

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Later()


def _later(*_: Any, **__: Any) -> Any:
    return Later()


_ARITHMETIC = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and or xor"
_OTHERS = "eq ne lt le gt ge neg pos abs invert round trunc floor ceil getitem call contains array_function array_ufunc"
for _name in (*_ARITHMETIC.split(), *(f"r{name}" for name in _ARITHMETIC.split()), *_OTHERS.split()):
    setattr(Later, f"__{_name}__", _later)


class Remote:
    """A proxy of an object of the program.

    Its methods and attributes are forwarded if its class is under test (``named``); otherwise it can only be called.
    Its own equality and truth value are not trusted.
    """

    def __init__(self, judge: JudgeProcess, number: int, named: bool):
        self._judge, self._number, self._named = judge, number, named

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._judge.ask("call", self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._method("attribute", name)

    def _method(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if not self._named:
            raise TypeError("what the program returned is not plain data")
        return self._judge.ask(name, self, args, kwargs)

    def __len__(self) -> int:
        return self._method("__len__")  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return str(self._method("__str__"))

    def __repr__(self) -> str:
        return str(self._method("__repr__"))

    def __getitem__(self, key: Any) -> Any:
        return self._method("__getitem__", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._method("__setitem__", key, value)

    def __contains__(self, key: Any) -> bool:
        return bool(self._method("__contains__", key))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._method("__iter__"))

    def __bool__(self) -> bool:
        raise TypeError("the program's objects are neither true nor false")

    def __eq__(self, other: object) -> bool:
        raise TypeError("the program's objects are not compared")

    __ne__ = __eq__
    __hash__ = object.__hash__


class _Pickler(pickle.Pickler):
    """Pickles calls: objects of the program by number, its functions by name, those of the tests as code."""

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, Remote):
            return "result", value._number
        if not isinstance(value, types.FunctionType):
            return None
        if name := getattr(value, "stands_for", None):
            return "name", name
        if value.__closure__:
            return None
        return ("function", (marshal.dumps(value.__code__), value.__defaults__))


class _Asserts(ast.NodeTransformer):
    """Turns asserts, method calls, and calls whose changes of arguments are seen into calls of the judge's functions.

    A change is seen only where a test asks for it: if it never uses the function's result, or if afterwards the
    arguments are only compared, with something else. Otherwise a function that clears its argument would agree with all
    that a test computes of it, as in ``got = f(xs); assert got == sorted(xs)`` or ``assert abs(got - sum(xs)) < 1``.
    """

    def __init__(self, tree: ast.Module):
        nodes = list(ast.walk(tree))
        for node in nodes:
            if isinstance(node, ast.Assert):
                node.msg = None
        alone = {node.value for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)}
        used = {ast.dump(node.func) for node in nodes if isinstance(node, ast.Call) and node not in alone}
        self._seen: set[ast.expr] = {call for call in alone if ast.dump(call.func) not in used}
        for node in nodes:
            if isinstance(node, ast.Expr | ast.Assign) and node.value not in self._seen:
                call = node.value
                targets = node.targets if isinstance(node, ast.Assign) else []
                if isinstance(call, ast.Call) and _only_compared_after(call, targets, nodes):
                    self._seen.add(call)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        target, name = node.func, ast.Constant(None)
        if isinstance(node.func, ast.Attribute):
            target, name = node.func.value, ast.Constant(node.func.attr)
        elif node not in self._seen:
            return node
        judge = ast.Name("call and see" if node in self._seen else "call method", ast.Load())
        return ast.copy_location(ast.Call(judge, [target, name, *node.args], node.keywords), node)

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        self.generic_visit(node)
        check = ast.Expr(ast.Call(ast.Name("check assert", ast.Load()), [node.test], []))
        return ast.copy_location(check, node)


def _only_compared_after(call: ast.Call, targets: list[ast.expr], nodes: list[ast.AST]) -> bool:
    """Return whether asserts behind a call compare its arguments, and nothing behind it uses them otherwise.

    What they are compared with has neither the arguments nor the result, and the result only selects parts of them.
    """
    arguments = set(_names(*call.args, *(one.value for one in call.keywords)))
    results = set(_names(call.func, *targets))
    uses = compared = 0
    for node in nodes:
        if (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)) <= (call.end_lineno, call.end_col_offset):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            uses += node.id in arguments
        if isinstance(node, ast.Assert):
            for test in node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]:
                compared += _compared(test, arguments, results)
    return 0 < compared == uses


def _compared(test: ast.expr, arguments: set[str], results: set[str]) -> int:
    """Count the uses of arguments on one side of a comparison, whose other side has neither them nor results."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return 0
    for side, other in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
        parts = side.elts if isinstance(side, ast.Tuple) else [side]
        parts = [part for part in parts if not arguments.isdisjoint(_names(part))]
        slices = [n.slice for part in parts for n in ast.walk(part) if isinstance(n, ast.Subscript)]
        mixed = sum(name in results for name in _names(*parts)) > sum(name in results for name in _names(*slices))
        if not mixed and (arguments | results).isdisjoint(_names(other)):
            return sum(name in arguments for name in _names(*parts))
    return 0


def _names(*nodes: ast.AST) -> list[str]:
    return [one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)]


class JudgeProcess:
    """The stubs of functions, and the calls of them."""

    def __init__(self, known: list[tuple[str, str]]):
        self.known = known
        self.calls: list[tuple[str, bool]] = []
        self.first_unknown: int | None = None
        self._sees = False

    def function(self, name: str) -> Callable[..., Any]:
        """Return a stub of a function or class of the program."""

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            return self.ask("call", stand_in, args, kwargs)

        stand_in.stands_for = name  # type: ignore[attr-defined]
        return stand_in

    def method(self, target: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method of an object here or in the program's process."""
        if isinstance(target, Remote) and not name.startswith("_"):
            return target._method(name, *args, **kwargs)
        return getattr(target, name)(*args, **kwargs)

    def see(self, target: Any, name: str | None, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function or a method; if it is the program's, change the arguments as it does."""
        self._sees = isinstance(target, Remote) or hasattr(target, "stands_for")
        try:
            return target(*args, **kwargs) if name is None else self.method(target, name, *args, **kwargs)
        finally:
            self._sees = False

    def ask(self, what: str, target: Any, args: Any, kwargs: Any) -> Any:
        """Return the program's answer to a call, or a placeholder."""
        number, buffer = len(self.calls), io.BytesIO()
        if number >= MAX_CALLS:
            raise Stop
        own = _changeable((args, *kwargs.values())) if self._sees else []
        self._sees = False
        _Pickler(buffer, 4).dump((what, target, args, kwargs, own))
        named = target._named if isinstance(target, Remote) else target.stands_for.lstrip("_")[:1].isupper()
        call = buffer.getvalue().hex()
        self.calls.append((call, named))
        if self.first_unknown is None and number < len(self.known) and self.known[number][0] == call:
            try:
                data = json.loads(self.known[number][1])
                if own and type(data) is list:
                    data, *contents = data
                    for one, changed in zip(own, decode(contents, own), strict=True):
                        _change(one, changed)
                if type(data) is dict and "o" in data:
                    return Remote(self, number, named)
                return decode(data, own)
            except Raised as error:
                kind = getattr(builtins, str(error.args[0]), None) if len(error.args) == 2 else None
                if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _NEVER_RAISED):
                    raise kind(error.args[1]) from None
                raise
        if self.first_unknown is None:
            self.first_unknown = number
        return Later()

    def verdict(self, test: str, scope: dict[str, Any]) -> bool:
        """Return whether a test passes; meaningless if an answer is unknown."""
        try:
            tree = ast.parse(test)
            tree = ast.fix_missing_locations(_Asserts(tree).visit(tree))
            exec(compile(tree, "test.py", "exec", dont_inherit=True), scope)
        except BaseException:
            return False
        return True

    def check(self, holds: Any) -> None:
        """Carry out an assert. If an answer is unknown, it never fails, so that later calls are found."""
        if self.first_unknown is None and not holds:
            raise AssertionError


def main() -> None:
    """Run the job."""
    sys.set_int_max_str_digits(0)
    job = json.loads(sys.stdin.readline())
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    random.seed(job["seed"])
    judge = JudgeProcess(job["known"])
    scope: dict[str, Any] = {"__name__": "tests", "check assert": judge.check}
    scope |= {"call method": judge.method, "call and see": judge.see}
    for module in job["modules"]:
        scope[module] = importlib.import_module(module)
    for setup in job["setup"]:
        with contextlib.suppress(Exception):  # a set-up may use names that only the program defines
            exec(compile(setup, "setup.py", "exec", dont_inherit=True), scope)
    for name in job["functions"]:
        scope[name] = judge.function(name)
    verdicts = [judge.verdict(test, scope) for test in job["tests"]]
    text = (json.dumps({"verdicts": verdicts, "calls": judge.calls, "unknown": judge.first_unknown}) + "\n").encode()
    while text:
        text = text[os.write(out, text) :]
