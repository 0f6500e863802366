"""Checkpointed tensors of a model trained with AdamW, unsharded or sharded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

#: Adam's moments (arXiv 1412.6980), as torch calls them.
MOMENTS = ("exp_avg", "exp_avg_sq")


def whole(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor, which all ranks have to call together; other tensors are unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether every number is finite, over all ranks for sharded tensors."""
    return bool(torch.stack([whole(torch.isfinite(t).all()) for t in tensors]).all())


def tensors_of(weights: Mapping[str, Tensor], adam: torch.optim.AdamW) -> dict[str, Tensor]:
    """Return weights, moments and step counts (0 before the first step) as ``KIND/NAME``.

    They are not copies: training continues with values written into them.
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
    """Return saved weights, sharded like a model's own; those of other names or shapes are unchanged."""
    return {name: _as(own[name], values) if name in own else values for name, values in saved.items()}


def moments_as(weights: Sequence[Tensor], saved: dict[str, Any]) -> dict[str, Any]:
    """Shard Adam's saved ``state_dict`` like the weights; see :func:`weights_as`."""
    state = {i: {kind: _as(weights[i], values) for kind, values in s.items()} for i, s in saved["state"].items()}
    return saved | {"state": state}


def _as(weight: Tensor, values: Tensor) -> Tensor:
    if not isinstance(weight, DTensor) or isinstance(values, DTensor) or values.shape != weight.shape:
        return values
    return distribute_tensor(values.to(weight.device), weight.device_mesh, weight.placements, src_data_rank=None)
