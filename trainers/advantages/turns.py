"""Advantages of turns: discounted returns compared within the batch, the group or the state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from rollenv.core.errors import UsageError
from rollenv.trainers.advantages.anchors import anchors, number_keys
from rollenv.trainers.advantages.groups import group_normalize
from rollenv.trainers.advantages.moments import (
    EPSILON,
    Floats,
    RunningMoments,
    finite,
    group_moments,
    parts,
    ragged,
    same_sizes,
    sizes,
)
from rollenv.trainers.advantages.shaping import Scope, normalize

Rewards = Sequence[Sequence[float]]
Statistics = Literal["trajectories", "rows"]


def discounted_returns(rewards: Rewards, gamma: float) -> Floats:
    """Return-to-go of every turn, R_t = sum over k >= t of gamma^(k-t) r_k (GiGPO, arXiv 2505.10978, eq. 5).

    Args:
        rewards: for each of N trajectories the rewards of its turns.
        gamma: discount per turn, 0 to 1.

    Returns:
        (T,)
    """
    out: list[float] = []
    for trajectory in parts(ragged(rewards, "reward"), sizes(rewards)):
        total, backwards = 0.0, []
        for reward in reversed(trajectory):
            total = reward + gamma * total
            backwards.append(total)
        out += backwards[::-1]
    return np.array(out, dtype=np.float64)


def mt_grpo(rewards: Rewards, groups: ArrayLike, *, weight: float = 0.5, std: bool = True) -> Floats:
    """Separate advantages of outcome and turn, A_t = A_outcome + weight A_turn,t (MT-GRPO, arXiv 2505.11821).

    A trajectory's outcome is the reward of its last turn, normalized within the group. The reward of each earlier turn
    is normalized over the turns with the same number in the group. The last turn has the outcome only. Both use
    :func:`group_normalize`.

    Args:
        rewards: for each of N trajectories the rewards of its turns.
        groups: (N,) the task each trajectory belongs to.
        weight: lambda in the paper; weight of a turn's own reward relative to the outcome.

    Returns:
        (T,)
    """
    paid, lengths = ragged(rewards, "reward"), sizes(rewards)
    outcome = group_normalize([row[-1] if len(row) else 0.0 for row in rewards], groups, std=std)
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(paid))  # turns left in the trajectory, this included
    numbers = np.repeat(lengths, lengths) - left
    early = np.flatnonzero(left > 1)
    task = np.repeat(np.asarray(groups), lengths)
    advantages = np.repeat(outcome, lengths)
    labels = number_keys(zip(task[early].tolist(), numbers[early].tolist(), strict=True))
    advantages[early] += weight * group_normalize(paid[early], labels, std=std)
    return advantages


def rebn(rewards: Rewards, *, gamma: float = 0.9) -> Floats:
    """Discounted returns of turns, normalized over all turns of the batch (ReBN in GEM, arXiv 2510.01051).

    A_t = (R_t - mean) / (std + 1e-6). Every turn counts the same, regardless of trajectory and group.

    Args:
        rewards: for each of N trajectories the rewards of its turns.
        gamma: discount per turn, 0 to 1.

    Returns:
        (T,)
    """
    returns = discounted_returns(rewards, gamma)
    return group_normalize(returns, np.zeros(len(returns), dtype=np.int64), std=True)


def step_reinforce(
    rewards: Rewards,
    groups: ArrayLike,
    *,
    gamma: float = 0.95,
    mean: Scope = "group",
    std: Scope = "group",
    running: RunningMoments | None = None,
) -> Floats:
    """Discounted returns of turns, normalized over the turns of a group or the batch (``step_reinforce`` in ROLL).

    Args:
        rewards: for each of N trajectories the rewards of its turns.
        groups: (N,) the task each trajectory belongs to.
        gamma: discount per turn, 0 to 1.
        mean: scope of the mean (:func:`normalize`).
        std: scope of the standard deviation; with "none" for both, the return is unchanged.
        running: moments of the returns of turns, for the scope "running".

    Returns:
        (T,)
    """
    task = np.repeat(np.asarray(groups), sizes(rewards))
    return normalize(discounted_returns(rewards, gamma), task, mean=mean, std=std, running=running)


def gigpo(
    rewards: Rewards,
    groups: ArrayLike,
    states: Sequence[str],
    *,
    gamma: float = 0.95,
    step_weight: float = 1.0,
    std: bool = True,
    statistics: Statistics = "trajectories",
    penalties: Rewards | None = None,
    similarity: float | None = None,
) -> Floats:
    """Group-in-group advantages of turns (GiGPO, arXiv 2505.10978, eq. 3, 6, 7 and 8): A = A_episode + omega A_step.

    A_episode (:func:`episode_advantages`) compares the trajectory's return with its group. A_step compares the turn's
    discounted return, minus its penalty, with those of all turns of the group in the same state; a state that occurs
    once gives 0.

    Args:
        rewards: for each of N trajectories the rewards of its turns, without the penalties.
        groups: (N,) the task each trajectory belongs to.
        states: (T,) the anchor of every turn: its state key, or its observation where the environment has none. Equal
            anchors of different tasks are not compared.
        gamma: discount per turn, 0 to 1.
        step_weight: weight of the step-level advantage (omega in the paper).
        statistics: population of the episode level's mean and standard deviation.
        penalties: for each trajectory, for each turn, 0 or more, as for an invalid action. It is subtracted from the
            return and the discounted return of its own turn only, not of earlier ones.
        similarity: None compares states by equal keys; otherwise the minimum ratio, above 0 and up to 1, between a
            turn's key and the first key of a state (:func:`rollenv.trainers.advantages.anchors.anchors`).

    Returns:
        (T,)
    """
    task = np.repeat(np.asarray(groups), sizes(rewards))
    fines = turn_penalties(rewards, penalties)
    episode = episode_advantages(rewards, groups, fines, std=std, statistics=statistics)
    labels = anchors(task, states, similarity=similarity)
    return episode + step_weight * group_normalize(discounted_returns(rewards, gamma) - fines, labels, std=std)


def episode_advantages(
    rewards: Rewards, groups: ArrayLike, penalties: Floats, *, std: bool, statistics: Statistics
) -> Floats:
    """Advantage of the trajectory within its group (GiGPO, eq. 3), minus the turn's penalty, for each turn.

    With "trajectories", as in the paper, mean and standard deviation are taken over the returns of the group's
    trajectories, without penalties: (R - penalty - mean) / (std + 1e-6). In a group of one, or with equal returns, the
    advantage is minus the penalty, without the division, which would multiply it by a million.

    With "rows", as in verl-agent's code, each turn of the group is a row with the value R - penalty, and mean and
    standard deviation are taken over rows: long trajectories weigh more. A group that is a single row keeps its value,
    as if the mean were 0 and the standard deviation 1; a single trajectory of several turns is no such group.

    Args:
        rewards: for each of N trajectories the rewards of its turns.
        groups: (N,) the task each trajectory belongs to.
        statistics: population of the mean and standard deviation.

    Returns:
        (T,)
    """
    if statistics not in get_args(Statistics):
        raise UsageError(f"{statistics!r} are not statistics of GiGPO. Use one of {', '.join(get_args(Statistics))}.")
    lengths = sizes(rewards)
    returns = finite([sum(r) for r in parts(ragged(rewards, "reward"), lengths)], "return")
    if statistics == "trajectories":
        moments = group_moments(returns, groups)
        scale: Floats = np.where(moments.alike | (not std), 1.0, moments.spread + EPSILON)
        centred: Floats = np.where(moments.alike, 0.0, moments.centred) / scale
        return np.repeat(centred, lengths) - penalties / np.repeat(scale, lengths)
    rows, task = np.repeat(returns, lengths) - penalties, np.repeat(np.asarray(groups), lengths)
    alone = group_moments(rows, task).count == 1
    return np.where(alone, rows / (1 + EPSILON if std else 1), group_normalize(rows, task, std=std))


def turn_penalties(rewards: Rewards, penalties: Rewards | None) -> Floats:
    """Concatenate the penalties of all turns, shape (T,); zeros for None.

    Args:
        rewards: for each of N trajectories the rewards of its turns; only their number counts.
        penalties: for each trajectory, for each turn, 0 or more; None for no penalties.
    """
    if penalties is None:
        return np.zeros(int(sizes(rewards).sum()))
    same_sizes(rewards, penalties, "penalties")
    fines = ragged(penalties, "penalty")
    if (fines < 0).any():
        trajectory = next(i for i, p in enumerate(penalties) if min(p, default=0.0) < 0)
        raise UsageError(f"Trajectory {trajectory} has a penalty below 0. Penalties are subtracted: give 0 or more.")
    return fines
