"""The settings of the tiny model, apart from it, so that reading a configuration does not import torch."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class TinySize(BaseModel):
    """The shape of the model; the default has about 0.7 million parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    hidden: int = Field(128, ge=1)
    layers: int = Field(3, ge=1)
    heads: int = Field(4, ge=1)
    intermediate: int = Field(384, ge=1)
    context: int = Field(512, ge=1)
    experts: int = Field(0, ge=0)
    """Experts of a mixture (Qwen3-MoE), each as wide as ``intermediate``; every token goes to two of them."""
    vocabulary: int = Field(1024, ge=1)
    """The most tokens; fewer if the corpus has no more to merge."""


class WarmUp(BaseModel):
    """The settings of the tiny model's imitation of the noisy expert."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    noise: float = Field(0.75, ge=0, le=1)
    """The share of random actions in the distribution that is imitated."""
    wandering: float | None = Field(None, ge=0, le=1)
    """The share of random actions while the demonstrations are played, by default ``noise``. More leads to more
    different states; what is learned there stays the same."""
    episodes: int = Field(14_000, ge=1)
    """Episodes of all environments together, distributed like training's tasks."""
    turns: int = Field(0, ge=0)
    """Turns that are shown of an episode; 0 for all. The last one is not played: with 1 no answer is judged,
    which saves the time that it would take."""
    steps: int = Field(700, ge=0)
    batch_size: int = Field(256, ge=1)
    lr: float = Field(1.5e-3, gt=0, allow_inf_nan=False)
