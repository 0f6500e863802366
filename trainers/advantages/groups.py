"""Advantages of whole trajectories, each compared with its group or with the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rollenv.trainers.advantages.moments import EPSILON, Floats, finite, group_moments
from rollenv.trainers.advantages.shaping import whiten


def group_normalize(values: ArrayLike, groups: ArrayLike, *, std: bool) -> Floats:
    """Subtract each group's mean and, with ``std``, divide by its standard deviation plus 1e-6.

    A group of one, or one with equal values, gets zeros.

    Returns:
        (N,)
    """
    moments = group_moments(finite(values, "value"), groups)
    scaled = moments.centred / (moments.spread + EPSILON) if std else moments.centred
    return np.where(moments.alike, 0.0, scaled)


def grpo(rewards: ArrayLike, groups: ArrayLike, *, std: bool = True) -> Floats:
    """Group-relative advantages, (r - mean) / (std + 1e-6) (GRPO, arXiv 2402.03300, eq. 4).

    Without ``std`` it is r - mean (Dr. GRPO, arXiv 2503.20783). A group of one, or one with equal values, gets zeros.

    Args:
        rewards: (N,) return of each trajectory.
        groups: (N,) the task each trajectory belongs to.

    Returns:
        (N,)
    """
    return group_normalize(finite(rewards, "return"), groups, std=std)


def rloo(rewards: ArrayLike, groups: ArrayLike) -> Floats:
    """Return minus the mean return of the group's other members (RLOO, arXiv 2402.14740). A group of one gets 0.

    Args:
        rewards: (N,) return of each trajectory.
        groups: (N,) the task each trajectory belongs to.

    Returns:
        (N,)
    """
    moments = group_moments(finite(rewards, "return"), groups)
    return moments.centred * moments.count / np.maximum(moments.count - 1, 1)


def reinforce(rewards: ArrayLike) -> Floats:
    """The return itself, with no baseline (REINFORCE, Williams 1992).

    Args:
        rewards: (N,) return of each trajectory.

    Returns:
        (N,)
    """
    return finite(rewards, "return").copy()


def role_baseline(rewards: ArrayLike, roles: Sequence[str], baselines: dict[str, float], *, decay: float) -> Floats:
    """The return less the running mean of its role (SPIRAL's role-conditioned estimation, arXiv 2506.24119).

    A trajectory is compared with the mean before it: A = R - b, then b <- decay b + (1 - decay) R. So the advantages of
    a role add up to (b_after - b_before) / (1 - decay). There is no normalisation.

    Args:
        rewards: (N,) return of each trajectory.
        roles: (N,) name of each trajectory's role.
        baselines: the mean of each role, 0 for a new one; changed in place.

    Returns:
        (N,)
    """
    returns = finite(rewards, "return")
    out = np.zeros(len(returns))
    for i, (gained, role) in enumerate(zip(returns, roles, strict=True)):
        before = baselines.get(role, 0.0)
        out[i] = gained - before
        baselines[role] = float(decay * before + (1 - decay) * gained)
    return out


def reinforce_pp(rewards: ArrayLike, groups: ArrayLike, lengths: ArrayLike, *, baseline: bool) -> Floats:
    """Returns whitened over all tokens of the batch (REINFORCE++, arXiv 2501.03262).

    Each trajectory counts once for every token in mean and variance (:func:`whiten`). One without tokens gets 0 and
    does not count. With ``baseline`` the mean return of the group, in which each trajectory counts once, is subtracted
    first; a group of one then starts from 0.

    Args:
        rewards: (N,) return of each trajectory.
        groups: (N,) the task each trajectory belongs to; only read with ``baseline``.
        lengths: (N,) number of sampled tokens of each trajectory.

    Returns:
        (N,)
    """
    returns = finite(rewards, "return")
    return whiten(group_moments(returns, groups).centred if baseline else returns, lengths)


def maxrl(rewards: ArrayLike, groups: ArrayLike) -> Floats:
    """Difference of a return from its group's mean, relative to that mean: (r - mean) / mean (MaxRL, arXiv 2602.02710).

    For returns of at least 0, ideally binary: the rarer success is in the group, the more it weighs. A group whose
    mean is not above 1e-6 gets zeros; with negative returns that may be a group with successes.

    Args:
        rewards: (N,) return of each trajectory.
        groups: (N,) the task each trajectory belongs to.

    Returns:
        (N,)
    """
    returns = finite(rewards, "return")
    centred = group_moments(returns, groups).centred
    mean = returns - centred
    useful = mean > EPSILON
    return np.where(useful, centred / np.where(useful, mean, 1.0), 0.0)
