"""AdamW with 32-bit or 8-bit moments, on the model's device or in main memory."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rollenv.core.errors import MissingExtra
from rollenv.core.needs import Package

Kind = Literal["adamw", "adamw8bit"]


def make_optimizer(weights: Iterable[Tensor], kind: Kind, *, offload: bool, fusible: bool, **how: Any) -> Any:
    """Create the optimizer of a policy; its learning rate is 0 until one is set."""

    def make(weights: list[Tensor]) -> Any:
        if kind == "adamw8bit":
            if not (package := Package("bitsandbytes")).here:
                raise MissingExtra(f"optimizer.kind=adamw8bit needs bitsandbytes: {package.hint}")
            return importlib.import_module("bitsandbytes.optim").AdamW8bit(weights, lr=0.0, **how)
        plain = all(w.device.type == "cpu" and not isinstance(w, DTensor) for w in weights)
        # on a CPU the fused step takes a quarter of the time; None leaves the choice to torch
        return torch.optim.AdamW(weights, lr=0.0, fused=True if plain and fusible else None, **how)

    return Offloaded(weights, make) if offload else make([*weights])


class Offloaded:
    """An optimizer in main memory: a step copies gradients there and updated weights back."""

    def __init__(self, weights: Iterable[Tensor], make: Callable[[list[Tensor]], Any]):
        self.weights = list(weights)
        self.copies: list[Tensor] = [nn.Parameter(w.detach().to("cpu", copy=True)) for w in self.weights]
        self.inner = make(self.copies)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of the wrapped optimizer."""
        groups: list[dict[str, Any]] = self.inner.param_groups
        return groups

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        """Take an optimizer step."""
        for copy, weight in zip(self.copies, self.weights, strict=True):
            copy.copy_(weight)
            copy.grad = None if weight.grad is None else weight.grad.to("cpu")
        self.inner.step()
        for copy, weight in zip(self.copies, self.weights, strict=True):
            weight.copy_(copy)
        self.inner.zero_grad()

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for weight in self.weights:
            weight.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the wrapped optimizer."""
        state: dict[str, Any] = self.inner.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state, also of an optimizer that was not offloaded."""
        self.inner.load_state_dict(state)
