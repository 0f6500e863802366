"""Labels of anchor states: turns that were taken in the same state."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from difflib import SequenceMatcher

import numpy as np
from numpy.typing import ArrayLike

from rollenv.core.errors import UsageError
from rollenv.trainers.advantages.moments import Ints


def number_keys(keys: Iterable[Hashable]) -> Ints:
    """Number keys from 0 in the order of their first occurrence; equal keys share a number."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def anchors(tasks: ArrayLike, states: Sequence[str], *, similarity: float | None = None) -> Ints:
    """Number the anchor states of turns (GiGPO, arXiv 2505.10978, eq. 6). States of different tasks are different.

    With ``similarity``, each turn in order joins the first state of its task whose first key ``b`` has
    ``difflib.SequenceMatcher(None, key, b).ratio() >= similarity``, or else begins a new state. It is never compared
    with later members of a state. The cost is turns times states of a task.

    Args:
        similarity: None for equal keys, or a ratio above 0 and up to 1.

    Returns:
        (T,)
    """
    if similarity is not None and not 0 < similarity <= 1:
        raise UsageError(f"The similarity of states must be above 0 and at most 1, not {similarity}.")
    pairs = list(zip(np.asarray(tasks).tolist(), states, strict=True))
    if similarity is None:
        return number_keys(pairs)
    clusters: dict[int, list[SequenceMatcher[str]]] = {}
    labels: dict[tuple[int, str], tuple[int, int]] = {}
    for task, key in dict.fromkeys(pairs):  # equal keys join the same cluster: new ones are only appended
        labels[task, key] = (task, _join(clusters.setdefault(task, []), key, similarity))
    return number_keys(labels[pair] for pair in pairs)


def _join(clusters: list[SequenceMatcher[str]], key: str, similarity: float) -> int:
    """Return the index of the first cluster that is similar enough; append a new one if none is."""
    for number, matcher in enumerate(clusters):
        matcher.set_seq1(key)
        bounds = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)  # each at most the one before
        if all(bound() >= similarity for bound in bounds):
            return number
    clusters.append(SequenceMatcher(None, "", key))
    return len(clusters) - 1
