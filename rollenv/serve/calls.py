"""Calls that are on their way into an environment and back: timed, within a limit, without a task of their own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rollenv.core import RollenvError
from rollenv.remote.protocol import FAILED, Cancelled, ServerError
from rollenv.rollout.workers.base import EnvFailure
from rollenv.rollout.workers.pool import PooledEnv
from rollenv.serve.quotas import FairQueue, TimeLimit, Turn

if TYPE_CHECKING:
    from rollenv.serve.session import Session

logger = logging.getLogger(__name__)

#: Called with the answer of a step, or with the error.
Callback = Callable[[list[Any] | RollenvError], object]


class Call(TimeLimit):
    """A call that was sent to its worker.

    Args:
        done: called once: with the answer, the error, or the failure "hung" when the limit expires.
    """

    __slots__ = ("_began", "_done", "_env", "_method", "_session")

    def __init__(self, session: Session, env: PooledEnv, method: str, done: Callable[[Any], object]):
        self._session, self._env, self._method, self._done = session, env, method, done
        self._began = time.monotonic()

    def answered(self, answer: Any) -> None:
        """Hand on what the worker answered, unless it comes too late."""
        if self.stop():
            if not isinstance(answer, RollenvError):
                self._session.record_time(self._method, self._env, time.monotonic() - self._began)
            self._done(answer)

    def expire(self) -> None:
        self._done(self._session.hung(self._method))


class Step(Turn):
    """A step in its turn, whose answer is handed to a callback. Every failure is handled in a task.

    Args:
        session: starts no other call meanwhile.
        callback: called once with the outcome.
    """

    __slots__ = ("_action", "_callback", "_session", "_task", "answer", "count")

    def __init__(self, queue: FairQueue, session: Session, count: int, action: str, callback: Callback):
        super().__init__(queue, session.owner)
        self._session, self.count, self._action, self._callback = session, count, action, callback
        self._task: asyncio.Task[None] | None = None
        self.answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        """For a request that is sent again, and for calls that wait for the end of the step."""

    def answered(self, answer: Any) -> None:
        """End it with what came back, or repeat it."""
        if self.answer.done():  # it was cancelled
            return
        try:
            if isinstance(answer, EnvFailure):
                raise answer
            self._end(answer if isinstance(answer, RollenvError) else self._session.finish_step(self._action, answer))
        except EnvFailure as failure:  # also of an answer that cannot be sent
            self._task = asyncio.get_running_loop().create_task(self._repeat(failure))
        except Exception:
            self._fail()

    def cancel(self, problem: RollenvError) -> None:
        """Give it up, and the environment with it, whose state is unknown."""
        if self._task is not None:
            self._task.cancel()
        self._session.release()
        self._end(problem)

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _repeat(self, failure: EnvFailure) -> None:
        """Replay the episode, if the failure was a lost worker."""
        try:
            self._end(await self._session.carry_out("step", [self._action], failure))
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
        if self.answer.done():
            return
        self.leave()
        self._session.end_step()
        if isinstance(outcome, RollenvError):
            self.answer.set_exception(outcome)
            self.answer.exception()  # it need not be asked for again
        else:
            self.answer.set_result(outcome)
        self._callback(outcome)
