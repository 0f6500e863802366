"""Where the games differ from GEM's on purpose, as data: checked against GEM itself, and told in docs/gem/games.md.

``python tests/plugins/gem/gem_differences.py > docs/gem/games.md`` writes the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

GEM, ROLLENV = "import gem", "import rollenv"
WON = (True, False)


class Result(NamedTuple):
    """What a step returned, or the name of the error that it raised."""

    reward: float
    terminated: bool = False
    truncated: bool = False
    error: str = ""

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated

    @property
    def ends(self) -> tuple[bool, bool]:
        return self.terminated, self.truncated

    @property
    def malformed(self) -> bool:
        return self.reward == -0.1 and self.terminated


def raised(error: str) -> Result:
    """The result of a step that raised an error; its reward equals none."""
    return Result(math.nan, error=error)


@dataclass(frozen=True)
class Turn:
    """An action, and what is known of the state in which it is played."""

    game: str
    action: str
    number: int
    max_turns: int
    over: bool
    """Whether the episode had ended before."""
    read: Any
    """The move that GEM's grammar finds in the action, None where GEM finds none."""
    read_here: Any
    """The move that our own grammar finds."""
    notes: dict[str, bool]

    @property
    def last(self) -> bool:
        return self.number == self.max_turns


@dataclass(frozen=True)
class Difference:
    """A difference on purpose: when, what GEM does, what we do, why; and whether a difference that was met is this one.

    ``occurs`` gets the turn, GEM's result and ours.
    """

    layer: str
    games: str
    condition: str
    gem: str
    here: str
    reason: str
    occurs: Callable[[Turn, Result, Result], bool]


def _pays_more(here: Result, gem: Result, by: float) -> bool:
    return abs(here.reward - gem.reward - by) < 1e-9


def _refused(turn: Turn, gem: Result, here: Result) -> bool:
    return gem.error == "ValueError" and here.malformed


DIFFERENCES = [
    Difference(GEM, "all", "a step after the end of the episode", "plays on, and pays",
        "the last result again, with reward 0", "a finished episode earns nothing more",
        lambda t, gem, here: t.over and here.over and here.reward == 0),
    Difference(GEM, "WordSearch", "the ends of a word that was found, the other way round", "pays for the word again",
        "reward 0", "a word is found once; an agent could win by repeating one",
        lambda t, gem, here: t.notes["found_before"] and gem.reward > 0 == here.reward),
    Difference(GEM, "WordSearch", "a hidden word where it stands a second time, by chance", "reward 0",
        "pays for the word", "it is not visible which of the two was hidden",
        lambda t, gem, here: t.notes["elsewhere"] and gem.reward == 0 < here.reward),
    Difference(GEM, "Crosswords, WordSearch", "a number of more than 4300 digits", "raises ValueError",
        "-0.1, and the episode ends", "an action never raises; GEM's other games do the same",
        lambda t, gem, here: _refused(t, gem, here) and len(t.action) > 4300),
    Difference(GEM, "Sokoban", "a direction with a dotless i (rıght)", "raises ValueError",
        "-0.1, and the episode ends", "an action never raises",
        lambda t, gem, here: _refused(t, gem, here) and "ı" in t.action),
    Difference(ROLLENV, "all", "the turn limit", "(terminated, truncated) is (True, True)", "(False, True)",
        "a limit is not the end of the task; a learner may bootstrap from there",
        lambda t, gem, here: (
            t.last and _pays_more(here, gem, 0) and gem.ends == (True, True) and here.ends == (False, True))),
    Difference(ROLLENV, "all", "a malformed action in the last turn", "(True, True)", "(True, False)",
        "the action ended the episode, not the limit",
        lambda t, gem, here: t.last and gem.malformed and gem.truncated and here.malformed and not here.truncated),
    Difference(ROLLENV, "all", "a step after the end of the episode", "plays on, and pays", "raises EpisodeOver",
        "it is a mistake of the caller, and says so", lambda t, gem, here: t.over and here.error == "EpisodeOver"),
    Difference(ROLLENV, "Wordle", "letters apart by tabs or line breaks", "white space counts as letters",
        "the letters count", "white space is no letter",
        lambda t, gem, here: t.read_here == "".join((t.read or "").split()) != t.read is not None),
    Difference(ROLLENV, "Hangman", "the letters ſ, ı, İ and the Kelvin sign", "a guess", "-0.1, and the episode ends",
        "words have the letters A to Z; a pattern that ignores case lets those pass",
        lambda t, gem, here: t.read is not None is t.read_here and not t.action.isascii() and here.malformed),
    Difference(ROLLENV, "Game2048", "a direction with a dotless i (rıght)", "costs a turn",
        "-0.1, and the episode ends", "it names no direction",
        lambda t, gem, here: "ı" in t.action and gem.reward == 0 and here.malformed),
    Difference(ROLLENV, "Sokoban", "a direction with a dotless i (rıght)", "raises ValueError",
        "-0.1, and the episode ends", "it names no direction, and an action never raises",
        lambda t, gem, here: _refused(t, gem, here) and "ı" in t.action),
    Difference(ROLLENV, "Crosswords, WordSearch", "a number of more than 4300 digits", "raises ValueError",
        "-0.1, and the episode ends", "an action never raises; GEM's other games do the same",
        lambda t, gem, here: _refused(t, gem, here) and len(t.action) > 4300),
    Difference(ROLLENV, "GuessTheNumber", "the guess 0", "-0.1, and the episode ends",
        "costs a turn, like any number outside the range", "0 is a number",
        lambda t, gem, here: t.read is None and t.read_here == 0 and gem.malformed and here.reward == 0),
    Difference(ROLLENV, "Hangman", "the last hidden letter is found", "goes on until the word is named, which pays 0.5",
        "won, and pays the 0.5", "nothing is left to guess; an episode pays 1 either way",
        lambda t, gem, here: not gem.over and here.ends == WON and _pays_more(here, gem, 0.5) and len(t.read) == 1),
    Difference(ROLLENV, "Hangman", "the last hidden letter is found in the last turn", "over, without the 0.5",
        "won, and pays the 0.5", "nothing is left to guess",
        lambda t, gem, here: t.last and here.ends == WON and _pays_more(here, gem, 0.5) and len(t.read) == 1),
    Difference(ROLLENV, "Minesweeper", "the last safe cell is revealed while a mine has no flag",
        "goes on to the limit, or until a mine is hit", "won, with the same reward",
        "that is how Minesweeper is won; an episode pays 1 either way",
        lambda t, gem, here: t.notes["unflagged"] and here.ends == WON and gem.reward > 0 and _pays_more(here, gem, 0)),
    Difference(ROLLENV, "Minesweeper", "a mine under a flag is revealed", "lost", "costs a turn", "a flag protects",
        lambda t, gem, here: (
            t.notes["flagged"] and gem.ends == (True, False) and here.reward == 0 and not here.terminated)),
    Difference(ROLLENV, "WordSearch", "the ends of a word that was found, the other way round",
        "pays for the word again", "reward 0", "a word is found once; an agent could win by repeating one",
        lambda t, gem, here: t.notes["found_before"] and gem.reward > 0 == here.reward),
    Difference(ROLLENV, "WordSearch", "a hidden word where it stands a second time, by chance", "reward 0",
        "pays for the word", "it is not visible which of the two was hidden",
        lambda t, gem, here: t.notes["elsewhere"] and gem.reward == 0 < here.reward),
    Difference(ROLLENV, "all",
        ("an action that is plain, in a spelling that GEM's pattern of the game has no room for: white space "
        "around it or more of it within, commas, letters apart, upper case, signs, `\\fbox`, `\\boxed {`, "
        "`\\BOXED`"), "-0.1, and the episode ends", "played", "the game is about the move, not about its spelling",
        lambda t, gem, here: t.read is None is not t.read_here and gem.malformed),
    Difference(ROLLENV, "all", "several boxes, the last of them in such a spelling", "plays an earlier box",
        "plays the last box", "the last answer is the answer",
        lambda t, gem, here: t.read is not None is not t.read_here != t.read and t.action.count("{") > 1),
]  # fmt: skip

#: Ids of GEM's that GEM itself cannot make, with the error.
BROKEN_IDS = {"game:FifteenPuzzle-v0-random": "TypeError", "game:Crosswords-v0-random": "ValueError"}

#: What no sequence of actions shows, but a reader should know.
TEXTS = [
    ("GuessTheNumber", "the guess 0 where the range has it", "-0.1, and the episode ends: 0 is never found", "a guess"),
    ("all", "the wording of prompts and feedback", "GEM's", "ours, with the same facts, action format and order"),
    ("Minesweeper, FifteenPuzzle", "the prompt", "does not name the turn limit",
        "names it (Minesweeper: and the mines)"),
    ("Sokoban", "the player on a target", "`P`", "`S`, so that the state shows every target"),
    ("FifteenPuzzle", "starts", "any order of the tiles; half of them cannot be solved", "solvable within the limit"),
    ("Hangman", "the prompt's examples", "a word for a letter and a letter for a word", "the right way round"),
    ("Wordle, Hangman", "words", "downloaded when the game is made", "come with rollenv"),
    ("Sokoban", "levels", "some need more moves than there are turns",
        "solvable within the limit, 10 moves a box at least"),
    ("Sudoku", "`clues`", "up to that many cells are emptied", "that many, at most 50 of a 9x9 and 10 of a 4x4"),
]  # fmt: skip


def _table(head: list[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell for cell in line)} |" for line in lines)


def page() -> str:
    """The page about them, in Markdown."""
    parts = [
        "# Games compared with GEM's",
        "With the same hidden state and the same actions, rewards and ends are GEM's, except for these rows. "
        "`python tests/plugins/gem/gem_differences.py` writes this page, and a test against GEM 0.1.0 proves it.",
    ]
    for layer, what in ((GEM, "code written for GEM"), (ROLLENV, "`rollenv.make`")):
        rows = [(d.games, d.condition, d.gem, d.here, d.reason) for d in DIFFERENCES if d.layer == layer]
        table = _table(["game", "when", "GEM", "here", "why"], rows)
        parts.append(f"## Under `{layer}` ({what})\n\n{table}")
    parts.append("## In both\n\n" + _table(["game", "what", "GEM", "here"], TEXTS))
    broken = _table(
        ["id", "GEM", "here"], ((f"`{i}`", f"cannot be made ({e})", "works") for i, e in BROKEN_IDS.items())
    )
    parts.append(
        f"## Ids\n\n{broken}\n\nThe ids without a suffix, `game:Sokoban-v0-tiny` and WikiGame are not in GEM 0.1.0."
    )
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(page(), end="")
