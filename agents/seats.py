"""Several agents in one episode: :class:`Seats`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from rollenv.agents.base import Action, Agent, AgentFailed, EnvHandle, Session, member
from rollenv.agents.engines.base import EngineFailed, EngineLost
from rollenv.core.errors import RollenvError, UsageError, describe, error_text

#: Keys of an info that speak of all players; an agent gets only what is its own.
_OF_ALL = ("rewards", "observations", "success", "forfeit")

#: Names of agents that are trained.
_LEARN = ("learner", "rival")


class SeatFailed(AgentFailed):
    """A player's failure, by which it forfeits the game.

    Args:
        seat: the player.
        outcome: the end of the episode in the health records: "agent_failed", "failed" or "completed".
    """

    def __init__(self, seat: int, text: str, outcome: str = "agent_failed"):
        super().__init__(text)
        self.seat, self.outcome = seat, outcome


class Seats(Agent):
    """Takes the seats of a game with several agents; each has a session of its own, which sees only its own turns.

    Attributes that it does not have, such as the version and the update of weights, are the first agent's, which is the
    one that is trained or evaluated.

    Args:
        agents: the first one takes seat 0, the others the next ones; the last one takes all seats that are left.
        names: names of the agents in records. Only the tokens of those called "learner" and "rival" are kept, to be
            trained on.
        rotate: move all agents by a number of seats that depends on the task's seed, so that each plays all roles.
        seconds: deadline of an answer of all agents but the first; who misses it forfeits.
        equal: whether this holds for the first agent, too, which then cannot end the rollout either.
    """

    def __init__(
        self,
        agents: Sequence[Agent],
        names: Sequence[str] = (),
        *,
        rotate: bool = False,
        seconds: float = 600.0,
        equal: bool = False,
    ):
        if not agents or (names and len(names) != len(agents)):
            raise UsageError(f"seats need at least one agent, and a name for each: got {len(agents)} and {names!r}")
        self.agents, self.rotate, self.seconds, self.equal = list(agents), rotate, seconds, equal
        self.names = list(names) or ["learner", *(type(agent).__name__ for agent in agents[1:])]

    def __getattr__(self, name: str) -> Any:
        if name == "agents":  # while it is copied
            raise AttributeError(name)
        return getattr(self.agents[0], name)

    @property
    def version(self) -> Any:
        """The first agent's number of updates; None if all are equal, as none may speak for the others."""
        return None if self.equal else member(self.agents[0], Agent, "version")

    @version.setter
    def version(self, version: Any) -> None:
        first: Any = self.agents[0]
        first.version = version

    async def prepare(self, env_id: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        for agent in self.agents:
            kwargs = await member(agent, Agent, "prepare")(env_id, kwargs)
        return kwargs

    def start(self, env: EnvHandle, seed: int) -> Session:
        """Start a session in an environment of one player, which the first agent plays."""
        return self.agents[0].start(env, seed)

    def deal(self, env: EnvHandle, seed: int, players: int, group: int, roles: Sequence[str] = ()) -> SeatsSession:
        """Seat the agents of an episode, whose sessions :meth:`SeatsSession.sit` starts.

        Args:
            roles: names of the seats' roles, which the record gets.
            group: a number that all members of a group share, from which the rotation follows.
        """
        if len(self.agents) > players:
            raise UsageError(f"{env.env_id} has {players} seats, fewer than the {len(self.agents)} agents")
        first = group % players if self.rotate else 0
        row = [min(seat, len(self.agents) - 1) for seat in range(players)]
        return SeatsSession(self, env, seed, row[-first:] + row[:-first], first, group, roles)


class _SeatEnv:
    """The environment for one seat: the time and the errors of its calls are not the agent's."""

    def __init__(self, env: EnvHandle, seconds: float):
        self._env = env
        self.deadline: asyncio.Timeout | None = None
        self.failure: BaseException | None = None
        """The exception of the last failed call."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    async def call(self, method: str, *args: Any) -> Any:
        """Call the environment, which may have to be replayed elsewhere first, while the deadline rests."""
        clock = asyncio.get_running_loop().time
        at = self.deadline.when() if self.deadline else None
        left = None if at is None else at - clock()
        if self.deadline and left is not None:
            self.deadline.reschedule(None)
        try:
            return await self._env.call(method, *args)
        except BaseException as error:
            self.failure = error
            raise
        finally:
            if self.deadline and left is not None:
                self.deadline.reschedule(clock() + left)


class SeatsSession(Session):
    """The sessions of an episode's seats.

    Attributes:
        seat: the seat of the first agent; of one that takes all seats, the one from which the episode is seen.
    """

    def __init__(
        self,
        seats: Seats,
        env: EnvHandle,
        seed: int,
        row: Sequence[int],
        seat: int,
        group: int,
        roles: Sequence[str] = (),
    ):
        self.seats, self.row, self.seat, self.seed = seats, list(row), seat, seed
        self.names = [seats.names[number] for number in row]
        self.group, self.roles = group, list(roles)
        self.sessions: list[Session] = []
        self.envs = [_SeatEnv(env, seats.seconds) for _ in row]
        self.replayable = True  # type: ignore[misc]
        """True if this holds for all sessions."""
        self._failure: SeatFailed | None = None

    def sit(self, seat: int) -> None:
        """Start the session of the next seat."""
        agent: Any = self.seats.agents[self.row[seat]]
        if hasattr(agent, "draw"):  # one of several players, the same for all members of a group
            agent, self.names[seat] = agent.draw(self.group)
        # Streams differ by seat; the first agent has that of an episode which it plays alone.
        seed = self.seed + (seat - self.row.index(0)) % len(self.row) * 100_003
        self.sessions.append(agent.start(self.envs[seat], seed))
        own = bool(member(self.sessions[seat], Session, "replayable"))
        self.replayable = self.replayable and own  # type: ignore[misc]

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        """Return the action of the player whose turn it is."""
        seat = info["player"]
        own = {key: value for key, value in info.items() if key not in _OF_ALL}
        first = self.row[seat] == 0 and not self.seats.equal
        try:
            async with asyncio.timeout(None if first else self.seats.seconds) as deadline:
                self.envs[seat].deadline = None if first else deadline
                action: Action = await self.sessions[seat].act(observation, own)
        except TimeoutError:
            if not deadline.expired():
                raise
        if deadline.expired():  # it may have ignored its cancellation
            raise self.failure(seat, f"did not answer within {self.seats.seconds:g} s")
        if not first and not (isinstance(action, Action) and isinstance(action.text, str)):
            raise self.failure(seat, f"gave no Action with a text, but {action!r:.60}")
        if first or self.names[seat] in _LEARN:
            return action
        version = self.seats.version or 0  # an action may not claim other weights than the learner's
        return Action(
            action.text,
            policy_version=version,
            finish=action.finish,
            raw=action.raw,
            messages=action.messages,
            prompt=action.prompt,
        )

    def who(self, seat: int) -> str:
        """Return words for a player."""
        return f"seat {seat} ({self.names[seat]})"

    def blame(self, seat: int, error: BaseException) -> BaseException:
        """Return what a player's error means: that it forfeits, unless the error ends the rollout.

        A lost engine does. So does what the first agent raises on purpose, such as a wrong setting or a spent budget,
        unless all are equal.
        """
        first = self.row[seat] == 0 and not self.seats.equal
        on_purpose = isinstance(error, RollenvError) and not isinstance(error, AgentFailed | EngineFailed)
        ends = not isinstance(error, Exception) or isinstance(error, EngineLost) or error is self._failure
        if ends or (first and on_purpose):
            return error
        what = error_text(error) if isinstance(error, RollenvError) else describe(error)
        return self.failure(seat, f"failed: {what}")

    def failure(self, seat: int, what: str) -> SeatFailed:
        """Return a player's failure. Many in a row end the rollout, unless all are equal, which none may end."""
        outcome = "completed" if self.seats.equal else "agent_failed"
        self._failure = SeatFailed(seat, f"{self.who(seat)} {what}", outcome)
        return self._failure

    def next_prompt(self, observation: str, info: dict[str, Any]) -> tuple[int, ...]:
        if info.get("player") != self.seat or self.seats.equal:  # equal ones are not trained
            return ()
        prompt: tuple[int, ...] = member(self.sessions[self.seat], Session, "next_prompt")(observation, info)
        return prompt

    def record(self) -> dict[str, Any]:
        """Return the record of the first agent's session, with each seat's agent (``seats``) and role (``roles``)."""
        roles = {"roles": self.roles} if self.roles else {}
        own = member(self.sessions[self.seat], Session, "record")() if self.seat < len(self.sessions) else {}
        return {**own, "seats": self.names, **roles}

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # all of them, even if one raises
            for session in self.sessions:
                stack.callback(member(session, Session, "close"))
