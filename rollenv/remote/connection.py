"""Blocking WebSocket client, and connections to servers."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import random
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any

from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.needs import extra
from rollenv.remote import protocol
from rollenv.remote.address import ADVICE, Address
from rollenv.remote.protocol import NotAllowed, ServerError, ServerFull, ServerLost

with extra("serve", "A served environment"):
    from websockets.client import ClientProtocol
    from websockets.exceptions import InvalidStatus, WebSocketException
    from websockets.frames import Frame, Opcode
    from websockets.http11 import Response
    from websockets.uri import parse_uri

logger = logging.getLogger(__name__)

#: Timeout of connecting, in seconds.
CONNECT = 10.0

#: Timeout of an answer in seconds, longer than any deadline of a server.
ANSWER = 600.0

#: Timeout of sending a message, in seconds.
_SEND = 60.0

#: Seconds of silence after which a server is pinged, and as many again until it is lost.
SILENCE = 8.0

#: Seconds for which a lost server has the lowest priority.
_LOST_SECONDS = 30.0


# The library's own clients read in a thread beside the caller's. In 200 to 300 pairs of 100 calls
# of one environment, beside this one on two busy cores, `websockets.sync` made 0.84 to 0.94 of the
# calls per second (1.4 to 1.6 times the processor time). Its asynchronous client in a thread, by
# which that of `workers/remote.py` could be the only one, made 0.64 to 0.78 (2.2 to 2.4 times).
class BlockingWebSocket:
    """A WebSocket client for one thread at a time.

    Args:
        largest: maximum bytes of a message.
        silence: seconds of silence before a ping, and after it, while an answer is pending.

    Raises:
        OSError: connecting failed.
        WebSocketException: the handshake failed; an :class:`InvalidStatus` has the response.
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
            self._early = events  # a server may send the first message
            if self._wire.handshake_exc is not None:
                raise self._wire.handshake_exc
        except BaseException:
            self._socket.close()
            raise

    def send(self, message: bytes | str) -> None:
        """Send a message: text at once, bytes with the next :meth:`receive`."""
        if isinstance(message, bytes):
            self._wire.send_binary(message)
        else:
            self._wire.send_text(message.encode())
            self._flush()

    def receive(self, end: float) -> list[bytes]:
        """Wait for messages, and return at least one.

        Args:
            end: deadline on the monotonic clock.

        Raises:
            TimeoutError: the deadline has passed, or the server is silent.
            OSError: the connection was lost.
        """
        messages: list[bytes] = []
        pinged = False
        while not messages:
            if time.monotonic() > end:
                raise TimeoutError("it does not answer")
            try:
                events, pinged = self._events(end), False
            except TimeoutError:
                if pinged:
                    raise TimeoutError("it is silent") from None
                self._wire.send_ping(b"")  # a busy server responds, too
                events, pinged = [], True
            for event in events:
                if isinstance(event, Frame) and event.opcode in (Opcode.BINARY, Opcode.CONT, Opcode.TEXT):
                    self._parts.append(bytes(event.data))
                    if event.fin:
                        messages.append(b"".join(self._parts))
                        self._parts.clear()
        return messages

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _events(self, end: float) -> list[Any]:
        """Send pending data and wait for events."""
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
    """A connection for one thread at a time, opened on first use and again after it was lost.

    Args:
        patience: seconds of retries if the server does not answer or has no room.
        alone: whether there is no other server. If there are others, a server that did not come back in time is not
            retried for a while, so that many environments do not wait for it one after another.
        answer: timeout of an answer in seconds.
        silence: see :class:`BlockingWebSocket`.
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
        self._socket: BlockingWebSocket | None = None
        self._ahead: dict[int, list[Any] | None] = {}
        """Answers by the number of the request; None while pending."""

    @property
    def recently_lost(self) -> bool:
        """True if the server was lost recently, so that others have priority."""
        return time.monotonic() - self._lost_at < _LOST_SECONDS

    def ask(self, operation: str, *args: Any) -> Any:
        """Send a request and wait for its answer; retry after a lost connection.

        Raises:
            RollenvError: the server's error.
            ServerLost: there was no answer within ``patience``.
        """
        began, problem = time.monotonic(), RollenvError()
        end = began + (self.patience if self.alone or began - self._given_up_at > _LOST_SECONDS else 0.0)
        for attempt in itertools.count():
            try:
                return self.ask_once(operation, *args)
            except ServerFull as error:
                wait, problem = error.retry_after, error
            except ServerLost as error:
                wait, problem = min(5.0, 0.05 * 2.0**attempt), error
            wait *= random.uniform(0.5, 1.5)  # jitter, so that clients do not retry at the same time
            if time.monotonic() + wait > end:
                if isinstance(problem, ServerLost):
                    self._given_up_at = time.monotonic()
                raise problem
            if attempt == 4:  # most interruptions are shorter
                logger.warning("%s; trying again for %.0f s", problem, end - time.monotonic())
            time.sleep(wait)
        raise AssertionError

    def ask_once(self, operation: str, *args: Any) -> Any:
        """Send a request and wait for its answer, without retries.

        Raises:
            RollenvError: the server's error.
            ServerLost: there was no answer.
        """
        return self._guarded(lambda: self._once(operation, args))

    def send_ahead(self, requests: list[list[Any]]) -> list[int]:
        """Send requests in one message over an open connection.

        Returns:
            Their numbers, for :meth:`collect`; empty if there is no connection.
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
        """Return the answer to a request of :meth:`send_ahead`.

        Raises:
            RollenvError: the server's error.
            ServerLost: the connection was lost.
        """
        if number not in self._ahead:
            raise ServerLost(f"{self.address}: the connection was lost")
        return self._guarded(lambda: self._answer(number))

    def forget(self, number: int) -> None:
        """Ignore the answer to a request of :meth:`send_ahead`."""
        self._ahead.pop(number, None)

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        sock, self._socket = self._socket, None
        self._ahead.clear()
        if sock is not None:
            sock.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Make a call, and close the connection if it is lost or interrupted."""
        try:
            return call()
        except (OSError, EOFError, WebSocketException) as error:
            self.close()
            self._lost_at = time.monotonic()
            if isinstance(error, ServerLost):
                raise
            why = getattr(error, "strerror", None) or error or "the connection was lost"
            raise ServerLost(f"{self.address}: {why}. Check that `rollenv serve` runs there") from None
        except RollenvError:
            raise
        except BaseException:
            self.close()  # Ctrl-C, perhaps in the middle of a message
            raise

    def _once(self, operation: str, args: tuple[Any, ...]) -> Any:
        message = protocol.pack_request([number := next(self._numbers), operation, *args])
        sock = self._socket or self._connect()
        sock.send(message)
        self._ahead[number] = None
        return self._answer(number)

    def _connect(self) -> BlockingWebSocket:
        address, (url, headers) = self.address, opening(self.address)
        limits: dict[str, Any] = {"largest": protocol.LARGEST_MESSAGE, "silence": self.silence}
        try:
            sock = self._socket = BlockingWebSocket(url, headers, subprotocol=protocol.SUBPROTOCOL, **limits)
        except InvalidStatus as error:
            raise refused(address, error.response) from None
        except WebSocketException as error:
            raise ServerLost(f"{address} does not speak rollenv's protocol: {error}") from None
        about = self._once("hello", (protocol.VERSION,))
        version = about.get("version") if isinstance(about, dict) else None
        if version != protocol.VERSION:
            self.close()
            raise UsageError(f"{address} speaks version {version!r:.20} of the protocol, not {protocol.VERSION}")
        return sock

    def _answer(self, number: int) -> Any:
        """Read messages until the answer to a request arrives, and drop answers to forgotten requests."""
        end = time.monotonic() + self.answer
        while (answer := self._ahead[number]) is None:
            assert self._socket is not None
            for message in self._socket.receive(end):
                try:
                    answers = protocol.unpack_all(message)
                except UsageError as error:
                    raise ServerLost(f"{self.address} does not speak rollenv's protocol: {error}") from None
                self._ahead |= {received[0]: received for received in answers if received[0] in self._ahead}
        del self._ahead[number]
        self._lost_at = self._given_up_at = -math.inf
        if len(answer) == 5:
            raise protocol.error_of(*answer[2:])
        return answer[1]


def opening(address: Address) -> tuple[str, dict[str, str]]:
    """Return the URL of a server's WebSocket and the headers that open it."""
    headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}
    return f"{'wss' if address.tls else 'ws'}://{address}{protocol.PATH}", headers


def refused(address: Address, response: Response) -> RollenvError:
    """Build the error for a refused handshake."""
    text = bytes(response.body or b"").decode("utf-8", "replace").strip()[:500]
    if response.status_code in (401, 403):
        return NotAllowed(f"{address}: {text or 'not allowed'}. {ADVICE}")
    if response.status_code in (429, 503):
        after = response.headers.get("Retry-After", "1")
        seconds = float(after) if after.isdigit() else 1.0
        return ServerFull(f"{address}: {text or 'no room'}", retry_after=seconds)
    status = f"HTTP status {response.status_code} {text}"
    return ServerError(f"{address} answered with {status}, and not as a rollenv server")
