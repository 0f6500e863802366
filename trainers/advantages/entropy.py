"""Advantages of turns weighted by the policy's entropy."""

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

    Turn entropies are scaled to H from 0 to 1 over the batch (minimum to maximum, 1e-6 added to the range). With
    g = exp(-scale H) / mean of exp(-scale H), A' = g(H_t) A_t + bonus exp(-future_scale H_{t+1}), where the last turn
    of a trajectory has no bonus. The batch mean of A' is then subtracted.

    Args:
        advantages: (T,) advantage of each turn, such as GRPO's of its trajectory.
        entropies: (T,) mean entropy of the tokens of each turn, in nats.
        lengths: (N,) turns of each trajectory.
        scale: k in the paper; strength of the damping of turns with high entropy.
        future_scale: k' in the paper; how strongly the next turn's entropy lowers the bonus.
        bonus: zeta in the paper; weight of the bonus for turns whose next turn has low entropy.

    Returns:
        (T,)
    """
    plain, entropy = finite(advantages, "advantage", "turn"), finite(entropies, "entropy", "turn")
    if not plain.size:
        return plain.copy()
    scaled = (entropy - entropy.min()) / (entropy.max() - entropy.min() + EPSILON)
    factor = np.exp(-scale * scaled)
    future = np.append(np.exp(-future_scale * scaled[1:]), 0.0)
    ends = np.cumsum(lengths)
    future[ends[ends > 0] - 1] = 0.0
    modulated: Floats = plain * factor / factor.mean() + bonus * future
    return modulated - float(modulated.mean())
