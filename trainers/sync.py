"""The way of trained weights to a player."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from rollenv.agents.engines.adapters import Adapter
from rollenv.trainers.policies.base import Policy


class WeightSync(Protocol):
    """Between a policy and a player."""

    def weights(self, policy: Policy) -> Iterator[tuple[str, Tensor]] | Adapter | None:
        """Yield the weights for the player's ``update_weights`` after an update."""
        ...


class InPlace:
    """The policy trains the very weights that the player plays with."""

    def weights(self, policy: Policy) -> None:
        """Nothing: the player only has to know that they changed."""
        return None


class Adapted:
    """The player has the model, and gets what is trained beside it."""

    def weights(self, policy: Policy) -> Adapter | None:
        """The adapter."""
        return policy.adapter()


class Copied:
    """The player has weights of its own, perhaps of another type."""

    def weights(self, policy: Policy) -> Iterator[tuple[str, Tensor]]:
        """All of them, to be copied."""
        return policy.named_weights()
