"""The tensors that a checkpoint has of something trained with AdamW, whole or in shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

#: Adam's moments (arXiv 1412.6980), as torch calls them.
MOMENTS = ("exp_avg", "exp_avg_sq")


def whole(tensor: Tensor) -> Tensor:
    """A tensor without its shards; all ranks have to call this for one that has any."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether every number is finite; of shards this is one answer for all ranks."""
    return bool(torch.stack([whole(torch.isfinite(t).all()) for t in tensors]).all())


def tensors_of(weights: Mapping[str, Tensor], adam: torch.optim.AdamW) -> dict[str, Tensor]:
    """Weights, and Adam's moments and steps, which are 0 where no step was taken yet.

    Training continues with the values that are written into them.

    Returns:
        Each as ``KIND/NAME``.
    """
    out: dict[str, Tensor] = {}
    for name, weight in weights.items():
        state = adam.state[weight]
        if not state:
            state["step"] = torch.tensor(0.0)
            state.update({moment: torch.zeros_like(weight, requires_grad=False) for moment in MOMENTS})
        out[f"weight/{name}"] = weight.detach()
        out |= {f"{kind}/{name}": state[kind] for kind in ("step", *MOMENTS)}
    return out


def weights_as(own: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Saved weights as a model has its own.

    Returns:
        By name: of what it read whole, each rank's shares. Those of other names or shapes stay as they are.
    """
    return {name: _as(own[name], values) if name in own else values for name, values in saved.items()}


def moments_as(weights: Sequence[Tensor], saved: dict[str, Any]) -> dict[str, Any]:
    """Adam's saved state as that of such weights; see :func:`weights_as`.

    Args:
        saved: what ``state_dict`` of an optimizer returned.
    """
    state = {i: {kind: _as(weights[i], values) for kind, values in s.items()} for i, s in saved["state"].items()}
    return saved | {"state": state}


def _as(weight: Tensor, values: Tensor) -> Tensor:
    if not isinstance(weight, DTensor) or isinstance(values, DTensor) or values.shape != weight.shape:
        return values
    return distribute_tensor(values.to(weight.device), weight.device_mesh, weight.placements, src_data_rank=None)
