"""Means and deviations, and the check that no number which is not finite gets into them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollenv.core import UsageError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EPSILON = 1e-6
"""Added to standard deviations. Values that deviate by no more are alike."""

LARGEST = 1e100
"""Squares of larger numbers may overflow."""


def finite(values: ArrayLike, what: str, holder: str = "trajectory") -> Floats:
    """One number for each holder, as an array.

    Args:
        what: what a value is, for the error.
        holder: the thing that has one value, such as "group", for the error.

    Raises:
        UsageError: for a number that is not finite or beyond 1e100.
    """
    array = np.asarray(values, dtype=np.float64)
    _refuse(array, lambda bad: f"{holder} {bad}", what)
    return array


def ragged(values: Sequence[Sequence[float]], what: str, part: str = "turn") -> Floats:
    """The numbers of all trajectories, one after another.

    Args:
        values: for each of N trajectories one number for each of its parts.
        what: what a value is, for the error.
        part: what a trajectory has several of, for the error.

    Raises:
        UsageError: for a number that is not finite or beyond 1e100.
    """
    ends = np.cumsum([len(v) for v in values], dtype=np.int64)

    def where(bad: int) -> str:
        trajectory = int(np.searchsorted(ends, bad, side="right"))
        return f"{part} {bad - int(ends[trajectory]) + len(values[trajectory])} of trajectory {trajectory}"

    array = np.concatenate([np.zeros(0), *(np.asarray(v, dtype=np.float64) for v in values)])
    _refuse(array, where, what)
    return array


def parts(flat: Floats, lengths: Iterable[int]) -> list[list[float]]:
    """The opposite of :func:`ragged`: the numbers of each trajectory, as plain floats, which loops read fastest.

    Args:
        flat: (P,) the numbers of all trajectories, one after another.
        lengths: how many of them each of N trajectories has; they add up to P.
    """
    ends = np.cumsum([0, *lengths])
    return [flat[start:end].tolist() for start, end in pairwise(ends.tolist())]


def sizes(values: Iterable[Sequence[object]]) -> Ints:
    """Return the number of parts of each trajectory, shape (N,)."""
    return np.array([len(v) for v in values], dtype=np.int64)


def same_sizes(values: Sequence[Sequence[object]], others: Sequence[Sequence[object]], what: str) -> None:
    """Check that each trajectory has as many of the one as of the other.

    Args:
        values: for each of N trajectories its rewards.
        others: for each of the N trajectories what is compared with them.
        what: what ``others`` has, in the plural, for the error.

    Raises:
        UsageError: naming the first trajectory that has not.
    """
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
            "spoil others: drop that trajectory, or correct the source of the number."
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
        """True where the values of the group are as good as equal."""
        return self.spread <= EPSILON


def group_moments(values: Floats, groups: ArrayLike, *, ddof: int = 1) -> Moments:
    """Compare values with those of the same group.

    Args:
        ddof: subtracted from the count in the standard deviation.
    """
    _, labels, count = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    lowest = np.full(len(count), np.inf)
    np.minimum.at(lowest, labels, values)
    above = values - lowest[labels]  # so that equal values leave no rounding errors behind, however large they are
    centred = above - (np.bincount(labels, above) / count)[labels]
    spread = np.sqrt(np.bincount(labels, centred**2) / np.maximum(count - ddof, 1))
    return Moments(count[labels].astype(np.int64), centred, spread[labels])


class RunningMoments:
    """Mean and standard deviation of all values seen so far (Welford's method, by batches as Chan et al. 1979)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self._squares = 0.0

    @property
    def std(self) -> float:
        """The unbiased standard deviation; 0 for fewer than two values."""
        return math.sqrt(self._squares / (self.count - 1)) if self.count > 1 else 0.0

    def update(self, values: ArrayLike) -> None:
        """Add values, shape (N,).

        Raises:
            UsageError: for a number that is not finite or beyond 1e100. Nothing is added then.
        """
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
        """Continue from what :meth:`state_dict` gave.

        Raises:
            UsageError: for missing or unknown keys.
        """
        if set(state) != set(self.state_dict()):
            raise UsageError(f"The state of running moments has the keys count, mean and squares, not {sorted(state)}.")
        self.count, self.mean, self._squares = int(state["count"]), float(state["mean"]), float(state["squares"])
