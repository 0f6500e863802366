"""The interface of policies, wherever their weights are."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

from rollenv.agents.engines.adapters import Adapter
from rollenv.trainers.policies.packed import Packed

#: Outputs that a forward pass can compute.
Output = Literal["logprobs", "entropy", "hidden"]
LOGPROBS: tuple[Output, ...] = ("logprobs",)
HIDDEN: tuple[Output, ...] = ("hidden",)


@dataclass(slots=True)
class Outputs:
    """The outputs of a model for the ``n`` response tokens of a micro-batch; None for what was not asked."""

    logprobs: Tensor | None = None
    """(n,) float32"""
    entropy: Tensor | None = None
    """(n,) float32, of the distributions that the tokens were drawn from."""
    hidden: Tensor | None = None
    """(n, width) the last layer's, before each token was drawn; without gradient."""
    observations: Tensor | None = None
    """(m,) float32 log-probabilities of the observations between the responses, at temperature 1."""
    router: Tensor | None = None
    """(4,) see :func:`~rollenv.trainers.policies.routing.balance`; None for a model without routers."""


class Reader(Protocol):
    """A model that says how likely tokens are."""

    packs: bool
    """True if the model reads samples as one row, with a shared beginning only once."""

    def logprobs(
        self, batch: Packed, outputs: Collection[Output] = LOGPROBS, *, entropy_gradient: bool = False
    ) -> Outputs:
        """Return the model's outputs for the response tokens of a micro-batch, with gradients where they are enabled.

        Args:
            outputs: what to compute. The log-probabilities come too, unless only "hidden" is named.
            entropy_gradient: whether the entropy has gradients as well.
        """
        ...


class Policy(Reader, Protocol):
    """A model that is trained."""

    overflowed: bool
    """True if the last step was skipped because the loss scale was too high; the next scale is lower."""

    def last_piece(self, last: bool) -> None:
        """Say whether the next micro-batch is the last one of its step."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a part of the loss to those of this step."""
        ...

    def step(self, lr: float, *, hold: bool = False) -> float:
        """One step along the gradients summed since the last; no weight changes if they are not finite.

        Args:
            hold: take no step, only drop the gradients.

        Returns:
            The norm of the gradients, before it was cut.
        """
        ...

    def finite(self) -> bool:
        """Return whether every weight is a finite number."""
        ...

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """All weights under the model's own names, each whole."""
        ...

    def adapter(self) -> Adapter | None:
        """Return the adapter that is trained beside the model; None if it is the model itself."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint besides the model's weights."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            ValueError: the state is not one of this model.
        """
        ...
