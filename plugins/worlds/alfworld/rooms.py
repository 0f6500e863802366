"""Kinds of rooms: what they hold and where, counted over ALFRED's training trials.

``benchmarks/alfworld_table.py`` prints ``table.txt``.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from rollenv.plugins.worlds.alfworld.kinds import FITS


@dataclass
class RoomKind:
    """The statistics of a kind of room."""

    receptacles: dict[str, list[int]] = field(default_factory=dict)
    """How many of each kind there are: the octiles over its scenes."""
    tasks: dict[str, int] = field(default_factory=dict)
    """How many trials have each type of task."""
    targets: dict[str, int] = field(default_factory=dict)
    """How many trials put something into each kind of receptacle."""
    wanted: dict[str, int] = field(default_factory=dict)
    """How many of 100 trials ask for each kind of object."""
    places: dict[str, dict[str, int]] = field(default_factory=dict)
    """How many of each kind of object are in each kind of receptacle, in 100 rooms together."""


@functools.cache
def room_kinds() -> dict[str, RoomKind]:
    """Return the kinds of rooms by name."""
    kinds: dict[str, RoomKind] = {}
    for line in Path(__file__).with_name("table.txt").read_text(encoding="utf-8").splitlines():
        what, name, *values = line.split()
        if what == "room":
            room = kinds[name] = RoomKind()
        elif what == "receptacle":
            room.receptacles[name] = [int(value) for value in values]
        elif what == "object":
            room.wanted[name] = int(values[0])
            room.places[name] = dict(zip(values[1::2], map(int, values[2::2]), strict=True))
        else:
            (room.tasks if what == "task" else room.targets)[name] = int(values[0])
    return kinds


@functools.cache
def likely(thing: str, receptacle: str) -> float:
    """Return how many objects of a kind a receptacle of a kind holds on average, where there are both."""
    found, receptacles = _totals()
    average = found[thing][receptacle] / receptacles[receptacle] if receptacle in receptacles else 0.0
    return average + (0.01 if (receptacle, thing) in FITS else 0.001)


@functools.cache
def _totals() -> tuple[dict[str, Counter[str]], Counter[str]]:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    receptacles: Counter[str] = Counter()
    for room in room_kinds().values():
        receptacles.update({kind: sum(octiles) * 100 // 8 + 1 for kind, octiles in room.receptacles.items()})
        for thing, places in room.places.items():
            found[thing].update(places)
    return found, receptacles
