"""The gateway: sessions by key, served over HTTP in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from rollenv.agents.gateway.server import agent_app
from rollenv.agents.gateway.session import Caps
from rollenv.agents.gateway.sessions import GatewaySessions
from rollenv.core.http_server import HttpServer

T = TypeVar("T")


class Gateway(GatewaySessions):
    """Serves the policy to external programs, and records the tokens of their calls.

    A program uses OpenAI's chat completions or Responses, Anthropic's Messages or Google's API, with the base URL and
    key of its session. Use the gateway with ``async with`` in the engine's event loop, or with ``with``, which runs
    both in a thread.

    Args:
        model: a :class:`~rollenv.agents.local.LocalAgent`, an :class:`~rollenv.agents.engine_agent.EngineAgent`, or a
            :class:`~rollenv.agents.gateway.session.Model`.
        port: port to listen on; 0 for any free one.
        url: address of this gateway for programs; by default that of ``host`` and ``port``.
        record: file for all calls; unfinished sessions in it are restored.
    """

    def __init__(
        self,
        model: Any,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        url: str = "",
        record: str | Path | None = None,
        caps: Caps | None = None,
        seed: int = 0,
    ):
        super().__init__(model, url=url, record=record, caps=caps, seed=seed)
        self._http = HttpServer(agent_app(self), host, port)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def url(self) -> str:
        """Address for programs."""
        return self._url or f"http://{self.address}"

    @property
    def address(self) -> str:
        """HOST:PORT of the listening socket."""
        return f"{self._http.host}:{self._http.port}"

    # -- serving -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen and serve in the running event loop until :meth:`stop`."""
        await self._http.start()
        for session in self.sessions.values():
            session.url = self.url

    async def stop(self) -> None:
        """Cancel all calls and stop serving."""
        for session in list(self.sessions.values()):
            session.cancel()
        await self._http.stop()

    def close(self) -> None:
        """Free the port, and close the record."""
        self._http.close()
        if self._record is not None:
            self._record.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()
        self.close()

    def __enter__(self) -> Self:
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="gateway", daemon=True)
        self._thread.start()
        started.wait()
        try:
            self.run(self.start())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self.run(self.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the gateway's thread, such as one that updates the engine's weights."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _run(self, started: threading.Event) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(started.set)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
