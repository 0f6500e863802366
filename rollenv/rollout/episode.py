"""One episode, played to its end even if its environment fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import reprlib
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rollenv.agents.base import Action, Agent, AgentFailed, ContextFull, NothingToSay, Session, member
from rollenv.agents.engines.base import EngineFailed, EngineLost
from rollenv.agents.seats import SeatFailed, Seats, SeatsSession
from rollenv.core.env import Env
from rollenv.core.errors import RollenvError, UsageError, describe, error_text
from rollenv.remote.replay_log import ReplayDiffers, ReplayLog
from rollenv.rollout import validation
from rollenv.rollout.deadline import Deadline, DeadlinePassed
from rollenv.rollout.records.health import Health, HealthRecord
from rollenv.rollout.seats import forfeit, most_tokens, take_seat, who_filled
from rollenv.rollout.turns import turns_of
from rollenv.rollout.types import Trajectory
from rollenv.rollout.validation import BadValue
from rollenv.rollout.workers.base import EnvFailure, EnvResult, WorkerEnv, Workers

logger = logging.getLogger(__name__)

#: Workers that an episode may lose before it is played in a worker of its own.
_LOSSES_WITH_OTHERS = 2

#: Workers of its own that an episode loses before it fails; one or two may be killed from outside.
_LOSSES_ALONE = 3


@dataclass(frozen=True)
class EpisodeLimits:
    """Deadlines in seconds, and how many failures are tolerated. Environments' deadlines need interruptible workers."""

    reset: float | None = 300.0
    """Deadline for building and resetting an environment."""
    step: float | None = 120.0
    """Deadline for every other call of an environment; without effect with inline workers, as for ``reset``."""
    agent: float | None = 3600.0
    """Deadline for one action of the agent."""
    reward: float | None = 3600.0
    """Deadline for one call of the reward function."""
    episode: float | None = None
    """Deadline for the whole episode; one that takes longer has failed."""
    turns: int | None = None
    """Maximum turns of an episode, after which it is truncated. Environments may have a lower limit of their own."""
    tokens: int | None = None
    """Maximum response tokens of an episode; it is truncated after the response that reaches them."""
    max_replays: int = 3
    """Maximum replays of an episode after its environment failed: raised, hung or returned something wrong."""
    max_losses: int = 20
    """Maximum replays of an episode after its worker was lost, which is mostly the fault of other environments."""
    max_backoff: float = 10.0
    """Longest pause, in seconds, before the next attempt at an environment or worker after failures in a row."""
    max_replacements: int = 2
    """Maximum replacements for failed members (``RolloutManager.play_group``), for each member that a group needs."""

    def __post_init__(self) -> None:
        for name in ("reset", "step", "agent", "reward", "episode"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"the deadline {name!r} must be a number of seconds above 0 or None, not {value!r}")
        if self.turns is not None and self.turns < 1:
            raise UsageError(f"an episode needs at least 1 turn, got turns={self.turns}")
        if self.tokens is not None and self.tokens < 1:
            raise UsageError(f"an episode needs at least 1 token, got tokens={self.tokens}")
        for name in ("max_replays", "max_losses", "max_backoff", "max_replacements"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} cannot be negative, got {getattr(self, name)}")


class _Lost(RollenvError):
    """An environment failed, and the episode cannot be replayed."""


def never() -> bool:
    """Return false: the default of the episode's callbacks."""
    return False


@dataclass(eq=False, slots=True)
class Episode:
    """Plays one trajectory.

    The calls of the environment are recorded. When it raises, hangs or is lost with its worker, they are repeated in a
    new environment in another worker, which by the contract returns the same results, and the episode continues; the
    agent does not notice. The episode is replayed in a worker of its own after it was alone in a worker that was
    lost, or has lost two workers. It fails when it has lost three of its own.

    A session that changes the environment other than by its calls (``replayable`` is false) restarts instead, with the
    same seeds: the turns so far are dropped.
    """

    trajectory: Trajectory
    agent: Agent
    workers: Workers
    limits: EpisodeLimits
    health: Health
    views: bool
    clock: Callable[[], float]
    """Returns the event loop's time, in seconds."""
    cancelled: Callable[[], bool] = never
    """Returns whether the rollout has cancelled the episode."""
    interrupted: Callable[[], bool] = never
    """Returns whether the user pressed Ctrl-C."""
    env: WorkerEnv | None = None
    records: tuple[HealthRecord, ...] = ()
    """The health records of the environment id and of the worker."""
    log: ReplayLog = field(default_factory=ReplayLog)
    """The calls that returned; a replay repeats them."""
    replayable: bool = True
    """True if the session changes the environment only by its calls."""
    outcome: str = "failed"
    """The end of the episode, as :meth:`HealthRecord.ended` counts it."""
    failures: Counter[str] = field(default_factory=Counter)
    players: int = 1
    forfeit_returns: Sequence[float] = Env.forfeit_returns
    thought: dict[int, float] = field(default_factory=dict)  # seconds of each player of a game
    phase: str = "waiting"
    alone: bool = False
    """True if the episode needs a worker of its own."""
    lost_alone: int = 0
    failed_in: set[str] = field(default_factory=set)
    """Names of workers in which the episode failed."""
    since: float = field(init=False)
    of_all: Deadline = field(init=False)
    of_agent: Deadline = field(init=False)
    of_reset: Deadline = field(init=False)
    of_step: Deadline = field(init=False)

    def __post_init__(self) -> None:
        self.since = self.clock()

    @property
    def env_id(self) -> str:
        """The id of the environment."""
        return self.trajectory.task.env_id

    async def play(self) -> Trajectory:
        """Play to the end; failures are in the trajectory's status.

        Raises:
            UsageError: the task itself is wrong.
            Exception: whatever the agent raises besides its declared errors.
        """
        started = self.clock()
        limits, ends = self.limits, self.workers.interruptible
        self.of_all, self.of_agent = Deadline(limits.episode), Deadline(limits.agent)
        self.of_reset, self.of_step = Deadline(limits.reset if ends else None), Deadline(limits.step if ends else None)
        try:
            async with self.of_all:
                await self._play()
        except SeatFailed as failure:
            self._forfeit(failure.seat, str(failure), failure.outcome)
        except AgentFailed as failure:
            self._fail("agent", error_text(failure) or describe(failure), "agent_failed")
        except EnvFailure as failure:
            self._fail(failure.kind, str(failure))
        except DeadlinePassed:
            why = f"it took longer than {self.limits.episode} s; its phase was {self.phase!r}"
            slowest = max(self.thought, key=self.thought.__getitem__, default=0)
            self._fail("episode", why)
            if self.thought.get(slowest, 0.0) > (self.clock() - started) / 2:
                self._forfeit(slowest, f"{why}, most of it with seat {slowest}", "agent_failed")
        except BaseException as error:
            if isinstance(error, Exception) or self._is_intended(error):
                if isinstance(error, asyncio.CancelledError):
                    self.trajectory.status = self.outcome = "cancelled"
                raise
            else:
                self._fail("raised", f"{describe(error)} was raised in phase {self.phase!r}, where it is not allowed")
        finally:
            for deadline in (self.of_all, self.of_agent, self.of_reset, self.of_step):
                deadline.stop()
            self.trajectory.seconds = self.clock() - started
            self.enter("over")
            self._release()
        return self.trajectory

    def _fail(self, kind: str, text: str, outcome: str = "failed") -> None:
        """Mark the trajectory as failed, with the environment's name in the error if it is the cause.

        ``RolloutManager.play_group`` plays another one; ``trainers.experience`` leaves out members that failed.
        """
        if outcome == "failed" and self.env_id not in text:
            text = f"{self.env_id}: {text}"
        self.trajectory.status, self.trajectory.failure, self.trajectory.error = "failed", kind, text
        self.outcome = outcome

    def _forfeit(self, player: int, why: str, outcome: str) -> None:
        self.outcome = outcome
        forfeit(self.trajectory, player, self.players, self.forfeit_returns, why)

    def _is_intended(self, error: BaseException) -> bool:
        """Return whether a BaseException comes from the user or the rollout and so ends more than this episode."""
        if isinstance(error, asyncio.CancelledError):
            return self.cancelled()
        return isinstance(error, KeyboardInterrupt) and self.interrupted()

    async def _play(self) -> None:
        trajectory = self.trajectory
        while True:
            result = await self._call_env("reset")
            session = self._start_session(result.info)
            try:
                if isinstance(session, SeatsSession):
                    self._take_seats(session)
                self.replayable = member(session, Session, "replayable")
                result = await self._take_turns(session, result)
                if not result.terminated:
                    trajectory.final_ids = self._next_prompt(session, result)
                break
            except _Lost:
                self.log, self.replayable = ReplayLog(), True
                trajectory.turns.clear()
                trajectory.metrics.clear()
            finally:
                self._end_session(session)
        self._conclude(result)

    def _conclude(self, result: EnvResult) -> None:
        """Write what the last result says of the episode, as its own seat sees it."""
        trajectory = self.trajectory
        trajectory.status = "terminated" if result.terminated else "truncated"
        self.outcome = "completed"
        won, seen = result.info.get("success", False), result.observation
        if "players" in result.info:
            if isinstance(won, list):
                trajectory.record["success"] = won
                won = won[trajectory.seat]
            if observations := result.info.get("observations"):
                seen = observations[trajectory.seat]
            elif result.info.get("player", trajectory.seat) != trajectory.seat:  # it was cut off before another's turn
                seen = ""
        trajectory.success = bool(won)
        trajectory.metrics |= result.info.get("metrics", {})
        trajectory.final_observation = seen
        trajectory.final_view = result.view
        trajectory.final_images = result.info.get("images", ()) if seen == result.observation else ()
        if spoiled := result.info.get("spoiled"):
            self._fail("user", str(spoiled))

    async def _take_turns(self, session: Session, result: EnvResult) -> EnvResult:
        """Play from the first observation on, and return the last result."""
        limits, trajectory, turns = self.limits, self.trajectory, self.trajectory.turns
        while not (result.terminated or result.truncated):
            if self.interrupted():  # lets the event loop cancel an episode that never waits for anything
                await asyncio.sleep(0)
            is_spent = limits.turns is not None and len(turns) >= limits.turns
            if limits.tokens is not None:
                sampled = sum(len(turn.response_ids) for turn in turns)
                counted = self.trajectory.metrics.get("completion_tokens", 0)
                is_spent = is_spent or max(sampled, counted) >= limits.tokens
                if max(sampled, counted) >= limits.tokens and isinstance(session, SeatsSession):
                    wordy = most_tokens(turns, trajectory.seat)  # who could talk until nothing can be lost any more
                    why = f"of the game's {limits.tokens} tokens, {session.who(wordy)} has used the most"
                    raise SeatFailed(wordy, why, "completed")
            action = None if is_spent else await self._answer(session, result)
            if action is None:
                result.truncated = True
                break
            before, failure, players = result, None, result.info.get("players")
            try:
                result = await self._call_env("step", action.text)
            except EnvFailure as error:
                if not (isinstance(session, SeatsSession) and _caused_by_call(error)):
                    raise
                failure = session.failure(before.info["player"], f"makes the environment fail by its move: {error}")
                result = EnvResult("", 0.0, info={"players": players})
            new = turns_of(before, action, result)
            if result.info.get("players") != players:
                raise EnvFailure("wrong", f"{self.env_id}: the number of players changed in the episode")
            if players:
                take_seat(new, before.info["player"], result.info.get("rewards", [0.0] * players), trajectory.seat)
            turns += new
            if failure is not None:
                raise failure
        return result

    # -- calling the agent -------------------------------------------------------------------------------------------

    def _start_session(self, info: dict[str, Any]) -> Session:
        """Start the agent's session; in a game, deal the seats."""
        task = self.trajectory.task
        try:
            seed = task.seed if task.agent_seed is None else task.agent_seed
            seed = seed * 1_000_003 + self.trajectory.member
            players = info.get("players")
            if not players:
                return self.agent.start(self, seed)
            self.players, self.thought = players, dict.fromkeys(range(players), 0.0)
            self.forfeit_returns = info.get("forfeit", self.forfeit_returns)
            seats = self.agent if isinstance(self.agent, Seats) else Seats([self.agent], rotate=True)
            table = seats.deal(self, seed, players, task.seed, info.get("roles", ()))
            self.trajectory.seat = table.seat
            return table
        except BaseException as error:
            raise self._classify_agent_error("start()", error) from error

    def _take_seats(self, table: SeatsSession) -> None:
        for seat in range(self.players):
            try:
                table.sit(seat)
            except BaseException as error:
                raise table.blame(seat, self._classify_agent_error("start()", error)) from error

    def _next_prompt(self, session: Session, result: EnvResult) -> tuple[int, ...]:
        try:
            prompt = member(session, Session, "next_prompt")(result.observation, result.info)
            return validation.integers(prompt, "next_prompt")
        except BaseException as error:
            raise self._classify_agent_error("next_prompt()", error) from error

    def _end_session(self, session: Session) -> None:
        """Store the session's record and close the session."""
        for name in ("record", "close"):
            try:
                returned = member(session, Session, name)()
                if name == "record":
                    self.trajectory.record = validation.json_copy(returned, "an agent's record")
            except BaseException as error:
                if self._is_intended(error):
                    raise
                logger.warning("%s: the agent's %s() raised %s", self.env_id, name, describe(error))

    async def _answer(self, session: Session, result: EnvResult) -> Action | None:
        """Return the agent's action; None if its context is full."""
        began = self.enter("agent")
        try:
            oldest = self._version()
            awaitable = session.act(result.observation, result.info)
            async with self.of_agent:
                answer = validation.action(await awaitable)
            if self.cancelled():  # it caught its cancellation, and answered
                raise asyncio.CancelledError
            if self._uncancel():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)  # Python 3.11 and 3.12 raise it here all the same
                raise AgentFailed("the agent's act() cancelled its own task")
            for name, value in answer.usage.items():
                self.trajectory.metrics[name] = self.trajectory.metrics.get(name, 0.0) + value
            newest = self._version()
            if oldest is not None and newest is not None:
                _check_version(answer, oldest, newest)
            return answer
        except BaseException as error:
            if isinstance(session, SeatsSession):
                raise self._blame(session, result, error) from error
            if isinstance(error, ContextFull):
                return None
            raise self._classify_agent_error("act()", error) from error
        finally:
            self.trajectory.agent_seconds += self.clock() - began
            if "players" in result.info:
                self.thought[result.info["player"]] += self.clock() - began

    def _blame(self, table: SeatsSession, result: EnvResult, error: BaseException) -> BaseException:
        """Return the error of an answer in a game, with the player who caused it."""
        player: int = result.info["player"]
        if isinstance(error, ContextFull) and not isinstance(error, NothingToSay):
            filled = who_filled(self.trajectory.turns, player, result.observation)
            who = f"{table.who(player)} is full, mostly by {table.who(filled)}"
            return SeatFailed(filled, f"the context of {who}: {error}", "completed")
        nobodys = isinstance(error, _Lost) or (isinstance(error, EnvFailure) and not _caused_by_call(error))
        same = table.envs[player].failure is error
        if nobodys and same:
            return error
        return table.blame(player, self._classify_agent_error("act()", error))

    def _version(self) -> int | None:
        version = member(self.agent, Agent, "version")
        return None if version is None else validation.non_negative_int(version, "the agent's version")

    def _classify_agent_error(self, what: str, error: BaseException) -> BaseException:
        """Convert an exception of the agent to AgentFailed, unless it ends the rollout or the episode."""
        if isinstance(error, DeadlinePassed):
            return AgentFailed(f"the agent did not answer within {self.limits.agent} s")
        if isinstance(error, BadValue):
            return AgentFailed(f"what the agent's {what} returned is wrong: {error}")
        if isinstance(error, EngineFailed) and not isinstance(error, EngineLost):
            return AgentFailed(f"the agent's {what} raised {describe(error)}")
        if not isinstance(error, Exception):
            if self._is_intended(error) or self.of_all.passed:
                return error
            self._uncancel()
            return AgentFailed(f"the agent's {what} raised {describe(error)}")
        if not isinstance(error, RollenvError):
            who = f"the agent {type(self.agent).__module__}.{type(self.agent).__qualname__}"
            *_, (frame, _) = traceback.walk_tb(error.__traceback__)
            if frame.f_globals is globals():  # not within the agent
                form = "start(env, seed) returns a session, whose async act(observation, info) returns an Action"
                return UsageError(f"{who} cannot play, since {what} raised {describe(error)}: {form}")
            where = f"{self.env_id} with seed {self.trajectory.task.seed}"
            BaseException.add_note(error, f"raised by {what} of {who}, in {where}")
        return error

    def _uncancel(self) -> bool:
        """Undo the cancellation of this task by the agent itself; return whether there was one."""
        task = asyncio.current_task()
        if task is None or not task.cancelling() or self.cancelled() or self.of_all.passed:
            return False
        while task.cancelling():
            task.uncancel()
        return True

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the environment for the agent.

        Raises:
            AgentFailed: the method is not for agents: it would play for others, or begin or end the episode.
        """
        if method in ("reset", "step", "close", "spawn") or method.startswith("_"):
            raise AgentFailed(f"an agent may not call {method}() of its environment: it acts by what act() returns")
        before = self.phase
        answer = await self._call_env("call", method, *args)
        self.enter(before)
        return answer

    # -- calling the environment -------------------------------------------------------------------------------------

    async def _call_env(self, method: str, *args: Any) -> Any:
        """Call the environment; if it fails, replay the episode in another one and repeat the call there."""
        while True:
            try:
                if self.env is None:
                    result = await self._begin()
                    if method == "reset":
                        return result
                answer = await self._ask(method, args)
            except EnvFailure as failure:
                self._count(failure)
                lost = self.failures["lost"]
                others = self.failures.total() - lost
                if self.failures["differs"] or self.lost_alone >= _LOSSES_ALONE:
                    raise
                if lost > self.limits.max_losses or others > self.limits.max_replays:
                    raise
                self.trajectory.replays += 1
                if not self.replayable:
                    raise _Lost(str(failure)) from failure
            else:
                self.log.add(method, args, fingerprint(answer))
                return answer

    async def _begin(self) -> EnvResult:
        """Open a new environment and replay the recorded calls."""
        record = self.health.env(self.env_id)
        if record.backoff:
            self.enter("backoff")
            await asyncio.sleep(record.backoff)
        self.enter("waiting")
        alone = {"alone": True} if self.alone else {}
        task = self.trajectory.task
        kwargs = await member(self.agent, Agent, "prepare")(task.env_id, task.kwargs)
        if kwargs is not task.kwargs:  # members of a group share one task, by which workers know its reset
            task = replace(task, kwargs=kwargs)
        self.env = await self.workers.open(task, views=self.views, avoid=self._avoids, **alone)
        self.trajectory.worker = self.env.worker
        self.records = self.health.env(self.env_id), self.health.worker(self.env.worker)
        first: EnvResult = await self._ask("reset", ())
        if not self.log.calls:
            self.log.add("reset", (), first.fingerprint)
        for number, (method, args, _) in enumerate(self.log.calls):
            answer = await self._ask(method, args, "replay") if number else first
            try:
                self.log.check(number, fingerprint(answer), self.env_id)
            except ReplayDiffers as error:
                raise EnvFailure("differs", str(error)) from error
        return first

    async def _ask(self, method: str, args: Sequence[Any], phase: str = "") -> Any:
        """Call the environment, with a deadline.

        A call that hangs ends here with "hung", or with "lost" if another environment holds the whole worker. What the
        environment itself raises is an EnvFailure already, except a BaseException in this process.
        """
        assert self.env is not None
        began = self.enter(phase or method)
        deadline = self.of_reset if method == "reset" else self.of_step
        try:
            async with deadline:
                answer = await getattr(self.env, method)(*args)
        except DeadlinePassed:
            failure = EnvFailure("hung", f"{self.env_id}: {method} did not return within {deadline.seconds} s")
            raise await self.env.diagnose_hang(failure) from None
        except KeyboardInterrupt as error:
            if self._is_intended(error):
                raise
            raise EnvFailure("raised", f"{self.env_id}: {method} raised {describe(error)}") from error
        took = self.clock() - began
        for record in self.records:
            record.ok(method, took)
        return answer

    def _avoids(self, worker: str) -> bool:
        """Return whether a worker is in quarantine or this episode failed in it: a neighbour may have changed it."""
        return worker in self.failed_in or self.health.avoids(worker)

    def _count(self, failure: EnvFailure) -> None:
        """Record a failure and release its environment."""
        worker = self.env.worker if self.env else ""
        self.health.failed(self.env_id, worker, failure.kind, str(failure))
        self.failures[failure.kind] += 1
        if worker:
            self.failed_in.add(worker)
        if self.alone and failure.blamed:
            self.lost_alone += 1
        self.alone = self.alone or failure.blamed or self.failures["lost"] >= _LOSSES_WITH_OTHERS
        if self.env is not None and failure.kind == "hung":
            self.env.abandon()
            self.env = None
        self._release()

    async def add_reward(self, reward: Callable[[Trajectory], Awaitable[float]]) -> None:
        """Add the reward function's value to the last turn's reward. If the function fails, so does the trajectory.

        Raises:
            UsageError: the function raised it: it cannot be used for any trajectory.
        """
        self.enter("reward")
        last, own = self.trajectory.turns[-1], self.trajectory.own_reward
        deadline = Deadline(self.limits.reward)
        try:
            async with deadline:
                more = validation.number(await reward(self.trajectory), "a reward")
            last.reward = validation.number(last.reward + more, "a reward")
            self.trajectory.env_reward = own
        except BaseException as error:
            if self._is_intended(error) or isinstance(error, UsageError):
                raise
            why = describe(error)
            if isinstance(error, DeadlinePassed):
                why = f"it did not answer within {self.limits.reward} s"
            self._fail("reward", f"its reward could not be computed: {why}", "reward_failed")
        finally:
            deadline.stop()

    def _release(self) -> None:
        env, self.env = self.env, None
        if env is None:
            return
        try:
            env.close()
        except BaseException as error:
            if isinstance(error, Exception) or self._is_intended(error):
                raise
            logger.warning("%s could not be closed: %s", self.env_id, describe(error))

    def enter(self, phase: str) -> float:
        """Enter a phase and return the time."""
        self.phase = phase
        self.since = self.clock()
        return self.since

    @property
    def seconds_in_phase(self) -> float:
        """Seconds in the current phase."""
        return self.clock() - self.since


def _caused_by_call(failure: EnvFailure) -> bool:
    """Return whether a call makes an environment fail wherever it is made; not so if workers are lost otherwise."""
    return failure.kind in ("raised", "wrong", "hung") or failure.blamed


def _check_version(answer: Action, oldest: int, newest: int) -> None:
    if answer.calls:
        for call in answer.calls:
            _check_version(call, oldest, newest)
        return
    versions = answer.versions or (answer.policy_version,)
    if min(versions) < oldest or max(versions) > newest:
        raise BadValue(
            f"an action reports versions {min(versions)} to {max(versions)} of the weights, but the agent's version "
            f"was {oldest} to {newest}; set policy_version"
        )


def fingerprint(answer: Any) -> int:
    """Return a hash of an answer, stable within this process."""
    if isinstance(answer, EnvResult):
        return answer.fingerprint
    try:
        return hash(_shown.repr(answer))
    except BaseException:  # nested too deeply, or of a class whose repr() raises
        return 0


#: Shortens values and handles those that contain themselves.
_shown = reprlib.Repr()
vars(_shown).update(maxlevel=4, maxlist=30, maxtuple=30, maxdict=30, maxstring=1000)
