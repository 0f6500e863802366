"""The task source of a recipe's settings."""

from __future__ import annotations

from functools import partial

from rollenv.core.curriculum import Curriculum, Schedule
from rollenv.core.env_spec import Wrappers
from rollenv.core.wrappers.factory import with_tokenizer
from rollenv.rollout.types import Task
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.own import own_arguments
from rollenv.trainers.config.tasks import (
    AnyTasks,
    EnvConfig,
    LevelsConfig,
    MixtureConfig,
    OwnTasks,
    PoolConfig,
    RowsConfig,
)
from rollenv.trainers.sources.apart import Apart, refuse_members
from rollenv.trainers.sources.base import TaskSource, TaskTemplate, task_seed
from rollenv.trainers.sources.mixture import MixtureSource
from rollenv.trainers.sources.success_aware import SuccessAware
from rollenv.trainers.sources.task_lists import CurriculumSource, DatasetSource, OwnSource, Rows, Seeds, SeedSource


def source_of(config: TrainConfig, wrappers: Wrappers) -> TaskSource:
    """Create the task source of a run."""
    env = config.env.model_copy(update={"wrappers": wrappers})
    source = _source(env, config.tasks, config.seed, config.model.tokenizer)
    if not config.eval.panel:
        return source
    panel = config.eval.the_panel
    refuse_members(config.env, config.tasks, panel)
    return Apart(source, panel)


def _source(env: EnvConfig, tasks: AnyTasks, seed: int, tokenizer: str) -> TaskSource:
    template = TaskTemplate(env.id, env.kwargs, env.wrappers, env.options)
    if isinstance(tasks, OwnTasks):
        first = Task(env.id, seed, env.kwargs, env.wrappers, env.options)
        return OwnSource(partial(tasks.function, first, **own_arguments(tasks, "tasks")))
    if isinstance(tasks, RowsConfig):
        return DatasetSource(Rows(template), seed=seed, shuffle=tasks.shuffle)
    if isinstance(tasks, PoolConfig):
        items = Seeds(template, tasks.pool, seed=seed, distinct=tasks.distinct) if tasks.pool else Rows(template)
        return SuccessAware(items, seed=seed, explore=tasks.explore, half_life=tasks.half_life)
    if isinstance(tasks, LevelsConfig):
        curriculum = Curriculum(env.id, tasks.levels) if tasks.levels else Curriculum.for_env(env.id)
        schedule = Schedule(
            len(curriculum), seed=seed, window=tasks.window, up=tasks.up, down=tasks.down, review=tasks.review
        )
        return CurriculumSource(template, curriculum, schedule, seed=seed)
    if isinstance(tasks, MixtureConfig):
        parts = {}
        for number, part in enumerate(tasks.parts):
            wrapped = part.env.model_copy(update={"wrappers": with_tokenizer(part.env.wrappers, tokenizer)})
            source = _source(wrapped, part.tasks, task_seed(seed, "part", number), tokenizer)
            parts[part.name or part.env.id] = (part.ratio, source)
        return MixtureSource(parts)
    return SeedSource(template, seed=seed)
