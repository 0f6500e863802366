"""A multi-agent game as a single-agent environment: :class:`Seat`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.errors import UsageError
from rollenv.envs.multi.env import MultiAgentEnv

#: A function from an observation to an action.
Player = Callable[[str], str]
SCRIPTED = ("random", "expert")


class Game(MultiAgentEnv):
    """A multi-agent game with scripted players, for :class:`Seat`."""

    def random_action(self, agent: str, randint: Callable[[int], int]) -> str:
        """Draw a legal action."""
        raise NotImplementedError(f"{type(self).__name__} has no random_action()")

    def expert_action(self, agent: str) -> str:
        """Return a strong action."""
        raise NotImplementedError(f"{type(self).__name__} has no expert_action()")


class PlayedGame(Env):
    """An environment around a multi-agent game, whose state is the game's."""

    game: MultiAgentEnv

    def render(self) -> str:
        return self.game.render()

    def _get_state(self) -> dict[str, Any]:
        return {"over": self.game._rollenv_over, "game": self.game._get_state()}

    def _set_state(self, state: dict[str, Any]) -> None:
        self.game.share_stream(self.np_random)
        self.game._set_state(state["game"])
        self.game._rollenv_over = state["over"]


class Seat(PlayedGame):
    """One seat of a turn-based game; the others are played by a script or a function.

    Args:
        seat: index of the agent to play.
        opponent: ``random``, ``expert``, or a function from an observation to an action.
    """

    game: Game

    def __init__(self, game: Game, seat: int = 0, opponent: str | Player = "random"):
        if not 0 <= seat < len(game.possible_agents):
            raise UsageError(f"seat must be in 0 .. {len(game.possible_agents) - 1}, got {seat}")
        if not callable(opponent) and opponent not in SCRIPTED:
            raise UsageError(f"opponent must be one of {', '.join(SCRIPTED)} or a function, got {opponent!r}")
        self.game, self.opponent = game, opponent
        self.me = game.possible_agents[seat]
        self.reset_options = game.reset_options

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        self.game.share_stream(self.np_random)
        self.game.reset(options=options)
        self._play_others()
        return self.game.observe(self.me), {}

    def _step(self, action: str) -> StepResult:
        before = self.game.cumulative_rewards[self.me]
        self.game.step({self.me: action})
        info = dict(self.game.infos[self.me])
        self._play_others()
        terminated, truncated = self.game.terminations[self.me], self.game.truncations[self.me]
        if terminated or truncated:
            info |= self.game.infos[self.me]
        reward = self.game.cumulative_rewards[self.me] - before
        return self.game.observe(self.me), reward, terminated, truncated, info

    def _play_others(self) -> None:
        """Play the others until it is this seat's turn, or it is out of the game."""
        while self.me in self.game.agents and (agent := self.game.agent_selector.selected) != self.me:
            assert agent is not None
            self.game.step({agent: self._choose(agent)})

    def _choose(self, agent: str) -> str:
        if callable(self.opponent):
            return self.opponent(self.game.observe(agent))
        if self.opponent == "expert":
            return self.game.expert_action(agent)
        return self.game.random_action(agent, self.randint)

    def sample_random_action(self) -> str:
        return self.game.random_action(self.me, self.action_rng.randrange)

    def oracle_action(self) -> str:
        return self.game.expert_action(self.me)

    def state_key(self) -> str:
        return self.game.state_key()
