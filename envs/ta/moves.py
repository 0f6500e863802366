"""The moves of TextArena's games whose texts show too few to vary: all in the game's form, some of them legal."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from typing import Any

#: By game, forms of its moves: ``<1-8>`` and ``<a-h>`` are ranges, ``<x|y>`` alternatives.
FORMS = {
    "Alquerque": ("[<a-e><1-5> <a-e><1-5>]",),
    "Battleship": ("[<A-T><0-19>]",),
    "Breakthrough": ("[<a-j><1-10><a-j><1-10>]",),
    "Briscola": ("[play <1-3>]",),
    "Chopsticks": ("[attack <0-1> <0-1>]", "[split <0-8> <0-8>]"),
    "ColonelBlotto": (),
    "GermanWhist": ("[play <1-13>]",),
    "Golf": ("[draw]", "[take]", "[discard]", "[knock]", "[peek <1-4> <1-4>]", "[swap <1-4> <1-4>]"),
    "LinesOfAction": ("[<a-h><1-8><a-h><1-8>]",),
    "Nim": ("[<0-9> <1-20>]",),
    "Othello": ("[<0-15> <0-15>]",),
    "QuantumTicTacToe": ("[<0-8>,<0-8>]",),
    "SimpleTak": ("[<0-99>]",),
    "SpiteAndMalice": ("[draw]", "[<play|discard> <A|2|3|4|5|6|7|8|9|J|Q|K><♠|♥|♦|♣> <0-3>]"),
    "Stratego": ("[<A-J><0-9> <A-J><0-9>]",),
    "Tak": ("[place () {(<0-7>,<0-7>): [<F|W|C><0-1>]}]", "[move (<0-7>,<0-7>) {(<0-7>,<0-7>): [<F|W|C><0-1>]}]"),
    "TwoDollar": ("[Accept]", "[Reject]", "[Propose] $<0-1>.<00|25|50|75>", "[Propose] $2.00"),
    "UltimateTicTacToe": ("[<0-8> <0-8>]",),
}
#: How far pieces go in a line, where a form has two squares.
REACH = {"Alquerque": 2, "Breakthrough": 1, "Stratego": 1, "Tak": 1}
_PART = re.compile(r"<([^<>]+)>")


def forms_of(game_id: str, game: Any, draws: random.Random) -> list[str] | None:
    """Return the moves to try in a game, in random order; None if its texts show enough."""
    family = game_id.partition("-")[0]
    if family not in FORMS:
        return None
    if family == "ColonelBlotto":
        names, units = game.field_names, game.num_total_units
        cuts = [0, *sorted(draws.randint(0, units) for _ in names[1:]), units]
        return [f"[{' '.join(f'{name}{b - a}' for name, (a, b) in zip(names, itertools.pairwise(cuts), strict=True))}]"]
    moves = [move for form in FORMS[family] for move in _written(form, REACH.get(family, 8))]
    draws.shuffle(moves)
    return moves


def _written(form: str, reach: int) -> Iterator[str]:
    """Yield all moves of a form; from one square to another, those in a line."""
    texts, parts = _PART.split(form)[::2], [_values(part) for part in _PART.findall(form)]
    squares = len(parts) > 3 and parts[:2] == parts[2:4]
    for chosen in itertools.product(*(range(len(part)) for part in parts)):
        if not squares or _is_line(chosen[2] - chosen[0], chosen[3] - chosen[1], reach):
            values = [part[number] for part, number in zip(parts, chosen, strict=True)]
            yield "".join(itertools.chain(*zip(texts, [*values, ""], strict=True)))


def _is_line(across: int, along: int, reach: int) -> bool:
    far = max(abs(across), abs(along))
    return 0 < far <= reach and (not across or not along or abs(across) == abs(along))


def _values(part: str) -> list[str]:
    low, dash, high = part.partition("-")
    if not dash:
        return part.split("|")
    if low.isdecimal():
        return [str(n) for n in range(int(low), int(high) + 1)]
    return [chr(n) for n in range(ord(low), ord(high) + 1)]
