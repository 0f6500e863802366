"""Environments that play in the server's own process: those that their owner names, as long as they are fast."""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from rollenv.core import RollenvError
from rollenv.registry import spec
from rollenv.rollout.types import Task
from rollenv.rollout.workers.base import Avoid, HostedEnv, Views, avoid_none
from rollenv.rollout.workers.pool import Answered, PooledEnv, Worker
from rollenv.rollout.workers.processes import ProcessWorkers

logger = logging.getLogger(__name__)

#: Seconds of a step, of computing and by the clock, after which an id plays in workers from then on: nothing else is
#: served meanwhile.
SLOW, LATE = 0.1, 1.0


class ServedWorkers(ProcessWorkers):
    """Worker processes, and the server's own process for some ids.

    A call into an environment of this process cannot be interrupted, and holds up all others.

    Args:
        inline: patterns of ids, such as ``game:*``.
    """

    def __init__(self, processes: int | None, *, envs_per_process: int, inline: Sequence[str] = ()):
        super().__init__(processes, envs_per_process=envs_per_process)
        self.inline = tuple(inline)
        self.slow: set[str] = set()
        self.inline_envs = 0

    async def open(
        self, task: Task, *, views: Views = False, avoid: Avoid = avoid_none, alone: bool = False
    ) -> PooledEnv:
        """As :meth:`.pool.WorkerPool.open`."""
        named = any(fnmatch.fnmatchcase(task.env_id, pattern) for pattern in self.inline)
        if not named or alone or task.env_id in self.slow:
            return await super().open(task, views=views, avoid=avoid, alone=alone)
        self._attach()
        return InlineEnv(self, task, views)

    def report(self) -> list[dict[str, Any]]:
        """The state of every worker, and of this process where it plays."""
        here = [{"worker": "server", "state": "up", "envs": self.inline_envs}] if self.inline else []
        return [*here, *super().report()]


class InlineEnv(PooledEnv):
    """An environment in this process."""

    def __init__(self, pool: ServedWorkers, task: Task, views: Views):
        super().__init__(cast(Worker, _Here(pool)), 0, (spec(task.env_id), task, views))
        pool.inline_envs += 1

    def close(self, spent: Callable[[float], None] = lambda seconds: None) -> None:
        """Close it now."""
        if self._is_open:
            self._is_open = False
            here = cast(_Here, self._worker)
            here.pool.inline_envs -= 1
            with contextlib.suppress(RollenvError):
                here.carry_out("close", ())
            spent(here.computed(0))

    def abandon(self) -> None:
        """As :meth:`close`: what hung has come to its end."""
        self.close()


class _Here:
    """This process in the place of a worker."""

    name, death = "server", ""

    def __init__(self, pool: ServedWorkers):
        self.pool = pool
        self._env: HostedEnv | None = None
        self._seconds = 0.0

    def request(self, operation: str, number: int, args: tuple[Any, ...], done: Answered) -> None:
        """Carry out an operation, and hand on its answer or its error."""
        try:
            answer = self.carry_out(operation, args)
        except RollenvError as error:
            answer = error
        done(answer)

    ask = Worker.ask  # it needs nothing but request()

    def carry_out(self, operation: str, args: tuple[Any, ...]) -> Any:
        """Do as :meth:`~rollenv.rollout.workers.host.EnvHost.answer` does."""
        began, clock = time.thread_time(), time.monotonic()
        try:
            if operation in ("reset", "about"):
                self._env = self._env or HostedEnv(*args)
                args = ()
            if self._env is None:
                return None
            return getattr(self._env, operation)(*args)
        finally:
            seconds = time.thread_time() - began
            self._seconds += seconds
            late = time.monotonic() - clock > LATE
            if operation == "step" and (seconds > SLOW or late) and self._env is not None:
                env_id = self._env.task.env_id
                self.pool.slow.add(env_id)
                logger.warning(
                    "a step of %s took %.2f s in the server: it plays in workers from now on", env_id, seconds
                )

    def computed(self, number: int) -> float:
        """Return the seconds of processor time since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    async def answers(self) -> bool:
        """Return that it does: it has come to the end of a call."""
        return True
