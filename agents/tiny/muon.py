"""Muon, an optimizer for matrices (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor


class Muon(torch.optim.Optimizer):  # type: ignore[misc]
    """Update matrices along the orthogonal matrix nearest to the momentum of their gradients.

    ``torch.optim.Muon`` computes matrices one by one in bfloat16, which takes three times as long on a CPU without
    instructions for that type. This one batches equal shapes, in the type of the weights.

    Args:
        params: the weights, each a matrix (rows, columns).
        lr: learning rate, comparable to AdamW's: steps are scaled to the same size (arXiv 2502.16982, equation 4).
    """

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def step(self, closure: None = None) -> None:
        """Take one step; all parameters need gradients."""
        with torch.no_grad():
            for group in self.param_groups:
                lr, momentum, weight_decay = group["lr"], group["momentum"], group["weight_decay"]
                by_shape = defaultdict(list)
                for weight in group["params"]:
                    by_shape[weight.shape].append(weight)
                for (rows, columns), weights in by_shape.items():
                    directions = orthogonal(torch.stack([self._momentum(weight, momentum) for weight in weights]))
                    for weight, direction in zip(weights, directions, strict=True):
                        weight.mul_(1 - lr * weight_decay).sub_(direction, alpha=lr * 0.2 * max(rows, columns) ** 0.5)

    def _momentum(self, weight: Tensor, momentum: float) -> Tensor:
        """Update and return Nesterov's momentum of the gradient."""
        mean = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
        mean.lerp_(weight.grad, 1 - momentum)
        return weight.grad.lerp(mean, momentum)


def orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """Orthogonalise matrices (n, rows, columns) by Newton-Schulz steps: most singular values become 0.7 to 1.2.

    Returns:
        (n, rows, columns)
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x
