"""What is sent between a worker and its pool. Requests are the pool's own words; answers are an environment's, and are
read as plain data alone: nothing of an environment's is imported or run by who reads them."""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any

from rollenv.core import MissingExtra, RollenvError, UnknownEnv, Unsolvable, UsageError
from rollenv.rollout.workers import EnvFailure, Seen, told

#: Before a request: its length. Before an answer: its length and the request's number.
REQUEST, ANSWER = struct.Struct("!I"), struct.Struct("!IQ")

#: Bytes of an answer.
LARGEST_ANSWER = 1 << 26

#: Errors that are the caller's or the agent's business and not a failure of the environment.
_PASSING = {cls.__name__: cls for cls in (UsageError, UnknownEnv, MissingExtra, Unsolvable)}

_PLAIN = {
    "builtins": {"set", "frozenset", "complex", "bytearray", "slice", "range", "int", "float", "str", "bool", "list"}
    | {"dict", "tuple", "bytes"},
    "collections": {"OrderedDict", "defaultdict", "deque", "Counter"},
    "datetime": {"date", "datetime", "time", "timedelta", "timezone"},
    "decimal": {"Decimal"},
    "fractions": {"Fraction"},
    "uuid": {"UUID"},
    "numpy": {"dtype", "ndarray"},
    **{f"numpy.{core}.multiarray": {"scalar", "_reconstruct"} for core in ("core", "_core")},
    **{f"numpy.{core}.numeric": {"_frombuffer"} for core in ("core", "_core")},
}

# Bound here, so that an environment that patches pickle in its worker does not reach it.
_dumps = pickle.dumps


class _Reader(pickle.Unpickler):
    """Reads plain data."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in _PLAIN.get(module, ()):
            raise pickle.UnpicklingError(f"it holds a {module}.{name}, which is no plain data")
        return super().find_class(module, name)


def pack_request(message: Any) -> bytes:
    """A request as it is sent."""
    data = _dumps(message, protocol=5)
    return REQUEST.pack(len(data)) + data


def pack_answer(request: int, payload: bytes) -> bytes:
    """An answer as it is sent."""
    return ANSWER.pack(len(payload), request) + payload


def encode(env_id: str, value: Any) -> bytes:
    """What an environment answered."""
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
    """What an environment, or what asks it, raised: the nearest known class and the text."""
    name = next((c.__name__ for c in type(error).__mro__ if c.__name__ in _PASSING and c is _PASSING[c.__name__]), "")
    if name:
        return _dumps(("error", name, str(error)), protocol=5)
    known = isinstance(error, EnvFailure)
    return _dumps(("failure", error.kind if known else "raised", str(error) if known else told(error)), protocol=5)  # type: ignore[attr-defined]


def decode(data: bytes) -> Any:
    """The value of an answer.

    Raises:
        RollenvError: that it is; EnvFailure also for what cannot be read.
    """
    try:
        tag, *rest = _Reader(io.BytesIO(data)).load()
        if tag == "seen":
            return Seen(*rest)
        if tag == "value":
            return rest[0]
        error: RollenvError = EnvFailure(*rest) if tag == "failure" else _PASSING[rest[0]](rest[1])
    except BaseException as problem:
        raise EnvFailure("wrong", f"what it returned cannot be sent: {told(problem)}") from problem
    raise error
