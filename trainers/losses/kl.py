"""KL divergence from a reference policy: estimators, the loss, and an adaptive coefficient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rollenv.trainers.losses.types import LossInput, TokenLoss, require

Kind = Literal["k1", "k2", "k3"]

#: k3 grows with the ratio; it is clipped here, as in ROLL and verl, without a gradient beyond.
MAX_K3 = 10.0


def kl_estimate(logprobs: Tensor, reference: Tensor, kind: Kind = "k3") -> Tensor:
    """Estimate KL(π || reference) from tokens of π (Schulman, 2020, "Approximating KL divergence").

    With d = log π - log reference: k1 = d, unbiased; k2 = d²/2, biased; k3 = exp(-d) + d - 1, unbiased and never
    negative, clipped at 10. The gradient is that of the estimate. Over tokens of π, only k2 has the gradient of the KL:
    the mean gradient of k1 is zero, and that of k3 belongs to KL(reference || π).

    Returns:
        (n,)
    """
    require(kind in ("k1", "k2", "k3"), f"KL estimates are k1, k2 and k3, not {kind!r}")
    d = logprobs - reference
    if kind == "k1":
        return d
    if kind == "k2":
        return d**2 / 2
    d = d.clamp(-20, 20)  # k3 is clipped there anyway, and exp stays finite
    return ((-d).exp() + d - 1).clamp(max=MAX_K3)


def kl_loss(
    x: LossInput, coefficient: float, *, kind: Kind = "k3", gradient: Literal["own", "k2"] = "own"
) -> TokenLoss:
    """``coefficient`` times the estimate of KL(π || reference), to be added to a policy loss (GRPO, 2402.03300, eq. 4).

    With ``gradient="k2"`` the value is that of ``kind`` and the gradient that of k2: the KL's, without clipping.

    Args:
        gradient: "own" for the gradient of the estimate, "k2" for that of k2.
    """
    require(x.reference is not None, "a KL loss needs log-probabilities of a reference policy: configure one")
    assert x.reference is not None
    require(gradient in ("own", "k2"), f"the gradient of a KL loss is own or k2, not {gradient!r}")
    kl = kl_estimate(x.logprobs, x.reference, kind)
    values = kl
    if gradient == "k2":
        k2 = kl_estimate(x.logprobs, x.reference, "k2")
        values = kl.detach() + k2 - k2.detach()
    return TokenLoss(coefficient * values, {"reference_kl": kl.detach()})


@dataclass(slots=True)
class AdaptiveKL:
    """The coefficient of a KL penalty: fixed, or adapted to a target (Ziegler et al., 1909.08593, section 2.2).

    beta <- beta (1 + clip(kl / target - 1, -0.2, 0.2) n / horizon) after each batch of n trajectories.
    """

    coefficient: float = 0.2
    target: float | None = None
    """None keeps the coefficient."""
    horizon: float = 10_000

    def __post_init__(self) -> None:
        require(self.coefficient >= 0, f"a KL coefficient is at least 0, not {self.coefficient}")
        require(self.target is None or self.target > 0, f"a KL target is above 0, not {self.target}")
        require(self.horizon > 0, f"a KL horizon is above 0, not {self.horizon}")

    def update(self, kl: float, n: int) -> None:
        """Adapt the coefficient to a batch. A mean KL that is not finite is ignored.

        Args:
            n: trajectories in the batch, fewer than five times the horizon.
        """
        if self.target is None or not math.isfinite(kl):
            return
        require(0.2 * n < self.horizon, f"a KL horizon of {self.horizon:g} is too short for {n} trajectories: raise it")
        self.coefficient *= 1 + min(max(kl / self.target - 1, -0.2), 0.2) * n / self.horizon

    def state_dict(self) -> dict[str, float]:
        """Return the state for a checkpoint; target and horizon come from the settings."""
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore the coefficient of a checkpoint."""
        self.coefficient = state["coefficient"]
