"""Losses of distillation and imitation."""

from __future__ import annotations

import torch
from torch import Tensor

from rollenv.trainers.losses.types import LossInput, TokenLoss, divergence, ratio_of, require


def distill(x: LossInput, teacher: Tensor, *, low: float | None = 0.2, square: float = 1e-3) -> TokenLoss:
    """-sg(log π_T - log π) ρ + square (log ρ)² with ρ = π / μ: the reverse KL to a teacher as advantage of each token.

    On-policy distillation (Lu, 2025, in prime-rl's form). The teacher is another model, or the policy itself with
    feedback, a successful sibling's answer (SDPO, 2601.20802) or a demonstration in its context.

    Args:
        x: the tokens; the advantages are not used.
        teacher: (n,) log-probabilities of the same tokens in the teacher.
        low: drop tokens where π - μ is below -``low``; None drops none.
    """
    require(low is None or low >= 0, f"distill's low is at least 0, not {low}")
    require(square >= 0, f"distill's square is at least 0, not {square}")
    log_ratio = x.logprobs - x.behavior
    ratio = ratio_of(log_ratio)
    with torch.no_grad():
        dropped = (
            torch.zeros_like(ratio) if low is None else (x.logprobs.exp() - x.behavior.exp() < -low).to(ratio.dtype)
        )
        gap = teacher - x.logprobs
    metrics = {"reverse_kl": -gap, "clipped": dropped, "ratio": ratio.detach(), "kl": divergence(log_ratio)}
    return TokenLoss(-gap * ratio * (1 - dropped) + square * log_ratio**2, metrics)


def imitation(logprobs: Tensor) -> TokenLoss:
    """-log π of tokens, (n,): supervised fine-tuning."""
    return TokenLoss(-logprobs, {"nll": -logprobs.detach()})


def likelihood(x: LossInput) -> TokenLoss:
    """-A log π, as :func:`imitation` with weights A, whose metric is the mean over tokens with a weight."""
    return TokenLoss(-x.advantages * x.logprobs, {"nll": -x.logprobs.detach()})


def echo(logprobs: Tensor, coefficient: float = 0.05) -> TokenLoss:
    """-coefficient log π of observation tokens, an auxiliary loss (ECHO, 2605.24517).

    Args:
        logprobs: (n,) of observation tokens only, also for ``token_weights``.
    """
    return TokenLoss(-coefficient * logprobs, {"observation_nll": -logprobs.detach()})
