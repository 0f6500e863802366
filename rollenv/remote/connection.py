"""The WebSocket of a client, and connections to servers over it, for a caller that waits for each answer."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import random
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any

from rollenv.errors import RollenvError, UsageError
from rollenv.needs import extra
from rollenv.remote import protocol
from rollenv.remote.address import Address
from rollenv.remote.protocol import NotAllowed, ServerError, ServerFull, ServerLost

with extra("serve", "A served environment"):
    from websockets.client import ClientProtocol
    from websockets.datastructures import Headers
    from websockets.exceptions import InvalidStatus, WebSocketException
    from websockets.frames import Frame, Opcode
    from websockets.http11 import Response
    from websockets.uri import parse_uri


#: Seconds to connect.
CONNECT = 10.0

#: Seconds to wait for an answer: more than any deadline of a server.
ANSWER = 600.0

#: Seconds to send a message.
_SEND = 60.0

#: Seconds without a byte after which a server is pinged, and after as many more it is lost.
SILENCE = 8.0

#: Seconds in which a server that was lost is asked after all others.
_LOST_SECONDS = 30.0


class WebSocket:
    """A WebSocket of a client. For one thread at a time.

    Args:
        largest: bytes of a message.
        silence: seconds to hear nothing at all, twice, from a server that has an answer to give.

    Raises:
        OSError: there is no connection.
        WebSocketException: the server speaks no WebSocket; an :class:`InvalidStatus` says what it answers.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], *, largest: int, silence: float, subprotocol: str | None = None
    ):
        uri, self._silence = parse_uri(url), silence
        self._parts: list[bytes] = []
        self._early: list[Any] = []
        offered: Any = [subprotocol] if subprotocol else None
        self._wire = ClientProtocol(uri, subprotocols=offered, max_size=largest)
        self._socket = socket.create_connection((uri.host, uri.port), CONNECT)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if uri.secure:
                self._socket = ssl.create_default_context().wrap_socket(self._socket, server_hostname=uri.host)
            request = self._wire.connect()
            request.headers.update(headers)
            self._wire.send_request(request)
            end = time.monotonic() + CONNECT
            events: list[Any] = []
            while not any(isinstance(event, Response) for event in events):
                events += self._events(end)
            self._early = events  # a server may speak first
            if self._wire.handshake_exc is not None:
                raise self._wire.handshake_exc
        except BaseException:
            self._socket.close()
            raise

    def send(self, message: bytes | str) -> None:
        """Send a message with whatever is received next, a text at once."""
        if isinstance(message, bytes):
            self._wire.send_binary(message)
        else:
            self._wire.send_text(message.encode())
            self._flush()

    def receive(self, end: float) -> list[bytes]:
        """The messages that have come, at least one.

        Args:
            end: when to give up, in seconds of the monotonic clock.

        Raises:
            TimeoutError: none came until then, or the server is silent.
            OSError: the connection was lost.
        """
        whole: list[bytes] = []
        pinged = False
        while not whole:
            if time.monotonic() > end:
                raise TimeoutError("it does not answer")
            try:
                events, pinged = self._events(end), False
            except TimeoutError:
                if pinged:
                    raise TimeoutError("it is silent") from None
                self._wire.send_ping(b"")  # a server that works on the answer says that it is alive
                events, pinged = [], True
            for event in events:
                if isinstance(event, Frame) and event.opcode in (Opcode.BINARY, Opcode.CONT, Opcode.TEXT):
                    self._parts.append(bytes(event.data))
                    if event.fin:
                        whole.append(b"".join(self._parts))
                        self._parts.clear()
        return whole

    def close(self) -> None:
        """Close it."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _events(self, end: float) -> list[Any]:
        """Send what is to be sent, and wait until something came."""
        self._flush()
        events, self._early = self._early + self._wire.events_received(), []
        if events:
            return events
        self._socket.settimeout(max(0.001, min(self._silence, end - time.monotonic())))
        data = self._socket.recv(1 << 18)
        if data:
            self._wire.receive_data(data)
        else:
            self._wire.receive_eof()
        events = self._wire.events_received()
        if not events and not data:
            why = f": {self._wire.close_exc}" if self._wire.close_rcvd is not None else ""
            raise ConnectionError(f"it closed the connection{why}")
        return events

    def _flush(self) -> None:
        self._socket.settimeout(_SEND)
        for data in self._wire.data_to_send():
            if data:
                try:
                    self._socket.sendall(data)
                except TimeoutError:
                    raise ConnectionError("it takes no message") from None


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
        self._socket: WebSocket | None = None
        self._ahead: dict[int, list[Any] | None] = {}
        """The answers to what was sent; None while they are not there."""

    @property
    def recently_lost(self) -> bool:
        """True if the server was lost a short while ago, so that others are asked first."""
        return time.monotonic() - self._lost_at < _LOST_SECONDS

    def ask(self, operation: str, *args: Any) -> Any:
        """Send a request and wait for its answer; after a lost connection it is sent again.

        Raises:
            RollenvError: the one that the server tells of.
            ServerLost: there was no answer, for as long as the patience lasted.
        """
        began, problem = time.monotonic(), RollenvError()
        end = began + (self.patience if self.alone or began - self._given_up_at > _LOST_SECONDS else 0.0)
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

        Raises:
            RollenvError: the one that the server tells of.
            ServerLost: there was no answer.
        """
        return self._guarded(lambda: self._once(operation, args))

    def send_ahead(self, requests: list[list[Any]]) -> list[int]:
        """Send requests in one message, over a connection that stands.

        Returns:
            Their numbers, for :meth:`collect`; none if there is no connection, or it was just lost.

        Raises:
            UsageError: one cannot be sent.
        """
        if self._socket is None:
            return []
        numbers = [next(self._numbers) for _ in requests]
        messages = [protocol.pack_request([number, *ask]) for number, ask in zip(numbers, requests, strict=True)]
        try:
            for _, message in protocol.pack_all(messages, protocol.LARGEST_REQUEST):
                self._guarded(functools.partial(self._socket.send, message))
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
        sock, self._socket = self._socket, None
        self._ahead.clear()
        if sock is not None:
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
        sock = self._socket or self._connect()
        sock.send(message)
        self._ahead[number] = None
        return self._answer(number)

    def _connect(self) -> WebSocket:
        address, key = self.address, self.address.token
        url = f"{'wss' if address.tls else 'ws'}://{address}{protocol.PATH}"
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits: dict[str, Any] = {"largest": protocol.LARGEST_MESSAGE, "silence": self.silence}
        try:
            sock = self._socket = WebSocket(url, headers, subprotocol=protocol.SUBPROTOCOL, **limits)
        except InvalidStatus as error:
            answer = error.response
            raise refused(str(address), answer.status_code, bytes(answer.body or b""), answer.headers) from None
        except WebSocketException as error:
            raise ServerLost(f"{address} does not speak rollenv's protocol: {error}") from None
        about = self._once("hello", (protocol.VERSION,))
        version = about.get("version") if isinstance(about, dict) else None
        if version != protocol.VERSION:
            self.close()
            raise UsageError(f"{address} speaks version {version!r:.20} of the protocol, not {protocol.VERSION}")
        return sock

    def _answer(self, number: int) -> Any:
        """Read messages until the answer is there. Those to requests that were given up are left out."""
        end = time.monotonic() + self.answer
        while (answer := self._ahead[number]) is None:
            assert self._socket is not None
            for message in self._socket.receive(end):
                try:
                    answers = protocol.unpack_all(message)
                except UsageError as error:
                    raise ServerLost(f"{self.address} does not speak rollenv's protocol: {error}") from None
                self._ahead |= {found[0]: found for found in answers if found[0] in self._ahead}
        del self._ahead[number]
        self._lost_at = self._given_up_at = -math.inf
        if len(answer) == 5:
            raise protocol.error_of(*answer[2:])
        return answer[1]


def refused(server: str, status: int, body: bytes, headers: Headers) -> RollenvError:
    """The error for an answer that is no WebSocket."""
    text = body.decode("utf-8", "replace").strip()[:500]
    if status in (401, 403):
        return NotAllowed(f"{server}: {text or 'not allowed'}")
    if status in (429, 503):
        seconds = headers.get("Retry-After", "1")
        return ServerFull(f"{server}: {text or 'no room'}", retry_after=float(seconds) if seconds.isdigit() else 1.0)
    return ServerError(f"{server} answered with HTTP status {status} {text}, and not as a rollenv server")
