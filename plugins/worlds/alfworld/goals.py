"""The six types of tasks: what they ask for, in which words, and when they are reached."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Goal:
    """The state of a room that is asked for. All names are kinds.

    Args:
        receptacle: where the object has to be; empty for a task with a lamp.
        needs: the object's state, ``hot``, ``cool`` or ``clean``; ``two`` if two objects are wanted.
        lamp: the lamp in whose light the object is looked at.
    """

    thing: str
    receptacle: str = ""
    needs: str = ""
    lamp: str = ""

    @property
    def verb(self) -> str:
        """The command that brings the object into the wanted state; empty if none is wanted."""
        return _VERBS.get(self.needs, "")


_VERBS = {"hot": "heat", "cool": "cool", "clean": "clean"}
#: ALFRED's names of the types, with the state that each asks for.
TASKS = {
    "pick_and_place_simple": "",
    "look_at_obj_in_light": "",
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "hot",
    "pick_cool_then_place_in_recep": "cool",
    "pick_two_obj_and_place": "two",
}
#: The two sentences of each type; a game has one of them.
_SENTENCES = {
    "": ("put a {o} in {r}", "put some {o} on {r}"),
    "clean": ("put a clean {o} in {r}", "clean some {o} and put it in {r}"),
    "hot": ("put a hot {o} in {r}", "heat some {o} and put it in {r}"),
    "cool": ("put a cool {o} in {r}", "cool some {o} and put it in {r}"),
    "two": ("put two {o} in {r}", "find two {o} and put them in {r}"),
    "lamp": ("look at {o} under the {r}", "examine the {o} with the {r}"),
}


def make_goal(task: str, thing: str, receptacle: str, lamp: str) -> Goal:
    """Return the goal of one of :data:`TASKS`."""
    if task == "look_at_obj_in_light":
        return Goal(thing, lamp=lamp)
    return Goal(thing, receptacle, TASKS[task])


def sentence(goal: Goal, form: int) -> str:
    """Return one of the two sentences for a goal, ``form`` 0 or 1."""
    wanted = _SENTENCES["lamp" if goal.lamp else goal.needs][form]
    return wanted.format(o=goal.thing, r=goal.lamp or goal.receptacle)
