"""Weights of tokens, by which their losses are summed to one number."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

from rollenv.trainers.losses.types import require

Aggregation = Literal["token", "sequence", "prompt", "fixed"]


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
