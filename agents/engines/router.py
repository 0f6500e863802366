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
class _Place:
    """A replica and what is on it: sessions, and requests that belong to none."""

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

    A replica that raises is left out and its sessions move. What it was working on continues on another replica, from
    the tokens that an :class:`~rollenv.agents.engines.base.EngineFailed` carries or else from the start. After a rest,
    which doubles from failure to failure, it gets one request; when it answers it is taken back. Updates go to all
    replicas, which count the same version; one that missed an update gets nothing before it had the next.

    Args:
        busier: see above; the emptiest counts as having at least one session.
        prefix: how many first tokens of a prompt are compared.
        remembered: how many beginnings are remembered.
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
        self._places = [_Place(i, engine) for i, engine in enumerate(engines)]
        self.busier, self.prefix, self.remembered, self.rest = busier, prefix, remembered, rest
        self.patience = patience
        self.max_context = min(engine.max_context for engine in engines)
        self._home: dict[int, _Place] = {}
        self._began: OrderedDict[int, _Place] = OrderedDict()  # by the hash of their tokens, which are long
        self._last_failure = ""
        self.version = max(engine.version for engine in engines)

    @property
    def version(self) -> int:
        """Counts the updates, of all replicas alike."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        self._version = version
        for place in self._places:
            if place.current:
                place.engine.version = version

    @property
    def engines(self) -> list[Any]:
        """The replicas."""
        return [place.engine for place in self._places]

    @property
    def stats(self) -> TokenCounts:
        """Tokens of all replicas that count theirs."""
        counts = [engine.stats for engine in self.engines if hasattr(engine, "stats")]
        names = ("prompted", "reused", "drawn", "steps")
        return TokenCounts(*(sum(getattr(count, name, 0) for count in counts) for name in names))

    @property
    def alive(self) -> list[int]:
        """The numbers of the replicas that have not failed."""
        return [place.number for place in self._alive()]

    def replica_of(self, session: int) -> int | None:
        """The number of the replica that a session is on."""
        place = self._home.get(session)
        return None if place is None else place.number

    # -- requests ----------------------------------------------------------------------------------------------------

    async def generate(self, prompt: Ids, sampling: Sampling, rng: random.Random, *, session: int = -1) -> Response:
        """Draw a response on one of the replicas (see :class:`rollenv.agents.engines.base.Engine`).

        Args:
            prompt: token ids.
            session: requests of one session go to the same replica; -1 for none.

        Raises:
            ContextFull: the prompt leaves no room for a response.
            EngineFailed: no replica is left.
            EngineLost: none comes back, as each has said.
        """
        prompt = token_ids(prompt)
        room = self.max_context - len(prompt)
        if room < 1:
            raise ContextFull(f"a prompt of {len(prompt)} tokens leaves no room in a context of {self.max_context}")
        sampling = replace(sampling, max_new_tokens=min(sampling.max_new_tokens, room))
        response = Response()
        while True:
            place = self._choose(prompt, session, response)
            try:
                self._add(response, await self._ask(place, prompt, sampling, rng, session, response))
                self._take_back(place)
                return response
            except (UsageError, ContextFull, AgentFailed):  # the request's own fault
                raise
            except Exception as error:
                if isinstance(error, EngineFailed):
                    self._add(response, error.response)
                self._leave_out(place, error)

    async def _ask(
        self, place: _Place, prompt: Ids, sampling: Sampling, rng: random.Random, session: int, so_far: Response
    ) -> Response:
        place.loose += session < 0
        try:
            left = replace(sampling, max_new_tokens=sampling.max_new_tokens - len(so_far.ids))
            return await place.engine.generate((*prompt, *so_far.ids), left, rng, session=session)
        finally:
            place.loose -= session < 0

    def _add(self, response: Response, more: Response) -> None:
        response.ids += more.ids
        response.logprobs += more.logprobs
        response.versions += more.versions
        response.finish = more.finish

    def release(self, session: int) -> None:
        """Drop a session, here and on its replica."""
        place = self._home.pop(session, None)
        if place is not None:
            place.sessions.discard(session)
            if place.alive:
                place.engine.release(session)

    def _choose(self, prompt: Ids, session: int, response: Response) -> _Place:
        home = self._home.get(session)
        if home is not None and home.alive:
            return home
        alive = self._alive()
        place = self._on_trial()
        if place is not None:
            return self._put(place, session)
        if not alive:
            lost = all(place.lost for place in self._places)
            why = f"the last: {self._last_failure}" if lost else "see the log for why"
            kind = EngineLost if lost else EngineFailed
            raise kind(f"all {len(self._places)} engines have failed; {why}", response)
        emptiest = min(alive, key=lambda p: p.load)
        beginnings = (hash(prompt), hash(prompt[: self.prefix]))
        known = next((p for b in beginnings if (p := self._began.get(b)) and p.alive), emptiest)
        place = known if known.load <= self.busier * max(emptiest.load, 1) else emptiest
        for beginning in beginnings:
            self._began[beginning] = place
            self._began.move_to_end(beginning)
        while len(self._began) > self.remembered:
            self._began.popitem(last=False)
        return self._put(place, session)

    def _put(self, place: _Place, session: int) -> _Place:
        if session >= 0:
            self._home[session] = place
            place.sessions.add(session)
        return place

    # -- replicas ----------------------------------------------------------------------------------------------------

    def _alive(self) -> list[_Place]:
        return [place for place in self._places if place.alive]

    def _on_trial(self) -> _Place | None:
        """A replica that failed and has rested; its next trial is a rest away."""
        now = time.monotonic()
        for place in self._places:
            if not place.alive and place.current and now >= place.retry_at:
                place.retry_at = now + place.wait
                return place
        return None

    def _take_back(self, place: _Place) -> None:
        place.wait, place.lost = 0.0, False
        if not place.alive:
            place.alive = True
            logger.warning("engine %d answers again and is back in use", place.number)

    def _leave_out(self, place: _Place, error: BaseException) -> None:
        place.wait = min(_LONGEST_REST, 2 * place.wait) if place.wait else self.rest
        place.retry_at = time.monotonic() + place.wait
        place.sessions.clear()
        place.lost, self._last_failure = isinstance(error, EngineLost), str(error)
        if place.alive:
            place.alive = False
            logger.warning(
                "engine %d failed and is excluded, %d of %d remain: %s: %s",
                place.number, len(self._alive()), len(self._places), type(error).__name__, error,
            )  # fmt: skip

    async def suspend(self) -> None:
        """Suspend every replica."""
        await self._everywhere(lambda engine: engine.suspend())

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]] | Adapter | None = None) -> None:
        """Update every replica."""
        named = list(weights) if isinstance(weights, Iterator) else weights  # each reads them
        missed = await self._everywhere(lambda engine: engine.update_weights(named))
        for place in self._places:
            place.current = place not in missed
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

    async def _everywhere(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> list[_Place]:
        """Do it on every replica; those on which it failed.

        One that cannot follow is left out, unless it was asked for something impossible or is the last.
        """
        places = self._alive()
        others = [place for place in self._places if not place.alive]
        tries = [_within(self.patience, work(place.engine)) for place in places]
        tries += [_within(min(self.patience, _LONGEST_REST), work(place.engine)) for place in others]
        results = await asyncio.gather(*tries, return_exceptions=True)
        pairs = zip([*places, *others], results, strict=True)
        failed = [(p, r) for p, r in pairs if isinstance(r, BaseException)]
        of_alive = [error for place, error in failed if place.alive]
        for place, error in failed:
            last = place.alive and len(of_alive) == len(places)
            if isinstance(error, UsageError) or not isinstance(error, Exception) or last:
                raise error
            self._leave_out(place, error)
        return [place for place, _ in failed]


async def _within(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    """Do it in time. What takes longer is cancelled, and not waited for."""
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
