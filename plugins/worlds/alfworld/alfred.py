"""Rooms rebuilt from ALFRED's trials, for those who have no official games. Results on them do not compare with these.

A trial knows the poses of all objects, but the receptacle only of those that its demonstration takes. So the objects of
the task are exact (but for 47 of 4,378 trials, whose demonstration does not say). A scene's receptacles are those that
any of its demonstrations used, and holders under its towels; nothing is read from ALFWorld's layouts. Every other
object goes where the nearest object stood whose receptacle is known, if that is at most 1 m away and no more than
0.1 m higher or lower: in 95.7 % of the cases with a known answer it is the right one. Objects without such a neighbour
are left out (21 %), as are receptacles that no demonstration used: a room has fewer of both than an official game. No
two receptacles share a place.
"""

from __future__ import annotations

import functools
import gzip
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.plugins.worlds.alfworld.games import SPLITS, display_names, mangle
from rollenv.plugins.worlds.alfworld.goals import TASKS, Goal, make_goal, sentence
from rollenv.plugins.worlds.alfworld.kinds import (
    CLEANABLE,
    COOLABLE,
    FITS,
    HEATABLE,
    LAMPS,
    OPENABLE,
    SLICEABLE,
    VESSELS,
)
from rollenv.plugins.worlds.alfworld.needs import TRIALS
from rollenv.plugins.worlds.alfworld.world import SPELLINGS, Receptacle, Room, State, Thing

Pose = tuple[float, float, float]
#: Distances in metres: between poses of one receptacle, to the neighbour of an object, and up or down to it.
_SAME, _NEAR, _HEIGHT = 0.15, 1.0, 0.1
_FIELDS = {
    "trial": str, "type": str, "pddl": dict, "floor_plan": str, "objects": list, "plan": list, "task_desc": list,
}  # fmt: skip
_HOLDERS = {"towel": "towelholder", "handtowel": "handtowelholder"}


@dataclass
class Scene:
    """A floor plan, as all trials together show it."""

    receptacles: list[tuple[str, Pose]] = field(default_factory=list)
    """Kind and pose of each."""
    known: list[tuple[Pose, int]] = field(default_factory=list)
    """Poses of objects whose receptacle is known, by its number."""
    lamps: list[tuple[str, Pose]] = field(default_factory=list)

    def find(self, kind: str, pose: Pose) -> int:
        """Return the number of a receptacle, a new one if it has not been seen."""
        return _find(self.receptacles, kind, pose)

    def receptacle_of(self, kind: str, pose: Pose) -> int | None:
        """Return the receptacle of an object's nearest neighbour, or None if none is near."""
        best, nearest = None, _NEAR
        for known, number in self.known:
            if abs(known[1] - pose[1]) <= _HEIGHT and (self.receptacles[number][0], kind) in FITS:
                distance = math.dist(known, pose)
                if distance <= nearest:
                    best, nearest = number, distance
        return best


def _find(placed: list[tuple[str, Pose]], kind: str, pose: Pose) -> int:
    for number, (other, at) in enumerate(placed):
        if other == kind and math.dist(pose, at) < _SAME:
            return number
    placed.append((kind, pose))
    return len(placed) - 1


@dataclass(frozen=True)
class Trials:
    """The trials of each split, and the scenes of all."""

    splits: dict[str, list[dict[str, Any]]]
    scenes: dict[str, Scene]


def load_trials(data: str | Path | None) -> Trials:
    """Read ALFRED's trials, once in a process.

    Args:
        data: their folder; None for ``$ROLLENV_DATA/alfred``.

    Raises:
        MissingData: the files are not there.
        UsageError: a file or a line of it is not as it should be.
    """
    return _load(str(TRIALS.found() if data is None else data))


@functools.lru_cache(maxsize=2)
def _load(folder: str) -> Trials:
    splits = {split: list(_read(Path(folder, f"{split}.jsonl.gz"))) for split in SPLITS}
    scenes: dict[str, Scene] = defaultdict(Scene)
    for split in SPLITS:
        for number, trial in enumerate(splits[split], 1):
            try:
                _goal(trial)
                _learn(scenes[trial["floor_plan"]], trial)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                raise UsageError(
                    f"{folder}/{split}.jsonl.gz, line {number}: the trial is damaged: {error!r}"
                ) from error
    return Trials(splits, dict(scenes))


def _read(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = gzip.decompress(path.read_bytes()).decode("utf-8").splitlines()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as lines of JSON in gzip: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            trial = json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"{path}, line {number}: no trial of ALFRED ({error})") from error
        for name, kind in _FIELDS.items():
            if not isinstance(trial, dict) or not isinstance(trial.get(name), kind):
                raise UsageError(f"{path}, line {number}: no {name} as ALFRED's trials have it ({kind.__name__})")
        if trial["type"] not in TASKS:
            raise UsageError(f"{path}, line {number}: the type {trial['type']!r} is unknown")
        yield trial


def _learn(scene: Scene, trial: dict[str, Any]) -> None:
    """Add what a trial says about its scene."""
    for action, _, _, receptacle, thing, _ in trial["plan"]:
        if action == "ToggleObject":
            _find(scene.lamps, receptacle[0].lower(), _pose(receptacle))
        elif receptacle:
            number = scene.find(receptacle[0].lower(), _pose(receptacle))
            if action == "PickupObject":
                scene.known.append((_pose(thing), number))
    for name, *pose in trial["objects"]:
        holder = _HOLDERS.get(_kind(name))
        x, y, z = pose
        if not isinstance(x + y + z, int | float):
            raise ValueError(f"the pose of {name} is {pose}")
        if holder and y > 0.9 and scene.receptacle_of(_kind(name), (x, y, z)) is None:
            scene.known.append(((x, y, z), scene.find(holder, (x, y, z))))


def _pose(part: list[Any]) -> Pose:
    """Return a pose in metres; plans have quarters of a metre, as x, x, z, z, y, y."""
    return part[1] / 4, part[5] / 4, part[3] / 4


def _kind(name: str) -> str:
    return name.partition("_")[0].partition("|")[0].lower()


def rebuild(trials: Trials, trial: dict[str, Any], *, spelling: str = "move", people: bool = False) -> Room:
    """Return the room of a trial.

    Args:
        people: whether the task is in a person's words instead of ALFWorld's.

    Raises:
        UsageError: the trial has not what its task needs; the message says what.
    """
    scene = trials.scenes[trial["floor_plan"]]
    goal = _goal(trial)
    contents: list[list[tuple[str, Pose]]] = [[] for _ in scene.receptacles]
    taken = _taken(scene, trial)
    for kind, pose, number in taken:
        contents[number].append((kind, pose))
    for name, x, y, z in trial["objects"]:
        kind, pose = _kind(name), (x, y, z)
        if kind == goal.thing and any(math.dist(pose, at) < 0.05 for _, at, _ in taken):
            continue
        near = scene.receptacle_of(kind, pose)
        # An object that only seems to be where the task wants it would end the episode before it begins.
        if near is not None and (kind != goal.thing or scene.receptacles[near][0] != goal.receptacle):
            contents[near].append((kind, pose))
    for kind, pose in scene.lamps:
        beside = [(math.dist(known[::2], pose[::2]), number) for known, number in scene.known]
        contents[min(beside)[1]].append((kind, pose))
    forms = [sentence(goal, form) for form in (0, 1)]
    if people:
        forms = [text for each in trial["task_desc"] if (text := str(each).strip().rstrip("."))] or forms
    task = forms[zlib.crc32(trial["trial"].encode()) % len(forms)]
    room = furnish(
        [(kind, _identity(kind, pose), [(each, _identity(each, at)) for each, at in inside])
         for (kind, pose), inside in zip(scene.receptacles, contents, strict=True)],
        goal, task, spelling=spelling,
    )  # fmt: skip
    if why := lacks(room):
        raise UsageError(f"{trial['trial']}: {why}")
    return room


def playable(trials: Trials, split: str) -> list[dict[str, Any]]:
    """Return the trials of a split that can be rebuilt."""
    return [trial for trial in trials.splits[split] if not why_left_out(trials, trial)]


def why_left_out(trials: Trials, trial: dict[str, Any]) -> str:
    """Return why a trial cannot be rebuilt; empty if it can."""
    scene, goal = trials.scenes[trial["floor_plan"]], _goal(trial)
    try:
        taken = [number for _, _, number in _taken(scene, trial)]
    except UsageError as reason:
        return str(reason)
    if len(taken) < 1 + (goal.needs == "two"):
        return f"{trial['trial']}: its demonstration takes {len(taken)} objects"
    there = [number for number in taken if scene.receptacles[number][0] == goal.receptacle]
    done = (not goal.needs and there) or (goal.needs == "two" and len(there) > len(set(there)))
    return f"{trial['trial']}: the task is done from the start" if done else ""


def _goal(trial: dict[str, Any]) -> Goal:
    pddl = {name: str(value).lower() for name, value in trial["pddl"].items()}
    return make_goal(trial["type"], pddl["object_target"], pddl["parent_target"], pddl["toggle_target"])


def _taken(scene: Scene, trial: dict[str, Any]) -> list[tuple[str, Pose, int]]:
    """Return kind, pose and receptacle of each object that the demonstration takes."""
    found = []
    for action, _, _, receptacle, thing, _ in trial["plan"]:
        if action != "PickupObject":
            continue
        kind, pose = thing[0].lower(), _pose(thing)
        known = receptacle and scene.find(receptacle[0].lower(), _pose(receptacle))
        number = scene.receptacle_of(kind, pose) if known is None else known
        if number is None:
            raise UsageError(f"{trial['trial']}: nobody knows where its {kind} stands")
        found.append((kind, pose, number))
    return found


def lacks(room: Room) -> str:
    """Return what a room lacks for its task, or why the task asks for nothing; empty if all is well."""
    goal, kinds = room.goal, {each.kind for each in room.receptacles}
    tool = {"hot": "microwave", "cool": "fridge", "clean": "sinkbasin"}.get(goal.needs, "")
    if len(room.goal_things) < 1 + (goal.needs == "two"):
        return f"there is no {goal.thing}"
    if goal.lamp and not room.goal_lamps:
        return f"there is no {goal.lamp}"
    for wanted in filter(None, (goal.receptacle, tool)):
        if wanted not in kinds:
            return f"there is no {wanted}"
    if goal.receptacle and (goal.receptacle, goal.thing) not in room.fits:
        return f"a {goal.thing} may not be put into a {goal.receptacle}"
    return "the task is done from the start" if room.reached(room.start) else ""


def _identity(kind: str, pose: Pose) -> str:
    """Return an id as ALFRED writes them, by which objects are ordered and numbered."""
    return identity(kind, "|".join(f"{value:+06.2f}" for value in pose))


def identity(kind: str, rest: str) -> str:
    """Return the id of an object; a basin has the id of what it is in before its own."""
    return f"{kind.removesuffix('basin')}|{rest}|{kind}" if kind.endswith("basin") else f"{kind}|{rest}"


def furnish(
    scene: Iterable[tuple[str, str, Iterable[tuple[str, str]]]], goal: Goal, task: str, *, spelling: str
) -> Room:
    """Return a room whose kinds do what ALFWorld's do, with a place for each receptacle.

    Args:
        scene: kind and id of each receptacle, with kinds and ids of what is in it.
    """
    receptacles: dict[str, str] = {}
    things: dict[str, str] = {}
    where: dict[str, str] = {}
    for kind, identity, inside in scene:
        receptacle = _unique(mangle(identity), receptacles)
        receptacles[receptacle] = kind
        for each, name in inside:
            thing = _unique(mangle(name), things)
            things[thing], where[thing] = each, receptacle
    names = display_names({*receptacles, *things})
    r_of = {name: number for number, name in enumerate(sorted(receptacles))}
    o_of = {name: number for number, name in enumerate(sorted(things))}
    contents: list[set[int]] = [set() for _ in receptacles]
    for thing, receptacle in where.items():
        contents[r_of[receptacle]].add(o_of[thing])
    start = State(-1, -1, contents, lying={(o_of[thing], r_of[receptacle]) for thing, receptacle in where.items()})
    return Room(
        [Receptacle(names[r], receptacles[r], number, receptacles[r] in OPENABLE) for r, number in r_of.items()],
        [_thing(names[o], things[o]) for o in o_of],
        start,
        goal,
        task,
        fits=FITS,
        spelling=SPELLINGS[spelling],
    )


def _unique(name: str, taken: dict[str, str]) -> str:
    while name in taken:
        name += "_also"
    return name


_ABLE = {"heat": HEATABLE, "cool": COOLABLE, "clean": CLEANABLE, "slice": SLICEABLE}


def _thing(name: str, kind: str) -> Thing:
    return Thing(name, kind, _can(kind), kind in VESSELS)


@functools.cache
def _can(kind: str) -> frozenset[str]:
    if kind in LAMPS:
        return frozenset({"use"})
    return frozenset({"take", *(verb for verb, known in _ABLE.items() if kind in known)})
