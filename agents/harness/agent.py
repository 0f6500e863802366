"""A harness as an agent: it plays an episode on its own, and its model calls are the episode's turns."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shlex
import signal
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any

from rollenv.agents.base import Action, Agent, AgentFailed, ContextFull, EnvHandle, OwnsEngine, Session
from rollenv.agents.engines.base import Sampling
from rollenv.agents.gateway.gateway import Gateway
from rollenv.agents.gateway.mcp import LOOK, Tools
from rollenv.agents.gateway.policy import PolicyModel
from rollenv.agents.gateway.session import Caps, GatewaySession
from rollenv.agents.gateway.tree import KINDS, TRAINED, Kind
from rollenv.agents.harness.records import Harness, find_harness
from rollenv.agents.harness.run import PORT, attached, play, program
from rollenv.agents.offered_tools import offered_tools
from rollenv.agents.prompts.session import refuse_pictures, shown
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.pictures import pictures
from rollenv.core.registry import spec
from rollenv.envs.terminal.base import TerminalEnv
from rollenv.sandbox import Machine, SandboxError

#: Seconds between two polls of a running harness: initial and maximum.
_SOON, _LATER = 0.02, 0.25
#: Maximum length in bytes of what a program on this host prints, whose end is kept.
_OUTPUT = 1 << 20


def concurrent_plays() -> int:
    """Return the number of concurrent episodes of harnesses: two for each core."""
    return 2 * (os.cpu_count() or 1)


class HarnessAgent(Agent):
    """Plays with a third-party agent, whose only network access is a gateway to the model.

    In an environment with a machine (``shell:*``, ``harbor:*``, ``tb:*``) the harness runs in that machine: one action
    is the whole play, and the task is submitted at its end. Any other environment is offered as MCP tools to a harness
    with MCP support, in a separate machine; a ``command:`` without MCP runs on this host, once for each observation,
    which it reads and answers with an action. An action's ``calls`` are the harness's model calls.

    Args:
        model: an agent with an engine, which can be trained, or a
            :class:`~rollenv.agents.gateway.session.Model`.
        args: additional command line arguments, such as ``["--tools", "bash"]``.
        seconds: deadline of one play; the state at that time is graded.
    """

    def __init__(
        self,
        model: Any,
        harness: Harness | str,
        *,
        args: Sequence[str] = (),
        seconds: float = 600.0,
        max_turns: int = 100,
        caps: Caps | None = None,
        kinds: Sequence[Kind] = TRAINED,
    ):
        found = find_harness(harness) if isinstance(harness, str) else harness
        self.harness = dataclasses.replace(found, command=f"{found.command} {shlex.join(args)}".strip())
        if unknown := set(kinds) - set(KINDS):
            raise UsageError(f"there are no calls of the kind {min(unknown)!r}; choose from {', '.join(KINDS)}")
        self.seconds, self.max_turns, self.kinds = seconds, max_turns, tuple(kinds)
        self.gateway = Gateway(model, caps=caps or Caps(calls=max(2 * max_turns, 50)))
        self._machines: dict[str, bool] = {}
        """True for ids whose environment is a machine."""

    async def prepare(self, env_id: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return constructor arguments for an environment whose machine has the harness and access to the gateway."""
        if env_id not in self._machines:
            with contextlib.closing(spec(env_id).make(**kwargs)) as env:
                self._machines[env_id] = isinstance(env.unwrapped, TerminalEnv)
        await self.gateway.start()
        if self._machines[env_id]:
            extras = await asyncio.to_thread(attached, self.harness, self.gateway.address)  # it may install it
            return {**kwargs, "calls": "native", "attached": extras}
        if not self._takes_tools and self.harness.name != "command":
            raise UsageError(
                f"{env_id} is no machine, so it is offered as MCP tools, which {self.harness.name} does not take; "
                "choose codex, claude-code or opencode, or an environment such as shell:*"
            )
        return dict(kwargs)

    @property
    def _takes_tools(self) -> bool:
        return bool(self.harness.mcp) or "{mcp_url}" in self.harness.command

    def start(self, env: EnvHandle, seed: int) -> Session:
        calls = self.gateway.open(env.env_id, seed=seed, sampling=getattr(self, "sampling", None))
        if self._machines[env.env_id]:
            return InMachine(self, env, calls)
        return OverTools(self, env, calls) if self._takes_tools else Beside(self, env, calls)

    def close(self) -> None:
        """Free the gateway's port."""
        self.gateway.close()

    def program(
        self, calls: GatewaySession, instruction: str, *, tools: bool = False, host: str = f"127.0.0.1:{PORT}"
    ) -> dict[str, Any]:
        """Return the harness with a task, for :meth:`~rollenv.envs.terminal.base.TerminalEnv.start_program`."""
        return program(
            self.harness,
            base_url=f"http://{host}/s/{calls.key}",
            key=calls.key,
            model=self.gateway.model.name,
            instruction=instruction,
            seconds=self.seconds,
            max_turns=self.max_turns,
            context=self.gateway.model.max_context,
            tools=tools,
        )


class TrainedHarnessAgent(OwnsEngine, HarnessAgent):
    """A :class:`HarnessAgent` over an engine whose weights are trained."""

    def __init__(self, agent: Any, harness: Harness | str, **settings: Any):
        super().__init__(agent, harness, **settings)
        self.agent, self.engine = agent, agent.engine
        self.sampling: Sampling = agent.sampling

    def close(self) -> None:
        """Free the gateway's port, and close the engine."""
        super().close()
        if hasattr(self.agent, "close"):
            self.agent.close()


class _Play(Session):
    """One play of a harness."""

    def __init__(self, agent: HarnessAgent, env: EnvHandle, calls: GatewaySession):
        self.agent, self.env, self.calls = agent, env, calls
        self.ended: dict[str, Any] = {}
        """The harness's ``exit_code``, ``output`` and ``seconds``."""
        self._turns: list[int] = []
        """Numbers of the calls in actions so far, in the order of the episode's turns."""

    def action(self, text: str) -> Action:
        """Create an action with the calls since the last one."""
        calls, name = self.calls, self.agent.harness.name
        if calls.failure is not None:
            raise AgentFailed(f"{name}: {calls.failure}") from calls.failure
        if not calls.tree.nodes:
            raise AgentFailed(f"{name} made no call of the model: {self.ended.get('output', '').strip()[-500:]}")
        new: list[Action] = []
        if isinstance(self.agent.gateway.model, PolicyModel):
            nodes = calls.trained_nodes(self.agent.kinds)
            fresh = [node for node in nodes if node.number not in self._turns]
            new = [calls.action(node) for node in fresh]
            self._turns += [node.number for node in fresh] or [-1]
            if not new:  # several actions of one answer: only the first has sampled tokens
                last = calls.action(nodes[-1] if nodes else calls.tree.nodes[-1])
                read = last.prompt_ids + last.response_ids
                new = [Action(text, read, policy_version=last.policy_version)]
        return Action(text, calls=tuple(new))

    def record(self) -> dict[str, Any]:
        """Return the tree of calls with their turns, and the result of the harness."""
        record = {"harness": self.agent.harness.name, **self.ended, **self.calls.to_dict(tokens=False)}
        turns = {number: turn for turn, number in enumerate(self._turns)}
        for node in record["nodes"]:
            if node["number"] in turns:
                node["turn"] = turns[node["number"]]
        return record

    def close(self) -> None:
        self.agent.gateway.forget(self.calls)


class InMachine(_Play):
    """A play in the environment's machine."""

    replayable = False

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        """Run the harness to its end or deadline, and submit."""
        refuse_pictures(info, "a program in the environment's machine")
        if "submit" not in info:
            raise AgentFailed(f"{self.env.env_id} has no submit action for a harness to end with")
        await self.env.call("start_program", self.agent.program(self.calls, observation))
        pause = _SOON
        while (await self.env.call("poll_program", 0.0))["running"] and self.calls.failure is None:
            await asyncio.sleep(pause)
            pause = min(_LATER, pause * 1.5)
        ended = await self.env.call("end_program")
        self.ended = {name: ended[name] for name in ("exit_code", "output", "seconds")}
        self.calls.finish()
        return self.action(str(info["submit"]))


class OverTools(_Play):
    """A play in a separate machine, where the harness has the environment's actions as tools."""

    _running: asyncio.Task[dict[str, Any]] | None = None
    _machine: Machine | None = None

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        """Answer the harness's last action, and wait for its next."""
        if self.calls.tools is None:
            task = shown(observation, info)
            self.calls.tools = Tools(offered_tools(info), task, pictures(info))
            task = f"{task}\n\n{shown_tools(self.calls.tools)}"
            self._running = asyncio.create_task(asyncio.to_thread(self._run, task))
        else:
            self.calls.tools.show(shown(observation, info), pictures(info))
        assert self._running is not None
        action = asyncio.ensure_future(self.calls.tools.next_action())
        try:
            await asyncio.wait((action, self._running), return_when=asyncio.FIRST_COMPLETED)
            if action.done():
                return self.action(action.result())
        finally:
            action.cancel()
        self.ended = self._running.result()
        if self.calls.failure is not None or not self.calls.tree.nodes:
            self.action("")
        raise ContextFull(f"{self.agent.harness.name} has ended before the episode")

    def _run(self, task: str) -> dict[str, Any]:
        """Start the machine and run the harness to its end, in a thread."""
        attach = attached(self.agent.harness, self.agent.gateway.address)
        try:
            with Machine.create(**attach.settings) as self._machine:
                ended = play(self._machine, self.agent.program(self.calls, task, tools=True), cwd="/root")
        except SandboxError as error:  # on purpose: this host has no machines, or it has died
            raise RollenvError(f"{self.agent.harness.name} cannot play in a machine: {error}") from error
        return {name: ended[name] for name in ("exit_code", "output", "seconds")}

    def close(self) -> None:
        super().close()
        if self.calls.tools is not None:
            self.calls.tools.close()
        if self._running is not None and not self._running.done():
            self._running.cancel()
        if self._machine is not None:
            with contextlib.suppress(SandboxError):
                self._machine.kill()


class Beside(_Play):
    """A play on this host, by a program of the user that is no tool of a machine, such as a LangGraph script."""

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        """Run the program with an observation as its input; what it prints is the action."""
        refuse_pictures(info, "a program that reads a text")
        spec = self.agent.program(self.calls, shown(observation, info), host=self.agent.gateway.address)
        began, name = time.monotonic(), shlex.join(spec["command"])[:200]
        with contextlib.ExitStack() as opened:
            # Files, as a process that it leaves behind would hold pipes open.
            stdin, stdout, stderr = (opened.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            stdin.write(spec["stdin"].encode())
            stdin.seek(0)
            env = os.environ | spec["env"]
            try:
                running = await asyncio.create_subprocess_exec(
                    *spec["command"], env=env, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
                )
            except OSError as error:
                raise UsageError(f"cannot run {name}: {error.strerror or error}") from error
            try:
                async with asyncio.timeout(self.agent.seconds):
                    await running.wait()
            except TimeoutError:
                raise AgentFailed(f"{name} has not ended after {self.agent.seconds:g} s") from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)  # it may have started others
                await running.wait()
            said, output = _end_of(stdout), _end_of(stderr)
        self.ended = {"exit_code": running.returncode, "output": output, "seconds": time.monotonic() - began}
        if running.returncode:
            raise AgentFailed(f"{name} ended with exit code {running.returncode}: {output.strip()[-500:]}")
        return self.action(said.strip())


def _end_of(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - _OUTPUT))
    return file.read().decode(errors="replace")


def shown_tools(tools: Tools) -> str:
    """Return the part of a task that explains how to play."""
    names = ", ".join(function["name"] for function in tools.functions)
    told = f"Play with the tools of the MCP server `environment` ({names}), one call after the other, until it is over."
    return f"{told} Its look shows the pictures of the task." if LOOK in tools.functions else told
