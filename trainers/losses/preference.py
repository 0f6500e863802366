"""Preference losses: pure functions of scores, one for each pair of trajectories (KTO: for each trajectory).

A score s is a weighted sum over a trajectory's response tokens of log π - log π_ref (SimPO: of log π); the margin of a
pair is s_preferred - s_rejected. ``P`` pairs, ``N`` trajectories.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid

from rollenv.trainers.losses.types import require


def dpo(margins: Tensor, *, beta: float = 0.1, smoothing: float = 0.0, robust: bool = False) -> Tensor:
    """-log σ(β m), DPO (arXiv 2305.18290, eq. 7); 0.6931 at π = π_ref.

    Args:
        margins: (P,)
        beta: strength of the penalty for leaving the reference, above 0.
        smoothing: the share ε of pairs that are labelled the wrong way, below 0.5. The loss is then
            -(1 - ε) log σ(β m) - ε log σ(-β m) (cDPO).
        robust: the unbiased loss under such noise, (-(1 - ε) log σ(β m) + ε log σ(-β m)) / (1 - 2 ε) (2403.00409,
            eq. 12).

    Returns:
        (P,)
    """
    require(beta > 0 and 0 <= smoothing < 0.5, f"dpo's beta is above 0 and smoothing below 0.5: {beta}, {smoothing}")
    right, wrong = logsigmoid(beta * margins), logsigmoid(-beta * margins)
    if robust:
        return (-(1 - smoothing) * right + smoothing * wrong) / (1 - 2 * smoothing)
    return -(1 - smoothing) * right - smoothing * wrong


def ipo(margins: Tensor, *, beta: float = 0.1) -> Tensor:
    """(m - 1 / (2 β))², IPO (arXiv 2310.12036, eq. 17), for scores that are means over tokens.

    Args:
        margins: (P,)
        beta: the larger, the smaller is the wanted margin; above 0.

    Returns:
        (P,)
    """
    require(beta > 0, f"ipo's beta is above 0, not {beta}")
    return (margins - 1 / (2 * beta)) ** 2


def simpo(margins: Tensor, *, beta: float = 2.0, gamma: float = 1.0) -> Tensor:
    """-log σ(β m - γ), SimPO (arXiv 2405.14734, eq. 6), for scores that are means over tokens, without a reference.

    Args:
        margins: (P,)
        gamma: the wanted reward margin.

    Returns:
        (P,)
    """
    require(beta > 0, f"simpo's beta is above 0, not {beta}")
    return -logsigmoid(beta * margins - gamma)


def kto(scores: Tensor, desirable: Tensor, baseline: float, *, beta: float = 0.1) -> Tensor:
    """1 - σ(β (s - z)) of a desirable trajectory, 1 - σ(β (z - s)) of another, KTO (arXiv 2402.01306, eq. 7).

    Args:
        scores: (N,)
        desirable: (N,) bool.
        baseline: z, an estimate of KL(π || π_ref) of at least 0, without a gradient.

    Returns:
        (N,), without the weights of the two kinds.
    """
    require(beta > 0, f"kto's beta is above 0, not {beta}")
    away = beta * (scores - baseline)
    return 1 - torch.sigmoid(torch.where(desirable, away, -away))


def dmpo_weights(turns: int, gamma: float) -> NDArray[np.float64]:
    """Weights of turns, γ^t (1 - γ^(T - t)) / (1 - γ^T), with which DPO becomes DMPO (arXiv 2406.14868, eq. 15).

    Args:
        turns: T, the number of turns of a trajectory.
        gamma: discount, above 0; at 1 the weights are (T - t) / T.

    Returns:
        (T,)
    """
    require(0 < gamma <= 1, f"dmpo's gamma is above 0 and at most 1, not {gamma}")
    t = np.arange(turns)
    if gamma == 1:
        return (turns - t) / max(turns, 1)
    return gamma**t * (1 - gamma ** (turns - t)) / (1 - gamma**turns)
