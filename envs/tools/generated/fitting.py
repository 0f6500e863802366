"""Checks that goals go together: none undoes, repeats or changes what another one is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rollenv.envs.tools.generated.goals import Goal, Path, World
from rollenv.envs.tools.generated.hearing import mentions
from rollenv.tools.backend import differences


class Fitted(NamedTuple):
    """A goal and what it changes in the world as it is at the start."""

    goal: Goal
    changes: frozenset[Path]


def fitted(world: World, goal: Goal) -> Fitted | None:
    """The goal with its changes; None where a call of it fails, or it changes nothing and asks for nothing.

    Args:
        world: at the start; it stays as it is.
    """
    twin = world.twin()
    if any(twin.call(name, arguments).failed for name, arguments in goal.calls()):
        return None
    changes = frozenset(change.path for change in differences(world.data(), twin.data()))
    if bool(changes) != bool(goal.act) or not (changes or goal.answers):
        return None
    return Fitted(goal, changes)


def together(world: World, goals: Sequence[Fitted]) -> bool:
    """Return whether the goals can be met in any order, and each as if it were the only one.

    Args:
        world: at the start; it stays as it is.
        goals: to try out; all but the last go together.
    """
    *others, new = goals
    if any(_clash(one, new) or _clash(new, one) for one in others):
        return False
    if any(mentions(one.goal.ask, answer) for one in goals for other in goals for answer in other.goal.answers):
        return False
    if any(mentions(one.goal.done, answer) for one in others for answer in new.goal.answers):  # asked twice
        return False
    active = [one for one in goals if one.changes]
    return len(active) < 2 or _played(world, active) == _played(world, active[::-1])


def _clash(one: Fitted, other: Fitted) -> bool:
    """Return whether one changes what the other changes or depends on, or uses a function that the other is to lack."""
    touched = [*other.changes, *other.goal.reads]
    if any(a[: len(b)] == b or b[: len(a)] == a for a in one.changes for b in touched):
        return True
    return any(name in other.goal.blocks for name, _ in one.goal.calls())


def _played(world: World, goals: Sequence[Fitted]) -> object:
    twin = world.twin()
    for one in goals:
        for name, arguments in one.goal.act:
            twin.call(name, arguments)
    return twin.data()
