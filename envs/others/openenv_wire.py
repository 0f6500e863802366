"""OpenEnv's protocol as a client speaks it: what a server says of itself, and one session on its WebSocket."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import time
from typing import Any
from urllib.parse import urlsplit

import httpx

from rollenv.envs.others import Misbehaved, one_line
from rollenv.errors import UsageError
from rollenv.needs import extra
from rollenv.remote.protocol import NotAllowed, ServerFull, ServerLost

with extra("serve", "An OpenEnv server"):
    from websockets.exceptions import InvalidStatus, WebSocketException

    from rollenv.remote.connection import WebSocket

#: Bytes of a message.
_LARGEST = 100 * 2**20
#: Seconds to connect, and to answer what needs no session.
_CONNECT = 10.0
#: Seconds of silence after which a server that has an answer to give is asked whether it is there, and as many more
#: after which it is lost: a step may hold up its event loop.
_SILENCE = 60.0


class Refused(Exception):
    """The server's answer to a message that is not of the right form; the session goes on."""


def base_of(address: str) -> str:
    """The address of a server as ``http://HOST:PORT/PATH``.

    Raises:
        UsageError: it is none.
    """
    kind, _, rest = address.rpartition("://")
    text = re.sub("^ws", "http", kind.lower() or "http") + "://" + rest.rstrip("/").removesuffix("/ws")
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and (parts.port or 1) > 0 and text.isprintable() and " " not in text
        usable = usable and bool((parts.hostname or "").encode("idna")) and bool(httpx.URL(text).host)
    except (ValueError, httpx.InvalidURL):  # a UnicodeError is a ValueError
        usable = False
    if not usable or "@" in parts.netloc or parts.query or parts.fragment:
        shown = address.rpartition("@")[2]
        raise UsageError(f"openenv:{shown} is not of the form openenv:http://HOST:PORT (a token goes to OPENENV_TOKEN)")
    return text


def _headers() -> dict[str, str]:
    """With the token of the variable OPENENV_TOKEN, so that no address that is stored shows it."""
    token = os.environ.get("OPENENV_TOKEN", "").strip()
    if not (token.isascii() and token.isprintable()):
        raise UsageError("OPENENV_TOKEN has characters that no token has")
    return {"Authorization": f"Bearer {token}"} if token else {}


@functools.lru_cache(maxsize=64)
def about(base: str) -> dict[str, Any]:
    """Return the server's facts about actions (``schema``, empty if none) and about itself (``name``, ``description``).

    Raises:
        ServerLost: it does not answer.
        UsageError: it is not an OpenEnv server.
    """
    alone = httpx.Limits(max_keepalive_connections=0)  # some servers close connections without a word
    with httpx.Client(headers=_headers(), timeout=_CONNECT, verify=base.startswith("https"), limits=alone) as client:
        schema, described = _got(client, f"{base}/schema", base), _got(client, f"{base}/metadata", base)
    action = schema.get("action") if isinstance(schema, dict) else None
    if schema is not None and not isinstance(action, dict):
        raise UsageError(f"openenv:{base} is no OpenEnv server: /schema has no form of actions")
    if schema is None and described is None:  # the WebSocket alone is enough to play
        with contextlib.closing(Wire(base)) as wire:
            wire.connect()
    told = described if isinstance(described, dict) else {}
    return {"schema": action or {}, "name": told.get("name"), "description": told.get("description")}


def _got(client: httpx.Client, url: str, base: str) -> Any:
    """JSON from a server; None if it has no such page."""
    try:
        answer = client.get(url)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise ServerLost(f"no OpenEnv server answers at {base} ({one_line(error)}): is it running?") from error
    if answer.status_code in (401, 403):
        raise NotAllowed(f"the server at {base} refuses ({answer.status_code}): put its token into OPENENV_TOKEN")
    if answer.status_code != 200:
        return None
    try:
        return answer.json()
    except (ValueError, RecursionError) as error:
        raise UsageError(f"openenv:{base} is no OpenEnv server: {url} is no JSON") from error


class Wire:
    """A session, which begins with the first message and ends with :meth:`close`. For one thread at a time.

    Args:
        timeout: seconds to wait for an answer.
    """

    def __init__(self, base: str, timeout: float = 600.0):
        self.base, self.timeout = base, timeout
        self._socket: WebSocket | None = None

    def connect(self) -> WebSocket:
        """Begin a session, unless there is one.

        Raises:
            ServerLost: no server answers.
            UsageError: it is not an OpenEnv server.
        """
        if self._socket is None:
            url = f"ws{self.base.removeprefix('http')}/ws"
            try:
                self._socket = WebSocket(url, _headers(), largest=_LARGEST, silence=_SILENCE)
            except InvalidStatus as error:
                said = f"{url} answers {error.response.status_code} (a token for it goes to OPENENV_TOKEN)"
                raise UsageError(f"openenv:{self.base} is no OpenEnv server: {said}") from error
            except (OSError, WebSocketException) as error:
                about.cache_clear()
                raise ServerLost(f"no OpenEnv server answers at {url} ({one_line(error)}): is it running?") from error
        return self._socket

    def ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return what is in the answer.

        Args:
            kind: ``reset`` or ``step``.

        Raises:
            Refused: the message is not of the right form.
            Misbehaved: the environment failed, or the answer is none of the protocol's.
            ServerFull: the server has no room.
            ServerLost: the connection was lost, or there was no answer in time.
        """
        again = self._socket is not None and kind == "reset"  # what was closed while nobody asked
        message = json.dumps({"type": kind, "data": data})
        socket = self.connect()
        try:
            with contextlib.suppress(OSError, WebSocketException):  # a server without room says so before it closes
                socket.send(message)
            answer = socket.receive(time.monotonic() + self.timeout)[0]
        except TimeoutError as error:  # a late answer would be taken for that of the next message
            self.close()
            raise ServerLost(f"{self.base} gave no answer to a {kind} within {self.timeout:g} s") from error
        except (OSError, WebSocketException) as error:
            self.close()
            if again:
                return self.ask(kind, data)
            raise ServerLost(f"the OpenEnv server at {self.base} was lost in a {kind} ({one_line(error)})") from error
        return self._content(kind, answer)

    def _content(self, kind: str, answer: bytes) -> dict[str, Any]:
        try:
            told = json.loads(answer)
            what, content = told["type"], told.get("data") or {}
            if not isinstance(content, dict):
                raise TypeError("no object")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            self.close()
            raise Misbehaved(
                f"{self.base} answered a {kind} with {answer!r:.80}, which is not OpenEnv's form"
            ) from error
        if what == "observation" and "observation" in content:
            return content
        code, text = str(content.get("code")), " ".join(str(content.get("message")).split())[:300]
        if what == "error" and code in ("VALIDATION_ERROR", "INVALID_JSON"):
            raise Refused(f"{text} {_details(content.get('errors'))}".strip())
        self.close()
        if what == "error" and code == "CAPACITY_REACHED":
            raise ServerFull(f"the OpenEnv server at {self.base} has no room: {text}")
        if what == "error":
            raise Misbehaved(f"the OpenEnv server at {self.base} failed in a {kind}: {code}: {text}")
        raise Misbehaved(f"{self.base} answered a {kind} with {what!r:.40}, which is not OpenEnv's form")

    def close(self) -> None:
        """End the session."""
        socket, self._socket = self._socket, None
        if socket is not None:
            with contextlib.suppress(OSError, WebSocketException):
                socket.send('{"type": "close"}')
            socket.close()


def _details(errors: Any) -> str:
    found = [each for each in errors if isinstance(each, dict)] if isinstance(errors, list) else []
    return "; ".join(f"{_place(each.get('loc'))}: {each.get('msg')}" for each in found[:3])[:300]


def _place(loc: Any) -> str:
    return ".".join(map(str, loc)) if isinstance(loc, list) else ""
