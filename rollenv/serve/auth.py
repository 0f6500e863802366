"""Tokens: who a client is and what it may use. A file holds their hashes, never the tokens."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import hmac
import json
import math
import re
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollenv.core import UsageError
from rollenv.remote.protocol import NotAllowed
from rollenv.serve.quotas import Quota

#: What a token may be for.
SCOPES = ("environments", "sandboxes", "admin")

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")


@dataclass(frozen=True)
class Client:
    """The client of a request."""

    name: str
    scopes: frozenset[str]
    expires: datetime.datetime | None = None
    """When its token does."""

    @property
    def left(self) -> float | None:
        """Seconds until its token expires."""
        return (self.expires - datetime.datetime.now(datetime.UTC)).total_seconds() if self.expires else None

    def needs(self, scope: str) -> None:
        """Refuse what the client's token is not for.

        Raises:
            NotAllowed: it lacks the scope.
        """
        if scope not in self.scopes:
            raise NotAllowed(f"the token of {self.name!r} is not for {scope}")


@dataclass(frozen=True)
class Entry:
    """The stored facts about a token. It is 32 random bytes, so a plain hash is enough."""

    digest: str
    """SHA-256 of the token, in hexadecimal digits."""
    scopes: frozenset[str]
    expires: datetime.datetime | None = None
    allowance: Quota = field(default_factory=Quota)


#: Whoever asks a server without tokens, which listens on this machine only.
ANYONE = Client("anyone", frozenset(SCOPES))


class Tokens:
    """The tokens that a server knows.

    Args:
        hashes: by the names of clients. Empty: everybody may do everything.
    """

    def __init__(self, hashes: Mapping[str, Entry]):
        self._hashes = {name: (entry, Client(name, entry.scopes, entry.expires)) for name, entry in hashes.items()}
        self.quotas = {name: entry.allowance for name, entry in hashes.items()}
        """What clients may take, by name."""

    def __bool__(self) -> bool:
        return bool(self._hashes)

    @classmethod
    def read(cls, file: Path) -> Tokens:
        """Read ``[NAME]`` tables: ``hash``, ``scopes``, and if need be ``expires`` (a date or a time) and limits.

        Raises:
            UsageError: the file cannot be read, or is not of this form.
        """
        try:
            tables = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"the tokens in {file} cannot be read: {error}") from error
        return cls({name: _entry(file, name, table) for name, table in tables.items()})

    def client(self, authorization: str) -> Client:
        """Return the client that sent this ``Authorization`` header. All hashes are compared, each in constant time.

        Raises:
            NotAllowed: there is no token in it, or none that is known.
        """
        if not self._hashes:
            return ANYONE
        token = _token(authorization)
        if not token:
            raise NotAllowed("a token is needed: send the header 'Authorization: Bearer TOKEN'")
        digest = digest_of(token).encode()
        found = [both for both in self._hashes.values() if hmac.compare_digest(both[0].digest.encode(), digest)]
        if not found:
            raise NotAllowed("the token is wrong")
        entry, client = found[0]
        if entry.expires is not None and entry.expires <= datetime.datetime.now(datetime.UTC):
            raise NotAllowed(f"the token of {client.name!r} has expired")
        return client


def _token(authorization: str) -> str:
    """The token of a bearer, or the password of whoever can only write it into an address."""
    kind, _, rest = authorization.strip().partition(" ")
    if kind.lower() == "basic":
        with contextlib.suppress(ValueError):
            return base64.b64decode(rest, validate=True).decode().partition(":")[2]
    return rest.strip() if kind.lower() == "bearer" else ""


def digest_of(token: str) -> str:
    """Return the hash of a token that is stored."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def new_token(name: str, scopes: list[str]) -> tuple[str, str]:
    """A token, and the lines for the file.

    Args:
        scopes: some of :data:`SCOPES`.

    Returns:
        (token, lines of TOML with its hash).

    Raises:
        UsageError: the name or a scope is wrong.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"a client's name has up to 40 letters, digits, '-', '_' and '.', unlike {name!r}")
    token = "rollenv_" + secrets.token_urlsafe(32)
    _scopes("a token", scopes)
    return token, f"[{json.dumps(name)}]\nhash = {json.dumps(digest_of(token))}\nscopes = {json.dumps(scopes)}\n"


_LIMITS = ("sessions", "rate", "compute")


def _entry(file: Path, name: str, table: Any) -> Entry:
    where = f"{file}: [{name}]"
    if not isinstance(table, dict) or not {"hash", "scopes"} <= set(table) <= {"hash", "scopes", "expires", *_LIMITS}:
        raise UsageError(f"{where} needs the keys hash and scopes, and may have expires, {', '.join(_LIMITS)}")
    if not isinstance(table["hash"], str) or not re.fullmatch(r"[0-9a-f]{64}", table["hash"]):
        raise UsageError(f"{file}: the hash of [{name}] is not that of a token; `rollenv serve --new-token` makes one")
    limits = {key: table[key] for key in _LIMITS if key in table}
    for key, value in limits.items():
        kinds = int if key == "sessions" else int | float
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < math.inf:
            raise UsageError(f"{where}: {key} is a number from 0, not {value!r:.40}")
    expires = _expires(where, table["expires"]) if "expires" in table else None
    return Entry(table["hash"], _scopes(where, table["scopes"]), expires, Quota(**limits))


def _expires(where: str, value: Any) -> datetime.datetime:
    """A time; a date is its beginning, and without a zone it is UTC."""
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime.datetime):
        raise UsageError(f"{where}: expires is a date or a time like 2027-01-31T12:00:00Z, not {value!r:.40}")
    return value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)


def _scopes(where: str, scopes: Any) -> frozenset[str]:
    if not isinstance(scopes, list) or not scopes or not all(scope in SCOPES for scope in scopes):
        raise UsageError(f"{where}: scopes is a list of some of {', '.join(SCOPES)}, not {scopes!r:.80}")
    return frozenset(scopes)
