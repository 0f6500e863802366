"""Policy losses with a clipped or gated ratio ρ = π / π_old, π_old the proximal policy.

A is the advantage of a token. Losses are per token: :func:`~rollenv.trainers.losses.types.token_weights` aggregates
them over tokens, samples or prompts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rollenv.trainers.losses.types import (
    Level,
    LossInput,
    TokenLoss,
    divergence,
    level_mean,
    ratio_of,
    require,
    segment_mean,
)


def ppo_clip(
    x: LossInput, *, low: float = 0.2, high: float = 0.2, dual: float | None = None, ratio: Level = "token"
) -> TokenLoss:
    """-min(ρ A, clip(ρ, 1 - low, 1 + high) A), PPO (arXiv 1707.06347, eq. 7).

    ``high`` above ``low`` is clip-higher (DAPO, 2503.14476). ``dual`` = c bounds the loss of tokens with A < 0 by
    -c A (dual clip, 1912.09729, eq. 5). ``ratio`` is that of the token, or exp of the mean log-ratio over its turn
    (ST-PPO; ROLL's segments) or its sample (GSPO), shared by all of their tokens with gradients to all.

    Args:
        low: the ratio is clipped below at 1 - ``low``, 0 to 1.
        high: the ratio is clipped above at 1 + ``high``.
        dual: bound c of the dual clip, above 1; None for no dual clip.
        ratio: "token", "turn" or "sequence", the unit of the ratio.
    """
    return _clipped(x, level_mean(x.logprobs - x.proximal, x, ratio), low, high, dual)


def gspo(x: LossInput, *, low: float = 3e-4, high: float = 4e-4) -> TokenLoss:
    """-min(s A, clip(s, 1 - low, 1 + high) A), s = exp(mean of log ρ over the sample), GSPO (2507.18071, eq. 5 and 7).

    Use it with sequence means: ``token_weights("sequence", ...)``.

    Args:
        low: s is clipped below at 1 - ``low``, 0 to 1.
        high: s is clipped above at 1 + ``high``, at least 0.
    """
    return ppo_clip(x, low=low, high=high, ratio="sequence")


def gspo_token(x: LossInput, *, low: float = 3e-4, high: float = 4e-4) -> TokenLoss:
    """GSPO with s_t = sg(s) π_t / sg(π_t): :func:`gspo`'s value with per-token gradients (2507.18071, eq. 13).

    Equal to :func:`gspo` if all tokens of a sample have the same advantage and weight.

    Args:
        low: s is clipped below at 1 - ``low``, 0 to 1.
        high: s is clipped above at 1 + ``high``, at least 0.
    """
    log_ratio = segment_mean((x.logprobs - x.proximal).detach(), x.sequences)
    return _clipped(x, log_ratio + x.logprobs - x.logprobs.detach(), low, high, None)


def gmpo(x: LossInput, *, low: float = 0.4, high: float = 0.4) -> TokenLoss:
    """-A exp(mean over the sample of the pessimistic log-ratio), GMPO (2507.20673).

    A token's pessimistic log-ratio is min(log ρ, clip(log ρ, -low, high)) for A > 0, and max of the two for A < 0. The
    paper has one advantage per sample; with several, each token uses its own A as the factor and for the sign.

    Args:
        low: log-ratios are clipped below at -``low``, at least 0.
        high: log-ratios are clipped above at ``high``, at least 0.
    """
    require(low >= 0 and high >= 0, f"gmpo clips log-ratios to -low .. high, both at least 0, not {low} and {high}")
    log_ratio, sign = x.logprobs - x.proximal, x.advantages.sign()
    held = log_ratio.clamp(-low, high)
    kept = sign * torch.minimum(sign * log_ratio, sign * held)
    ratio = ratio_of(segment_mean(kept, x.sequences))
    return TokenLoss(-x.advantages * ratio, _metrics(log_ratio, ratio, sign * held < sign * log_ratio))


def sapo(x: LossInput, *, positive: float = 1.0, negative: float = 1.05) -> TokenLoss:
    """-A 4/τ sigmoid(τ (ρ - 1)), τ = ``positive`` for A > 0, else ``negative``, SAPO (2511.20347).

    A soft gate instead of the clip: its slope is 1 at ρ = 1 and falls on both sides. The metric "clipped" is 1 minus
    the slope.

    Args:
        positive: τ for positive advantages, above 0. The larger τ, the narrower the gate.
        negative: τ for other advantages, above 0.
    """
    require(positive > 0 and negative > 0, f"sapo's temperatures are above 0, not {positive} and {negative}")
    tau = torch.full_like(x.logprobs, negative).masked_fill(x.advantages > 0, positive)
    log_ratio = x.logprobs - x.proximal
    ratio = ratio_of(log_ratio)
    gate = torch.sigmoid(tau * (ratio - 1))
    return TokenLoss(-x.advantages * 4 / tau * gate, _metrics(log_ratio, ratio, 1 - 4 * gate * (1 - gate)))


def entropy_bonus(x: LossInput, coefficient: float) -> TokenLoss:
    """-``coefficient`` H, to be added to a policy loss.

    Args:
        coefficient: weight of the entropy H; negative values penalise entropy.
    """
    entropy = x.entropy
    require(entropy is not None, "an entropy bonus needs the policy's entropy: compute it with the log-probabilities")
    assert entropy is not None
    return TokenLoss(-coefficient * entropy, {"entropy": entropy.detach()})


def _clipped(x: LossInput, log_ratio: Tensor, low: float, high: float, dual: float | None) -> TokenLoss:
    require(0 <= low <= 1 and high >= 0, f"a clip needs low from 0 to 1 and high of at least 0, not {low} and {high}")
    require(dual is None or dual > 1, f"a dual clip is above 1, not {dual}")
    ratio = ratio_of(log_ratio)
    free, held = ratio * x.advantages, ratio.clamp(1 - low, 1 + high) * x.advantages
    objective, clipped = torch.minimum(free, held), held < free
    if dual is not None:
        floor = torch.where(x.advantages < 0, dual * x.advantages, -torch.inf)
        objective, clipped = torch.maximum(objective, floor), clipped | (objective < floor)
    return TokenLoss(-objective, _metrics(log_ratio, ratio, clipped))


def _metrics(log_ratio: Tensor, ratio: Tensor, clipped: Tensor) -> dict[str, Tensor]:
    return {"ratio": ratio.detach(), "clipped": clipped.detach().to(ratio.dtype), "kl": divergence(log_ratio)}
