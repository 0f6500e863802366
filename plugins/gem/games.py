r"""GEM's games by GEM's names: rollenv's own, with GEM's constructors, attributes, action grammar and rules of ending.

What differs from rollenv's own games is in the modules ``game*`` beside this one and nowhere else:

- **Constructors** take GEM's arguments in GEM's order with GEM's defaults, and ignore unknown names.
- **Actions** are read as GEM reads them, to the letter: the last ``\boxed{...}`` that matches the game's grammar
  counts, and nothing else does.
- **Ends**: a limit sets both flags; Hangman and Minesweeper end when GEM's do.
- **Texts**: the state ends with a request for the next action, and the games of guessing leave the history to a
  wrapper.
- **Attributes** that GEM's callers read are properties, and can be set; where GEM's is a list or
  an array, it is made when it is read.

Intended differences from GEM are listed in ``docs/gem/games.md``, which a test against GEM itself keeps true.
"""

from __future__ import annotations

from typing import Any

from rollenv.envs.game.wiki_game import WikiGame
from rollenv.plugins.gem.core import GemEnv
from rollenv.plugins.gem.game import GemGame
from rollenv.plugins.gem.game_boards import (
    FifteenPuzzleEnv,
    Game2048Env,
    MinesweeperEnv,
    SokobanEnv,
    SudokuEnv,
    TowerofHanoiEnv,
)
from rollenv.plugins.gem.game_words import (
    CrosswordsEnv,
    GuessTheNumberEnv,
    HangmanEnv,
    MastermindEnv,
    WordleEnv,
    WordSearchEnv,
)

__all__ = [
    "CLASSES",
    "CrosswordsEnv",
    "FifteenPuzzleEnv",
    "Game2048Env",
    "GuessTheNumberEnv",
    "HangmanEnv",
    "MastermindEnv",
    "MinesweeperEnv",
    "SokobanEnv",
    "SudokuEnv",
    "TowerofHanoiEnv",
    "WikiGameEnv",
    "WordSearchEnv",
    "WordleEnv",
]


class WikiGameEnv(GemGame, WikiGame):
    """The wiki game of GEM's main branch, on the encyclopedia made here unless a server is named."""

    def __init__(self, max_turns: int | None = 20, **extra: Any):
        super().__init__(max_turns=max_turns, _extra=extra)


#: GEM's class of each of rollenv's.
CLASSES: dict[str, str] = {
    f"{base.__module__}:{base.__name__}": cls.__name__
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, GemGame) and cls.__name__.endswith("Env")
    for base in [next(base for base in cls.__mro__ if not issubclass(base, GemEnv))]
}
