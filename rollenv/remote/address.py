"""Addresses of served environments: ``rollenv+ws://HOST:PORT[,HOST:PORT ...]/ENV_ID``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote

from rollenv.core.errors import UsageError

_FORM = re.compile(r"rollenv\+(wss?)://([^@/?#]+)(?:/(.*))?", re.DOTALL)
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(?::(\d{1,5}))?")

PORT = 8800


@dataclass(frozen=True)
class Address:
    """One server. Its token is in the variable ROLLENV_TOKEN, so that stored addresses do not contain it."""

    host: str
    port: int
    tls: bool = False

    @property
    def token(self) -> str:
        return os.environ.get("ROLLENV_TOKEN", "")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(text: str) -> tuple[tuple[Address, ...], str]:
    """Parse an address to its servers and the environment id, which may be empty."""
    match = _FORM.fullmatch(text)
    if match is None:
        shown = re.sub(r"//[^@/]*@", "//", text)
        raise UsageError(
            f"{shown!r} is not of the form rollenv+ws://HOST:PORT/ENV_ID (a token belongs into ROLLENV_TOKEN)"
        )
    scheme, hosts, env_id = match.groups()
    addresses = []
    for host in hosts.split(","):
        parts = _HOST.fullmatch(host)
        if parts is None or not 0 < int(parts[2] or PORT) < 65536:
            raise UsageError(f"{host!r} is not of the form HOST:PORT")
        addresses.append(Address(parts[1].strip("[]"), int(parts[2] or PORT), scheme == "wss"))
    return tuple(addresses), unquote(env_id or "")
