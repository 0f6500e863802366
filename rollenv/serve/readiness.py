"""Readiness checks: one environment of every family plays a turn, and a sandbox runs a program."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from rollenv.core import RollenvError
from rollenv.registry import list_envs
from rollenv.remote.protocol import ServerFull
from rollenv.serve.sandboxes import SandboxManager
from rollenv.serve.sessions import SessionManager

logger = logging.getLogger(__name__)

#: Seconds for which a round's findings hold, and for one check.
_FRESH, _SECONDS = 30.0, 20.0

#: The owner of what is checked.
OWNER = "(canary)"

_PROGRAM, _PRINTED = "print(6 * 7)", "42\n"


@dataclass(frozen=True)
class Check:
    """The result of a check."""

    ok: bool
    detail: str
    seconds: float
    at: float
    """When it ended, in seconds since 1970."""


def families() -> dict[str, str]:
    """By namespace, the first environment that needs nothing that is missing here.

    Namespaces of tests and of examples that come with a plug-in are included: they are served as well.
    """
    found: dict[str, str] = {}
    for env_spec in list_envs():
        if env_spec.namespace not in found and not env_spec.missing and not env_spec.nondeterministic:
            found[env_spec.namespace] = env_spec.id
    return found


class ReadinessChecks:
    """Checks them all when somebody asks, at most every half minute.

    Args:
        sessions: the sessions that are checked.
    """

    def __init__(self, sessions: SessionManager, sandboxes: SandboxManager):
        self._sessions, self._sandboxes = sessions, sandboxes
        self._envs = families()
        self.checks: dict[str, Check] = {}
        self._began = 0.0
        self._task: asyncio.Task[None] | None = None

    async def problems(self) -> dict[str, str]:
        """Return the checks that fail, and why. The first caller waits for the checks; later ones get the last
        results.
        """
        if self._sessions.draining:
            return {"server": "it is about to stop"}
        if self._task is None or (self._task.done() and time.monotonic() - self._began > _FRESH):
            self._began, self._task = time.monotonic(), asyncio.get_running_loop().create_task(self._round())
        if len(self.checks) < len(self._calls()):
            await asyncio.shield(self._task)
        return {name: check.detail for name, check in self.checks.items() if not check.ok}

    async def stop(self) -> None:
        """Give up what runs."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    # -- inside --------------------------------------------------------------------------------------------------------

    def _calls(self) -> dict[str, Callable[[], Awaitable[str]]]:
        calls: dict[str, Callable[[], Awaitable[str]]] = {
            name: functools.partial(self._plays, env_id) for name, env_id in self._envs.items()
        }
        return calls | ({"sandbox": self._runs} if self._sandboxes.limits.sandboxes else {})

    async def _round(self) -> None:
        for name, call in self._calls().items():
            self.checks[name] = found = await self._checked(call)
            if not found.ok:
                logger.warning("the check of %s failed: %s", name, found.detail)

    async def _checked(self, call: Callable[[], Awaitable[str]]) -> Check:
        began = time.monotonic()
        try:
            async with asyncio.timeout(_SECONDS):
                ok, detail = True, await call()
        except ServerFull as error:
            ok, detail = True, f"not checked: {error}"  # who is busy works
        except TimeoutError:
            ok, detail = False, f"it took longer than {_SECONDS:g} s"
        except (RollenvError, OSError) as error:
            ok, detail = False, str(error)
        return Check(ok, detail, time.monotonic() - began, time.time())

    async def _plays(self, env_id: str) -> str:
        async with self._sessions.brief(OWNER, env_id) as session:
            answer: list[Any] = await session.call("reset", [0])
            if not answer[0]:
                raise RollenvError(f"{env_id} shows nothing after a reset")
            await session.call("step", [""])
        return f"{env_id} was reset and played a turn"

    async def _runs(self) -> str:
        done = await self._sandboxes.run(OWNER, _PROGRAM)
        if done.stdout != _PRINTED:
            raise RollenvError(f"a program that prints {_PRINTED!r} printed {done.stdout!r:.80} {done.stderr!r:.200}")
        return "a program ran"
