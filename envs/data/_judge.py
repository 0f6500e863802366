"""Runs in the judge's sandbox: tests that are more than calls and values. The program under test is not here.

A job is a line of JSON on standard input: statements of the data set, tests, the names of the program's functions, and
what calls of them were answered so far. Functions that stand in for the program's give the answers that are known; of
other calls they take note, and go on with a value that stands for any. The line on standard output has the verdict of
each test, and the calls to be answered before it is final.
"""

from __future__ import annotations

import ast
import base64
import builtins
import contextlib
import fractions
import hashlib
import importlib
import json
import os
import pickle
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

MAX_DEPTH, MAX_HEX, MAX_COLLISIONS = 110, 10_000, 100
MAX_CALLS = 2000
#: What would end a loop of the tests instead of a test.
_NEVER_RAISED = (AssertionError, StopIteration, StopAsyncIteration)


class Raised(Exception):
    """Stands for a value that could not be had: an exception's name and text."""


def decode(data: Any, depth: int = 0) -> Any:
    """The value that JSON data stand for; of built-in types alone (and fractions). Takes time linear in the data.

    Raises:
        Raised: the call raised, or the data stand for nothing.
    """
    try:
        return _decoded(data, depth)
    except Raised:
        raise
    except Exception as error:  # whatever the data are, they are only wrong
        raise Raised("ValueError", "unreadable") from error


def _decoded(data: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError("nested too deep")
    if type(data) is list:
        return [_decoded(one, depth + 1) for one in data]
    if type(data) is not dict:
        return data
    ((tag, inner),) = data.items()
    if tag == "e":
        raise Raised(*map(str, inner))
    if tag in ("i", "b", "a"):
        return int(inner, 16) if tag == "i" else (bytes if tag == "b" else bytearray).fromhex(inner)
    if tag == "q":
        if max(map(len, inner)) > MAX_HEX:
            raise ValueError("too large")
        return fractions.Fraction(int(inner[0], 16), int(inner[1], 16))
    parts = [_decoded(one, depth + 1) for one in inner]
    return _BUILD[tag](parts)


def _hashable(parts: list[Any]) -> list[Any]:
    """The parts, unless so many hash alike that a set of them would take quadratic time."""
    if parts and max(Counter(map(hash, parts)).values()) > MAX_COLLISIONS:
        raise ValueError("too many collisions")
    return parts


def _dict(pairs: list[Any]) -> dict[Any, Any]:
    _hashable([key for key, _ in pairs])
    return dict(pairs)


_BUILD: dict[str, Callable[[list[Any]], Any]] = {
    "t": tuple,
    "s": lambda parts: set(_hashable(parts)),
    "z": lambda parts: frozenset(_hashable(parts)),
    "d": _dict,
    "g": iter,
    "c": lambda parts: complex(*parts),
    "r": lambda parts: range(*parts),
}


class Stop(BaseException):
    """A test cannot go on before more calls are answered."""


class Later:
    """Stands for an answer that is not known yet. Whatever is done with it gives another, so that the calls that come
    after are found too; what comes of it is not believed.
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
_OTHERS = "eq ne lt le gt ge neg pos abs invert round trunc floor ceil getitem call contains"
for _name in (*_ARITHMETIC.split(), *(f"r{name}" for name in _ARITHMETIC.split()), *_OTHERS.split()):
    setattr(Later, f"__{_name}__", _later)


class _Asserts(ast.NodeTransformer):
    """Makes ``assert x`` a call of :meth:`Judge.check`."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        check = ast.Expr(ast.Call(ast.Name("check assert", ast.Load()), [node.test], []))
        return ast.copy_location(check, node)


class Judge:
    """The functions' stand-ins, and what they were asked."""

    def __init__(self, answers: dict[str, list[str]]):
        self.answers = {key: list(said) for key, said in answers.items()}
        self.asked: list[tuple[str, str]] = []

    def function(self, name: str) -> Callable[..., Any]:
        """What stands for a function of the program."""

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            return self._call(pickle.dumps((name, args, kwargs), 4))

        return stand_in

    def _call(self, call: bytes) -> Any:
        key = hashlib.sha256(call).hexdigest()
        if said := self.answers.get(key):
            return self._value(said.pop(0))
        if len(self.asked) >= MAX_CALLS:
            raise Stop
        self.asked.append((key, base64.b64encode(call).decode()))
        return Later()

    def _value(self, text: str) -> Any:
        try:
            return decode(json.loads(text))
        except Raised as error:
            kind = getattr(builtins, str(error.args[0]), None)
            if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _NEVER_RAISED):
                raise kind(error.args[1]) from None
            raise

    def verdict(self, test: str, scope: dict[str, Any]) -> bool:
        """Whether a test passes, if all that it asks is known."""
        try:
            tree = ast.fix_missing_locations(_Asserts().visit(ast.parse(test)))
            exec(compile(tree, "test.py", "exec"), scope)
        except BaseException:
            return False
        return True

    def check(self, holds: Any) -> None:
        """What an assert does. As long as an answer is missing it goes on, to find the calls that come after."""
        if not self.asked and not holds:
            raise AssertionError


def main() -> None:
    """Run the job."""
    job = json.loads(sys.stdin.readline())
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    random.seed(job["seed"])
    judge = Judge(job["answers"])
    scope: dict[str, Any] = {"__name__": "tests", "check assert": judge.check}
    for module in job["modules"]:
        scope[module] = importlib.import_module(module)
    for setup in job["setup"]:
        with contextlib.suppress(Exception):  # a set-up may use what only the program defines
            exec(compile(setup, "setup.py", "exec"), scope)
    for name in job["functions"]:
        scope[name] = judge.function(name)
    verdicts = [judge.verdict(test, scope) for test in job["tests"]]
    text = (json.dumps({"verdicts": verdicts, "asked": judge.asked}) + "\n").encode()
    while text:
        text = text[os.write(out, text) :]
