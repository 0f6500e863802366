"""A model that predicts returns."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rollenv.trainers.losses import value_loss
from rollenv.trainers.policies.local import hidden_states
from rollenv.trainers.policies.packed import Packed
from rollenv.trainers.policies.state import all_finite, moments_as, tensors_of, weights_as, whole


class Valuer(nn.Module):  # type: ignore[misc]
    """A linear value head on hidden states, with its own model for the kind "model"."""

    def __init__(self, model: PreTrainedModel, kind: Literal["model", "head"], *, packs: bool = True):
        super().__init__()
        self.packs = packs
        device = next(model.parameters()).device
        self.head = nn.Linear(model.config.get_text_config().hidden_size, 1, device=device)
        nn.init.zeros_(self.head.weight)  # the first values are 0, without noise
        nn.init.zeros_(self.head.bias)
        self.model = copy.deepcopy(model) if kind == "model" else None

    def forward(self, batch: Packed, hidden: Tensor | None) -> Tensor:
        """Return the predicted returns, (n,) float32, for a head from the policy's hidden states (n, width)."""
        if self.model is not None:
            hidden = hidden_states(self.model, batch, packs=self.packs)[0][batch.drawn.of]
        assert hidden is not None
        out: Tensor = self.head(hidden.float())
        return out.sum(-1)  # drops the dimension of size 1


class Critic:
    """Predicts the return before each response token.

    Args:
        kind: "model" trains a copy of the model with a value head; "head" a head on the policy's hidden states, without
            gradients to the policy.
    """

    def __init__(
        self,
        model: PreTrainedModel | None,
        *,
        kind: Literal["model", "head"],
        lr: float,
        clip: float = 0.2,
        max_grad_norm: float = 1.0,
        packs: bool = True,
        distribute: Callable[[Valuer | None], Valuer] | None = None,
    ):
        self.kind, self.clip, self.max_grad_norm = kind, clip, max_grad_norm
        valuer: Any = None if model is None else Valuer(model, kind, packs=packs)
        self.module: Valuer = distribute(valuer) if distribute else valuer
        self.adam = torch.optim.AdamW(self.module.parameters(), lr=lr, weight_decay=0.0)

    @property
    def head(self) -> nn.Linear:
        """The linear layer from hidden states to values."""
        return self.module.head

    def values(self, batch: Packed, hidden: Tensor | None = None) -> Tensor:
        """Return the predicted returns, (n,) float32, with gradients if they are enabled."""
        out: Tensor = self.module(batch, hidden)
        return out

    def backward(self, batch: Packed, hidden: Tensor | None, share: float) -> dict[str, Tensor]:
        """Add the gradients of a micro-batch's squared errors and return metrics, (n,) each.

        Args:
            batch: a batch with the columns "returns" (NaN for tokens without a target) and "values" before the update.
            share: 1 / (number of targets in the step).
        """
        returns = batch.columns["returns"]
        targets = ~returns.isnan()
        loss = value_loss(
            self.values(batch, hidden),
            torch.where(targets, returns, 0.0),
            old=batch.columns["values"],
            clip=self.clip or None,
        )
        (loss.values * targets).sum().mul(share).backward()
        return {
            "value_loss": (loss.values.detach() * targets),
            "value_clipped": loss.metrics["value_clipped"] * targets,
        }

    def gradient_norm(self) -> float:
        """Return the norm of the accumulated gradients."""
        return float(whole(nn.utils.get_total_norm([p.grad for p in self.module.parameters() if p.grad is not None])))

    def step(self, *, hold: bool = False) -> float:
        """Take an optimizer step unless the gradients are not finite; return their norm.

        Args:
            hold: take no step, only drop the gradients.
        """
        norm = float(whole(nn.utils.clip_grad_norm_(self.module.parameters(), self.max_grad_norm)))
        if math.isfinite(norm) and not hold:
            self.adam.step()
        self.adam.zero_grad()
        return norm

    def finite(self) -> bool:
        """Return whether every weight is a finite number."""
        return all_finite(self.module.parameters())

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights and Adam's moments by name, not copied."""
        return tensors_of(dict(self.module.named_parameters()), self.adam)

    def state_dict(self) -> dict[str, Any]:
        """Return all weights and the optimizer's state."""
        return {"module": self.module.state_dict(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        try:
            self.module.load_state_dict(weights_as(self.module.state_dict(), state["module"]))
        except RuntimeError as error:
            raise ValueError(f"its critic belongs to another model: {error}") from error
        self.adam.load_state_dict(moments_as(list(self.module.parameters()), state["adam"]))
