"""Training tasks apart from those of the panel that a run is evaluated on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.core.registry import spec
from rollenv.panels import Panel, PanelError
from rollenv.panels.check import differing_here, members_here, name_of
from rollenv.panels.identity import Identifier, identities
from rollenv.rollout.evaluate import tasks_of
from rollenv.rollout.types import Group, Task
from rollenv.rollout.workers.base import EnvFailure
from rollenv.trainers.config.tasks import AnyTasks, EnvConfig, training_environments
from rollenv.trainers.sources.base import TaskSource

#: Tasks that are passed over in a row before there are said to be no others.
_MOST = 10_000


class Apart(Iterator[Task]):
    """The tasks of a source, but for those that are alike a panel's member.

    Environments that the panel does not have are not looked at; the others are begun once more for every task.

    Raises PanelError if a member is another task here.
    """

    def __init__(self, source: TaskSource, panel: Panel):
        self.source, self.panel, self.passed_over = source, panel, 0
        here = list(members_here(panel))
        if differing := differing_here(panel, here):
            raise PanelError(
                f"{len(differing)} members of {panel.name} are other tasks here; the first: {differing[0]}"
            )
        self._members = {each.alike for each in here}
        self._classes = {spec(part.env).entry_point for part in panel.parts}
        self._identifier = Identifier()

    def __next__(self) -> Task:
        for _ in range(_MOST):
            task = next(self.source)
            if spec(task.env_id).entry_point not in self._classes:
                return task
            try:
                if self._identifier.identify(task).alike not in self._members:
                    return task
            except EnvFailure:  # it fails where it is played, too, and counts as failed there
                self._identifier.close()
                return task
            self.passed_over += 1
        raise UsageError(
            f"{_MOST} tasks for training in a row are alike members of {self.panel.name}: there are no others"
        )

    def record(self, task: Task, group: Group) -> None:
        self.source.record(task, group)

    def state_dict(self) -> dict[str, Any]:
        return {**self.source.state_dict(), "passed_over": self.passed_over}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.source.load_state_dict({name: value for name, value in state.items() if name != "passed_over"})
        self.passed_over = int(state.get("passed_over", 0))

    def metrics(self) -> dict[str, float]:
        return {**self.source.metrics(), "passed_over": self.passed_over}


def refuse_members(env: EnvConfig, tasks: AnyTasks, panel: Panel) -> None:
    """Compare the tasks for training with a panel, before anything begins.

    Raises:
        UsageError: a data set for training has tasks that are, or are alike, members; or generated tasks are drawn
            from the panel's own split.
    """
    for trained, _ in training_environments(env, tasks):
        parts = [part for part in panel.parts if spec(part.env).entry_point == spec(trained.id).entry_point]
        if not parts:
            continue
        if not spec(trained.id).indexed:
            own = {part.kwargs.get("split", spec(part.env).kwargs.get("split")) for part in parts} - {None, "all"}
            split = trained.kwargs.get("split", spec(trained.id).kwargs.get("split"))
            if split in own:
                raise UsageError(
                    f"{trained.id} with split={split} would train on what {panel.name} tests: set env.kwargs.split to "
                    "another one"
                )
            continue
        rows = {found.alike: row for row, found in enumerate(identities(tasks_of(trained.id, trained.kwargs)))}
        members = enumerate(zip(panel.placed(), members_here(panel), strict=True))
        alike = [(name_of(*place, number), rows[one.alike]) for number, (place, one) in members if one.alike in rows]
        if len(alike) > panel.alike_in_training:
            name, row = alike[0]
            raise UsageError(
                f"{len(alike)} members of {panel.name} are, or are alike, tasks for training ({trained.id}); the first "
                f"is {name}, like row {row}. Train on another split, or take another panel"
            )
