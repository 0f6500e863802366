"""Sampling of tokens from logits, for a batch of requests with different settings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from rollenv.agents.engines.base import Sampling


def distributions(logits: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Apply temperature, then top-k, top-p and min-p, in the order and with the rules of transformers.

    Returns:
        (requests, vocabulary) normalised log-probabilities; -inf for excluded tokens, and NaN in rows with invalid
        logits.
    """
    scale = torch.tensor([s.temperature or 1.0 for s in samplings], device=logits.device)[:, None]
    logprobs = (logits.float() / scale).log_softmax(-1)
    rows = [i for i, s in enumerate(samplings) if s.narrows]
    if rows:
        index = torch.tensor(rows, device=logits.device)
        logprobs[index] = _narrow_probabilities(logprobs[index], [samplings[i] for i in rows])
    return logprobs


def _narrow_probabilities(logprobs: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, device=logprobs.device)[:, None]

    size = logprobs.shape[-1]
    ordered, index = logprobs.sort(dim=-1, descending=True, stable=True)
    last = torch.tensor([min(s.top_k or size, size) - 1 for s in samplings], device=logprobs.device)[:, None]
    keep = ordered >= ordered.gather(1, last)  # all that are as likely as the last of the k
    probs = torch.where(keep, ordered, -torch.inf).softmax(-1)
    # Rounding may bring the sum to 1 before the end, but top_p = 1 means all.
    keep &= probs.cumsum(-1) - probs < column([s.top_p if s.top_p < 1 else math.inf for s in samplings])
    least = column([math.log(s.min_p) if s.min_p else -math.inf for s in samplings])
    keep &= ordered >= ordered[:, :1] + least
    keep[:, 0] = True
    kept = torch.full_like(logprobs, -torch.inf).scatter(-1, index, torch.where(keep, ordered, -torch.inf))
    return kept.log_softmax(-1)


def draw(logprobs: torch.Tensor, samplings: Sequence[Sampling], uniform: Sequence[float]) -> torch.Tensor:
    """Sample a token for every request.

    Args:
        uniform: one random number in [0, 1) per request.

    Returns:
        (requests,) token ids.
    """
    cumulative = logprobs.exp().cumsum(-1)
    at = torch.tensor(uniform, device=logprobs.device)[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, at.to(cumulative.dtype), right=True)[:, 0]
    tokens.clamp_(max=logprobs.shape[-1] - 1)
    # Rounding may select an excluded token after the last allowed one.
    drawable = logprobs.gather(1, tokens[:, None])[:, 0].isfinite()
    greedy = torch.tensor([not s.temperature for s in samplings], device=logprobs.device)
    return torch.where(greedy | ~drawable, logprobs.argmax(-1), tokens)
