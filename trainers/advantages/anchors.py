"""Labels of anchor states: turns that were taken in the same state."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from difflib import SequenceMatcher

import numpy as np
from numpy.typing import ArrayLike

from rollenv.core import UsageError
from rollenv.trainers.advantages.moments import Ints


def numbered(keys: Iterable[Hashable]) -> Ints:
    """The same number for equal keys, counted from 0 in the order in which keys first come."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def anchors(tasks: ArrayLike, states: Sequence[str], *, similarity: float | None = None) -> Ints:
    """Number the anchor states of turns (GiGPO, arXiv 2505.10978, eq. 6). States of different tasks are different.

    With ``similarity``, turns are taken in their order, and each joins the first state of its task whose first key
    ``b`` has ``difflib.SequenceMatcher(None, key, b).ratio() >= similarity``, or else begins a new state. It is never
    compared with later members of a state. Time grows with turns times states of a task.

    Args:
        similarity: None for equal keys, or a ratio above 0 and up to 1.

    Returns:
        (T,)

    Raises:
        UsageError: for a similarity outside of that range.
    """
    if similarity is not None and not 0 < similarity <= 1:
        raise UsageError(f"The similarity of states must be above 0 and at most 1, not {similarity}.")
    pairs = list(zip(np.asarray(tasks).tolist(), states, strict=True))
    if similarity is None:
        return numbered(pairs)
    clusters: dict[int, list[SequenceMatcher[str]]] = {}
    found: dict[tuple[int, str], tuple[int, int]] = {}
    for task, key in pairs:
        if (
            task,
            key,
        ) not in found:  # an equal key would join where the first one did: states are only added at the end
            found[task, key] = (task, _join(clusters.setdefault(task, []), key, similarity))
    return numbered(found[pair] for pair in pairs)


def _join(clusters: list[SequenceMatcher[str]], key: str, similarity: float) -> int:
    """The number of the first cluster that is near enough, after adding one if none is."""
    for number, matcher in enumerate(clusters):
        matcher.set_seq1(key)
        bounds = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)  # each at most the one before
        if all(bound() >= similarity for bound in bounds):
            return number
    clusters.append(SequenceMatcher(None, "", key))
    return len(clusters) - 1
