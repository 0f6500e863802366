"""Games in the form of ALFWorld's files, written by hand: a problem in PDDL, and of a grammar what is read."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rollenv.plugins.worlds.alfworld import kinds
from rollenv.plugins.worlds.alfworld.goals import Goal, sentence

GRAMMAR = """
grammar :: \"\"\"
    {
        "task": [ { "rhs": "Your task is to: %s." } ],
        "GotoLocation.feedback": [ { "rhs": "You arrive at {%s.name}. #examineReceptacle.feedback#" } ],
        "PutObject.feedback": [ { "rhs": "You %s." } ]
    }
\"\"\";
action PutObject {
    template :: "%s";
    feedback :: "#PutObject.feedback#";
}
"""


def grammar(task: str, spelling: str = "move", old: bool = False) -> str:
    command, answer = {
        "move": ("move {o} to {r}", "move the {o.name} to the {r.name}"),
        "put": ("put {o} in/on {r}", "put the {o.name} in/on the {r.name}"),
    }[spelling]
    return GRAMMAR % (task, "lend" if old else "r", answer, command)


def goal_in_pddl(goal: Goal) -> str:
    if goal.lamp:
        lamp = f"(objectType ?ot {goal.lamp}Type) (toggleable ?ot) (isToggled ?ot) (inReceptacle ?ot ?r)"
        near = "(receptacleAtLocation ?r ?l) (atLocation ?a ?l)"
        held = f"(exists (?o - object ?a - agent) (and (objectType ?o {goal.thing}Type) (holds ?a ?o)))"
        return f"(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and {lamp} {near})) {held})"
    where = f"(objectType ?o {goal.thing}Type) (receptacleType ?r {goal.receptacle}Type) (inReceptacle ?o ?r)"
    if goal.needs == "two":
        second = where.replace("?o", "?o2")
        where = f"{where} (exists (?o2 - object) (and (not (= ?o ?o2)) {second}))"
    elif goal.needs:
        able = {"hot": "heatable", "cool": "coolable", "clean": "cleanable"}[goal.needs]
        where = f"({able} ?o) (is{goal.needs.capitalize()} ?o) {where}"
    return f"(and (exists (?r - receptacle) (exists (?o - object) (and {where}))))"


def game(
    scene: Mapping[str, Iterable[str]],
    goal: Goal,
    task: str,
    *,
    shared: Iterable[Iterable[str]] = (),
    start: str = "loc_bar_0",
    facts: Iterable[str] = (),
    walkthrough: Iterable[str] = (),
    **form: Any,
) -> dict[str, Any]:
    """Return a game's data.

    Args:
        scene: the ids of receptacles, such as ``Cabinet|1`` and ``Sink|1|SinkBasin``, with the ids of what is in each.
        shared: groups of receptacles at one place.
        facts: further facts in PDDL.
    """
    mangle = {"|": "_bar_", "-": "_minus_", "+": "_plus_", ".": "_dot_"}

    def pddl(name: str) -> str:
        for sign, word in mangle.items():
            name = name.replace(sign, word)
        return name

    def kind(name: str) -> str:
        return "SinkBasin" if name.endswith("SinkBasin") else name.partition("|")[0]

    objects, init = ["agent1 - agent", f"{start} - location"], [f"(atLocation agent1 {start})", *facts]
    place = {name: f"loc_bar_{n + 1}" for n, name in enumerate(scene)}
    for group in shared:
        first, *others = group
        place |= dict.fromkeys(others, place[first])
    kinds_of_things = {kind(thing) for inside in scene.values() for thing in inside}
    kinds_of_receptacles = {kind(name) for name in scene}
    objects += [f"{each} - location" for each in sorted(set(place.values()) - {start})]
    objects += [f"{each}Type - rtype" for each in sorted(kinds_of_receptacles)]
    objects += [f"{each}Type - otype" for each in sorted(kinds_of_things)]
    for name, inside in scene.items():
        objects.append(f"{pddl(name)} - receptacle")
        init += [
            f"(receptacleType {pddl(name)} {kind(name)}Type)",
            f"(receptacleAtLocation {pddl(name)} {place[name]})",
        ]
        init += [f"(openable {pddl(name)})"] * (kind(name).lower() in kinds.OPENABLE)
        for thing in inside:
            what, each = kind(thing).lower(), pddl(thing)
            objects.append(f"{each} - object")
            init += [f"(objectType {each} {kind(thing)}Type)", f"(inReceptacle {each} {pddl(name)})"]
            init += [f"(objectAtLocation {each} {place[name]})"]
            init += [f"({'toggleable' if what in kinds.LAMPS else 'pickupable'} {each})"]
            for known, able in (
                (kinds.VESSELS, "isReceptacleObject"),
                (kinds.HEATABLE, "heatable"),
                (kinds.COOLABLE, "coolable"),
                (kinds.CLEANABLE, "cleanable"),
                (kinds.SLICEABLE, "sliceable"),
            ):
                init += [f"({able} {each})"] * (what in known)
    for receptacle in sorted(kinds_of_receptacles):
        for thing in sorted(kinds_of_things):
            if (receptacle.lower(), thing.lower()) in kinds.FITS:
                init.append(f"(canContain {receptacle}Type {thing}Type)")
    problem = (
        f"(define (problem plan_by_hand) (:domain alfred)\n(:objects {' '.join(objects)})\n"
        f"(:init {' '.join(init)})\n(:goal {goal_in_pddl(goal)}))"
    )
    return {
        "pddl_domain": "(define (domain alfred))",
        "grammar": grammar(task, **form),
        "pddl_problem": problem,
        "solvable": True,
        "walkthrough": list(walkthrough),
    }


def write_games(folder: Path, games: Iterable[Mapping[str, Any]], split: str = "valid_unseen") -> Path:
    """Write games where ``ALFWORLD_DATA=folder`` has them."""
    for number, data in enumerate(games):
        path = folder / "json_2.1.1" / split / f"task-{number:03}" / "trial_T0" / "game.tw-pddl"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(data))
    return folder


def drawn_game(seed: int) -> dict[str, Any]:
    """A game in a small room, at random; with an odd seed, receptacles share places."""
    rng = random.Random(seed)
    scene: dict[str, list[str]] = {
        f"{kind}|{n}": [] for kind in ("Cabinet", "CounterTop", "Drawer", "Shelf") for n in range(rng.randint(1, 3))
    }
    scene |= {"Fridge|1": [], "Microwave|1": [], "Sink|1|SinkBasin": [], "Desk|1": ["DeskLamp|1"]}
    for kind in ("Apple", "Mug", "Knife", "ButterKnife", "Lettuce", "Plate", "Spoon", "Book", "SoapBar", "Egg"):
        for n in range(rng.randint(1, 2)):
            scene[rng.choice(list(scene))].append(f"{kind}|{rng.randrange(100)}|{n}")
    places = list(scene)
    rng.shuffle(places)
    goal = [Goal("book", "cabinet"), Goal("mug", lamp="desklamp"), Goal("apple", "fridge", "hot")][seed % 3]
    return game(scene, goal, sentence(goal, 0), shared=[places[:2], places[2:5]] if seed % 2 else [])
