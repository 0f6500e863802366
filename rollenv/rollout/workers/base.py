"""The interface of workers, and the simplest kind: this process.

Worker processes are in :mod:`.processes`, Ray actors in :mod:`.ray`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar

from rollenv.core import cards, drawing
from rollenv.core.env import Env
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import (
    MissingExtra,
    NoSuchAbility,
    RollenvError,
    Unsolvable,
    UsageError,
    WrongResult,
    describe,
    error_text,
)
from rollenv.core.human_input import few_actions, listed_actions
from rollenv.core.registry import spec
from rollenv.rollout import validation
from rollenv.rollout.types import Task

logger = logging.getLogger(__name__)

T = TypeVar("T")


class EnvFailure(RollenvError):
    """An environment failed to carry out a call.

    Args:
        kind: "raised" (it raised), "wrong" (its result has the wrong type), "hung" (a ``Deadline`` passed, a server's
            ``TimeLimits``; none does inline), "lost" (its process or machine is gone) or "differs" (a replay did not
            give the same results as the first play).
        blamed: whether it was the only environment in its worker when that ended.
    """

    def __init__(self, kind: str, text: str, *, blamed: bool = False):
        super().__init__(text)
        self.kind, self.blamed = kind, blamed


@dataclass(slots=True)
class EnvResult:
    """The result of a reset or step, with the key and drawing of the new state (empty if not requested)."""

    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    state_key: str = ""
    view: str = ""

    @property
    def fingerprint(self) -> int:
        """A hash of the result, stable within this process."""
        images = self.info.get("images", ())
        return hash((self.observation, self.reward, self.terminated, self.truncated, self.state_key, images))


def validated(
    observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any, state_key: Any = "", view: Any = ""
) -> EnvResult:
    """Validate everything that an environment returned."""
    result = EnvResult(
        validation.text(observation, "the observation"),
        validation.number(reward, "the reward"),
        validation.flag(terminated, "terminated"),
        validation.flag(truncated, "truncated"),
        validation.info(info),
        validation.text(state_key, "state_key()"),
        validation.text(view, "render()"),
    )
    over = result.terminated or result.truncated
    if not over and "players" in result.info and "player" not in result.info:
        raise validation.BadValue("info['player'], who moves next, is missing, although there are several players")
    return result


#: Render after every turn: no, as text, or as JSON of a drawing (:func:`rollenv.core.drawing.board`).
Views = bool | Literal["board"]

Avoid = Callable[[str], bool]


def avoid_none(worker: str) -> bool:
    """Avoid no worker."""
    return False


class WorkerEnv(Protocol):
    """One environment in a worker. Its methods are called one at a time and raise :class:`EnvFailure`."""

    worker: str
    """The name of the worker, for health and flight records."""

    async def reset(self) -> EnvResult:
        """Build the environment on first use, and reset it."""
        ...

    async def step(self, action: str) -> EnvResult: ...

    async def call(self, method: str, *args: Any) -> Any:
        """Call any other method. :class:`Unsolvable` is raised unchanged; UsageError, if there is no such ability."""
        ...

    async def diagnose_hang(self, failure: EnvFailure) -> EnvFailure:
        """Handle a deadline that passed during a call; return ``failure``, or the cause if another environment blocked
        the worker."""
        ...

    def close(self) -> None:
        """Close the environment. Returns immediately and never raises, even during a call."""
        ...

    def abandon(self) -> None:
        """Close an environment that hangs, by force."""
        ...


class Workers(Protocol):
    """A pool of workers for environments."""

    interruptible: bool
    """True if a deadline can interrupt an environment that computes."""

    async def open(
        self, task: Task, *, views: bool = False, avoid: Avoid = avoid_none, alone: bool = False
    ) -> WorkerEnv:
        """Wait for a free slot for a task's environment, which is built at its first reset.

        Args:
            views: render after every turn.
            avoid: returns whether to prefer other workers to the one with a given name.
            alone: share the worker with no other environment, if workers can be lost.
        """
        ...

    async def aclose(self) -> None:
        """End all workers and free their resources."""
        ...

    def report(self) -> list[dict[str, Any]]:
        """The state of every worker, as plain data."""
        ...


def make_env(env_spec: EnvSpec, task: Task) -> Env:
    """Build the environment of a task, with its wrappers."""
    if task.seed < 0:
        raise UsageError(f"{task.env_id}: a task's seed cannot be negative, got {task.seed}")
    env = replace(env_spec, wrappers={**env_spec.wrappers, **task.wrappers}).make(**task.kwargs)
    inner: Any = env.unwrapped
    if task.options and type(inner).reset is Env.reset:  # an overridden reset() may take undeclared options
        try:
            inner._rollenv_checked_options(task.options)
        except UsageError:
            env.close()
            raise
    return env


class HostedEnv:
    """An environment inside any kind of worker: validates its results and converts its exceptions to EnvFailure.

    Only KeyboardInterrupt propagates, because the user may have pressed Ctrl-C.
    """

    def __init__(self, env_spec: EnvSpec, task: Task, views: Views):
        self.task, self._spec = task, env_spec
        with self._converting_errors("the constructor", (UsageError, MissingExtra)):
            self.env = make_env(env_spec, task)
        self.views = views
        self.has_state_key = "state_key" in env_spec.abilities

    def reset(self) -> EnvResult:
        try:
            return self.restart(self.task.seed, dict(self.task.options))
        except UsageError as error:  # a replay would not help
            raise UsageError(f"{self.task.env_id}: {error_text(error)}") from error

    def restart(self, seed: int | None, options: dict[str, Any]) -> EnvResult:
        """Reset with a seed or None, and with options in place of the task's."""
        self._offers = True
        optional = {"options": options} if options else {}  # reset() may not have the parameter
        with self._converting_errors("reset", (UsageError,)):
            observation, info = validation.parts(self.env.reset(seed, **optional), 2, "its result")
            return self._observe(observation, 0.0, False, False, info)

    def about(self) -> dict[str, Any]:
        """Return the environment's properties for a remote client."""
        with self._converting_errors("its attributes"):
            return {"reset_options": sorted(map(str, getattr(self.env, "reset_options", ())))}

    def card(self) -> dict[str, Any]:
        """Return the environment's card for human players. Plays two short episodes in a new environment."""
        with self._converting_errors("an example"), contextlib.closing(make_env(self._spec, self.task)) as env:
            card = cards.card_of(env, self._spec, dict(self.task.kwargs))
            reader = card.reader
            return {
                **{name: getattr(card, name) for name in _ON_CARDS},
                "template": reader.template,
                "moves": dict(reader.moves),
                "few": list(reader.few),
            }

    def step(self, action: str) -> EnvResult:
        try:
            return self._observe(*validation.parts(self.env.step(action), 5, "its result"))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise env_failure(self.task.env_id, "step", error) from error

    def call(self, method: str, *args: Any) -> Any:
        passing = (NoSuchAbility, Unsolvable) if method == "oracle_action" else (NoSuchAbility,)
        try:
            with self._converting_errors(method, passing):
                answer = getattr(self.env, method)(*args)
                return validation.text(answer, "its result") if method in _ACTIONS else answer
        except NoSuchAbility as error:  # who asks for it can play no episode
            raise UsageError(f"{self.task.env_id}: {error_text(error)}") from error

    def close(self) -> None:
        try:
            self.env.close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            logger.warning("%s could not be closed: %s", self.task.env_id, describe(error))

    def copy_env(self) -> HostedEnv:
        """Copy the environment in its current state."""
        twin = copy.copy(self)
        with self._converting_errors("spawn"):
            twin.env = self.env.spawn(True)
            if not isinstance(twin.env, Env) or twin.env is self.env:
                raise validation.BadValue(f"its result is another environment, not {validation.kind(twin.env)}")
        return twin

    def _observe(self, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> EnvResult:
        terminated, truncated = validation.flag(terminated, "terminated"), validation.flag(truncated, "truncated")
        key = self.env.state_key() if self.has_state_key and not (terminated or truncated) else ""
        view = self.env.render() if self.views else ""
        if self.views == "board":
            view = drawing.board(self.env.picture, view)
            may_list = self._offers and not (terminated or truncated) and isinstance(info, dict)
            if may_list and not listed_actions(info):
                info = {**info, "actions": few_actions(self.env)}
                self._offers = bool(info["actions"])  # sampling may take long, and is not tried again in vain
        return validated(observation, reward, terminated, truncated, info, key, view)

    @contextlib.contextmanager
    def _converting_errors(self, what: str, passing: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
        passing = (KeyboardInterrupt, *passing)
        try:
            yield
        except passing:
            raise
        except BaseException as error:
            raise env_failure(self.task.env_id, what, error) from error


#: Attributes of :class:`~rollenv.core.cards.Card` in :meth:`HostedEnv.card`.
_ON_CARDS = ("about", "source", "arguments", "prompt", "action", "rewards", "limit", "legend")

#: Methods that return an action.
_ACTIONS = ("oracle_action", "sample_random_action")


def env_failure(env_id: str, what: str, error: BaseException) -> EnvFailure:
    """Convert an exception of an environment to a failure."""
    if isinstance(error, validation.BadValue | WrongResult):
        return EnvFailure("wrong", f"{env_id}: what {what} returned is wrong: {error}")
    return EnvFailure("raised", f"{env_id}: {what} raised {describe(error)}")


class InlineWorkers:
    """Environments in this process, stepped in its event loop: for those that compute little and never block.

    Deadlines cannot interrupt them. Members of a group are copies of one environment after its reset, if it can be
    copied.
    """

    interruptible = False

    def __init__(self) -> None:
        self._originals: dict[int, SharedReset] = {}
        self.open_now = 0

    async def open(
        self, task: Task, *, views: bool = False, avoid: Avoid = avoid_none, alone: bool = False
    ) -> InlineEnv:
        env_spec = spec(task.env_id)
        self.open_now += 1
        if "spawn" not in env_spec.abilities:
            return InlineEnv(self, SharedReset(env_spec, task, views, shared=False), 0)
        key = 2 * id(task) + views  # the members of a group have one task
        original = self._originals.get(key)
        if original is None:
            original = self._originals[key] = SharedReset(env_spec, task, views, shared=True)
        original.users += 1
        return InlineEnv(self, original, key)

    def on_env_closed(self, key: int) -> None:
        """Record that an environment was closed; the last one of a group closes the original too."""
        self.open_now -= 1
        if key:
            original = self._originals[key]
            original.users -= 1
            if not original.users:
                del self._originals[key]
                if original.started:
                    _without_loop(original.started[0].close)

    async def aclose(self) -> None:
        """Do nothing: only open environments hold resources."""

    def report(self) -> list[dict[str, Any]]:
        return [{"worker": "inline", "state": "up", "envs": self.open_now}]


@dataclass(slots=True)
class SharedReset:
    """The environment of a group before its first turn; environments that can be copied share the reset."""

    env_spec: EnvSpec
    task: Task
    views: bool
    shared: bool
    users: int = 0
    started: tuple[HostedEnv, EnvResult] | None = None

    def start(self) -> tuple[HostedEnv, EnvResult]:
        """Return an environment after its reset, and the result."""
        if not self.shared:
            return self._reset()
        if self.started is None:
            self.started = self._reset()
        env, result = self.started
        return env.copy_env(), replace(result, info=dict(result.info))

    def _reset(self) -> tuple[HostedEnv, EnvResult]:
        env = HostedEnv(self.env_spec, self.task, self.views)
        try:
            return env, env.reset()
        except BaseException:
            env.close()
            raise


def _without_loop(call: Callable[..., T], *args: Any) -> T:
    """Call while no event loop seems to run, so that an environment may run its own, as in any other worker; where it
    changes the current folder, this is undone: relative paths of the run would mean others."""
    loop, folder = asyncio._get_running_loop(), _current_folder()
    asyncio._set_running_loop(None)
    try:
        return call(*args)
    finally:
        asyncio._set_running_loop(loop)
        if _current_folder() != folder and folder:
            os.chdir(folder)


def _current_folder() -> str:
    """Return the current folder; empty if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


class InlineEnv:
    """An environment of :class:`InlineWorkers`."""

    __slots__ = ("_env", "_key", "_pool", "_shared")
    worker = "inline"

    def __init__(self, pool: InlineWorkers, shared: SharedReset, key: int):
        self._pool, self._shared, self._key = pool, shared, key
        self._env: HostedEnv | None = None

    async def reset(self) -> EnvResult:
        self._env, result = _without_loop(self._shared.start)
        return result

    async def step(self, action: str) -> EnvResult:
        assert self._env is not None
        return _without_loop(self._env.step, action)

    async def call(self, method: str, *args: Any) -> Any:
        assert self._env is not None
        return _without_loop(self._env.call, method, *args)

    async def diagnose_hang(self, failure: EnvFailure) -> EnvFailure:
        return failure

    def close(self) -> None:
        try:
            if self._env is not None:
                _without_loop(self._env.close)
        finally:
            self._pool.on_env_closed(self._key)

    abandon = close
