"""A game of rollenv as a turn-based environment (AEC) of PettingZoo, https://pettingzoo.farama.org::

    from rollenv.plugins.players import pettingzoo_export

    env = pettingzoo_export.env("multi:Nim-v0-seats")
    env.reset(seed=1)
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, info = env.last()
        env.step(None if terminated or truncated else play(observation["text"]))

Agent ``player_N`` has seat N of the game.
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium

import rollenv
from rollenv.core.needs import extra
from rollenv.core.spaces import TextSpace
from rollenv.plugins.adapters.gymnasium import complete_text, known_options

with extra("players", "PettingZoo"):
    from pettingzoo import AECEnv
    from pettingzoo.utils.wrappers import OrderEnforcingWrapper

#: Keys of a result's info that have a value for each player.
_OF_EACH = ("rewards", "observations", "success")


def env(env_id: str, render_mode: str | None = None, **kwargs: Any) -> AECEnv[str, dict[str, str], str]:
    """Make a game, and enforce the order of calls. See :class:`Game`."""
    return OrderEnforcingWrapper(Game(env_id, render_mode, **kwargs))


class Game(AECEnv[str, dict[str, str], str]):  # type: ignore[misc]
    """A game of rollenv, with text as actions and ``{"text": ...}`` as observations.

    A player observes what it was shown last, ``""`` before its first turn. All agents end together.

    Args:
        env_id: id of the game.
        render_mode: ``human`` prints the text; others are those of :meth:`rollenv.EnvSpec.make`.
        kwargs: arguments of the game.

    Raises:
        UnknownEnv, UsageError: there is no such id, or it does not take an argument.
    """

    def __init__(self, env_id: str, render_mode: str | None = None, **kwargs: Any):
        super().__init__()
        self.render_mode = render_mode
        self.game = rollenv.make(env_id, render_mode="text" if render_mode == "human" else render_mode, **kwargs)
        modes = ["human", "text", "ansi", "svg", "rgb_array"]
        self.metadata = {"name": env_id, "render_modes": modes, "is_parallelizable": False, "render_fps": 4}
        self.possible_agents = [f"player_{seat}" for seat in range(self.game.players)]
        self.action_spaces = {agent: TextSpace() for agent in self.possible_agents}
        self.observation_spaces = {
            agent: gymnasium.spaces.Dict({"text": TextSpace()}) for agent in self.possible_agents
        }

    def action_space(self, agent: str) -> TextSpace:
        return self.action_spaces[agent]

    def observation_space(self, agent: str) -> gymnasium.spaces.Dict:
        return self.observation_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start a game. Options that it does not know are for others, so there is only a warning."""
        text, info = self.game.reset(seed, options=known_options(self.game, options))
        self.agents = list(self.possible_agents)
        self.rewards: dict[str, float] = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self._shown = dict.fromkeys(self.agents, "")
        self._turn_of(text, info)

    agent_selection: str

    def step(self, action: Any) -> None:
        """Play a turn with a text; None for an agent that is done.

        Raises:
            TypeError: the action is not text.
        """
        mover = self.agent_selection
        if self.terminations[mover] or self.truncations[mover]:
            self._was_dead_step(action)
            return
        text, reward, terminated, truncated, info = self.game.step(action)
        paid = info.get("rewards") or [reward if agent == mover else 0.0 for agent in self.possible_agents]
        self._cumulative_rewards[mover] = 0.0
        self.rewards = dict(zip(self.possible_agents, map(float, paid), strict=True))
        self._accumulate_rewards()
        self.infos = {agent: {} for agent in self.agents}
        if not terminated and not truncated:
            self._turn_of(text, info)
            return
        self.terminations = dict.fromkeys(self.agents, terminated)
        self.truncations = dict.fromkeys(self.agents, truncated)
        self._shown |= dict(zip(self.possible_agents, info.get("observations") or [], strict=False)) or {mover: text}
        self.infos[mover] = _own(info)
        for agent, won in zip(self.possible_agents, _of_each(info.get("success"), len(self.agents)), strict=True):
            self.infos[agent]["success"] = won
        self.agent_selection = self.possible_agents[0]

    def _turn_of(self, text: str, info: dict[str, Any]) -> None:
        """Give the turn to the player that the game names, and show it the observation."""
        self.agent_selection = self.possible_agents[info.get("player", 0)]
        self._shown[self.agent_selection] = complete_text(text, info)
        self.infos[self.agent_selection] = _own(info)

    def observe(self, agent: str) -> dict[str, str]:
        return {"text": self._shown[agent]}

    def render(self) -> Any:
        if self.render_mode is None:
            return None
        shown: Any = self.game.render()
        if self.render_mode != "human":
            return shown
        sys.stdout.write(f"{shown}\n")
        return None

    def close(self) -> None:
        self.game.close()

    def __str__(self) -> str:
        return str(self.game)


def _own(info: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in info.items() if name not in _OF_EACH}


def _of_each(value: Any, players: int) -> list[bool]:
    return value if isinstance(value, list) else [bool(value)] * players
