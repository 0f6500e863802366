"""Generalized advantage estimation with a critic: over tokens, over turns, and over turns and then their tokens.

Observation tokens are not in the arrays: a step's successor is the next token or turn that the policy sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rollenv.core.errors import UsageError
from rollenv.trainers.advantages.moments import Floats, finite, parts, ragged, same_sizes, sizes

Nested = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Gae:
    """Advantages and returns, one of each for every step of all trajectories, in order."""

    advantages: Floats
    returns: Floats
    """Targets of the critic: advantage plus value."""


def token_gae(
    rewards: Nested, values: Nested, *, gamma: float = 1.0, lam: float = 0.95, bootstrap: ArrayLike | None = None
) -> Gae:
    """GAE with a step for each token (arXiv 1506.02438, eq. 16).

    delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lam A_{t+1}. After the last token V is ``bootstrap``
    and A is 0.

    Args:
        rewards: for each of N trajectories the rewards of its tokens; a turn's reward is on its last token.
        values: for each trajectory the critic's value before each token.
        gamma: discount per token, 0 to 1.
        lam: 0 trusts the critic, 1 the rewards.
        bootstrap: (N,) value of the state where each trajectory stopped: the critic's if it was truncated, 0 if it
            terminated. All 0 by default.

    Returns:
        (n,) each.
    """
    return _gae(rewards, values, gamma, lam, bootstrap, "token")


def turn_gae(
    rewards: Nested, values: Nested, *, gamma: float = 0.99, lam: float = 0.9, bootstrap: ArrayLike | None = None
) -> Gae:
    """GAE with a step for each turn (Turn-PPO, arXiv 2512.17008): all tokens of a turn share its advantage.

    The equations of :func:`token_gae` with turns for tokens.

    Args:
        rewards: for each of N trajectories the rewards of its turns.
        values: for each trajectory the critic's value at the end of each turn's prompt.
        lam: 0 trusts the critic, 1 the rewards.
        bootstrap: (N,) value of the last state; see :func:`token_gae`.

    Returns:
        (T,) each.
    """
    return _gae(rewards, values, gamma, lam, bootstrap, "turn")


def bi_level_gae(
    rewards: Nested,
    values: Nested,
    lengths: Sequence[Sequence[int]],
    *,
    gamma: float = 0.95,
    lam: float = 1.0,
    token_gamma: float = 1.0,
    token_lam: float = 1.0,
    bootstrap: ArrayLike | None = None,
) -> Gae:
    """GAE over turns, then inside each turn over its tokens (VAGEN, arXiv 2510.16907).

    First :func:`turn_gae`, where a turn's value is the critic's at the turn's last token. That turn advantage A_k is
    the advantage of the last token, whose reward is therefore A_k + V. It propagates back to the turn's other tokens,
    which have no rewards: A_i = token_gamma V_{i+1} - V_i + token_gamma token_lam A_{i+1}. Turns are connected only
    through the turn level.

    Args:
        rewards: for each of N trajectories the rewards of its turns.
        values: for each trajectory the critic's value at each token of all its turns.
        lengths: for each trajectory the number of tokens of each turn, at least 1.
        token_gamma: discount per token inside a turn.
        token_lam: ``lam`` for tokens inside a turn, 0 to 1.
        bootstrap: (N,) value of the last state; see :func:`token_gae`.

    Returns:
        (n,) each.
    """
    same_sizes(rewards, lengths, "lengths of turns")
    plain = parts(ragged(values, "value", "token"), sizes(values))
    turns = [_split(trajectory, v, size) for trajectory, (v, size) in enumerate(zip(plain, lengths, strict=True))]
    ends = [[tokens[-1] for tokens in trajectory] for trajectory in turns]
    outer = turn_gae(rewards, ends, gamma=gamma, lam=lam, bootstrap=bootstrap)
    inner_values = [tokens for trajectory in turns for tokens in trajectory]
    inner_rewards = [[0.0] * (len(v) - 1) + [r] for v, r in zip(inner_values, outer.returns.tolist(), strict=True)]
    return token_gae(inner_rewards, inner_values, gamma=token_gamma, lam=token_lam)


def _split(trajectory: int, values: Sequence[float], lengths: Sequence[int]) -> list[list[float]]:
    """Split the values of one trajectory by turn."""
    if sum(lengths) != len(values) or min(lengths, default=1) < 1:
        raise UsageError(
            f"Trajectory {trajectory} has {len(values)} values for turns of {list(lengths)} tokens. "
            "Give one for each token, and no turn without tokens."
        )
    return parts(np.array(values), lengths)


def _gae(rewards: Nested, values: Nested, gamma: float, lam: float, bootstrap: ArrayLike | None, part: str) -> Gae:
    same_sizes(rewards, values, "values")
    lengths, flat = sizes(rewards), ragged(values, "value", part)
    plain = zip(parts(ragged(rewards, "reward", part), lengths), parts(flat, lengths), strict=True)
    after = finite(np.zeros(len(rewards)) if bootstrap is None else bootstrap, "bootstrap value")
    advantages: list[float] = []
    for (r, v), following in zip(plain, after.tolist(), strict=True):
        advantage, backwards = 0.0, []
        for reward, value in zip(reversed(r), reversed(v), strict=True):
            advantage = reward + gamma * following - value + gamma * lam * advantage
            following = value
            backwards.append(advantage)
        advantages += backwards[::-1]
    array = np.array(advantages, dtype=np.float64)
    return Gae(array, array + flat)
