"""Log-probabilities from hidden states, with few logits in memory at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

#: Maximum number of logits in memory at a time: 64 million in float32 are 256 MB.
MOST_LOGITS = 1 << 26

Head = Callable[[Tensor], Tensor]


def token_logprobs(
    hidden: Tensor,
    targets: Tensor,
    head: Head,
    vocabulary: int,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    entropy_gradient: bool = False,
    most_logits: int = MOST_LOGITS,
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities of tokens under softmax(head(hidden) / temperature), and the entropy.

    Logits are computed in chunks, and again in the backward pass, so the peak does not grow with tokens times
    vocabulary.

    Args:
        hidden: (n, width) the states that predict the tokens.
        targets: (n,) int64 ids of the tokens.
        head: maps states to logits (n, vocabulary).

    Returns:
        (n,) log-probabilities in float32 (float64 for float64 states), and (n,) entropies or None.
    """

    def piece(states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(states)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
        log_sum = logits.logsumexp(-1)
        chosen = logits.gather(-1, tokens[:, None])[:, 0] - log_sum
        if not entropy:
            return chosen, chosen.new_zeros(0)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            probabilities = (logits - log_sum[:, None]).exp()
            return chosen, log_sum - (probabilities * logits).sum(-1)

    size = max(1, most_logits // vocabulary)
    pairs = list(zip(hidden.split(size), targets.split(size), strict=True))
    if len(pairs) == 1 or not torch.is_grad_enabled():
        done = [piece(*pair) for pair in pairs]
    else:
        done = [checkpoint(piece, *pair, use_reentrant=False) for pair in pairs]
    logprobs = torch.cat([one for one, _ in done]) if done else hidden.new_zeros(0)
    return logprobs, torch.cat([one for _, one in done]) if entropy and done else None
