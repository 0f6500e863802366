"""Advantages of turns compared with turns that share a history."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rollenv.trainers.advantages.anchors import number_keys
from rollenv.trainers.advantages.moments import EPSILON, Floats, group_moments, sizes
from rollenv.trainers.advantages.turns import Rewards, discounted_returns, episode_advantages, turn_penalties


def hgpo(
    rewards: Rewards,
    groups: ArrayLike,
    states: Sequence[str],
    *,
    gamma: float = 0.95,
    history: int = 2,
    alpha: float = 1.0,
    std: bool = True,
    base: bool = False,
    penalties: Rewards | None = None,
) -> Floats:
    """Advantages of turns by hierarchies of groups that share a history (HGPO, arXiv 2602.22817).

    For k = 1 to history + 1, the turns of a task are grouped by their last k states, their own included; a turn with
    fewer states so far has no group of that k. Within a group, a_k = (R - mean) / (std + 1e-6) of the discounted
    return, with the standard deviation of the population (n, not n - 1); a group of one gives 0. Then A = sum_k w_k a_k
    with w_k = (k + 1)^alpha / (sum of these over the k where a_k is not 0 + 1e-6). An a_k of at most 1e-6 counts as 0.

    Args:
        rewards: for each of N trajectories the rewards of its turns, without the penalties.
        groups: (N,) the task each trajectory belongs to.
        states: (T,) the state key of every turn.
        gamma: discount per turn, 0 to 1.
        history: number of earlier turns in the prompt (K in the paper).
        alpha: exponent of the weights; larger values favour longer histories.
        base: include the episode's advantage, over rows as in :func:`episode_advantages`, as k = 0.
        penalties: for each trajectory, for each turn, 0 or more; see :func:`gigpo`.

    Returns:
        (T,)
    """
    fines = turn_penalties(rewards, penalties)
    returns = discounted_returns(rewards, gamma) - fines
    levels = [_level(returns, rewards, groups, states, k, std=std) for k in range(1, history + 2)]
    if base:
        levels.insert(0, episode_advantages(rewards, groups, fines, std=std, statistics="rows"))
    total, weight = np.zeros_like(returns), np.zeros_like(returns)
    for k, level in enumerate(levels, start=0 if base else 1):
        counts = np.abs(level) > EPSILON
        total += np.where(counts, (k + 1) ** alpha * level, 0.0)
        weight += np.where(counts, (k + 1) ** alpha, 0.0)
    return total / (weight + EPSILON)


def _level(returns: Floats, rewards: Rewards, groups: ArrayLike, states: Sequence[str], k: int, *, std: bool) -> Floats:
    """a_k of every turn, (T,); 0 for turns with fewer than k states so far."""
    lengths = sizes(rewards)
    task = np.repeat(np.asarray(groups), lengths).tolist()
    turn = np.concatenate([np.arange(size) for size in lengths]) if len(lengths) else np.zeros(0, dtype=np.int64)
    far = np.flatnonzero(turn >= k - 1)
    moments = group_moments(
        returns[far], number_keys((task[t], *states[t - k + 1 : t + 1]) for t in far.tolist()), ddof=0
    )
    scaled = moments.centred / (moments.spread + EPSILON) if std else moments.centred
    level = np.zeros_like(returns)
    level[far] = np.where(moments.alike, 0.0, scaled)
    return level
