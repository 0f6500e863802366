"""Linear layers of small models on CPUs, for few rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

#: Rows of a product up to which packed weights pay: twice as fast for 4 rows, 1.2 times for 128.
MAX_ROWS = 128
#: Calls with few rows before weights are packed, which takes as long as a few calls gain.
_PLAIN_CALLS = 6
#: Bytes of a model's weights. Smaller models do not gain; packing takes as much memory again, which large ones need.
_SMALLEST, _LARGEST = 1 << 25, 1 << 30


class PackedLinears:
    """The linear layers of a model with their weights in the layout of oneDNN's product.

    PyTorch's product arranges the weights anew in every call, which for few rows takes as long as the product itself.
    Weights are packed after a few calls, and must not change afterwards. Where it would not pay, there are no layers.
    """

    def __init__(self, model: PreTrainedModel):
        self._calls = 0
        size = sum(parameter.nbytes for parameter in model.parameters())
        on_cpu = (
            model.device.type == "cpu" and torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()
        )
        pays = on_cpu and _SMALLEST <= size <= _LARGEST
        self.layers = [
            _Layer(module)
            for module in model.modules()
            if pays and type(module) is torch.nn.Linear and module.weight.dtype == torch.float32
        ]

    @contextmanager
    def __call__(self, rows: int) -> Iterator[None]:
        """Use the packed weights in calls of the model with so many rows."""
        self._calls += rows <= MAX_ROWS
        layers = self.layers if rows <= MAX_ROWS and self._calls > _PLAIN_CALLS else []
        for layer in layers:
            layer.module.__dict__["forward"] = layer
        try:
            yield
        finally:
            for layer in layers:
                layer.module.__dict__.pop("forward", None)


class _Layer:
    def __init__(self, module: torch.nn.Linear):
        self.module = module
        self.packed: torch.Tensor | None = None

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():  # another thread trains the model
            return F.linear(inputs, self.module.weight, self.module.bias)
        if self.packed is None:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(self.module.weight)
        output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.module.bias, "none", [], "")
        return output
