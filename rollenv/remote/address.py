"""Addresses of served environments: ``rollenv+ws://HOST:PORT[,HOST:PORT ...]/ENV_ID``.

Servers behind a proxy may have a path before the id: ``rollenv+wss://HOST/rollenv/ENV_ID``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote

from rollenv.core.errors import UsageError

_FORM = re.compile(r"rollenv\+(wss?)://([^@/?#]+)(?:/(.*))?", re.DOTALL)
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(?::(\d{1,5}))?")

PORT = 8800

#: What to do when a server refuses the token.
ADVICE = "ROLLENV_TOKEN has to hold a token of this server"


@dataclass(frozen=True)
class Address:
    """One server. Its token is in the variable ROLLENV_TOKEN, so that stored addresses do not contain it."""

    host: str
    port: int
    tls: bool = False
    path: str = ""
    """The path below which a proxy serves it, such as ``/rollenv``."""

    @property
    def token(self) -> str:
        return os.environ.get("ROLLENV_TOKEN", "").strip()

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}{self.path}"


def parse(text: str) -> tuple[tuple[Address, ...], str]:
    """Parse an address to its servers and the environment id, which may be empty.

    The id begins at the first part of the path with a colon, else it is the last part.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        shown = re.sub(r"//[^@/]*@", "//", text)
        raise UsageError(
            f"{shown!r} is not of the form rollenv+ws://HOST:PORT/ENV_ID (a token belongs into ROLLENV_TOKEN)"
        )
    scheme, hosts, path = match.groups()
    parts = unquote(path or "").split("/")
    start = next((number for number, part in enumerate(parts) if ":" in part), len(parts) - 1)
    prefix = "".join(f"/{part}" for part in parts[:start])
    addresses = []
    for host in hosts.split(","):
        found = _HOST.fullmatch(host)
        if found is None or not 0 < int(found[2] or PORT) < 65536:
            raise UsageError(f"{host!r} is not of the form HOST:PORT")
        addresses.append(Address(found[1].strip("[]"), int(found[2] or PORT), scheme == "wss", prefix))
    return tuple(addresses), "/".join(parts[start:])
