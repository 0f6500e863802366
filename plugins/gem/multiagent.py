"""GEM's base of environments with several agents. Its subclasses keep the tables themselves, as they do in GEM.

rollenv's own base, :class:`rollenv.envs.multi.MultiAgentEnv`, keeps them for its subclasses and is stricter.
"""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

from rollenv.core.errors import UsageError
from rollenv.envs.multi import selector
from rollenv.plugins.gem.core import Env


class AgentSelector(selector.AgentSelector):
    """Turn order of agents; adding an agent twice or removing an absent one changes nothing."""

    def __init__(self, agents: list[str], mode: str = "sequential"):
        super().__init__(agents, mode if mode in selector.MODES else "sequential")
        self.mode = mode

    @property
    def _agents(self) -> list[str]:
        return self.agents

    @property
    def selected(self) -> str | None:
        return super().selected

    @selected.setter
    def selected(self, agent: str) -> None:
        self.select(agent)

    def get_active_agents(self) -> list[str]:
        if self.mode not in selector.MODES:
            raise UsageError(f"mode {self.mode!r} is unknown; choose one of {', '.join(selector.MODES)}")
        return super().get_active_agents()

    def is_first(self) -> bool:
        return self._at == 0

    def is_last(self) -> bool:
        return self._at == len(self.agents) - 1

    def add_agent(self, agent: str) -> None:
        if agent not in self.agents:
            super().add_agent(agent)

    def remove_agent(self, agent: str) -> None:
        """Remove an agent; the turn goes back to the previous one, so that ``next`` selects the following one."""
        if agent not in self.agents:
            return
        index = self.agents.index(agent)
        self.agents.remove(agent)
        if index <= self._at:
            self._at = max(0, self._at - 1)
        self._at %= max(1, len(self.agents))


class MultiAgentEnv(Env):
    """An environment with sequential or parallel agents; authors implement ``observe`` and ``_process_actions``.

    The author fills ``possible_agents`` and, for turns, ``agent_selector``, and sets ``terminations`` and
    ``truncations`` when an agent is done: it leaves ``agents`` after the step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents: list[str] = []
        self.agents: list[str] = []
        self.terminations: dict[str, bool] = {}
        self.truncations: dict[str, bool] = {}
        self.rewards: dict[str, float] = {}
        self.infos: dict[str, dict[str, Any]] = {}
        self._cumulative_rewards: dict[str, float] = {}
        self.agent_selector: Any = None
        self.shared_memory: list[dict[str, str]] = []
        self.global_context = ""

    @abc.abstractmethod
    def observe(self, agent: str) -> str:
        """Return the agent's observation."""

    @abc.abstractmethod
    def _process_actions(self, actions: dict[str, str]) -> Any:
        """Apply the actions; return observations, rewards, terminations, truncations and infos by agent."""

    def _make_np_random(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(seed)

    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        """Start an episode with all possible agents; return observations and infos by agent."""
        if seed is not None:
            self._np_random = self._make_np_random(seed)
        self.agents = list(self.possible_agents)
        for name, value in (("terminations", False), ("truncations", False), ("rewards", 0.0)):
            setattr(self, name, dict.fromkeys(self.agents, value))
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.infos = {agent: {} for agent in self.agents}
        self.shared_memory, self.global_context = [], ""
        if self.agent_selector:
            self.agent_selector.reinit(self.agents)
        return {agent: self.observe(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, str]) -> Any:  # type: ignore[override]
        """Play one turn, or one round in parallel mode.

        Raises:
            UsageError: the actions are not a dict, an active agent has none, or one that is not active has one.
        """
        if not isinstance(actions, dict):
            raise UsageError(f"the actions must be a dict by agent, not {type(actions).__name__}")
        self._validate_actions(actions, self._active())
        outcome = self._process_actions(actions)
        for agent in self.agents:
            if agent in outcome[1]:
                self._cumulative_rewards[agent] = self._cumulative_rewards.get(agent, 0.0) + outcome[1][agent]
        self._remove_dead_agents()
        if self.agent_selector:
            self.agent_selector.next()
        return outcome

    def _active(self) -> list[str]:
        return list(self.agent_selector.get_active_agents() if self.agent_selector else self.agents)

    def _validate_actions(self, actions: dict[str, str], active_agents: list[str]) -> None:
        for agent in active_agents:
            plays = not self.terminations.get(agent, True) and not self.truncations.get(agent, True)
            if plays and agent not in actions:
                raise UsageError(f"the active agent {agent!r} is missing: Missing action for it")
        for agent in actions:
            if agent not in active_agents:
                raise UsageError(f"agent {agent!r} has an action but is not active; active agents: {active_agents}")

    def _remove_dead_agents(self) -> None:
        for agent in list(self.agents):
            if self.terminations.get(agent, False) or self.truncations.get(agent, False):
                self.remove_agent(agent)

    def get_state(self, agent: str) -> Any:  # type: ignore[override]
        """(observation, cumulative reward, terminated, truncated, info) of an agent in the game."""
        self._check(agent)
        return (
            self.observe(agent),
            self._cumulative_rewards.get(agent, 0.0),
            self.terminations.get(agent, False),
            self.truncations.get(agent, False),
            self.infos.get(agent, {}),
        )

    def get_active_states(self) -> dict[str, Any]:
        """:meth:`get_state` of every agent whose turn it is."""
        return {agent: self.get_state(agent) for agent in self._active() if agent in self.agents}

    def _check(self, agent: str) -> None:
        if agent not in self.agents:
            raise UsageError(f"agent {agent!r} is not in environment {self}; its agents: {self.agents}")

    def add_agent(self, agent_id: str) -> None:
        """Let an agent join the running episode; does nothing if it is already there."""
        if agent_id in self.agents:
            return
        self.agents.append(agent_id)
        self.terminations[agent_id] = self.truncations[agent_id] = False
        self.rewards[agent_id] = self._cumulative_rewards[agent_id] = 0.0
        self.infos[agent_id] = {}
        if self.agent_selector:
            self.agent_selector.add_agent(agent_id)

    def remove_agent(self, agent_id: str) -> None:
        """Remove an agent and its records from the episode; do nothing if it is not there."""
        if agent_id not in self.agents:
            return
        self.agents.remove(agent_id)
        for table in (self.terminations, self.truncations, self.rewards, self.infos, self._cumulative_rewards):
            table.pop(agent_id, None)
        if self.agent_selector:
            self.agent_selector.remove_agent(agent_id)

    def send_message(self, from_agent: str, to_agent: str, message: str) -> None:
        """Put a message into ``shared_memory``."""
        self._check(from_agent)
        self._check(to_agent)
        self.shared_memory.append({"from": from_agent, "to": to_agent, "message": message})

    def broadcast_message(self, from_agent: str, message: str) -> None:
        """Send a message to every other agent."""
        self._check(from_agent)
        for agent in self.agents:
            if agent != from_agent:
                self.send_message(from_agent, agent, message)
