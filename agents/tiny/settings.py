"""The settings of the tiny model, apart from it, so that reading a configuration does not import torch."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class TinySize(BaseModel):
    """The shape of the model; the default has about 0.7 million parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hidden: int = 128
    layers: int = 3
    heads: int = 4
    intermediate: int = 384
    context: int = 512
    vocabulary: int = 1024
    """The most tokens; fewer if the corpus has no more to merge."""


class WarmUp(BaseModel):
    """How the tiny model imitates the noisy expert."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    noise: float = 0.75
    """The share of the expert's actions that are replaced by random ones."""
    episodes: int = 14_000
    steps: int = 700
    batch_size: int = 256
    lr: float = 1.5e-3
