"""Where environments live while they are played: the interface, and the simplest kind, inside this process.

Processes are in :mod:`rollenv.rollout.processes`, Ray actors in :mod:`rollenv.rollout.ray_workers`. A server's client
offers the same interface.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from rollenv.core import Env, MissingExtra, RollenvError, UsageError
from rollenv.registry import EnvSpec, spec
from rollenv.rollout.types import Task

logger = logging.getLogger(__name__)


class EnvFailure(RollenvError):
    """An environment did not do what it was asked to.

    Args:
        kind: "raised" (it raised), "hung" (a deadline passed), "lost" (its process or machine is gone) or "differs"
            (a replay did not give what the first play gave).
        text: what happened.
    """

    def __init__(self, kind: str, text: str):
        super().__init__(text)
        self.kind = kind

    def __reduce__(self) -> tuple[type[EnvFailure], tuple[str, str]]:
        return EnvFailure, (self.kind, str(self))


@dataclass(slots=True)
class Seen:
    """What an environment returned, and the name and drawing of the state it is now in (empty where not wanted)."""

    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    state_key: str = ""
    view: str = ""

    @property
    def fingerprint(self) -> int:
        """Equal, within this process, for equal results."""
        return hash((self.observation, self.reward, self.terminated, self.truncated, self.state_key))


Shun = Callable[[str], bool]


def nobody(worker: str) -> bool:
    """Shun no worker."""
    return False


class WorkerEnv(Protocol):
    """One environment in a worker. Its methods are called one at a time and raise :class:`EnvFailure`."""

    worker: str
    """The name of the worker, for health and flight records."""

    async def reset(self) -> Seen: ...

    async def step(self, action: str) -> Seen: ...

    async def call(self, method: str, *args: Any) -> Any:
        """Any other method. The environment's own :class:`RollenvError` is raised as it is."""
        ...

    def close(self) -> None:
        """Give it back. Returns at once and never raises, also while a call is under way."""
        ...

    def abandon(self) -> None:
        """As :meth:`close`, for an environment that hangs: what it holds is taken away by force."""
        ...


class Workers(Protocol):
    """A pool of places for environments."""

    interruptible: bool
    """Whether a deadline can be kept while an environment computes."""

    async def open(self, task: Task, *, views: bool = False, shun: Shun = nobody) -> WorkerEnv:
        """A place for the task's environment, made but not reset; waits while there is none.

        Workers for which ``shun(name)`` is true get it only if there is no other.

        Raises:
            UsageError: the task's id or arguments are wrong.
            EnvFailure: the environment could not be made.
        """
        ...

    async def aclose(self) -> None:
        """End all workers and free what they hold."""
        ...

    def report(self) -> list[dict[str, Any]]:
        """The state of every worker, as plain data."""
        ...


class HostedEnv:
    """An environment as every kind of worker holds it: plain calls, results as :class:`Seen`, failures as values."""

    def __init__(self, env_spec: EnvSpec, task: Task, views: bool):
        self.task = task
        env_spec = replace(env_spec, wrappers={**env_spec.wrappers, **task.wrappers})
        self.env: Env = guarded(env_spec.make, **task.kwargs, passing=(UsageError, MissingExtra))
        self.views = views
        self.named = "state_key" in env_spec.abilities

    def reset(self) -> Seen:
        try:
            observation, info = self.env.reset(self.task.seed, **self._options())
            return self._seen(observation, 0.0, False, False, info)
        except (Exception, SystemExit) as error:
            raise failed(error) from error

    def _options(self) -> dict[str, Any]:
        """Nothing where there are none: an environment may have a ``reset`` without them."""
        return {"options": dict(self.task.options)} if self.task.options else {}

    def step(self, action: str) -> Seen:
        try:
            return self._seen(*self.env.step(action))
        except (Exception, SystemExit) as error:
            raise failed(error) from error

    def call(self, method: str, *args: Any) -> Any:
        return guarded(getattr(self.env, method), *args, passing=RollenvError)

    def close(self) -> None:
        try:
            self.env.close()
        except (Exception, SystemExit) as error:
            logger.warning("%s could not be closed: %r", self.task.env_id, error)

    def twin(self) -> HostedEnv:
        """A copy in the same state."""
        twin = copy.copy(self)
        twin.env = guarded(self.env.spawn, True)
        return twin

    def _seen(self, observation: str, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]) -> Seen:
        key = self.env.state_key() if self.named and not (terminated or truncated) else ""
        view = self.env.render() if self.views else ""
        return Seen(observation, reward, terminated, truncated, info, key, view)


Errors = type[BaseException] | tuple[type[BaseException], ...]


def guarded(function: Callable[..., Any], *args: Any, passing: Errors = (), **kwargs: Any) -> Any:
    """Call into an environment. Errors of the kinds ``passing`` pass; any other becomes :class:`EnvFailure`."""
    try:
        return function(*args, **kwargs)
    except passing:
        raise
    except (Exception, SystemExit) as error:
        raise failed(error) from error


def failed(error: BaseException) -> EnvFailure:
    """What an environment raised, as a failure of its."""
    return EnvFailure("raised", f"{type(error).__name__}: {error}")


class InlineWorkers:
    """Environments in this process, stepped in its event loop: for those that compute little and never wait.

    Nothing can interrupt them. Members of a group are copies of one that was reset, where its kind can be copied.
    """

    interruptible = False

    def __init__(self) -> None:
        self._originals: dict[str, _Original] = {}
        self.open_now = 0

    async def open(self, task: Task, *, views: bool = False, shun: Shun = nobody) -> InlineEnv:
        env_spec = spec(task.env_id)
        self.open_now += 1
        if "spawn" not in env_spec.abilities:
            return InlineEnv(self, _Original(env_spec, task, views, shared=False), "")
        key = json.dumps([asdict(task), views], sort_keys=True, default=repr)
        original = self._originals.get(key)
        if original is None:
            original = self._originals[key] = _Original(env_spec, task, views, shared=True)
        original.users += 1
        return InlineEnv(self, original, key)

    def closed(self, key: str) -> None:
        """An environment was closed; the last of its group takes the original with it."""
        self.open_now -= 1
        if key:
            original = self._originals[key]
            original.users -= 1
            if not original.users:
                del self._originals[key]
                if original.started:
                    original.started[0].close()

    async def aclose(self) -> None:
        """Nothing is held beyond the environments that are open."""

    def report(self) -> list[dict[str, Any]]:
        return [{"worker": "inline", "state": "up", "envs": self.open_now}]


@dataclass(slots=True)
class _Original:
    """How the environments of a group begin; those that can be copied share the reset."""

    env_spec: EnvSpec
    task: Task
    views: bool
    shared: bool
    users: int = 0
    started: tuple[HostedEnv, Seen] | None = None

    def start(self) -> tuple[HostedEnv, Seen]:
        if not self.shared:
            return self._reset()
        if self.started is None:
            self.started = self._reset()
        env, seen = self.started
        return env.twin(), replace(seen, info=dict(seen.info))

    def _reset(self) -> tuple[HostedEnv, Seen]:
        env = HostedEnv(self.env_spec, self.task, self.views)
        try:
            return env, env.reset()
        except BaseException:
            env.close()
            raise


class InlineEnv:
    """An environment of :class:`InlineWorkers`."""

    __slots__ = ("_hosted", "_key", "_original", "_pool")
    worker = "inline"

    def __init__(self, pool: InlineWorkers, original: _Original, key: str):
        self._pool, self._original, self._key = pool, original, key
        self._hosted: HostedEnv | None = None

    async def reset(self) -> Seen:
        self._hosted, seen = self._original.start()
        return seen

    async def step(self, action: str) -> Seen:
        assert self._hosted is not None
        return self._hosted.step(action)

    async def call(self, method: str, *args: Any) -> Any:
        assert self._hosted is not None
        return self._hosted.call(method, *args)

    def close(self) -> None:
        if self._hosted is not None:
            self._hosted.close()
        self._pool.closed(self._key)

    abandon = close
