"""Policy losses: tensors in, a :class:`Loss` out. All tensors have the shape (rows, response tokens)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class Loss:
    """``value`` is to be minimised; the rest is for looking at."""

    value: Tensor
    clip_fraction: float
    ratio: float
    """Mean of the importance ratio: 1 as long as the policy is the one that sampled."""
    kl: float
    """Estimate of KL(sampling policy || current policy), k3 of Schulman's 'Approximating KL divergence'."""


def ppo_clip(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    low: float = 0.2,
    high: float = 0.2,
    tokens: float | None = None,
) -> Loss:
    """Clipped policy gradient, mean over tokens (PPO, arXiv 1707.06347, eq. 7; ``high`` above ``low``: DAPO).

    Args:
        logprobs: of the response tokens under the current policy.
        old_logprobs: the same under the policy that sampled them.
        advantages: of every token.
        mask: 1 where there is a token.
        tokens: what the sum over tokens is divided by, where it is not the number of tokens here: rows whose advantage
            is 0 count among them also if they were left out.
    """
    log_ratio = (logprobs - old_logprobs) * mask
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - low, 1 + high)
    objective = torch.minimum(ratio * advantages, clipped * advantages)
    with torch.no_grad():
        clip_fraction = token_mean(((ratio * advantages) > (clipped * advantages)).float(), mask).item()
        kl = token_mean(ratio - 1 - log_ratio, mask).item()
    return Loss(-token_mean(objective, mask, tokens), clip_fraction, token_mean(ratio.detach(), mask).item(), kl)


def token_mean(values: Tensor, mask: Tensor, tokens: float | None = None) -> Tensor:
    """The mean over all tokens of all rows, or their sum divided by ``tokens``."""
    return (values * mask).sum() / (mask.sum().clamp(min=1) if tokens is None else tokens)
