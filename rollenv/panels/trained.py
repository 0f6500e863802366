"""The tasks that a run has trained on: a file of its folder, by which they are counted against a panel."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rollenv.core.errors import UsageError, reads
from rollenv.core.trust import named_by_task
from rollenv.rollout.evaluate import key_of
from rollenv.rollout.records.storage import json_lines
from rollenv.rollout.types import Task

FILE = "tasks.jsonl"


def task_rows(iteration: int, tasks: Iterable[Task]) -> list[list[Any]]:
    """Return the lines of an iteration in that file."""
    return [[iteration, task.env_id, task.seed, task.kwargs, task.options] for task in tasks]


def trained_tasks(folder: Path, *, trust: bool = False) -> list[Task]:
    """Return each task that a run has trained on, once.

    Args:
        trust: allow what the tasks name (:mod:`rollenv.core.trust`).

    Raises:
        UsageError: the run has not kept them, or they name what is not trusted.
        StorageError: a line is damaged.
    """
    file = folder / FILE
    if not file.is_file():
        raise UsageError(f"{folder} has no {FILE}: runs keep the tasks they train on if eval.panel names a panel")
    found: dict[str, Task] = {}
    for where, row in json_lines(file):
        with reads(f"{where} is no task"):
            _, env_id, seed, kwargs, options = row
            task = Task(env_id, seed, kwargs, {}, options)
        if not trust and (names := named_by_task(task)):
            raise UsageError(f"{where} names {names}; if you trust whoever made it, allow that with --trust")
        found.setdefault(key_of(task), task)
    return list(found.values())


def panel_of_run(folder: Path) -> str:
    """Return the name of the panel that a run was evaluated on.

    Raises:
        UsageError: it was evaluated on none.
    """
    try:
        name = json.loads((folder / "config.json").read_text(encoding="utf-8"))["eval"]["panel"]
    except (OSError, ValueError, KeyError, TypeError):
        name = ""
    if not isinstance(name, str) or not name:
        raise UsageError(f"{folder} was evaluated on no panel; name one with --panel")
    return name
