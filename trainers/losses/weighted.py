"""Policy losses of the form -w A log π with a weight w without gradient, and DPPO."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rollenv.trainers.losses.types import LossInput, TokenLoss, divergence, ratio_of, require, segment_sum


def reinforce(x: LossInput) -> TokenLoss:
    """-A log π (Williams, 1992); ROLL's "vanilla"."""
    return TokenLoss(-x.advantages * x.logprobs, {"kl": divergence(x.logprobs - x.proximal)})


def cispo(x: LossInput, *, floor: float = 0.0, cap: float = 5.0) -> TokenLoss:
    """-sg(clip(ρ, floor, cap)) A log π with ρ = π / π_old, CISPO (2506.13585, eq. 4 and 5).

    Unlike in PPO, clipped tokens keep a gradient. The paper leaves ``floor`` open and tunes ``cap``; 5 is ScaleRL's
    (2510.13786).

    Args:
        floor: smallest weight, at least 0.
        cap: largest weight of a token, above ``floor``.
    """
    require(0 <= floor < cap, f"cispo needs 0 <= floor < cap, not {floor} and {cap}")
    log_ratio = (x.logprobs - x.proximal).detach()
    ratio = ratio_of(log_ratio)
    weight = ratio.clamp(floor, cap)
    return TokenLoss(-weight * x.advantages * x.logprobs, _metrics(log_ratio, ratio, weight != ratio))


def topr(
    x: LossInput, *, positive: float = 1.0, negative: float = 1.0, level: Literal["token", "sequence"] = "sequence"
) -> TokenLoss:
    """-positive A log π where A > 0, -negative sg(min(ρ, 1)) A log π where A < 0, TOPR (2503.14286).

    Good samples are imitated without importance weights; bad ones count less as they become less likely. ρ is π over
    the sampler's policy: of the whole sample (the paper) or of the token (ROLL). The paper uses the sign of a
    trajectory's reward minus its baseline; this uses the sign of the token's advantage, which may differ between turns.

    Args:
        positive: weight for positive advantages, at least 0.
        negative: weight for negative advantages, at least 0.
        level: "sequence" for the ρ of the whole sample, "token" for that of the token.
    """
    require(level in ("token", "sequence"), f"topr's ratio is per token or sequence, not {level!r}")
    require(positive >= 0 and negative >= 0, f"topr's weights are at least 0, not {positive} and {negative}")
    per_token = (x.logprobs - x.behavior).detach()
    log_ratio = per_token if level == "token" else segment_sum(per_token, x.sequences)
    tapered = negative * log_ratio.clamp(max=0).exp()
    weight = torch.where(x.advantages < 0, tapered, positive)
    clipped = (x.advantages < 0) & (log_ratio > 0)
    return TokenLoss(-weight * x.advantages * x.logprobs, _metrics(per_token, ratio_of(log_ratio), clipped))


def dppo(
    x: LossInput,
    *,
    low: float = 0.2,
    high: float = 0.2,
    distance: Literal["tv", "kl"] = "tv",
    variant: Literal["ratio", "truncated"] = "ratio",
    square: float = 1e-3,
    cap: float = 20.0,
) -> TokenLoss:
    """PPO with a mask by divergence instead of the clip, DPPO (2602.04879, eq. 11 to 14).

    A token is dropped if the update would lead further away from the sampler's policy μ: A > 0, π > μ and
    D(μ || π) > ``high``, or A <= 0, π < μ and D > ``low``. D is that of two outcomes, the sampled token and any other.

    Args:
        low: bound for advantages of at most 0.
        high: bound for positive advantages.
        distance: "tv", |π - μ|; or "kl", for which the paper's bound is 0.05.
        variant: "ratio" is prime-rl's, -A ρ + ``square`` (log ρ)² with ρ = π / μ, the square for dropped tokens too;
            "truncated" is verl's, -A sg(min(ρ, ``cap``)) log π.
        square: weight of (log ρ)² in "ratio", at least 0.
    """
    require(variant in ("ratio", "truncated"), f"dppo's variants are ratio and truncated, not {variant!r}")
    require(
        low >= 0 and high >= 0 and square >= 0 and cap > 0, "dppo's low, high and square are at least 0, cap above 0"
    )
    log_ratio = x.logprobs - x.behavior
    ratio = ratio_of(log_ratio)
    kept = _inside(x, low, high, distance)
    if variant == "ratio":
        values = -x.advantages * ratio * kept + square * log_ratio**2
    else:
        values = -x.advantages * ratio.detach().clamp(max=cap) * kept * x.logprobs
    return TokenLoss(values, _metrics(log_ratio, ratio, ~kept))


def _inside(x: LossInput, low: float, high: float, kind: str) -> Tensor:
    require(kind in ("tv", "kl"), f"dppo's distance is tv or kl, not {kind!r}")
    logprobs = x.logprobs.detach()
    policy, sampler = logprobs.exp(), x.behavior.exp()
    if kind == "tv":
        moved = (policy - sampler).abs()
    else:
        tiny = torch.finfo(policy.dtype).tiny
        others = [(-torch.expm1(p)).clamp(min=tiny) for p in (x.behavior, logprobs)]
        moved = sampler * (x.behavior - logprobs) + others[0] * (others[0].log() - others[1].log())
    up = x.advantages > 0
    return ~torch.where(up, (policy > sampler) & (moved > high), (policy < sampler) & (moved > low))


def _metrics(log_ratio: Tensor, ratio: Tensor, clipped: Tensor) -> dict[str, Tensor]:
    return {"ratio": ratio.detach(), "clipped": clipped.to(ratio.dtype), "kl": divergence(log_ratio)}
