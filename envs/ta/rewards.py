"""Games of TextArena 0.7.4 whose own rewards are wrong, and the right ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

#: The most that a game may pay that was not solved: the limit of TextArena's own FrozenLake.
UNSOLVED = 0.95
#: Whether a game is solved. These pay 1 for a part of the solution, or less than 1 for a solution in the last turn;
#: FifteenPuzzle raises an exception when it is solved.
_SOLVED: dict[str, Callable[[Any], bool]] = {
    "FifteenPuzzleEnv": lambda game: game._is_solved(),
    "FrozenLakeEnv": lambda game: game.state.game_state["player_pos"] == game.state.game_state["goal_pos"],
    "Game2048Env": lambda game: game._max_tile() >= game.target_tile,
    "GuessTheNumberEnv": lambda game: game.game_number in game.guessed_numbers,
    "MinesweeperEnv": lambda game: game._is_solved(),
    "SlitherlinkEnv": lambda game: game._is_solved(),
}
_CARDS = re.compile(r"[^\[]*\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]")


def is_solved(game: Any) -> bool:
    """Return whether a game that is in the list is solved."""
    check = _SOLVED.get(type(game).__name__)
    return check is not None and bool(check(game))


def paid(game: Any, reward: float, invalid: bool) -> float:
    """Return the right reward of an ended game for one player.

    Args:
        reward: what the game pays.
        invalid: whether an invalid move ended it.
    """
    kind = type(game).__name__
    if kind == "BanditEnv" and not invalid:  # it pays the regret, which is 0 for the right button (TextArena #173)
        return float(reward == 0.0)
    if kind in _SOLVED:
        return 1.0 if is_solved(game) else min(reward, UNSOLVED)
    return reward


def is_refused(game: Any, action: str) -> bool:
    """Return whether an action must count as invalid, which the game takes for right: one card of Set three times."""
    cards = _CARDS.match(action) if type(game).__name__ == "SetEnv" else None
    return cards is not None and len(set(map(int, cards.groups()))) < 3
