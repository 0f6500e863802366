"""Inputs and outputs of losses, sums over samples and turns, and the weights that aggregate losses.

Arrays are flat: ``n`` sampled tokens of all samples, concatenated without padding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rollenv.core.errors import UsageError

Level = Literal["token", "turn", "sequence"]
Aggregation = Literal["token", "sequence", "prompt", "fixed"]

#: Bound of log-ratios, so that ratios and their gradients are finite in float32. There is no gradient beyond it.
MAX_LOG_RATIO = 60.0


@dataclass(slots=True)
class LossInput:
    """The sampled tokens of a micro-batch. All tensors have the shape (n,)."""

    logprobs: Tensor
    """Log-probabilities in the current policy, with a gradient."""
    proximal: Tensor
    """Log-probabilities in the policy at the start of the update."""
    behavior: Tensor
    """Log-probabilities in the sampler."""
    advantages: Tensor
    sequences: Tensor
    """int64 label, 0 to S - 1, of each token's sample. A sample is never split over micro-batches."""
    turns: Tensor
    """int64 label, 0 to K - 1, of each token's turn; unique in the micro-batch."""
    reference: Tensor | None = None
    """Log-probabilities in the frozen reference policy."""
    entropy: Tensor | None = None
    """Entropy of the distribution of each token, with a gradient."""


@dataclass(slots=True)
class TokenLoss:
    """The loss of each token; the total is ``sum(weights * values)`` with ``token_weights``."""

    values: Tensor
    """(n,) with a gradient."""
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """Each (n,), without a gradient; the log has the mean over all tokens of a batch."""


def segment_sum(values: Tensor, labels: Tensor) -> Tensor:
    """Sum over the tokens with the same label, repeated for each of them.

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
    """Mean over the tokens with the same label, repeated for each of them; shapes as in :func:`segment_sum`.

    Args:
        labels: (n,) int64 the group of each token, from 0.

    Returns:
        (n,)
    """
    return segment_sum(values, labels) / segment_sum(torch.ones_like(values), labels)


def level_mean(values: Tensor, x: LossInput, level: Level) -> Tensor:
    """Mean of ``values`` (n,) over each token, turn or sample.

    Args:
        x: the labels of turns and samples.
        level: "token" for the values themselves; "turn" or "sequence" for means.

    Returns:
        (n,)
    """
    require(level in ("token", "turn", "sequence"), f"ratios are per token, turn or sequence, not {level!r}")
    if level == "token":
        return values
    return segment_mean(values, x.turns if level == "turn" else x.sequences)


def ratio_of(log_ratio: Tensor) -> Tensor:
    """exp(``log_ratio``), bounded to be finite in float32."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def divergence(log_ratio: Tensor) -> Tensor:
    """ρ - log ρ - 1 of each token, ρ = π/μ, without a gradient; its mean over tokens of μ is KL(μ || π)."""
    log_ratio = log_ratio.detach()
    return ratio_of(log_ratio) - log_ratio - 1


def token_weights(kind: Aggregation, sequences: Any, prompts: Any = None, *, length: int | None = None) -> Any:
    """Weights that aggregate token losses to the loss of a mini-batch, ``sum(weights * values)``.

    - "token": 1 / n, the mean over tokens (DAPO, 2503.14476).
    - "sequence": 1 / (S |o|), the mean over samples of the mean over their tokens (GRPO, 2402.03300).
    - "prompt": 1 / (P n_p), the mean over prompts of the mean over their n_p tokens (ScaleRL, 2510.13786).
    - "fixed": 1 / (S length), the sum over tokens by a constant (Dr. GRPO, 2503.20783).

    Compute them over all tokens of the mini-batch on all ranks, then split: the gradients of micro-batches and ranks
    add up exactly, also without the samples whose advantage is 0.

    Args:
        sequences: (n,) integer label of each token's sample, NumPy or torch. Samples without tokens do not count.
        prompts: (n,) integer label of each token's prompt, required for "prompt".
        length: a constant number of tokens, such as the maximum; only for "fixed", which requires it.

    Returns:
        (n,) float64, NumPy or torch and on the device of ``sequences``. All but "fixed" sum to 1.
    """
    require(kind in ("token", "sequence", "prompt", "fixed"), f"{kind!r} is not token, sequence, prompt or fixed")
    require(kind != "prompt" or prompts is not None, "a mean over prompts needs each token's prompt")
    require((kind == "fixed") == (length is not None), "'fixed' needs length, and only 'fixed'")
    require(length is None or length > 0, f"length is at least 1, not {length}")
    weights = _weights(kind, _array(sequences), _array(prompts) if kind == "prompt" else None, length)
    if isinstance(sequences, torch.Tensor):
        return torch.from_numpy(weights).to(sequences.device)
    return weights


def _weights(kind: str, sequences: Any, prompts: Any, length: int | None) -> Any:
    n = len(sequences)
    if kind == "token":
        return np.full(n, 1 / max(n, 1))
    _, label, count = np.unique(sequences if prompts is None else prompts, return_inverse=True, return_counts=True)
    if kind == "fixed":
        return np.full(n, 1 / (max(len(count), 1) * (length or 1)))
    return 1 / (len(count) * count[label].astype(np.float64))


def _array(labels: Any) -> Any:
    return labels.cpu().numpy() if isinstance(labels, torch.Tensor) else np.asarray(labels)


def require(condition: bool, message: str) -> None:
    """Check a setting."""
    if not condition:
        raise UsageError(message)
