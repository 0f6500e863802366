"""Runs in the sandbox of a program: calls its functions and says what they return, as plain data.

A job is a line of JSON on standard input: the program, statements to run after it, and calls. The answer to call ``n``
is a line ``n DATA`` on standard output. What is wanted of a call is not here: whatever a program does to this process,
it can only say other values. The host and the judge read them with ``decode`` of :mod:`rollenv.envs.data._judge`.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, ItemsView, Iterable, KeysView
from typing import Any

#: No value has more parts, nor is nested deeper.
MAX_PARTS, MAX_DEPTH = 500_000, 100
_LARGE = 1 << 63
_CONTAINERS: dict[type, str] = {list: "l", tuple: "t", set: "s", frozenset: "z", dict: "d"}
_ITSELF: tuple[type, ...] = (bool, int, float, str, *_CONTAINERS)
_EXACT: dict[type, Callable[[Any], Any]] = {int: int.__int__, float: float.__float__, str: str.__str__}


def encode(value: Any) -> Any:
    """JSON data for a value: None, booleans, texts, small integers, floats and lists stand for themselves, all else is
    ``{tag: data}``.

    A value of a subclass is what it is made of, unless the subclass has an idea of equality of its own.

    Raises:
        ValueError: it is not plain data, or too much of it.
    """
    left = itertools.count(MAX_PARTS, -1)

    def part(value: Any, depth: int) -> Any:
        if next(left) <= 0 or depth > MAX_DEPTH:
            raise ValueError("too large")
        kind = _plain_type(value)
        if kind is None:
            return _other(value, lambda v: part(v, depth + 1))
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
    """The built-in type whose value this is, or None."""
    own: Any = type(value)
    if value is None or own in _ITSELF:
        return own
    if own.__module__ == "collections" and own.__name__ in ("Counter", "OrderedDict"):
        return dict
    return next((base for base in _ITSELF if issubclass(own, base) and own.__eq__ is base.__eq__), None)


def _other(value: Any, part: Callable[[Any], Any]) -> Any:
    kind, module = type(value), type(value).__module__
    if kind in (bytes, bytearray):
        return {"b" if kind is bytes else "a": value.hex()}
    if kind is complex:
        return {"c": [value.real, value.imag]}
    if kind is range:
        return {"r": [part(value.start), part(value.stop), part(value.step)]}
    if module in ("fractions", "decimal") and kind.__name__ in ("Fraction", "Decimal"):
        return {"q": [hex(n) for n in value.as_integer_ratio()]}
    if module.partition(".")[0] == "numpy" and getattr(value, "shape", None) == ():
        return part(value.item())
    if isinstance(value, KeysView | ItemsView):
        return {"s": [part(v) for v in value]}
    if isinstance(value, Iterable):
        return {"g": [part(v) for v in itertools.islice(value, MAX_PARTS)]}
    raise ValueError(f"a value of type {kind.__name__} is not plain data")


def main() -> None:
    """Run the job."""
    job = json.loads(sys.stdin.readline())
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    scope: dict[str, Any] = {"__name__": "solution"}
    exec(compile(job["code"], "solution.py", "exec"), scope)
    if job["setup"]:
        exec(compile(job["setup"], "setup.py", "exec"), scope)
    for number, asked in enumerate(job["calls"]):
        text = f"{number} {_answer(asked, scope)}\n".encode()
        while text:
            text = text[os.write(out, text) :]


def _answer(asked: dict[str, Any], scope: dict[str, Any]) -> str:
    try:
        return json.dumps(encode(_call(asked, scope)), separators=(",", ":"))
    except BaseException as error:
        return json.dumps({"e": [type(error).__name__, str(error)[:200]]})


def _call(asked: dict[str, Any], scope: dict[str, Any]) -> Any:
    if "source" in asked:
        return eval(compile(asked["source"], "test.py", "eval"), scope)
    if "pickle" in asked:
        import base64
        import pickle

        name, args, kwargs = pickle.loads(base64.b64decode(asked["pickle"]))
        return scope[name](*args, **kwargs)
    name = asked["function"]
    function = scope[name] if name in scope else getattr(scope["Solution"](), name)
    return function(*asked["arguments"])
