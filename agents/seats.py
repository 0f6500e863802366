"""Several agents in one episode: :class:`Seats`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from rollenv.agents.base import Action, Agent, AgentFailed, ContextFull, EnvHandle, Session, member
from rollenv.core.errors import RollenvError, UsageError

#: Keys of an info that speak of all players; an agent gets only what is its own.
_OF_ALL = ("rewards", "observations", "success")

#: Names of agents that are trained.
_LEARN = ("learner", "rival")


class Seats(Agent):
    """Takes the seats of a game with several agents; each has a session of its own, which sees only its own turns.

    Attributes that it does not have, such as the version and the update of weights, are the first agent's, which is the
    one that is trained or evaluated.

    Args:
        agents: the first one takes seat 0, the others the next ones; the last one takes all seats that are left.
        names: names of the agents in records. Only the tokens of those called "learner" and "rival" are kept, to be
            trained on.
        rotate: move all agents by a number of seats that depends on the task's seed, so that each plays all roles.
        seconds: deadline of an answer of all agents but the first, which then fails the episode.
        equal: whether this holds for the first agent, too, and what it raises fails the episode as with the others.
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
        """The first agent's number of updates."""
        return member(self.agents[0], Agent, "version")

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
        """Start the sessions of an episode.

        Args:
            roles: names of the seats' roles, which the record gets.
            group: a number that all members of a group share, from which the rotation follows.
        """
        if len(self.agents) > players:
            raise UsageError(f"{env.env_id} has {players} seats, fewer than the {len(self.agents)} agents")
        first = group % players if self.rotate else 0
        row = [min(seat, len(self.agents) - 1) for seat in range(players)]
        return SeatsSession(self, env, seed, row[-first:] + row[:-first] if first else row, group, roles)


class _SeatEnv:
    """The environment for one seat: the time and the errors of its calls are not the agent's."""

    def __init__(self, env: EnvHandle, seconds: float):
        self._env, self.seconds = env, seconds
        self.deadline: asyncio.Timeout | None = None
        self.error: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    async def call(self, method: str, *args: Any) -> Any:
        """Call the environment, which may have to be replayed elsewhere first, while the deadline rests."""
        if self.deadline:
            self.deadline.reschedule(None)
        try:
            return await self._env.call(method, *args)
        except BaseException as error:
            self.error = error
            raise
        finally:
            if self.deadline:
                self.deadline.reschedule(asyncio.get_running_loop().time() + self.seconds)


class SeatsSession(Session):
    """The sessions of an episode's seats.

    Attributes:
        seat: the seat of the first agent.
    """

    def __init__(
        self, seats: Seats, env: EnvHandle, seed: int, row: Sequence[int], group: int, roles: Sequence[str] = ()
    ):
        self.seats, self.row, self.seat = seats, list(row), list(row).index(0)
        self.names = [seats.names[number] for number in row]
        self.roles = list(roles)
        self.sessions: list[Session] = []
        self.envs = [_SeatEnv(env, seats.seconds) for _ in row]
        for seat, number in enumerate(row):
            agent: Any = seats.agents[number]
            if hasattr(agent, "draw"):  # one of several players, the same for all members of a group
                agent, self.names[seat] = agent.draw(group)
            # Streams differ by seat; the first agent has that of an episode which it plays alone.
            try:
                with self._faults(seat):
                    self.sessions.append(agent.start(self.envs[seat], seed + (seat - self.seat) % len(row) * 100_003))
            except BaseException:
                self.close()
                raise
        self.replayable = all(member(session, Session, "replayable") for session in self.sessions)  # type: ignore[misc]

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        """Return the action of the player whose turn it is."""
        seat = info["player"]
        own = {key: value for key, value in info.items() if key not in _OF_ALL}
        first = self.row[seat] == 0 and not self.seats.equal
        with self._faults(seat):
            async with asyncio.timeout(None if first else self.seats.seconds) as deadline:
                self.envs[seat].deadline = None if first else deadline
                action: Action = await self.sessions[seat].act(observation, own)
            if deadline.expired():  # it ignored its cancellation
                raise TimeoutError
            if not first and not (isinstance(action, Action) and isinstance(action.text, str)):
                raise TypeError(f"an answer must be an Action with a text, not {action!r:.60}")
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

    @contextlib.contextmanager
    def _faults(self, seat: int) -> Iterator[None]:
        """Make what an opponent raises a failure of the episode: neither a loss of its own nor the end of the rollout.

        The first agent's faults are the episode's to tell, unless all are equal.
        """
        who = f"seat {seat} ({self.names[seat]})"
        try:
            yield
        except Exception as error:
            if (self.row[seat] == 0 and not self.seats.equal) or error is self.envs[seat].error:
                raise
            if isinstance(error, ContextFull):
                raise AgentFailed(f"{who}: the context is full: {error}") from error
            if isinstance(error, RollenvError):
                raise AgentFailed(f"{who}: {error}") from error
            deadline = self.envs[seat].deadline
            if isinstance(error, TimeoutError) and deadline and deadline.expired():
                raise AgentFailed(f"{who} did not answer within {self.seats.seconds:g} s") from None
            raise AgentFailed(f"{who} raised {type(error).__name__}: {error}") from error

    def next_prompt(self, observation: str, info: dict[str, Any]) -> tuple[int, ...]:
        if info.get("player") != self.seat:
            return ()
        prompt: tuple[int, ...] = member(self.sessions[self.seat], Session, "next_prompt")(observation, info)
        return prompt

    def record(self) -> dict[str, Any]:
        """Return the record of the first agent's session, with each seat's agent (``seats``) and role (``roles``)."""
        roles = {"roles": self.roles} if self.roles else {}
        return {**member(self.sessions[self.seat], Session, "record")(), "seats": self.names, **roles}

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # all of them, even if one raises
            for session in self.sessions:
                stack.callback(member(session, Session, "close"))
