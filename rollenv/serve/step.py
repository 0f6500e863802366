"""Steps without a task of their own: most of them wait for nothing but their worker's answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from rollenv.core import RollenvError
from rollenv.remote.protocol import FAILED, Cancelled, ServerError
from rollenv.rollout.workers.base import EnvFailure, EnvResult
from rollenv.rollout.workers.pool import PooledEnv
from rollenv.serve.quotas import PATIENCE, SessionContext

logger = logging.getLogger(__name__)

#: Called with the answer of a step, or with the error.
Callback = Callable[[list[Any] | RollenvError], None]


class StepOwner(Protocol):
    """The session of a step."""

    owner: str

    def hung(self, method: str) -> EnvFailure: ...
    def release(self) -> None: ...
    def record_time(self, method: str, env: PooledEnv, seconds: float) -> None: ...
    def finish_step(self, action: str, result: EnvResult) -> list[Any]: ...
    async def repeat_step(self, action: str, failure: EnvFailure) -> list[Any]: ...
    def end_step(self) -> None: ...


class PendingStep:
    """A step that was sent to its worker. The session handles every failure, in a task.

    Args:
        session: has entered the fair queue, and starts no other call meanwhile.
        callback: called once with the outcome.
    """

    __slots__ = (
        "_action", "_began", "_callback", "_context", "_env", "_in_queue", "_limit", "_session", "_task", "answer",
        "count", "over",
    )  # fmt: skip

    def __init__(
        self,
        session: StepOwner,
        context: SessionContext,
        env: PooledEnv,
        count: int,
        action: str,
        callback: Callback,
    ):
        self._session, self._context, self._env, self._action = session, context, env, action
        self.count, self._callback = count, callback
        self._in_queue, self.over = True, False
        self.answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        """For a request that is sent again, and for calls that wait for the end of the step."""
        self._began = time.monotonic()
        self._task: asyncio.Task[None] | None = None
        seconds = context.limits.step
        on_expiry = self._on_limit if seconds < PATIENCE else self._on_patience
        self._limit = context.queue.time_limits.start(min(seconds, PATIENCE), on_expiry)

    def send(self) -> None:
        """Send it. The answer may come at once."""
        self._env.step_soon(self._action, self._on_answer)

    def cancel(self, problem: RollenvError) -> None:
        """Give it up, and the environment with it, whose state is unknown."""
        if self._task is not None:
            self._task.cancel()
        self._session.release()
        self._end(problem)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _on_answer(self, answer: Any) -> None:
        if self.over or self._task is not None:  # it came too late
            return
        try:
            if isinstance(answer, EnvResult):
                self._session.record_time("step", self._env, time.monotonic() - self._began)
                self._end(self._session.finish_step(self._action, answer))
            elif isinstance(answer, RollenvError) and not isinstance(answer, EnvFailure):
                self._end(answer)
            else:
                wrong = EnvFailure("wrong", "a step was answered by something else")
                self._recover(answer if isinstance(answer, EnvFailure) else wrong)
        except EnvFailure as failure:  # it answered what cannot be sent
            self._recover(failure)
        except Exception:
            self._fail()

    def _on_patience(self) -> None:
        """Let others have its turn, and go on waiting."""
        self._leave_queue()
        seconds = self._context.limits.step - (time.monotonic() - self._began)
        self._limit = self._context.queue.time_limits.start(seconds, self._on_limit)

    def _on_limit(self) -> None:
        if not self.over and self._task is None:
            self._recover(self._session.hung("step"))

    def _leave_queue(self) -> None:
        if self._in_queue:
            self._in_queue = False
            self._context.queue.leave()

    def _recover(self, failure: EnvFailure) -> None:
        self._limit.stop()
        self._task = asyncio.get_running_loop().create_task(self._repeat(failure))

    async def _repeat(self, failure: EnvFailure) -> None:
        """Replay the episode, if the failure was a lost worker."""
        try:
            if failure.kind == "hung":
                failure = await self._env.overdue(failure)
            self._end(await self._session.repeat_step(self._action, failure))
        except RollenvError as error:
            self._end(error)
        except asyncio.CancelledError:
            self._end(Cancelled("the request was cancelled"))
            raise
        except Exception:
            self._fail()

    def _fail(self) -> None:
        logger.exception("a step of %s failed", self._session.owner)
        self._end(ServerError(FAILED))

    def _end(self, outcome: list[Any] | RollenvError) -> None:
        if self.over:
            return
        self.over = True
        self._limit.stop()
        self._leave_queue()
        self._session.end_step()
        if isinstance(outcome, RollenvError):
            self.answer.set_exception(outcome)
            self.answer.exception()  # it need not be asked for again
        else:
            self.answer.set_result(outcome)
        self._callback(outcome)
