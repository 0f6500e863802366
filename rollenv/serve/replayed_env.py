"""A client's environment in a worker. If the worker is lost, the episode is replayed in another one."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rollenv.core.errors import RollenvError
from rollenv.remote import protocol
from rollenv.remote.protocol import EnvBroke, SessionGone
from rollenv.remote.replay_log import ReplayDiffers, ReplayLog
from rollenv.rollout import validation
from rollenv.rollout.types import Task
from rollenv.rollout.workers.base import EnvFailure, EnvResult, Views
from rollenv.rollout.workers.pool import PooledEnv
from rollenv.serve.quotas import SessionContext, TimeLimited

logger = logging.getLogger(__name__)

#: Seconds that a potentially harmful environment waits for a worker of its own.
_ALONE_SECONDS = 2.0


class ReplayedEnv:
    """An environment with its replay log, which rebuilds it in another worker.

    Args:
        alone: whether it gets a worker of its own.
    """

    __slots__ = (
        "_alone", "_asked", "_context", "_is_limited", "_losses", "about", "closed", "history", "last_step", "over",
        "owner", "pooled", "session", "task", "turns", "views",
    )  # fmt: skip

    def __init__(self, context: SessionContext, session: str, owner: str, task: Task, views: Views, alone: bool):
        self._context, self.session, self.owner, self.task, self.views = context, session, owner, task, views
        self._is_limited = context.limiter.is_limited(owner)
        self.pooled: PooledEnv | None = None
        """The environment in a worker, if there is one."""
        self._alone, self._losses = alone, 0
        self._asked: asyncio.Future[Any] | None = None
        self.closed = False
        """True once the session has ended."""
        self.about: dict[str, Any] = {}
        self.history = ReplayLog()
        self.over, self.turns = True, 0
        self.last_step: list[Any] = []
        """Answer to the last step of this episode."""

    async def build(self) -> None:
        """Build the environment, unless a call has done so."""
        if self.pooled is None:
            await self._with_replay(self._open)

    async def card(self) -> dict[str, Any]:
        """Return the environment's card for human players; the episode does not change."""
        card: dict[str, Any] = await self._with_replay(functools.partial(self._perform, "card", []))
        return card

    async def call(self, method: str, args: list[Any], failure: EnvFailure | None = None) -> Any:
        """Call a method and record the call.

        Args:
            failure: failure of the first attempt, if any; the call is then repeated in another worker.

        Raises:
            EnvBroke: a replay did not help or cannot help.
            SessionGone: the session was closed meanwhile.
        """
        answer = await self._with_replay(functools.partial(self._perform, method, args), failure)
        self._record(method, args, answer)
        return answer

    def send(self, method: str, args: list[Any], done: Callable[[Any], object]) -> None:
        """Send a call to the worker.

        Args:
            done: called once with the worker's result or an error, within the deadline.

        Raises:
            SessionGone: the environment was released during a replay.
        """
        pooled = self.pooled
        if pooled is None:
            raise SessionGone("the session was closed")
        call = CallInFlight(self, pooled, method, done)
        self._context.queue.time_limits.start(call, self._seconds_of(method))
        if method in ("step", "about", "card"):
            pooled.send(method, args, call.answered)
        elif method == "reset":
            pooled.send("restart", args, call.answered)
        else:
            pooled.send("call", [method, *args], call.answered)

    def finish_step(self, action: str, result: EnvResult) -> list[Any]:
        """Record a step of :meth:`send` and return its answer."""
        answer: list[Any] = self._answer_of("step", result)
        self._record("step", [action], answer)
        return answer

    def release(self, *, hung: bool = False) -> None:
        """Close the environment in the worker; the next call starts with a replay."""
        pooled, self.pooled = self.pooled, None
        if pooled is not None and hung:
            pooled.abandon()
        elif pooled is not None:  # the time of a failed call counts, too
            pooled.close(functools.partial(self._context.limiter.spend, self.owner))
        if self.closed and self._asked is not None and not self._asked.done():
            self._asked.set_exception(SessionGone("the session was closed"))

    # -- used by calls in flight ---------------------------------------------------------------------------------------

    def hung(self, method: str) -> EnvFailure:
        """Build the failure of a call whose deadline passed."""
        seconds, what = self._seconds_of(method), "opening" if method == "about" else method
        return EnvFailure("hung", f"{self.task.env_id}: {what} did not return within {seconds:g} s")

    def record_time(self, method: str, pooled: PooledEnv, seconds: float) -> None:
        """Record the time of a successful call."""
        context = self._context
        if self._is_limited:
            context.limiter.spend(self.owner, pooled.computed())
        context.health.env(self.task.env_id).ok(method, seconds)
        context.health.worker(pooled.worker).ok(method, seconds)
        context.on_call_time(method, seconds)

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _with_replay(self, call: Callable[[], Awaitable[Any]], failure: EnvFailure | None = None) -> Any:
        """Make a call; if the worker is lost, replay the episode in another one and repeat the call."""
        context = self._context
        for left in range(context.limits.replays, -1, -1):
            try:
                if failure is not None:
                    raise await self._diagnosed(failure)
                return await call()
            except EnvFailure as problem:
                failure = None
                if self.closed:
                    raise SessionGone("the session was closed") from problem
                worker = self.pooled.worker if self.pooled is not None else ""
                context.health.failed(self.task.env_id, worker, problem.kind, str(problem))
                self.release(hung=problem.kind == "hung")
                if problem.kind == "hung":
                    context.limiter.spend(self.owner, context.limits.step)
                self._losses += problem.kind == "lost"
                self._alone = self._alone or problem.blamed or self._losses > 1
                if problem.blamed or problem.kind == "hung":
                    context.records[self.owner, self.task.env_id].harm += 1
                if problem.kind != "lost" or not left:
                    raise EnvBroke(str(problem), kind=problem.kind) from problem
                context.counters.replays += 1
                logger.info("session %.6s is replayed: %s", self.session, problem)
            except ReplayDiffers as error:
                self.release()
                raise EnvBroke(str(error), kind="differs") from error
            except asyncio.CancelledError:
                self.release()  # the state of the environment is unknown
                raise
        raise AssertionError

    async def _perform(self, method: str, args: list[Any]) -> Any:
        if self.pooled is None:
            await self._open()
            if not (method == "set_state" or (method == "reset" and args[0] is not None)):  # these need no history
                for number, (recorded, its_args, _) in enumerate(self.history.calls):
                    answer = await self._ask(recorded, list(its_args))
                    self.history.check(number, protocol.fingerprint(recorded, answer), self.task.env_id)
        return await self._ask(method, args)

    async def _open(self) -> None:
        seconds = self._context.limits.reset
        try:
            async with asyncio.timeout(seconds):
                pooled = await self._open_in_worker()
        except TimeoutError:
            text = f"{self.task.env_id}: no worker had room for it within {seconds:g} s"
            raise EnvBroke(text, kind="lost") from None
        if self.closed:
            pooled.close()
            raise SessionGone("the session was closed")
        self.pooled = pooled
        self.about = await self._ask("about", [])

    async def _open_in_worker(self) -> PooledEnv:
        """Open the environment in a worker; if it should be alone, in one of its own that starts in time."""
        open_in = functools.partial(self._context.workers.open, self.task, views=self.views)
        if self._alone:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ALONE_SECONDS):
                    return await open_in(alone=True)
        return await open_in()

    async def _ask(self, method: str, args: list[Any]) -> Any:
        """Send a call and await its answer."""
        result = self._asked = asyncio.get_running_loop().create_future()

        def done(answer: Any) -> None:
            if not result.done():
                result.set_result(answer)

        self.send(method, args, done)
        answer = await result
        if isinstance(answer, RollenvError):
            raise await self._diagnosed(answer)
        return self._answer_of(method, answer)

    def _seconds_of(self, method: str) -> float:
        limits = self._context.limits
        return limits.reset if method in ("reset", "about", "card") else limits.step

    async def _diagnosed(self, error: RollenvError) -> RollenvError:
        """Return an error; if a deadline passed, return the failure that caused it."""
        if isinstance(error, EnvFailure) and error.kind == "hung" and self.pooled is not None:
            return await self.pooled.diagnose_hang(error)
        return error

    def _answer_of(self, method: str, result: Any) -> Any:
        """Convert a worker's result to the client's answer."""
        if method == "step":
            info = self._bounded(method, result.info)
            ended = result.terminated, result.truncated
            return [result.observation, result.reward, *ended, info, result.state_key, result.view]
        if method == "reset":
            return [result.observation, self._bounded(method, result.info), result.state_key, result.view]
        return result if method in ("about", "card") else self._bounded(method, result)

    def _bounded(self, method: str, value: Any) -> Any:
        """Return a value of the environment, unless it is too large to send."""
        try:
            validation.bounded(value, f"what {method} returned")
        except validation.BadValue as error:
            raise EnvFailure("wrong", f"{self.task.env_id}: {error}") from error
        return value

    def _record(self, method: str, args: list[Any], answer: Any) -> None:
        """Record the effects of a successful call."""
        self._context.counters.calls += 1
        if protocol.METHODS[method]:
            self.history.add(method, args, protocol.fingerprint(method, answer))
        if method == "step":
            self.over, self.last_step = answer[2] or answer[3], answer
            self.turns += 1
            if self.over:
                self._context.health.env(self.task.env_id).ended("completed")
        elif method == "reset":
            self.over, self.turns, self.last_step = False, 0, []
        elif method == "set_state":
            self.over = bool(args[0].get("over", False))
        self._context.on_call(self, method, args, answer)


class CallInFlight(TimeLimited):
    """A call in flight, timed and limited without a task of its own.

    Args:
        done: called once with the answer or the error, which is the failure "hung" when the limit expires.
    """

    __slots__ = ("_began", "_done", "_env", "_method", "_pooled")

    def __init__(self, env: ReplayedEnv, pooled: PooledEnv, method: str, done: Callable[[Any], object]):
        self._env, self._pooled, self._method, self._done = env, pooled, method, done
        self._began = time.monotonic()

    def answered(self, answer: Any) -> None:
        """Pass the worker's answer on, unless it is too late."""
        if self.stop():
            if not isinstance(answer, RollenvError):
                self._env.record_time(self._method, self._pooled, time.monotonic() - self._began)
            self._done(answer)

    def expire(self) -> None:
        self._done(self._env.hung(self._method))
