"""New panels."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.core.registry import spec
from rollenv.panels.check import DRAWS, training_keys
from rollenv.panels.identity import identities
from rollenv.panels.panel import Member, Panel, PanelPart, Protocol
from rollenv.rollout.evaluate import tasks_of
from rollenv.rollout.types import Task

#: Seed of the first member; evaluations in training begin there too, and training itself does not.
FIRST_SEED = 1_000_000_000
#: Seeds that are tried for each member before there are said to be too few different tasks.
_TRIES = 50


def draw_part(
    env_id: str,
    n: int | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    seed: int = FIRST_SEED,
    training: Mapping[str, Any] | None = None,
    alike: bool = False,
    draws: int = DRAWS,
    watch: Callable[[int], object] = lambda done: None,
) -> tuple[PanelPart, list[Member]]:
    """Choose the members of one environment: the first of a data set in its order, or those of ascending seeds.

    A task that is alike an earlier one, or one for training, is passed over.

    Args:
        n: number of members; None for all of a data set.
        seed: seed of the first; the others are above it.
        training: constructor arguments of training tasks; None if there are none.
        alike: keep what is alike, as a published split does.
        draws: number of training tasks to compare with where they have no end.
        watch: called with the number of members so far.

    Raises:
        UsageError: there are fewer different tasks.
    """
    kwargs, indexed = dict(kwargs or {}), spec(env_id).indexed
    if n is None and not indexed:
        raise UsageError(f"{env_id} draws its tasks from the seed, without end; say how many with -n")
    if n is not None and n < 1:
        raise UsageError(f"a panel has at least one member, got {n}")
    taken = set() if training is None or alike else training_keys(env_id, training, draws)
    members: list[Member] = []
    drawn = (Task(env_id, each, kwargs) for each in range(seed, seed + _TRIES * (n or 1)))
    tasks, same = itertools.tee(tasks_of(env_id, kwargs, None, seed) if indexed else drawn)
    for task, found in zip(tasks, identities(same), strict=False):
        if found.alike in taken and not alike:
            continue
        taken.add(found.alike)
        members.append(Member(task.seed, task.options.get("index"), found.shows, found.decides))
        watch(len(members))
        if len(members) == n:
            break
    if len(members) < (n or 1):
        rest = "" if alike else " that are not alike each other or a task for training (--alike keeps those)"
        hides = not indexed and "state" not in spec(env_id).abilities
        blind = ", or write its get_state, which tells tasks apart that begin with the same text" if hides else ""
        raise UsageError(f"{env_id} has {len(members)} tasks{rest}, fewer than {n or 1}; lower -n{blind}")
    part = PanelPart(
        env=env_id, members=len(members), kwargs=kwargs, training=None if training is None else dict(training)
    )
    return part, members


def assemble(
    name: str,
    drawn: Sequence[tuple[PanelPart, Sequence[Member]]],
    protocol: Protocol | None = None,
    **about: Any,
) -> Panel:
    """Put parts together to a panel; ``about`` are further fields of :class:`~rollenv.panels.panel.Panel`."""
    members = [member for _, each in drawn for member in each]
    return Panel(name, [part for part, _ in drawn], members, protocol or Protocol(), **about)
