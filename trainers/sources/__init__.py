"""Task sources: endless iterators over tasks, with cursors for checkpoints.

>>> from rollenv.trainers.sources import DatasetSource, MixtureSource, Rows, SeedSource, TaskTemplate
>>> lake = SeedSource(TaskTemplate("roll:FrozenLake-v0"), seed=1)
>>> sums = SeedSource(TaskTemplate("math:Arithmetic-v0-easy"), seed=2)
>>> source = MixtureSource({"lake": (1, lake), "sums": (3, sums)})
>>> [next(source).env_id.partition(":")[0] for _ in range(8)]
['math', 'roll', 'math', 'math', 'math', 'roll', 'math', 'math']
"""

from rollenv.trainers.sources.base import SourcedTask, TaskSource, TaskTemplate, task_seed
from rollenv.trainers.sources.mixture import MixtureSource
from rollenv.trainers.sources.success_aware import SuccessAware
from rollenv.trainers.sources.task_lists import CurriculumSource, DatasetSource, Items, Rows, Seeds, SeedSource

__all__ = [
    "CurriculumSource",
    "DatasetSource",
    "Items",
    "MixtureSource",
    "Rows",
    "SeedSource",
    "Seeds",
    "SourcedTask",
    "SuccessAware",
    "TaskSource",
    "TaskTemplate",
    "task_seed",
]
