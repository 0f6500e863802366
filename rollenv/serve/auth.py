"""Authentication and authorization by tokens. A file holds their hashes, never the tokens."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import hmac
import json
import re
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from rollenv.core.errors import UsageError, reads
from rollenv.remote.protocol import NotAllowed
from rollenv.serve.quotas import Quota
from rollenv.serve.responses import wrong_fields

#: All scopes of tokens.
SCOPES = ("environments", "sandboxes", "admin")

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")


@dataclass(frozen=True)
class Client:
    """The client of a request."""

    name: str
    scopes: frozenset[str]
    expires: datetime.datetime | None = None
    """Expiry of its token."""

    @property
    def left(self) -> float | None:
        """Seconds until the token expires."""
        return (self.expires - datetime.datetime.now(datetime.UTC)).total_seconds() if self.expires else None

    def needs(self, scope: str) -> None:
        """Raise NotAllowed unless the client's token has a scope."""
        if scope not in self.scopes:
            raise NotAllowed(f"the token of {self.name!r} is not for {scope}")


def _moment(value: Any) -> datetime.datetime:
    """Convert a date or time to a time; without a zone it is in UTC."""
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime.datetime):
        raise ValueError(f"it is a date or a time like 2027-01-31T12:00:00Z, not {value!r:.40}")
    return value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)


class TokenEntry(BaseModel):
    """The entry of a token in the file. A token is 32 random bytes, so a plain hash is enough."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    hash: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the token, in hexadecimal digits; ``rollenv serve --new-token`` makes one."""
    scopes: list[Literal["environments", "sandboxes", "admin"]] = Field(min_length=1)
    expires: Annotated[datetime.datetime, BeforeValidator(_moment)] | None = None
    sessions: int = Field(0, ge=0)
    rate: float = Field(0.0, ge=0, allow_inf_nan=False)
    compute: float = Field(0.0, ge=0, allow_inf_nan=False)


#: The client of a server without tokens, which listens on this machine only.
ANYONE = Client("anyone", frozenset(SCOPES))


class TokenTable:
    """The tokens of a server.

    Args:
        hashes: entries by the names of clients; if empty, every request is allowed.
    """

    def __init__(self, hashes: Mapping[str, TokenEntry]):
        self._hashes = {
            name: (entry, Client(name, frozenset(entry.scopes), entry.expires)) for name, entry in hashes.items()
        }
        self.quotas = {name: Quota(entry.sessions, entry.rate, entry.compute) for name, entry in hashes.items()}
        """The quotas of clients by name."""

    def __bool__(self) -> bool:
        return bool(self._hashes)

    @classmethod
    def read(cls, file: Path) -> TokenTable:
        """Read ``[NAME]`` tables with ``hash``, ``scopes`` and optionally ``expires`` (a date or time) and limits.

        Raises:
            UsageError: the file cannot be read or is malformed.
        """
        with reads(f"the tokens in {file} cannot be read"):
            tables = tomllib.loads(file.read_text(encoding="utf-8"))
        entries = {}
        for name, table in tables.items():
            try:
                entries[name] = TokenEntry.model_validate(table)
            except ValidationError as error:
                raise UsageError(f"{file}: [{name}]: {wrong_fields(error)}") from error
        return cls(entries)

    def holds(self, name: str) -> bool:
        """Return whether a client's token is valid now; what it opened ends with it."""
        left = self._hashes[name][1].left if name in self._hashes else None
        return left is None or left > 0

    def client(self, authorization: str) -> Client:
        """Return the client of an ``Authorization`` header. All hashes are compared, each in constant time.

        Raises:
            NotAllowed: the token is missing, unknown or expired.
        """
        if not self._hashes:
            return ANYONE
        token = _token(authorization)
        if not token:
            raise NotAllowed("a token is needed: send the header 'Authorization: Bearer TOKEN'")
        digest = digest_of(token).encode()
        matching = [pair for pair in self._hashes.values() if hmac.compare_digest(pair[0].hash.encode(), digest)]
        if not matching:
            raise NotAllowed("the token is wrong")
        entry, client = matching[0]
        if entry.expires is not None and entry.expires <= datetime.datetime.now(datetime.UTC):
            raise NotAllowed(f"the token of {client.name!r} has expired")
        return client


def _token(authorization: str) -> str:
    """Return the token of a bearer, or the password of a URL for clients that cannot send other headers."""
    kind, _, rest = authorization.strip().partition(" ")
    if kind.lower() == "basic":
        with contextlib.suppress(ValueError):
            return base64.b64decode(rest, validate=True).decode().partition(":")[2]
    return rest.strip() if kind.lower() == "bearer" else ""


def digest_of(token: str) -> str:
    """Return the hash of a token for storage."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def new_token(name: str, scopes: list[str]) -> tuple[str, str]:
    """Create a token.

    Args:
        scopes: some of :data:`SCOPES`.

    Returns:
        (token, lines of TOML with its hash).
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"a client's name has up to 40 letters, digits, '-', '_' and '.', unlike {name!r}")
    token = "rollenv_" + secrets.token_urlsafe(32)
    if not scopes or not set(scopes) <= set(SCOPES):
        raise UsageError(f"a token is for some of {', '.join(SCOPES)}, not for {scopes!r:.80}")
    return token, f"[{json.dumps(name)}]\nhash = {json.dumps(digest_of(token))}\nscopes = {json.dumps(scopes)}\n"
