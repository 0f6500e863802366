"""Means and deviations, and the check that their inputs are finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollenv.core.errors import UsageError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EPSILON = 1e-6
"""Added to standard deviations. Values with a deviation of at most this are treated as equal."""

LARGEST = 1e100
"""Largest accepted magnitude: squares of larger numbers may overflow."""


def finite(values: ArrayLike, what: str, holder: str = "trajectory") -> Floats:
    """Convert to an array and check that every number is finite."""
    array = np.asarray(values, dtype=np.float64)
    _refuse(array, lambda bad: f"{holder} {bad}", what)
    return array


def ragged(values: Sequence[Sequence[float]], what: str, part: str = "turn") -> Floats:
    """Concatenate the numbers of all trajectories and check that they are finite."""
    ends = np.cumsum([len(v) for v in values], dtype=np.int64)

    def where(bad: int) -> str:
        trajectory = int(np.searchsorted(ends, bad, side="right"))
        return f"{part} {bad - int(ends[trajectory]) + len(values[trajectory])} of trajectory {trajectory}"

    array = np.concatenate([np.zeros(0), *(np.asarray(v, dtype=np.float64) for v in values)])
    _refuse(array, where, what)
    return array


def parts(flat: Floats, lengths: Iterable[int]) -> list[list[float]]:
    """Split into the numbers of each trajectory, the inverse of :func:`ragged`; plain floats are fastest in loops.

    Args:
        flat: (P,) the numbers of all trajectories, concatenated.
    """
    ends = np.cumsum([0, *lengths])
    return [flat[start:end].tolist() for start, end in pairwise(ends.tolist())]


def sizes(values: Iterable[Sequence[object]]) -> Ints:
    """Return the number of parts of each trajectory, shape (N,)."""
    return np.array([len(v) for v in values], dtype=np.int64)


def same_sizes(values: Sequence[Sequence[object]], others: Sequence[Sequence[object]], what: str) -> None:
    """Check that each trajectory has as many ``others`` as rewards."""
    for trajectory, (some, more) in enumerate(zip(values, others, strict=True)):
        if len(some) != len(more):
            raise UsageError(
                f"Trajectory {trajectory} has {len(more)} {what} for {len(some)} rewards. Give one for each."
            )


def _refuse(array: Floats, where: Callable[[int], str], what: str) -> None:
    wrong = np.flatnonzero(~(np.abs(array) <= LARGEST))
    if wrong.size:
        bad = int(wrong[0])
        raise UsageError(
            f"The {what} of {where(bad)} is {array[bad]}. Numbers must be finite and below {LARGEST:g}, or they would "
            "corrupt those of other trajectories: drop that trajectory, or correct the source of the number."
        )


@dataclass(frozen=True, slots=True)
class Moments:
    """Means and deviations of values by group. Every array has the shape (N,)."""

    count: Ints
    """Values in the group."""
    centred: Floats
    """The value minus its group's mean; exactly 0 where all values of the group are equal."""
    spread: Floats
    """The group's standard deviation; 0 in a group of one."""

    @property
    def alike(self) -> NDArray[np.bool_]:
        """True where the values of the group deviate by at most 1e-6."""
        return self.spread <= EPSILON


def group_moments(values: Floats, groups: ArrayLike, *, ddof: int = 1) -> Moments:
    """Compute the moments of each group.

    Args:
        ddof: subtracted from the count in the standard deviation.
    """
    _, labels, count = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    lowest = np.full(len(count), np.inf)
    np.minimum.at(lowest, labels, values)
    above = values - lowest[labels]  # equal values then leave no rounding errors, however large they are
    centred = above - (np.bincount(labels, above) / count)[labels]
    spread = np.sqrt(np.bincount(labels, centred**2) / np.maximum(count - ddof, 1))
    return Moments(count[labels].astype(np.int64), centred, spread[labels])


class RunningMoments:
    """Mean and standard deviation of all values so far (Welford's method in batches, Chan et al. 1979)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self._squares = 0.0

    @property
    def std(self) -> float:
        """The unbiased standard deviation; 0 for fewer than two values."""
        return math.sqrt(self._squares / (self.count - 1)) if self.count > 1 else 0.0

    def update(self, values: ArrayLike) -> None:
        """Add values, shape (N,)."""
        new = finite(values, "value", "entry")
        if not new.size:
            return
        mean, total = float(new.mean()), self.count + new.size
        away = mean - self.mean
        self._squares += float(((new - mean) ** 2).sum()) + away**2 * self.count * new.size / total
        self.mean += away * new.size / total
        self.count = total

    def state_dict(self) -> dict[str, float]:
        """Return the state for a checkpoint: plain numbers."""
        return {"count": self.count, "mean": self.mean, "squares": self._squares}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore a state of :meth:`state_dict`."""
        if set(state) != set(self.state_dict()):
            raise UsageError(f"The state of running moments has the keys count, mean and squares, not {sorted(state)}.")
        self.count, self.mean, self._squares = int(state["count"]), float(state["mean"]), float(state["squares"])
