"""Turns of agents: :class:`AgentSelector`."""

from __future__ import annotations

from collections.abc import Iterable

from rollenv.core.errors import UsageError

MODES = ("sequential", "parallel")


class AgentSelector:
    """Cycles through a list of agents: one at a time (``sequential``), or all at once (``parallel``)."""

    def __init__(self, agents: Iterable[str], mode: str = "sequential"):
        if mode not in MODES:
            raise UsageError(f"mode {mode!r} is unknown; choose from {', '.join(MODES)}")
        self.mode = mode
        self.reinit(agents)

    def reinit(self, agents: Iterable[str]) -> None:
        """Start over with these agents, and select the first."""
        self.agents = list(agents)
        if len(set(self.agents)) < len(self.agents):
            raise UsageError(f"agent names must be unique, got {self.agents}")
        self._at = 0

    @property
    def selected(self) -> str | None:
        """The agent whose turn it is; in parallel mode the first; None if there are no agents."""
        return self.agents[self._at] if self.agents else None

    def get_active_agents(self) -> list[str]:
        """Return the agents that act in this step."""
        if self.mode == "parallel" or not self.agents:
            return list(self.agents)
        return [self.agents[self._at]]

    def next(self) -> str | None:
        """Pass the turn to the next agent and return it; in parallel mode nothing changes."""
        if self.mode == "sequential" and self.agents:
            self._at = (self._at + 1) % len(self.agents)
        return self.selected

    def add_agent(self, agent: str) -> None:
        """Add an agent at the end of the round."""
        if agent in self.agents:
            raise UsageError(f"there is already an agent {agent!r}")
        self.agents.append(agent)

    def remove_agent(self, agent: str) -> None:
        """Remove an agent; if it was selected, the next one is."""
        if agent not in self.agents:
            raise UsageError(f"there is no agent {agent!r}; there are {self.agents}")
        index = self.agents.index(agent)
        self.agents.remove(agent)
        if index < self._at:
            self._at -= 1
        if self._at >= len(self.agents):
            self._at = 0

    def select(self, agent: str) -> None:
        """Select an agent."""
        if agent not in self.agents:
            raise UsageError(f"there is no agent {agent!r}; there are {self.agents}")
        self._at = self.agents.index(agent)
