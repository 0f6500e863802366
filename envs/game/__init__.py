"""GEM's text games, reimplemented: the same ids, parameters and rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollenv.core.registry import ABILITIES, register
from rollenv.envs.game.grid import SOKOBAN

#: The module of each game, its arguments, and their values in the ids without a suffix, ``-easy`` and ``-hard``.
_VALUES: dict[str, tuple[str, str, Sequence[Any], Sequence[Any], Sequence[Any]]] = {
    "GuessTheNumber": ("guess_the_number", "min_number max_number max_turns", (1, 20, 10), (1, 10, 4), (1, 50, 7)),
    "Mastermind": ("mastermind", "code_length num_numbers max_turns", (4, 6, 20), (2, 6, 10), (4, 8, 30)),
    "Minesweeper": ("minesweeper", "rows cols num_mines max_turns", (8, 8, 10, 100), (5, 5, 5, 25), (8, 8, 12, 64)),
    "Wordle": ("wordle", "word_length max_turns", (5, 15), (3, 15), (5, 25)),
    "FifteenPuzzle": ("fifteen_puzzle", "num_rows max_turns", (3, 20), (2, 10), (4, 50)),
    "Hangman": ("hangman", "word_length max_turns", (5, 15), (3, 10), (7, 20)),
    "Sudoku": ("sudoku", "clues max_turns scale", (30, 40, 9), (10, 15, 4), (50, 50, 9)),
    "TowerofHanoi": ("tower_of_hanoi", "num_disks max_turns", (4, 20), (3, 10), (5, 35)),
    "Game2048": ("game_2048", "target_tile max_turns", (128, 100), (64, 50), (512, 50)),
    "Crosswords": ("crosswords", "hardcore max_turns num_words", (False, 40, 4), (False, 30, 3), (True, 40, 3)),
    "WordSearch": ("word_search", "hardcore max_turns num_words", (False, 30, 8), (False, 20, 5), (True, 20, 5)),
    "WikiGame": ("wiki_game", "max_turns", (20,), (30,), (15,)),
}


def _variants(name: str) -> dict[str, dict[str, Any]]:
    """Return the arguments of a game's ids by suffix; those of ``-random`` are drawn in every episode."""
    _, arguments, *values = _VALUES[name]
    names = arguments.split()
    found = {
        suffix: dict(zip(names, each, strict=True)) for suffix, each in zip(("", "easy", "hard"), values, strict=True)
    }
    if name == "Game2048":
        found["extreme-hard"] = {"target_tile": 2048, "max_turns": 100}
    return found if name == "WikiGame" else found | {"random": dict.fromkeys(names)}


#: The module of each game, and the arguments of its ids by suffix.
GAMES = {name: (values[0], _variants(name)) for name, values in _VALUES.items()}

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
