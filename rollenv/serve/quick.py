"""Steps without a task of their own: most of them wait for nothing but their worker's answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rollenv.core import RollenvError
from rollenv.remote.protocol import FAILED, Cancelled, ServerError
from rollenv.rollout.workers.base import EnvFailure, EnvResult
from rollenv.rollout.workers.pool import PooledEnv
from rollenv.serve.gate import PATIENCE

if TYPE_CHECKING:
    from rollenv.serve.session import Session

logger = logging.getLogger(__name__)

#: Called with the answer of a step, or with the error.
Told = Callable[[list[Any] | RollenvError], None]


class QuickStep:
    """A step that has been sent to its worker. Whatever goes wrong is left to the session, in a task.

    Args:
        session: that nothing else is done with meanwhile; it has entered the gate.
    """

    __slots__ = (
        "_action", "_began", "_env", "_inside", "_limit", "_session", "_task", "_told", "answer", "count", "over",
    )  # fmt: skip

    def __init__(self, session: Session, env: PooledEnv, count: int, action: str, told: Told):
        self._session, self._env, self.count, self._action, self._told = session, env, count, action, told
        self._inside = True
        self.answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        """For who asks again, or waits for the step to be over."""
        self.over, self._began = False, time.monotonic()
        self._task: asyncio.Task[None] | None = None
        seconds = session.seconds("step")
        self._limit = session.limit(min(seconds, PATIENCE), self._late if seconds < PATIENCE else self._slow)
        self._limit.start()

    def send(self) -> None:
        """Send it. The answer may come at once."""
        self._env.step_soon(self._action, self._answered)

    def cancel(self, problem: RollenvError) -> None:
        """Give it up, and the environment with it: what it did is unknown."""
        if self._task is not None:
            self._task.cancel()
        self._session.release()
        self._end(problem)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _answered(self, answer: Any) -> None:
        if self.over or self._task is not None:  # it came too late
            return
        try:
            if isinstance(answer, EnvResult):
                self._session.timed("step", self._env, time.monotonic() - self._began)
                self._end(self._session.stepped(self._action, answer))
            elif isinstance(answer, RollenvError) and not isinstance(answer, EnvFailure):
                self._end(answer)
            else:
                wrong = EnvFailure("wrong", "a step was answered by something else")
                self._recover(answer if isinstance(answer, EnvFailure) else wrong)
        except EnvFailure as failure:  # it answered what cannot be sent
            self._recover(failure)
        except Exception:
            self._failed()

    def _slow(self) -> None:
        """Others need not wait for it any longer."""
        self._leave()
        left = self._session.seconds("step") - (time.monotonic() - self._began)
        self._limit = self._session.limit(left, self._late)
        self._limit.start()

    def _leave(self) -> None:
        if self._inside:
            self._inside = False
            self._session.leave_gate()

    def _late(self) -> None:
        if not self.over and self._task is None:
            self._recover(self._session.hung("step"))

    def _recover(self, failure: EnvFailure) -> None:
        self._limit.stop()
        self._task = asyncio.get_running_loop().create_task(self._recovered(failure))

    async def _recovered(self, failure: EnvFailure) -> None:
        """Replay the episode, if that is a remedy."""
        try:
            if failure.kind == "hung":
                failure = await self._env.overdue(failure)
            self._end(await self._session.step_again(self._action, failure))
        except RollenvError as error:
            self._end(error)
        except asyncio.CancelledError:
            self._end(Cancelled("the request was cancelled"))
            raise
        except Exception:
            self._failed()

    def _failed(self) -> None:
        logger.exception("a step of %s failed", self._session.owner)
        self._end(ServerError(FAILED))

    def _end(self, outcome: list[Any] | RollenvError) -> None:
        if self.over:
            return
        self.over = True
        self._limit.stop()
        self._leave()
        self._session.quick_over()
        if isinstance(outcome, RollenvError):
            self.answer.set_exception(outcome)
            self.answer.exception()  # it need not be asked for again
        else:
            self.answer.set_result(outcome)
        self._told(outcome)
