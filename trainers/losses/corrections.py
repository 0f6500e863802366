"""Importance weights that correct for a sampler μ that differs from the trained policy π.

ρ = π / μ per token, where π is the proximal policy, with constant weights during an update, or the current one
(``policy="current"``). Weights carry no gradient; ``corrected(loss, correction)`` applies them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from rollenv.trainers.losses.types import LossInput, TokenLoss, divergence, ratio_of, require, segment_mean, segment_sum

#: The policy in the ratio to the sampler: "proximal" is constant during an update, "current" changes with it.
Policy = Literal["proximal", "current"]


@dataclass(slots=True)
class Correction:
    """Weights of tokens, and their metrics.

    Metrics are per token: ``masked`` and ``clipped`` (shares when averaged), ``mismatch_kl`` (ρ - log ρ - 1),
    ``weight`` and ``weight_squared``: the effective sample size is mean(weight)² / mean(weight_squared) of the tokens.
    """

    weights: Tensor
    """(n,) without a gradient."""
    metrics: dict[str, Tensor]


def tis(x: LossInput, *, cap: float | None = 2.0, floor: float = 0.0, policy: Policy = "proximal") -> Correction:
    """w = max(min(ρ, cap), floor), truncated importance sampling (Yao et al., 2025, "Your efficient RL framework ...").

    With ``ppo_clip``, which clips around the proximal policy, this is decoupled PPO (2110.00641), exactly with
    ``cap=None``.

    Args:
        cap: largest weight, above ``floor``; None for no limit.
        floor: smallest weight, at least 0.
    """
    require(cap is None or 0 <= floor < cap, f"tis needs 0 <= floor < cap, not {floor} and {cap}")
    log_ratio = _log_ratio(x, policy)
    ratio = ratio_of(log_ratio)
    weights = ratio.clamp(min=floor, max=cap)
    return _correction(weights, log_ratio, clipped=weights != ratio)


def seq_tis(x: LossInput, *, cap: float = 2.0, policy: Policy = "proximal") -> Correction:
    """w = min(product of ρ over the sample, cap), the unbiased form of :func:`tis` before truncation.

    Args:
        cap: largest weight of a sample, above 0.
    """
    require(cap > 0, f"seq_tis needs a cap above 0, not {cap}")
    log_ratio = _log_ratio(x, policy)
    product = segment_sum(log_ratio, x.sequences)
    return _correction(product.clamp(max=math.log(cap)).exp(), log_ratio, clipped=product > math.log(cap))


def mis(
    x: LossInput, *, cap: float = 3.0, level: Literal["token", "sequence"] = "sequence", policy: Policy = "proximal"
) -> Correction:
    """w = ρ where ρ <= cap, else 0, masked importance sampling; ρ of the token or multiplied over the sample.

    Args:
        cap: the largest ρ that is not masked, above 0.
        level: "token" for the ρ of each token, "sequence" for the product over its sample.
    """
    require(cap > 0, f"mis needs a cap above 0, not {cap}")
    require(level in ("token", "sequence"), f"mis is by token or sequence, not {level!r}")
    log_ratio = _log_ratio(x, policy)
    used = log_ratio if level == "token" else segment_sum(log_ratio, x.sequences)
    dropped = used > math.log(cap)
    weights = used.clamp(max=math.log(cap)).exp()
    return _correction(weights, log_ratio, dropped=dropped)


def geo(x: LossInput, *, band: float = 1e-3, policy: Policy = "proximal") -> Correction:
    """w = 1 where exp(mean of log ρ over the sample) lies in 1 - band .. 1 + band, else 0 (geometric mask).

    Combine it with token weights: ``combine(geo(x), tis(x))``.

    Args:
        band: maximum distance of a sample's mean ratio from 1, above 0.
    """
    require(band > 0, f"geo needs a band above 0, not {band}")
    log_ratio = _log_ratio(x, policy)
    mean = ratio_of(segment_mean(log_ratio, x.sequences))
    return _correction(torch.ones_like(mean), log_ratio, dropped=(mean < 1 - band) | (mean > 1 + band))


def icepop(x: LossInput, *, low: float = 0.5, high: float = 5.0, policy: Policy = "proximal") -> Correction:
    """w = ρ where low <= ρ <= high, else 0, IcePop (2510.18855).

    Args:
        low: the smallest ρ that is not masked, at least 0.
        high: the largest ρ that is not masked, above ``low``.
    """
    require(0 <= low < high, f"icepop needs 0 <= low < high, not {low} and {high}")
    log_ratio = _log_ratio(x, policy)
    ratio = ratio_of(log_ratio)
    return _correction(ratio, log_ratio, dropped=(ratio < low) | (ratio > high))


def opsm(x: LossInput, *, delta: float = 1e-4, policy: Policy = "current") -> Correction:
    """w = 0 for tokens with A < 0 in samples where the mean of log μ - log π is above delta, else 1.

    Off-policy sequence masking (DeepSeek-V3.2, 2512.02556, eq. 9, which leaves delta open): do not learn from mistakes
    that the policy would no longer make.

    Args:
        delta: maximum mean of log μ - log π of a sample, at least 0.
    """
    require(delta >= 0, f"opsm needs a delta of at least 0, not {delta}")
    log_ratio = _log_ratio(x, policy)
    away = segment_mean(-log_ratio, x.sequences) > delta
    return _correction(torch.ones_like(log_ratio), log_ratio, dropped=away & (x.advantages < 0))


def interpolated(logprobs: Tensor, behavior: Tensor, staleness: Tensor) -> Tensor:
    """Estimate the proximal policy's log-probabilities without another forward pass: A-3PO (2512.06547).

    With d updates since a token was sampled, log π_prox = log μ + d / (d + 1) (log π - log μ): an interpolation
    between the sampler and the current policy.

    Args:
        logprobs: (n,) log-probabilities in the current policy.
        behavior: (n,) log-probabilities in the sampler.
        staleness: (n,) d, policy versions since the token was sampled, from 0.

    Returns:
        (n,) without a gradient.
    """
    return behavior + staleness / (staleness + 1) * (logprobs.detach() - behavior)


def combine(*corrections: Correction) -> Correction:
    """Multiply weights. A token counts as masked or clipped if it is in any of them."""
    weights = reduce(torch.mul, [c.weights for c in corrections])
    shares = {
        name: reduce(torch.maximum, [c.metrics[name] for c in corrections])
        for name in ("masked", "clipped", "mismatch_kl")
    }
    return Correction(weights, shares | _moments(weights))


def corrected(loss: TokenLoss, correction: Correction) -> TokenLoss:
    """Multiply a loss by the weights of a correction; the correction's metrics get the prefix "correction/"."""
    metrics = {f"correction/{name}": values for name, values in correction.metrics.items()}
    return TokenLoss(loss.values * correction.weights, loss.metrics | metrics)


def _log_ratio(x: LossInput, policy: Policy) -> Tensor:
    require(policy in ("proximal", "current"), f"the policy of a correction is proximal or current, not {policy!r}")
    return ((x.proximal if policy == "proximal" else x.logprobs) - x.behavior).detach()


def _correction(
    weights: Tensor, log_ratio: Tensor, *, dropped: Tensor | None = None, clipped: Tensor | None = None
) -> Correction:
    none = torch.zeros_like(log_ratio)
    if dropped is not None:
        weights = torch.where(dropped, 0.0, weights)
    metrics = {
        "masked": none if dropped is None else dropped.to(none.dtype),
        "clipped": none if clipped is None else clipped.to(none.dtype),
        "mismatch_kl": divergence(log_ratio),
    }
    return Correction(weights, metrics | _moments(weights))


def _moments(weights: Tensor) -> dict[str, Tensor]:
    """Return weights and their squares in float64: squares of unlimited weights may overflow float32."""
    return {"weight": weights.double(), "weight_squared": weights.double() ** 2}
