"""TextArena's games (https://github.com/LeonGuertler/TextArena) as environments."""

from __future__ import annotations

from rollenv.core.needs import Package
from rollenv.core.registry import register
from rollenv.envs.ta.games import GAMES, NO_SAMPLER


def register_family() -> None:
    """Register ``ta:<id>`` for every game that can be made without a network or a key."""
    for game, seats in GAMES.items():
        sampler = () if game in NO_SAMPLER else ("random_action",)
        register(
            f"ta:{game}",
            "rollenv.envs.ta.env:TextArena",
            abilities=("state", "spawn", *sampler),
            needs=[Package("textarena", "envs")],
            summary=f"A game of TextArena for {f'{seats} players' if seats > 1 else 'one player'}.",
            game=game,
            num_players=seats,
        )
