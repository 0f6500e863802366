"""Fair turns: who asks for much does not keep others waiting."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque

from rollenv.remote.protocol import TooFast
from rollenv.serve.deadlines import Deadlines

#: Seconds after which somebody who is inside no longer keeps others out: an environment that hangs takes no place.
PATIENCE = 1.0

#: For who keeps a place to the end.
NO_HURRY = 1e9


class Rates:
    """How often each owner may ask: so many times a second, and twice as many at once after a pause.

    Args:
        rate: times a second; 0 for no limit.
    """

    def __init__(self, rate: float):
        self.rate = rate
        self._ready: dict[str, float] = {}

    def take(self, owner: str) -> None:
        """Count a request.

        Args:
            owner: who asks.

        Raises:
            TooFast: that is too often.
        """
        if not self.rate:
            return
        now = time.monotonic()
        ready = max(self._ready.get(owner, 0.0), now - 2.0) + 1 / self.rate  # when it would be there in an even flow
        if ready > now:
            text = f"{owner} asks more than {self.rate:g} times a second"
            raise TooFast(text, retry_after=ready - now)
        self._ready[owner] = ready


class Gate:
    """Lets so many in at a time; owners that wait take turns.

    Args:
        width: how many are inside at the same time, apart from those that have been there for long.
        patience: seconds after which one counts as such.
    """

    def __init__(self, width: int, patience: float = PATIENCE):
        self.width = self._free = width
        self.patience, self._deadlines = patience, Deadlines()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    def turn(self, owner: str) -> _Turn:
        """Wait for a turn, and hold it for an ``async with`` block.

        Args:
            owner: whose turn it is.
        """
        return _Turn(self, owner)

    def enter(self) -> bool:
        """Begin a turn at once, which :meth:`leave` ends, unless one has to wait for it. It has no limit."""
        if not self._free or self._waiting:
            return False
        self._free -= 1
        return True

    def leave(self) -> None:
        """End a turn."""
        self._free += 1
        while self._free and self._waiting:
            owner, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[owner] = turns  # to the end of the line
            if not turn.done():
                turn.set_result(None)
                self._free -= 1

    async def _wait(self, owner: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()  # it was given a turn in the same moment
            raise


class _Turn:
    __slots__ = ("_gate", "_inside", "_limit", "_owner")

    def __init__(self, gate: Gate, owner: str):
        self._gate, self._owner, self._inside = gate, owner, False
        self._limit = gate._deadlines.limit(gate.patience, self._leave)

    async def __aenter__(self) -> None:
        if not self._gate.enter():
            await self._gate._wait(self._owner)
            self._limit.end = time.monotonic() + self._gate.patience
        self._inside = True
        self._limit.start()

    async def __aexit__(self, *problem: object) -> None:
        self._limit.stop()
        self._leave()

    def _leave(self) -> None:
        if self._inside:
            self._inside = False
            self._gate.leave()
