"""A harness as an agent: it plays an episode by itself, and its calls of the model are the episode's turns."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rollenv.agents.base import Action, AgentFailed, EnvHandle, Session
from rollenv.agents.engines.base import OwnsEngine, Sampling
from rollenv.agents.gateway.gateway import Gateway
from rollenv.agents.gateway.session import Caps, GatewaySession
from rollenv.agents.gateway.tree import KINDS, TRAINED, Kind
from rollenv.agents.harness.records import Harness, find_harness
from rollenv.agents.harness.run import PORT, attached, program
from rollenv.core import UsageError
from rollenv.envs.terminal.base import TerminalEnv
from rollenv.registry import spec

#: Seconds between two looks at a harness that runs: at first, and at most.
_SOON, _LATER = 0.02, 0.25


class HarnessAgent:
    """Plays with somebody else's agent, which runs in the episode's machine and reaches a gateway to the model only.

    One action is the whole play: its ``calls`` are what the harness asked the model. When the harness ends, the task is
    submitted. Environments are those with a machine (``shell:*``, ``harbor:*``, ``tb:*``).

    Args:
        model: an agent with an engine, which can be trained, or a
            :class:`~rollenv.agents.gateway.session.Model`.
        harness: a record, or its name.
        args: more words for its command line, such as ``["--tools", "bash"]``.
        seconds: deadline of one play; what is there then is graded.
        max_turns: of the harness, where it has such a limit.
        caps: of the gateway's session.
        kinds: of the calls that are trained.

    Raises:
        UsageError: there is no such harness, or kind of call.
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
        """Whether environments have a machine, by id."""

    async def prepare(self, env_id: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of an environment for this agent: its machine shows the harness, and leads to the gateway.

        Raises:
            UsageError: the environment has no machine.
        """
        if env_id not in self._machines:
            with contextlib.closing(spec(env_id).make(**kwargs)) as env:
                self._machines[env_id] = isinstance(env.unwrapped, TerminalEnv)
        if not self._machines[env_id]:
            raise UsageError(f"a harness plays environments with a machine, such as shell:*; {env_id} has none")
        await self.gateway.start()
        return {**kwargs, "calls": "native", "attached": attached(self.harness, self.gateway.address)}

    def start(self, env: EnvHandle, seed: int) -> HarnessSession:
        session = self.gateway.open(env.env_id, seed=seed, sampling=getattr(self, "sampling", None))
        return HarnessSession(self, env, session)


class TrainedHarnessAgent(OwnsEngine, HarnessAgent):
    """A :class:`HarnessAgent` over an engine whose weights are trained."""

    def __init__(self, agent: Any, harness: Harness | str, **settings: Any):
        super().__init__(agent, harness, **settings)
        self.agent, self.engine, self.tokenizer = agent, agent.engine, getattr(agent, "tokenizer", None)
        self.sampling: Sampling = agent.sampling

    def close(self) -> None:
        """End the engine, where it has to be ended."""
        if hasattr(self.agent, "close"):
            self.agent.close()


@dataclasses.dataclass(slots=True)
class HarnessSession(Session):
    """One play of a harness."""

    agent: HarnessAgent
    env: EnvHandle
    calls: GatewaySession
    ended: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What the harness left: ``exit_code``, ``output``, ``seconds``, ``transcript``."""

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        """Run the harness to its end, or its deadline.

        Raises:
            AgentFailed: the model failed, or the harness never asked it.
        """
        if "submit" not in info:
            raise AgentFailed(f"{self.env.env_id} has no submit action for a harness to end with")
        agent = self.agent
        what = program(
            agent.harness,
            base_url=f"http://127.0.0.1:{PORT}/s/{self.calls.key}",
            key=self.calls.key,
            model=agent.gateway.model.name,
            instruction=observation,
            seconds=agent.seconds,
            max_turns=agent.max_turns,
            context=agent.gateway.model.max_context,
        )
        await self.env.call("start_program", what)
        pause = _SOON
        while (await self.env.call("poll_program", 0.0))["running"] and self.calls.failure is None:
            await asyncio.sleep(pause)
            pause = min(_LATER, pause * 1.5)
        self.ended = await self.env.call("end_program")
        self.calls.finish()
        if self.calls.failure is not None:
            raise AgentFailed(f"{agent.harness.name}: {self.calls.failure}") from self.calls.failure
        if not self.calls.tree.nodes:
            output = self.ended["output"].strip()[-500:]
            raise AgentFailed(f"{agent.harness.name} ended with {self.ended['exit_code']} before any call: {output}")
        return Action(str(info["submit"]), calls=tuple(self._actions()), record=self._record())

    def _actions(self) -> list[Action]:
        return self.calls.actions(self.agent.kinds) if isinstance(self.agent, TrainedHarnessAgent) else []

    def _record(self) -> dict[str, Any]:
        """The play for people: its calls as a tree, and how the harness ended."""
        ended = {name: self.ended[name] for name in ("exit_code", "output", "seconds")}
        return {"harness": self.agent.harness.name, **ended, **self.calls.to_dict(tokens=False)}

    def close(self) -> None:
        self.agent.gateway.forget(self.calls)
