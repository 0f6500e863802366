"""The interface of policies."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor
from transformers import PreTrainedModel

from rollenv.agents.engines.adapters import Adapter
from rollenv.trainers.policies.packed import Packed

#: Outputs that a forward pass can compute.
Output = Literal["logprobs", "entropy", "hidden"]
LOGPROBS: tuple[Output, ...] = ("logprobs",)
HIDDEN: tuple[Output, ...] = ("hidden",)


@dataclass(slots=True)
class Outputs:
    """The outputs of a model for the ``n`` response tokens of a micro-batch; None if not requested."""

    logprobs: Tensor | None = None
    """(n,) float32"""
    entropy: Tensor | None = None
    """(n,) float32 entropy of each token's distribution."""
    hidden: Tensor | None = None
    """(n, width) hidden states of the last layer that predict each token; without gradient."""
    observations: Tensor | None = None
    """(m,) float32 log-probabilities of the observations between the responses, at temperature 1."""
    router: Tensor | None = None
    """(3, layers, E) see :func:`~rollenv.trainers.policies.routing.loads`; None for a model without routers."""


class LogprobReader(Protocol):
    """A model that computes log-probabilities of tokens."""

    packs: bool
    """True if the model reads samples as one packed row, with shared prefixes only once."""

    def logprobs(
        self, batch: Packed, outputs: Collection[Output] = LOGPROBS, *, entropy_gradient: bool = False
    ) -> Outputs:
        """Compute the outputs for the response tokens of a micro-batch, with gradients if they are enabled.

        Args:
            outputs: the outputs to compute. Log-probabilities are included, unless only "hidden" is named.
            entropy_gradient: whether the entropy has gradients as well.
        """
        ...


class Policy(LogprobReader, Protocol):
    """A model that is trained."""

    model: PreTrainedModel
    overflowed: bool
    """True if the last step was skipped because the loss scale was too high; the next scale is lower."""

    def last_piece(self, last: bool) -> None:
        """Announce whether the next micro-batch is the last one of its step."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a part of the loss to those of this step."""
        ...

    def step(self, lr: float, *, hold: bool = False) -> float:
        """Take an optimizer step with finite gradients, and return their norm before clipping.

        Args:
            hold: take no step, only drop the gradients.
        """
        ...

    def finite(self) -> bool:
        """Return whether every weight is a finite number."""
        ...

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all weights, unsharded, under the model's own names."""
        ...

    def adapter(self) -> Adapter | None:
        """Return the trained adapter; None if the model itself is trained."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, in addition to the model's weights."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state.

        Raises:
            ValueError: the state belongs to another model.
        """
        ...
