"""AdamW on float32 masters of a model's weights, which may have fewer bits themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class MasterAdamW:
    """AdamW whose steps are taken in float32 and then rounded to the type of the weights.

    At the learning rates of reinforcement learning, nearly every step is smaller than half of what separates two
    neighbouring bfloat16 numbers. Taken in bfloat16 it would be rounded away. Weights in float32 are their own masters.

    Args:
        model: whose parameters are trained; those that need no gradient are left alone.
        lr, betas, weight_decay: AdamW's (arXiv 1711.05101).
    """

    def __init__(self, model: nn.Module, *, lr: float, betas: tuple[float, float], weight_decay: float):
        self.weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.masters: dict[str, Tensor] = {
            name: p if p.dtype == torch.float32 else p.detach().float() for name, p in self.weights.items()
        }
        self.adam = torch.optim.AdamW(list(self.masters.values()), lr=lr, betas=betas, weight_decay=weight_decay)

    def set_lr(self, lr: float) -> None:
        """The learning rate from now on."""
        for group in self.adam.param_groups:
            group["lr"] = lr

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for weight in self.weights.values():
            weight.grad = None

    def step(self, max_grad_norm: float) -> float:
        """One step along the gradients of the weights, cut to a norm; nothing changes if that is not finite.

        Returns:
            The norm of all gradients together, before it was cut.
        """
        for name, weight in self.weights.items():
            master = self.masters[name]
            if master is not weight:
                master.grad = None if weight.grad is None else weight.grad.float()
                weight.grad = None
        norm = float(torch.nn.utils.clip_grad_norm_(list(self.masters.values()), max_grad_norm).item())
        if norm - norm == 0:  # finite
            self.adam.step()
            self._round()
        for master in self.masters.values():
            master.grad = None
        return norm

    def _round(self) -> None:
        with torch.no_grad():
            for name, weight in self.weights.items():
                if self.masters[name] is not weight:
                    weight.copy_(self.masters[name])

    def finite(self) -> bool:
        """Whether every weight is a finite number."""
        return all(bool(torch.isfinite(master).all()) for master in self.masters.values())

    def state_dict(self) -> dict[str, Any]:
        """Adam's moments, and the masters that are not the weights themselves."""
        apart = {name: m for name, m in self.masters.items() if m is not self.weights[name]}
        return {"adam": self.adam.state_dict(), "masters": apart}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state, wherever its tensors are.

        Raises:
            ValueError: it is none of this model's; nothing was changed then.
        """
        if not isinstance(state, dict) or not {"masters", "adam"} <= state.keys():
            raise ValueError("its optimizer's state has no float32 masters, as versions before they were kept wrote it")
        own = {name: m.shape for name, m in self.masters.items() if m is not self.weights[name]}
        saved = {name: m.shape for name, m in state["masters"].items()}
        if own != saved:
            wrong = sorted(name for name in own.keys() | saved.keys() if own.get(name) != saved.get(name))
            raise ValueError(f"its masters are of another model or type; {wrong[0]} is the first that differs")
        params = [p for group in self.adam.param_groups for p in group["params"]]
        moments = state["adam"]["state"]
        for number, param in enumerate(params):
            for name, value in moments.get(number, {}).items():
                if value.ndim and value.shape != param.shape:
                    raise ValueError(f"its optimizer is of another model: {name} {number} is {tuple(value.shape)}")
        self.adam.load_state_dict(state["adam"])
        with torch.no_grad():
            for name, master in state["masters"].items():
                self.masters[name].copy_(master)
        self._round()
