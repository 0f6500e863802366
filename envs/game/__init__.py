"""GEM's text games, reimplemented: the same ids, parameters and rewards."""

from __future__ import annotations

from typing import Any

from rollenv.core.registry import ABILITIES, register
from rollenv.envs.game.grid import SOKOBAN

#: The module of each game, and the arguments of its ids by suffix; ``""`` is the id without a suffix.
GAMES: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "GuessTheNumber": (
        "guess_the_number",
        {
            "": {"min_number": 1, "max_number": 20, "max_turns": 10},
            "easy": {"min_number": 1, "max_number": 10, "max_turns": 4},
            "hard": {"min_number": 1, "max_number": 50, "max_turns": 7},
            "random": {"min_number": None, "max_number": None, "max_turns": None},
        },
    ),
    "Mastermind": (
        "mastermind",
        {
            "": {"code_length": 4, "num_numbers": 6, "max_turns": 20},
            "easy": {"code_length": 2, "num_numbers": 6, "max_turns": 10},
            "hard": {"code_length": 4, "num_numbers": 8, "max_turns": 30},
            "random": {"code_length": None, "num_numbers": None, "max_turns": None},
        },
    ),
    "Minesweeper": (
        "minesweeper",
        {
            "": {"rows": 8, "cols": 8, "num_mines": 10, "max_turns": 100},
            "easy": {"rows": 5, "cols": 5, "num_mines": 5, "max_turns": 25},
            "hard": {"rows": 8, "cols": 8, "num_mines": 12, "max_turns": 64},
            "random": {"rows": None, "cols": None, "num_mines": None, "max_turns": None},
        },
    ),
    "Wordle": (
        "wordle",
        {
            "": {"word_length": 5, "max_turns": 15},
            "easy": {"word_length": 3, "max_turns": 15},
            "hard": {"word_length": 5, "max_turns": 25},
            "random": {"word_length": None, "max_turns": None},
        },
    ),
    "FifteenPuzzle": (
        "fifteen_puzzle",
        {
            "": {"num_rows": 3, "max_turns": 20},
            "easy": {"num_rows": 2, "max_turns": 10},
            "hard": {"num_rows": 4, "max_turns": 50},
            "random": {"num_rows": None, "max_turns": None},
        },
    ),
    "Hangman": (
        "hangman",
        {
            "": {"word_length": 5, "max_turns": 15},
            "easy": {"word_length": 3, "max_turns": 10},
            "hard": {"word_length": 7, "max_turns": 20},
            "random": {"word_length": None, "max_turns": None},
        },
    ),
    "Sudoku": (
        "sudoku",
        {
            "": {"clues": 30, "max_turns": 40, "scale": 9},
            "easy": {"clues": 10, "max_turns": 15, "scale": 4},
            "hard": {"clues": 50, "max_turns": 50, "scale": 9},
            "random": {"clues": None, "max_turns": None, "scale": None},
        },
    ),
    "TowerofHanoi": (
        "tower_of_hanoi",
        {
            "": {"num_disks": 4, "max_turns": 20},
            "easy": {"num_disks": 3, "max_turns": 10},
            "hard": {"num_disks": 5, "max_turns": 35},
            "random": {"num_disks": None, "max_turns": None},
        },
    ),
    "Game2048": (
        "game_2048",
        {
            "": {"target_tile": 128, "max_turns": 100},
            "easy": {"target_tile": 64, "max_turns": 50},
            "hard": {"target_tile": 512, "max_turns": 50},
            "extreme-hard": {"target_tile": 2048, "max_turns": 100},
            "random": {"target_tile": None, "max_turns": None},
        },
    ),
    "Crosswords": (
        "crosswords",
        {
            "": {"hardcore": False, "max_turns": 40, "num_words": 4},
            "easy": {"hardcore": False, "max_turns": 30, "num_words": 3},
            "hard": {"hardcore": True, "max_turns": 40, "num_words": 3},
            "random": {"hardcore": None, "max_turns": None, "num_words": None},
        },
    ),
    "WordSearch": (
        "word_search",
        {
            "": {"hardcore": False, "max_turns": 30, "num_words": 8},
            "easy": {"hardcore": False, "max_turns": 20, "num_words": 5},
            "hard": {"hardcore": True, "max_turns": 20, "num_words": 5},
            "random": {"hardcore": None, "max_turns": None, "num_words": None},
        },
    ),
    "WikiGame": ("wiki_game", {"": {"max_turns": 20}, "easy": {"max_turns": 30}, "hard": {"max_turns": 15}}),
}

#: Ids that cannot be won: with GEM's parameters, the target is out of reach (see Game2048).
UNWINNABLE = frozenset({"game:Game2048-v0-hard", "game:Game2048-v0-extreme-hard"})


_SOKOBAN_LEVELS: dict[str, list[Any]] = {
    "dim_room": [(6, 6), (6, 6), (6, 6), (7, 7), (8, 8), (8, 8)],
    "num_boxes": [1, 1, 2, 2, 3, 4],
    "min_moves": [1, 5, 1, 8, 8, 10],
    "max_turns": [15, 20, 25, 35, 50, 50],
}
_LEVELS: dict[str, dict[str, list[Any]]] = {
    "GuessTheNumber": {"min_number": [1], "max_number": [5, 10, 20, 50, 100], "max_turns": [4, 5, 6, 7, 8]},
    "Mastermind": {"code_length": [2, 2, 3, 4], "num_numbers": [4, 6, 6, 8], "max_turns": [10, 10, 20, 30]},
    "Minesweeper": {
        "rows": [4, 5, 6, 8],
        "cols": [4, 5, 6, 8],
        "num_mines": [2, 5, 6, 12],
        "max_turns": [16, 25, 36, 64],
    },
    "FifteenPuzzle": {"num_rows": [2, 3, 4], "max_turns": [10, 20, 50]},
    "TowerofHanoi": {"num_disks": [2, 3, 4, 5], "max_turns": [6, 10, 20, 35]},
    "Hangman": {"word_length": [3, 5, 7], "max_turns": [10, 15, 20]},
    "Wordle": {"word_length": [3, 4, 5], "max_turns": [15, 20, 25]},
    "Game2048": {"target_tile": [16, 32, 64, 128, 256], "max_turns": [20, 30, 50, 100, 200]},
}


def register_family() -> None:
    """Register ``game:*``."""
    tiny: dict[str, Any] = {"observation": "compact", "action_format": "bare"}
    for variant, room, boxes, turns, others in (  # GEM's parameters, and a tiny variant
        ("easy", (6, 6), 2, 20, {}),
        ("hard", (8, 8), 4, 50, {}),
        ("random", None, None, None, {}),
        ("tiny", (6, 6), 1, 15, tiny),
    ):
        register(
            f"game:Sokoban-v0-{variant}",
            SOKOBAN,
            abilities=ABILITIES,
            levels=_SOKOBAN_LEVELS,
            dim_room=room,
            num_boxes=boxes,
            max_turns=turns,
            **others,
        )
    for name, (module, variants) in GAMES.items():
        for variant, kwargs in variants.items():
            env_id = f"game:{name}-v0-{variant}".rstrip("-")
            register(
                env_id,
                f"rollenv.envs.game.{module}:{name}",
                abilities=ABILITIES,
                oracle_success=0.0 if env_id in UNWINNABLE else 0.99,
                levels=_LEVELS.get(name, ()),
                **kwargs,
            )
