"""The native protocol: MessagePack in the binary messages of one WebSocket.

A request is ``[number, operation, ...]``, its answer ``[number, value]``, or ``[number, None, kind, text, details]``
for an error. Answers may arrive in any order. A message holds one of them, or a list of several. Every call of a
session carries the session's count of calls, so that a call repeated after a lost connection is not carried out twice.

======== =============================== ==============================================================
request  arguments                       answer
======== =============================== ==============================================================
hello    version                         about the server
spec     environment id                  its spec
open     session, environment, settings  about the environment
resume   session                         the count of its last call
call     session, count, method, arguments the method's result
close    session                         None
cancel   number of a request             None; the request is answered by the error "cancelled"
======== =============================== ==============================================================

The client chooses the name of a session, which must be hard to guess. Opening a session is idempotent.

Pictures in an info are mappings with the hash and the size of each and its ``data`` in base64. A client that opens with
the setting ``"pictures": "once"`` gets ``data`` only with the first occurrence in an episode; those of a call that is
repeated, and after ``resume``, come again.
"""

from __future__ import annotations

import datetime
import secrets
import zlib
from collections import deque
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import numpy as np

from rollenv.core.errors import (
    EpisodeOver,
    MissingExtra,
    NoSuchAbility,
    RollenvError,
    UnknownEnv,
    Unsolvable,
    UsageError,
)
from rollenv.core.needs import extra
from rollenv.core.pictures import Picture, picture

with extra("serve", "A served environment"):
    import msgpack

VERSION = 1
SUBPROTOCOL = "rollenv.1"
PATH = "/native"

#: The error text for a defect of the server.
FAILED = "the server failed; its log says why"

#: Maximum bytes of one message from a server, and to a server, since small messages can become large Python objects.
LARGEST_MESSAGE, LARGEST_REQUEST = 1 << 26, 1 << 22

#: Maximum bytes of the header of a list.
_HEAD = 5

#: Other types of single values, which are sent as text.
_AS_TEXT = (datetime.date, datetime.time, datetime.timedelta, Decimal, Fraction, UUID, complex)

#: Maximum length of a range that is sent as a list.
_LONGEST_RANGE = 1 << 20

#: MessagePack extension for integers beyond 64 bits, which are sent as text.
_BIG_INT = 1

#: Methods of an environment that clients may call, and whether later answers depend on them.
METHODS = {
    "reset": True,
    "step": True,
    "set_state": True,
    "seed_stream": True,
    "seed_actions": True,
    "sample_random_action": True,
    "get_state": False,
    "oracle_action": False,
    "state_key": False,
    "render": False,
    "num_tasks": False,
}


#: Where an answer has its info; what is before it counts for a replay.
_INFO = {"reset": 1, "step": 4}


class ServerError(RollenvError):
    """A server refused a request, or could not carry it out."""

    def __init__(self, text: str, /, **details: Any):
        super().__init__(text)
        self.details = details


class Unsendable(UsageError):
    """A message cannot be sent: it is too large, or not plain data."""


class NotAllowed(ServerError):
    """The token is missing, wrong, or lacks a scope."""


class ServerFull(ServerError):
    """The server has no room; ``details["retry_after"]`` is the delay before a retry in seconds."""

    @property
    def retry_after(self) -> float:
        """Seconds before a retry."""
        return float(self.details.get("retry_after", 1.0))


class TooFast(ServerFull):
    """The client exceeded its quota; ``details["retry_after"]`` is the delay before a retry in seconds."""


class SessionGone(ServerError):
    """There is no such session: it was closed, its lease has expired, or its server was restarted."""


class Cancelled(ServerError):
    """The client cancelled the request."""


class EnvBroke(ServerError):
    """The environment failed: ``details["kind"]`` is "raised", "wrong", "hung", "lost" or "differs"."""


class ServerLost(RollenvError, ConnectionError):
    """The connection to a server was lost, or could not be opened."""

    exit_code = 6


KINDS: dict[str, type[RollenvError]] = {
    "usage": UsageError,
    "unknown_env": UnknownEnv,
    "missing": MissingExtra,
    "unsolvable": Unsolvable,
    "over": EpisodeOver,
    "ability": NoSuchAbility,
    "not_allowed": NotAllowed,
    "full": ServerFull,
    "fast": TooFast,
    "gone": SessionGone,
    "cancelled": Cancelled,
    "env": EnvBroke,
    "server": ServerError,
}
_NAMES = {cls: kind for kind, cls in KINDS.items()}


def session_name() -> str:
    """Return a name for a session that is hard to guess and can be part of a host name."""
    return secrets.token_hex(18)


def pack(value: Any) -> bytes:
    """Encode a message.

    Raises:
        Unsendable: the value is not plain data, or too large.
    """
    try:
        data: bytes = msgpack.packb(value, default=plain, unicode_errors="surrogatepass")
    except (TypeError, ValueError, OverflowError) as error:
        raise Unsendable(f"only plain data can be sent: {error}") from error
    if len(data) > LARGEST_MESSAGE:
        raise Unsendable(f"a message of {len(data)} bytes is too large; at most {LARGEST_MESSAGE} are sent")
    return data


def pack_request(value: Any) -> bytes:
    """Encode a request.

    Raises:
        Unsendable: the value is not plain data, or too large.
    """
    data = pack(value)
    if len(data) > LARGEST_REQUEST - _HEAD:
        raise Unsendable(f"a request of {len(data)} bytes is too large; a server takes {LARGEST_REQUEST}")
    return data


def pack_all(messages: list[bytes], most: int) -> Iterator[tuple[int, bytes]]:
    """Combine encoded requests or answers to as few messages as possible.

    Args:
        messages: encoded requests or answers, none too large for a message.
        most: maximum bytes of a message.

    Yields:
        The number of requests or answers in a message, and the message.
    """
    some: list[bytes] = []
    size = 0
    for message in messages:
        if some and size + len(message) > most - _HEAD:
            yield len(some), some[0] if len(some) == 1 else pack_list(some)
            some, size = [], 0
        some.append(message)
        size += len(message)
    if some:
        yield len(some), some[0] if len(some) == 1 else pack_list(some)


def pack_list(messages: list[bytes]) -> bytes:
    """Encode a list of encoded values."""
    return bytes(msgpack.Packer().pack_array_header(len(messages))) + b"".join(messages)


def unpack_all(data: bytes) -> list[list[Any]]:
    """Decode the requests or answers in a message.

    Raises:
        UsageError: the message is not MessagePack, or has other contents.
    """
    value = unpack(data)
    items = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    if all(isinstance(one, list) and len(one) >= 2 and type(one[0]) is int for one in items):
        return items
    raise UsageError("a message holds requests or answers, which are lists that begin with a number")


def unpack(data: bytes) -> Any:
    """Decode a message."""
    how = {"ext_hook": _extension, "strict_map_key": False, "unicode_errors": "surrogatepass"}
    try:
        try:
            return msgpack.unpackb(data, **how)
        except TypeError:  # a key of a mapping is a list, which was a tuple
            return msgpack.unpackb(data, object_pairs_hook=_mapping, **how)
    except Exception as error:  # the library raises many kinds
        raise UsageError(f"not a message in MessagePack: {type(error).__name__} {error}") from error


def plain(value: Any) -> Any:
    """Convert a value to types of MessagePack.

    Raises:
        TypeError: the value is not plain data.
    """
    if isinstance(value, int):
        return msgpack.ExtType(_BIG_INT, str(value).encode())
    if isinstance(value, np.generic | np.ndarray) and value.dtype.itemsize and value.dtype.kind != "V":
        return value.tolist()  # other dtypes can become very large when decoded
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, deque) or (isinstance(value, range) and len(value[:_LONGEST_RANGE]) < _LONGEST_RANGE):
        return list(value)
    if isinstance(value, _AS_TEXT):
        return str(value)
    if isinstance(value, Picture):
        return value.as_json()
    raise TypeError(f"{type(value).__name__} is not plain data")


def _mapping(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    return {_key(key): value for key, value in pairs}


def _key(key: Any) -> Any:
    return tuple(map(_key, key)) if isinstance(key, list) else key


def _extension(code: int, data: bytes) -> Any:
    if code == _BIG_INT and len(data) <= 100:
        return int(data)
    return msgpack.ExtType(code, data)


def fingerprint(method: str, answer: Any) -> int:
    """Return a hash of an answer, stable across processes. Of an info, which may have times, the pictures count."""
    counted = _INFO.get(method)
    if counted is None:
        return zlib.crc32(pack(answer))
    images = [image.sha256 for image in answer[counted].get("images", ())]
    return zlib.crc32(pack([*answer[:counted], *([images] if images else [])]))


def without_known(method: str, answer: Any, sent: set[str]) -> Any:
    """Return an answer without the data of pictures that the client has, and note what it gets.

    Args:
        sent: hashes; those of earlier episodes are forgotten.
    """
    if method == "reset":
        sent.clear()
    if not (images := _images_of(method, answer)):
        return answer
    forms = []
    for image in images:
        forms.append(image.as_json(data=image.sha256 not in sent))
        sent.add(image.sha256)
    return _with_images(method, answer, forms)


def with_known(method: str, answer: Any, known: dict[str, Picture]) -> Any:
    """Return an answer with its pictures, and note them for later ones.

    Args:
        known: pictures by hash; those of earlier episodes are forgotten.

    Raises:
        ServerError: the answer has another form; or a picture is wrong, or came without data and is not known.
    """
    if method == "reset":
        known.clear()
    try:
        images = _images_of(method, answer)
    except (AttributeError, LookupError, TypeError) as error:
        raise ServerError(f"the server's answer to {method} has not its form: {answer!r:.200}") from error
    if not images:
        return answer
    found = []
    for form in images:
        try:
            image = known[form["sha256"]] if "data" not in form else picture(form)
        except (LookupError, TypeError, UsageError) as error:
            raise ServerError(f"the server sent a wrong picture: {error!r:.200}") from error
        known[image.sha256] = image
        found.append(image)
    return _with_images(method, answer, found)


def _images_of(method: str, answer: Any) -> Any:
    return answer[_INFO[method]].get("images") if method in _INFO else None


def _with_images(method: str, answer: list[Any], images: list[Any]) -> list[Any]:
    at = _INFO[method]
    return [*answer[:at], {**answer[at], "images": images}, *answer[at + 1 :]]


def error_answer(error: RollenvError) -> tuple[str, str, dict[str, Any]]:
    """Return the kind, text and details of an error, by its nearest class in the protocol."""
    kind = next((_NAMES[cls] for cls in type(error).__mro__ if cls in _NAMES), "server")
    return kind, str(error), getattr(error, "details", {})


def error_of(kind: Any, text: Any, details: Any) -> RollenvError:
    """Build the error of an answer; an unknown kind becomes a ServerError."""
    cls = KINDS.get(kind, ServerError) if isinstance(kind, str) else ServerError
    if issubclass(cls, ServerError):
        known = (
            {key: value for key, value in details.items() if isinstance(key, str)} if isinstance(details, dict) else {}
        )
        if issubclass(cls, ServerFull):
            after = known.get("retry_after")  # untrusted
            known["retry_after"] = min(3600.0, float(after)) if isinstance(after, int | float) and after >= 0 else 1.0
        return cls(str(text), **known)
    return cls(str(text))
