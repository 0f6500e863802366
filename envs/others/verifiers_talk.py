"""An episode of verifiers' without its harness: who replies stands in for the agent."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import queue
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from rollenv.envs.others import Misbehaved, one_line
from rollenv.envs.others.showing import show


class Talk:
    """One episode: ``Env.run()`` of the package in a thread, and the agent's turns outside of it.

    Args:
        agent: the name of its agent.
        seconds: that the thread may take until it says something.

    Attributes:
        over: whether ``run()`` has returned.
        stopped: whether it was told to end.
        trace: verifiers' record of the episode; its rewards are there when it is over.
    """

    def __init__(self, env: Any, agent: str, task: Any, seconds: float):
        self._env, self._agent, self._task, self._seconds = env, agent, task, seconds
        self._said: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._loop = asyncio.new_event_loop()
        self._reply: asyncio.Future[str | None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="verifiers", daemon=True)
        self._one_at_a_time = asyncio.Lock()
        self._ended = False  # the package was told of it
        self.over, self.stopped = False, False
        self.trace: Any = None

    # -- who replies -------------------------------------------------------------------------------------------------

    def begin(self) -> str:
        """Start. Returns what the agent sees first.

        Raises:
            Misbehaved: the package failed, or says nothing.
        """
        self._thread.start()
        return self._next()

    def reply(self, text: str) -> str:
        """Give the agent's reply. Returns what it sees next; empty at the end.

        Raises:
            Misbehaved: the package failed, or says nothing.
        """
        self._give(text)
        return self._next()

    def stop(self) -> str:
        """End before the package does: its next turn is told that the agent is gone.

        Raises:
            Misbehaved: the package failed, or says nothing.
        """
        self.stopped = True
        self._give(None)
        return self._next()

    def close(self) -> None:
        """End, whatever the package does."""
        if self._thread.is_alive():
            self.leave()
            self._thread.join(5.0)
        elif not self._loop.is_closed():
            self._loop.close()

    def leave(self) -> None:
        """Have it end, without waiting for that."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._cancel)

    def _next(self) -> str:
        try:
            what, told = self._said.get(timeout=self._seconds)
        except queue.Empty:
            raise Misbehaved(f"the package said nothing within {self._seconds:g} s") from None
        if what == "failed":
            raise Misbehaved(one_line(told)) from told
        self.over = what == "over"
        if self.over and self.trace is None:
            raise Misbehaved("its run() let no agent play")
        return str(told)

    def _give(self, text: str | None) -> None:
        self._loop.call_soon_threadsafe(self._set, text)

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            agents = SimpleNamespace(**{self._agent: self})
            self._running = self._loop.create_task(self._env.run(self._task, agents))
            self._loop.run_until_complete(self._running)
            self._said.put(("over", ""))
        except BaseException as error:  # that it was cancelled, too: the package can do that itself
            self._said.put(("failed", error))
        finally:
            self._loop.close()

    def _cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    def _set(self, text: str | None) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(text)

    # -- what verifiers' code sees: an Agent, and its Interaction ----------------------------------------------------

    @contextlib.asynccontextmanager
    async def interaction(self, task: Any, **_: Any) -> AsyncIterator[Talk]:
        """See ``Agent.interaction`` of verifiers."""
        if self.trace is not None:
            raise Misbehaved("its agent plays more than once, for which verifiers' own runner is needed")
        self._open(task)
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
        """See ``Interaction.turn`` of verifiers: what the user says to the agent, and what it replies."""
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
        shown = "\n\n".join(filter(None, [*self._first, *(types.content_text(each.content) for each in new)]))
        self._first: list[str] = []
        self._reply = self._loop.create_future()
        self._said.put(("shown", show(shown)))
        text = await self._reply
        if text is None:
            self._ended = True
            return segment(messages=[], terminated=True)
        answer = types.AssistantMessage(content=text)
        self._add(answer, sampled=True)
        return segment(messages=[answer], root_reply=text)

    def _open(self, task: Any) -> None:
        records = importlib.import_module("verifiers.v1.trace")
        types = importlib.import_module("verifiers.v1.types")
        config = importlib.import_module("verifiers.v1.configs.agent").AgentConfig()
        state = importlib.import_module("verifiers.v1.state").state_cls(type(task))()
        about = records.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        self.trace = records.Trace(task=about, state=state, agent=records.AgentInfo(config=config, name=self._agent))
        system, prompt = task.data.system_prompt, task.data.prompt
        messages = [types.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt or [])
        for each in [*([types.SystemMessage(content=system)] if system else []), *messages]:
            self._add(each)
        self._first = [text for text in (system, task.data.prompt_text) if text]

    def _add(self, message: Any, sampled: bool = False) -> None:
        nodes = self.trace.nodes
        node = importlib.import_module("verifiers.v1.graph").MessageNode
        nodes.append(node(parent=len(nodes) - 1 if nodes else None, message=message, sampled=sampled))
