"""How a player gets the weights that were trained."""

from __future__ import annotations

from typing import Protocol

import torch

from rollenv.agents.engines.local import load_weights
from rollenv.agents.local import LocalAgent
from rollenv.trainers.policies.base import Policy


class WeightSync(Protocol):
    """Between a policy and a player."""

    def publish(self, policy: Policy, player: LocalAgent) -> None:
        """Let the player go on with the policy's weights, as one version more.

        Args:
            policy: what was trained.
            player: who plays.
        """
        ...


class InPlace:
    """The policy trains the very weights that the player plays with."""

    def publish(self, policy: Policy, player: LocalAgent) -> None:
        """See :class:`WeightSync`.

        Args:
            policy: what was trained; not read, as its weights are the player's.
            player: who plays.
        """
        player.weights_changed()


class Copied:
    """The player has weights of its own, perhaps of another type."""

    def publish(self, policy: Policy, player: LocalAgent) -> None:
        """See :class:`WeightSync`.

        Args:
            policy: what was trained; its weights are copied.
            player: who plays.
        """
        with torch.no_grad():
            load_weights(player.model, policy.named_weights())
        player.weights_changed()
