"""``verifiers:PACKAGE``: the tasks of a taskset package for verifiers (0.4), without its harnesses and runtimes.

A task with a prompt and rewards is one turn. A package with an ``Env`` of its own and one agent is played turn by turn:
what its ``run()`` says to the agent is the observation. Tasks that need a container, tools, or a runtime for their
rewards are refused.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from rollenv.core import Env, NoSuchAbility, ResetResult, StepResult, UsageError
from rollenv.env_spec import EnvSpec
from rollenv.envs.numbered import checked_index
from rollenv.envs.others import Misbehaved, one_line
from rollenv.envs.others.verifiers_talk import Talk
from rollenv.errors import MissingExtra, RollenvError
from rollenv.needs import Package, peer

_NEEDS = (Package("verifiers", command="pip install 'verifiers==0.4.*'"),)


def spec_of(env_id: str) -> EnvSpec:
    """The spec of ``verifiers:PACKAGE``. Nothing is promised: rewards may ask a model, and tasks have no states.

    Raises:
        MissingExtra: verifiers or the package is not installed.
        UsageError: the package has no taskset.
    """
    package = env_id.partition(":")[2]
    taskset = _loaders(package).taskset_class(package)
    return EnvSpec(
        env_id,
        "rollenv.envs.others.verifiers:VerifiersEnv",
        {"package": package},
        needs=_NEEDS,
        nondeterministic=True,
        indexed=not taskset.INFINITE,
        summary=f"tasks of {taskset.__name__} for verifiers",
    )


def _loaders(package: str) -> Any:
    """Return verifiers' loader of packages, after it has found this one."""
    with peer("verifiers", "0.4", who=f"verifiers:{package}"):
        loaders = importlib.import_module("verifiers.v1.utils.loaders")
    try:
        loaders.taskset_class(package)
    except ImportError as error:
        raise MissingExtra(f"verifiers:{package}: install that package first ({one_line(error)})") from error
    except (Exception, SystemExit) as error:  # whatever the package does
        raise UsageError(f"verifiers:{package} is no taskset of verifiers 0.4: {one_line(error)}") from error
    return loaders


class VerifiersEnv(Env):
    """Tasks of a taskset package for verifiers.

    The reward is the sum of the task's rewards with their weights, in the last turn; ``info`` has each of them.

    Args:
        package: its name, as verifiers has it.
        tasks: how many are played of a taskset that does not end.
        max_turns: the episode is truncated after this many turns.
        seconds: that the package's own code may take for a turn.
        settings: of the taskset's configuration.
    """

    reset_options = frozenset({"index"})

    def __init__(
        self, *, package: str, tasks: int = 1000, max_turns: int = 100, seconds: float = 600.0, **settings: Any
    ):
        if tasks < 1 or max_turns < 1 or not seconds > 0:
            raise UsageError(f"tasks, max_turns and seconds are above 0, not {tasks}, {max_turns} and {seconds}")
        self.package, self.max_turns, self.seconds = package, max_turns, seconds
        loaders = _loaders(package)
        try:
            config = {"taskset": {**settings, "id": package}, "id": ""}
            self.env = loaders.load_environment(loaders.resolve_env_config(config))
        except (Exception, SystemExit) as error:
            raise UsageError(f"verifiers:{package} cannot be made with {settings}: {one_line(error)}") from error
        self._agent = self._only_agent()
        bounded = self.env.taskset.bounded
        self._coming, self._most = _each(self.env.taskset), None if bounded else tasks
        self._tasks: list[Any] = []
        self._talk: Talk | None = None
        self._turn, self._seen = 0, ""

    def _only_agent(self) -> str:
        """The name of the agent whom replies are for."""
        kind = importlib.import_module("verifiers.v1.env").Env
        changed = [n for n in ("finalize", "setup", "start") if getattr(type(self.env), n) is not getattr(kind, n)]
        names = list(self.env._agent_specs)
        if len(names) != 1 or changed:
            why = f"it has {', '.join(changed)} of its own" if changed else f"it has the agents {', '.join(names)}"
            raise UsageError(f"verifiers:{self.package} needs verifiers' own runner: {why}")
        return str(names[0])

    def num_tasks(self) -> int:
        """Tasks of the taskset."""
        if self._most is None:
            self._take(None)
            self._most = len(self._tasks)
        return self._most

    def _take(self, n: int | None) -> None:
        """Read tasks until there are so many."""
        try:
            self._tasks += itertools.islice(self._coming, None if n is None else max(0, n - len(self._tasks)))
        except (Exception, SystemExit) as error:
            raise Misbehaved(f"{self}: its tasks could not be loaded: {one_line(error)}") from error
        if not self._tasks or (n is not None and len(self._tasks) < n):
            raise UsageError(f"{self} has {len(self._tasks)} tasks")

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        self._end()
        index = options.get("index")
        index = self.randint(self.num_tasks()) if index is None else checked_index(self, index)
        self._take(index + 1)
        task = self._tasks[index]
        if why := _why_not(task, self.env.taskset):
            raise UsageError(f"{self}: task {index} needs verifiers' own harness: {why}")
        self._turn, self._talk = 0, Talk(self.env, self._agent, task, self.seconds)
        weakref.finalize(self, self._talk.leave).atexit = False  # where nobody calls close()
        self._answered(self._talk.begin)
        if self._talk.over:
            raise Misbehaved(f"{self}: task {index} ended before the agent's first turn")
        return self._seen, {"task": task.data.id or task.data.name or str(index)}

    def _step(self, action: str) -> StepResult:
        assert self._talk is not None
        self._turn += 1
        talk = self._talk
        late = self._turn >= self.max_turns
        self._answered(lambda: talk.reply(action))
        if not talk.over and late:
            self._answered(talk.stop)
        if not talk.over:
            return self._seen, 0.0, False, False, {}
        trace = talk.trace
        rewards = {name: each.value for name, each in trace.rewards.items() if each is not None}
        info = {"rewards": rewards, "metrics": {name: each for name, each in trace.metrics.items() if each is not None}}
        reward = float(sum(rewards.values()))
        if not np.isfinite(reward):
            self.close()
            raise Misbehaved(f"{self}: the reward is {reward}")
        return "The episode is over.", reward, not talk.stopped, talk.stopped, info

    def _answered(self, ask: Any) -> None:
        """Let the package's code go on, and keep what it says."""
        try:
            self._seen = ask() or self._seen
        except RollenvError as error:
            self._over = True
            self._end()
            raise Misbehaved(f"{self}: turn {self._turn}: {error}") from error

    def _end(self) -> None:
        talk, self._talk = self._talk, None
        if talk is not None:
            talk.close()

    def render(self) -> str:
        return self._seen

    def close(self) -> None:
        self._over = True
        self._end()

    def _twin(self) -> Env:
        raise NoSuchAbility(f"{self}: an episode of verifiers cannot be copied")


def _each(taskset: Any) -> Iterator[Any]:
    """The tasks, loaded when the first of them is asked for."""
    yield from taskset


def _why_not(task: Any, taskset: Any) -> str:
    """Return what a task needs that is not here; empty where it needs nothing."""
    kind = importlib.import_module("verifiers.v1.task").Task
    if type(task).NEEDS_CONTAINER or task.data.image:
        return "a container"
    if type(task).toolsets(task.config) or type(taskset).toolsets(taskset.config):
        return "tools"
    for name in ("setup", "finalize"):
        if getattr(type(task), name) is not getattr(kind, name):
            return f"a runtime for its {name}"
    for hook in task.hooks("reward"):
        runtime = inspect.signature(hook).parameters.get("runtime")
        if runtime is not None and runtime.default is inspect.Parameter.empty:
            return f"a runtime for its reward {hook.__name__}"
    return ""
