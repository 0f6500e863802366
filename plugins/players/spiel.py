r"""``spiel:GAME`` and ``spiel:GAME(parameter=value)``: the games of OpenSpiel for several players, as text.

https://github.com/google-deepmind/open_spiel (Lanctot et al. 2019, arXiv 1908.09453). Moves of chance come from the
episode's generator. Games with simultaneous moves are played in turns, in which nobody sees the others' choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from rollenv.core.env import ResetResult, StepResult
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import EpisodeOver, NoSuchAbility, UnknownEnv, UsageError, did_you_mean
from rollenv.core.needs import Package, extra
from rollenv.core.parsing import last_boxed
from rollenv.plugins.players.solve import has_expert, moves_of_expert
from rollenv.plugins.players.table import Table, winners

#: Longest action that is read, in characters.
_LONGEST = 10_000

#: Rules of the games that are described better than by their name.
RULES = {
    "kuhn_poker": (
        "This is Kuhn poker. Each player is dealt one card and puts one chip into the pot. A player may bet one chip "
        "or pass; after a bet, to bet is to call it and to pass is to fold. The highest card of those who stay in wins "
        "the pot."
    ),
    "leduc_poker": (
        "This is Leduc poker. The cards are 0 and 1 (jacks), 2 and 3 (queens), 4 and 5 (kings). Each player has one "
        "and puts one chip into the pot; after a round of bets a public card is dealt, then follows the last round. In "
        "the records of the rounds, 0 is a fold, 1 a call, 2 a raise. A pair with the public card wins, else the "
        "higher card."
    ),
    "liars_dice": (
        "This is liar's dice. Each player rolls dice that only that player sees. In turn, players bid on how often a "
        "face has been rolled by all together: 2-5 is two fives. The highest face counts as any. Each bid must be "
        "higher than the last. Whoever doubts it answers Liar: the bidder wins if the bid holds, else the doubter."
    ),
    "tic_tac_toe": (
        "This is tic-tac-toe. Three marks in a row, a column or a diagonal win. Free cells are numbered; a move is the "
        "number of a free cell."
    ),
    "connect_four": (
        "This is Connect Four. A move drops a disc into one of the columns 0 to 6, from the left. Four discs in a line "
        "win."
    ),
}


def spec_of(env_id: str) -> EnvSpec:
    """Return the spec of ``spiel:GAME``; there is an oracle where the game is small enough to be solved.

    Raises:
        UnknownEnv: OpenSpiel has no such game.
        UsageError: the game is not one for several players, or its parameters are wrong.
        MissingExtra: open-spiel is not installed.
    """
    name = env_id.partition(":")[2]
    game = load(name)
    abilities = {"state", "spawn", "random_action", "state_key"} | ({"oracle"} if has_expert(str(game)) else set())
    return EnvSpec(
        env_id,
        "rollenv.plugins.players.spiel:OpenSpiel",
        {"game": name},
        frozenset(abilities),
        (Package("open-spiel", "players", "pyspiel"),),
        oracle_success=0,  # it plays all seats
        summary=f"OpenSpiel's {game.get_type().long_name} for {game.num_players()} players.",
    )


def load(name: str, **parameters: Any) -> Any:
    """Return one of OpenSpiel's games, in turns; the name may have parameters: ``kuhn_poker(players=3)``."""
    with extra("players", "spiel:*"):
        import pyspiel
    short = name.partition("(")[0]
    if short not in pyspiel.registered_names():
        hint = did_you_mean(short, pyspiel.registered_names(), "https://openspiel.readthedocs.io lists them", most=3)
        raise UnknownEnv(f"OpenSpiel has no game {short!r}; {hint}")
    if short in ("efg_game", "nfg_game") or "filename" in f"{name} {parameters}":  # a served environment opens no files
        raise UsageError(f"spiel:{name} cannot be played here: it is read from a file")
    known = next(each.parameter_specification for each in pyspiel.registered_games() if each.short_name == short)
    if unknown := sorted(parameters.keys() - known):  # OpenSpiel would print it, too
        hint = did_you_mean(unknown[0], known, f"it has {', '.join(known) or 'none'}", form=repr)
        raise UsageError(f"spiel:{name} has no parameter {unknown[0]!r}; {hint}")
    try:
        given = pyspiel.game_parameters_from_string(name)
        game = pyspiel.load_game(given.pop("name"), {**given, **parameters})
    except Exception as error:  # SpielError, and those of wrong types
        raise UsageError(f"spiel:{name} with {parameters}: {' '.join(str(error).split()):.300}") from error
    kind = game.get_type()
    if game.num_players() < 2:
        raise UsageError(f"spiel:{name} cannot be played here: it has one player")
    if kind.chance_mode == kind.ChanceMode.SAMPLED_STOCHASTIC:
        raise UsageError(f"spiel:{name} cannot be played here: its chance is drawn inside the game, not from the seed")
    if not kind.provides_information_state_string and not kind.provides_observation_string:
        raise UsageError(f"spiel:{name} cannot be played here: it has no text of what a player sees")
    return pyspiel.convert_to_turn_based(game) if kind.dynamics == kind.Dynamics.SIMULTANEOUS else game


class OpenSpiel(Table):
    r"""A game of OpenSpiel for two or more players.

    A player sees its information state (all that it has seen and done), or the board in games without hidden
    information. An action is one of the listed moves, in a box or alone, in any case; the number that OpenSpiel gives
    the move is understood too. Any other action forfeits: the episode ends, the player gets the least return of the
    game, in a zero-sum game the others share what it loses, else they keep what they have. ``success``: the highest
    return, if it is positive.

    The oracle plays a game without hidden information perfectly (random among the best moves); in others it draws from
    an equilibrium: Kuhn's in Kuhn poker for two, else the average policy of CFR+.

    Args:
        game: OpenSpiel's name of the game, also with parameters: ``kuhn_poker(players=3)``.
        action_format: the form of moves that are sampled and asked for: in a ``boxed``, ``bare``, or the ``number``
            alone.
        opening: most moves that are drawn at random before the players begin, so that training sees more positions
            than the players choose; a number from 0 to this is drawn.
        tremble: share of moves in whose place a random one is played, for the same reason (Selten's trembling hand).
            Nobody is told; a move against the rules still forfeits.
        parameters: further parameters of the game.
    """

    _changed_in_place = ("state", "_met")

    def __init__(
        self,
        *,
        game: str,
        action_format: Literal["boxed", "bare", "number"] = "boxed",
        opening: int = 0,
        tremble: float = 0.0,
        **parameters: Any,
    ):
        if action_format not in ("boxed", "bare", "number"):
            raise UsageError(f"action_format must be boxed, bare or number, not {action_format!r}")
        if opening < 0:
            raise UsageError(f"opening must be a number of moves of at least 0, not {opening}")
        if not 0 <= tremble <= 1:
            raise UsageError(f"tremble must be a share of moves from 0 to 1, not {tremble}")
        self.game, self.action_format, self.opening = load(game, **parameters), action_format, opening
        self.tremble = tremble
        kind = self.game.get_type()
        self.name = game.partition("(")[0]
        self.players = self.game.num_players()
        least = self.game.min_utility()
        self.zero_sum = kind.utility == kind.Utility.ZERO_SUM
        self.forfeit_returns = (least, -least / (self.players - 1) if self.zero_sum else 0.0)
        shown = kind.provides_observation_string and kind.information == kind.Information.PERFECT_INFORMATION
        self._recalls = kind.provides_information_state_string and not shown
        self.state = self.game.new_initial_state()
        self._met = [False] * self.players
        self._forfeiter: int | None = None

    # -- the episode -------------------------------------------------------------------------------------------------

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        self.state = self.game.new_initial_state()
        self._met, self._forfeiter = [False] * self.players, None
        self._deal()
        for _ in range(self.randint(self.opening + 1) if self.opening else 0):
            before = self.state.clone()
            self.state.apply_action(self._drawn_move())
            self._deal()
            if self.state.is_terminal():
                self.state = before
                break
        return self._asked()

    def _drawn_move(self) -> int:
        legal: list[int] = self.state.legal_actions()
        return legal[self.randint(len(legal))]

    def _deal(self) -> None:
        """Draw the moves of chance."""
        while self.state.is_chance_node():
            moves, chances = zip(*self.state.chance_outcomes(), strict=True)
            drawn = int(np.searchsorted(np.cumsum(chances), self.np_random.random(), side="right"))
            self.state.apply_action(moves[min(drawn, len(moves) - 1)])

    def _step(self, action: str) -> StepResult:
        mover, before = self.mover(), self.state.returns()
        move = self.read(action)
        if move is None:
            self._forfeiter = mover
            returns = self._returns_of_forfeit(mover, before)
        else:
            trembles = self.tremble and self.np_random.random() < self.tremble
            self.state.apply_action(self._drawn_move() if trembles else move)
            self._deal()
            returns = self.state.returns()
        rewards = [after - held for after, held in zip(returns, before, strict=True)]
        if move is not None and not self.state.is_terminal():
            return self._told(mover, rewards, True)
        return self._ended(mover, rewards, move is not None, winners(returns), forfeit=move is None)

    def _returns_of_forfeit(self, loser: int, held: list[float]) -> list[float]:
        least = self.game.min_utility()
        share = -least / (self.players - 1)
        others = [share] * self.players if self.zero_sum else held
        return [least if player == loser else total for player, total in enumerate(others)]

    def mover(self) -> int:
        return int(self.state.current_player())

    def turns_to(self, history: Sequence[int]) -> list[tuple[str, dict[str, Any], str]]:
        """Play moves of OpenSpiel, chance included, and return the turns of the player who is to move after them.

        Returns:
            Observation, info and the player's action at each; the action of the last is "".
        """
        states = [self.game.new_initial_state()]
        for played in history:
            states.append(states[-1].child(played))
        player, turns = states[-1].current_player(), []
        self._met, self._forfeiter, self._rollenv_over, self._rollenv_begun = [False] * self.players, None, False, True
        for self.state, move in zip(states, [*history, None], strict=True):
            if self.mover() == player:
                turns.append((*self._asked(), "" if move is None else self.write(move)))
        return turns

    # -- moves as text -----------------------------------------------------------------------------------------------

    def moves(self) -> dict[int, str]:
        """Return the names of the legal moves by OpenSpiel's number."""
        legal = self.state.legal_actions()
        if self.action_format == "number" or self.name in ("tic_tac_toe", "connect_four"):
            return {move: str(move) for move in legal}
        names = {move: self.state.action_to_string(self.mover(), move).strip() for move in legal}
        if len({name.lower() for name in names.values()}) < len(names):
            return {move: f"{move}: {name}" for move, name in names.items()}
        return names

    def read(self, action: str) -> int | None:
        """Return the legal move that an action means, or None."""
        boxed = last_boxed(action) if len(action) <= _LONGEST else ""
        names = self.moves()
        known = {str(move): move for move in names} | {name.lower(): move for move, name in names.items()}
        # The backslash at the end of a move of Hive hides the brace that closes its box.
        rest = action[-_LONGEST:].rpartition("\\boxed{")[2].partition("}")[0]
        texts = (each.strip().lower() for each in (action if boxed is None else boxed, rest))
        return next((known[text] for text in texts if text in known), None)

    def write(self, move: int) -> str:
        """Return the action for a move."""
        name = self.moves()[move]
        return f"\\boxed{{{name}}}" if self.action_format == "boxed" else name

    # -- what players see --------------------------------------------------------------------------------------------

    def _seen(self, player: int) -> str:
        if self._recalls:
            return str(self.state.information_state_string(player))
        return str(self.state.observation_string(player))

    def _view(self, player: int) -> str:
        """Return a player's information for people."""
        seen = self._seen(player)
        if self.name == "kuhn_poker":
            card, bets = int(seen.rstrip("pb")), seen.lstrip("0123456789")
            ranks = "JQK" if self.players == 2 else "0123456789X"
            moves = ", ".join({"p": "pass", "b": "bet"}[bet] for bet in bets) or "none"
            return f"Your card is {ranks[card]} of {', '.join(ranks[: self.players + 1])}. Moves so far: {moves}."
        if self.name == "liars_dice":
            dice, _, bids = seen.partition(" ")
            return f"Your dice: {', '.join(dice)}. Bids so far: {bids or 'none'}."
        if self.name == "tic_tac_toe":
            rows = seen.split("\n")
            cells = [
                [str(3 * r + c) if cell == "." else cell for c, cell in enumerate(row)] for r, row in enumerate(rows)
            ]
            return "\n".join(" ".join(row) for row in cells)
        return seen.strip()

    def _tell(self, player: int) -> str:
        parts = [self._view(player)]
        if not self._met[player]:
            parts, self._met[player] = [self._instructions(player), *parts], True
        if self._forfeiter is not None:
            whose, result = ("Your", "lost") if self._forfeiter == player else (f"Player {self._forfeiter}'s", "won")
            parts.append(f"{whose} last answer was no legal move, which forfeits the game.")
            parts.append(f"The game is over. You have {result}.")
        elif self.state.is_terminal():
            parts.append(f"The game is over. Your return is {self.state.returns()[player]:g}.")
        else:
            parts.append(f"Your moves: {'; '.join(self.moves().values())}.")
        return "\n".join(parts)

    def _instructions(self, player: int) -> str:
        long_name = self.game.get_type().long_name
        rules = RULES.get(self.name, f"This is {long_name}, a game for {self.players} players.")
        mark = f" with the mark {'xo'[player]}" if self.name in ("tic_tac_toe", "connect_four") else ""
        how = "in \\boxed{}" if self.action_format == "boxed" else "and nothing else"
        return (
            f"{rules} You are player {player} of 0 to {self.players - 1}{mark}. Answer with one of your moves {how}. "
            "Any other answer forfeits."
        )

    def _about(self) -> dict[str, Any]:
        return {"brief": self.state_key()}

    def render(self) -> str:
        """The information of the player to move; the whole state at the end."""
        if self.state.is_terminal() or self._forfeiter is not None:
            return f"{self.state}\nreturns: {', '.join(f'{total:g}' for total in self.state.returns())}"
        if self.state.is_chance_node():
            return ""
        return f"player {self.mover()}\n{self._seen(self.mover())}"

    # -- abilities ---------------------------------------------------------------------------------------------------

    def state_key(self) -> str:
        if self.state.is_terminal() or self._forfeiter is not None:
            return self.render()
        return f"{self.mover()} {self._seen(self.mover())}"

    def sample_random_action(self) -> str:
        legal = self.state.legal_actions() if not self._rollenv_over else []
        if not legal:
            raise EpisodeOver(f"{self}: the episode is over; there is no next action")
        return self.write(legal[int(self.action_rng.random() * len(legal))])

    def oracle_action(self) -> str:
        if self._rollenv_over:
            raise EpisodeOver(f"{self}: the episode is over; there is no next action")
        if not has_expert(str(self.game)):
            raise NoSuchAbility(f"{self} has no oracle: it is no zero-sum game for two, or too large to be solved")
        chances = moves_of_expert(self.game, self.state)
        return self.write(self.action_rng.choices(list(chances), list(chances.values()))[0])

    def _get_state(self) -> dict[str, Any]:
        return {"history": self.state.history(), "met": list(self._met), "forfeiter": self._forfeiter}

    def _set_state(self, state: dict[str, Any]) -> None:
        self.state = self.game.new_initial_state()
        for action in state["history"]:
            self.state.apply_action(action)
        self._met, self._forfeiter = list(state["met"]), state["forfeiter"]
