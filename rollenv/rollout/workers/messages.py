"""Messages between a worker and its pool. Requests come from the pool; answers come from environments and are
read as plain data only: the reader never imports or runs code of an environment."""

from __future__ import annotations

import datetime
import io
import pickle
import struct
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import numpy as np

from rollenv.core import MissingExtra, RollenvError, UnknownEnv, Unsolvable, UsageError
from rollenv.rollout import border
from rollenv.rollout.workers.base import EnvFailure, Seen, checked, says, told

#: Before a request: its length. Before an answer: its length, the request's number, and the processor time that it took
#: in microseconds.
REQUEST, ANSWER = struct.Struct("!I"), struct.Struct("!IQI")

#: Bytes of an answer.
LARGEST_ANSWER = 1 << 26

#: Errors that are the caller's or the agent's business and not a failure of the environment.
_PASSING = {cls.__name__: cls for cls in (UsageError, UnknownEnv, MissingExtra, Unsolvable)}


class _Maker:
    """A function that pickled data may call and cannot change."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]):
        self._make = make

    def __call__(self, *args: Any) -> Any:
        return self._make(*args)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it holds a state for a type, which is not plain data")


def _no_call(*args: Any) -> Any:
    raise pickle.UnpicklingError("it holds a call of a type, which is not plain data")


def _deque(start: tuple[()], maxlen: int | None = None) -> deque[Any]:
    return deque(maxlen=maxlen)


def _fraction(*parts: Any) -> Fraction:
    """Only from a numerator and a denominator: an exponent could exhaust the reader's memory."""
    numerator, denominator = parts if len(parts) == 2 else (*parts[0].split("/"), 1)[:2]
    return Fraction(int(numerator), int(denominator))


def _array(kind: Any, shape: Any, code: Any) -> Any:
    """An empty one, which then gets a shape and as many data as that has."""
    return np.ndarray.__new__(np.ndarray, (0,), "b")


_scalar: Any
_frombuffer: Any
_scalar, _frombuffer = np.float32(1).__reduce__()[0], np.ones(1).__reduce_ex__(5)[0]
_SCALAR = _Maker(lambda dtype, data: _scalar(dtype, data))
_FROM_BUFFER = _Maker(lambda data, dtype, shape, order: _frombuffer(data, dtype, shape, order))

#: What builds plain data that pickle has no words for. None of them can make much out of little.
_PLAIN: dict[str, dict[str, Any]] = {
    "builtins": {"complex": complex, "range": range, "slice": slice}
    | dict.fromkeys(("int", "float", "str", "bool", "list", "dict", "tuple", "bytes", "set"), _Maker(_no_call)),
    "collections": {
        "OrderedDict": _Maker(lambda: OrderedDict()),
        "defaultdict": _Maker(lambda *factory: {}),  # whose factory stays behind
        "deque": _Maker(_deque),
        "Counter": _Maker(lambda counts: Counter(dict.copy(counts))),
    },
    "datetime": {name: getattr(datetime, name) for name in ("date", "datetime", "time", "timedelta", "timezone")},
    "decimal": {"Decimal": Decimal},
    "fractions": {"Fraction": _Maker(_fraction)},
    "uuid": {"UUID": UUID},
    "numpy": {"dtype": np.dtype, "ndarray": _Maker(_no_call)},
    **{f"numpy.{core}.multiarray": {"scalar": _SCALAR, "_reconstruct": _Maker(_array)} for core in ("core", "_core")},
    **{f"numpy.{core}.numeric": {"_frombuffer": _FROM_BUFFER} for core in ("core", "_core")},
}

# Bound here, so that an environment that patches pickle in its worker does not reach it.
_dumps = pickle.dumps


class _Reader(pickle.Unpickler):
    """Reads plain data."""

    def find_class(self, module: str, name: str) -> Any:
        found = _PLAIN.get(module, {}).get(name)
        if found is None:
            raise pickle.UnpicklingError(f"it holds a {module}.{name}, which is not plain data")
        return found


def pack_request(message: Any) -> bytes:
    """A request in the form in which it is sent."""
    data = _dumps(message, protocol=5)
    return REQUEST.pack(len(data)) + data


def pack_answer(request: int, payload: bytes, seconds: float = 0.0) -> bytes:
    """Pack an answer for sending.

    Args:
        seconds: of processor time that it took.
    """
    return ANSWER.pack(len(payload), request, min(int(1e6 * seconds), 2**32 - 1)) + payload


def encode(env_id: str, value: Any) -> bytes:
    """Encode the result of an environment."""
    seen = type(value) is Seen
    value = ("seen", *(getattr(value, name) for name in Seen.__slots__)) if seen else ("value", value)
    try:
        data = _dumps(value, protocol=5)
        if len(data) > LARGEST_ANSWER:
            raise ValueError(f"it has {len(data)} bytes, and at most {LARGEST_ANSWER} are sent")
    except BaseException as error:
        return encode_error(EnvFailure("wrong", f"{env_id}: what it returned cannot be sent: {told(error)}"))
    return data


def encode_error(error: BaseException) -> bytes:
    """Encode an exception: the nearest known class and the text."""
    name = next((c.__name__ for c in type(error).__mro__ if c.__name__ in _PASSING and c is _PASSING[c.__name__]), "")
    if name:
        return _dumps(("error", name, says(error)), protocol=5)
    if isinstance(error, EnvFailure):
        return _dumps(("failure", error.kind, says(error)), protocol=5)
    return _dumps(("failure", "raised", told(error)), protocol=5)


def decode(data: bytes) -> Any:
    """Decode an answer.

    Raises:
        RollenvError: that it is; EnvFailure also for what cannot be read.
    """
    try:
        tag, *rest = _Reader(io.BytesIO(data)).load()
        if tag == "seen":
            return checked(*rest)  # again, for an environment can replace what is in its process
        if tag == "value":
            return rest[0]
        kind, text = (border.text(value, "a failure") for value in rest)
        error: RollenvError = EnvFailure(kind, text) if tag == "failure" else _PASSING[kind](text)
    except BaseException as problem:
        raise EnvFailure("wrong", f"what it returned cannot be sent: {told(problem)}") from problem
    raise error
