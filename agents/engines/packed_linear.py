"""Faster linear layers on CPUs: packed weights for few rows, and weights in bfloat16."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

#: Maximum number of rows for packed weights: 2 times as fast for 4 rows, 1.2 times for 128.
_MAX_ROWS = 128
#: Calls with few rows before weights are packed, which costs as much as a few calls save.
_PLAIN_CALLS = 6
#: Range of a model's size in bytes: smaller models are not faster; packing doubles the memory, too much for large ones.
_SMALLEST, _LARGEST = 1 << 25, 1 << 30


def multiplies_in_bfloat16() -> bool:
    """Return whether this CPU has the instructions for packed weights in bfloat16."""
    return _packs() and "AVX512" in torch.backends.cpu.get_cpu_capability()


def _packs() -> bool:
    return bool(torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available())


class PackedLinears:
    """The linear layers of a model with their weights in oneDNN's layout.

    PyTorch reorders the weights in every call, which for few rows takes as long as the product. Weights are packed
    after a few calls, and must not change afterwards. ``layers`` is empty if packing is not faster.

    Args:
        dtype: bfloat16 to multiply in it, whatever the model's own weights are; the model keeps them.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype = torch.float32):
        self._calls = 0
        size = sum(parameter.nbytes for parameter in model.parameters())
        asked = dtype != torch.float32
        pays = model.device.type == "cpu" and _packs() and (asked or _SMALLEST <= size <= _LARGEST)
        self._max_rows, self._plain_calls = (sys.maxsize, 0) if asked else (_MAX_ROWS, _PLAIN_CALLS)
        self.layers = [
            _Layer(module, dtype)
            for module in model.modules()
            if pays and type(module) is torch.nn.Linear and module.weight.dtype == torch.float32
        ]

    @contextmanager
    def __call__(self, rows: int) -> Iterator[None]:
        """Use packed weights while the block runs, if ``rows`` is small or they are in another type."""
        self._calls += rows <= self._max_rows
        layers = self.layers if rows <= self._max_rows and self._calls > self._plain_calls else []
        for layer in layers:
            layer.module.__dict__["forward"] = layer
        try:
            yield
        finally:
            for layer in layers:
                layer.module.__dict__.pop("forward", None)


class _Layer:
    def __init__(self, module: torch.nn.Linear, dtype: torch.dtype):
        self.module, self.dtype = module, dtype
        self.packed: torch.Tensor | None = None
        self.bias = None if module.bias is None else module.bias.detach().to(dtype)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():  # called by another thread, which trains the model
            return F.linear(inputs, self.module.weight, self.module.bias)
        if self.packed is None:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(self.module.weight.detach().to(self.dtype))
        output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs.to(self.dtype), self.packed, self.bias, "none", [], ""
        )
        return output.to(inputs.dtype)
