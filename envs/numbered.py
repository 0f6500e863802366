"""Indices of numbered tasks."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollenv.core.env import Env
from rollenv.core.errors import UsageError


def checked_index(env: Env, index: Any) -> int:
    """Check the index of a task against ``env.num_tasks()``."""
    tasks = env.num_tasks()
    if not isinstance(index, int | np.integer) or isinstance(index, bool) or not 0 <= index < tasks:
        raise UsageError(f"{env}: there are tasks 0 to {tasks - 1}, not {index!r}")
    return int(index)
