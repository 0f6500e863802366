"""A WebSocket to a server, ``rollenv+ws://HOST:PORT[,HOST:PORT ...]/ENV_ID``, for one that waits for each answer."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import random
import re
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from rollenv.errors import RollenvError, UsageError
from rollenv.needs import extra
from rollenv.remote import protocol
from rollenv.remote.protocol import NotAllowed, ServerError, ServerFull, ServerLost

with extra("serve", "A served environment"):
    from websockets.client import ClientProtocol
    from websockets.datastructures import Headers
    from websockets.exceptions import InvalidStatus, WebSocketException
    from websockets.frames import Frame, Opcode
    from websockets.http11 import Response
    from websockets.uri import parse_uri


_FORM = re.compile(r"rollenv\+(wss?)://([^@/?#]+)(?:/(.*))?", re.DOTALL)
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(?::(\d{1,5}))?")

PORT = 8800


@dataclass(frozen=True)
class Address:
    """One server. The token for it is in the variable ROLLENV_TOKEN, so that no address that is stored shows it."""

    host: str
    port: int
    tls: bool = False

    @property
    def token(self) -> str:
        return os.environ.get("ROLLENV_TOKEN", "")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(text: str) -> tuple[tuple[Address, ...], str]:
    """The servers of an address, and the environment id behind it (empty if there is none).

    Raises:
        UsageError: it is not of this form.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        shown = re.sub(r"//[^@/]*@", "//", text)
        raise UsageError(
            f"{shown!r} is not of the form rollenv+ws://HOST:PORT/ENV_ID (a token belongs into ROLLENV_TOKEN)"
        )
    scheme, hosts, env_id = match.groups()
    found = []
    for host in hosts.split(","):
        parts = _HOST.fullmatch(host)
        if parts is None or not 0 < int(parts[2] or PORT) < 65536:
            raise UsageError(f"{host!r} is not of the form HOST:PORT")
        found.append(Address(parts[1].strip("[]"), int(parts[2] or PORT), scheme == "wss"))
    return tuple(found), unquote(env_id or "")


#: Seconds to connect.
CONNECT = 10.0

#: Seconds to wait for an answer: more than any deadline of a server.
ANSWER = 600.0

#: Seconds to send a message.
_SEND = 60.0

#: Seconds without a byte after which a server is asked whether it is there, and after as many more it is lost.
SILENCE = 8.0

#: Seconds in which a server that was lost is asked after all others.
_SHUNNED = 30.0


class Connection:
    """A connection, made at the first call and again after it was lost. For one thread at a time.

    Args:
        patience: seconds to go on trying when the server does not answer or has no room.
        alone: whether no other server can stand in. If one can, a server that was not back in time is asked only once
            for a while: many environments would wait in vain one after the other.
        answer: seconds to wait for an answer.
        silence: seconds to hear nothing at all, twice, from a server that has an answer to give.
    """

    def __init__(
        self,
        address: Address,
        *,
        patience: float = 30.0,
        answer: float = ANSWER,
        silence: float = SILENCE,
        alone: bool = True,
    ):
        self.address, self.patience, self.answer, self.silence = address, patience, answer, silence
        self.alone = alone
        self._lost_at = self._given_up_at = -math.inf
        self._numbers = itertools.count(1)
        self._socket: socket.socket | None = None
        self._protocol: ClientProtocol | None = None
        self._ahead: dict[int, list[Any] | None] = {}
        """The answers to what was sent; None while they are not there."""
        self._parts: list[bytes] = []

    @property
    def shunned(self) -> bool:
        """True if the server was lost a short while ago, so that others are asked first."""
        return time.monotonic() - self._lost_at < _SHUNNED

    def ask(self, operation: str, *args: Any) -> Any:
        """Send a request and wait for its answer; after a lost connection it is sent again.

        Args:
            operation: see :mod:`rollenv.remote.protocol`.
            args: of the operation.

        Raises:
            RollenvError: the one that the server tells of.
            ServerLost: there was no answer, for as long as the patience lasted.
        """
        began, problem = time.monotonic(), RollenvError()
        end = began + (self.patience if self.alone or began - self._given_up_at > _SHUNNED else 0.0)
        for attempt in itertools.count():
            try:
                return self.ask_once(operation, *args)
            except ServerFull as error:
                wait, problem = float(error.details.get("retry_after", 1.0)), error
            except ServerLost as error:
                wait, problem = min(5.0, 0.05 * 2.0**attempt), error
            wait *= random.uniform(0.5, 1.5)  # so that many clients do not come back together
            if time.monotonic() + wait > end:
                if isinstance(problem, ServerLost):
                    self._given_up_at = time.monotonic()
                raise problem
            time.sleep(wait)
        raise AssertionError

    def ask_once(self, operation: str, *args: Any) -> Any:
        """Send a request and wait for its answer, without patience.

        Args:
            operation: see :mod:`rollenv.remote.protocol`.
            args: of the operation.

        Raises:
            RollenvError: the one that the server tells of.
            ServerLost: there was no answer.
        """
        return self._guarded(lambda: self._once(operation, args))

    def send_ahead(self, requests: list[list[Any]]) -> list[int]:
        """Send requests in one message, over a connection that stands.

        Args:
            requests: operation and arguments of each.

        Returns:
            Their numbers, for :meth:`collect`; none if there is no connection, or it was just lost.

        Raises:
            UsageError: one cannot be sent.
        """
        if self._protocol is None:
            return []
        numbers = [next(self._numbers) for _ in requests]
        messages = [protocol.pack_request([number, *ask]) for number, ask in zip(numbers, requests, strict=True)]
        try:
            for _, message in protocol.pack_all(messages, protocol.LARGEST_REQUEST):
                self._guarded(functools.partial(self._protocol.send_binary, message))
        except ServerLost:
            return []
        self._ahead |= dict.fromkeys(numbers)
        return numbers

    def collect(self, number: int) -> Any:
        """The answer to a request that was sent ahead.

        Raises:
            RollenvError: the one that the server tells of.
            ServerLost: there was no answer; the connection was lost.
        """
        if number not in self._ahead:
            raise ServerLost(f"{self.address}: the connection was lost")
        return self._guarded(lambda: self._answer(number))

    def forget(self, number: int) -> None:
        """Nobody collects the answer to a request that was sent ahead."""
        self._ahead.pop(number, None)

    def close(self) -> None:
        """Close it; the next call makes a new one."""
        sock, self._socket, self._protocol = self._socket, None, None
        self._ahead.clear()
        self._parts.clear()
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Close the connection if it is lost, or in the middle of a message."""
        try:
            return call()
        except (OSError, EOFError, WebSocketException) as error:
            self.close()
            self._lost_at = time.monotonic()
            raise error if isinstance(error, ServerLost) else ServerLost(f"{self.address}: {error or 'lost'}") from None
        except RollenvError:
            raise
        except BaseException:
            self.close()  # Ctrl-C, perhaps within a message
            raise

    def _once(self, operation: str, args: tuple[Any, ...]) -> Any:
        message = protocol.pack_request([number := next(self._numbers), operation, *args])
        if self._socket is None:
            address = self.address
            sock = socket.create_connection((address.host, address.port), CONNECT)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if address.tls:
                    sock = ssl.create_default_context().wrap_socket(sock, server_hostname=address.host)
                uri = parse_uri(f"{'wss' if address.tls else 'ws'}://{address}{protocol.PATH}")
                self._protocol = ClientProtocol(
                    uri,
                    subprotocols=[protocol.SUBPROTOCOL],  # type: ignore[list-item]
                    max_size=protocol.LARGEST_MESSAGE,
                )
                self._socket = sock
                assert self._protocol is not None
                request = self._protocol.connect()
                if self.address.token:
                    request.headers["Authorization"] = f"Bearer {self.address.token}"
                self._protocol.send_request(request)
                response = None
                while response is None:
                    response = next((event for event in self._events() if isinstance(event, Response)), None)
                problem = self._protocol.handshake_exc
                if isinstance(problem, InvalidStatus) or response.status_code != 101:
                    raise refused(
                        str(self.address), response.status_code, bytes(response.body or b""), response.headers
                    )
                if problem is not None:
                    raise ServerLost(f"{self.address} does not speak rollenv's protocol: {problem}")
            except BaseException:
                sock.close()
                self._socket = None
                raise
            about = self._once("hello", (protocol.VERSION,))
            version = about.get("version") if isinstance(about, dict) else None
            if version != protocol.VERSION:
                self.close()
                raise UsageError(f"{address} speaks version {version!r:.20} of the protocol, not {protocol.VERSION}")
        assert self._protocol is not None
        self._protocol.send_binary(message)
        self._ahead[number] = None
        return self._answer(number)

    def _answer(self, number: int) -> Any:
        """Read messages until the answer is there. Those to requests that were given up are left out."""
        end = time.monotonic() + self.answer
        while (answer := self._ahead[number]) is None:
            # The messages that have come, at least one.
            whole: list[bytes] = []
            while not whole:
                for event in self._heard(end):
                    if isinstance(event, Frame) and event.opcode in (Opcode.BINARY, Opcode.CONT, Opcode.TEXT):
                        self._parts.append(bytes(event.data))
                        if event.fin:
                            whole.append(b"".join(self._parts))
                            self._parts.clear()
            for message in whole:
                for found in self._unpacked(message):
                    if found[0] in self._ahead:
                        self._ahead[found[0]] = found
        del self._ahead[number]
        self._lost_at = self._given_up_at = -math.inf
        if len(answer) == 5:
            raise protocol.error_of(*answer[2:])
        return answer[1]

    def _unpacked(self, message: bytes) -> list[list[Any]]:
        try:
            return protocol.unpack_all(message)
        except UsageError as error:
            raise ServerLost(f"{self.address} does not speak rollenv's protocol: {error}") from None

    def _heard(self, end: float) -> list[Any]:
        """Return the messages that came. A server that works on the answer says that it is alive."""
        assert self._protocol is not None
        for asked in (False, True):
            if time.monotonic() > end:
                raise ServerLost(f"{self.address} does not answer")
            try:
                return self._events()
            except TimeoutError:
                if asked:
                    raise ServerLost(f"{self.address} is silent") from None
                self._protocol.send_ping(b"")
        raise AssertionError

    def _events(self) -> list[Any]:
        """Send what is to be sent, and wait until something came."""
        wire, sock = self._protocol, self._socket
        assert wire is not None
        assert sock is not None
        self._send(wire, sock)
        if events := wire.events_received():
            return events
        sock.settimeout(self.silence)
        data = sock.recv(1 << 18)
        if data:
            wire.receive_data(data)
        else:
            wire.receive_eof()
        events = wire.events_received()
        if not events and not data:
            raise ServerLost(f"{self.address} closed the connection{_why(wire)}")
        return events

    def _send(self, wire: ClientProtocol, sock: socket.socket) -> None:
        sock.settimeout(_SEND)
        for data in wire.data_to_send():
            if data:
                try:
                    sock.sendall(data)
                except TimeoutError:
                    raise ServerLost(f"{self.address} takes no message") from None


def _why(wire: ClientProtocol) -> str:
    return f": {wire.close_exc}" if wire.close_rcvd is not None else ""


def refused(server: str, status: int, body: bytes, headers: Headers) -> RollenvError:
    """The error for an answer that is no WebSocket."""
    text = body.decode("utf-8", "replace").strip()[:500]
    if status in (401, 403):
        return NotAllowed(f"{server}: {text or 'not allowed'}")
    if status in (429, 503):
        seconds = headers.get("Retry-After", "1")
        return ServerFull(f"{server}: {text or 'no room'}", retry_after=float(seconds) if seconds.isdigit() else 1.0)
    return ServerError(f"{server} answered with HTTP status {status} {text}, and not as a rollenv server")
