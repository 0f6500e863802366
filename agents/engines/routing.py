"""Recording and replay of the experts that the routers of a mixture of experts choose."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rollenv.core.errors import UsageError


class Routing:
    """Records the experts of a model's tokens and the routers' logits, or replays recorded experts.

    Its hook is a function of this module, which keeps working in a copy of the model, also in another process. Those of
    transformers for ``output_router_logits`` do not: pickled, they write into a copy of their collector.

    The weights of replayed experts are computed from the router's logits: rollout routing replay (R3, arXiv
    2510.11370).
    """

    def __init__(self, model: PreTrainedModel):
        recorder = (getattr(model, "_can_record_outputs", None) or {}).get("router_logits")
        kind = getattr(recorder, "target_class", None)
        self.routers: list[Any] = [module for module in model.modules() if kind and isinstance(module, kind)]
        for router in self.routers:
            if not hasattr(router, "replayed"):  # a copy of a model has its hooks
                router.register_forward_hook(_route)
            router.replayed = router.taken = router.logits = None
            router.logits_at = getattr(recorder, "index", 0)

    def taken(self) -> Tensor:
        """Return the experts of the model's last forward pass, (t, layers k) int16."""
        return torch.cat([router.taken for router in self.routers], -1).to(torch.int16)

    def record(self) -> None:
        """Record the routers' logits of the next forward passes, until :meth:`recorded`."""
        for router in self.routers:
            router.logits = []

    def recorded(self) -> list[Tensor]:
        """Return the recorded logits of each layer, (t, E), and stop recording."""
        logits = [torch.cat(router.logits) for router in self.routers if router.logits]
        for router in self.routers:
            router.logits = None
        return logits

    def replay(self, routes: Tensor | None) -> None:
        """Set the experts of the next forward passes.

        Args:
            routes: (t, layers k) from :meth:`taken`; None for the routers' own choice.
        """
        parts = [None] * len(self.routers) if routes is None else routes.long().chunk(len(self.routers), -1)
        for router, experts in zip(self.routers, parts, strict=True):
            router.replayed = experts


def _route(router: Any, inputs: Any, output: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Record or replace a router's output: logits, weights and indices of the chosen experts."""
    if router.logits is not None:
        router.logits.append(output[router.logits_at])
    if len(output) != 3:  # Llama 4's choose nothing that could be replayed
        return output
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
    raise UsageError("loss.routing=replay: the routers of this model weight experts in an unknown way")
