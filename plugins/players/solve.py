"""Experts for OpenSpiel's small games: perfect play, and equilibria."""

from __future__ import annotations

import functools
from typing import Any

#: Largest number of states of a game that has an expert, and its longest episode.
MOST_STATES, LONGEST = 20_000, 100
#: Rounds of CFR+; Leduc poker takes 3 s, and is then 0.005 from the equilibrium.
_ROUNDS = 200

#: Kuhn's equilibrium for two players with alpha = 1/6: probability of a bet by information state. The first player bets
#: the jack with alpha and the king with 3 alpha, and calls with the queen with alpha + 1/3.
KUHN = {
    **{"0": 1 / 6, "1": 0.0, "2": 0.5, "0pb": 0.0, "1pb": 0.5, "2pb": 1.0},
    **{"0p": 1 / 3, "1p": 0.0, "2p": 1.0, "0b": 0.0, "1b": 1 / 3, "2b": 1.0},
}


def is_open(game: Any) -> bool:
    """Return whether nothing is hidden and nothing left to chance."""
    kind = game.get_type()
    perfect: bool = kind.information == kind.Information.PERFECT_INFORMATION
    return perfect and kind.chance_mode == kind.ChanceMode.DETERMINISTIC


@functools.lru_cache(maxsize=64)
def has_expert(name: str) -> bool:
    """Return whether a game is zero-sum, for two, and has at most :data:`MOST_STATES` states.

    Args:
        name: of the game, with its parameters, as ``str(game)``.
    """
    import pyspiel

    game = pyspiel.load_game(name)
    kind = game.get_type()
    if game.num_players() != 2 or kind.utility != kind.Utility.ZERO_SUM or game.max_game_length() > LONGEST:
        return False
    if not (is_open(game) or kind.provides_information_state_string):
        return False
    seen: set[str] = set()
    todo, states = [game.new_initial_state()], 0
    while todo and states <= MOST_STATES:
        state = todo.pop()
        states += 1
        for action in state.legal_actions():
            child = state.child(action)
            key = _position(child) if is_open(game) else ""
            if not key or key not in seen:
                seen.add(key)
                todo.append(child)
    return states <= MOST_STATES


def moves_of_expert(game: Any, state: Any) -> dict[int, float]:
    """Return the expert's moves in a state, with their probabilities."""
    if is_open(game):
        values = _values(str(game))
        sign = 1 if state.current_player() == 0 else -1
        worth = {action: sign * _value(state.child(action), values) for action in state.legal_actions()}
        best = max(worth.values())
        return {action: 1.0 for action, value in worth.items() if value == best}
    seen = state.information_state_string()
    if game.get_type().short_name == "kuhn_poker":
        return {0: 1 - KUHN[seen], 1: KUHN[seen]}
    return dict(_equilibrium(str(game)).action_probabilities(state))


def _position(state: Any) -> str:
    return f"{state.current_player()} {state}"


@functools.lru_cache(maxsize=8)
def _values(game: str) -> dict[str, float]:
    """Return the table of values that :func:`_value` fills, one for each game."""
    return {}


def _value(state: Any, values: dict[str, float]) -> float:
    """Return the value of a state for player 0 under perfect play."""
    if state.is_terminal():
        return float(state.returns()[0])
    key = _position(state)
    if key not in values:
        best = max if state.current_player() == 0 else min
        values[key] = best(_value(state.child(action), values) for action in state.legal_actions())
    return values[key]


@functools.lru_cache(maxsize=8)
def _equilibrium(game: str) -> Any:
    """Return the average policy of CFR+ (Tammelin 2014, arXiv 1407.5042)."""
    import pyspiel

    solver = pyspiel.CFRPlusSolver(pyspiel.load_game(game))
    for _ in range(_ROUNDS):
        solver.evaluate_and_update_policy()
    return solver.tabular_average_policy()
