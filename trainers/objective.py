"""The loss of a micro-batch by the settings: one number per response token, summed with weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from rollenv.core.errors import UsageError
from rollenv.core.plugins import users_code
from rollenv.trainers import losses
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.losses import KlLoss, Loss, NoDistill
from rollenv.trainers.config.own import own_arguments
from rollenv.trainers.config.section import OwnFunction, arguments
from rollenv.trainers.losses import Correction, LossInput, TokenLoss
from rollenv.trainers.policies.base import Outputs
from rollenv.trainers.policies.packed import Packed
from rollenv.trainers.policies.routing import balance

#: Policy losses by their names in recipes, whose keys are their arguments.
POLICY_LOSSES: dict[str, Callable[..., TokenLoss]] = {
    "ppo_clip": lambda x, clip_low, clip_high, dual, ratio: losses.ppo_clip(
        x, low=clip_low, high=clip_high, dual=dual or None, ratio=ratio
    ),
    "gspo": lambda x, tokens, clip_low, clip_high: (losses.gspo_token if tokens else losses.gspo)(
        x, low=clip_low, high=clip_high
    ),
    "cispo": losses.cispo,
    "topr": lambda x, positive, negative, ratio: losses.topr(x, positive=positive, negative=negative, level=ratio),
    "dppo": losses.dppo,
    "sapo": losses.sapo,
    "gmpo": losses.gmpo,
    "reinforce": losses.reinforce,
    "likelihood": losses.likelihood,
}

CORRECTIONS: dict[str, Callable[..., Correction]] = {
    "tis": lambda x, c: losses.tis(x, cap=c.cap),
    "seq_tis": lambda x, c: losses.seq_tis(x, cap=c.cap),
    "mis": lambda x, c: losses.mis(x, cap=c.cap, level="token"),
    "seq_mis": lambda x, c: losses.mis(x, cap=c.cap, level="sequence"),
    "geo": lambda x, c: _with_tis(losses.geo(x, band=c.band), x, c.cap),
    "icepop": lambda x, c: losses.icepop(x, low=c.low, high=c.high),
    "opsm": lambda x, c: _with_tis(losses.opsm(x, delta=c.delta), x, c.cap),
}


def _with_tis(mask: Correction, x: LossInput, cap: float) -> Correction:
    return losses.combine(mask, losses.tis(x, cap=cap)) if cap else mask


def _own(x: LossInput, settings: OwnFunction) -> TokenLoss:
    """Call the user's function and check its result."""
    what, given = f"loss.name={settings.name}", own_arguments(settings, "loss")
    tensors = {f.name: t for f in fields(x) if (t := getattr(x, f.name)) is not None}
    before = {name: tensor._version for name, tensor in tensors.items()}
    with users_code(what):
        found = settings.function(x, **given)
    if changed := [name for name, tensor in tensors.items() if tensor._version != before[name]]:
        raise UsageError(f"{what} changes x.{changed[0]} in place; compute a new tensor instead")
    loss = TokenLoss(found) if isinstance(found, Tensor) else found
    if not isinstance(loss, TokenLoss) or not isinstance(loss.values, Tensor):
        raise UsageError(f"{what} returned {type(found).__name__}; it has to return a tensor or a TokenLoss")
    for name, values in {"loss": loss.values, **loss.metrics}.items():
        if (shape := tuple(getattr(values, "shape", ()))) != (n := len(x.logprobs),):
            raise UsageError(
                f"{what} returned {name} values of the shape {shape}; it has to return one for each of the {n} tokens, "
                f"shape ({n},): loss.aggregate takes their mean"
            )
    if x.logprobs.requires_grad and not loss.values.requires_grad:
        raise UsageError(f"{what} returned a loss without a gradient; it has to depend on x.logprobs, not detached")
    wrong = loss.values[~loss.values.isfinite()]
    if len(wrong) and all(tensor.isfinite().all() for tensor in tensors.values()):
        raise UsageError(f"{what} returned {wrong[0].item()} for {len(wrong)} tokens, of inputs that are finite")
    return TokenLoss(loss.values, {name: values.detach() for name, values in loss.metrics.items()})


@dataclass(slots=True)
class Objective:
    """The loss of a micro-batch."""

    config: TrainConfig
    experts_per_token: int = 0

    @property
    def recomputes(self) -> bool:
        """True if the log-probabilities of the policy at the start of an update have to be computed."""
        how, corrects = self.config.optimizer.old_logprobs, self.config.correction.name != "none"
        return how == "recomputed" or (how == "sampled" and corrects)

    @property
    def taught_alone(self) -> bool:
        """True if the policy learns from a teacher only, not from rewards."""
        return not isinstance(self.config.distill, NoDistill) and self.config.distill.alone

    @property
    def trains_zero_advantages(self) -> bool:
        """True if samples whose advantages are all 0 have a gradient too."""
        loss = self.config.loss
        everywhere = loss.entropy > 0 and loss.entropy_samples == "all"
        return bool(everywhere or loss.imitate or loss.observations or isinstance(self.config.kl, KlLoss))

    def __call__(
        self, batch: Packed, out: Outputs, *, entropy: float, observed: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of a micro-batch.

        Returns:
            This micro-batch's part of the step's loss; and metrics, (n,) each.
        """
        assert out.logprobs is not None
        columns, config = batch.columns, self.config
        x = LossInput(
            out.logprobs,
            self._proximal(out.logprobs, columns),
            columns["behavior"],
            columns["advantages"],
            batch.sequences,
            batch.turns,
            columns.get("reference"),
            out.entropy,
        )
        loss = self._main(x, columns.get("teacher"))
        values, metrics = loss.values, {"loss": loss.values.detach(), **loss.metrics}
        if "ratio" in metrics:
            metrics["ratio_squared"] = metrics["ratio"].double() ** 2
        if isinstance(config.kl, KlLoss):
            kl = losses.kl_loss(x, config.kl.coef, kind=config.kl.kind)
            values, metrics = values + kl.values, metrics | kl.metrics
        if config.loss.imitate:
            values = values + config.loss.imitate * columns["imitate"] * losses.imitation(x.logprobs).values
        if out.entropy is not None:
            bonus = losses.entropy_bonus(x, entropy)
            values, metrics = values + bonus.values, metrics | bonus.metrics
        total = (columns["weights"] * values).sum()
        if out.router is not None:
            even = balance(out.router, self.experts_per_token)[0]
            total = total + config.loss.router * columns["weights"].sum() * even
        elif config.loss.router:
            raise UsageError("this model does not report the choices of its routers; leave out loss.router")
        if out.observations is not None:
            total = total + losses.echo(out.observations, config.loss.observations).values.sum() / max(observed, 1)
        return total, metrics

    def _proximal(self, logprobs: Tensor, columns: dict[str, Tensor]) -> Tensor:
        """Return the (n,) log-probabilities in the denominator of ratios."""
        if self.config.optimizer.old_logprobs == "interpolated":
            return losses.interpolated(logprobs, columns["behavior"], columns["staleness"])
        return columns.get("proximal", columns["behavior"])

    def _main(self, x: LossInput, teacher: Tensor | None) -> TokenLoss:
        """Return the loss of the rewards and of a teacher."""
        config = self.config
        taught = None if teacher is None else self._taught(x, teacher)
        if taught and self.taught_alone:
            return taught
        if isinstance(config.loss, OwnFunction):
            loss = _own(x, config.loss)
        else:
            loss = POLICY_LOSSES[config.loss.name](x, **arguments(config.loss, Loss))
        if config.correction.name != "none":
            loss = losses.corrected(loss, CORRECTIONS[config.correction.name](x, config.correction))
        if taught is None:
            return loss
        return TokenLoss(loss.values + taught.values, taught.metrics | loss.metrics)

    def _taught(self, x: LossInput, teacher: Tensor) -> TokenLoss:
        """Return the distillation loss; 0 for tokens without a teacher, where ``teacher`` is NaN."""
        settings = self.config.distill
        assert not isinstance(settings, NoDistill)
        has_teacher = ~teacher.isnan()
        known = torch.where(has_teacher, teacher, x.logprobs.detach())
        loss = losses.distill(x, known, low=settings.low, square=settings.square)
        return TokenLoss(settings.coef * has_teacher * loss.values, loss.metrics)
