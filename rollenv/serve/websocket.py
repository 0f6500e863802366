"""uvicorn's WebSockets, with callbacks that answer a message without waking the task of its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rollenv.core.needs import extra

with extra("serve", "rollenv serve"):
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
    from websockets.frames import Frame, Opcode
    from websockets.protocol import State

#: Key of the connection in the extensions of ASGI's scope.
EXTENSION = "rollenv.websocket"


class WebSocket(WebSocketsSansIOProtocol):
    """A connection. Its application calls :meth:`receive`, and gets messages that it can answer at once by callback."""

    _take: Callable[[str | bytes], bool] | None = None
    _silence = _active = 0.0
    _watch: asyncio.TimerHandle | None = None
    _ending: asyncio.Task[None] | None = None

    def listen(self, silence: float, take: Callable[[str | bytes], bool], is_busy: Callable[[], bool]) -> None:
        """Offer messages to the application as they arrive.

        Args:
            silence: seconds without a message in either direction after which the connection is closed, unless
                ``is_busy()`` because an answer is pending.
            take: called with a message if no other waits for :meth:`receive` and the client reads its answers; if it
                returns false, the message waits for :meth:`receive`. It must not raise.
        """
        self._silence, self._take, self._is_busy = silence, take, is_busy
        self._active = self.loop.time()
        self._check_silence()

    def write(self, message: str | bytes) -> None:
        """Send a message unless the client has disconnected. Callers that send much wait for ``writable``."""
        if self.close_sent or self.transport.is_closing() or self.conn.state is not State.OPEN:
            return
        self._active = self.loop.time()
        frame = Frame(Opcode.TEXT, message.encode()) if isinstance(message, str) else Frame(Opcode.BINARY, message)
        self.transport.write(frame.serialize(mask=False))

    def end(self, code: int, reason: str) -> None:
        """Close the connection; for the application this is like a disconnect of the client."""
        if self._ending is None:
            self._ending = self.loop.create_task(self._close(code, reason))

    async def _close(self, code: int, reason: str) -> None:
        if not self.close_sent:
            close: Any = {"type": "websocket.close", "code": code, "reason": reason}
            await self.send(close)

    # -- called by uvicorn ---------------------------------------------------------------------------------------------

    async def run_asgi(self) -> None:
        self.scope["extensions"][EXTENSION] = self  # type: ignore[assignment]
        await super().run_asgi()

    def handle_text(self, event: Frame) -> None:
        try:
            taken = self._offer(event, str(event.data, "utf-8"))
        except UnicodeDecodeError:
            taken = False
        if not taken:
            super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        if not self._offer(event, bytes(event.data)):
            super().handle_bytes(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._take = None
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)
        self.writable.set()  # old versions of uvicorn leave senders waiting after a disconnect

    # -- inside --------------------------------------------------------------------------------------------------------

    def _offer(self, event: Frame, message: str | bytes) -> bool:
        self._active = self.loop.time()
        if self._take is None or not event.fin or self.read_paused or self.close_sent or not self.writable.is_set():
            return False
        return self._take(message)

    def _check_silence(self) -> None:
        """Close a silent connection. One timer is enough; one per message would cost more than the message."""
        now = self.loop.time()
        if self._is_busy():
            self._active = now
        if now < (end := self._active + self._silence):
            self._watch = self.loop.call_at(end, self._check_silence)
        else:
            self.end(1001, "no message for too long")
