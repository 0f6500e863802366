"""Several engines behind one: sessions stay where their prefix is computed, and an engine that fails is excluded."""

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
from rollenv.core import UsageError

if TYPE_CHECKING:
    import torch

    from rollenv.agents.engines.adapters import Adapter

logger = logging.getLogger(__name__)

#: Seconds that a replica which failed rests at most, and that one has for an update.
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
    """Seconds between failures and the next attempt."""
    retry_at: float = 0.0
    current: bool = True
    """True if it has the newest weights."""
    lost: bool = False
    """True if it reported that it cannot be used again."""
    sessions: set[int] = field(default_factory=set)
    loose: int = 0

    @property
    def load(self) -> int:
        return len(self.sessions) + self.loose


class Router:
    """Spreads sessions over replicas of one model; an engine itself.

    A session stays on its replica, where its earlier turns are cached. A new one goes to the replica that last began a
    session with the same prompt, or else with the same first tokens (the members of a group share a prompt), unless
    that one has more than ``busier`` times as many sessions as the emptiest; then, and where no replica knows the
    beginning, it goes to the emptiest.

    A replica that raises is left out and its sessions move. Its unfinished responses continue on another replica, from
    the tokens that an :class:`~rollenv.agents.engines.base.EngineFailed` carries or else from the start. After a rest,
    which doubles from failure to failure, it gets one request; when it answers it is taken back. Updates go to all
    replicas, which count the same version; one that missed an update gets nothing before it had the next.

    Args:
        busier: see above; the emptiest counts as having at least one session.
        prefix: how many first tokens of a prompt are compared.
        rest: seconds that a replica rests after its first failure; at most a minute after many.
        patience: seconds that a replica has to suspend, to update its weights or to resume; one that takes longer has
            failed. One that is left out already has at most a minute.

    Raises:
        UsageError: there are no replicas.
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
        self._began: OrderedDict[int, _ReplicaState] = OrderedDict()  # by the hash of their tokens, which are long
        self._last_failure = ""
        self.version = max(engine.version for engine in engines)

    @property
    def version(self) -> int:
        """Counts the updates, of all replicas alike."""
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
        """Tokens of all replicas that count theirs."""
        counts = [engine.stats for engine in self.engines if hasattr(engine, "stats")]
        names = ("prompted", "reused", "drawn", "steps")
        return TokenCounts(*(sum(getattr(count, name, 0) for count in counts) for name in names))

    @property
    def alive(self) -> list[int]:
        """The numbers of the replicas that have not failed."""
        return [replica.number for replica in self._alive()]

    def replica_of(self, session: int) -> int | None:
        """The number of the replica that a session is on."""
        replica = self._by_session.get(session)
        return None if replica is None else replica.number

    # -- requests ----------------------------------------------------------------------------------------------------

    async def generate(self, prompt: Ids, sampling: Sampling, rng: random.Random, *, session: int = -1) -> Response:
        """Draw a response on one of the replicas (see :class:`rollenv.agents.engines.base.Engine`).

        Raises:
            ContextFull: the prompt leaves no room for a response.
            EngineFailed: no replica is left.
            EngineLost: none comes back, as each has reported.
        """
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
            except (UsageError, ContextFull, AgentFailed):  # the request's own fault
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
        """A replica that failed and has rested; its next trial is a rest away."""
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
        """Let every replica leave its accelerator's memory; see :class:`.base.RestingEngine`."""
        await self._everywhere(lambda engine: engine.sleep(level))

    def check_sleep(self) -> None:
        """Raise UsageError if a replica cannot :meth:`sleep`."""
        for engine in self.engines:
            engine.check_sleep()

    def close(self) -> None:
        """End the replicas that have to be ended."""
        for engine in self.engines:
            if hasattr(engine, "close"):
                engine.close()

    async def _everywhere(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> list[_ReplicaState]:
        """Do ``work`` on every replica and return those on which it failed.

        One that cannot follow is left out, unless it was asked for something impossible or is the last.
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
    """Do ``work`` within some seconds; cancel it if it takes longer, and do not wait for it."""
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
