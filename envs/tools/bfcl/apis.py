"""The services of BFCL's tasks of several turns: bfcl-eval's own classes, kept apart from its module state.

bfcl-eval keeps its instances in a module and evaluates calls as Python. Here every episode has instances of its own,
made from private copies of the modules, and calls are method calls with checked names.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import decimal
import functools
import importlib.util
import inspect
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from rollenv.envs.tools.bfcl import PACKAGES
from rollenv.envs.tools.bfcl.source import Entry
from rollenv.errors import MissingExtra

#: Classes, their modules, and the files that describe their functions.
CLASSES = {
    "GorillaFileSystem": ("gorilla_file_system", "gorilla_file_system"),
    "MathAPI": ("math_api", "math_api"),
    "MessageAPI": ("message_api", "message_api"),
    "TwitterAPI": ("posting_api", "posting_api"),
    "TicketAPI": ("ticket_api", "ticket_api"),
    "TradingBot": ("trading_bot", "trading_bot"),
    "TravelAPI": ("travel_booking", "travel_booking"),
    "VehicleControlAPI": ("vehicle_control", "vehicle_control"),
}
_SOURCES = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"

#: Limits that only hostile calls reach: of numbers for calculations, of numbers that say how long to calculate, and of
#: the files and folders of a file system.
_MOST_NUMBER, _MOST_EFFORT, _MOST_FILES, _DEEPEST = 1e15, 1000, 2000, 50
_EFFORT = ("precision", "decimal_places", "exponent")


class _Frozen(datetime.datetime):
    """A clock that stands still, in UTC: neither the age of travellers nor a share's price depends on where it runs."""

    @classmethod
    def today(cls) -> _Frozen:
        return cls(2026, 3, 23)

    @classmethod
    def fromtimestamp(cls, timestamp: float, tz: datetime.tzinfo | None = None) -> _Frozen:
        return super().fromtimestamp(timestamp, tz or datetime.UTC).replace(tzinfo=None)

    def timestamp(self) -> float:
        return datetime.datetime.timestamp(self.replace(tzinfo=self.tzinfo or datetime.UTC))


@functools.cache
def _class(name: str) -> Any:
    """A class from a private copy of its module."""
    module = CLASSES[name][0]
    try:
        spec = importlib.util.find_spec(f"{_SOURCES}.{module}")
    except ImportError:
        spec = None
    if spec is None or spec.origin is None:
        raise MissingExtra(f"{name} is a class of the package bfcl-eval: {PACKAGES[0].command}")
    own = importlib.util.spec_from_file_location(f"_rollenv_bfcl_{module}", spec.origin)
    assert own is not None
    assert own.loader is not None
    copied = importlib.util.module_from_spec(own)
    own.loader.exec_module(copied)
    for known, value in list(vars(copied).items()):
        if value is datetime.datetime:
            setattr(copied, known, _Frozen)
        elif isinstance(value, datetime.datetime):
            setattr(copied, known, _Frozen.combine(value.date(), value.time()))
    return getattr(copied, name)


class Services:
    """The services that a task involves, in the state that calls have brought about.

    Args:
        offered: names of the functions that may be called.

    Raises:
        MissingExtra: bfcl-eval is not installed.
    """

    def __init__(self, entry: Entry, offered: Sequence[str]):
        self.objects: dict[str, Any] = {}
        for name in entry["involved_classes"]:
            service = self.objects[name] = _class(name)()
            if hasattr(service, "_load_scenario"):
                service._load_scenario(copy.deepcopy(entry["initial_config"].get(name, {})))
        # Of two functions with one name the last is meant, as in bfcl-eval.
        self.methods = {
            name: getattr(service, name)
            for service in self.objects.values()
            for name in offered
            if inspect.ismethod(getattr(service, name, None))
        }

    def wrong(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return why a call cannot be carried out; empty if it can."""
        method = self.methods[name]
        try:
            inspect.signature(method).bind(**arguments)
        except TypeError as error:
            return f"error: {name}: {error}"
        if type(method.__self__).__name__ == "MathAPI" and not _calculable(arguments):
            return (
                f"error: {name}: numbers go to {_MOST_NUMBER:g}, and those for digits and exponents to {_MOST_EFFORT}"
            )
        return ""

    def run(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Carry out a call; the answer as bfcl-eval writes it."""
        try:
            with _own_precision(type(self.methods[name].__self__).__name__):
                result = self.methods[name](**copy.deepcopy(dict(arguments)))
                return _written(result)
        except Exception as error:
            return f"Error during execution: {error}"

    def too_large(self) -> bool:
        """Return whether folders were put into one another until walking through them would not end."""
        system = self.objects.get("GorillaFileSystem")
        if system is None:
            return False
        left, seen = [(system.root, 0)], 0
        while left:
            item, depth = left.pop()
            seen += 1
            if seen > _MOST_FILES or depth > _DEEPEST:
                return True
            left += [(each, depth + 1) for each in getattr(item, "contents", {}).values()]
        return False

    def public(self) -> dict[str, dict[str, Any]]:
        """Return the state that is compared: the public attributes of each service."""
        return {name: {k: v for k, v in vars(each).items() if k[0] != "_"} for name, each in self.objects.items()}

    def shown(self) -> dict[str, Any]:
        """The public attributes as JSON data, for people."""
        return {name: _plain(attributes) for name, attributes in self.public().items()}


def _calculable(arguments: Mapping[str, Any]) -> bool:
    numbers = [(k, each) for k, v in arguments.items() for each in (v if isinstance(v, list) else [v])]
    return all(
        abs(each) <= (_MOST_EFFORT if name in _EFFORT else _MOST_NUMBER)
        for name, each in numbers
        if isinstance(each, int | float)
    )


_PRECISION = threading.Lock()


@contextlib.contextmanager
def _own_precision(service: str) -> Iterator[None]:
    """MathAPI sets the precision of the whole process; this puts it back."""
    if service != "MathAPI":
        yield
        return
    mpmath: ModuleType = importlib.import_module("mpmath")
    with _PRECISION, decimal.localcontext():
        digits = mpmath.mp.dps
        try:
            yield
        finally:
            mpmath.mp.dps = digits


def _written(result: Any) -> str:
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError):
            return str(result)
    return str(result)


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > 2 * _DEEPEST or value is None or isinstance(value, str | int | float):
        return value if value is None or isinstance(value, str | int | float) else "..."
    if isinstance(value, Mapping):
        return {str(key): _plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(each, depth + 1) for each in value]
    if hasattr(value, "contents") or hasattr(value, "content"):
        return _plain(getattr(value, "contents", None) if hasattr(value, "contents") else value.content, depth + 1)
    return str(value)
