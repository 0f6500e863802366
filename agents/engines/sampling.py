"""Sampling of tokens from logits, for a batch of requests with different settings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from rollenv.agents.engines.base import Sampling

#: Tokens whose probabilities are summed first: a running sum over a whole vocabulary is slow on a CPU.
_BLOCK = 128


def distributions(logits: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Apply temperature, then top-k, top-p and min-p, in the order and with the rules of transformers.

    Returns:
        (requests, vocabulary) normalised log-probabilities; -inf for excluded tokens, and NaN in rows with invalid
        logits.
    """
    logits, scale = logits.float(), [s.temperature or 1.0 for s in samplings]
    if scale.count(1.0) < len(scale):
        logits = logits / torch.tensor(scale, device=logits.device)[:, None]
    logprobs = logits.log_softmax(-1)
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
    size = logprobs.shape[-1]
    blocks = F.pad(logprobs.exp(), (0, -size % _BLOCK)).unflatten(-1, (-1, _BLOCK))
    sums = blocks.sum(-1).cumsum(-1)
    at = torch.tensor(uniform, device=logprobs.device)[:, None].to(sums.dtype) * sums[:, -1:]
    block = torch.searchsorted(sums, at, right=True).clamp_(max=sums.shape[-1] - 1)
    chosen = blocks.gather(1, block[..., None].expand(-1, -1, _BLOCK))[:, 0].cumsum(-1)
    within = at - sums.gather(1, block) + chosen[:, -1:]
    tokens = (block * _BLOCK + torch.searchsorted(chosen, within, right=True))[:, 0].clamp_(max=size - 1)
    # Rounding may select an excluded token after the last allowed one.
    drawable = logprobs.gather(1, tokens[:, None])[:, 0].isfinite()
    likeliest = ~drawable | torch.tensor([not s.temperature for s in samplings], device=logprobs.device)
    return torch.where(likeliest, logprobs.argmax(-1), tokens) if likeliest.any() else tokens
