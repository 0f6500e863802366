"""Faster linear layers on CPUs: products by oneDNN, and weights packed for it, also in bfloat16.

PyTorch multiplies float32 by MKL, which on processors of some makers uses half of their width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

#: Multiplications of a product from which oneDNN is faster: its call costs 10 µs more.
_WORTH = 1 << 21

#: Range of a model's size in bytes. oneDNN prepares each new shape for milliseconds, and batches differ: the few layers
#: of a smaller model do not make up for that. Packing doubles the memory, too much for larger ones.
_SMALLEST, _LARGEST = 1 << 25, 1 << 30


def multiplies_in_bfloat16() -> bool:
    """Return whether this CPU has the instructions for packed weights in bfloat16."""
    return _has_onednn() and "AVX512" in torch.backends.cpu.get_cpu_capability()


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available())


def use_onednn(model: torch.nn.Module) -> None:
    """Let the linear layers of a model that is not small compute float32 on CPUs by oneDNN, in training too."""
    if not _has_onednn() or _size(model) < _SMALLEST:
        return
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.__class__ = _Linear


def _size(model: torch.nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


class _Linear(torch.nn.Linear):  # type: ignore[misc]
    def forward(self, inputs: Tensor) -> Tensor:
        weight = self.weight
        on_cpu = inputs.device.type == weight.device.type == "cpu" and inputs.dtype == weight.dtype == torch.float32
        if not on_cpu or inputs.numel() * len(weight) < _WORTH or torch.is_autocast_enabled("cpu"):
            return F.linear(inputs, weight, self.bias)
        output: Tensor = _Product.apply(inputs, weight, self.bias)
        return output


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """``inputs @ weight.T + bias``, for inputs (..., width) and a weight (out, width)."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return _multiply(inputs, weight, bias)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs, weight = ctx.saved_tensors
        of_inputs, of_weight, of_bias = ctx.needs_input_grad
        rows = gradient.flatten(0, -2)
        return (
            _multiply(gradient, weight.t()) if of_inputs else None,
            _multiply(rows.t(), inputs.flatten(0, -2).t()) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def _multiply(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(inputs, weight, bias, "none", [], "")
    return product


class PackedLinears:
    """The linear layers of a model that uses oneDNN (:func:`use_onednn`), with their weights in its layout.

    Otherwise weights are reordered in every call, which for few rows takes as long as the product. They are packed in
    the first call, and must not change afterwards. ``layers`` is empty if packing is not faster.

    Args:
        dtype: bfloat16 to multiply in it, whatever the model's own weights are; the model keeps them.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype = torch.float32):
        asked = dtype != torch.float32
        pays = model.device.type == "cpu" and (asked or _SMALLEST <= _size(model) <= _LARGEST)
        self.layers = [
            _Layer(module, dtype)
            for module in model.modules()
            if pays and type(module) in (_Linear, torch.nn.Linear) and module.weight.dtype == torch.float32
        ]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Use packed weights while the block runs."""
        for layer in self.layers:
            layer.module.__dict__["forward"] = layer
        try:
            yield
        finally:
            for layer in self.layers:
                layer.module.__dict__.pop("forward", None)


class _Layer:
    def __init__(self, module: torch.nn.Linear, dtype: torch.dtype):
        self.module, self.dtype = module, dtype
        self.packed: Tensor | None = None
        self.bias = None if module.bias is None else module.bias.detach().to(dtype)

    def __call__(self, inputs: Tensor) -> Tensor:
        if torch.is_grad_enabled():  # called by another thread, which trains the model
            return type(self.module).forward(self.module, inputs)
        if self.packed is None:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(self.module.weight.detach().to(self.dtype))
        return _multiply(inputs.to(self.dtype), self.packed, self.bias).to(inputs.dtype)
