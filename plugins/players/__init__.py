"""Games for several players from other projects, and meters of how well they are played."""

from __future__ import annotations

from rollenv.core.needs import Package
from rollenv.core.registry import ABILITIES, register

#: Games of OpenSpiel that are listed and served, by their abilities beyond those of all: the rest is made by name only.
_LISTED = {
    "kuhn_poker": ("Kuhn Poker", {"oracle"}),
    "leduc_poker": ("Leduc Poker", {"oracle"}),
    "tic_tac_toe": ("Tic Tac Toe", {"oracle"}),
    "connect_four": ("Connect Four", set[str]()),
    "liars_dice": ("Liars Dice", set[str]()),
}
_OF_TEXTARENA = ("TicTacToe-v0", "SimpleNegotiation-v0", "ConnectFour-v0", "Nim-v0")


def register_family() -> None:
    """Register the games that are listed and served; the namespaces ``spiel:`` and ``ta2:`` make others too."""
    register(
        "multi:Nim-v0-seats", "rollenv.plugins.players.multi:NimTable", abilities=ABILITIES, oracle_success=0, players=2
    )
    for game, (name, more) in _LISTED.items():
        register(
            f"spiel:{game}",
            "rollenv.plugins.players.spiel:OpenSpiel",
            abilities={"state", "spawn", "random_action", "state_key"} | more,
            needs=[Package("open-spiel", "players", "pyspiel")],
            oracle_success=0,  # it plays all seats
            summary=f"OpenSpiel's {name} for 2 players.",
            game=game,
        )
    for game in _OF_TEXTARENA:
        register(
            f"ta2:{game}",
            "rollenv.plugins.players.textarena:TextArenaTable",
            abilities=("state", "spawn", "random_action"),
            needs=[Package("textarena", "players")],
            summary="A game of TextArena for 2 players.",
            game=game,
            num_players=2,
        )
