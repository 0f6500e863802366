"""``ta2:GAME``: the games of TextArena for several players, all seats of which are played.

``ta:GAME`` is the same game with one seat to play, against built-in opponents.

The games seed the process-wide ``random``; as in ``ta:GAME``, each environment has a state of its own for it, which is
swapped in while its game runs.
"""

from __future__ import annotations

from typing import Any

from rollenv.core.env import ResetResult, StepResult
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import UnknownEnv, UsageError, did_you_mean
from rollenv.core.needs import Package
from rollenv.core.parsing import well_formed
from rollenv.envs.ta.env import LONGEST, TextArena
from rollenv.envs.ta.games import GAMES, LEFT_OUT, NO_SAMPLER
from rollenv.plugins.players.table import Table, winners


def spec_of(env_id: str) -> EnvSpec:
    """Return the spec of ``ta2:GAME``.

    Raises:
        UnknownEnv: there is no such game for several players.
    """
    game = env_id.partition(":")[2]
    several = [name for name, seats in GAMES.items() if seats > 1]
    if game not in several:
        hint = LEFT_OUT.get(game, did_you_mean(game, several, "`rollenv list ta:` shows its games"))
        if game in GAMES:
            hint = f"it is for one player: ta:{game}"
        raise UnknownEnv(f"TextArena's {game!r} cannot be played by several; {hint}")
    return EnvSpec(
        env_id,
        "rollenv.plugins.players.textarena:TextArenaTable",
        {"game": game, "num_players": GAMES[game]},
        frozenset({"state", "spawn"} | (set() if game in NO_SAMPLER else {"random_action"})),
        (Package("textarena", "players"),),
        summary=f"A game of TextArena for {GAMES[game]} players.",
    )


class TextArenaTable(TextArena, Table):
    """A TextArena game in which every seat has a player.

    An action is passed on unchanged, cut to 2,000 characters; one without ``[`` and ``]`` is wrapped in them.
    TextArena lets the same player try again after a first invalid move, and ends the game at a second one, which
    forfeits it. A player over whose action the game raises an exception forfeits too, with the reward -1. ``success``:
    the highest reward, if it is positive.

    Args:
        num_players: number of seats.
        max_turns: turns of all players before the episode is truncated, without rewards.
        settings: further arguments of the game.
    """

    def __init__(self, game: str, num_players: int = 2, *, max_turns: int = 1000, **settings: Any):
        super().__init__(game, num_players, max_turns=max_turns, **settings)
        self.players = num_players

    def mover(self) -> int:
        return int(self._state.current_player_id)

    def _play_others(self) -> None:
        """Play nobody: every seat has a player."""

    def _play(self, action: str) -> bool:
        self.seat = self.mover()
        return super()._play(action)

    def _tell(self, player: int) -> str:
        news = self._take_messages(player)
        return news if self.error is None else f"{news}\n{self.error}".strip()

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        self.actions = []
        self.episode_seed = self.randint(2**31)
        try:
            self._start(self.episode_seed)
        except AssertionError as error:
            raise UsageError(f"{self} with {self.players} players: {error}") from error
        return self._asked()

    def _step(self, action: str) -> StepResult:
        mover = self.mover()
        self.actions.append(well_formed(action[:LONGEST]))
        valid = self._play(self.actions[-1])
        done = self.error is not None or bool(self._state.done)
        if not done and len(self.actions) < self.max_turns:
            return self._told(mover, [0.0] * self.players, valid)
        rewards = [self._reward_of(player) if done else 0.0 for player in range(self.players)]
        return self._ended(mover, rewards, valid, winners(rewards), forfeit=done and not valid, truncated=not done)

    def _reward_of(self, player: int) -> float:
        self.seat = player
        return self._reward()

    def _set_state(self, state: dict[str, Any]) -> None:
        self.episode_seed, self.actions = state["episode_seed"], list(state["actions"])
        self._start(self.episode_seed)
        for action in self.actions:
            self._tell(self.mover())
            self._play(action)
        self._tell(self.mover())

    def render(self) -> str:
        return self._shown_to.get(self.mover(), "") if self._rollenv_begun else ""
