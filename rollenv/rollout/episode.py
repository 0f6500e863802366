"""One episode, played to its end whatever its environment does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rollenv.agents.base import Action, Agent, AgentFailed, ContextFull, Session
from rollenv.core import UsageError
from rollenv.rollout.health import Health, Record
from rollenv.rollout.types import Trajectory, Turn
from rollenv.rollout.workers import EnvFailure, Seen, WorkerEnv, Workers

#: Workers that an episode may lose before it is taken for what kills them.
_SUSPICIOUS = 5


@dataclass(frozen=True)
class Limits:
    """Deadlines in seconds, and how much failure is borne. Deadlines of environments need interruptible workers."""

    reset: float | None = 300.0
    """For building and resetting an environment."""
    step: float | None = 120.0
    """For every other call into it."""
    agent: float | None = None
    """For one answer of the agent."""
    episode: float | None = None
    """For the whole episode; one that takes longer has failed."""
    max_replays: int = 3
    """How often an episode may be continued after its environment raised or hung."""
    max_losses: int = 20
    """How often it may be continued after its worker was lost, which is mostly the fault of others."""
    max_backoff: float = 10.0
    """The longest that attempts at an environment, and new work for a worker, rest after failures in a row."""
    max_replacements: int = 2
    """How many further members may take the places of failed ones, for each that a group needs."""

    def __post_init__(self) -> None:
        for name in ("reset", "step", "agent", "episode"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"the deadline {name!r} is a number of seconds above 0 or None, not {value!r}")
        for name in ("max_replays", "max_losses", "max_backoff", "max_replacements"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} cannot be negative, got {getattr(self, name)}")


#: A call that the environment answered: method, arguments, fingerprint. Enough to make it again and to see whether the
#: answer is the same. A plain tuple, because there is one for every turn.
_Done = tuple[str, tuple[Any, ...], int]


@dataclass(eq=False, slots=True)
class Episode:
    """Plays one trajectory.

    What the environment was asked is kept. When it crashes, hangs or is lost with its worker, a new one is asked the
    same again, which by the contract gives the same answers, and the episode goes on; the agent does not notice.
    """

    trajectory: Trajectory
    agent: Agent
    workers: Workers
    limits: Limits
    health: Health
    views: bool
    clock: Callable[[], float]
    """Seconds; the event loop's time."""
    quarantine: asyncio.Lock
    """Held by the one episode that plays although it lost several workers: its environment may be what kills them."""
    env: WorkerEnv | None = None
    records: tuple[Record, ...] = ()
    """Where successes are noted: the environment id's and the worker's."""
    done: list[_Done] = field(default_factory=list)
    outcome: str = "failed"
    """How it ended, as :meth:`Record.ended` counts it."""
    failures: Counter[str] = field(default_factory=Counter)
    phase: str = "waiting"
    quarantined: bool = False
    since: float = field(init=False)

    def __post_init__(self) -> None:
        self.since = self.clock()

    @property
    def env_id(self) -> str:
        """The id of the environment that is played."""
        return self.trajectory.task.env_id

    async def play(self) -> Trajectory:
        """Play to the end; failures are in the trajectory's status.

        Raises:
            UsageError: the task itself is wrong.
            Exception: whatever the agent raises besides its declared errors.
        """
        trajectory = self.trajectory
        started = self.clock()
        try:
            async with asyncio.timeout(self.limits.episode) as deadline:
                await self._play()
        except AgentFailed as failure:
            trajectory.status, trajectory.error = "failed", str(failure)
            self.outcome = "agent_failed"
        except EnvFailure as failure:
            trajectory.status, trajectory.error = "failed", str(failure)
        except TimeoutError:
            if not deadline.expired():
                raise
            trajectory.status = "failed"
            trajectory.error = f"the episode took longer than {self.limits.episode} s; its phase was {self.phase!r}"
        except asyncio.CancelledError:
            trajectory.status = self.outcome = "cancelled"
            raise
        finally:
            trajectory.seconds = self.clock() - started
            self.enter("over")
            self._release()
            if self.quarantined:
                self.quarantine.release()
        return trajectory

    async def _play(self) -> None:
        trajectory = self.trajectory
        seen = await self._robust("reset")
        session = self.agent.start(self, trajectory.task.seed * 1_000_003 + trajectory.member)
        try:
            while not (seen.terminated or seen.truncated):
                action = await self._answer(session, seen)
                if action is None:
                    seen.truncated = True
                    break
                before, seen = seen, await self._robust("step", action.text)
                trajectory.turns.append(turn_of(before, action, seen.reward))
        finally:
            session.close()
        trajectory.status = "terminated" if seen.terminated else "truncated"
        self.outcome = "completed"
        trajectory.success = bool(seen.info.get("success", False))
        trajectory.final_observation = seen.observation
        trajectory.final_view = seen.view

    async def _answer(self, session: Session, seen: Seen) -> Action | None:
        """The agent's action; None if its context is full."""
        began = self.enter("agent")
        try:
            if self.limits.agent is None:
                return await session.act(seen.observation, seen.info)
            async with asyncio.timeout(self.limits.agent) as deadline:
                return await session.act(seen.observation, seen.info)
        except ContextFull:
            return None
        except TimeoutError:
            if self.limits.agent is not None and deadline.expired():
                raise AgentFailed(f"the agent did not answer within {self.limits.agent} s") from None
            raise
        finally:
            self.trajectory.agent_seconds += self.clock() - began

    async def call(self, method: str, *args: Any) -> Any:
        """For the agent: any method of the environment."""
        before = self.phase
        answer = await self._robust("call", method, *args)
        self.enter(before)
        return answer

    def _enough(self) -> bool:
        """Whether the episode is to be given up."""
        lost = self.failures["lost"]
        others = self.failures.total() - lost
        return bool(self.failures["differs"]) or lost > self.limits.max_losses or others > self.limits.max_replays

    # -- asking the environment --------------------------------------------------------------------------------------

    async def _robust(self, method: str, *args: Any) -> Any:
        """Ask the environment; where it fails, ask another one that was brought to the same point."""
        while True:
            try:
                if self.env is None:
                    seen = await self._begin()
                    if method == "reset":
                        return seen
                answer = await self._ask(method, args)
            except EnvFailure as failure:
                self._count(failure)
                self.failures[failure.kind] += 1
                if self._enough():
                    raise
                self.trajectory.replays += 1
            else:
                self.done.append((method, args, fingerprint(answer)))
                return answer

    async def _begin(self) -> Seen:
        """A new environment, brought to where the last one was."""
        record = self.health.env(self.env_id)
        if record.backoff:
            self.enter("backoff")
            await asyncio.sleep(record.backoff)
        self.enter("waiting")
        if self.failures["lost"] >= _SUSPICIOUS and not self.quarantined:
            await self.quarantine.acquire()
            self.quarantined = True
        self.env = await self.workers.open(self.trajectory.task, views=self.views, shun=self.health.shuns)
        self.trajectory.worker = self.env.worker
        self.records = self.health.env(self.env_id), self.health.worker(self.env.worker)
        first: Seen = await self._ask("reset", ())
        if not self.done:
            self.done.append(("reset", (), first.fingerprint))
        for number, (method, args, expected) in enumerate(self.done):
            answer = await self._ask(method, args, "replay") if number else first
            if fingerprint(answer) != expected:
                text = f"{self.env_id}: replayed with the same seed and actions, call {number} gave another answer"
                raise EnvFailure("differs", f"{text}; `rollenv check {self.env_id}` tells what it depends on")
        return first

    async def _ask(self, method: str, args: tuple[Any, ...], phase: str = "") -> Any:
        """One call into the environment, within its deadline."""
        assert self.env is not None
        began = self.enter(phase or method)
        if not self.workers.interruptible:
            answer = await getattr(self.env, method)(*args)
        else:
            seconds = self.limits.reset if method == "reset" else self.limits.step
            try:
                async with asyncio.timeout(seconds) as deadline:
                    answer = await getattr(self.env, method)(*args)
            except TimeoutError:
                if not deadline.expired():
                    raise
                raise EnvFailure("hung", f"{method} did not return within {seconds} s") from None
        took = self.clock() - began
        for record in self.records:
            record.ok(method, took)
        return answer

    def _count(self, failure: EnvFailure) -> None:
        """Note a failure and let go of the environment that had it."""
        self.health.failed(self.env_id, self.env.worker if self.env else "", failure.kind, str(failure))
        if self.env is not None and failure.kind == "hung":
            self.env.abandon()
            self.env = None
        self._release()

    def _release(self) -> None:
        if self.env is not None:
            self.env.close()
            self.env = None

    def enter(self, phase: str) -> float:
        """Enter a phase; the time."""
        self.phase = phase
        self.since = self.clock()
        return self.since

    @property
    def seconds_in_phase(self) -> float:
        """How long it has been doing what it does."""
        return self.clock() - self.since


def turn_of(before: Seen, action: Action, reward: float) -> Turn:
    """The turn in which the agent answered ``before`` with ``action``."""
    return Turn(
        action.prompt_ids,
        action.response_ids,
        action.logprobs,
        reward,
        action.text,
        before.observation,
        before.state_key,
        action.policy_version,
        action.versions,
        action.finish,
        before.view,
    )


def fingerprint(answer: Any) -> int:
    """Equal, within this process, for equal answers."""
    return answer.fingerprint if isinstance(answer, Seen) else hash(repr(answer))
