"""Environments on servers (``rollenv serve``): weighted least load, health checks, one connection per server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
from collections.abc import Sequence
from typing import Any

from rollenv.core.errors import RollenvError, UsageError, describe
from rollenv.core.needs import extra
from rollenv.core.pictures import Picture
from rollenv.remote import protocol
from rollenv.remote.address import Address, parse
from rollenv.remote.connection import opening, refused
from rollenv.remote.protocol import EnvBroke, NotAllowed, ServerError, ServerFull, ServerLost, TooFast
from rollenv.rollout.types import Task
from rollenv.rollout.workers.base import Avoid, EnvFailure, EnvResult, avoid_none, validated
from rollenv.rollout.workers.supervisor import Slot, Supervisor

with extra("serve", "Playing on servers"):
    from websockets.asyncio.client import ClientConnection, connect
    from websockets.exceptions import InvalidStatus, WebSocketException

logger = logging.getLogger(__name__)

#: Timeout of a connection attempt, and delay between two attempts, in seconds.
_CONNECT, _AGAIN = 10.0, 0.5
#: Seconds without a server before its callers are told, and between repetitions.
_SAY_FIRST, _SAY_EVERY = 10.0, 60.0

#: Seconds that a server may take to receive the last requests.
_GOODBYE = 1.0


class RemoteWorkers(Supervisor["WorkerServer"]):
    """Servers as workers. The rollout manager replays the episodes of a lost server on another one.

    Args:
        servers: ``rollenv+ws://HOST:PORT[,HOST:PORT ...]``.
        weights: relative capacity of each server; equal by default.
        envs_per_server: maximum environments of this client on a server.
        ping_every: seconds between two pings.
        lost_after: seconds without an answer after which a server is lost; shorter interruptions are bridged.
        patience: seconds in which no server plays, as all are lost or about to stop, after which they are given up.
    """

    interruptible = True

    def __init__(
        self,
        servers: str,
        *,
        weights: Sequence[float] = (),
        envs_per_server: int = 512,
        ping_every: float = 1.0,
        lost_after: float = 10.0,
        patience: float = 120.0,
    ):
        addresses, env_id = parse(servers)
        if env_id:
            raise UsageError(f"{servers} contains an environment id; give the address of a server only")
        weights = list(weights) or [1.0] * len(addresses)
        if len(weights) != len(addresses) or min(weights) <= 0:
            raise UsageError(f"there are {len(addresses)} servers and the weights {weights}; each needs one above 0")
        self.envs_per_server, self.ping_every, self.lost_after = envs_per_server, ping_every, lost_after
        self.patience, self._without = patience, math.inf
        super().__init__([WorkerServer(self, *server) for server in zip(addresses, weights, strict=True)])

    async def open(
        self, task: Task, *, views: bool = False, avoid: Avoid = avoid_none, alone: bool = False
    ) -> RemoteWorkerEnv:
        self.attach()
        return RemoteWorkerEnv(await self.reserve(avoid), task, views, avoid)

    async def reserve(self, avoid: Avoid) -> WorkerServer:
        """Wait for a server with room and reserve it for an environment.

        Raises:
            NotAllowed: all servers refuse the token.
            ServerLost: no server has played for ``patience`` seconds.
        """
        return await self.acquire(lambda: self._choose(avoid))

    def start_slot(self, slot: WorkerServer) -> None:
        slot.start()

    def give_back(self, taken: WorkerServer) -> None:
        taken.load -= 1
        self.wake()

    async def aclose(self) -> None:
        for server in self.slots:
            await server.aclose()
        self.detach()

    def report(self) -> list[dict[str, Any]]:
        return [server.report() for server in self.slots]

    async def watch(self) -> None:
        """Ping the servers, and drop the connection of one that has been silent for too long."""
        say_at = _SAY_FIRST
        async for late in self.ticks(self.ping_every):
            for server in self.slots:
                server.look(late)
            if any(server.up and not server.draining for server in self.slots):
                self._without, say_at = math.inf, _SAY_FIRST
                continue
            self._without = min(self._without, self.time())
            waited = self.time() - self._without
            if waited >= say_at and any(self._lines.values()):
                say_at = waited + _SAY_EVERY
                logger.warning(
                    "no server has played for %.0f s, of at most %.0f: %s", waited, self.patience, self._state()
                )
            self.wake()

    def _state(self) -> str:
        """Return why no server plays."""
        return "; ".join(f"{each.name} {'is about to stop' if each.up else each.last_error}" for each in self.slots)

    def _choose(self, avoid: Avoid) -> WorkerServer | None:
        """Reserve the server with the least load for its weight; one to avoid only if there is no other."""
        now = self.time()
        room = [s for s in self.slots if s.up and s.load < min(self.envs_per_server, s.room - (s.full_until > now))]
        if room:
            chosen = min(room, key=lambda server: (avoid(server.name), server.load / server.weight))
            chosen.load += 1
            return chosen
        refusals = [server.refusal for server in self.slots if server.refusal is not None]
        if len(refusals) == len(self.slots):
            raise refusals[0]
        if now - self._without >= self.patience:
            raise ServerLost(f"no server has played for {now - self._without:.0f} s: {self._state()}")
        return None


class WorkerServer(Slot):
    """One server and its connection, which is restored when it is lost.

    Unanswered requests are sent again over the new connection; the server detects duplicates.
    """

    def __init__(self, workers: RemoteWorkers, address: Address, weight: float):
        super().__init__(str(address))
        self.workers, self.address, self.weight = workers, address, weight
        self.up, self.load = False, 0
        self.refusal: RollenvError | None = None
        self.full_until, self.draining = 0.0, False
        self.opened, self.room = 0, math.inf
        """Open sessions of this client, and how many it tries: those that a full server let it have, and one."""
        self._pending: dict[int, tuple[list[Any], asyncio.Future[Any]]] = {}
        self._numbers = itertools.count(1)
        self._connection: ClientConnection | None = None
        self._unsent: list[int] = []
        self._sending: set[asyncio.Task[None]] = set()
        self._last_answer = 0.0
        self._task: asyncio.Task[None] | None = None

    def opened_one(self) -> None:
        """Count a session; where it was the one more than before, try twice as many."""
        self.opened += 1
        if self.opened >= self.room:
            self.room *= 2

    def refused_one(self, until: float, draining: bool) -> None:
        """Note that the server was full, or about to stop."""
        self.full_until, self.room, self.draining = until, self.opened + 1, draining

    def start(self) -> None:
        """Connect in the running event loop."""
        self._pending.clear()
        self._unsent.clear()
        self._task = asyncio.get_running_loop().create_task(self._live())

    async def aclose(self) -> None:
        """Close the connection once the server has received all requests."""
        if self._task is not None and self._task.get_loop() is asyncio.get_running_loop() and self.up:
            await self.answers(_GOODBYE)
        if self._task is not None and not self._task.get_loop().is_closed():
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError, RuntimeError):
                await self._task
        self._task, self.up = None, False
        self._fail("the pool was closed")

    def report(self) -> dict[str, Any]:
        """The state, as plain data."""
        return self.report_of("up" if self.up else "down", self.load)

    def ask(self, *request: Any) -> asyncio.Future[Any]:
        """Send a request and return a future of the answer."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self._task is None:
            future.set_exception(ServerLost(f"{self.name} is lost: the pool was closed"))
            return future
        number = next(self._numbers)
        self._pending[number] = (list(request), future)
        if not self._unsent:
            loop.call_soon(self._flush)
        self._unsent.append(number)
        return future

    def tell(self, *request: Any) -> None:
        """Send a request and ignore the answer."""
        self.ask(*request).add_done_callback(lambda future: future.cancelled() or future.exception())

    async def answers(self, seconds: float) -> bool:
        """Return whether the server answers within so many seconds."""
        with contextlib.suppress(TimeoutError, RollenvError):
            await asyncio.wait_for(self.ask("hello", protocol.VERSION), seconds)
            return True
        return False

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        """Keep the server connected until cancelled."""
        loop = asyncio.get_running_loop()
        silent_since = loop.time()
        while True:
            try:
                async with asyncio.timeout(_CONNECT):
                    connection = await self._connect()
                self._last_answer, self.refusal, self.draining = loop.time(), None, False
                await self._talk(connection)
                why = "the connection was closed"
            except NotAllowed as error:
                self.refusal = error
                why = str(error).removeprefix(f"{self.name}: ")
            except (OSError, WebSocketException, TimeoutError, RollenvError, ValueError) as error:
                why = str(error) or type(error).__name__
            finally:
                self._connection = None
            if self.up:
                silent_since = loop.time()
                logger.info("%s: %s", self.name, why)
            elif not self.tried and (self.refusal is None or len(self.workers.slots) > 1):  # else the caller is told
                logger.warning("%s: %s; trying again", self.name, why)
            self.up, self.tried, self.last_error = False, True, why
            if loop.time() - silent_since >= self.workers.lost_after or not self._pending:
                self._lose(why)
            self.workers.on_change()
            await asyncio.sleep(_AGAIN)

    async def _connect(self) -> ClientConnection:
        url, headers = opening(self.address)
        try:
            return await connect(
                url,
                subprotocols=[protocol.SUBPROTOCOL],  # type: ignore[list-item]
                additional_headers=headers,
                compression=None,
                max_size=protocol.LARGEST_MESSAGE,
                ping_interval=None,
                proxy=None,
            )
        except InvalidStatus as error:
            raise refused(self.address, error.response) from None

    async def _talk(self, connection: ClientConnection) -> None:
        self._connection = connection
        try:
            self._unsent = list(self._pending)
            self._flush()
            self.tell("hello", protocol.VERSION)
            async for message in connection:
                try:
                    answers = protocol.unpack_all(message if isinstance(message, bytes) else b"")
                except UsageError as error:  # a repeated request would give the same answer
                    self._lose(f"its answer is wrong: {error}")
                    raise
                self._last_answer = asyncio.get_running_loop().time()
                if not self.up:
                    self.up = self.tried = True
                    self.workers.on_change()
                for answer in answers:
                    _, future = self._pending.pop(answer[0], (None, None))
                    if future is None or future.done():
                        continue
                    if len(answer) == 5:
                        future.set_exception(protocol.error_of(*answer[2:]))
                    else:
                        future.set_result(answer[1])
        finally:
            connection.transport.abort()

    def look(self, late: float) -> None:
        """Ping the server; drop the connection if it has been silent for too long."""
        if self._connection is None:
            return
        now = self.workers.time()
        self._last_answer = min(now, self._last_answer + late)
        if now - self._last_answer > self.workers.lost_after:
            self._lose(f"it was silent for {now - self._last_answer:.1f} s")
            self._connection.transport.abort()
        else:
            self.tell("hello", protocol.VERSION)

    def _flush(self) -> None:
        """Send the collected requests in one message."""
        numbers, self._unsent = self._unsent, []
        messages = []
        for number in numbers:
            if number not in self._pending:
                continue
            request, future = self._pending[number]
            try:
                messages.append(protocol.pack_request([number, *request]))
            except UsageError as error:
                del self._pending[number]
                if not future.done():
                    future.set_exception(error)
        if self._connection is not None and messages:  # otherwise all are sent after the connection
            task = asyncio.get_running_loop().create_task(self._send(self._connection, messages))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, connection: ClientConnection, messages: list[bytes]) -> None:
        with contextlib.suppress(WebSocketException, OSError):  # the next connection sends the requests again
            for _, data in protocol.pack_all(messages, protocol.LARGEST_REQUEST):
                await connection.send(data)

    def _lose(self, why: str) -> None:
        """Count the loss of the server if requests are open, and fail them."""
        self.losses, self.last_error = self.losses + bool(self._pending), why
        self._fail(why)

    def _fail(self, why: str) -> None:
        """Fail all pending requests because the server is lost."""
        pending, self._pending = self._pending, {}
        for _, future in pending.values():
            if not future.done():
                future.set_exception(ServerLost(f"{self.name} is lost: {why}"))


class RemoteWorkerEnv:
    """An environment on a server."""

    def __init__(self, server: WorkerServer, task: Task, views: bool, avoid: Avoid):
        self._server, self._task, self._views, self._avoid = server, task, views, avoid
        self.worker = server.name
        self._session, self._count, self._open, self._begun = "", 0, True, False
        self._pictures: dict[str, Picture] = {}

    async def reset(self) -> EnvResult:
        if not self._begun:
            task = self._task
            name = self._session = self._session or protocol.session_name()  # before the request, for close()
            settings = {"kwargs": task.kwargs, "wrappers": task.wrappers, "views": self._views, "pictures": "once"}
            while True:
                try:
                    await self._request("open", name, task.env_id, settings)
                    self._server.opened_one()
                    break
                except ServerFull as error:  # full or about to stop
                    await self._move(error)
            self._begun = True
        result: EnvResult = await self._call("reset", self._task.seed, self._task.options)
        return result

    async def _move(self, error: ServerFull) -> None:
        seconds = error.retry_after
        server, workers = self._server, self._server.workers
        server.refused_one(workers.time() + seconds, bool(error.details.get("draining")))
        asyncio.get_running_loop().call_later(seconds, workers.wake)
        self._open = False  # what waits holds no place
        workers.give_back(server)
        new = await workers.reserve(self._avoid)
        self._server, self.worker, self._open = new, new.name, True

    async def step(self, action: str) -> EnvResult:
        result: EnvResult = await self._call("step", action)
        return result

    async def call(self, method: str, *args: Any) -> Any:
        return await self._call(method, *args)

    async def diagnose_hang(self, failure: EnvFailure) -> EnvFailure:
        if await self._server.answers(self._server.workers.lost_after):
            return failure
        return EnvFailure("lost", f"{self.worker} does not answer")

    def close(self) -> None:
        if self._open:
            self._open = False
            self._server.workers.give_back(self._server)
            self._server.opened -= self._begun
            if self._session:
                self._server.tell("close", self._session)

    abandon = close

    async def _call(self, method: str, *args: Any) -> Any:
        self._count += 1
        answer = await self._request("call", self._session, self._count, method, list(args))
        try:
            answer = protocol.with_known(method, answer, self._pictures)
            if method == "reset":
                answer = [answer[0], 0.0, False, False, *answer[1:]]
            return validated(*answer) if method in ("reset", "step") else answer
        except Exception as error:  # a server can answer anything
            raise EnvFailure("wrong", f"{self.worker}: the answer to {method} is wrong: {describe(error)}") from error

    async def _request(self, *request: Any) -> Any:
        try:
            while True:
                try:
                    return await self._server.ask(*request)
                except TooFast as error:  # the client's quota, which has room again soon
                    await asyncio.sleep(error.retry_after)
        except (NotAllowed, ServerFull):
            raise
        except EnvBroke as error:
            raise EnvFailure(str(error.details.get("kind", "raised")), str(error)) from error
        except (ServerLost, ServerError) as error:
            raise EnvFailure("lost", str(error)) from error
