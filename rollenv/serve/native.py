"""The native protocol's side of the server; see :mod:`rollenv.remote.protocol`."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import logging
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.version import __version__
from rollenv.remote import protocol
from rollenv.remote.protocol import FAILED, Cancelled, ServerError, error_answer
from rollenv.serve.auth import Client
from rollenv.serve.session import EnvSession
from rollenv.serve.sessions import SessionManager, served
from rollenv.serve.websocket import WebSocket

logger = logging.getLogger(__name__)

#: Maximum concurrent requests of one connection; more are not read.
_AT_ONCE = 1024


class Native:
    """The connection of one client. Its sessions outlast it.

    Args:
        silence: seconds without a message after which the connection is closed.
    """

    def __init__(self, sessions: SessionManager, client: Client, socket: WebSocket, silence: float):
        self.sessions, self.client, self._socket, self.silence = sessions, client, socket, silence
        self._limited = sessions.limiter.is_limited(client.name)
        self._running: dict[int, tuple[asyncio.Task[None], Any]] = {}
        self._begun, self._room = 0, asyncio.Event()
        self._waiting: deque[list[Any]] = deque()
        self._context = contextvars.copy_context()
        self._connected = True
        self._used: weakref.WeakSet[EnvSession] = weakref.WeakSet()
        self._steps: dict[int, tuple[EnvSession, int]] = {}
        """The sessions and counts of pending steps, by the numbers of their requests."""
        self._answers: list[bytes] = []
        self._sending: asyncio.Task[None] | None = None

    async def talk(self) -> None:
        """Answer requests of an accepted connection until it ends."""
        self._socket.listen(self.silence, self._take, lambda: self._begun > 0)
        try:
            while (message := await self._socket.receive())["type"] == "websocket.receive":
                await self._all_begun()
                self._take(message.get("bytes") or b"")
            await self._all_begun()
        finally:
            self._connected = False
            for session in self._used:
                session.disconnected_at = time.monotonic()
            for task, operation in self._running.values():
                if operation not in ("call", "close"):  # whose answers are kept for a reconnected client
                    task.cancel()

    def _take(self, message: str | bytes) -> bool:
        """Queue the requests of a message and start them while there is room; false if others already wait."""
        if self._waiting:
            return False
        try:
            self._waiting.extend(protocol.unpack_all(message))  # type: ignore[arg-type]  # text is an error
        except UsageError as error:
            self._socket.end(1007, str(error)[:100])
        self._begin_waiting()
        return True

    async def _all_begun(self) -> None:
        while self._waiting:
            self._room.clear()
            await self._room.wait()

    def _begin_waiting(self) -> None:
        """Start requests while there is room. Each occupies it until its answer is sent."""
        while self._waiting and self._begun < _AT_ONCE:
            number, operation, *args = self._waiting.popleft()
            self._begun += 1
            if operation != "call" or not self._start_step(number, args):
                answer = self._answer(number, operation, args)
                task = asyncio.get_running_loop().create_task(answer, context=self._context.copy())
                self._running[number] = (task, operation)

    def _start_step(self, number: int, args: list[Any]) -> bool:
        """Send a step to its worker at once; return false if that is not possible."""
        if len(args) != 4 or args[2] != "step" or self._limited or number in self._steps:
            return False
        name, count, _, call = args  # a match statement takes a tenth of a step's time
        if type(name) is not str or type(count) is not int or type(call) is not list or [*map(type, call)] != [str]:
            return False
        action, session = call[0], self.sessions.by_name.get(name)
        if session is None or session.owner != self.client.name:
            return False
        self._steps[number] = session, count
        if not session.start_step(count, action, functools.partial(self._finish_step, number)):
            del self._steps[number]
            return False
        self._mark_used(session)
        return True

    def _finish_step(self, number: int, outcome: list[Any] | RollenvError) -> None:
        session, _ = self._steps.pop(number, (None, 0))
        try:
            if isinstance(outcome, RollenvError):
                data = _refusal(number, outcome)
            else:
                data = _packed_call(number, session, "step", outcome)
        except Exception:
            logger.exception("an answer to %s cannot be sent", self.client.name)
            data = _refusal(number, ServerError(FAILED))
        self._send(data)

    def _mark_used(self, session: EnvSession) -> None:
        session.disconnected_at = 0.0
        self._used.add(session)

    def _send(self, data: bytes) -> None:
        """Send an answer, together with others of the same iteration of the event loop."""
        if not self._answers:
            asyncio.get_running_loop().call_soon(self._flush)
        self._answers.append(data)

    async def _answer(self, number: int, operation: Any, args: list[Any]) -> None:
        try:
            try:
                value = await self._carry_out(operation, args)
                if operation == "call":
                    data = _packed_call(number, self.sessions.by_name.get(args[0]), args[2], value)
                else:
                    data = _packed(number, value)
            except RollenvError as error:
                data = _refusal(number, error)
            except asyncio.CancelledError:
                if not self._connected:
                    raise
                data = _refusal(number, Cancelled("the request was cancelled"))
            except Exception:
                logger.exception("a request of %s failed", self.client.name)
                data = _refusal(number, ServerError(FAILED))
            self._send(data)
        finally:
            if self._running.get(number, (None,))[0] is asyncio.current_task():
                del self._running[number]

    def _flush(self) -> None:
        """Send the collected answers, which makes room for as many requests: clients that do not read must wait."""
        sent = 0
        for count, data in protocol.pack_all(self._answers, protocol.LARGEST_MESSAGE):
            if not self._socket.writable.is_set():
                self._sending = asyncio.get_running_loop().create_task(self._flush_later())
                break
            self._socket.write(data)
            sent += count
        del self._answers[:sent]
        self._begun -= sent
        self._begin_waiting()
        self._room.set()

    async def _flush_later(self) -> None:
        await self._socket.writable.wait()
        self._flush()

    async def _carry_out(self, operation: Any, args: list[Any]) -> Any:
        handler = _OPERATIONS.get(operation) if isinstance(operation, str) else None
        if handler is None:
            raise UsageError(f"there is no operation {operation!r:.40}; there are {', '.join(_OPERATIONS)}")
        method, kinds = handler
        if len(args) != len(kinds) or not all(map(isinstance, args, kinds)):
            raise UsageError(f"{operation} takes {len(kinds)} arguments: {', '.join(kind.__name__ for kind in kinds)}")
        return await method(self, *args)

    # -- operations ----------------------------------------------------------------------------------------------------

    async def _hello(self, version: int) -> dict[str, Any]:
        return {"version": protocol.VERSION, "rollenv": __version__, "client": self.client.name}

    async def _spec(self, env_id: str) -> dict[str, Any]:
        self.client.needs("environments")
        env_spec = served(env_id)
        return {
            "abilities": sorted(env_spec.abilities),
            "nondeterministic": env_spec.nondeterministic,
            "oracle_success": env_spec.oracle_success,
            "indexed": env_spec.indexed,
            "levels": list(env_spec.levels),
            "summary": env_spec.summary,
        }

    async def _open(self, name: str, env_id: str, settings: dict[str, Any]) -> dict[str, Any]:
        self.client.needs("environments")
        self.sessions.limiter.take(self.client.name)
        wanted = {**settings}
        once = wanted.pop("pictures", None) == "once"
        session = await self.sessions.open(name, self.client.name, env_id, wanted)
        session.pictures_sent = set() if once else None
        return session.env.about

    async def _resume(self, name: str) -> int:
        session = self.sessions.get(name, self.client.name)
        self._mark_used(session)
        _forget_pictures(session)
        return session.count

    async def _call(self, name: str, count: int, method: str, args: list[Any]) -> Any:
        session = self.sessions.get(name, self.client.name)
        self.sessions.limiter.take(self.client.name)
        self._mark_used(session)
        if count <= session.count:  # the client may have missed the answer
            _forget_pictures(session)
        try:
            return await session.numbered(count, method, args)
        except asyncio.CancelledError:
            if self._connected:  # the client cancelled the request
                session.cancel(count)
            raise

    async def _close(self, name: str) -> None:
        with contextlib.suppress(ServerError):  # it is already closed
            session = self.sessions.get(name, self.client.name)
            self._used.discard(session)
            self.sessions.close(session)

    async def _cancel(self, number: int) -> None:
        if number in self._running:
            self._running[number][0].cancel()
        elif number in self._steps:
            session, count = self._steps[number]
            session.cancel(count)


_OPERATIONS: dict[str, tuple[Callable[..., Awaitable[Any]], tuple[type, ...]]] = {
    "hello": (Native._hello, (int,)),
    "spec": (Native._spec, (str,)),
    "open": (Native._open, (str, str, dict)),
    "resume": (Native._resume, (str,)),
    "call": (Native._call, (str, int, str, list)),
    "close": (Native._close, (str,)),
    "cancel": (Native._cancel, (int,)),
}


def _packed_call(number: int, session: EnvSession | None, method: str, answer: Any) -> bytes:
    """Encode the answer to a call; pictures that the client has are named by their hashes."""
    if session is None or session.pictures_sent is None:
        return _packed(number, answer)
    try:
        return protocol.pack([number, protocol.without_known(method, answer, session.pictures_sent)])
    except UsageError as error:
        _forget_pictures(session)  # none was sent
        return _refusal(number, error)


def _forget_pictures(session: EnvSession) -> None:
    if session.pictures_sent is not None:
        session.pictures_sent.clear()


def _packed(number: int, value: Any) -> bytes:
    try:
        return protocol.pack([number, value])
    except UsageError as error:
        return _refusal(number, error)


def _refusal(number: int, error: RollenvError) -> bytes:
    return protocol.pack([number, None, *error_answer(error)])
