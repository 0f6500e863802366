"""Sources of seeds, data sets and curricula."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rollenv.core.curriculum import Curriculum, Schedule
from rollenv.core.errors import UsageError
from rollenv.core.plugins import users_code
from rollenv.core.registry import spec
from rollenv.rollout.types import Group, Task
from rollenv.rollout.workers.base import make_env
from rollenv.trainers.sources.base import DataChanged, SourcedTask, TaskTemplate, count, own_part, read_state, task_seed


class SeedSource(Iterator[Task]):
    """A new seed for every task, which depends only on the run's seed and the task's number.

    Args:
        seed: the run's seed. In a mixture, give each source another one: ``task_seed(seed, name)``.
    """

    def __init__(self, template: TaskTemplate, *, seed: int = 0):
        self.template, self.seed = template, seed
        self.drawn = 0

    def __next__(self) -> Task:
        number, self.drawn = self.drawn, self.drawn + 1
        return self.template.task(task_seed(self.seed, number), (number,))

    def record(self, task: Task, group: Group) -> None:
        own_part(task, self, lambda number: number >= 0)

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.drawn = read_state(self, state, lambda saved: count(saved["drawn"]))

    def metrics(self) -> dict[str, float]:
        return {"drawn": self.drawn}


class OwnSource(SeedSource):
    """The tasks of a user's generator; a resumed run draws again what the run had drawn.

    Args:
        make: returns the tasks, the same at every call.
    """

    def __init__(self, make: Callable[[], Iterable[Task]]):
        self.make, self.drawn = make, 0
        self._tasks = self._made()

    def _made(self) -> Iterator[Task]:
        with users_code("the generator of tasks.kind"):
            yield from self.make()

    def __next__(self) -> Task:
        task = next(self._tasks, None)
        if not isinstance(task, Task):
            gave = "ended" if task is None else f"gave {task!r:.80}"
            raise UsageError(
                f"tasks.kind: the generator {gave} after {self.drawn} tasks; it has to give a Task each time"
            )
        number, self.drawn = self.drawn, self.drawn + 1
        return SourcedTask.of(task, (number,))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._tasks, self.drawn = self._made(), 0
        for _ in range(read_state(self, state, lambda saved: count(saved["drawn"]))):
            next(self)


class Items(Protocol):
    """A finite set of distinct tasks."""

    def __len__(self) -> int: ...

    def task(self, item: int, seed: int) -> SourcedTask:
        """Return a task, with the item's number as its origin.

        Args:
            seed: seed of the agent's random numbers, and of the task's unless the item determines them.
        """
        ...


class Rows:
    """The numbered tasks of an environment: rows of a data set, goals of a shop.

    Args:
        template: a template with an environment that is registered as ``indexed``.
        size: number of tasks; by default the environment is made once and its ``num_tasks()`` called.
    """

    def __init__(self, template: TaskTemplate, *, size: int | None = None):
        self.template = template
        if not spec(template.env_id).indexed:
            raise UsageError(f"the tasks of {template.env_id} are not numbered: take tasks.kind=seeds or tasks.pool=N")
        if "index" in template.options:
            raise UsageError(f"options of {template.env_id} set the index; leave it to the source")
        if size is None:
            with contextlib.closing(spec(template.env_id).make(**template.kwargs)) as env:
                size = env.num_tasks()
        self.size = size
        if self.size < 1:
            raise UsageError(f"{template.env_id} has {self.size} tasks; at least 1 is needed")

    def __len__(self) -> int:
        return self.size

    def task(self, item: int, seed: int) -> SourcedTask:
        return self.template.task(seed, (item,), options={"index": item})


class Seeds:
    """A fixed number of tasks of an environment, each with its own seed.

    Args:
        size: the number of tasks; with ``distinct`` the maximum.
        distinct: keep only one of the seeds with the same first observation, so that a pool of an environment with few
            tasks has each of them once, with one record. The environment is made once, and reset for up to ten seeds
            per task.
    """

    def __init__(self, template: TaskTemplate, size: int, *, seed: int = 0, distinct: bool = False):
        if size < 1:
            raise UsageError(f"a pool has at least 1 seed, got size={size}")
        self.template, self.seed = template, seed
        self.numbers: Sequence[int] = self._first_of_each(size) if distinct else range(size)

    def _first_of_each(self, size: int) -> list[int]:
        numbers: dict[str, int] = {}
        with contextlib.closing(make_env(spec(self.template.env_id), self.template.task(0, ()))) as env:
            for number in range(10 * size):
                observation, _ = env.reset(self._seed(number), options=self.template.options or None)
                numbers.setdefault(str(observation), number)
                if len(numbers) == size:
                    break
        if len(numbers) == 1 < size:
            raise UsageError(
                f"all tasks of {self.template.env_id} begin with the same observation, so that a pool of distinct ones "
                "would be a single task: leave out tasks.distinct"
            )
        return list(numbers.values())

    def _seed(self, number: int) -> int:
        return task_seed(self.seed, "pool", number)

    def __len__(self) -> int:
        return len(self.numbers)

    def task(self, item: int, seed: int) -> SourcedTask:
        return self.template.task(self._seed(self.numbers[item]), (item,), agent_seed=seed)


class DatasetSource(Iterator[Task]):
    """Every item once per epoch, in an order that depends on the seed and the epoch."""

    def __init__(self, items: Items, *, seed: int = 0, shuffle: bool = True):
        self.items, self.seed, self.shuffle = items, seed, shuffle
        self.drawn = 0
        self._order: tuple[int, NDArray[np.int64]] | None = None

    def __next__(self) -> Task:
        number, self.drawn = self.drawn, self.drawn + 1
        epoch, index = divmod(number, len(self.items))
        return self.items.task(self._item(epoch, index), task_seed(self.seed, number))

    def _item(self, epoch: int, index: int) -> int:
        if not self.shuffle:
            return index
        if self._order is None or self._order[0] != epoch:
            rng = np.random.Generator(np.random.PCG64(task_seed(self.seed, "epoch", epoch)))
            self._order = epoch, rng.permutation(len(self.items))
        return int(self._order[1][index])

    def record(self, task: Task, group: Group) -> None:
        own_part(task, self, range(len(self.items)).__contains__)

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn, "size": len(self.items)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        drawn, size = read_state(self, state, lambda saved: (count(saved["drawn"]), saved["size"]))
        check_size(size, len(self.items))
        self.drawn = drawn

    def metrics(self) -> dict[str, float]:
        return {"drawn": self.drawn, "epoch": self.drawn / len(self.items)}


def check_size(saved: Any, current: int) -> None:
    """Compare a saved number of items with the current one.

    Raises:
        DataChanged: they differ, so that item numbers have another meaning.
    """
    if saved != current:
        raise DataChanged(
            f"the run was started with a data set of {saved!r:.80} tasks, this one has {current}; restore the data set"
        )


class CurriculumSource(Iterator[Task]):
    """Seeds at levels that follow the success rate.

    Args:
        template: wrappers and options of the tasks, and the common constructor arguments of all levels; the environment
            must be the curriculum's.
    """

    def __init__(
        self, template: TaskTemplate, curriculum: Curriculum, schedule: Schedule | None = None, *, seed: int = 0
    ):
        self.template, self.curriculum, self.seed = template, curriculum, seed
        self.schedule = schedule or Schedule(len(curriculum), seed=seed)
        if spec(template.env_id).id != curriculum.env_id:
            raise UsageError(f"the levels belong to {curriculum.env_id}, the template to {template.env_id}")
        if (levels := len(self.schedule.rates())) != len(curriculum):
            raise UsageError(f"the schedule has {levels} levels, the curriculum {len(curriculum)}")
        self.drawn = 0

    def __next__(self) -> Task:
        number, self.drawn = self.drawn, self.drawn + 1
        level = self.schedule.choose(number)
        return self.template.task(task_seed(self.seed, number), (level,), kwargs=self.curriculum[level])

    def record(self, task: Task, group: Group) -> None:
        level = own_part(task, self, range(len(self.curriculum)).__contains__)
        for trajectory in group.complete:
            self.schedule.record(level, bool(trajectory.success))

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn, "schedule": self.schedule.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        drawn, schedule = read_state(self, state, lambda saved: (count(saved["drawn"]), saved["schedule"]))
        self.schedule.load_state_dict(schedule)
        self.drawn = drawn

    def metrics(self) -> dict[str, float]:
        rate = self.schedule.rates()[self.schedule.level]
        known = {} if rate is None else {"level_success": rate}
        return {"drawn": self.drawn, "level": self.schedule.level, **known}
