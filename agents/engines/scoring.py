"""Log-probabilities of responses in a causal language model, for imitation and policy gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from rollenv.agents.engines.base import Ids
from rollenv.agents.vision import seen_rows


@dataclass(slots=True)
class Scores:
    """Values per response token, all of shape (rows, longest response), right-aligned, zero where ``mask`` is."""

    logprobs: torch.Tensor
    entropy: torch.Tensor
    mask: torch.Tensor


def score(model: PreTrainedModel, prompts: Sequence[Ids], responses: Sequence[Ids], temperature: float = 1.0) -> Scores:
    """Compute log-probabilities of response tokens, with gradients, and entropies without.

    Rows with the same model input (prompt and all response tokens but the last) go through the model once, and logits
    are computed for response positions only.
    """
    device = model.device
    where: dict[Ids, int] = {}
    rows = [where.setdefault(p + r[:-1], len(where)) for p, r in zip(prompts, responses, strict=True)]
    ids, mask = pad_left(list(where), device)
    longest = max(map(len, responses))
    out = model(
        **seen_rows(model, list(where), ids, positions(mask, ids.shape[1], device)),
        attention_mask=mask,
        use_cache=False,
        logits_to_keep=longest,
    )
    distribution = (out.logits.float() / temperature).log_softmax(-1)
    with torch.no_grad():
        entropy = -(distribution.exp() * distribution).sum(-1)
    index = torch.tensor(rows, device=device)
    targets, response_mask = pad_left(responses, device)
    if response_mask is None:
        response_mask = torch.ones_like(targets)
    steps = torch.arange(longest, device=device)[None]
    chosen = distribution[index[:, None], steps, targets]
    return Scores(chosen * response_mask, entropy[index] * response_mask, response_mask)


def pad_left(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Pad rows of token ids on the left.

    Returns:
        Token ids (rows, longest) with zeros as padding, and the attention mask of the same shape, or None without
        padding.
    """
    longest = max(map(len, rows))
    if all(len(row) == longest for row in rows):
        return torch.tensor(rows, device=device), None
    ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


def positions(mask: torch.Tensor | None, length: int, device: torch.device) -> torch.Tensor:
    """Return position ids that count from 0 at the first real token of each row.

    Args:
        mask: (rows, length), or None without padding.

    Returns:
        (rows, length), or (1, length) without a mask.
    """
    if mask is None:
        return torch.arange(length, device=device)[None]
    return (mask.cumsum(1) - 1).clamp_(min=0)
