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


def loads(logits: Sequence[Tensor], chosen: int, readers: Tensor | None = None) -> Tensor:
    """Sums over tokens from which :func:`balance` is computed; those of several micro-batches and ranks add up.

    Args:
        logits: (t, E) router logits of each layer, for all input tokens.
        chosen: k, the number of experts per token.
        readers: (t,) the number of samples that contain each token, which counts that often; by default once.

    Returns:
        (3, layers, E): how many tokens chose each expert, without gradient; the sum of its probabilities; and the sum
        of its parts of the tokens' entropies in nats, without gradient.
    """
    sums = []
    for layer in logits:
        weights = layer.new_ones(len(layer)).float() if readers is None else readers.float()
        logprobs = torch.log_softmax(layer.float(), -1)
        probabilities = logprobs.exp()
        taken = torch.zeros_like(logprobs).scatter_(-1, probabilities.detach().topk(chosen).indices, 1.0)
        sums.append(
            torch.stack([weights @ taken, weights @ probabilities, -weights @ (probabilities * logprobs).detach()])
        )
    return torch.stack(sums, 1)


def balance(loads: Tensor, chosen: int) -> Tensor:
    """E sum_i f_i P_i / k: 1 for an even load, E / k if all tokens go to the same k experts.

    f_i is the share of tokens that go to expert i, P_i the mean of its probability, E the number of experts, averaged
    over layers; f has no gradient. Switch Transformer, arXiv 2101.03961, equations 4 to 6.

    Args:
        loads: (3, layers, E) from :func:`loads`.
        chosen: k, the number of experts per token.

    Returns:
        (4,) the balance; and, without gradient, the largest load of an expert (1 is even), the share of experts without
        tokens, and the entropy of a token's distribution over experts in nats, each averaged over layers.
    """
    tokens, experts = loads[0].sum(-1, keepdim=True).clamp(min=1) / chosen, loads.shape[-1]
    taken, probabilities, entropies = loads / tokens
    even = taken * experts / chosen
    numbers = (even * probabilities).sum(-1), even.amax(-1), (taken == 0).float().mean(-1), entropies.sum(-1)
    return torch.stack(numbers).mean(-1)
