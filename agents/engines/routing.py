"""The routers of a mixture of experts: the experts that they choose, noted and replayed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rollenv.core import UsageError


class Routing:
    """Records the experts that a model's tokens go to, or sends them to given ones.

    The weights of replayed experts are the router's own, computed of its logits at these experts: rollout routing
    replay (R3, arXiv 2510.11370).
    """

    def __init__(self, model: PreTrainedModel):
        recorder = (getattr(model, "_can_record_outputs", None) or {}).get("router_logits")
        kind = getattr(recorder, "target_class", None)
        self.routers: list[Any] = [module for module in model.modules() if kind and isinstance(module, kind)]
        for router in self.routers:
            if not hasattr(router, "replayed"):  # a copy of a model has its hooks
                router.register_forward_hook(_route)
            router.replayed = router.taken = None

    def taken(self) -> Tensor:
        """(t, layers k) int16, the experts of the tokens that the model read last."""
        return torch.cat([router.taken for router in self.routers], -1).to(torch.int16)

    def replay(self, routes: Tensor | None) -> None:
        """Choose the experts for all that the model reads from now on.

        Args:
            routes: (t, layers k) as :meth:`taken` gave them; None for the routers' own choice.
        """
        parts = [None] * len(self.routers) if routes is None else routes.long().chunk(len(self.routers), -1)
        for router, experts in zip(self.routers, parts, strict=True):
            router.replayed = experts


def _route(router: Any, inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The output of a router: its logits, and the weights and numbers of the chosen experts."""
    logits, weights, experts = output
    if router.replayed is None:
        router.taken = experts.detach()
        return output
    probabilities = logits.float().softmax(-1)
    if not hasattr(router, "sums_to_one"):
        router.sums_to_one = _sums_to_one(probabilities.detach().gather(-1, experts), weights.detach().float())
    chosen = probabilities.gather(-1, router.replayed)
    if router.sums_to_one:
        chosen = chosen / chosen.sum(-1, keepdim=True)
    return logits, chosen.to(weights.dtype), router.replayed


def _sums_to_one(probabilities: Tensor, weights: Tensor) -> bool:
    """Return whether a router divides the probabilities of the chosen experts by their sum."""
    for divides in (True, False):
        expected = probabilities / probabilities.sum(-1, keepdim=True) if divides else probabilities
        if torch.allclose(weights, expected, atol=0.01):
            return divides
    raise UsageError("loss.routing=replay: the routers of this model weigh experts in a way that is not known here")
