"""Sections of the loss, with variants chosen by ``name``.

:mod:`rollenv.trainers.objective` calls the matching functions of :mod:`rollenv.trainers.losses`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, Field, Tag, model_validator

from rollenv.trainers.config.section import (
    BUILT_IN,
    OWN,
    HomePath,
    OwnFunction,
    Positive,
    Section,
    Share,
    Weight,
    own_or_built_in,
    union,
    unless,
)

# -- losses ------------------------------------------------------------------------------------------------------------


def _above_one(limit: float) -> float:
    if limit and limit <= 1:
        raise ValueError(f"must be above 1, or 0 for no limit, not {limit:g}")
    return limit


class Loss(Section):
    """Base of the losses."""

    aggregate: Literal["token", "sequence", "episode", "prompt", "fixed"] = "token"
    """The unit with equal weight: token, sample, episode (regardless of its number of samples), or task; "fixed"
    divides the sum over tokens by ``rollout.max_new_tokens``. With a harness, the default is "episode", not "token"."""
    entropy: Weight = 0.0
    """Coefficient of the entropy bonus."""
    entropy_samples: Literal["informative", "all"] = "informative"
    """The samples that get the bonus: those whose advantages are not all 0, or all samples, at the cost of computing
    those that train nothing but the bonus."""
    final_entropy: Share = 1.0
    """The share of ``entropy`` at the last iteration (linear decay)."""
    imitate: Weight = 0.0
    """Coefficient of the cross-entropy on the responses of successful trajectories."""
    observations: Weight = 0.0
    """Coefficient of the cross-entropy on the environment's observations between responses (ECHO)."""
    router: Weight = 0.0
    """Coefficient of the load-balancing loss of a mixture of experts (usually 0.001), which is 1 for an even load:
    the mean over micro-batches (``router/balance`` is that of the whole batch)."""
    routing: Literal["own", "replay"] = "own"
    """The experts of tokens in an update: the trained model's own choice; or those used during sampling, weighted by
    the trained model (rollout routing replay, R3)."""

    def problems(self, run: Any) -> Iterator[str]:
        routed = self.router or self.routing == "replay"
        if routed and run.model.path == "tiny" and not run.model.size.experts:
            yield "loss.router and loss.routing=replay need a mixture of experts; set model.size.experts"
        if self.routing != "replay":
            return
        if run.player.kind != "local" or run.harness.name:
            why = "only player.kind=local reports the experts of every token, and no harness does"
            yield f"loss.routing cannot be replay: {why}"
        if run.distill.name == "sibling":
            yield "loss.routing cannot be replay with distill.name=sibling: a sibling's prompt was never sampled"

    def unused(self, run: Any) -> dict[str, str]:
        whole = run.samples == "trajectory" or not self.observations
        return unless(self.entropy, "loss.entropy above 0", "loss", "entropy_samples", "final_entropy") | unless(
            whole, "rollout.samples=trajectory", "loss.observations"
        )


class PpoClip(Loss):
    """Clipped policy gradient (PPO)."""

    name: Literal["ppo_clip"] = "ppo_clip"
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: Positive = 0.28
    dual: Annotated[float, AfterValidator(_above_one)] = 0.0
    """Upper limit of the ratio for negative advantages (dual clip, above 1); 0 for no limit."""
    ratio: Literal["token", "turn", "sequence"] = "token"
    """The unit of the ratio; for turns and sequences it is the geometric mean over their tokens."""


class Gspo(Loss):
    """One ratio for each sequence (GSPO)."""

    name: Literal["gspo"] = "gspo"
    aggregate: Literal["token", "sequence", "episode", "prompt", "fixed"] = "sequence"
    clip_low: Positive = 3e-4
    clip_high: Positive = 4e-4
    tokens: bool = False
    """The variant with separate gradients for tokens (GSPO-token)."""


class Cispo(Loss):
    """Clipped importance weights (CISPO)."""

    name: Literal["cispo"] = "cispo"
    floor: Weight = 0.0
    """Minimum weight of a token."""
    cap: Positive = 5.0
    """Maximum weight of a token, above ``floor``."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.floor >= self.cap:
            raise ValueError(f"floor={self.floor:g} is not below cap={self.cap:g}")
        return self


class Topr(Loss):
    """Tapered importance weights for negative advantages (TOPR)."""

    name: Literal["topr"] = "topr"
    positive: Weight = 1.0
    """Weight of samples with a positive advantage."""
    negative: Weight = 1.0
    ratio: Literal["token", "sequence"] = "sequence"


class Dppo(Loss):
    """Policy gradient without tokens whose probability changed too much (DPPO)."""

    name: Literal["dppo"] = "dppo"
    low: float = Field(0.2, gt=0, lt=1)
    """Maximum decrease of a probability."""
    high: float = Field(0.2, gt=0, lt=1)
    """Maximum increase of a probability."""
    square: Weight = 1e-3
    """Coefficient of the squared log-ratio (variant "ratio")."""
    variant: Literal["ratio", "truncated"] = "ratio"


class Sapo(Loss):
    """Soft gates instead of clipping (SAPO)."""

    name: Literal["sapo"] = "sapo"
    positive: Positive = 1.0
    """Temperature for positive advantages."""
    negative: Positive = 1.05
    """Temperature for negative advantages."""


class Gmpo(Loss):
    """The geometric mean of clipped ratios (GMPO)."""

    name: Literal["gmpo"] = "gmpo"
    aggregate: Literal["token", "sequence", "episode", "prompt", "fixed"] = "sequence"
    low: Positive = 0.4
    """Lower clip of a token's log-ratio, at minus this."""
    high: Positive = 0.4


class PolicyGradient(Loss):
    """The plain policy gradient, for one optimizer step per batch."""

    name: Literal["reinforce"] = "reinforce"


class Likelihood(Loss):
    """-A log π, for learning from given answers and from preferences: no ratio to a sampler."""

    name: Literal["likelihood"] = "likelihood"


class OwnLoss(Loss, OwnFunction):
    """A function of the user, from a :class:`~rollenv.trainers.losses.LossInput` to a loss for each token."""


_Loss = PpoClip | Gspo | Cispo | Topr | Dppo | Sapo | Gmpo | PolicyGradient | Likelihood
AnyLoss = Annotated[
    Annotated[_Loss, Field(discriminator="name"), Tag(BUILT_IN)] | Annotated[OwnLoss, Tag(OWN)],
    own_or_built_in("name"),
    union("loss", "name", _Loss, base=Loss, open=OwnLoss),
]

# -- between the sampler and the trainer -------------------------------------------------------------------------------


class NoCorrection(Section):
    """No correction: the sampler's probabilities are taken as the old policy's."""

    name: Literal["none"] = "none"


class Tis(Section):
    """Truncated importance weights of tokens (with ppo_clip: decoupled PPO); of whole sequences as ``seq_tis``."""

    name: Literal["tis", "seq_tis"] = "tis"
    cap: Positive = 2.0


class Mis(Section):
    """Importance weights of tokens or whole sequences, zero above a cap."""

    name: Literal["mis", "seq_mis"] = "seq_mis"
    cap: Positive = 3.0


class Geo(Section):
    """Only sequences whose geometric mean ratio is near 1."""

    name: Literal["geo"] = "geo"
    band: float = Field(1e-3, gt=0, lt=1)
    cap: Weight = 0.0
    """Cap of the importance weights of the remaining tokens (see tis); 0 for a weight of 1."""


class IcePop(Section):
    """Importance weights of tokens within bounds; zero outside."""

    name: Literal["icepop"] = "icepop"
    low: Positive = 0.5
    high: Positive = 5.0


class Opsm(Section):
    """Without sequences that have a negative advantage and have become unlikely."""

    name: Literal["opsm"] = "opsm"
    delta: Positive = 1e-4
    cap: Weight = 0.0
    """Cap of the importance weights of the remaining tokens (see tis); 0 for a weight of 1."""


_Correction = NoCorrection | Tis | Mis | Geo | IcePop | Opsm
AnyCorrection = Annotated[_Correction, Field(discriminator="name"), union("correction", "name", _Correction)]

# -- the distance to a reference ---------------------------------------------------------------------------------------


class NoKl(Section):
    """No reference model."""

    name: Literal["none"] = "none"


class KlLoss(Section):
    """A KL penalty in the loss, relative to the initial model."""

    name: Literal["loss"] = "loss"
    coef: Positive = 0.01
    kind: Literal["k1", "k2", "k3"] = "k3"


class KlReward(Section):
    """A KL penalty in the rewards, relative to the initial model."""

    name: Literal["reward"] = "reward"
    coef: Positive = 0.01
    kind: Literal["k1", "k2", "k3"] = "k1"
    target: Weight = 0.0
    """Target KL of an adaptive coefficient; 0 for a fixed coefficient."""
    horizon: Positive = 10_000.0
    """Number of trajectories over which the coefficient adapts."""

    def problems(self, run: Any) -> Iterator[str]:
        rollout = run.rollout
        trajectories = rollout.groups_per_batch * (rollout.group_size + rollout.extra_members)
        if self.target > 0 and 0.2 * trajectories >= self.horizon:
            yield "kl.horizon is too short for so many trajectories per batch: its coefficient could fall to 0"

    def unused(self, run: Any) -> dict[str, str]:
        return unless(self.target, "kl.target above 0", "kl.horizon")


_Kl = NoKl | KlLoss | KlReward
AnyKl = Annotated[_Kl, Field(discriminator="name"), union("kl", "name", _Kl)]

# -- a teacher ---------------------------------------------------------------------------------------------------------


class NoDistill(Section):
    """No distillation."""

    name: Literal["none"] = "none"


class Distill(Section):
    """Base of on-policy distillation: the reverse KL to a teacher on sampled tokens."""

    coef: Positive = 1.0
    alone: bool = False
    """Learn from the teacher only, not from rewards."""
    low: Share = 0.2
    """Maximum decrease of a token's probability since sampling; other tokens are left out."""
    square: Weight = 1e-3
    """Coefficient of the squared log-ratio to the sampler."""

    def problems(self, run: Any) -> Iterator[str]:
        if self.alone and (run.algorithm.name == "ppo" or run.kl.name == "reward"):
            yield (
                "distill.alone uses neither a critic nor a penalty in rewards; take another algorithm.name, "
                "and kl.name=loss or none"
            )

    def unused(self, run: Any) -> dict[str, str]:
        """Return what shapes rewards and advantages, if only the teacher is learned from."""
        shaping: tuple[str, ...] = ("scale", "shift", "clip", "mean", "std", "success_only", "group")
        shaping += ("invalid_penalty", "overlong")
        shaping += () if isinstance(run.rewards.at_limit, str) else ("at_limit",)
        own = {key for loss in get_args(_Loss) for key in loss.model_fields} - Loss.model_fields.keys()
        own |= (run.loss.model_extra or {}).keys()
        unread = ("algorithm", "correction", *(f"rewards.{key}" for key in shaping))
        unread += ("loss.name", *(f"loss.{key}" for key in own))
        return dict.fromkeys(unread, "distill.alone=false") if self.alone else {}


def _lasting(path: str) -> str:
    if path == "tiny":
        raise ValueError("is a model that every run builds anew; use a checkpoint of one")
    return path


class Teacher(Distill):
    """On-policy distillation from another model."""

    name: Literal["teacher"] = "teacher"
    path: Annotated[HomePath, AfterValidator(_lasting)]
    """A Hugging Face model folder or hub name, with the vocabulary of the trained model."""


class Sibling(Distill):
    """Self-distillation: the teacher is the trained model after reading a successful episode of the group (SDPO)."""

    name: Literal["sibling"] = "sibling"
    decay: float = Field(0.0, ge=0, lt=1)
    """Decay of the teacher's weights, a moving average of the trained ones (usually 0.95); 0 for the trained weights
    themselves, without extra memory."""


_Distill = NoDistill | Teacher | Sibling
AnyDistill = Annotated[_Distill, Field(discriminator="name"), union("distill", "name", _Distill)]
