"""The batch that an advantage estimator gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollenv.trainers.advantages.moments import Floats, Ints


@dataclass(frozen=True)
class AdvantageInput:
    """A batch of ``N`` trajectories with ``T`` turns and ``R`` response tokens, as flat arrays in the order of play.

    There is no padding and so no mask: tokens of prompts and observations are not there. A number of each trajectory or
    turn becomes one of each token by ``numbers[x.trajectory]`` or ``numbers[x.turn]``. Turns, and trajectories, may
    have no token. All arrays are read-only.
    """

    groups: Ints
    """(N,) label of the task; its trajectories are a group."""
    lengths: Ints
    """(N,) number of turns of each trajectory."""
    success: NDArray[np.bool_]
    """(N,)"""
    kept: NDArray[np.bool_]
    """(N,) False for a trajectory that is not trained on (``rewards.drop_*``), but counts in its group's baseline."""
    unpenalized: Floats
    """(T,) shaped reward of each turn, in the environment's unit, before penalties for invalid actions and KL."""
    penalties: Floats
    """(T,) penalty of at least 0 for an invalid action (``rewards.invalid_penalty``)."""
    states: list[str]
    """(T,) key of the state before each turn: equal for equal states."""
    turn: Ints
    """(R,) index, 0 to T - 1, of each token's turn."""
    trajectory: Ints
    """(R,) index, 0 to N - 1, of each token's trajectory."""
    logprobs: Floats
    """(R,) log-probability, in nats, of each token when it was sampled."""
    kl: Floats | None = None
    """(R,) KL penalty of each token, with ``kl.name=reward``."""
    values: Floats | None = None
    """(R,) the critic's value before each token, with ``algorithm.name=ppo``."""
    bootstrap: Floats | None = None
    """(N,) the critic's value of the state where a limit cut each trajectory; 0 for those that terminated."""
    roles: list[str] = field(default_factory=list)
    """(N,) the environment and the seat of each trajectory."""
    baselines: dict[str, float] = field(default_factory=dict)
    """Numbers by role, which an estimator may change and checkpoints keep."""
    compute_entropy: Callable[[], Floats] = field(default=lambda: np.zeros(0), repr=False)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                object.__setattr__(self, name, _read_only(value))

    @cached_property
    def entropy(self) -> Floats:
        """(R,) entropy, in nats, of the policy at each token. Reading it costs a forward pass over the batch."""
        return _read_only(self.compute_entropy())

    @cached_property
    def after_kl(self) -> Floats:
        """(T,) reward of each turn, less the KL penalties of its tokens."""
        if self.kl is None:
            return self.unpenalized
        return _read_only(self.unpenalized - np.bincount(self.turn, self.kl, minlength=len(self.unpenalized)))

    @cached_property
    def rewards(self) -> Floats:
        """(T,) reward of each turn, less all penalties."""
        return _read_only(self.after_kl - self.penalties)

    @cached_property
    def returns(self) -> Floats:
        """(N,) sum of each trajectory's rewards."""
        owner = np.repeat(np.arange(len(self.lengths)), self.lengths)
        return _read_only(np.bincount(owner, self.rewards, minlength=len(self.lengths)).astype(np.float64))

    @cached_property
    def tokens(self) -> Ints:
        """(N,) number of response tokens of each trajectory."""
        return _read_only(np.bincount(self.trajectory, minlength=len(self.groups)))


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view
