"""Rooms and tasks without end, drawn from the statistics of :mod:`.rooms`."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rollenv.core.errors import UsageError
from rollenv.envs.splits import check_split, in_split
from rollenv.plugins.worlds.alfworld.alfred import furnish, identity, lacks
from rollenv.plugins.worlds.alfworld.goals import TASKS, Goal, make_goal, sentence
from rollenv.plugins.worlds.alfworld.kinds import CLEANABLE, COOLABLE, FITS, HEATABLE, LAMPS
from rollenv.plugins.worlds.alfworld.rooms import RoomKind, room_kinds
from rollenv.plugins.worlds.alfworld.world import TOOLS, Room

#: One in this many pairs of a goal and a set of receptacles is a test task.
_SHARE = 5
_ABLE = {"hot": HEATABLE, "cool": COOLABLE, "clean": CLEANABLE}
_TOOL_FOR = {state: kind for kind, (_, state, _) in TOOLS.items()}
_MAX_DRAWS = 1000


@dataclass(frozen=True)
class Size:
    """The tasks to draw.

    Args:
        tasks: types of tasks.
        receptacles: the most receptacles of a room; None for as many as ALFRED's rooms have.
        objects: the most objects of a room; None likewise.
    """

    tasks: tuple[str, ...]
    receptacles: int | None
    objects: int | None
    split: str

    def __post_init__(self) -> None:
        check_split(self.split)
        for task in self.tasks:
            if task not in TASKS:
                raise UsageError(f"tasks: {task!r} is unknown; choose from {', '.join(TASKS)}")
        for name, value, least in (("receptacles", self.receptacles, 3), ("objects", self.objects, 2)):
            if value is not None and value < least:
                raise UsageError(f"{name} must be at least {least}, got {value}")
        if not self.tasks:
            raise UsageError("tasks: name at least one type")


def draw_room(seed: int, size: Size, spelling: str) -> Room:
    """Return the room of a seed: the same on every machine."""
    rng = random.Random(seed)
    for _ in range(_MAX_DRAWS):
        shares = {name: sum(room.tasks.get(task, 0) for task in size.tasks) for name, room in room_kinds().items()}
        room = room_kinds()[_choose(rng, shares)]
        goal = _draw_goal(rng, room, size)
        receptacles = goal and _draw_receptacles(rng, room, goal, size.receptacles)
        if not goal or not receptacles:
            continue
        if not in_split(f"{goal} {sorted(receptacles)}", size.split, _SHARE):
            continue
        things = _draw_things(rng, room, goal, receptacles, size.objects)
        scene = [
            (each, identity(each, f"{number:02}"), [(thing, f"{thing}|{rng.randrange(10**6):06}") for thing in inside])
            for number, (each, inside) in enumerate(zip(receptacles, things, strict=True))
        ]
        drawn = furnish(scene, goal, sentence(goal, rng.randrange(2)), spelling=spelling)
        if not lacks(drawn):
            return drawn
    raise UsageError(
        f"no room with tasks={size.tasks} and receptacles={size.receptacles} was found; allow more of them"
    )


def _choose(rng: random.Random, weights: dict[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def _draw_goal(rng: random.Random, room: RoomKind, size: Size) -> Goal | None:
    task = _choose(rng, {task: room.tasks.get(task, 0) for task in size.tasks})
    needs = TASKS[task]
    able = _ABLE.get(needs)
    things = {thing: n + 1 for thing, n in room.wanted.items() if thing not in LAMPS and (not able or thing in able)}
    thing = _choose(rng, things)
    if task == "look_at_obj_in_light":
        lamps = {lamp: sum(room.places[lamp].values()) for lamp in sorted(LAMPS & room.places.keys())}
        return make_goal(task, thing, "", _choose(rng, lamps))
    targets = {kind: n for kind, n in room.targets.items() if (kind, thing) in FITS}
    # Somewhere else than in the target, where the object can be found.
    targets = {kind: n for kind, n in targets.items() if room.places[thing].keys() - {kind}}
    return make_goal(task, thing, _choose(rng, targets), "") if targets else None


def _draw_receptacles(rng: random.Random, room: RoomKind, goal: Goal, most: int | None) -> list[str]:
    """Return the kinds of a room's receptacles, those first that the task needs; empty if there is no room for it."""
    needed = [kind for kind in (goal.receptacle, _TOOL_FOR.get(goal.needs, "")) if kind]
    for thing in filter(None, (goal.thing, goal.lamp)):
        places = {kind: n for kind, n in room.places[thing].items() if kind != goal.receptacle}
        needed.append(_choose(rng, places))
    needed = list(dict.fromkeys(needed))
    counts = Counter({kind: rng.choice(octiles) for kind, octiles in room.receptacles.items()})
    others = list((counts - Counter(needed)).elements())
    rng.shuffle(others)
    if most is None:
        return needed + others
    return needed + others[: most - len(needed)] if most >= len(needed) else []


def _draw_things(
    rng: random.Random, room: RoomKind, goal: Goal, receptacles: Sequence[str], most: int | None
) -> list[list[str]]:
    """Return the kinds of the objects in each receptacle; those that the task needs are among them."""
    at: dict[str, list[int]] = {}
    for number, kind in enumerate(receptacles):
        at.setdefault(kind, []).append(number)
    needed = [(goal.thing, goal.receptacle)] * (1 + (goal.needs == "two")) + [(goal.lamp, "")] * bool(goal.lamp)
    placed = []
    for thing, avoided in needed:
        places = {kind: n for kind, n in room.places[thing].items() if kind in at and kind != avoided}
        placed.append((thing, rng.choice(at[_choose(rng, places)])))
    others = []
    for thing, places in room.places.items():
        for kind, share in places.items():
            # An object that is where the task wants it would do the task, or a part of it, from the start.
            if kind not in at or (thing == goal.thing and kind == goal.receptacle) or thing in LAMPS:
                continue
            number = share // 100 + (rng.random() < share % 100 / 100)
            others += [(thing, rng.choice(at[kind])) for _ in range(number)]
    rng.shuffle(others)
    inside: list[list[str]] = [[] for _ in receptacles]
    for thing, number in placed + (others if most is None else others[: max(0, most - len(placed))]):
        inside[number].append(thing)
    return inside
