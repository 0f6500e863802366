"""Sections of the loss, whose ``name`` decides which other keys there are.

:mod:`rollenv.trainers.objective` calls the functions of :mod:`rollenv.trainers.losses` that they name.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from rollenv.trainers.config.section import HomePath, Positive, Section, Share, Weight, union

# -- losses ------------------------------------------------------------------------------------------------------------


def _above_one(limit: float) -> float:
    if limit and limit <= 1:
        raise ValueError(f"is a limit above 1, or 0 for none, not {limit:g}")
    return limit


class Loss(Section):
    """Base of the losses."""

    aggregate: Literal["token", "sequence", "episode", "prompt", "fixed"] = "token"
    """The unit of equal weight: every token, sample, episode (however many samples it has), or task; or every token,
    divided by ``rollout.max_new_tokens``. With a harness, "episode" is the default instead of "token"."""
    entropy: Weight = 0.0
    """Coefficient of the entropy bonus."""
    entropy_samples: Literal["informative", "all"] = "informative"
    """The samples that get the bonus: those whose advantages are not all 0, or those of groups with equal rewards too,
    where nothing but the bonus is trained, at the cost of computing them."""
    final_entropy: Share = 1.0
    """The share of ``entropy`` that is left at the last iteration (linear decay)."""
    imitate: Weight = 0.0
    """Coefficient of the cross-entropy on the responses of successful trajectories."""
    observations: Weight = 0.0
    """Coefficient of the cross-entropy on what the environment says between responses (ECHO)."""
    router: Weight = 0.0
    """Coefficient of the balance of routers, for a mixture of experts (0.001 is usual); 1 is even."""
    routing: Literal["own", "replay"] = "own"
    """The experts of tokens in an update: the trained model's own choice; or those that the tokens went to when they
    were drawn, weighed by the trained model (rollout routing replay, R3)."""


class PpoClip(Loss):
    """Clipped policy gradient (PPO)."""

    name: Literal["ppo_clip"] = "ppo_clip"
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: Positive = 0.28
    dual: Annotated[float, AfterValidator(_above_one)] = 0.0
    """The most that a negative advantage weighs (dual clip, above 1); 0 for no limit."""
    ratio: Literal["token", "turn", "sequence"] = "token"
    """The unit of one ratio; for turns and sequences it is the geometric mean over their tokens."""


class Gspo(Loss):
    """One ratio a sequence (GSPO)."""

    name: Literal["gspo"] = "gspo"
    aggregate: Literal["token", "sequence", "episode", "prompt", "fixed"] = "sequence"
    clip_low: Positive = 3e-4
    clip_high: Positive = 4e-4
    tokens: bool = False
    """The variant whose gradient may differ between tokens (GSPO-token)."""


class Cispo(Loss):
    """Clipped importance weights (CISPO)."""

    name: Literal["cispo"] = "cispo"
    floor: Weight = 0.0
    """The least that a token weighs."""
    cap: Positive = 5.0
    """The most that a token weighs, above ``floor``."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.floor >= self.cap:
            raise ValueError(f"floor={self.floor:g} is not below cap={self.cap:g}")
        return self


class Topr(Loss):
    """Tapered importance weights for what failed (TOPR)."""

    name: Literal["topr"] = "topr"
    positive: Weight = 1.0
    """Weight of what has a positive advantage."""
    negative: Weight = 1.0
    ratio: Literal["token", "sequence"] = "sequence"


class Dppo(Loss):
    """Tokens are left out whose probability moved too far (DPPO)."""

    name: Literal["dppo"] = "dppo"
    low: float = Field(0.2, gt=0, lt=1)
    """The most that a probability may fall."""
    high: float = Field(0.2, gt=0, lt=1)
    """The most that it may rise."""
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
    """The log-ratio of a token is cut below at minus this."""
    high: Positive = 0.4


class PolicyGradient(Loss):
    """The plain policy gradient, for one step a batch."""

    name: Literal["reinforce"] = "reinforce"


_Loss = PpoClip | Gspo | Cispo | Topr | Dppo | Sapo | Gmpo | PolicyGradient
AnyLoss = Annotated[_Loss, Field(discriminator="name"), union("loss", "name", _Loss, base=Loss)]

# -- between the sampler and the trainer -------------------------------------------------------------------------------


class NoCorrection(Section):
    """The sampler's probabilities are the old policy's."""

    name: Literal["none"] = "none"


class Tis(Section):
    """Truncated importance weights of tokens (with ppo_clip: decoupled PPO); of whole sequences as ``seq_tis``."""

    name: Literal["tis", "seq_tis"] = "tis"
    cap: Positive = 2.0


class Mis(Section):
    """Weights above a cap become zero: of tokens, or of whole sequences."""

    name: Literal["mis", "seq_mis"] = "seq_mis"
    cap: Positive = 3.0


class Geo(Section):
    """Sequences count whose geometric mean ratio is near 1."""

    name: Literal["geo"] = "geo"
    band: float = Field(1e-3, gt=0, lt=1)
    cap: Weight = 0.0
    """Tokens of sequences that count weigh as in tis up to this; 0 for a weight of 1."""


class IcePop(Section):
    """Importance weights of tokens within bounds; zero outside."""

    name: Literal["icepop"] = "icepop"
    low: Positive = 0.5
    high: Positive = 5.0


class Opsm(Section):
    """Sequences that failed and have become unlikely are left out."""

    name: Literal["opsm"] = "opsm"
    delta: Positive = 1e-4
    cap: Weight = 0.0
    """Tokens of sequences that count weigh as in tis up to this; 0 for a weight of 1."""


_Correction = NoCorrection | Tis | Mis | Geo | IcePop | Opsm
AnyCorrection = Annotated[_Correction, Field(discriminator="name"), union("correction", "name", _Correction)]

# -- the distance to a reference ---------------------------------------------------------------------------------------


class NoKl(Section):
    """No reference model."""

    name: Literal["none"] = "none"


class KlLoss(Section):
    """A penalty in the loss for leaving the model that the run began with."""

    name: Literal["loss"] = "loss"
    coef: Positive = 0.01
    kind: Literal["k1", "k2", "k3"] = "k3"


class KlReward(Section):
    """A penalty in the rewards for leaving the model that the run began with."""

    name: Literal["reward"] = "reward"
    coef: Positive = 0.01
    kind: Literal["k1", "k2", "k3"] = "k1"
    target: Weight = 0.0
    """The coefficient follows this distance (adaptive); 0 for a fixed one."""
    horizon: Positive = 10_000.0
    """The number of trajectories in which the coefficient adapts."""


_Kl = NoKl | KlLoss | KlReward
AnyKl = Annotated[_Kl, Field(discriminator="name"), union("kl", "name", _Kl)]

# -- a teacher ---------------------------------------------------------------------------------------------------------


class NoDistill(Section):
    """No distillation."""

    name: Literal["none"] = "none"


class Distill(Section):
    """Base of distillation: every token that was drawn learns what a teacher thinks of it (the reverse KL)."""

    coef: Positive = 1.0
    alone: bool = False
    """Learn from the teacher only, not from rewards."""
    low: Share = 0.2
    """Tokens are left out whose probability fell by more than this since they were drawn."""
    square: Weight = 1e-3
    """Coefficient of the squared log-ratio to the sampler."""


def _lasting(path: str) -> str:
    if path == "tiny":
        raise ValueError("names a model that every run makes again; take a checkpoint of one")
    return path


class Teacher(Distill):
    """Another model teaches (on-policy distillation)."""

    name: Literal["teacher"] = "teacher"
    path: Annotated[HomePath, AfterValidator(_lasting)]
    """A Hugging Face model folder or hub name, with the vocabulary of the trained model."""


class Sibling(Distill):
    """The trained model teaches itself: it reads the episode of a member of the group that succeeded first (SDPO)."""

    name: Literal["sibling"] = "sibling"
    decay: float = Field(0.0, ge=0, lt=1)
    """Decay of the teacher's weights: each step moves them by 1 - decay of the way to the trained ones (0.95 is usual);
    0 for the trained weights themselves, which cost no memory."""


_Distill = NoDistill | Teacher | Sibling
AnyDistill = Annotated[_Distill, Field(discriminator="name"), union("distill", "name", _Distill)]
