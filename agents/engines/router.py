"""A router over several engines: sessions stay where their prefix is cached, and failed engines are excluded."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from rollenv.agents.base import AgentFailed, ContextFull, Updatable
from rollenv.agents.engines.base import (
    Engine,
    EngineFailed,
    EngineLost,
    Ids,
    Response,
    Sampling,
    TokenCounts,
    token_ids,
)
from rollenv.core.errors import UsageError

if TYPE_CHECKING:
    import torch

    from rollenv.agents.engines.adapters import Adapter

logger = logging.getLogger(__name__)

#: Maximum pause of a failed replica in seconds, and its time for an update.
_LONGEST_REST = 60.0


class Replica(Engine, Updatable, Protocol):
    """An engine with updatable weights."""


@dataclass(slots=True, eq=False)
class _ReplicaState:
    """A replica's health, its sessions, and its requests without a session."""

    number: int
    engine: Replica
    alive: bool = True
    wait: float = 0.0
    """Seconds between a failure and the next attempt."""
    retry_at: float = 0.0
    current: bool = True
    """True if it has the newest weights."""
    lost: bool = False
    """True if it reported that it is permanently lost."""
    sessions: set[int] = field(default_factory=set)
    loose: int = 0

    @property
    def load(self) -> int:
        return len(self.sessions) + self.loose


class Router:
    """Distributes sessions over replicas of one model; an engine itself.

    A session stays on its replica, where its earlier turns are cached. A new one goes to the replica that last began a
    session with the same prompt, or else with the same first tokens (the members of a group share a prompt). If there
    is none, or it has more than ``busier`` times the sessions of the least loaded replica, it goes to the latter.

    A replica that raises an exception is excluded and its sessions move. Its unfinished responses continue on another
    replica, after the tokens of an :class:`~rollenv.agents.engines.base.EngineFailed` or else from the start. After a
    pause, which doubles with each failure, it gets one request; if it answers, it is used again. Updates go to all
    replicas, which have the same version; one that missed an update is not used before the next.

    Args:
        busier: see above; the least loaded replica counts as having at least one session.
        prefix: number of first tokens of a prompt to compare.
        rest: pause in seconds after a replica's first failure; at most a minute after many.
        patience: seconds for a replica to suspend, update its weights or resume; a slower one has failed. An excluded
            replica has at most a minute.
    """

    def __init__(
        self,
        engines: Sequence[Replica],
        *,
        busier: float = 2.0,
        prefix: int = 256,
        remembered: int = 1 << 14,
        rest: float = 1.0,
        patience: float = 600.0,
    ):
        if not engines:
            raise UsageError("a router needs at least one engine")
        self._replicas = [_ReplicaState(i, engine) for i, engine in enumerate(engines)]
        self.busier, self.prefix, self.remembered, self.rest = busier, prefix, remembered, rest
        self.patience = patience
        self.max_context = min(engine.max_context for engine in engines)
        self._by_session: dict[int, _ReplicaState] = {}
        self._began: OrderedDict[int, _ReplicaState] = OrderedDict()  # by the hash of their tokens, to save memory
        self._last_failure = ""
        self.version = max(engine.version for engine in engines)

    @property
    def version(self) -> int:
        """Number of updates, the same for all replicas."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        self._version = version
        for replica in self._replicas:
            if replica.current:
                replica.engine.version = version

    @property
    def engines(self) -> list[Any]:
        """The replicas."""
        return [replica.engine for replica in self._replicas]

    @property
    def stats(self) -> TokenCounts:
        """Sums over all replicas with counts."""
        counts = [engine.stats for engine in self.engines if hasattr(engine, "stats")]
        names = ("prompted", "reused", "drawn", "steps")
        return TokenCounts(*(sum(getattr(count, name, 0) for count in counts) for name in names))

    @property
    def alive(self) -> list[int]:
        """Indices of the replicas that have not failed."""
        return [replica.number for replica in self._alive()]

    def replica_of(self, session: int) -> int | None:
        """Return the index of a session's replica."""
        replica = self._by_session.get(session)
        return None if replica is None else replica.number

    # -- requests ----------------------------------------------------------------------------------------------------

    async def generate(self, prompt: Ids, sampling: Sampling, rng: random.Random, *, session: int = -1) -> Response:
        """Sample a response on one of the replicas (see :class:`rollenv.agents.engines.base.Engine`)."""
        prompt = token_ids(prompt)
        room = self.max_context - len(prompt)
        if room < 1:
            raise ContextFull(f"a prompt of {len(prompt)} tokens leaves no room in a context of {self.max_context}")
        sampling = replace(sampling, max_new_tokens=min(sampling.max_new_tokens, room))
        response = Response()
        while True:
            replica = self._choose(prompt, session, response)
            left = replace(sampling, max_new_tokens=sampling.max_new_tokens - len(response.ids))
            replica.loose += session < 0
            try:
                more = await replica.engine.generate((*prompt, *response.ids), left, rng, session=session)
                self._add(response, more)
                replica.wait, replica.lost = 0.0, False
                if not replica.alive:
                    replica.alive = True
                    logger.warning("engine %d answers again and is back in use", replica.number)
                return response
            except (UsageError, ContextFull, AgentFailed):  # caused by the request
                raise
            except Exception as error:
                if isinstance(error, EngineFailed):
                    self._add(response, error.response)
                self._leave_out(replica, error)
            finally:
                replica.loose -= session < 0

    def _add(self, response: Response, more: Response) -> None:
        response.ids += more.ids
        response.logprobs += more.logprobs
        response.versions += more.versions
        response.finish = more.finish

    def release(self, session: int) -> None:
        """Drop a session, here and on its replica."""
        replica = self._by_session.pop(session, None)
        if replica is not None:
            replica.sessions.discard(session)
            if replica.alive:
                replica.engine.release(session)

    def _choose(self, prompt: Ids, session: int, response: Response) -> _ReplicaState:
        assigned = self._by_session.get(session)
        if assigned is not None and assigned.alive:
            return assigned
        alive = self._alive()
        replica = self._on_trial()
        if replica is not None:
            return self._put(replica, session)
        if not alive:
            lost = all(replica.lost for replica in self._replicas)
            why = f"the last: {self._last_failure}" if lost else "see the log for why"
            kind = EngineLost if lost else EngineFailed
            raise kind(f"all {len(self._replicas)} engines have failed; {why}", response)
        emptiest = min(alive, key=lambda p: p.load)
        beginnings = (hash(prompt), hash(prompt[: self.prefix]))
        known = next((p for b in beginnings if (p := self._began.get(b)) and p.alive), emptiest)
        replica = known if known.load <= self.busier * max(emptiest.load, 1) else emptiest
        for beginning in beginnings:
            self._began[beginning] = replica
            self._began.move_to_end(beginning)
        while len(self._began) > self.remembered:
            self._began.popitem(last=False)
        return self._put(replica, session)

    def _put(self, replica: _ReplicaState, session: int) -> _ReplicaState:
        if session >= 0:
            self._by_session[session] = replica
            replica.sessions.add(session)
        return replica

    # -- replicas ----------------------------------------------------------------------------------------------------

    def _alive(self) -> list[_ReplicaState]:
        return [replica for replica in self._replicas if replica.alive]

    def _on_trial(self) -> _ReplicaState | None:
        """Return a failed replica whose pause is over, and set the time of its next trial."""
        now = time.monotonic()
        for replica in self._replicas:
            if not replica.alive and replica.current and now >= replica.retry_at:
                replica.retry_at = now + replica.wait
                return replica
        return None

    def _leave_out(self, replica: _ReplicaState, error: BaseException) -> None:
        replica.wait = min(_LONGEST_REST, 2 * replica.wait) if replica.wait else self.rest
        replica.retry_at = time.monotonic() + replica.wait
        replica.sessions.clear()
        replica.lost, self._last_failure = isinstance(error, EngineLost), str(error)
        if replica.alive:
            replica.alive = False
            logger.warning(
                "engine %d failed and is excluded, %d of %d remain: %s: %s",
                replica.number, len(self._alive()), len(self._replicas), type(error).__name__, error,
            )  # fmt: skip

    async def suspend(self) -> None:
        """Suspend every replica."""
        await self._everywhere(lambda engine: engine.suspend())

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]] | Adapter | None = None) -> None:
        """Update every replica."""
        named = list(weights) if isinstance(weights, Iterator) else weights  # each reads them
        missed = await self._everywhere(lambda engine: engine.update_weights(named))
        for replica in self._replicas:
            replica.current = replica not in missed
        self.version += 1

    async def resume(self) -> None:
        """Resume every replica."""
        await self._everywhere(lambda engine: engine.resume())

    async def sleep(self, level: int = 1) -> None:
        """Free the accelerator memory of every replica; see :class:`.base.RestingEngine`."""
        await self._everywhere(lambda engine: engine.sleep(level))

    def check_sleep(self) -> None:
        """Raise UsageError if a replica cannot :meth:`sleep`."""
        for engine in self.engines:
            engine.check_sleep()

    def close(self) -> None:
        """Close the replicas that have ``close()``."""
        for engine in self.engines:
            if hasattr(engine, "close"):
                engine.close()

    async def _everywhere(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> list[_ReplicaState]:
        """Run ``work`` on every replica, exclude those where it fails and return them.

        Usage errors, and the failure of the last replica, are raised.
        """
        alive = self._alive()
        others = [replica for replica in self._replicas if not replica.alive]
        tries = [_within(self.patience, work(replica.engine)) for replica in alive]
        tries += [_within(min(self.patience, _LONGEST_REST), work(replica.engine)) for replica in others]
        results = await asyncio.gather(*tries, return_exceptions=True)
        pairs = zip([*alive, *others], results, strict=True)
        failed = [(p, r) for p, r in pairs if isinstance(r, BaseException)]
        of_alive = [error for replica, error in failed if replica.alive]
        for replica, error in failed:
            last = replica.alive and len(of_alive) == len(alive)
            if isinstance(error, UsageError) or not isinstance(error, Exception) or last:
                raise error
            self._leave_out(replica, error)
        return [replica for replica, _ in failed]


async def _within(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` with a timeout; cancel it if it takes longer, without waiting for its end."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        raise TimeoutError(f"it did not finish within {seconds:g} s")
    task.result()
