"""Inputs and outputs of losses, and the sums over samples and turns that they share.

Everything is flat: ``n`` tokens that the policy drew, of all samples one after another, without padding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from rollenv.core import UsageError

Level = Literal["token", "turn", "sequence"]

#: Ratios are exp of a log-ratio held within this bound, so that float32 and its gradients stay finite. Beyond it a
#: ratio has no gradient.
MAX_LOG_RATIO = 60.0


@dataclass(slots=True)
class LossInput:
    """The drawn tokens of a micro-batch. All tensors have the shape (n,); only ``logprobs`` carries a gradient."""

    logprobs: Tensor
    """Log-probabilities under the policy that is being updated, with a gradient."""
    proximal: Tensor
    """Log-probabilities under the policy at the start of the update."""
    behavior: Tensor
    """Log-probabilities under the sampler that drew the tokens."""
    advantages: Tensor
    sequences: Tensor
    """int64 label, 0 to S - 1, of the sample a token belongs to. A sample is never split over micro-batches."""
    turns: Tensor
    """int64 label, 0 to K - 1, of the token's turn; unique in the micro-batch."""
    reference: Tensor | None = None
    """Log-probabilities under a frozen policy to stay close to."""
    entropy: Tensor | None = None
    """Entropy of the distribution each token was drawn from, with a gradient."""


@dataclass(slots=True)
class TokenLoss:
    """One number per token, to be minimised: the loss is ``sum(weights * values)`` with ``token_weights``."""

    values: Tensor
    """(n,) with a gradient."""
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """Each (n,), without a gradient; what is logged is the mean over all tokens of a batch."""


def segment_sum(values: Tensor, labels: Tensor) -> Tensor:
    """Sum over the tokens that share a label, given back to each of them.

    Args:
        labels: (n,) int64 the group of each token, from 0.

    Returns:
        (n,)
    """
    if len(values) == 0:
        return values
    totals = values.new_zeros(int(labels.max()) + 1).index_add(0, labels, values)
    return totals[labels]


def segment_mean(values: Tensor, labels: Tensor) -> Tensor:
    """Mean over the tokens that share a label, given back to each of them; shapes as in :func:`segment_sum`.

    Args:
        labels: (n,) int64 the group of each token, from 0.

    Returns:
        (n,)
    """
    return segment_sum(values, labels) / segment_sum(torch.ones_like(values), labels)


def level_mean(values: Tensor, x: LossInput, level: Level) -> Tensor:
    """Mean of ``values`` (n,) over each token, turn or sample.

    Args:
        x: the tokens; its labels of turns and samples are used.
        level: "token" leaves the values as they are; "turn" or "sequence" takes the mean there.

    Returns:
        (n,)

    Raises:
        UsageError: there is no such level.
    """
    require(level in ("token", "turn", "sequence"), f"ratios are by token, turn or sequence, not {level!r}")
    if level == "token":
        return values
    return segment_mean(values, x.turns if level == "turn" else x.sequences)


def ratio_of(log_ratio: Tensor) -> Tensor:
    """The ratio, exp(``log_ratio``), finite in float32."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def divergence(log_ratio: Tensor) -> Tensor:
    """ρ - log ρ - 1 of each token, ρ = π/μ: not negative; its mean over tokens of μ is KL(μ || π). No gradient."""
    log_ratio = log_ratio.detach()
    return ratio_of(log_ratio) - log_ratio - 1


def require(condition: bool, message: str) -> None:
    """Refuse a setting.

    Raises:
        UsageError: ``condition`` does not hold.
    """
    if not condition:
        raise UsageError(message)
