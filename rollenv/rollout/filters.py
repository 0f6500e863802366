"""Filters of groups for training. A filter returns true for a group to keep."""

from __future__ import annotations

import itertools
import logging
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.rollout.types import Group, Trajectory

Filter = Callable[[Group], bool]

logger = logging.getLogger(__name__)


#: Sums of the same rewards in another order differ by less, relative to the largest.
_ROUNDING = 1e-9


def differ(rewards: Sequence[float], threshold: float = 0.0) -> bool:
    """Return whether rewards have a standard deviation above a threshold, and above the rounding of sums."""
    if len(rewards) < 2:
        return False
    return statistics.pstdev(rewards) > max(threshold, _ROUNDING * max(map(abs, rewards)))


def preferred(returns: Sequence[float], answers: Sequence[Any], margin: float = 0.0) -> Iterator[tuple[int, int]]:
    """Yield the places of every two members of a group with other answers whose returns are apart, the better first.

    Args:
        margin: the difference that their returns have to exceed.
    """
    ranked = sorted(range(len(returns)), key=lambda place: -returns[place])
    for better, worse in itertools.combinations(ranked, 2):
        apart = returns[better] - returns[worse]
        if apart > max(margin, _ROUNDING) and answers[better] != answers[worse]:
            yield better, worse


def rewards_of(group: Iterable[Trajectory], success_only: bool) -> list[float]:
    """The rewards of the trajectories that did not fail, or 1 for each success and 0 for the others."""
    return [float(bool(t.success)) if success_only else t.reward for t in group if t.complete]


def varied(threshold: float = 0.0, *, success_only: bool = False) -> Filter:
    """Keep groups whose rewards have a standard deviation above ``threshold``: equal rewards give no advantage.

    Args:
        success_only: use success, 0 or 1, in place of the environment's reward.
    """

    def keep(group: Group) -> bool:
        return differ(rewards_of(group, success_only), threshold)

    return keep


def mean_between(low: float, high: float, *, success_only: bool = False) -> Filter:
    """Keep groups with ``low`` < mean reward < ``high``: DAPO's dynamic sampling (arXiv 2503.14476, equation 11)."""
    if not low < high:
        raise UsageError(f"mean_between needs low < high, got {low} and {high}")

    def keep(group: Group) -> bool:
        rewards = rewards_of(group, success_only)
        rounding = _ROUNDING * max(abs(low), abs(high))
        return bool(rewards) and low + rounding < statistics.fmean(rewards) < high - rounding

    return keep


class Bounded:
    """Limits how many groups another filter drops for each batch; at the limit, all groups are kept.

    DAPO's dynamic sampling continues until a batch is full, which never ends if nearly all groups have equal rewards.

    Args:
        drops: maximum number of groups dropped for a batch.
        groups: size of a batch: the count restarts after so many kept groups.
    """

    def __init__(self, keep: Filter, drops: int, groups: int):
        if drops < 0 or groups < 1:
            raise UsageError(f"drops must be at least 0 and groups at least 1, got drops={drops}, groups={groups}")
        self.keep, self.drops, self.groups = keep, drops, groups
        #: Over all batches: groups dropped, and groups kept only because the limit was reached.
        self.dropped, self.let_through = 0, 0
        self._dropped = self._kept = 0

    def __call__(self, group: Group) -> bool:
        kept = self.keep(group)
        if not kept and self._dropped < self.drops:
            self._dropped += 1
            self.dropped += 1
            return False
        if not kept:
            self.let_through += 1
            if self._dropped == self.drops:
                self._dropped += 1  # log once per batch
                logger.warning(
                    "%d groups were dropped for one batch, which is the limit; the rest of the batch is not filtered. "
                    "Try easier tasks, larger groups, or more drops",
                    self.drops,
                )
        self._kept += 1
        if self._kept == self.groups:
            self._dropped = self._kept = 0
        return True
