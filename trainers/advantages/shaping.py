"""Shaping of rewards before advantages, and of advantages before a loss: scales, penalties, weights."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from rollenv.core.errors import UsageError
from rollenv.trainers.advantages.moments import EPSILON, Floats, RunningMoments, finite, group_moments

Scope = Literal["none", "group", "batch", "running"]


def normalize(
    values: ArrayLike,
    groups: ArrayLike,
    *,
    mean: Scope = "group",
    std: Scope = "group",
    running: RunningMoments | None = None,
) -> Floats:
    """Subtract a mean, then divide by a standard deviation plus 1e-6, each over its own scope.

    Both are computed from the input values: ``mean="group", std="batch"`` is LitePPO (arXiv 2508.08221). Where the
    standard deviation is at most 1e-6, as in a group or batch of one, the result is 0.

    Args:
        mean: scope of the mean; "none" subtracts nothing.
        std: scope of the standard deviation; "none" does not divide.
        running: moments for the scope "running". They are not updated: call ``running.update(values)`` first.

    Returns:
        (N,)
    """
    for scope in (mean, std):
        if scope not in get_args(Scope):
            raise UsageError(f"{scope!r} is not a scope of normalize. Use one of {', '.join(get_args(Scope))}.")
    array = finite(values, "value")
    centred = _compare(array, groups, mean, running)[0]
    if std == "none":
        return centred
    spread = _compare(array, groups, std, running)[1]
    return np.where(spread <= EPSILON, 0.0, centred / (spread + EPSILON))


def _compare(values: Floats, groups: ArrayLike, scope: Scope, running: RunningMoments | None) -> tuple[Floats, Floats]:
    """Return the values minus the mean of the scope, and its standard deviation, both (N,)."""
    if scope == "none":
        return values.copy(), np.ones_like(values)
    if scope == "running":
        if running is None or not running.count:
            raise UsageError(
                'normalize with the scope "running" needs running moments that have seen values: update first.'
            )
        return values - running.mean, np.full_like(values, running.std)
    moments = group_moments(values, groups if scope == "group" else np.zeros(len(values), dtype=np.int64))
    return moments.centred, moments.spread


def whiten(values: ArrayLike, weights: ArrayLike | None = None) -> Floats:
    """Shift and scale to mean 0 and unbiased variance 1, (x - mean) / sqrt(variance + 1e-8), as PPO does for tokens.

    With weights, the mean is sum(w x) / sum(w) and the variance sum(w (x - mean)^2) / (sum(w) - 1), as if each value
    occurred ``w`` times. Equal values, or weights that sum to at most 1, give 0.

    Args:
        weights: (N,) number of tokens with each value; 1 by default. A value of weight 0 does not count and gets 0.

    Returns:
        (N,)
    """
    array = finite(values, "value", "entry")
    counts = np.ones_like(array) if weights is None else finite(weights, "weight", "entry")
    if len(below := np.flatnonzero(counts < 0)):
        raise UsageError(f"The weight of entry {below[0]} is {counts[below[0]]}. It must be 0 or more.")
    counted, total = counts > 0, counts.sum()
    if total <= 1:
        return np.zeros_like(array)
    above = array - array[counted].min()
    centred = above - (counts * above).sum() / total
    variance = (counts * centred**2).sum() / (total - 1)
    return np.where(counted, centred / np.sqrt(variance + 1e-8), 0.0)


def overlong_penalty(lengths: ArrayLike, *, limit: int, buffer: int) -> Floats:
    """Soft overlong punishment, from 0 down to -1, to be added to rewards (DAPO, arXiv 2503.14476, eq. 13).

    0 up to ``limit - buffer`` tokens, (limit - buffer - length) / buffer on the last ``buffer`` tokens, -1 beyond.

    Args:
        lengths: (N,) tokens of each response.
        limit: maximum length of a response in tokens, including the buffer.
        buffer: tokens before the limit over which the penalty grows.

    Returns:
        (N,)
    """
    if not 1 <= buffer <= limit:
        raise UsageError(f"The overlong buffer of {buffer} tokens must be from 1 to the limit of {limit}.")
    return np.clip((limit - buffer - finite(lengths, "length")) / buffer, -1.0, 0.0)


def length_weights(lengths: ArrayLike) -> Floats:
    """Weights that fall from 1.5 for the shortest response to 0.5 for the longest, divided by their mean (ROLL).

    Args:
        lengths: (N,) tokens of each response.

    Returns:
        (N,) with the mean 1.
    """
    tokens = finite(lengths, "length")
    if not tokens.size:
        return tokens.copy()
    above = tokens - tokens.min()
    weights: Floats = 1.5 - above / max(float(above.max()), 1.0)
    return weights / float(weights.mean())


def difficulty_weights(difficulties: ArrayLike) -> Floats:
    """Weights that rise from 0.5 for tasks of difficulty 0 to 2 for those of 1, divided by their mean (ROLL).

    Args:
        difficulties: (N,) difficulty of each trajectory's task, clipped to 0 to 1.

    Returns:
        (N,) with the mean 1.
    """
    weights = 0.5 + 1.5 * np.clip(finite(difficulties, "difficulty"), 0.0, 1.0)
    return weights / float(weights.mean()) if weights.size else weights
