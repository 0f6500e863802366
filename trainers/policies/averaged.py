"""A teacher whose weights are an exponential moving average of the trained ones."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from rollenv.trainers.policies.base import LOGPROBS, Output, Outputs
from rollenv.trainers.policies.local import LocalPolicy
from rollenv.trainers.policies.packed import Packed
from rollenv.trainers.policies.state import weights_as


class Averaged:
    """A model with the weights w <- decay w + (1 - decay) v after each step, where v are the trained ones.

    Args:
        policy: holds the average, initially the trained weights; it takes no optimizer steps.
    """

    def __init__(self, policy: LocalPolicy, decay: float):
        self.policy, self.decay, self.packs = policy, decay, policy.packs

    def logprobs(
        self, batch: Packed, outputs: Collection[Output] = LOGPROBS, *, entropy_gradient: bool = False
    ) -> Outputs:
        """See :class:`~rollenv.trainers.policies.base.Policy`."""
        return self.policy.logprobs(batch, outputs, entropy_gradient=entropy_gradient)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def follow(self, trained: LocalPolicy) -> None:
        """Update the average with the weights of the trained policy."""
        if isinstance(self.policy.scorer, FSDPModule):
            self.policy.scorer.reshard()  # the root module stays unsharded after a forward pass
        for name, weight in self.policy.weights.items():
            weight.mul_(self.decay).add_(trained.weights[name], alpha=1 - self.decay)

    def tensors(self) -> dict[str, Tensor]:
        """Return the average by name."""
        return {name: weight.detach() for name, weight in self.policy.weights.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the averaged weights."""
        return self.tensors()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved average."""
        own = self.tensors()
        if {name: t.shape for name, t in own.items()} != {name: t.shape for name, t in state.items()}:
            raise ValueError("the averaged teacher belongs to another model")
        for name, weight in weights_as(own, state).items():
            own[name].copy_(weight)
