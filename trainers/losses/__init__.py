"""Losses: pure functions from log-probabilities of flat tokens to one number per token.

A training step computes a policy loss, optionally corrects it, adds other losses, and sums them with weights::

    loss = corrected(ppo_clip(x, high=0.28), tis(x))
    total = (weights * loss.values).sum()  # weights of token_weights, over the whole mini-batch
"""

from rollenv.trainers.losses.corrections import (
    Correction,
    combine,
    corrected,
    geo,
    icepop,
    interpolated,
    mis,
    opsm,
    seq_tis,
    tis,
)
from rollenv.trainers.losses.distill import distill, echo, imitation, likelihood
from rollenv.trainers.losses.kl import AdaptiveKL, kl_estimate, kl_loss
from rollenv.trainers.losses.policy import entropy_bonus, gmpo, gspo, gspo_token, ppo_clip, sapo
from rollenv.trainers.losses.types import LossInput, TokenLoss, divergence, segment_mean, segment_sum, token_weights
from rollenv.trainers.losses.value import value_loss
from rollenv.trainers.losses.weighted import cispo, dppo, reinforce, topr

__all__ = [
    "AdaptiveKL",
    "Correction",
    "LossInput",
    "TokenLoss",
    "cispo",
    "combine",
    "corrected",
    "distill",
    "divergence",
    "dppo",
    "echo",
    "entropy_bonus",
    "geo",
    "gmpo",
    "gspo",
    "gspo_token",
    "icepop",
    "imitation",
    "interpolated",
    "kl_estimate",
    "kl_loss",
    "likelihood",
    "mis",
    "opsm",
    "ppo_clip",
    "reinforce",
    "sapo",
    "segment_mean",
    "segment_sum",
    "seq_tis",
    "tis",
    "token_weights",
    "topr",
    "value_loss",
]
