"""Messages between a worker process and its pool.

Requests come from the pool and are pickled. Answers come from environments: the pool unpickles only plain data and
never imports or runs an environment's code.
"""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any

from rollenv.core.errors import MissingExtra, RollenvError, UnknownEnv, Unsolvable, UsageError, describe, error_text
from rollenv.rollout import validation
from rollenv.rollout.workers.base import EnvFailure, EnvResult, validated

#: Header of a request: its length. Header of an answer: its length, the request's number, and its processor time in
#: microseconds.
REQUEST, ANSWER = struct.Struct("!I"), struct.Struct("!IQI")

#: Maximum bytes of an answer.
LARGEST_ANSWER = 1 << 26

#: Errors that the caller or the agent handles; all others are failures of the environment.
_PASSED_ON = {cls.__name__: cls for cls in (UsageError, UnknownEnv, MissingExtra, Unsolvable)}

#: Classes and functions that pickled plain data may name.
_PLAIN = {
    "builtins": {"bool", "complex", "dict", "float", "int", "list", "range", "set", "slice", "str", "tuple"},
    "collections": {"OrderedDict", "defaultdict", "deque", "Counter"},
    "datetime": {"date", "datetime", "time", "timedelta", "timezone"},
    "decimal": {"Decimal"},
    "fractions": {"Fraction"},
    "uuid": {"UUID"},
    "rollenv.core.pictures": {"Picture"},
    "numpy": {"dtype", "ndarray"},
    **{f"numpy.{core}.multiarray": {"scalar", "_reconstruct"} for core in ("core", "_core")},
    **{f"numpy.{core}.numeric": {"_frombuffer"} for core in ("core", "_core")},
}


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles plain data only."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in _PLAIN.get(module, ()):
            raise pickle.UnpicklingError(f"it holds a {module}.{name}, which is not plain data")
        return super().find_class(module, name)


def pack_request(message: Any) -> bytes:
    """Pickle a request with its header."""
    data = pickle.dumps(message, protocol=5)
    return REQUEST.pack(len(data)) + data


def pack_answer(request: int, payload: bytes, seconds: float = 0.0) -> bytes:
    """Add the header to an encoded answer; ``seconds`` is its processor time."""
    return ANSWER.pack(len(payload), request, min(int(1e6 * seconds), 2**32 - 1)) + payload


def encode(env_id: str, value: Any) -> bytes:
    """Encode the result of an environment."""
    message: tuple[Any, ...] = ("value", value)
    if type(value) is EnvResult:
        message = ("result", *(getattr(value, name) for name in EnvResult.__slots__))
    try:
        data = pickle.dumps(message, protocol=5)
        if len(data) > LARGEST_ANSWER:
            raise ValueError(f"it has {len(data)} bytes, and at most {LARGEST_ANSWER} are sent")
    except BaseException as error:
        return encode_error(EnvFailure("wrong", f"{env_id}: its result cannot be sent: {describe(error)}"))
    return data


def encode_error(error: BaseException) -> bytes:
    """Encode an exception by its nearest known class and its text."""
    name = next((c.__name__ for c in type(error).__mro__ if c is _PASSED_ON.get(c.__name__)), "")
    if name:
        return pickle.dumps(("error", name, error_text(error)), protocol=5)
    if isinstance(error, EnvFailure):
        return pickle.dumps(("failure", error.kind, error_text(error)), protocol=5)
    return pickle.dumps(("failure", "raised", describe(error)), protocol=5)


def decode(data: bytes) -> Any:
    """Decode an answer.

    Raises:
        RollenvError: the answer is an error, or it cannot be read (EnvFailure).
    """
    try:
        tag, *rest = _PlainUnpickler(io.BytesIO(data)).load()
        if tag == "result":
            return validated(*rest)  # again, because the environment can change anything in its process
        if tag == "value":
            return rest[0]
        kind, text = (validation.text(value, "a failure") for value in rest)
        error: RollenvError = EnvFailure(kind, text)
        if tag != "failure":
            error = _PASSED_ON[kind](text)
    except BaseException as problem:
        raise EnvFailure("wrong", f"its result cannot be sent: {describe(problem)}") from problem
    raise error
