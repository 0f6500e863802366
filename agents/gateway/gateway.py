"""The gateway: sessions by key, served over HTTP in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

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
        self._thread = contextlib.ExitStack()
        self._portal: BlockingPortal | None = None

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
        self._portal = self._thread.enter_context(start_blocking_portal())
        try:
            self.run(self.start())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.run(self.stop())
        self._thread.close()
        self.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the gateway's thread, such as one that updates the engine's weights."""
        assert self._portal is not None
        result: T = self._portal.call(lambda: work)
        return result
