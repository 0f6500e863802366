"""Settings of the advantage estimator: a section with variants, chosen by ``name``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from rollenv.trainers.config.section import (
    BUILT_IN,
    OWN,
    Discount,
    OwnFunction,
    Positive,
    Scope,
    Section,
    Share,
    Weight,
    own_or_built_in,
    union,
    unless,
)


class Algorithm(Section):
    """Base of the advantage estimators."""

    whiten: bool = False
    """Normalise advantages over all response tokens of the batch to mean 0 and standard deviation 1."""
    clip_advantage: Weight = 0.0
    """Clip advantages at plus and minus this; 0 for no limit."""


class Grpo(Algorithm):
    """A trajectory against its group (GRPO; without the standard deviation Dr. GRPO)."""

    name: Literal["grpo"] = "grpo"
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation."""


class Rloo(Algorithm):
    """A trajectory against the mean of the other members of its group."""

    name: Literal["rloo"] = "rloo"


class Reinforce(Algorithm):
    """The return itself."""

    name: Literal["reinforce"] = "reinforce"


class ReinforcePlusPlus(Algorithm):
    """Returns normalised over all tokens of the batch (REINFORCE++)."""

    name: Literal["reinforce_pp"] = "reinforce_pp"
    baseline: bool = True
    """Subtract the group's mean first."""


class MaxRl(Algorithm):
    """A trajectory against its group, relative to the group's mean (MaxRL)."""

    name: Literal["maxrl"] = "maxrl"


class Rebn(Algorithm):
    """Discounted returns of turns, normalised over the batch (ReBN)."""

    name: Literal["rebn"] = "rebn"
    gamma: Discount = 0.9
    """Discount per turn."""


class StepReinforce(Algorithm):
    """Discounted returns of turns."""

    name: Literal["step_reinforce"] = "step_reinforce"
    gamma: Discount = 0.95
    """Discount per turn."""
    mean: Scope = "group"
    """The turns whose mean is subtracted."""
    std: Scope = "group"
    """The turns whose standard deviation is divided by."""


class Gigpo(Algorithm):
    """A trajectory against its group, and a turn against other turns in the same state (GiGPO)."""

    name: Literal["gigpo"] = "gigpo"
    normalize_std: bool = True
    """Divide both advantages by their standard deviations."""
    gamma: Discount = 0.95
    """Discount of the step returns."""
    step_weight: Weight = 1.0
    """Weight of the step advantage (omega)."""
    statistics: Literal["trajectories", "rows"] = "trajectories"
    """Population of a group's mean: trajectories, as in the paper, or all their turns, as in the authors' code."""
    similarity: Share = 1.0
    """States with at least this similarity count as the same; 1 for equal states only."""


class Hgpo(Algorithm):
    """A turn against other turns with the same last states, for histories of several lengths (HGPO)."""

    name: Literal["hgpo"] = "hgpo"
    normalize_std: bool = True
    gamma: Discount = 0.95
    """Discount of the step returns."""
    history: int = Field(2, ge=0)
    """Maximum number of earlier states that have to agree, besides the current one."""
    alpha: Weight = 1.0
    """Exponent of the weights: larger values favour longer histories."""
    base_group: bool = False
    """Compare whole trajectories as well."""


class Empg(Algorithm):
    """A trajectory against its group, where turns with high entropy count less (EMPG)."""

    name: Literal["empg"] = "empg"
    normalize_std: bool = True
    scale: Weight = 1.0
    """Strength of the damping of turns with high entropy."""
    bonus: Weight = 0.1
    """Weight of the bonus for a turn whose next turn has low entropy."""
    future_scale: Weight = 1.0
    """Weight of the next turn's entropy, which lowers the bonus."""

    def unused(self, run: Any) -> dict[str, str]:
        return unless(self.bonus, "algorithm.bonus above 0", "algorithm.future_scale")


class MtGrpo(Algorithm):
    """A trajectory's last reward, and that of each earlier turn, against the same turn of its group (MT-GRPO)."""

    name: Literal["mt_grpo"] = "mt_grpo"
    normalize_std: bool = True
    turn_weight: Positive = 0.5
    """Weight of a turn's own reward relative to the last one (lambda)."""


class CriticConfig(Section):
    """The model that predicts returns."""

    kind: Literal["model", "head"] = "model"
    """A separate model, initialised from the policy; or a head on the policy's hidden states, without gradients to the
    policy."""
    lr: Positive = 1e-5
    warm_up: int = Field(0, ge=0)
    """Iterations in which only the critic learns."""
    clip: Weight = 0.2
    """Clip range of the value loss: how far a prediction may move in an update; 0 for no limit."""


class Ppo(Algorithm):
    """Advantages of a critic (generalised advantage estimation)."""

    name: Literal["ppo"] = "ppo"
    credit: Literal["token", "turn", "bi_level"] = "token"
    """The step of the estimator: a token; a turn (Turn-PPO); or a turn, then its tokens (VAGEN)."""
    gamma: Discount = 1.0
    lam: Share = 0.95
    turn_gamma: Discount = 0.99
    """Discount per turn, with ``credit`` turn or bi_level."""
    turn_lam: Share = 0.9
    critic: CriticConfig = CriticConfig()

    def unused(self, run: Any) -> dict[str, str]:
        by_token, by_turn = ("gamma", "lam"), ("turn_gamma", "turn_lam")
        return unless(self.credit != "turn", "algorithm.credit other than turn", "algorithm", *by_token) | unless(
            self.credit != "token", "algorithm.credit=turn", "algorithm", *by_turn
        )


class RoleBaseline(Algorithm):
    """The return less a running mean for each environment and seat (SPIRAL's RAE, arXiv 2506.24119, section 3.3)."""

    name: Literal["role_baseline"] = "role_baseline"
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Weight of the earlier mean as a trajectory is added."""


class Imitation(Algorithm):
    """A turn's weight, its own reward: with ``loss.name=likelihood`` on ``StoredBatches``, SFT (preset ``sft``)."""

    name: Literal["imitation"] = "imitation"

    def problems(self, run: Any) -> Iterator[str]:
        if run.batches.kind != "stored":
            yield "algorithm.name=imitation learns from given answers: set batches.kind=stored, or use rollenv sft"


# -- preferences: losses of pairs of trajectories ----------------------------------------------------------------------


class Preference(Algorithm):
    """Base of the preference losses. Pairs are trajectories of one group, the preferred one with the higher return."""

    @property
    def reads_reference(self) -> bool:
        """True if the loss reads log-probabilities of the reference."""
        return True

    def problems(self, run: Any) -> Iterator[str]:
        name = getattr(self, "name", "")
        if run.loss.name != "likelihood":
            yield f"algorithm.name={name} needs loss.name=likelihood; write algorithm={name}, which sets both"
        if self.whiten or self.clip_advantage:
            yield f"algorithm.name={name} has no advantages: leave out algorithm.whiten and algorithm.clip_advantage"
        for key, used in (
            ("kl.name", run.kl.name != "none"),
            ("distill.name", run.distill.name != "none"),
            ("correction.name", run.correction.name != "none"),
            ("loss.entropy", run.loss.entropy),
            ("loss.imitate", run.loss.imitate),
        ):
            if used:
                yield f"algorithm.name={name} is a whole loss of its own; leave out {key}"

    def unused(self, run: Any) -> dict[str, str]:
        weights = ("loss.aggregate", "optimizer.minibatch_sequences", "rewards.length_weight")
        return dict.fromkeys((*weights, "rewards.difficulty_weight"), "an algorithm.name that has advantages")


class PairedPreference(Preference):
    """Base of the losses of pairs."""

    beta: Positive = 0.1
    """How strongly the policy is held to the initial model, which is the reference."""
    pairs: Literal["all", "extremes"] = "all"
    """The pairs of a group: every two with different returns, or the best and the worst only."""
    margin: Weight = 0.0
    """The least difference of the returns of a pair."""
    parted: bool = True
    """Leave the turns out that a pair shares, up to where the two part."""
    sft: Weight = 0.0
    """Coefficient of the cross-entropy on the preferred trajectories, which keeps their probability from falling."""


class Dpo(PairedPreference):
    """Direct preference optimisation: -log σ(β margin) of log-ratios to the initial model (DPO)."""

    name: Literal["dpo"] = "dpo"
    smoothing: float = Field(0.0, ge=0, lt=0.5)
    """The share of pairs that are labelled the wrong way (cDPO)."""
    robust: bool = False
    """Correct for that share without bias (robust DPO), instead of smoothing labels."""


class Ipo(PairedPreference):
    """A squared distance of the margin to 1 / (2 β), with means over tokens (IPO)."""

    name: Literal["ipo"] = "ipo"


class Kto(Preference):
    """Good and bad trajectories without pairs, against the mean of their group (KTO)."""

    name: Literal["kto"] = "kto"
    beta: Positive = 0.1
    """How strongly the policy is held to the initial model, which is the reference."""
    desirable: Weight = 1.0
    """Weight of good trajectories."""
    undesirable: Weight = 1.0
    """Weight of bad trajectories."""


class Simpo(PairedPreference):
    """Margins of mean log-probabilities without a reference (SimPO)."""

    name: Literal["simpo"] = "simpo"
    beta: Positive = 2.0
    """Scale of the margin."""
    gamma: Weight = 1.0
    """The wanted margin, after scaling."""

    @property
    def reads_reference(self) -> bool:
        return False


class Dmpo(PairedPreference):
    """DPO in which early turns weigh more (DMPO)."""

    name: Literal["dmpo"] = "dmpo"
    gamma: Discount = 0.7
    """Discount of turns; 1 weighs turn t of T by (T - t) / T."""


class BradleyTerry(Preference):
    """A reward model (:mod:`rollenv.trainers.reward_model`): -log σ of the difference of the scores of a pair."""

    name: Literal["reward_model"] = "reward_model"
    smoothing: float = Field(0.0, ge=0, lt=0.5)
    """The share of pairs that are labelled the wrong way."""
    margin: Weight = 0.0
    """The wanted difference of scores, for a difference of returns of 1."""
    centre: Weight = 0.0
    """Coefficient of the squared sum of a pair's scores, which keeps their mean near 0 (usually 0.01)."""

    @property
    def reads_reference(self) -> bool:
        return False

    def problems(self, run: Any) -> Iterator[str]:
        yield from super().problems(run)
        if run.batches.kind != "stored" or run.environments() or run.eval.measures or run.player.kind != "local":
            yield (
                "algorithm.name=reward_model scores episodes and plays none: set batches.kind=stored, and leave out "
                "env.id, eval.parts, eval.measures and player; or use rollenv reward-model"
            )


# -- the user's own ----------------------------------------------------------------------------------------------------


class OwnAlgorithm(Algorithm, OwnFunction):
    """A function of the user, from an :class:`~rollenv.trainers.advantages.AdvantageInput` to (R,) advantages."""


_Algorithm = (
    Grpo
    | Rloo
    | Reinforce
    | ReinforcePlusPlus
    | MaxRl
    | Rebn
    | StepReinforce
    | Gigpo
    | Hgpo
    | Empg
    | MtGrpo
    | Ppo
    | RoleBaseline
    | Imitation
    | Dpo
    | Ipo
    | Kto
    | Simpo
    | Dmpo
    | BradleyTerry
)
AnyAlgorithm = Annotated[
    Annotated[_Algorithm, Field(discriminator="name"), Tag(BUILT_IN)] | Annotated[OwnAlgorithm, Tag(OWN)],
    own_or_built_in("name"),
    union("algorithm", "name", _Algorithm, base=Algorithm, open=OwnAlgorithm),
]
