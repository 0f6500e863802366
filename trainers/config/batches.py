"""Settings of batches that are played: a section with variants, chosen by ``kind``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from rollenv.trainers.config.section import Section


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
