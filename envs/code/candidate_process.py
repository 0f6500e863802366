"""Runs in the sandbox of a program: calls its functions and prints the results as plain data.

A job is a line of JSON on standard input: the program, statements to run after it, and the calls of each test. The
answer to call ``n`` is a line ``n DATA`` on standard output, after the line ``ready``. The process exits when a test
takes too long. It has no expected values: a program that takes over this process can only return other values.
The host and the judge decode them with ``rollenv.envs.code.judge_process.decode``.

Objects other than plain data stay here; later calls of a judge may refer to them.
"""

from __future__ import annotations

import builtins
import copy
import faulthandler
import importlib
import inspect
import io
import itertools
import json
import os
import pickle
import sys
import types
from collections.abc import Callable, ItemsView, Iterable, KeysView, Sequence
from typing import Any

#: Maximum number of parts of a value, nesting depth, and number of items taken from a generator.
MAX_PARTS, MAX_DEPTH, MAX_GENERATED = 500_000, 100, 10_000
_LARGE = 1 << 63
_CONTAINERS: dict[type, str] = {list: "l", tuple: "t", set: "s", frozenset: "z", dict: "d"}
_ITSELF: tuple[type, ...] = (bool, int, float, str, *_CONTAINERS)
_EXACT: dict[type, Callable[[Any], Any]] = {int: int.__int__, float: float.__float__, str: str.__str__}


def encode(value: Any, keep: bool = False, own: Sequence[Any] = ()) -> Any:
    """Encode a value as JSON data.

    None, booleans, texts, small integers, floats and lists are encoded as themselves, anything else as ``{tag: data}``.
    A value of a subclass is encoded as one of its base, unless the subclass defines equality. An object that is not
    plain data is ``{"o": name of its type}``.

    Args:
        keep: encode a value that can only be iterated like an object, which stays in this process.
        own: arguments of a judge's call, each of which is encoded as ``{"m": number}``.
    """
    left = itertools.count(MAX_PARTS, -1)
    numbers = {id(one): number for number, one in enumerate(own)}

    def part(value: Any, depth: int) -> Any:
        if next(left) <= 0 or depth > MAX_DEPTH:
            raise ValueError("too large")
        if id(value) in numbers:
            return {"m": numbers[id(value)]}
        kind = _plain_type(value)
        if kind is None:
            return _other(value, lambda v: part(v, depth + 1), keep)
        if kind is int:
            value = int.__int__(value)
            return value if -_LARGE < value < _LARGE else {"i": hex(value)}
        if kind in _CONTAINERS:
            items = [[part(k, depth + 1), part(v, depth + 1)] for k, v in dict.items(value)] if kind is dict else None
            data = [part(v, depth + 1) for v in kind.__iter__(value)] if items is None else items
            return data if kind is list else {_CONTAINERS[kind]: data}
        return _EXACT[kind](value) if kind in _EXACT else value

    return part(value, 0)


def _plain_type(value: Any) -> Any:
    """Return the built-in type of a value, or None."""
    own: Any = type(value)
    if value is None or own in _ITSELF:
        return own
    if own.__module__ == "collections" and own.__name__ == "OrderedDict":
        return dict
    return next((base for base in _ITSELF if issubclass(own, base) and own.__eq__ is base.__eq__), None)


def _other(value: Any, part: Callable[[Any], Any], keep: bool) -> Any:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind in (bytes, bytearray, memoryview):
        return {"a" if kind is bytearray else "b": value.hex()}
    if kind is complex:
        return {"c": [value.real, value.imag]}
    if kind is range:
        return {"r": [part(value.start), part(value.stop), part(value.step)]}
    if kind is type and value.__module__ == "builtins":
        return {"k": value.__name__}
    if name in _NAMED:
        return {name: _NAMED[name](value, part)}
    if kind.__module__.partition(".")[0] == "numpy" and getattr(value, "shape", None) == ():
        return part(value.item())
    if isinstance(value, KeysView | ItemsView):
        return {"s": [part(v) for v in value]}
    if inspect.iscoroutine(value):
        import asyncio

        return {"w": [part(asyncio.run(value))]}
    if isinstance(value, Iterable) and not keep:
        found = [part(v) for v in itertools.islice(value, MAX_GENERATED)]
        return {"g" if len(found) < MAX_GENERATED else "cut": found}
    return {"o": kind.__name__}


def _fields(*names: str) -> Callable[[Any, Any], Any]:
    return lambda value, part: [part(getattr(value, name)) for name in names]


_DATE, _TIME = ("year", "month", "day"), ("hour", "minute", "second", "microsecond")
#: Encoders of values of the standard library's types.
_NAMED: dict[str, Callable[[Any, Any], Any]] = {
    "fractions.Fraction": lambda value, part: [hex(n) for n in value.as_integer_ratio()],
    "decimal.Decimal": lambda value, part: str(value),
    "collections.Counter": lambda value, part: [[part(k), part(v)] for k, v in dict.items(value)],
    "collections.deque": lambda value, part: [part(v) for v in value],
    "datetime.date": _fields(*_DATE),
    "datetime.time": _fields(*_TIME, "tzinfo"),
    "datetime.datetime": _fields(*_DATE, *_TIME, "tzinfo"),
    "datetime.timedelta": _fields("days", "seconds", "microseconds"),
}


def main() -> None:
    """Run the job."""
    sys.set_int_max_str_digits(0)
    job = json.loads(sys.stdin.readline())
    out, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    for asked in (asked for calls in job["tests"] for asked in calls if "function" in asked):
        kind, _, given = asked["arguments"].partition(" ")
        asked["arguments"] = json.loads(given) if kind == "json" else pickle.loads(bytes.fromhex(given))
    faulthandler.dump_traceback_later(job["seconds"], exit=True, file=nowhere)
    sys.modules["solution"] = module = types.ModuleType("solution")
    scope = vars(module)
    if job["imports"] is not None:
        sys.setrecursionlimit(50_000)
        usual: dict[str, Any] = {}
        for name, (source, part) in job["imports"].items():
            found = importlib.import_module(source)
            usual[name] = getattr(found, part, None) if part else found
        scope["__builtins__"] = usual | vars(builtins)  # separate from the program's own names
    exec(compile(job["code"], "solution.py", "exec", dont_inherit=True), scope)
    if job["setup"]:
        exec(compile(job["setup"], "setup.py", "exec", dont_inherit=True), scope)
    _write(out, "ready")
    results: list[Any] = []
    for calls in job["tests"]:
        faulthandler.dump_traceback_later(job["seconds"], exit=True, file=nowhere)
        for asked in calls:
            _write(out, f"{len(results)} {_answer(asked, scope, results)}")


def _write(out: int, line: str) -> None:
    data = f"{line}\n".encode()
    while data:
        data = data[os.write(out, data) :]


def _answer(asked: dict[str, Any], scope: dict[str, Any], results: list[Any]) -> str:
    results.append(None)
    own: list[Any] = []
    try:
        value = results[-1] = _call(asked, scope, results, own)
        if own:  # the result, and the arguments' contents
            value = [value, *map(copy.copy, own)]
        return json.dumps(encode(value, asked.get("keep", False), own), separators=(",", ":"))
    except BaseException as error:
        known = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
        return json.dumps({"e": [known.__name__, str(error)[:200]]})


def _call(asked: dict[str, Any], scope: dict[str, Any], results: list[Any], own: list[Any]) -> Any:
    """Make a call; add the arguments whose changes the judge wants to see to ``own``."""
    if "source" in asked:
        return eval(compile(asked["source"], "test.py", "eval", dont_inherit=True), scope)
    if "pickle" in asked:
        what, target, args, kwargs, changeable = _Calls(bytes.fromhex(asked["pickle"]), scope, results).load()
        own += changeable
        if what == "attribute":
            return getattr(target, *args)
        return (target if what == "call" else getattr(target, what))(*args, **kwargs)
    name = asked["function"]
    function = scope[name] if name in scope else getattr(scope["Solution"](), name)
    return function(*asked["arguments"])


class _Calls(pickle.Unpickler):
    """Unpickles a judge's calls, which may refer to functions of the program and results of earlier calls."""

    def __init__(self, data: bytes, scope: dict[str, Any], results: list[Any]):
        super().__init__(io.BytesIO(data))
        self._scope, self._results = scope, results

    def persistent_load(self, what: Any) -> Any:
        kind, data = what
        if kind == "function":
            import marshal

            code, defaults = data
            return types.FunctionType(marshal.loads(code), self._scope, argdefs=defaults)
        return self._scope[data] if kind == "name" else self._results[data]
