"""A policy whose weights, gradients and moments are sharded over the devices of several processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from rollenv.agents.engines.adapters import Adapter
from rollenv.trainers.policies.local import LocalPolicy, Scorer, compute_as_player, twin
from rollenv.trainers.policies.lora import adapter_of, merged_weights
from rollenv.trainers.policies.state import moments_as, weights_as
from rollenv.trainers.ranks import Ranks

M = TypeVar("M", bound=nn.Module)


class ShardedPolicy(LocalPolicy):
    """Trains a causal language model with FSDP2 (arXiv 2304.11277): each rank keeps a share of every weight.

    A layer's weights are gathered only while it computes. Weights and optimizer are float32; layers and communication
    have the type ``precision``, gradients are summed in float32. All ranks call each method at the same time, except
    :meth:`named_weights` and :meth:`adapter`, with which the first rank sends a command to the others.

    Args:
        model: the initial model, on the first rank; it is not changed. The others get it from there.
        defer: accumulate the gradients of a step before they are summed over the ranks. This sends less, but needs
            memory for all gradients on every rank.
    """

    def __init__(
        self,
        model: PreTrainedModel | None,
        ranks: Ranks,
        *,
        defer: bool = True,
        precision: torch.dtype = torch.float32,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
        gradient_checkpointing: bool = False,
        **how: Any,
    ):
        self.ranks, self.defer, self.shares = ranks, defer, False
        scorer = None if model is None else Scorer(exact(model), **how)
        placed = sharded(scorer, ranks, precision)
        compute_as_player(placed.model, gradient_checkpointing=gradient_checkpointing)
        adam = {"betas": betas, "weight_decay": weight_decay, "kind": "adamw", "offload": False}
        self._begin(placed, precision, max_grad_norm, adam)

    @property
    def device(self) -> torch.device:
        return self.ranks.device

    def last_piece(self, last: bool) -> None:
        """See :class:`~rollenv.trainers.policies.base.Policy`."""
        send_gradients(self.scorer, last or not self.defer)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all weights, unsharded, under the model's own names; called by the first rank."""
        self.ranks.send_command("weights")
        yield from merged_weights(self.model)

    def adapter(self) -> Adapter | None:
        """See :class:`~rollenv.trainers.policies.local.LocalPolicy`; called by the first rank."""
        self.ranks.send_command("adapter")
        return adapter_of(self.model)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a policy on one device; each rank takes its shares."""
        if isinstance(state, dict) and {"masters", "adam"} <= state.keys():
            masters = state["masters"] or {name: weight.detach() for name, weight in self.weights.items()}
            adam = moments_as(list(self.weights.values()), state["adam"])
            state = state | {"masters": weights_as(self.weights, masters), "adam": adam}
        super().load_state_dict(state)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()  # FSDP's mixed precision casts layers


def exact(model: PreTrainedModel) -> PreTrainedModel:
    """Copy a model in float32 to main memory, which may be larger than one device."""

    def copied(tensor: Tensor) -> Tensor:
        return tensor.detach().to("cpu", torch.float32 if tensor.is_floating_point() else tensor.dtype, copy=True)

    return twin(model, copied)


def sharded(module: M | None, ranks: Ranks, precision: torch.dtype = torch.float32) -> M:
    """Shard the first rank's module over all ranks.

    Gradients are summed over the ranks, not averaged: weights in the loss are those of the whole batch.

    Args:
        module: a module whose weights are used in its forward pass only; None on the other ranks.
    """
    bare: M = ranks.share(None if module is None else twin(module, lambda t: t.to("meta")))
    mesh = init_device_mesh(ranks.device.type, (ranks.count,))
    types = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=torch.float32)
    whole = {name for m in bare.modules() for name in getattr(m, "_no_split_modules", None) or ()}
    layers = [m for m in bare.modules() if type(m).__name__ in whole]
    for part in [*reversed(layers), bare]:  # the innermost first
        fully_shard(part, mesh=mesh, mp_policy=types)
        assert isinstance(part, FSDPModule)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)  # supported by gloo too
    bare.to_empty(device=ranks.device)
    _fill(bare, module, mesh)
    return bare


@torch.no_grad()  # type: ignore[untyped-decorator]
def _fill(shards: nn.Module, module: nn.Module | None, mesh: DeviceMesh) -> None:
    """Give every rank its shares of the first rank's weights, one weight after another."""
    known = {} if module is None else dict([*module.named_parameters(), *module.named_buffers()])
    for name, tensor in [*shards.named_parameters(), *shards.named_buffers()]:
        device = mesh.device_type
        values = known[name].to(device) if known else torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        if isinstance(tensor, DTensor):
            tensor.to_local().copy_(distribute_tensor(values, mesh, tensor.placements).to_local())
        else:
            torch.distributed.broadcast(values, src=0)
            tensor.copy_(values)


def send_gradients(module: nn.Module, now: bool) -> None:
    """Choose whether the next backward pass sums gradients over the ranks or only accumulates them."""
    assert isinstance(module, FSDPModule)
    module.set_requires_gradient_sync(now)
