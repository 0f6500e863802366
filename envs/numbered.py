"""Tasks that have numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollenv.core import Env, UsageError


def checked_index(env: Env, index: Any) -> int:
    """The number of a task, as it was given to ``reset``.

    Args:
        env: whose ``num_tasks()`` says how many there are.

    Raises:
        UsageError: there is no such task.
    """
    tasks = env.num_tasks()
    if not isinstance(index, int | np.integer) or isinstance(index, bool) or not 0 <= index < tasks:
        raise UsageError(f"{env}: there are tasks 0 to {tasks - 1}, not {index!r}")
    return int(index)
