"""One client's environment. Its calls run one after another, each once even if it is sent repeatedly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

from rollenv.core.errors import EpisodeOver, NoSuchAbility, RollenvError, UsageError
from rollenv.remote import protocol
from rollenv.remote.protocol import FAILED, Cancelled, ServerError, SessionGone
from rollenv.remote.replay_log import new_seed
from rollenv.rollout.types import Task
from rollenv.rollout.workers.base import EnvFailure, Views
from rollenv.serve.logs import opened_by
from rollenv.serve.quotas import QueueSlot, SessionContext
from rollenv.serve.replayed_env import ReplayedEnv

logger = logging.getLogger(__name__)

#: Maximum waiting calls of one session.
_QUEUE = 64

#: Callback for the answer of a step or the error.
Callback = Callable[[list[Any] | RollenvError], object]


class EnvSession:
    """One client's environment. Its calls run one after another."""

    __slots__ = (
        "__weakref__", "_building", "_callers", "_context", "_last", "_lock", "_openers", "_step", "busy", "count",
        "disconnected_at", "env", "last_call_at", "name", "opened_at", "owner", "pictures_sent", "protocol",
    )  # fmt: skip
    env_class: type[ReplayedEnv] = ReplayedEnv

    def __init__(self, context: SessionContext, name: str, owner: str, task: Task, views: Views, alone: bool = False):
        self._context, self.name, self.owner = context, name, owner
        self.env = self.env_class(context, name, owner, task, views, alone)
        self._lock = asyncio.Lock()
        self._last: asyncio.Future[Any] | None = None
        """The outcome of the last call, for a repeated request."""
        self._callers: dict[int, asyncio.Task[Any]] = {}
        self._step: StepInFlight | None = None
        self._building: asyncio.Future[None] | None = None
        self._openers = 0
        self.busy, self.count = 0, 0
        """The number of calls that run or wait; the count of the last call."""
        self.opened_at = self.last_call_at = time.monotonic()
        self.disconnected_at = 0.0
        """End of the last connection that used it; 0 if there is one or never was one."""
        self.pictures_sent: set[str] | None = None
        """Hashes of the episode's pictures that the client has; None if it gets the data of each."""
        self.protocol = opened_by.get()
        """The protocol of the request that opened it."""

    # -- start and end -------------------------------------------------------------------------------------------------

    async def built(self) -> None:
        """Build the environment, which checks its arguments, or wait until it is built.

        Raises:
            EnvBroke: the environment failed.
            SessionGone: the session was closed meanwhile.
        """
        if self._building is None:
            self._building = asyncio.get_running_loop().create_task(self._build())
        self._openers += 1
        try:
            await asyncio.shield(self._building)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self.env.closed and (caller is None or not caller.cancelling()):
                raise SessionGone("the session was closed") from None
            raise
        finally:
            self._openers -= 1

    async def _build(self) -> None:
        async with self._turn():
            await self.env.build()
        self._context.counters.opened += 1

    @property
    def failed_to_build(self) -> bool:
        """True if the environment was not built and no caller waits for it."""
        return not self._openers and not (self._building is not None and _succeeded(self._building))

    def end(self) -> None:
        """Cancel running calls and close the environment for good."""
        self.env.closed = True
        self.cancel()
        if self._building is not None:
            self._building.cancel()
        self.env.release()

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def call(self, method: str, args: list[Any]) -> Any:
        """Call a method of the environment.

        Args:
            args: arguments of the method; ``[seed, options]`` of a reset.

        Returns:
            ``[observation, info, state key, view]`` of a reset, ``[observation, reward, terminated, truncated, info,
            state key, view]`` of a step, else the method's result.

        Raises:
            EnvBroke: the environment failed.
            EpisodeOver: a step before the first reset or after the end.
            SessionGone: the session was closed meanwhile.
        """
        args = _checked(method, args)
        env = self.env
        async with self._turn():
            if env.closed:
                raise SessionGone("the session was closed")
            if method == "step" and env.over:
                raise EpisodeOver(f"{env.task.env_id}: the episode is over; reset it to start the next one")
            if method == "reset" and args[0] is None and env.history.needs_seed:
                args = [new_seed(), args[1]]
            return await env.call(method, args)

    async def card(self) -> dict[str, Any]:
        """Return the environment's card for human players; the episode does not change."""
        async with self._turn():
            return await self.env.card()

    async def numbered(self, count: int, method: str, args: list[Any]) -> Any:
        """Carry out a call once, even if it is sent repeatedly. Cancelling its first caller cancels the call.

        Args:
            count: number of the call in the session, from 1.

        Raises:
            SessionGone: the session was closed meanwhile.
            UsageError: the count is neither the last call's nor the next, or too many calls wait.
        """
        if count == self.count + 1:
            if self.busy >= _QUEUE:
                raise UsageError(f"{self.busy} calls of this session wait already")
            self.count = count
            self._callers[count] = cast("asyncio.Task[Any]", asyncio.current_task())
            last = self._last = asyncio.get_running_loop().create_future()
            try:
                answer = await self.call(method, args)
            except BaseException as error:
                gone = isinstance(error, asyncio.CancelledError)
                _fail(last, Cancelled("the request was cancelled") if gone else error)
                if gone and self.env.closed:
                    raise SessionGone("the session was closed") from None
                raise
            finally:
                del self._callers[count]
            last.set_result(answer)
            return answer
        if count != self.count or self._last is None:
            raise UsageError(f"call {count} is out of order; the last one was {self.count}")
        return await asyncio.shield(self._last)

    # A step that need not wait takes a short way, without a task, which gives 1.1 to 1.8 times the steps per second
    # (benchmarks/served_step.py measures one beside the other):
    # start_step -> ReplayedEnv.send -> (the worker) -> CallInFlight.answered -> StepInFlight.answered ->
    # ReplayedEnv.finish_step -> the callback. If the worker is lost on the way, StepInFlight repeats it by the long
    # way, ReplayedEnv.call, as every other call goes. Both ways end in ReplayedEnv._record.

    def start_step(self, count: int, action: str, callback: Callback) -> bool:
        """Send a step without a task, unless it would have to wait.

        Args:
            callback: called with the answer or the error, perhaps before this returns.

        Returns:
            False if it was not sent; use :meth:`numbered` or :meth:`call` then.
        """
        env = self.env
        if env.pooled is None or self.busy or env.over or count != self.count + 1:
            return False
        slot = self._context.queue.turn(self.owner)
        if not slot.begin():
            return False
        step = StepInFlight(self, slot, count, action, callback)
        self.count, self.busy = count, 1
        self._step, self._last = step, step.answer
        env.send("step", [action], step.answered)
        return True

    async def step_over(self) -> None:
        """Wait for the end of a step of :meth:`start_step`."""
        while self._step is not None:
            await asyncio.wait((self._step.answer,))

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Hold the turn of a call; meanwhile the session is not idle."""
        self.busy += 1
        try:
            async with self._lock, self._context.queue.turn(self.owner):
                await self.step_over()
                yield
        finally:
            self.busy -= 1
            self.last_call_at = time.monotonic()

    def cancel(self, count: int | None = None) -> None:
        """Cancel the running call with a count, or all running calls."""
        step = self._step
        if step is not None and count in (None, step.count):
            closed = SessionGone("the session was closed")
            step.cancel(closed if self.env.closed else Cancelled("the request was cancelled"))
        for number, task in list(self._callers.items()):
            if task is not asyncio.current_task() and count in (None, number):
                task.cancel()


class StepInFlight:
    """A step without a task, whose answer is passed to a callback. Only failures are handled in a task.

    Args:
        session: starts no other call meanwhile.
        slot: held until the step ends or counts as long.
        callback: called once with the outcome.
    """

    __slots__ = ("_action", "_callback", "_session", "_slot", "_task", "answer", "count")

    def __init__(self, session: EnvSession, slot: QueueSlot, count: int, action: str, callback: Callback):
        self._session, self._slot, self.count, self._action, self._callback = session, slot, count, action, callback
        self._task: asyncio.Task[None] | None = None
        self.answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        """The outcome, for a repeated request and for calls that wait for the end of the step."""

    def answered(self, answer: Any) -> None:
        """End the step with the worker's answer, or repeat it."""
        if self.answer.done():  # the step was cancelled
            return
        try:
            if isinstance(answer, EnvFailure):
                raise answer
            env = self._session.env
            self._end(answer if isinstance(answer, RollenvError) else env.finish_step(self._action, answer))
        except EnvFailure as failure:  # also for an answer that is too large
            self._task = asyncio.get_running_loop().create_task(self._repeat(failure))
        except Exception:
            self._fail()

    def cancel(self, problem: RollenvError) -> None:
        """Cancel the step and release the environment, whose state is unknown."""
        if self._task is not None:
            self._task.cancel()
        self._session.env.release()
        self._end(problem)

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _repeat(self, failure: EnvFailure) -> None:
        """Replay the episode if the worker was lost, and repeat the step."""
        try:
            self._end(await self._session.env.call("step", [self._action], failure))
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
        self._slot.leave()
        session = self._session
        session._step = None  # other calls can start now
        session.busy -= 1
        session.last_call_at = time.monotonic()
        if isinstance(outcome, RollenvError):
            _fail(self.answer, outcome)
        else:
            self.answer.set_result(outcome)
        self._callback(outcome)


def _succeeded(future: asyncio.Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    future.set_exception(error)
    future.exception()  # avoid asyncio's warning if the exception is never retrieved


#: Types of the arguments of methods other than reset.
_TAKES: dict[str, tuple[type, ...]] = {
    "step": (str,),
    "set_state": (dict,),
    "seed_stream": (int,),
    "seed_actions": (int,),
}


def _checked(method: str, args: list[Any]) -> list[Any]:
    if method not in protocol.METHODS:
        raise NoSuchAbility(f"environments have no method {method!r:.40} that clients can call")
    if method == "reset":
        seed, options = [*args, *[None, {}][len(args) :]] if len(args) <= 2 else (False, {})
        if isinstance(seed, bool) or not isinstance(seed, int | None) or not isinstance(options, dict | None):
            raise UsageError("reset takes a seed (a whole number from 0, or none) and options (a mapping)")
        if seed is not None and seed < 0:
            raise UsageError(f"a seed must be a non-negative integer, not {seed}")
        return [seed, options or {}]
    takes = _TAKES.get(method, ())
    if len(args) != len(takes) or not all(map(isinstance, args, takes)):
        names = ", ".join(kind.__name__ for kind in takes) or "no argument"
        raise UsageError(f"{method} takes {names}")
    return args
