"""Advantages of turns weighed by how sure the policy was."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rollenv.trainers.advantages.moments import EPSILON, Floats, finite


def empg(
    advantages: ArrayLike,
    entropies: ArrayLike,
    lengths: ArrayLike,
    *,
    scale: float = 1.0,
    future_scale: float = 1.0,
    bonus: float = 0.1,
) -> Floats:
    """Entropy-modulated advantages (EMPG, arXiv 2509.09265).

    Turn entropies are brought to H from 0 to 1 over the batch (minimum to maximum, 1e-6 added to the range). With
    g = exp(-scale H) / mean of exp(-scale H), A' = g(H_t) A_t + bonus exp(-future_scale H_{t+1}), where the last turn
    of a trajectory has no bonus. The batch's mean of A' is then subtracted.

    Args:
        advantages: (T,) as of GRPO, spread over turns.
        entropies: (T,) mean entropy of the tokens of each turn, in nats.
        lengths: (N,) turns of each trajectory.
        scale: k in the paper; how strongly unsure turns are damped.
        future_scale: k' in the paper; how strongly an unsure next turn lowers the bonus.
        bonus: zeta in the paper; weight of the bonus for turns that lead to a sure next turn.

    Returns:
        (T,)

    Raises:
        UsageError: for numbers that are not finite.
    """
    given, entropy = finite(advantages, "advantage", "turn"), finite(entropies, "entropy", "turn")
    if not given.size:
        return given.copy()
    unsure = (entropy - entropy.min()) / (entropy.max() - entropy.min() + EPSILON)
    factor = np.exp(-scale * unsure)
    future = np.append(np.exp(-future_scale * unsure[1:]), 0.0)
    ends = np.cumsum(lengths)
    future[ends[ends > 0] - 1] = 0.0
    modulated: Floats = given * factor / factor.mean() + bonus * future
    return modulated - float(modulated.mean())
