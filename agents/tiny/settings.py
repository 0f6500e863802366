"""The settings of the tiny model, in a module without torch, so that configurations load quickly."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class TinySize(BaseModel):
    """The shape of the model; the default has about 0.7 million parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    hidden: int = Field(128, ge=1)
    layers: int = Field(3, ge=1)
    heads: int = Field(4, ge=1)
    intermediate: int = Field(384, ge=1)
    context: int = Field(512, ge=1)
    experts: int = Field(0, ge=0)
    """Number of experts (Qwen3-MoE), each of width ``intermediate``, two per token; 0 for a dense model."""
    patch: int = Field(28, ge=1)
    """Side in pixels of a part of a picture that is one token, by default a tile of a board."""
    vision_layers: int = Field(1, ge=1)
    """Number of layers that pictures pass first, of half the width; only for environments with pictures."""
    vocabulary: int = Field(1024, ge=1)
    """Maximum number of tokens; fewer if the corpus has no more merges."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.hidden % (2 * self.heads):
            raise ValueError(f"hidden={self.hidden} must be a multiple of {2 * self.heads}, twice the heads")
        return self


class WarmUp(BaseModel):
    """The settings of the tiny model's imitation of the noisy expert."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    noise: float = Field(0.75, ge=0, le=1)
    """The share of random actions in the imitated distribution."""
    wandering: float | None = Field(None, ge=0, le=1)
    """The share of random actions in playing the demonstrations, by default ``noise``. More of them visit more states,
    without changing the imitated distribution."""
    episodes: int = Field(14_000, ge=1)
    """Number of episodes of all environments, distributed like training tasks."""
    turns: int = Field(0, ge=0)
    """Maximum number of turns of an episode; 0 for all. The last one is not played: with 1 no environment takes a step,
    which saves time."""
    steps: int = Field(700, ge=0)
    batch_size: int = Field(256, ge=1)
    lr: float = Field(1.5e-3, gt=0, allow_inf_nan=False)
