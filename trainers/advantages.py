"""Advantages of trajectories and turns: pure functions from rewards and groups to numbers.

Shapes: ``N`` trajectories, ``T`` turns of all trajectories one after another. Groups are given as integer labels.
Standard deviations are unbiased (n - 1), as in the reference implementations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EPSILON = 1e-6


def group_normalize(values: Floats, groups: Ints, *, std: bool) -> Floats:
    """Subtract each group's mean and, with ``std``, divide by its standard deviation plus 1e-6.

    A group of one, or one whose values are all equal, gets zeros.

    Args:
        values: (N,)
        groups: (N,) labels 0 .. G - 1.
    """
    count = np.bincount(groups)
    centred = values - (np.bincount(groups, values) / np.maximum(count, 1))[groups]
    spread = np.sqrt(np.bincount(groups, centred**2) / np.maximum(count - 1, 1))[groups]
    alike = spread <= EPSILON
    scaled = centred / (spread + EPSILON) if std else centred
    return np.where(alike, 0.0, scaled)


def grpo(rewards: Floats, groups: Ints, *, std: bool = True) -> Floats:
    """Group-relative advantages of trajectories (GRPO, arXiv 2402.03300, eq. 4; without ``std`` Dr. GRPO, 2503.20783).

    Args:
        rewards: (N,) return of each trajectory.
        groups: (N,) the task each trajectory belongs to.

    Returns:
        (N,)
    """
    return group_normalize(rewards, groups, std=std)


def discounted_returns(rewards: Sequence[Sequence[float]], gamma: float) -> Floats:
    """Return-to-go of every turn, R_t = sum over k >= t of gamma^(k-t) r_k (GiGPO, arXiv 2505.10978, eq. 5).

    Args:
        rewards: for each of N trajectories the rewards of its turns.

    Returns:
        (T,)
    """
    out = []
    for trajectory in rewards:
        total, backwards = 0.0, []
        for reward in reversed(trajectory):
            total = reward + gamma * total
            backwards.append(total)
        out += backwards[::-1]
    return np.array(out, dtype=np.float64)


def gigpo(
    rewards: Sequence[Sequence[float]],
    groups: Ints,
    states: Sequence[str],
    *,
    gamma: float = 0.95,
    step_weight: float = 1.0,
    std: bool = True,
) -> Floats:
    """Group-in-group advantages of turns (GiGPO, arXiv 2505.10978, eq. 3, 6, 7 and 8).

    A turn gets its trajectory's group-relative advantage plus ``step_weight`` times how its discounted return compares
    with those of all turns that its group took in the same state.

    Args:
        rewards: for each of N trajectories the rewards of its turns.
        groups: (N,) the task each trajectory belongs to.
        states: (T,) the state key of every turn. Equal keys of different tasks are not compared.

    Returns:
        (T,)
    """
    lengths = [len(r) for r in rewards]
    episode = grpo(np.array([sum(r) for r in rewards], dtype=np.float64), groups, std=std)
    anchors: dict[tuple[int, str], int] = {}
    task_of_turn = np.repeat(groups, lengths)
    labels = [anchors.setdefault((int(g), s), len(anchors)) for g, s in zip(task_of_turn, states, strict=True)]
    step = group_normalize(discounted_returns(rewards, gamma), np.array(labels, dtype=np.int64), std=std)
    return np.repeat(episode, lengths) + step_weight * step
