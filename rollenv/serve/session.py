"""One client's environment: its calls in their order, replays, and what goes with it to another server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from rollenv.core import EpisodeOver, NoSuchAbility, RollenvError, UsageError
from rollenv.registry import spec
from rollenv.remote import protocol
from rollenv.remote.history import Differs, History, new_seed
from rollenv.remote.protocol import FAILED, Cancelled, EnvBroke, ServerError, SessionGone
from rollenv.rollout import validation
from rollenv.rollout.types import Task
from rollenv.rollout.workers.base import EnvFailure, EnvResult, Views
from rollenv.rollout.workers.pool import PooledEnv
from rollenv.serve.deadlines import Limit
from rollenv.serve.logs import asked_at
from rollenv.serve.quick import QuickStep, Told

if TYPE_CHECKING:
    from rollenv.serve.sessions import Sessions

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
        "__weakref__", "_apart", "_building", "_caller", "_closed", "_core", "_env", "_last", "_lock", "_losses",
        "_openers", "_quick", "about", "busy", "count", "history", "last_step", "lasting", "left", "name", "opened",
        "over", "owner", "task", "turns", "used", "via", "views",
    )  # fmt: skip

    def __init__(self, core: Sessions, name: str, owner: str, task: Task, views: Views, apart: bool = False):
        self._core, self.name, self.owner, self.task, self.views = core, name, owner, task, views
        self._env: PooledEnv | None = None
        self._lock = asyncio.Lock()
        self._last: asyncio.Future[Any] | None = None
        self._caller: asyncio.Task[Any] | None = None
        self._building: asyncio.Future[None] | None = None
        self._quick: QuickStep | None = None
        self._openers, self._closed = 0, False
        self.history, self.count = History(), 0
        self.about: dict[str, Any] = {}
        self.over, self._apart, self._losses, self.busy = True, apart, 0, 0
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
            self.count, self._caller = count, asyncio.current_task()
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
                if self._caller is asyncio.current_task():
                    self._caller = None
            last.set_result(answer)
            return answer
        if count != self.count or self._last is None:
            raise UsageError(f"call {count} is out of order; the last one was {self.count}")
        return await asyncio.shield(self._last)

    def quick_step(self, count: int, action: str, told: Told) -> bool:
        """Carry out a step without a task, if nothing has to be waited for.

        Args:
            told: called with the answer or the error.

        Returns:
            Whether it was done; else :meth:`numbered` does it.
        """
        env = self._env
        if env is None or self.busy or self.over or count != self.count + 1 or not self._core.gate.enter():
            return False
        self.count, self.busy = count, 1
        self._quick = QuickStep(self, env, count, action, told)
        self._last = self._quick.answer
        self._quick.send()
        return True

    def cancel(self, count: int | None = None) -> None:
        """Give up the calls that run, if any do.

        Args:
            count: of the one to give up; by default all are.
        """
        if self._quick is not None and count in (None, self._quick.count):
            closed = SessionGone("the session was closed")
            self._quick.cancel(closed if self._closed else Cancelled("the request was cancelled"))
        if self._caller is not None and self._caller is not asyncio.current_task() and count in (None, self.count):
            self._caller.cancel()

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
        self.busy += 1
        try:
            async with self._lock, self._core.gate.turn(self.owner):
                await self._quick_step_over()
                if self._core.sessions.get(self.name) is not self:
                    raise SessionGone("the session was closed")
                if method == "step" and self.over:
                    raise EpisodeOver(f"{self.task.env_id}: the episode is over; reset it to start the next one")
                if method == "reset" and args[0] is None and self.history.wants_a_seed:
                    args = [new_seed(), args[1]]
                answer = await self._carried_out(functools.partial(self._answered, method, args))
        finally:
            self.busy -= 1
            self.used = time.monotonic()
        self._note(method, args, answer)
        return answer

    async def card(self) -> dict[str, Any]:
        """What a person has to know to play the environment; the session's episode stays as it is.

        Raises:
            EnvBroke: the environment failed.
            SessionGone: the session was closed meanwhile.
        """
        self.busy += 1
        try:
            async with self._lock, self._core.gate.turn(self.owner):
                await self._quick_step_over()
                told: dict[str, Any] = await self._carried_out(self._card)
                return told
        finally:
            self.busy -= 1
            self.used = time.monotonic()

    async def built(self) -> None:
        """Build the environment, to see that its arguments are right, or wait for whoever does already.

        The last one who waits and gives up ends the session.

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
        except BaseException:
            if self._openers == 1 and (not building.done() or building.cancelled() or building.exception()):
                self._core.close(self)
            raise
        finally:
            self._openers -= 1

    async def leave(self) -> dict[str, Any]:
        """What another server needs to go on with it. From now on, calls wait in vain for their turn.

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
            await self._quick_step_over()
            if self._env is not None and self.history.calls and "state" in spec(self.task.env_id).abilities:
                with contextlib.suppress(EnvFailure, UsageError):  # else it is replayed there
                    state = await self._ask("get_state", [])
                    if len(protocol.pack(state)) <= _LARGEST_STATE:
                        self.history.add("set_state", [state], None)  # which is quicker than a replay
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

    def go_on(self, told: Mapping[str, Any], history: History) -> None:
        """Go on with a session of another server.

        Args:
            told: by :meth:`leave`.
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
            env.close(functools.partial(self._core.meter.spend, self.owner))  # what a call did that failed counts, too

    # -- what a quick step needs ---------------------------------------------------------------------------------------

    def limit(self, seconds: float, late: Callable[[], None]) -> Limit:
        """A limit for a call.

        Args:
            late: called if it takes longer.
        """
        return self._core.deadlines.limit(seconds, late)

    def seconds(self, method: str) -> float:
        """That a call may take."""
        return self._core.terms.reset if method in ("reset", "card") else self._core.terms.step

    def hung(self, method: str) -> EnvFailure:
        """The failure of a call that got no answer in its time."""
        return EnvFailure("hung", f"{self.task.env_id}: {method} did not return within {self.seconds(method):g} s")

    def timed(self, method: str, env: PooledEnv, seconds: float) -> None:
        """Note the time of a call that succeeded."""
        health, meter = self._core.health, self._core.meter
        if meter.counts(self.owner):
            meter.spend(self.owner, env.computed())
        for record in (health.env(self.task.env_id), health.worker(env.worker)):
            record.ok(method, seconds)
        self._core.timed(method, seconds)

    def stepped(self, action: str, seen: EnvResult) -> list[Any]:
        """Note a step.

        Returns:
            The answer.
        """
        answer = self._told(seen)
        self._note("step", [action], answer)
        return answer

    async def step_again(self, action: str, failure: EnvFailure) -> list[Any]:
        """Make up for a step that failed, by a replay where that is a remedy.

        Raises:
            EnvBroke: it is none.
            SessionGone: the session was closed meanwhile.
        """
        answer: list[Any] = await self._carried_out(functools.partial(self._answered, "step", [action]), failure)
        self._note("step", [action], answer)
        return answer

    def leave_gate(self) -> None:
        """The quick step no longer keeps others waiting."""
        self._core.gate.leave()

    def quick_over(self) -> None:
        """The quick step is over."""
        self._quick = None
        self.busy -= 1
        self.used = time.monotonic()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _told(self, seen: EnvResult) -> list[Any]:
        """The answer to a step."""
        info = self._bounded("step", seen.info)
        return [seen.observation, seen.reward, seen.terminated, seen.truncated, info, seen.state_key, seen.view]

    def _bounded(self, method: str, value: Any) -> Any:
        """What an environment returned, if it is small enough to be spelled out for a client."""
        try:
            validation.bounded(value, f"what {method} returned")
        except validation.BadValue as error:
            raise EnvFailure("wrong", f"{self.task.env_id}: {error}") from error
        return value

    async def _quick_step_over(self) -> None:
        while self._quick is not None:
            await asyncio.wait((self._quick.answer,))

    def _note(self, method: str, args: list[Any], answer: Any) -> None:
        """What follows from a call that succeeded."""
        self._core.counts.calls += 1
        self.history.add(method, args, answer)
        if method == "step":
            self.over, self.last_step = answer[2] or answer[3], answer
            self.turns += 1
            if self.over:
                self._core.health.env(self.task.env_id).ended("completed")
        elif method == "reset":
            self.over, self.turns, self.last_step = False, 0, []
        elif method == "set_state":
            self.over = bool(args[0].get("over", False))
        self._core.seen(self, method, args, answer)

    async def _outcome(self, task: asyncio.Future[Any]) -> Any:
        """What a task returns. It goes on if its caller is cancelled."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._closed and (caller is None or not caller.cancelling()):
                raise SessionGone("the session was closed") from None
            raise

    async def _build(self) -> None:
        self.busy += 1
        try:
            async with self._lock, self._core.gate.turn(self.owner):
                if self._env is None:  # else a call was faster
                    await self._carried_out(self._opened)
        finally:
            self.busy -= 1
            self.used = time.monotonic()
        self._core.counts.opened += 1

    async def _carried_out(self, call: Callable[[], Awaitable[Any]], failure: EnvFailure | None = None) -> Any:
        """Make a call, and again if its worker is lost. It may have failed once already."""
        for left in range(self._core.terms.replays, -1, -1):
            try:
                if failure is not None:
                    raise failure
                return await call()
            except EnvFailure as problem:
                failure = None
                if self._closed:
                    raise SessionGone("the session was closed") from problem
                worker = self._env.worker if self._env is not None else ""
                self._core.health.failed(self.task.env_id, worker, problem.kind, str(problem))
                self.release(hung=problem.kind == "hung")
                if problem.kind == "hung":
                    self._core.meter.spend(self.owner, self._core.terms.step)
                self._losses += problem.kind == "lost"
                self._apart = self._apart or problem.blamed or self._losses > 1
                if problem.blamed or problem.kind == "hung":
                    self._core.records[self.owner, self.task.env_id].harm += 1
                if problem.kind != "lost" or not left:
                    raise EnvBroke(str(problem), kind=problem.kind) from problem
                self._core.counts.replays += 1
                logger.info("session %.6s is replayed: %s", self.name, problem)
            except Differs as error:
                self.release()
                raise EnvBroke(str(error), kind="differs") from error
            except asyncio.CancelledError:
                self.release()  # what it did is unknown; the next call begins with a replay
                raise
        raise AssertionError

    async def _answered(self, method: str, args: list[Any]) -> Any:
        if self._env is None:
            anew = method == "set_state" or (method == "reset" and args[0] is not None)
            await (self._opened() if anew else self._begin())
        return await self._ask(method, args)

    async def _opened(self) -> None:
        """A new environment."""
        seconds = self._core.terms.reset
        try:
            async with asyncio.timeout(seconds):
                env = await self._placed()
        except TimeoutError:
            text = f"{self.task.env_id}: no worker had room for it within {seconds:g} s"
            raise EnvBroke(text, kind="lost") from None
        if self._closed:
            env.close()
            raise SessionGone("the session was closed")
        self._env = env
        self.about = await self._in_time("reset", env.about())

    async def _placed(self) -> PooledEnv:
        """A place in a worker; for who harms them one of its own, if that is there soon."""
        open_in = functools.partial(self._core.workers.open, self.task, views=self.views)
        if self._apart:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_APART_SECONDS):
                    return await open_in(alone=True)
        return await open_in()

    async def _begin(self) -> None:
        """A new environment, brought to where the last one was."""
        await self._opened()
        for number, (method, args, _) in enumerate(self.history.calls):
            self.history.check(number, await self._ask(method, args), self.task.env_id)

    async def _card(self) -> dict[str, Any]:
        if self._env is None:
            await self._begin()
        if self._env is None:  # released during a replay
            raise SessionGone("the session was closed")
        told: dict[str, Any] = await self._in_time("card", self._env.card())
        return told

    async def _ask(self, method: str, args: list[Any]) -> Any:
        env = self._env
        if env is None:  # released during a replay
            raise SessionGone("the session was closed")
        if method == "step":
            return self._told(await self._in_time(method, env.step(args[0])))
        if method == "reset":
            seen = await self._in_time(method, env.restart(*args))
            return [seen.observation, self._bounded(method, seen.info), seen.state_key, seen.view]
        return self._bounded(method, await self._in_time(method, env.call(method, *args)))

    async def _in_time(self, method: str, call: Any) -> Any:
        env, began = self._env, time.monotonic()
        assert env is not None
        try:
            with self._core.deadlines.limit(self.seconds(method)):
                answer = await call
        except TimeoutError:
            raise await env.overdue(self.hung(method)) from None
        self.timed(method, env, time.monotonic() - began)
        return answer


def _outcome(last: asyncio.Future[Any] | None) -> list[Any]:
    """What a call came to: a value, an error, or nothing."""
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
    """The arguments of a call.

    Raises:
        NoSuchAbility: there is no such method.
        UsageError: they are not what it takes.
    """
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
