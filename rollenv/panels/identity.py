"""Hashes of what makes a task this task, and of what makes two tasks alike."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self

from rollenv.core.registry import spec
from rollenv.rollout.types import Task, Trajectory
from rollenv.rollout.workers.base import EnvResult, HostedEnv

#: Environments that are kept for further tasks.
_MOST = 16


class Identity(NamedTuple):
    """Hashes of a task; see :class:`~rollenv.panels.panel.Member`."""

    shows: str
    decides: str
    alike: str
    """Equal for tasks that are alike by the environment's own rule (:meth:`rollenv.Env.alike_key`)."""


class Identifier:
    """Resets environments in this process; tasks with the same arguments share an environment."""

    def __init__(self) -> None:
        self._hosts: dict[str, HostedEnv] = {}

    def identify(self, task: Task) -> Identity:
        """Begin a task and return what it is."""
        kind = repr((task.env_id, task.kwargs, task.wrappers))
        if kind not in self._hosts:
            while len(self._hosts) >= _MOST:
                self._hosts.pop(next(iter(self._hosts))).close()
            self._hosts[kind] = HostedEnv(spec(task.env_id), task, False)
        host = self._hosts[kind]
        return _identity(host, host.restart(task.seed, dict(task.options)))

    def close(self) -> None:
        """Close the environments."""
        while self._hosts:
            self._hosts.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def identities(tasks: Iterable[Task]) -> Iterator[Identity]:
    """Begin each task in this process and yield what it is."""
    with Identifier() as identifier:
        yield from map(identifier.identify, tasks)


def _identity(host: HostedEnv, first: EnvResult) -> Identity:
    env: Any = host.env.unwrapped
    shows = shown(first.observation, first.state_key)
    if hasattr(env, "rows"):
        decides = digest(dict(env.row))
    elif hasattr(env, "get_state"):
        state = env.get_state()
        decides = digest(state.get("env", {name: state[name] for name in state.keys() - {"rng", "actions"}}))
    else:
        decides = digest("")
    alike = env.alike_key()
    return Identity(shows, decides, digest([type(env).__qualname__, alike or [shows, decides]], 16))


def shown(observation: str, state_key: str) -> str:
    """Return the hash of what an agent sees first."""
    return digest([observation, state_key])


def shown_in(trajectory: Trajectory) -> str | None:
    """Return the same hash of a stored episode; None if it has no turn."""
    first = next(iter(trajectory.turns), None)
    return None if first is None else shown(first.observation, first.state_key)


def digest(value: Any, digits: int = 8) -> str:
    """Hash of JSON data, in hexadecimal digits; of other values than numbers, texts and arrays, the kind counts."""
    text = json.dumps(value, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:digits]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):  # an array
        return value.tolist()
    return str(value) if isinstance(value, bytes | int | float) else type(value).__name__
