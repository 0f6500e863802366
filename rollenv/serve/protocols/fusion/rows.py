"""Rows of data sets that are here, or come with a request."""

from __future__ import annotations

import dataclasses
from typing import Any

from rollenv.core import UsageError
from rollenv.envs.code.env import CodeEnv
from rollenv.serve import grading
from rollenv.serve.protocols.fusion.programs import outcome
from rollenv.serve.protocols.fusion.schemas import Config, OneRow, Rows

#: Prompts of one answer.
_PROMPTS = 1000

#: What rows are that say nothing else.
_TYPE = "CommonOJDataset"


def task(asked: OneRow, **settings: Any) -> tuple[CodeEnv, str]:
    """An environment at the row that is asked for.

    Args:
        asked: the data set and the row.

    Returns:
        (the environment, its question).

    Raises:
        UsageError: there is no such row.
    """
    config, number = asked.config, asked.id
    if not config.provided_data:
        env = _held(asked.dataset, **settings)
        count = env.num_tasks() or 0
        if not isinstance(number, int) or not 0 <= number < count:
            raise UsageError(f"{asked.dataset} has no row {number!r:.40}; its ids are 0 to {count - 1}")
        return env, env.reset(options={"index": number})[0]
    found = _provided(config)
    if isinstance(config.provided_data, list):
        found = [row for row in found if _id(row) == number]
    if not found:
        raise UsageError(f"config.provided_data has no row with the id {number!r:.40}")
    return grading.task(config.dataset_type or _TYPE, found[0], **settings)


def prompt(asked: OneRow) -> dict[str, Any]:
    """The question of a row.

    Raises:
        UsageError: there is no such row.
    """
    return _told(asked.id, task(asked)[1])


def prompts(asked: Rows) -> list[dict[str, Any]]:
    """The questions of a data set, at most a thousand.

    Raises:
        UsageError: there is no such data set, or a row cannot be read.
    """
    config, some = asked.config, slice(asked.offset, asked.offset + min(asked.limit, _PROMPTS))
    if not config.provided_data:
        env = _held(asked.dataset)
        return [_told(number, env.reset(options={"index": number})[0]) for number in ids(asked)[some]]
    found = [row for row in _provided(config) if isinstance(_id(row), int | str)][some]
    return [_told(_id(row), grading.task(config.dataset_type or _TYPE, row)[1]) for row in found]


def ids(asked: Rows) -> list[int | str]:
    """The ids of the rows of a data set.

    Raises:
        UsageError: there is no such data set.
    """
    if not asked.config.provided_data:
        return list(range(_held(asked.dataset).num_tasks() or 0))
    found = map(_id, _provided(asked.config))
    return [number for number in found if isinstance(number, int | str)]


def verdict(found: grading.Verdict) -> dict[str, Any]:
    """A verdict, as the original tells it."""
    ran = found.ran
    if ran is not None and found.test is None:  # its output is the grader's
        ran = dataclasses.replace(ran, stdout="", exit_code=0 if found.passed else ran.exit_code or 1)
    return {"passed": found.passed, "exec_info": outcome(ran), "test_info": found.test}


def _held(dataset: str, **settings: Any) -> CodeEnv:
    """The environment of a data set that this machine holds."""
    if dataset not in (held := grading.held()):
        there = ", ".join(held) or "none below $ROLLENV_DATA"
        raise UsageError(f"there is no data set {dataset!r:.60} ({there}); send the row in config.provided_data")
    env = held[dataset].make(**settings).unwrapped
    assert isinstance(env, CodeEnv)
    return env


def _provided(config: Config) -> list[dict[str, Any]]:
    return config.provided_data if isinstance(config.provided_data, list) else [config.provided_data or {}]


def _id(row: dict[str, Any]) -> Any:
    return row.get("id", row.get("task_id"))


def _told(number: Any, question: str) -> dict[str, Any]:
    return {"id": number, "prompt": question, "labels": {}}
