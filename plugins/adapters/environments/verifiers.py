"""``verifiers:PACKAGE``: the tasks of a taskset package for verifiers (0.4), without its harnesses and runtimes.

A task with a prompt and rewards has one turn. A package with its own ``Env`` and one agent is played turn by turn: the
messages of its ``run()`` to the agent are the observations. Tasks that need a container, tools, or a runtime for their
rewards are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import itertools
import queue
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import MissingExtra, NoSuchAbility, RollenvError, UsageError
from rollenv.core.needs import Package, peer
from rollenv.core.picture_forms import bound, observed
from rollenv.core.pictures import Picture, picture
from rollenv.envs.numbered import checked_index
from rollenv.plugins.adapters.environments import Misbehaved, one_line
from rollenv.plugins.adapters.environments.showing import show


class Talk:
    """One episode: ``Env.run()`` of the package in a thread, with the agent's turns outside.

    Args:
        agent: the name of the package's agent.
        seconds: timeout of the next message from the thread.

    Attributes:
        over: whether ``run()`` has returned.
        stopped: whether a stop was requested.
        images: the pictures of the last message.
        trace: verifiers' record of the episode, with rewards at the end.
    """

    def __init__(self, env: Any, agent: str, task: Any, seconds: float):
        self._env, self._agent, self._task, self._seconds = env, agent, task, seconds
        self._events: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._loop = asyncio.new_event_loop()
        self._reply: asyncio.Future[str | None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="verifiers", daemon=True)
        self._one_at_a_time = asyncio.Lock()
        self._ended = False  # True once the package was notified
        self.over, self.stopped = False, False
        self.images: list[Picture] = []
        self.trace: Any = None

    # -- replies -----------------------------------------------------------------------------------------------------

    def begin(self) -> str:
        """Start, and return the first observation.

        Raises:
            Misbehaved: the package failed or timed out.
        """
        self._thread.start()
        return self._next()

    def reply(self, text: str) -> str:
        """Pass on the agent's reply, and return the next observation; empty at the end.

        Raises:
            Misbehaved: the package failed or timed out.
        """
        self._give(text)
        return self._next()

    def stop(self) -> str:
        """Stop early: the package's next turn raises an error.

        Raises:
            Misbehaved: the package failed or timed out.
        """
        self.stopped = True
        self._give(None)
        return self._next()

    def close(self) -> None:
        """Cancel the episode."""
        if self._thread.is_alive():
            self.leave()
            self._thread.join(5.0)
        elif not self._loop.is_closed():
            self._loop.close()

    def leave(self) -> None:
        """Cancel without waiting."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._cancel)

    def _next(self) -> str:
        try:
            what, message = self._events.get(timeout=self._seconds)
        except queue.Empty:
            raise Misbehaved(f"the package said nothing within {self._seconds:g} s") from None
        if what == "failed":
            raise Misbehaved(one_line(message)) from message
        self.over = what == "over"
        if self.over and self.trace is None:
            raise Misbehaved("its run() let no agent play")
        return str(message)

    def _give(self, text: str | None) -> None:
        self._loop.call_soon_threadsafe(self._set, text)

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            agents = SimpleNamespace(**{self._agent: self})
            self._running = self._loop.create_task(self._env.run(self._task, agents))
            self._loop.run_until_complete(self._running)
            self._events.put(("over", ""))
        except BaseException as error:  # cancellation too, as the package may cancel itself
            self._events.put(("failed", error))
        finally:
            self._loop.close()

    def _cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    def _set(self, text: str | None) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(text)

    # -- the interface of verifiers' Agent and Interaction ------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def interaction(self, task: Any, **_: Any) -> AsyncIterator[Talk]:
        """See ``Agent.interaction`` of verifiers."""
        if self.trace is not None:
            raise Misbehaved("its agent plays more than once, for which verifiers' own runner is needed")
        records = importlib.import_module("verifiers.v1.trace")
        types = importlib.import_module("verifiers.v1.types")
        config = importlib.import_module("verifiers.v1.configs.agent").AgentConfig()
        state = importlib.import_module("verifiers.v1.state").state_cls(type(task))()
        about = records.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        self.trace = records.Trace(task=about, state=state, agent=records.AgentInfo(config=config, name=self._agent))
        system, prompt = task.data.system_prompt, task.data.prompt
        messages = [types.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt or [])
        self._first: list[Any] = [*([types.SystemMessage(content=system)] if system else []), *messages]
        for each in self._first:
            self._add(each)
        yield self
        trace: Any = self.trace
        trace.is_completed = trace.ok = True
        await task.score(trace)

    async def run(self, task: Any, **_: Any) -> Any:
        """See ``Agent.run`` of verifiers."""
        async with self.interaction(task) as talk:
            await talk.turn()
        return self.trace

    async def turn(self, message: Any = None) -> Any:
        """See ``Interaction.turn`` of verifiers: a message to the agent and its reply."""
        async with self._one_at_a_time:
            return await self._turn(message)

    async def _turn(self, message: Any) -> Any:
        types = importlib.import_module("verifiers.v1.types")
        segment = importlib.import_module("verifiers.v1.agent").Segment
        if self._ended:
            raise RuntimeError("the exchange is over (the run ended); read interaction.trace")
        if self.stopped:
            self._ended = True
            return segment(messages=[], terminated=True)
        new = [types.UserMessage(content=message)] if isinstance(message, str) else list(message or [])
        parse = importlib.import_module("verifiers.v1.dialects").parse_message
        new = [parse(each) if isinstance(each, dict) else each for each in new]
        for each in new:
            self._add(each)
        images: list[Picture] = []
        shown = "\n\n".join(filter(None, [_text(each.content, images) for each in [*self._first, *new]]))
        self._first = []
        self._reply = self._loop.create_future()
        shown, self.images = observed(shown, images)
        self._events.put(("shown", show(shown)))
        text = await self._reply
        if text is None:
            self._ended = True
            return segment(messages=[], terminated=True)
        answer = types.AssistantMessage(content=text)
        self._add(answer, sampled=True)
        return segment(messages=[answer], root_reply=text)

    def _add(self, message: Any, sampled: bool = False) -> None:
        nodes = self.trace.nodes
        node = importlib.import_module("verifiers.v1.graph").MessageNode
        nodes.append(node(parent=len(nodes) - 1 if nodes else None, message=message, sampled=sampled))


def _text(content: Any, images: list[Picture]) -> str:
    """Return the text of a message with bound marks for its pictures, which are appended to ``images``.

    Raises:
        UsageError: a picture cannot be read, for example because it is elsewhere in the web.
    """
    if isinstance(content, str):
        return content
    lines: list[str] = []
    for part in content or []:
        if part.type == "image_url":
            images.append(picture(part.image_url.url))
            lines.append(bound("", images[-1:]))
        else:
            lines.append(part.text)
    return "\n".join(lines)


_NEEDS = (Package("verifiers", command="pip install 'verifiers==0.4.*'"),)


def spec_of(env_id: str) -> EnvSpec:
    """Return the spec of ``verifiers:PACKAGE``, without abilities: rewards may call a model, tasks have no states.

    Raises:
        MissingExtra: verifiers or the package is not installed.
    """
    package = env_id.partition(":")[2]
    taskset = _loaders(package).taskset_class(package)
    return EnvSpec(
        env_id,
        "rollenv.plugins.adapters.environments.verifiers:VerifiersEnv",
        {"package": package},
        needs=_NEEDS,
        nondeterministic=True,
        indexed=not taskset.INFINITE,
        summary=f"tasks of {taskset.__name__} for verifiers",
    )


def _loaders(package: str) -> Any:
    """Check that verifiers can load the package, and return its loaders."""
    with peer("verifiers", "0.4", who=f"verifiers:{package}"):
        loaders = importlib.import_module("verifiers.v1.utils.loaders")
    try:
        loaders.taskset_class(package)
    except ImportError as error:
        raise MissingExtra(f"verifiers:{package}: install that package first ({one_line(error)})") from error
    except (Exception, SystemExit) as error:  # packages may raise anything
        raise UsageError(f"verifiers:{package} is not a taskset of verifiers 0.4: {one_line(error)}") from error
    return loaders


class VerifiersEnv(Env):
    """Tasks of a taskset package for verifiers.

    The reward, in the last turn, is the weighted sum of the task's rewards; ``info`` has each of them.

    Args:
        package: name of the package for verifiers.
        tasks: maximum number of tasks of an endless taskset.
        max_turns: turns before the episode is truncated.
        seconds: timeout of the package's code per turn.
        settings: fields of the taskset's configuration.
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
        kind = importlib.import_module("verifiers.v1.env").Env
        changed = [n for n in ("finalize", "setup", "start") if getattr(type(self.env), n) is not getattr(kind, n)]
        names = list(self.env._agent_specs)
        if len(names) != 1 or changed:
            why = f"it has {', '.join(changed)} of its own" if changed else f"it has the agents {', '.join(names)}"
            raise UsageError(f"verifiers:{self.package} needs verifiers' own runner: {why}")
        self._agent = str(names[0])
        bounded = self.env.taskset.bounded
        self._coming, self._most = _each(self.env.taskset), None if bounded else tasks
        self._tasks: list[Any] = []
        self._talk: Talk | None = None
        self._turn, self._observation = 0, ""

    def num_tasks(self) -> int:
        """Return the number of tasks of the taskset."""
        if self._most is None:
            self._take(None)
            self._most = len(self._tasks)
        return self._most

    def _take(self, n: int | None) -> None:
        """Load tasks up to this number."""
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
        weakref.finalize(self, self._talk.leave).atexit = False  # in case close() is not called
        self._answered(self._talk.begin)
        if self._talk.over:
            raise Misbehaved(f"{self}: task {index} ended before the agent's first turn")
        return self._observation, {"task": task.data.id or task.data.name or str(index), **self._pictures()}

    def _step(self, action: str) -> StepResult:
        assert self._talk is not None
        self._turn += 1
        talk = self._talk
        late = self._turn >= self.max_turns
        self._answered(lambda: talk.reply(action))
        if not talk.over and late:
            self._answered(talk.stop)
        if not talk.over:
            return self._observation, 0.0, False, False, self._pictures()
        trace = talk.trace
        rewards = {name: each.value for name, each in trace.rewards.items() if each is not None}
        info = {"rewards": rewards, "metrics": {name: each for name, each in trace.metrics.items() if each is not None}}
        reward = float(sum(rewards.values()))
        if not np.isfinite(reward):
            self.close()
            raise Misbehaved(f"{self}: the reward is {reward}")
        return "The episode is over.", reward, not talk.stopped, talk.stopped, info

    def _answered(self, ask: Any) -> None:
        """Continue the package's code, and store its message."""
        try:
            self._observation = ask() or self._observation
        except RollenvError as error:
            self._rollenv_over = True
            self._end()
            raise Misbehaved(f"{self}: turn {self._turn}: {error}") from error

    def _pictures(self) -> dict[str, Any]:
        return {"images": self._talk.images} if self._talk is not None and self._talk.images else {}

    def _end(self) -> None:
        talk, self._talk = self._talk, None
        if talk is not None:
            talk.close()

    def render(self) -> str:
        return self._observation

    def close(self) -> None:
        self._rollenv_over = True
        self._end()

    def _rollenv_twin(self) -> Env:
        raise NoSuchAbility(f"{self}: an episode of verifiers cannot be copied")


def _each(taskset: Any) -> Iterator[Any]:
    """Yield the tasks, loading them lazily."""
    yield from taskset


def _why_not(task: Any, taskset: Any) -> str:
    """Return the unsupported requirement of a task; empty if there is none."""
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
