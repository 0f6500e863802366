"""A served environment as an ordinary one."""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from rollenv.core import Env, ResetResult, StepResult
from rollenv.env_spec import EnvSpec
from rollenv.errors import RollenvError, UsageError
from rollenv.remote import protocol
from rollenv.remote.address import Address, parse
from rollenv.remote.connection import Connection
from rollenv.remote.protocol import EnvBroke, ServerLost, SessionGone
from rollenv.remote.replay_log import ReplayLog, new_seed

#: The methods that come with an ability.
_METHODS = {
    "state": ("get_state", "set_state"),
    "spawn": ("spawn",),
    "random_action": ("sample_random_action",),
    "oracle": ("oracle_action",),
    "state_key": ("state_key",),
}

#: How often an episode may be brought to another server in one call.
_MOVES = 5


@functools.lru_cache(maxsize=1024)
def spec_of(text: str) -> EnvSpec:
    """The spec of a served environment: what its server says of it, with the address as its id.

    Args:
        text: ``rollenv+ws://HOST:PORT/ENV_ID``.

    Raises:
        UsageError: the address is wrong.
        UnknownEnv: the server has no such environment.
        ServerLost: no server answers.
    """
    addresses, env_id = parse(text)
    if not env_id:
        raise UsageError(f"{text} names no environment: add /ENV_ID")
    about = Servers.of(addresses).ask("spec", env_id)
    return EnvSpec(
        text,
        "rollenv.remote.env:make_remote",
        {"address": text},
        abilities=frozenset(about["abilities"]),
        nondeterministic=about["nondeterministic"],
        oracle_success=about["oracle_success"],
        indexed=about["indexed"],
        levels=tuple(about["levels"]),
        summary=about["summary"],
    )


def make_remote(address: str, render_mode: str | None = "text", **kwargs: Any) -> Env:
    """Open a session with a served environment.

    Raises:
        UsageError: wrong arguments.
        ServerFull: no server has room.
        NotAllowed: the token is missing, wrong, or not for environments.
    """
    addresses, env_id = parse(address)
    if render_mode != "text":
        kwargs["render_mode"] = render_mode
    return RemoteEnv.open(addresses, env_id, kwargs)


class Servers:
    """A thread's connections to the servers of an address, which its environments share."""

    _mine = threading.local()

    @classmethod
    def of(cls, addresses: tuple[Address, ...]) -> Servers:
        mine = cls._mine.__dict__
        if mine.get("pid") != os.getpid():  # a fork, with the connections of its parent
            mine.clear()
            mine["pid"] = os.getpid()
        servers: dict[tuple[Address, ...], Servers] = mine.setdefault("servers", {})
        if addresses not in servers:
            servers[addresses] = cls(addresses)
        return servers[addresses]

    def __init__(self, addresses: tuple[Address, ...]):
        alone = len(addresses) == 1
        self.connections = [Connection(a, patience=30.0 if alone else 3.0, alone=alone) for a in addresses]
        self._turn = threading.get_ident() // 4096  # threads begin at different servers

    def in_turn(self) -> list[Connection]:
        """All connections: first the one that opens the next session, last those that were lost a short while ago."""
        first = self._turn % len(self.connections)
        turn = [*self.connections[first:], *self.connections[:first]]
        return sorted(turn, key=lambda connection: connection.recently_lost)

    def ask(self, operation: str, *args: Any) -> Any:
        """Ask the servers in turn until one answers.

        Raises:
            ServerLost: none answers.
        """
        return self.first(lambda connection: connection.ask(operation, *args))

    def first(self, ask: Any) -> Any:
        """Return the answer of the first server that is reachable and has room.

        Args:
            ask: called with one connection after the other.
        """
        problem: Exception | None = None
        for connection in self.in_turn():
            try:
                return ask(connection)
            except (ServerLost, protocol.ServerFull) as error:
                problem = error
        assert problem is not None
        raise problem

    def open(self, begin: Any) -> None:
        """Open a session at the next server in turn.

        Args:
            begin: called with one connection after the other.
        """
        self._turn += 1
        self.first(begin)


class RemoteEnv(Env):
    """An environment on a server. If that dies or ends the session, the episode is replayed at another, or the same.

    It may be used from any thread, from one at a time.
    """

    def __init__(self, addresses: tuple[Address, ...], env_id: str, kwargs: dict[str, Any], history: ReplayLog):
        self._addresses, self._env_id, self._kwargs, self._history = addresses, env_id, kwargs, history
        self._where: Address | None = None
        self._session, self._count, self._pid = "", 0, os.getpid()
        """The count is of calls that were answered."""
        self._lost: tuple[str, int] | None = None
        """A session that may go on, here or in another server, and its count."""
        self._ahead: tuple[Connection, int, str] | None = None
        """A step that is about to be played: where it was sent, its number there, its action."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy plays on in a session of its own."""
        state = self.__dict__ | {
            "_session": "",
            "_lost": None,
            "_ahead": None,
            "_history": ReplayLog(list(self._history.calls)),
        }
        return _copy_of, (frozenset(_ABLE.keys() & type(self).__dict__.keys()), state)

    @classmethod
    def open(
        cls, addresses: tuple[Address, ...], env_id: str, kwargs: dict[str, Any], history: ReplayLog | None = None
    ) -> RemoteEnv:
        """A new session, in the state that a history leads to."""
        about = Servers.of(addresses).ask("spec", env_id)
        names = [name for ability in about["abilities"] for name in _METHODS[ability]]
        env = _class_with(frozenset([*names, *(["num_tasks"] if about["indexed"] else [])]))(
            addresses, env_id, kwargs, history or ReplayLog()
        )
        env._begin()
        return env

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        raise NotImplementedError  # reset() is the server's

    def reset(self, seed: int | None = None, *, options: dict[str, Any] | None = None) -> ResetResult:
        given = self._checked_options(options)
        if seed is None and self._history.needs_seed:
            seed = new_seed()
        observation, info = self._call("reset", None if seed is None else self._checked(seed), given)[:2]
        if seed is not None:
            super().seed_stream(seed)  # for Gymnasium, which looks at it; nothing is drawn from it
        self._over, self._begun = False, True
        return observation, info

    def _step(self, action: str) -> StepResult:
        observation, reward, terminated, truncated, info = self._call("step", action)[:5]
        return observation, reward, terminated, truncated, info

    @staticmethod
    def steps_ahead(steps: Sequence[tuple[Env, str]]) -> None:
        """Send the steps that are about to be played, in one message for each server. :meth:`step` takes the answers.

        Args:
            steps: environments and their actions; those that are not served, or whose session has to begin, wait.
        """
        by_server: dict[Connection, list[tuple[RemoteEnv, str]]] = {}
        for env, action in steps:
            if not isinstance(env, RemoteEnv) or not isinstance(action, str):
                continue
            if env._session and env._pid == os.getpid() and not env._over and env._ahead is None:
                by_server.setdefault(env._connection(), []).append((env, action))
        for connection, ready in by_server.items():
            requests = [["call", env._session, env._count + 1, "step", [action]] for env, action in ready]
            for (env, action), number in zip(ready, connection.send_ahead(requests), strict=False):
                env._ahead = (connection, number, action)

    def render(self) -> str:
        return str(self._call("render"))

    def seed_stream(self, seed: int) -> None:
        self._call("seed_stream", self._checked(seed))

    def seed_actions(self, seed: int) -> None:
        self._call("seed_actions", seed)

    def close(self) -> None:
        self._leave_to_the_parent()
        session, self._session = self._session, ""
        if self._ahead is not None:
            self._ahead[0].forget(self._ahead[1])
            self._ahead = None
        if session and self._where is not None:
            _close(self._connection(), session)

    def _checked(self, seed: int) -> int:
        try:
            if (whole := operator.index(seed)) >= 0:
                return whole
        except TypeError:
            pass
        raise UsageError(f"{self}: a seed must be a non-negative integer, not {seed!r}")

    # -- inside --------------------------------------------------------------------------------------------------------

    def _call(self, method: str, *args: Any) -> Any:
        """Call a method of the environment, and bring it to another server first if need be."""
        self._leave_to_the_parent()
        if method == "set_state":
            args = copy.deepcopy(args)  # which the caller may change before they are needed again
        again, problem = False, RollenvError()
        for _ in range(_MOVES):
            try:
                if not self._session:
                    self._begin(again)
            except SessionGone as error:  # during the replay
                problem = error
                continue
            try:
                answer = self._ask(method, list(args))
                break
            except SessionGone as error:
                self._session, self._lost, problem = "", None, error
            except ServerLost as error:
                again, problem = True, error
        else:
            raise problem
        if protocol.METHODS[method]:
            self._history.add(method, list(args), protocol.fingerprint(method, answer))
        return answer

    def _leave_to_the_parent(self) -> None:
        """After a fork, the session is the parent's: both would count its calls alike, and get each other's answers."""
        if self._pid != os.getpid():
            self._session, self._lost, self._ahead, self._pid = "", None, None, os.getpid()

    def _ask(self, method: str, args: list[Any]) -> Any:
        """Call a method in the session."""
        try:
            answer = self._answer(self._connection(), method, args)
        except protocol.Unsendable:
            raise
        except BaseException as error:
            if _is_outcome(error):
                self._count += 1
            else:  # whether it was carried out is unknown
                self._lost, self._session = (self._session, self._count), ""
            raise
        self._count += 1
        return answer

    def _answer(self, connection: Connection, method: str, args: list[Any]) -> Any:
        if self._ahead is not None:
            where, number, action = self._ahead
            self._ahead = None
            if (method, args) == ("step", [action]) and where is connection:  # and not another thread's
                with contextlib.suppress(ServerLost, protocol.ServerFull):  # asked again, it answers the same
                    return connection.collect(number)
            where.forget(number)
            if (method, args) != ("step", [action]):
                _close(connection, self._session)
                raise SessionGone("it is one step ahead, which nobody asked for in the end")
        return connection.ask("call", self._session, self._count + 1, method, args)

    def _connection(self) -> Connection:
        servers = Servers.of(self._addresses)
        return next(c for c in servers.connections if c.address == self._where)

    def _goes_on(self, connection: Connection, again: bool) -> bool:
        """Return whether the lost session was resumed; with ``again`` its last call may have been carried out."""
        if self._lost is None:
            return False
        session, answered = self._lost
        try:
            count = connection.ask("resume", session)
        except SessionGone:
            return False
        if count != answered and not (again and count == answered + 1):  # it is not where the episode is
            _close(connection, session)
            return False
        self._where, self._session, self._count, self._lost = connection.address, session, answered, None
        return True

    def _begin(self, again: bool = False) -> None:
        """Go on with the session, or open one and replay what was played."""

        def begin(connection: Connection) -> None:
            if self._goes_on(connection, again):
                return
            name, lost = protocol.session_name(), self._lost
            about = connection.ask("open", name, self._env_id, {"kwargs": self._kwargs})
            self._where, self._session, self._count = connection.address, name, 0
            self.reset_options = frozenset(about["reset_options"])
            try:
                for number, (method, args, _) in enumerate(self._history.calls):
                    answer = self._ask(method, list(args))
                    self._history.check(number, protocol.fingerprint(method, answer), self._env_id)
            except BaseException as error:
                self._session, self._lost = "", lost  # it is not where the episode was
                if isinstance(error, RollenvError):
                    _close(connection, name)
                raise
            self._lost = None

        Servers.of(self._addresses).open(begin)


def _is_outcome(error: BaseException) -> bool:
    """Return whether it is what became of a call, which counts, and does not leave that open."""
    if isinstance(error, ServerLost | protocol.ServerError):
        return isinstance(error, EnvBroke)
    return isinstance(error, RollenvError)


def _close(connection: Connection, session: str) -> None:
    """End a session, if that is possible now; else its lease does."""
    with contextlib.suppress(ServerLost, protocol.ServerError):
        connection.ask_once("close", session)


@functools.lru_cache(maxsize=64)
def _class_with(methods: frozenset[str]) -> type[RemoteEnv]:
    """The class of environments with some abilities and no others."""
    return type("RemoteEnv", (RemoteEnv,), {name: _ABLE[name] for name in methods} | {"__doc__": RemoteEnv.__doc__})


def _copy_of(methods: frozenset[str], state: dict[str, Any]) -> RemoteEnv:
    env = object.__new__(_class_with(methods))
    env.__dict__.update(state)
    return env


def _get_state(self: RemoteEnv) -> dict[str, Any]:
    return self._call("get_state")  # type: ignore[no-any-return]


def _set_state(self: RemoteEnv, state: dict[str, Any]) -> None:
    self._call("set_state", state)
    self._over, self._begun = state["over"], True


def _spawn(self: RemoteEnv, same_state: bool = False, **kwargs: Any) -> Env:
    if not same_state:
        return Env.spawn(self, **kwargs)
    if kwargs:
        raise UsageError(f"{self}: spawn(same_state=True) takes no other arguments, got {sorted(kwargs)}")
    twin = RemoteEnv.open(self._addresses, self._env_id, self._kwargs, ReplayLog(list(self._history.calls)))
    twin.spec, twin._over, twin._begun = self.spec, self._over, self._begun
    return twin


_ABLE: dict[str, Callable[..., Any]] = {
    "get_state": _get_state,
    "set_state": _set_state,
    "spawn": _spawn,
    "num_tasks": lambda self: int(self._call("num_tasks")),
    "sample_random_action": lambda self: str(self._call("sample_random_action")),
    "oracle_action": lambda self: str(self._call("oracle_action")),
    "state_key": lambda self: str(self._call("state_key")),
}
