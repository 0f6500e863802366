"""Checks of a panel: equal here, no member twice, nothing alike among tasks for training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollenv.agents.base import ConstantAgent
from rollenv.core.checker.digests import HelperProcess
from rollenv.core.errors import UsageError
from rollenv.core.registry import spec
from rollenv.panels.identity import Identifier, Identity, identities, shown, shown_in
from rollenv.panels.panel import Member, Panel, PanelError, PanelPart, task_of
from rollenv.rollout.evaluate import key_of, tasks_of
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task, Trajectory
from rollenv.rollout.workers.base import EnvFailure, InlineWorkers, Workers

#: Number of training tasks that a panel is compared with where tasks are drawn from a seed, without end.
DRAWS = 2000


@dataclass
class Findings:
    """What a check has found; empty lists are what one wants."""

    members: int
    differing: list[str] = field(default_factory=list)
    """Members that are other tasks here, each with what differs."""
    twice: list[str] = field(default_factory=list)
    """Members that are equal to an earlier one."""
    repeating: list[str] = field(default_factory=list)
    """Members that are alike an earlier one, equal ones among them: no fault, but fewer different tasks."""
    equal: list[str] = field(default_factory=list)
    """Members that are, unchanged, tasks for training."""
    alike: list[str] = field(default_factory=list)
    """Members that are alike a task for training, equal ones among them."""
    compared: dict[str, int] = field(default_factory=dict)
    """Number of training tasks by environment; none where a part names no training tasks."""

    def problems(self, panel: Panel) -> list[str]:
        """Sentences about what is wrong."""
        kinds = (("are other tasks here", self.differing), ("are equal to an earlier member", self.twice))
        found = [f"{len(each)} of {self.members} members {what}; the first: {each[0]}" for what, each in kinds if each]
        if len(self.alike) != panel.alike_in_training:
            first = f"; the first: {self.alike[0]}" if self.alike else ""
            found.append(
                f"{len(self.alike)} members are alike a task for training, {len(self.equal)} of them equal to it; the "
                f"panel says {panel.alike_in_training}{first}"
            )
        return found


def check(panel: Panel, draws: int = DRAWS, watch: Callable[[int], object] = lambda done: None) -> Findings:
    """Compare every member with its task here, with the others, and with tasks for training.

    Args:
        draws: number of training tasks where they have no end.
        watch: called with the number of members that were looked at.
    """
    found = Findings(len(panel.members))
    keys: dict[str, str] = {}
    equal: dict[tuple[str, ...], str] = {}
    training = {id(part): _training(part, draws, found) for part in panel.parts}
    for number, ((part, member), identity) in enumerate(zip(panel.placed(), members_here(panel), strict=True)):
        name = name_of(part, member, number)
        if what := differences(member, identity):
            found.differing.append(f"{name}: {what}")
        if identity.alike in keys:
            found.repeating.append(name)
        keys.setdefault(identity.alike, name)
        if identity[:2] in equal:
            found.twice.append(f"{name}, like {equal[identity[:2]]}")
        equal.setdefault(identity[:2], name)
        known, same = training[id(part)]
        if identity.alike in known:
            found.alike.append(name)
            found.equal += [name] * ((identity.shows, identity.decides) in same)
        watch(number + 1)
    return found


def members_here(panel: Panel) -> Iterator[Identity]:
    """Identities of all members as they are in this process, in order.

    Raises:
        PanelError: a member cannot be begun.
    """
    with Identifier() as identifier:
        for number, (part, member) in enumerate(panel.placed()):
            try:
                found = identifier.identify(task_of(part, member))
            except (UsageError, EnvFailure) as error:
                raise PanelError(f"{name_of(part, member, number)} cannot be begun here: {error}") from error
            yield found


def differences(member: Member, found: Identity) -> str:
    """Say what of a member differs from a task; empty if nothing."""
    pairs = (
        ("what the agent sees first", member.shows, found.shows),
        ("what decides the reward", member.decides, found.decides),
    )
    return ", ".join(f"{what} differs" for what, said, here in pairs if said != here)


def name_of(part: PanelPart, member: Member, number: int) -> str:
    """Name a member for people."""
    where = f"seed {member.seed}" if member.row is None else f"index {member.row}"
    return f"member {number} ({part.env}, {where})"


def training_keys(env_id: str, kwargs: Mapping[str, Any], draws: int = DRAWS) -> set[str]:
    """Return what tasks for training are alike: all of a data set, or ``draws`` of what has no end."""
    return {each.alike for each in identities(training_tasks(env_id, kwargs, draws))}


def training_tasks(env_id: str, kwargs: Mapping[str, Any], draws: int = DRAWS) -> list[Task]:
    """Return all tasks of a data set, or those of the first ``draws`` seeds."""
    return tasks_of(env_id, dict(kwargs), None if spec(env_id).indexed else draws)


def _training(part: PanelPart, draws: int, found: Findings) -> tuple[set[str], set[tuple[str, str]]]:
    if part.training is None:
        return set(), set()
    each = list(identities(training_tasks(part.env, part.training, draws)))
    found.compared[part.env] = len(each)
    return {one.alike for one in each}, {(one.shows, one.decides) for one in each}


def check_elsewhere(panel: Panel, timeout: float = 900.0) -> list[str]:
    """Compare the members in a fresh process with another seed for hashes of texts.

    Raises:
        Broken: the process could not do it.
    """
    with HelperProcess(timeout, {"PYTHONHASHSEED": "4242"}) as process:
        differing: list[str] = process.call("rollenv.panels.check:differing_here", panel)
    return differing


def differing_here(panel: Panel, here: Iterable[Identity] | None = None) -> list[str]:
    """Say which members of a panel differ in this process; ``here`` are :func:`members_here`, if they are known."""
    placed = enumerate(zip(panel.placed(), members_here(panel) if here is None else here, strict=True))
    each = ((name_of(*place, number), differences(place[1], found)) for number, (place, found) in placed)
    return [f"{name}: {what}" for name, what in each if what]


def check_workers(
    panel: Panel, workers: Workers | None, watch: Callable[[int], object] = lambda done: None
) -> list[str]:
    """Begin each member in workers, which may be other machines, and say which show something else there."""

    async def begin(task: Task) -> str:
        env = await pool.open(task)
        try:
            first = await env.reset()
        finally:
            env.close()
        return shown(first.observation, first.state_key)

    differing, pool = [], workers or InlineWorkers()
    with RolloutManager(ConstantAgent(""), pool) as manager:
        for number, (part, member) in enumerate(panel.placed()):
            try:
                differs = manager.run(begin(task_of(part, member))) != member.shows
            except EnvFailure as error:
                raise PanelError(f"{name_of(part, member, number)} cannot be begun there: {error}") from error
            if differs:
                differing.append(f"{name_of(part, member, number)}: what the agent sees first differs")
            watch(number + 1)
    return differing


class Watched:
    """A check of each episode of a panel when it ends: an environment elsewhere must have shown the member's start.

    Raises, when called, PanelError: an episode began with another observation than its member.
    """

    def __init__(self, panel: Panel, watch: Callable[[Trajectory], None] | None = None):
        self.panel, self.watch = panel, watch
        self._starts = {
            key_of(task_of(part, member)): (member.shows, name_of(part, member, number))
            for number, (part, member) in enumerate(panel.placed())
        }
        if lacking := len(panel.members) - len(self._starts):
            raise PanelError(f"{lacking} members of {panel.name} are named twice: results could not tell them apart")

    def __call__(self, trajectory: Trajectory) -> None:
        self.check(trajectory)
        if self.watch:
            self.watch(trajectory)

    def check(self, trajectory: Trajectory) -> None:
        """Raise PanelError if the episode's beginning is not its member's."""
        shows, name = self._starts[key_of(trajectory.task)]
        if (seen := shown_in(trajectory)) not in (None, shows):
            raise PanelError(
                f"{name} of {self.panel.name} began with another text here (hash {seen}, not {shows}): the data, the "
                f"version or a setting of the environment differs. `rollenv panel check {self.panel.name}` says which "
                "members differ"
            )


def overlap(panel: Panel, tasks: Iterable[Task]) -> list[str]:
    """Name the members that are alike one of other tasks, such as those that a run has trained on."""
    keys = {each.alike for each in identities(tasks)}
    placed: Sequence[tuple[PanelPart, Member]] = panel.placed()
    each = enumerate(zip(placed, members_here(panel), strict=True))
    return [name_of(*place, number) for number, (place, here) in each if here.alike in keys]
