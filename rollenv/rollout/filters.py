"""Which groups are worth training on. A filter returns true for a group that is kept."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from rollenv.core import UsageError
from rollenv.rollout.types import Group

Filter = Callable[[Group], bool]


def varied(threshold: float = 0.0) -> Filter:
    """Keep groups whose rewards have a standard deviation above ``threshold``: equal rewards give no advantage."""

    def keep(group: Group) -> bool:
        rewards = [t.reward for t in group.complete]
        return len(rewards) > 1 and statistics.pstdev(rewards) > threshold

    return keep


def mean_between(low: float, high: float) -> Filter:
    """Keep groups with ``low`` < mean reward < ``high``: DAPO's dynamic sampling (arXiv 2503.14476, equation 11)."""
    if not low < high:
        raise UsageError(f"mean_between needs low < high, got {low} and {high}")

    def keep(group: Group) -> bool:
        rewards = [t.reward for t in group.complete]
        return bool(rewards) and low < statistics.fmean(rewards) < high

    return keep
