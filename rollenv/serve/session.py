"""One client's environment: its calls in their order, replays, and what goes with it to another server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, cast

from rollenv.core import EpisodeOver, NoSuchAbility, RollenvError, UsageError
from rollenv.registry import spec
from rollenv.remote import protocol
from rollenv.remote.protocol import FAILED, Cancelled, EnvBroke, ServerError, SessionGone
from rollenv.remote.replay_log import ReplayDiffers, ReplayLog, new_seed
from rollenv.rollout import validation
from rollenv.rollout.types import Task
from rollenv.rollout.workers.base import EnvFailure, EnvResult, Views
from rollenv.rollout.workers.pool import PooledEnv
from rollenv.serve.calls import Call, Callback, Step
from rollenv.serve.logs import asked_at
from rollenv.serve.quotas import SessionContext

logger = logging.getLogger(__name__)

#: Seconds that a session that may harm others waits for a worker of its own.
_APART_SECONDS = 2.0

#: Bytes of a state that is handed over: a session is one request.
_LARGEST_STATE = protocol.LARGEST_REQUEST // 2

#: Calls of one session that may wait for their turn.
_QUEUE = 64


class Session:
    """One client's environment. Its calls are carried out one after another."""

    __slots__ = (
        "__weakref__", "_alone", "_building", "_callers", "_closed", "_env", "_is_limited", "_last", "_lock", "_losses",
        "_manager", "_openers", "_step", "about", "busy", "count", "history", "last_step", "lasting", "left",
        "name", "opened", "over", "owner", "task", "turns", "used", "via", "views",
    )  # fmt: skip

    def __init__(self, manager: SessionContext, name: str, owner: str, task: Task, views: Views, alone: bool = False):
        self._manager, self.name, self.owner, self.task, self.views = manager, name, owner, task, views
        self._env: PooledEnv | None = None
        self._lock = asyncio.Lock()
        self._last: asyncio.Future[Any] | None = None
        self._callers: dict[int, asyncio.Task[Any]] = {}
        self._building: asyncio.Future[None] | None = None
        self._step: Step | None = None
        self._openers, self._closed = 0, False
        self.history, self.count = ReplayLog(), 0
        self.about: dict[str, Any] = {}
        self.over, self._alone, self._losses, self.busy = True, alone, 0, 0
        self._is_limited = manager.limiter.is_limited(owner)
        self.lasting = False
        """Whether it outlasts its connection, and so can go on in another server."""
        self.opened = self.used = time.monotonic()
        self.left = 0.0
        """When the connection ended that was the last to use it; 0 while there is one, or there was none."""
        self.last_step: list[Any] = []
        self.turns, self.via = 0, asked_at.get()
        """Steps since the last reset; the path of the request that opened it."""

    async def numbered(self, count: int, method: str, args: list[Any]) -> Any:
        """Carry out a call once, however often it is sent. Cancelling whoever sent it first cancels the call.

        Args:
            count: of the session's calls, from 1.
            method: one of :data:`protocol.METHODS`.

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
                last.set_exception(Cancelled("the request was cancelled") if gone else error)
                last.exception()  # it need not be asked for again
                if gone and self._closed:
                    raise SessionGone("the session was closed") from None
                raise
            finally:
                del self._callers[count]
            last.set_result(answer)
            return answer
        if count != self.count or self._last is None:
            raise UsageError(f"call {count} is out of order; the last one was {self.count}")
        return await asyncio.shield(self._last)

    def start_step(self, count: int, action: str, callback: Callback) -> bool:
        """Send a step without a task, if it has nothing to wait for.

        Args:
            callback: called with the answer or the error, perhaps at once.

        Returns:
            False if it was not sent; then :meth:`numbered` or :meth:`call` do it.
        """
        if self._env is None or self.busy or self.over or count != self.count + 1:
            return False
        step = Step(self._manager.queue, self, count, action, callback)
        if not step.begin():
            return False
        self.count, self.busy = count, 1
        self._step, self._last = step, step.answer
        self._send("step", [action], step.answered)
        return True

    async def step_over(self) -> None:
        """Wait for the end of a step that was sent without a task."""
        while self._step is not None:
            await asyncio.wait((self._step.answer,))

    def cancel(self, count: int | None = None) -> None:
        """Give up the calls that run, if any do.

        Args:
            count: of the one to give up; by default all are.
        """
        step = self._step
        if step is not None and count in (None, step.count):
            closed = SessionGone("the session was closed")
            step.cancel(closed if self._closed else Cancelled("the request was cancelled"))
        for number, task in list(self._callers.items()):
            if task is not asyncio.current_task() and count in (None, number):
                task.cancel()

    async def call(self, method: str, args: list[Any]) -> Any:
        """Call a method of the environment.

        Args:
            method: one of :data:`protocol.METHODS`.
            args: of the call; ``[seed, options]`` of a reset.

        Returns:
            ``[observation, info, state key, view]`` of a reset, ``[observation, reward, terminated, truncated, info,
            state key, view]`` of a step, else what the method returned.

        Raises:
            EnvBroke: the environment failed.
            EpisodeOver: a step before the first reset or after the end.
            SessionGone: the session was closed meanwhile.
            UsageError: wrong arguments.
        """
        args = _checked(method, args)
        async with self._turn():
            if self._closed:
                raise SessionGone("the session was closed")
            if method == "step" and self.over:
                raise EpisodeOver(f"{self.task.env_id}: the episode is over; reset it to start the next one")
            if method == "reset" and args[0] is None and self.history.needs_seed:
                args = [new_seed(), args[1]]
            return await self.carry_out(method, args)

    async def card(self) -> dict[str, Any]:
        """Return what a person has to know to play the environment; the session's episode stays as it is.

        Raises:
            EnvBroke: the environment failed.
            SessionGone: the session was closed meanwhile.
        """
        async with self._turn():
            told: dict[str, Any] = await self._with_replay(self._card)
            return told

    @property
    def failed_to_build(self) -> bool:
        """True if nobody waits for the environment any more, and it is not there."""
        building = self._building
        done = building is not None and building.done() and not building.cancelled() and building.exception() is None
        return not self._openers and not done

    async def built(self) -> None:
        """Build the environment, which checks its arguments, or wait until it is built.

        Raises:
            UsageError: they are not.
            EnvBroke: the environment failed.
            SessionGone: the session was closed meanwhile.
        """
        if self._building is None:
            self._building = asyncio.get_running_loop().create_task(self._build())
        building = self._building
        self._openers += 1
        try:
            await self._outcome(building)
        finally:
            self._openers -= 1

    async def export(self) -> dict[str, Any]:
        """Return what another server needs to go on with it. From now on, calls wait in vain for their turn.

        Cancelling it keeps the session.

        Raises:
            SessionGone: its environment could not be built.
        """
        self.busy += 1  # so no quick step begins meanwhile
        try:
            building = self._building
            if building is not None:
                if not building.done():
                    await asyncio.wait([building])
                if building.cancelled() or building.exception() is not None:
                    raise SessionGone("its environment could not be built")
            await self._lock.acquire()
        except BaseException:
            self.busy -= 1
            raise
        try:
            await self.step_over()
            if self._env is not None and self.history.calls and "state" in spec(self.task.env_id).abilities:
                with contextlib.suppress(EnvFailure, UsageError):  # else it is replayed there
                    state = await self._ask("get_state", [])
                    if len(protocol.pack(state)) <= _LARGEST_STATE:
                        restored = protocol.fingerprint("set_state", None)
                        self.history.add("set_state", [state], restored)  # which is quicker than a replay
        except BaseException:
            self.busy -= 1
            self._lock.release()
            raise
        waiting = self.busy - 1 if self._last is not None and not self._last.done() else 0
        settings = {"kwargs": self.task.kwargs, "wrappers": self.task.wrappers, "views": self.views}
        return {
            "name": self.name,
            "owner": self.owner,
            "env_id": self.task.env_id,
            "settings": settings,
            "about": self.about,
            "count": self.count - waiting,  # calls that wait are made there
            "over": self.over,
            "calls": self.history.calls,
            "last": _outcome(self._last),
            "last_step": self.last_step,
            "turns": self.turns,
            "via": self.via,
        }

    def restore(self, told: Mapping[str, Any], history: ReplayLog) -> None:
        """Go on with a session of another server.

        Args:
            told: by :meth:`export`.
        """
        self.about, self.count, self.over, self.last_step = (
            told["about"], told["count"], told["over"], told["last_step"],
        )  # fmt: skip
        self.turns, self.via = told["turns"], told["via"]
        self.history, self.lasting, self.left = history, True, time.monotonic()
        loop = asyncio.get_running_loop()
        self._building, self._last = loop.create_future(), loop.create_future()
        self._building.set_result(None)
        match told["last"]:
            case [value]:
                self._last.set_result(value)
            case [None, kind, text, details]:
                self._last.set_exception(protocol.error_of(kind, text, details))
                self._last.exception()
            case _:
                self._last = None

    def end(self) -> None:
        """Give up what runs, and the environment, for good."""
        self._closed = True
        self.cancel()
        if self._building is not None:
            self._building.cancel()
        self.release()

    def release(self, *, hung: bool = False) -> None:
        """Give the environment back."""
        env, self._env = self._env, None
        if env is not None and hung:
            env.abandon()
        elif env is not None:
            env.close(
                functools.partial(self._manager.limiter.spend, self.owner)
            )  # what a call did that failed counts, too

    # -- used by calls that are on their way ---------------------------------------------------------------------------

    def hung(self, method: str) -> EnvFailure:
        """Return the failure of a call that got no answer in its time."""
        seconds = self._seconds_of(method)
        return EnvFailure("hung", f"{self.task.env_id}: {method} did not return within {seconds:g} s")

    def record_time(self, method: str, env: PooledEnv, seconds: float) -> None:
        """Record the time of a call that succeeded."""
        manager = self._manager
        if self._is_limited:
            manager.limiter.spend(self.owner, env.computed())
        manager.health.env(self.task.env_id).ok(method, seconds)
        manager.health.worker(env.worker).ok(method, seconds)
        manager.on_call_time(method, seconds)

    def finish_step(self, action: str, result: EnvResult) -> list[Any]:
        """Record a step, and return its answer."""
        answer: list[Any] = self._plain("step", result)
        self._record("step", [action], answer)
        return answer

    async def carry_out(self, method: str, args: list[Any], failure: EnvFailure | None = None) -> Any:
        """Make a call, and record it.

        Args:
            failure: of the first attempt, if there was one; then the call is made again, in another worker.

        Raises:
            EnvBroke: a replay is no remedy.
            SessionGone: the session was closed meanwhile.
        """
        answer = await self._with_replay(functools.partial(self._perform, method, args), failure)
        self._record(method, args, answer)
        return answer

    def end_step(self) -> None:
        """Let other calls begin."""
        self._step = None
        self.busy -= 1
        self.used = time.monotonic()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _plain(self, method: str, result: Any) -> Any:
        """Return what a client gets of a result."""
        r = result
        if method == "step":
            info = self._bounded(method, r.info)
            return [r.observation, r.reward, r.terminated, r.truncated, info, r.state_key, r.view]
        if method == "reset":
            return [r.observation, self._bounded(method, r.info), r.state_key, r.view]
        return result if method in ("about", "card") else self._bounded(method, result)

    def _bounded(self, method: str, value: Any) -> Any:
        """Return what an environment returned, if it is small enough to be spelled out for a client."""
        try:
            validation.bounded(value, f"what {method} returned")
        except validation.BadValue as error:
            raise EnvFailure("wrong", f"{self.task.env_id}: {error}") from error
        return value

    def _record(self, method: str, args: list[Any], answer: Any) -> None:
        """Record the effects of a call that succeeded."""
        self._manager.counters.calls += 1
        if protocol.METHODS[method]:
            self.history.add(method, args, protocol.fingerprint(method, answer))
        if method == "step":
            self.over, self.last_step = answer[2] or answer[3], answer
            self.turns += 1
            if self.over:
                self._manager.health.env(self.task.env_id).ended("completed")
        elif method == "reset":
            self.over, self.turns, self.last_step = False, 0, []
        elif method == "set_state":
            self.over = bool(args[0].get("over", False))
        self._manager.on_call(self, method, args, answer)

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """The turn of a call; the session is not idle until it is over."""
        self.busy += 1
        try:
            async with self._lock, self._manager.queue.turn(self.owner):
                await self.step_over()
                yield
        finally:
            self.busy -= 1
            self.used = time.monotonic()

    async def _outcome(self, task: asyncio.Future[Any]) -> Any:
        """Return the result of a task, which runs on if its caller is cancelled."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._closed and (caller is None or not caller.cancelling()):
                raise SessionGone("the session was closed") from None
            raise

    async def _build(self) -> None:
        async with self._turn():
            if self._env is None:  # else a call was faster
                await self._with_replay(self._open_env)
        self._manager.counters.opened += 1

    async def _with_replay(self, call: Callable[[], Awaitable[Any]], failure: EnvFailure | None = None) -> Any:
        """Make a call. If its worker is lost, replay the episode in another one and make it again."""
        for left in range(self._manager.limits.replays, -1, -1):
            try:
                if failure is not None:
                    raise await self._overdue(failure)
                return await call()
            except EnvFailure as problem:
                failure = None
                if self._closed:
                    raise SessionGone("the session was closed") from problem
                worker = self._env.worker if self._env is not None else ""
                self._manager.health.failed(self.task.env_id, worker, problem.kind, str(problem))
                self.release(hung=problem.kind == "hung")
                if problem.kind == "hung":
                    self._manager.limiter.spend(self.owner, self._manager.limits.step)
                self._losses += problem.kind == "lost"
                self._alone = self._alone or problem.blamed or self._losses > 1
                if problem.blamed or problem.kind == "hung":
                    self._manager.records[self.owner, self.task.env_id].harm += 1
                if problem.kind != "lost" or not left:
                    raise EnvBroke(str(problem), kind=problem.kind) from problem
                self._manager.counters.replays += 1
                logger.info("session %.6s is replayed: %s", self.name, problem)
            except ReplayDiffers as error:
                self.release()
                raise EnvBroke(str(error), kind="differs") from error
            except asyncio.CancelledError:
                self.release()  # what it did is unknown; the next call begins with a replay
                raise
        raise AssertionError

    async def _perform(self, method: str, args: list[Any]) -> Any:
        if self._env is None:
            anew = method == "set_state" or (method == "reset" and args[0] is not None)
            await (self._open_env() if anew else self._rebuild())
        return await self._ask(method, args)

    async def _open_env(self) -> None:
        seconds = self._manager.limits.reset
        try:
            async with asyncio.timeout(seconds):
                env = await self._open_in_worker()
        except TimeoutError:
            text = f"{self.task.env_id}: no worker had room for it within {seconds:g} s"
            raise EnvBroke(text, kind="lost") from None
        if self._closed:
            env.close()
            raise SessionGone("the session was closed")
        self._env = env
        self.about = await self._ask("about", [])

    async def _open_in_worker(self) -> PooledEnv:
        """A place in a worker; for who harms them one of its own, if that is there soon."""
        open_in = functools.partial(self._manager.workers.open, self.task, views=self.views)
        if self._alone:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_APART_SECONDS):
                    return await open_in(alone=True)
        return await open_in()

    async def _rebuild(self) -> None:
        """A new environment, brought to where the last one was."""
        await self._open_env()
        for number, (method, args, _) in enumerate(self.history.calls):
            answer = await self._ask(method, list(args))
            self.history.check(number, protocol.fingerprint(method, answer), self.task.env_id)

    async def _card(self) -> dict[str, Any]:
        if self._env is None:
            await self._rebuild()
        card: dict[str, Any] = await self._ask("card", [])
        return card

    async def _ask(self, method: str, args: list[Any]) -> Any:
        """Send a call, and wait for its answer."""
        found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(answer: Any) -> None:
            if not found.done():
                found.set_result(answer)

        self._send(method, args, done)
        answer = await found
        if isinstance(answer, RollenvError):
            raise await self._overdue(answer)
        return self._plain(method, answer)

    async def _overdue(self, error: RollenvError) -> RollenvError:
        """Return an error, or if it is a deadline that passed, what it was instead."""
        if isinstance(error, EnvFailure) and error.kind == "hung" and self._env is not None:
            return await self._env.overdue(error)
        return error

    def _send(self, method: str, args: list[Any], done: Callable[[Any], object]) -> None:
        """Send a call into the environment. ``done`` is called once, with the answer or an error, in its time."""
        env = self._env
        if env is None:  # released during a replay
            raise SessionGone("the session was closed")
        call = Call(self, env, "reset" if method == "about" else method, done)
        self._manager.queue.time_limits.start(call, self._seconds_of(method))
        if method in ("step", "about", "card"):
            env.send(method, args, call.answered)
        elif method == "reset":
            env.send("restart", args, call.answered)
        else:
            env.send("call", [method, *args], call.answered)

    def _seconds_of(self, method: str) -> float:
        limits = self._manager.limits
        return limits.reset if method in ("reset", "about", "card") else limits.step


def _outcome(last: asyncio.Future[Any] | None) -> list[Any]:
    """Return what a call came to: a value, an error, or nothing."""
    if last is None or not last.done() or last.cancelled():
        return []
    error = last.exception()
    if error is None:
        return [last.result()]
    known = error if isinstance(error, RollenvError) else ServerError(FAILED)
    return [None, *protocol.error_answer(known)]


#: What methods take, apart from a reset.
_TAKES: dict[str, tuple[type, ...]] = {
    "step": (str,),
    "set_state": (dict,),
    "seed_stream": (int,),
    "seed_actions": (int,),
}


def _checked(method: str, args: list[Any]) -> list[Any]:
    if method not in protocol.METHODS:
        raise NoSuchAbility(f"environments have no {method!r:.40} that can be called from elsewhere")
    if method == "reset":
        seed, options = [*args, *[None, {}][len(args) :]] if len(args) <= 2 else (False, {})
        if isinstance(seed, bool) or not isinstance(seed, int | None) or not isinstance(options, dict | None):
            raise UsageError("reset takes a seed (a whole number from 0, or none) and options (a mapping)")
        if seed is not None and seed < 0:
            raise UsageError(f"a seed must be a non-negative integer, not {seed}")
        return [seed, options or {}]
    wanted = _TAKES.get(method, ())
    if len(args) != len(wanted) or not all(map(isinstance, args, wanted)):
        names = ", ".join(kind.__name__ for kind in wanted) or "no argument"
        raise UsageError(f"{method} takes {names}")
    return args
