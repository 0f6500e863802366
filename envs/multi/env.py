"""Environments with several agents as dictionaries by agent, which no rollout uses: :class:`MultiAgentEnv`."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from rollenv.core.env import Env
from rollenv.core.errors import EpisodeOver, UsageError
from rollenv.envs.multi.selector import AgentSelector

#: Observations, rewards, terminations, truncations and infos by agent.
MultiStep = tuple[dict[str, str], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]


class MultiAgentEnv(Env):
    """An environment in which several agents act, in turns or at once.

    Rollouts and training do not use this contract: they read ``info["player"]`` (``rollenv.plugins.players.table``).

    A game implements :meth:`_new_game`, :meth:`_process_actions` and :meth:`observe`, and extends ``_get_state`` and
    ``_set_state`` by its own state. Draws come from ``np_random``, as everywhere.

    ``reset`` and ``step`` use dicts by agent. A step takes exactly the actions of the active agents
    (``agent_selector.get_active_agents()``). Agents that are done leave ``agents``; the episode is over when none is
    left.

    Args:
        mode: ``sequential`` (one agent acts at a time) or ``parallel``.
    """

    def __init__(self, agents: list[str], mode: str = "sequential"):
        self.possible_agents = list(agents)
        self.agent_selector = AgentSelector(agents, mode)
        self._clear(self.possible_agents)

    def _clear(self, agents: list[str]) -> None:
        self.agents = list(agents)
        self.cumulative_rewards = dict.fromkeys(agents, 0.0)
        self.terminations = dict.fromkeys(agents, False)
        self.truncations = dict.fromkeys(agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in agents}
        self.agent_selector.reinit(agents)

    # -- what a game writes ------------------------------------------------------------------------------------------

    def _new_game(self, options: dict[str, Any]) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no _new_game()")

    def _process_actions(self, actions: dict[str, str]) -> MultiStep:
        """Carry out the actions of the active agents; missing results default to "", 0.0, False, False and {}."""
        raise NotImplementedError(f"{type(self).__name__} has no _process_actions()")

    def observe(self, agent: str) -> str:
        """Return the agent's observation."""
        raise NotImplementedError(f"{type(self).__name__} has no observe()")

    # -- the episode -------------------------------------------------------------------------------------------------

    def reset(  # type: ignore[override]
        self, seed: int | None = None, *, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
        """Start an episode with all possible agents."""
        given = self._rollenv_checked_options(options)
        if seed is not None:
            self.seed_stream(seed)
        self._clear(self.possible_agents)
        self._new_game(given)
        self._rollenv_over = False
        return {agent: self.observe(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, str]) -> MultiStep:  # type: ignore[override]
        """Play one turn, or one round in parallel mode; results are by agent, for those still in the game.

        Raises:
            EpisodeOver: no agent is left, or ``reset`` was not called.
        """
        if self._rollenv_over:
            raise EpisodeOver(f"{self}: the episode is over; call reset() to start the next one")
        active = self.agent_selector.get_active_agents()
        if sorted(actions) != sorted(active):
            raise UsageError(f"{self}: expected actions of {active}, got actions of {sorted(actions)}")
        observations, rewards, terminations, truncations, infos = self._process_actions(actions)
        before = list(self.agents)
        for agent in before:
            self.cumulative_rewards[agent] += rewards.get(agent, 0.0)
            self.terminations[agent] = terminations.get(agent, False)
            self.truncations[agent] = truncations.get(agent, False)
            self.infos[agent] = infos.get(agent, {})
        outcome = (
            {agent: observations.get(agent, "") for agent in before},
            {agent: rewards.get(agent, 0.0) for agent in before},
            {agent: self.terminations[agent] for agent in before},
            {agent: self.truncations[agent] for agent in before},
            {agent: self.infos[agent] for agent in before},
        )
        mover = self.agent_selector.selected
        for agent in before:
            if self.terminations[agent] or self.truncations[agent]:
                self.remove_agent(agent)
        if mover in self.agents:
            self.agent_selector.next()
        self._rollenv_over = not self.agents
        return outcome

    def get_state(self, agent: str | None = None) -> Any:
        """Return an agent's (observation, reward so far, terminated, truncated, info); by default the JSON state."""
        if agent is None:
            return self._rollenv_whole_state()
        self._check(agent)
        return (
            self.observe(agent),
            self.cumulative_rewards[agent],
            self.terminations[agent],
            self.truncations[agent],
            self.infos[agent],
        )

    # -- agents ------------------------------------------------------------------------------------------------------

    def _check(self, agent: str) -> None:
        if agent not in self.cumulative_rewards:
            raise UsageError(f"{self}: there is no agent {agent!r}; there are {list(self.cumulative_rewards)}")

    def add_agent(self, agent: str) -> None:
        """Add an agent to the running episode, at the end of the round."""
        self.agent_selector.add_agent(agent)
        self.agents.append(agent)
        self.cumulative_rewards.setdefault(agent, 0.0)
        self.terminations[agent] = self.truncations[agent] = False
        self.infos[agent] = {}

    def remove_agent(self, agent: str) -> None:
        """Remove an agent from the running episode; its rewards and its last info stay."""
        self.agent_selector.remove_agent(agent)
        self.agents.remove(agent)

    # -- JSON state --------------------------------------------------------------------------------------------------

    _TABLES = ("agents", "cumulative_rewards", "terminations", "truncations", "infos")

    def _get_state(self) -> dict[str, Any]:
        tables = {name: copy.deepcopy(getattr(self, name)) for name in self._TABLES}
        return tables | {"order": list(self.agent_selector.agents), "selected": self.agent_selector.selected}

    def _set_state(self, state: dict[str, Any]) -> None:
        for name in self._TABLES:
            setattr(self, name, copy.deepcopy(state[name]))
        self.agent_selector.reinit(state["order"])
        if state["selected"] is not None:
            self.agent_selector.select(state["selected"])

    def share_stream(self, stream: np.random.Generator) -> None:
        """Draw from another environment's stream from now on."""
        self._np_random = stream
