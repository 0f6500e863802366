"""Settings of batches that are played: a section with variants, chosen by ``kind``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import AliasChoices, Field, field_validator

from rollenv.core.errors import UsageError
from rollenv.rollout.records.where import Where
from rollenv.trainers.config.section import HomePath, Section, Share, Weight, unless


class CollectConfig(Section):
    """Play a batch, train on it, play the next."""

    kind: Literal["collect"] = "collect"


class StreamConfig(Section):
    """Play while training. The order of episodes then depends on timing: a resumed run continues with its unfinished
    tasks, but does not give the same numbers."""

    kind: Literal["stream"] = "stream"
    max_staleness: int = Field(1, ge=0)
    """Maximum number of updates between sampling a token and training on it."""
    colocated: bool = False
    """Player and trainer share a device: sampling pauses during an update."""


class TailConfig(Section):
    """Set aside tasks that are too slow for a batch, and play them together once there are enough of them. Needs
    ``rollout.extra_groups``."""

    kind: Literal["tail"] = "tail"

    def problems(self, run: Any) -> Iterator[str]:
        if not run.rollout.extra_groups:
            yield "batches.kind=tail needs more groups than a batch has; set rollout.extra_groups"


#: Estimators that look at one group at a time.
WITHIN_GROUPS = ("grpo", "rloo", "maxrl", "reinforce", "gigpo", "hgpo", "mt_grpo", "step_reinforce")


class EarlyConfig(Section):
    """Compute the gradients of complete groups while the last episodes of the batch are played, all with the same
    weights (RollPacker's stream trainer, arXiv 2509.21009). The gradient is that of ``collect``; each batch is one
    optimizer step. Needs 8 more bytes of memory for each trained parameter."""

    kind: Literal["early"] = "early"

    def problems(self, run: Any) -> Iterator[str]:
        def refuse(key: str, why: str, instead: str) -> str:
            return f"batches.kind=early cannot train with {key}, {why}; {instead}"

        name, algorithm = run.algorithm.name, run.algorithm
        whole, leave = "which needs the whole batch", "leave it out, or take batches.kind=collect"
        if name not in WITHIN_GROUPS:
            yield refuse(f"algorithm.name={name}", whole, f"take one of {', '.join(WITHIN_GROUPS)}")
        for key, used in (
            ("algorithm.mean=batch", getattr(algorithm, "mean", "") == "batch"),
            ("algorithm.std=batch", getattr(algorithm, "std", "") == "batch"),
            ("algorithm.whiten", algorithm.whiten),
            (f"rewards.mean={run.rewards.mean}", run.rewards.mean in ("batch", "running")),
            (f"rewards.std={run.rewards.std}", run.rewards.std in ("batch", "running")),
            ("rewards.length_weight", run.rewards.length_weight),
            ("rewards.difficulty_weight", run.rewards.difficulty_weight),
            ("loss.observations", run.loss.observations),
            ("loss.router", run.loss.router),
            ("kl.target", getattr(run.kl, "target", 0)),
        ):
            if used:
                yield refuse(key, whole, leave)
        if run.optimizer.epochs > 1:
            yield refuse("optimizer.epochs above 1", "as a batch is one step", "take 1")
        if run.placement.ranks > 1:
            yield refuse("placement.ranks above 1", "as the ranks exchange gradients of whole batches", "take 1")
        if run.rollout.shards:
            yield refuse("rollout.shards", "whose groups come as a batch", "leave it out")
        if getattr(run.player, "sleep", 0):
            yield refuse("player.sleep", "as the player is awake", "leave it out")

    def unused(self, run: Any) -> dict[str, str]:
        return {"optimizer.minibatch_sequences": "batches.kind other than early, which takes one step for each batch"}


class StoredConfig(Section):
    """Train on given episodes instead of playing: an expert's, stored ones, or rows of given answers."""

    kind: Literal["stored"] = "stored"
    data: list[HomePath] = Field(default_factory=lambda: ["oracle"], min_length=1)
    """``oracle`` for the environment's own expert; or folders of runs, evaluations and benchmarks, files of
    trajectories, records of gateways, and files or folders of rows (.jsonl, .parquet, .csv) with messages, prompt and
    completion, or chosen and rejected."""
    where: str = ""
    """Condition on stored episodes, such as "success and turns < 8"."""
    size: int = Field(32, ge=1)
    """Rows per batch: episodes, conversations, or groups to compare."""
    epochs: Weight = 0.0
    """Passes over the rows, which then set ``iterations``; 0 to train for ``iterations``."""
    held_out: float = Field(0.05, ge=0, lt=1)
    """The share of rows that are never trained on, on which evaluations measure the loss."""
    unusable: Literal["error", "drop"] = Field("error", validation_alias=AliasChoices("unusable", "long"))
    """Treatment of a row that cannot be learned: longer than the model's context (none is ever cut), with an empty
    answer, a role or shape that is not known, or equal answers to compare. Dropped ones are counted."""
    episodes: int = Field(500, ge=1)
    """Number of an expert's episodes."""
    noise: Share = 0.0
    """The share of random actions in an expert's episodes. They are played, so that it recovers from them, but not
    imitated."""

    @field_validator("data", mode="before")
    @classmethod
    def _one_or_more(cls, data: Any) -> Any:
        return [data] if isinstance(data, str) else data

    @field_validator("data")
    @classmethod
    def _each_once(cls, data: list[str]) -> list[str]:
        if twice := [name for name, times in Counter(map(os.path.realpath, data)).items() if times > 1]:
            raise ValueError(f"names {os.path.basename(twice[0])} twice, which would be learned twice")
        return data

    @field_validator("where")
    @classmethod
    def _condition(cls, where: str) -> str:
        try:
            Where(where)
        except UsageError as error:
            raise ValueError(str(error)) from error
        return where

    def problems(self, run: Any) -> Iterator[str]:
        if run.loss.name != "likelihood":
            yield "batches.kind=stored has no sampler, so no ratio to one: take algorithm=sft, dpo, ipo, kto or simpo"
        if run.rollout.shards or run.harness.name or run.rewards.per_episode or run.rewards.group:
            key = run.rewards.per_episode or "rewards.group"
            yield f"batches.kind=stored plays no episodes: leave out rollout.shards, harness and {key}"
        if not run.env.id and self.data == ["oracle"]:
            yield "batches.data=oracle needs an environment: set env.id"
        if not run.env.id and run.model.path == "tiny":
            yield "model=tiny learns its tokens from an environment: set env.id, or model.path"

    def unused(self, run: Any) -> dict[str, str]:
        played = ("groups_per_batch", "group_size", "refill", "keep", "extra_groups", "extra_members")
        expert = self.data == ["oracle"]
        return {
            **unless(expert, "batches.data=oracle", "batches", "episodes", "noise"),
            **dict.fromkeys((f"rollout.{key}" for key in played), "batches.kind=collect, stream, tail or early"),
            **unless(not self.epochs, "batches.epochs=0", "iterations"),
            **unless(run.env.id, "env.id", "eval", "kwargs", "episodes", "temperature"),
        }
