"""Inputs and outputs of losses, the sums over samples and turns that they share, and the weights that add them up.

Everything is flat: ``n`` tokens that the policy drew, of all samples one after another, without padding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rollenv.core import UsageError

Level = Literal["token", "turn", "sequence"]
Aggregation = Literal["token", "sequence", "prompt", "fixed"]

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


def token_weights(kind: Aggregation, sequences: Any, prompts: Any = None, *, length: int | None = None) -> Any:
    """Weights with which losses of tokens add up to the loss of a mini-batch: ``sum(weights * values)``.

    - "token": 1 / n, the mean over tokens (DAPO, 2503.14476).
    - "sequence": 1 / (S |o|), the mean over samples of the mean over their tokens (GRPO, 2402.03300).
    - "prompt": 1 / (P n_p), the mean over prompts of the mean over their n_p tokens (ScaleRL, 2510.13786).
    - "fixed": 1 / (S length), the sum over tokens by a constant (Dr. GRPO, 2503.20783).

    Compute them once over all tokens of the mini-batch on all ranks, then cut: micro-batches, ranks, and batches
    without the samples whose advantage is 0, add up to exactly the same gradient.

    Args:
        sequences: (n,) integer label of each token's sample, NumPy or torch. A sample without tokens counts nowhere.
        prompts: (n,) integer label of each token's prompt; "prompt" needs it.
        length: a constant number of tokens, such as the longest allowed; "fixed" needs it, others refuse it.

    Returns:
        (n,) float64, of the kind and on the device of ``sequences``. All but "fixed" sum to 1.

    Raises:
        UsageError: there is no such kind, or what it needs is missing.
    """
    require(kind in ("token", "sequence", "prompt", "fixed"), f"{kind!r} is not token, sequence, prompt or fixed")
    require(kind != "prompt" or prompts is not None, "a mean over prompts needs each token's prompt")
    require((kind == "fixed") == (length is not None), "length goes with 'fixed', and only with it")
    require(length is None or length > 0, f"length is at least 1, not {length}")
    weights = _weights(kind, _array(sequences), _array(prompts) if kind == "prompt" else None, length)
    return torch.from_numpy(weights).to(sequences.device) if isinstance(sequences, torch.Tensor) else weights


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
    """Refuse a setting.

    Raises:
        UsageError: ``condition`` does not hold.
    """
    if not condition:
        raise UsageError(message)
