"""Served environments with the interface of local ones."""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.pictures import Picture
from rollenv.remote import protocol
from rollenv.remote.address import Address, parse
from rollenv.remote.connection import Connection
from rollenv.remote.protocol import EnvBroke, ServerLost, SessionGone
from rollenv.remote.replay_log import ReplayLog, new_seed

#: Methods by ability.
_METHODS = {
    "state": ("get_state", "set_state"),
    "spawn": ("spawn",),
    "random_action": ("sample_random_action",),
    "oracle": ("oracle_action",),
    "state_key": ("state_key",),
}

#: Maximum moves of an episode to another server in one call.
_MOVES = 5


@functools.lru_cache(maxsize=1024)
def spec_of(text: str) -> EnvSpec:
    """Return the server's spec of an environment, with the address as its id.

    Args:
        text: ``rollenv+ws://HOST:PORT/ENV_ID``.

    Raises:
        UnknownEnv: the server has no such environment.
        ServerLost: no server answers.
    """
    addresses, env_id = parse(text)
    if not env_id:
        raise UsageError(f"{text} has no environment id: add /ENV_ID")
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


def make_remote(address: str, render_mode: str | None = "text", images: str | None = None, **kwargs: Any) -> Env:
    """Open a session with a served environment.

    Raises:
        UsageError: ``render_mode`` is "rgb_array".
        ServerFull: no server has room.
        NotAllowed: the token is missing, wrong, or lacks the scope "environments".
    """
    addresses, env_id = parse(address)
    if render_mode == "rgb_array":
        raise UsageError(f"{env_id}: a server draws no rgb_array; images='also' puts the board's picture into info")
    if render_mode != "text":
        kwargs["render_mode"] = render_mode
    if images is not None:
        kwargs["images"] = images
    return RemoteEnv.open(addresses, env_id, kwargs)


class Servers:
    """A thread's connections to the servers of an address, shared by its environments."""

    _mine = threading.local()

    @classmethod
    def of(cls, addresses: tuple[Address, ...]) -> Servers:
        mine = cls._mine.__dict__
        if mine.get("pid") != os.getpid():  # after a fork, these are the parent's connections
            mine.clear()
            mine["pid"] = os.getpid()
        servers: dict[tuple[Address, ...], Servers] = mine.setdefault("servers", {})
        if addresses not in servers:
            servers[addresses] = cls(addresses)
        return servers[addresses]

    def __init__(self, addresses: tuple[Address, ...]):
        alone = len(addresses) == 1
        self.connections = [Connection(a, patience=30.0 if alone else 3.0, alone=alone) for a in addresses]
        self._turn = threading.get_ident() // 4096  # so that threads start with different servers

    def in_turn(self) -> list[Connection]:
        """Return all connections in round-robin order, with recently lost ones last."""
        first = self._turn % len(self.connections)
        turn = [*self.connections[first:], *self.connections[:first]]
        return sorted(turn, key=lambda connection: connection.recently_lost)

    def ask(self, operation: str, *args: Any) -> Any:
        """Send a request to the servers in turn until one answers.

        Raises:
            ServerLost: no server answers.
        """
        return self.first(lambda connection: connection.ask(operation, *args))

    def first(self, ask: Any) -> Any:
        """Return ``ask(connection)`` for the first server that is reachable and has room."""
        problem: Exception | None = None
        for connection in self.in_turn():
            try:
                return ask(connection)
            except (ServerLost, protocol.ServerFull) as error:
                problem = error
        assert problem is not None
        raise problem

    def open(self, begin: Any) -> None:
        """Call ``begin(connection)`` for the next servers in turn until one has room."""
        self._turn += 1
        self.first(begin)


class RemoteEnv(Env):
    """An environment on a server. If the server dies or ends the session, the episode is replayed in a new session.

    Any thread may use it, but only one at a time.
    """

    def __init__(self, addresses: tuple[Address, ...], env_id: str, kwargs: dict[str, Any], history: ReplayLog):
        self._addresses, self._env_id, self._kwargs, self._history = addresses, env_id, kwargs, history
        self._where: Address | None = None
        self._session, self._count, self._pid = "", 0, os.getpid()
        """The session's name, its number of answered calls, and the process that opened it."""
        self._lost: tuple[str, int] | None = None
        """A session that may be resumed, on this or another server, and its count."""
        self._pictures: dict[str, Picture] = {}
        """The pictures of the episode so far, by hash."""
        self._ahead: tuple[Connection, int, str] | None = None
        """A step that was sent ahead: its connection, its number there, its action."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a copy continue in a session of its own."""
        state = self.__dict__ | {
            "_session": "",
            "_lost": None,
            "_ahead": None,
            "_history": ReplayLog(list(self._history.calls)),
        }
        return _copy_of, (frozenset(_OPTIONAL.keys() & type(self).__dict__.keys()), state)

    @classmethod
    def open(
        cls, addresses: tuple[Address, ...], env_id: str, kwargs: dict[str, Any], history: ReplayLog | None = None
    ) -> RemoteEnv:
        """Open a session and replay a history."""
        about = Servers.of(addresses).ask("spec", env_id)
        names = [name for ability in about["abilities"] for name in _METHODS[ability]]
        env = _class_with(frozenset([*names, *(["num_tasks"] if about["indexed"] else [])]))(
            addresses, env_id, kwargs, history or ReplayLog()
        )
        env._begin()
        return env

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        raise NotImplementedError  # reset() does not use it

    def reset(self, seed: int | None = None, *, options: dict[str, Any] | None = None) -> ResetResult:
        checked = self._rollenv_checked_options(options)
        if seed is None and self._history.needs_seed:
            seed = new_seed()
        observation, info = self._call("reset", None if seed is None else self._checked(seed), checked)[:2]
        if seed is not None:
            super().seed_stream(seed)  # Gymnasium checks it; no number is sampled from it
        self._rollenv_over, self._rollenv_begun = False, True
        return observation, info

    def _step(self, action: str) -> StepResult:
        observation, reward, terminated, truncated, info = self._call("step", action)[:5]
        return observation, reward, terminated, truncated, info

    @staticmethod
    def steps_ahead(steps: Sequence[tuple[Env, str]]) -> None:
        """Send upcoming steps in one message for each server; :meth:`step` collects the answers.

        Args:
            steps: environments and their actions; local environments and those without a session are skipped.
        """
        by_server: dict[Connection, list[tuple[RemoteEnv, str]]] = {}
        for env, action in steps:
            if not isinstance(env, RemoteEnv) or not isinstance(action, str):
                continue
            if env._session and env._pid == os.getpid() and not env._rollenv_over and env._ahead is None:
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
        self._reset_after_fork()
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

    # An environment is in one of three states:
    #
    #                          _begin: a new session,
    #                          the history replayed
    #        +------------+ -------------------------> +------+ ---+
    #        | no session |                            | open |    | _ask: an answer, or an error of the environment
    #        +------------+ <------------------------- +------+ <--+
    #              ^          SessionGone: it ended      |  ^
    #              |                                     |  |
    #              | _resume: the server has forgotten   |  | _resume: the session is there, and its count is
    #              | it, or its count is another         |  | `answered`, or one more if the call in doubt may count
    #              |                                     v  |
    #              +---------------------------------- +------+
    #                                                  | lost |   `_lost` is its name and number of answers
    #                       ServerLost, Ctrl-C: the -> +------+
    #                       call is in doubt
    #
    # A call gets a number, so the server carries it out once however often it is sent. What must hold: an answer is
    # added to the history exactly once, and a session is used only if its state is that of the history.

    def _call(self, method: str, *args: Any) -> Any:
        """Call a method of the environment, after moving it to another server if necessary."""
        self._reset_after_fork()
        if method == "set_state":
            args = copy.deepcopy(args)  # the caller may change them before a replay
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

    def _reset_after_fork(self) -> None:
        """After a fork, forget the session: parent and child would receive each other's answers."""
        if self._pid != os.getpid():
            self._session, self._lost, self._ahead, self._pid = "", None, None, os.getpid()

    def _ask(self, method: str, args: list[Any]) -> Any:
        """Call a method in the session."""
        try:
            answer = protocol.with_known(method, self._answer(self._connection(), method, args), self._pictures)
        except protocol.Unsendable:
            raise
        except BaseException as error:
            if _is_outcome(error):
                self._count += 1
            else:  # the call may or may not have been carried out
                self._lost, self._session = (self._session, self._count), ""
            raise
        self._count += 1
        return answer

    def _answer(self, connection: Connection, method: str, args: list[Any]) -> Any:
        if self._ahead is not None:
            where, number, action = self._ahead
            self._ahead = None
            if (method, args) == ("step", [action]) and where is connection:  # and not another thread's
                with contextlib.suppress(ServerLost, protocol.ServerFull):  # then the request is repeated below
                    return connection.collect(number)
            where.forget(number)
            if (method, args) != ("step", [action]):
                _close(connection, self._session)
                raise SessionGone("its last step was sent ahead but not played")
        return connection.ask("call", self._session, self._count + 1, method, args)

    def _connection(self) -> Connection:
        servers = Servers.of(self._addresses)
        return next(c for c in servers.connections if c.address == self._where)

    def _resume(self, connection: Connection, again: bool) -> bool:
        """Resume the lost session, if possible; with ``again`` its last call may have been carried out."""
        if self._lost is None:
            return False
        session, answered = self._lost
        try:
            count = connection.ask("resume", session)
        except SessionGone:
            return False
        if count != answered and not (again and count == answered + 1):  # it is in another state than the episode
            _close(connection, session)
            return False
        self._where, self._session, self._count, self._lost = connection.address, session, answered, None
        return True

    def _begin(self, again: bool = False) -> None:
        """Resume the session, or open a new one and replay the episode."""

        def begin(connection: Connection) -> None:
            if self._resume(connection, again):
                return
            name, lost = protocol.session_name(), self._lost
            about = connection.ask("open", name, self._env_id, {"kwargs": self._kwargs, "pictures": "once"})
            self._where, self._session, self._count = connection.address, name, 0
            self.reset_options = frozenset(about["reset_options"])
            try:
                for number, (method, args, _) in enumerate(self._history.calls):
                    answer = self._ask(method, list(args))
                    self._history.check(number, protocol.fingerprint(method, answer), self._env_id)
            except BaseException as error:
                self._session, self._lost = "", lost  # the new session is not in the episode's state
                if isinstance(error, RollenvError):
                    _close(connection, name)
                raise
            self._lost = None

        Servers.of(self._addresses).open(begin)


def _is_outcome(error: BaseException) -> bool:
    """Return whether an error is the outcome of a call that was carried out."""
    if isinstance(error, ServerLost | protocol.ServerError):
        return isinstance(error, EnvBroke)
    return isinstance(error, RollenvError)


def _close(connection: Connection, session: str) -> None:
    """End a session; if that fails, its lease will end it."""
    with contextlib.suppress(ServerLost, protocol.ServerError):
        connection.ask_once("close", session)


@functools.lru_cache(maxsize=64)
def _class_with(methods: frozenset[str]) -> type[RemoteEnv]:
    """Return the class of environments with the given optional methods."""
    return type("RemoteEnv", (RemoteEnv,), {name: _OPTIONAL[name] for name in methods} | {"__doc__": RemoteEnv.__doc__})


def _copy_of(methods: frozenset[str], state: dict[str, Any]) -> RemoteEnv:
    env = object.__new__(_class_with(methods))
    env.__dict__.update(state)
    return env


def _get_state(self: RemoteEnv) -> dict[str, Any]:
    return self._call("get_state")  # type: ignore[no-any-return]


def _set_state(self: RemoteEnv, state: dict[str, Any]) -> None:
    self._call("set_state", state)
    self._rollenv_over, self._rollenv_begun = state["over"], True


def _spawn(self: RemoteEnv, same_state: bool = False, **kwargs: Any) -> Env:
    if not same_state:
        return Env.spawn(self, **kwargs)
    if kwargs:
        raise UsageError(f"{self}: spawn(same_state=True) takes no other arguments, got {sorted(kwargs)}")
    twin = RemoteEnv.open(self._addresses, self._env_id, self._kwargs, ReplayLog(list(self._history.calls)))
    twin.spec, twin._rollenv_over, twin._rollenv_begun = self.own_spec, self._rollenv_over, self._rollenv_begun
    return twin


_OPTIONAL: dict[str, Callable[..., Any]] = {
    "get_state": _get_state,
    "set_state": _set_state,
    "spawn": _spawn,
    "num_tasks": lambda self: int(self._call("num_tasks")),
    "sample_random_action": lambda self: str(self._call("sample_random_action")),
    "oracle_action": lambda self: str(self._call("oracle_action")),
    "state_key": lambda self: str(self._call("state_key")),
}
