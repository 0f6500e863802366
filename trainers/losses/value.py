"""The critic's loss."""

from __future__ import annotations

import torch
from torch import Tensor

from rollenv.trainers.losses.types import TokenLoss, require


def value_loss(values: Tensor, returns: Tensor, *, old: Tensor | None = None, clip: float | None = None) -> TokenLoss:
    """(V - R)² / 2, or with ``clip`` the larger of it and (V_old + clamp(V - V_old, -clip, clip) - R)² / 2.

    As in OpenAI's PPO code (see 2005.12729): no gradient where V has moved by more than ``clip`` towards R.

    Args:
        values: (n,) the critic's values, with a gradient.
        old: (n,) the critic's values at the start of the update.
        clip: largest change of a value, above 0; None for no clip.
    """
    error = (values - returns) ** 2
    clipped = torch.zeros_like(error)
    if clip is not None:
        require(clip > 0, f"a value clip is above 0, not {clip}")
        require(old is not None, "a value clip needs the critic's values at the start of the update")
        held = (old + (values - old).clamp(-clip, clip) - returns) ** 2
        clipped = (held > error).to(error.dtype)
        error = torch.maximum(error, held)
    metrics = {"value": values.detach(), "value_error": ((values - returns) ** 2).detach(), "value_clipped": clipped}
    return TokenLoss(error / 2, metrics)
