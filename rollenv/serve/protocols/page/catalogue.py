"""The catalogue: a row for each environment, and cards, whose examples workers play."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Any

from rollenv import cards
from rollenv.core import RollenvError, UsageError
from rollenv.env_spec import EnvSpec
from rollenv.registry import list_envs
from rollenv.remote.protocol import EnvBroke
from rollenv.report.plain import plain
from rollenv.serve.protocols.page.requests import PageRequest
from rollenv.serve.responses import json_of
from rollenv.serve.sessions import SessionManager, served
from rollenv.typed import Reader

#: Seconds that the rows hold: what environments need can come to be there. Cards that are kept, seconds for an example.
_FRESH, _KEPT, _SECONDS = 60.0, 256, 60.0


class Catalogue:
    """Rows and cards.

    Args:
        core: whose workers play the examples.
    """

    def __init__(self, sessions: SessionManager):
        self._sessions = sessions
        self._rows: dict[str, Any] = {}
        self._made = 0.0
        self._cards: OrderedDict[tuple[str, str], asyncio.Task[dict[str, Any]]] = OrderedDict()

    async def rows(self, asked: PageRequest) -> Any:
        """All environments; texts that several share are told once."""
        if not self._rows or time.monotonic() - self._made > _FRESH:
            self._rows = await asyncio.to_thread(_rows)
            self._made = time.monotonic()
        return self._rows

    async def card(self, asked: PageRequest) -> Any:
        """All about one environment: ``env``, and ``kwargs`` on top of its own."""
        env_spec, kwargs = served(asked.text("env")), asked.mapping("kwargs")
        told = _facts(env_spec)
        if env_spec.missing:
            return told | {"about": cards.summary(env_spec), "problem": "what it needs is not on this server"}
        try:
            return told | await self.example(asked.client.name, env_spec.id, kwargs)
        except (EnvBroke, UsageError) as error:
            if kwargs and isinstance(error, UsageError):
                raise  # it is the arguments that are wrong, and not the environment
            return told | {"about": cards.summary(env_spec), "problem": str(error)}

    async def reader(self, owner: str, env_id: str, kwargs: dict[str, Any]) -> Reader:
        """Return how what a person types becomes an action."""
        try:
            told = await self.example(owner, env_id, kwargs)
        except RollenvError:  # it can be played nevertheless
            return Reader()
        return Reader(told["template"], told["moves"])

    async def example(self, owner: str, env_id: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return a worker's example of an environment. Concurrent requests for it wait for the same answer.

        Raises:
            EnvBroke: the environment failed.
            ServerFull: there is no room now.
            UsageError: wrong arguments.
        """
        key = (env_id, json_of(kwargs))
        task = self._cards.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = asyncio.get_running_loop().create_task(self._played(owner, env_id, kwargs))
            self._cards[key] = task
        self._cards.move_to_end(key)
        while len(self._cards) > _KEPT:
            self._cards.popitem(last=False)
        return await asyncio.shield(task)

    async def _played(self, owner: str, env_id: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        async with self._sessions.brief(owner, env_id, {"kwargs": kwargs}) as session:
            try:
                async with asyncio.timeout(_SECONDS):
                    told: dict[str, Any] = plain(await session.card())
                    return told
            except TimeoutError:
                raise EnvBroke(f"{env_id}: the example took longer than {_SECONDS:g} s", kind="hung") from None


def _rows() -> dict[str, Any]:
    specs = list_envs()
    texts = {text: number for number, text in enumerate(dict.fromkeys(map(cards.summary, specs)))}
    namespaces = dict.fromkeys(env_spec.namespace for env_spec in specs)
    rows = [[s.id, texts[cards.summary(s)], "".join(_marks(s))] for s in specs]
    groups = {name: cards.family(name) for name in namespaces}
    return {"envs": rows, "texts": [f"{text:.300}" for text in texts], "groups": groups}


def _marks(env_spec: EnvSpec) -> list[str]:
    """A letter for each property by which the page filters."""
    has = {
        "m": env_spec.missing,
        "o": "oracle" in env_spec.abilities,
        "r": "random_action" in env_spec.abilities,
        "l": env_spec.levels,
        "i": env_spec.indexed,
    }
    return [letter for letter, value in has.items() if value]


def _facts(env_spec: EnvSpec) -> dict[str, Any]:
    """Return what is registered."""
    return {
        "env": env_spec.id,
        "abilities": sorted(env_spec.abilities),
        "needs": [[str(need), getattr(need, "hint", ""), need not in env_spec.missing] for need in env_spec.needs],
        "levels": plain(list(env_spec.levels)),
        "indexed": env_spec.indexed,
        "nondeterministic": env_spec.nondeterministic,
    }
