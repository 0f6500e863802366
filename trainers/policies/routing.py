"""The load-balancing loss and metrics of a mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

#: The numbers of :func:`balance`, by name.
NAMES = ("router/balance", "router/largest_load", "router/idle_experts", "router/entropy")


def experts_per_token(model: PreTrainedModel) -> int:
    """Return the number of experts per token; 0 for a model without routers of its own class."""
    recorder = (getattr(model, "_can_record_outputs", None) or {}).get("router_logits")
    if not hasattr(recorder, "target_class"):
        return 0
    return int(getattr(model.config.get_text_config(), "num_experts_per_tok", 0) or 0)


def balance(logits: Sequence[Tensor], chosen: int) -> Tensor:
    """E sum_i f_i P_i / k: 1 for an even load, E / k if all tokens go to the same k experts.

    f_i is the share of tokens that go to expert i, P_i the mean of its probability, E the number of experts, averaged
    over layers; f has no gradient. Switch Transformer, arXiv 2101.03961, equations 4 to 6.

    Args:
        logits: (t, E) router logits of each layer, for all input tokens.
        chosen: k, the number of experts per token.

    Returns:
        (4,) the balance; and, without gradient, the largest load of an expert (1 is even), the share of experts without
        tokens, and the entropy of a token's distribution over experts in nats, each averaged over layers.
    """
    layers = []
    for layer in logits:
        logprobs = torch.log_softmax(layer.float(), -1)
        probabilities, experts = logprobs.exp(), layer.shape[-1]
        taken = probabilities.detach().topk(chosen).indices
        load = torch.bincount(taken.flatten(), minlength=experts).float() / len(layer)
        even = load * experts / chosen
        entropy = -(probabilities.detach() * logprobs.detach()).sum(-1).mean()
        layers.append(torch.stack([even @ probabilities.mean(0), even.max(), (load == 0).float().mean(), entropy]))
    return torch.stack(layers).mean(0)
