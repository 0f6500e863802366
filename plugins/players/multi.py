"""Games for several of our own agents with a player in each seat: ``multi:Nim-v0-seats``."""

from __future__ import annotations

from typing import Any

from rollenv.core.env import ResetResult, StepResult
from rollenv.core.errors import UsageError
from rollenv.envs import pictures
from rollenv.envs.multi import MultiAgentEnv
from rollenv.envs.multi.nim import Nim
from rollenv.envs.multi.seat import PlayedGame
from rollenv.plugins.players.table import Table


class MultiTable(PlayedGame, Table):
    """A game whose agents act in turns; a player sees ``observe(agent)``.

    Rewards, ``valid`` and ``success`` are the game's own.

    Args:
        game: a :class:`MultiAgentEnv` in sequential mode.
    """

    def __init__(self, game: MultiAgentEnv):
        if game.agent_selector.mode != "sequential":
            raise UsageError(f"{game} lets all agents act at once; seats are taken in games with mode='sequential'")
        self.game, self.names = game, game.possible_agents
        self.players, self.reset_options = len(self.names), game.reset_options

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        self.game.share_stream(self.np_random)
        self.game.reset(options=options)
        return self._asked()

    def _step(self, action: str) -> StepResult:
        mover, before = self.mover(), dict(self.game.cumulative_rewards)
        self.game.step({self.names[mover]: action})
        rewards = [self.game.cumulative_rewards[name] - before[name] for name in self.names]
        valid = bool(self.game.infos[self.names[mover]].get("valid", True))
        if self.game.agents:
            return self._told(mover, rewards, valid)
        won = [bool(self.game.infos[name].get("success", False)) for name in self.names]
        truncated = not any(self.game.terminations.values())
        return self._ended(mover, rewards, valid, won, forfeit=not valid, truncated=truncated)

    def mover(self) -> int:
        return self.names.index(str(self.game.agent_selector.selected))

    def _tell(self, player: int) -> str:
        return self.game.observe(self.names[player])


class NimTable(MultiTable):
    """Nim with a player in each seat: take objects from piles in turn; whoever takes the last one wins.

    Pays 1 to the winner. An illegal move puts a player out of the game, and costs 0.1.
    """

    game: Nim
    forfeit_returns = (-0.1, 1.0)
    picture = staticmethod(pictures.nim)

    def __init__(self, players: int = 2, num_piles: int = 3, max_pile: int = 7, max_take: int | None = 3):
        super().__init__(Nim(players, num_piles, max_pile, max_take))

    def sample_random_action(self) -> str:
        return self.game.random_action(self.names[self.mover()], self.action_rng.randrange)

    def oracle_action(self) -> str:
        return self.game.expert_action(self.names[self.mover()])

    def state_key(self) -> str:
        return self.game.state_key()
