"""The columns of a batch: what models say of its tokens, and from it their advantages and weights.

A column has one number for each response token, (R,). Those that a model computes are shared out over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from rollenv.core.errors import RollenvError, UsageError
from rollenv.rollout.types import Group
from rollenv.trainers import credit, losses
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.algorithms import Kto, Preference
from rollenv.trainers.config.losses import KlReward
from rollenv.trainers.diagnostics import AGES, by_bucket, explained_variance, floats, mismatch, quantiles
from rollenv.trainers.experience import (
    Experience,
    Floats,
    experience,
    last_states,
    micro_batches,
    shares,
    with_successful_sibling,
)
from rollenv.trainers.objective import Objective
from rollenv.trainers.policies.base import HIDDEN, LogprobReader
from rollenv.trainers.policies.packed import Packed, pack, with_zero_weight
from rollenv.trainers.preferences import Preferences, mismatched
from rollenv.trainers.training_state import TrainingState


class TrainingError(RollenvError):
    """Training cannot continue; the checkpoints are intact."""


@dataclass(slots=True)
class MicroBatch:
    """A micro-batch of one rank. All ranks have the same number, since they compute together."""

    samples: list[int]
    batch: Packed
    counts: bool
    """True if it is part of the batch; False for padding without weight."""
    last: bool
    """True for the last micro-batch of a step."""


class Columns:
    """Computes the columns of a run's batches."""

    def __init__(self, config: TrainConfig, state: TrainingState):
        self.config, self.state = config, state
        self.objective = Objective(config, state.policy.scorer.experts_per_token)
        self._of_reference: dict[bytes, Floats] = {}
        """Log-probabilities in the reference, by the tokens of a given sample."""
        self.vocabulary = int(state.policy.model.config.get_text_config().vocab_size)
        if config.rewards.drop_gibberish >= self.vocabulary:
            raise UsageError(
                f"rewards.drop_gibberish={config.rewards.drop_gibberish} drops nothing: token ids of the model are "
                f"below {self.vocabulary}"
            )

    def compute_advantages(self, groups: Sequence[Group], metrics: dict[str, float]) -> Experience:
        """Compute an advantage and a weight for each response token of a batch.

        Raises:
            TrainingError: no episode has a turn.
            UsageError: a reward is not finite.
        """
        config, state = self.config, self.state
        if state.ranks.first:
            state.version = state.player.version
        state.ranks.send_command("learn", state.iteration, config.iterations, state.version, list(groups))
        data = experience(groups, config.samples, replay=config.loss.routing == "replay")
        if not len(data):
            played = any(t.status != "failed" for group in groups for t in group)
            raise TrainingError(
                f"no episode of iteration {state.iteration + 1} had a turn: the first prompts leave no room for an "
                "answer. Shorten them (prompt.template, prompt.examples, prompt.max_observation), or raise "
                "rollout.max_prompt_tokens or the model's context"
                if played
                else f"no episode of iteration {state.iteration + 1} could be played to its end: see health.json"
            )
        metrics["drift"] = data.drift
        self._assign(data, groups, metrics)
        return data

    def _assign(self, data: Experience, groups: Sequence[Group], metrics: dict[str, float]) -> None:
        """Write the advantages and weights of a batch."""
        config, state = self.config, self.state
        data.dropped = credit.dropped(data, config.rewards, self.vocabulary)
        if (keep := config.rollout.keep).masks:
            outside = np.array([not keep.passes(group, config.rewards.success_only) for group in groups])
            data.dropped["out_of_bounds"] = outside[data.groups]
        data.columns["staleness"] = (state.version - data.versions).astype(np.float64)
        shaped = state.shaper(data)
        shaped.baselines = state.baselines
        self._score(data, metrics)
        if state.reference:
            shaped.kl = self._kl_penalty(data, metrics)
        if isinstance(config.algorithm, Preference):
            self._compare(data, shaped, config.algorithm)
            return
        if critic := state.critic:

            def valued(batch: Packed) -> torch.Tensor:
                return critic.values(batch, self.hidden_states(batch))

            data.columns["values"] = self._compute_columns(data, valued)
            cut, states = last_states(data)
            shaped.bootstrap = np.zeros(len(data.trajectories))
            if len(cut):
                shaped.bootstrap[cut] = self._compute_columns(states, valued)
        credit.assign(data, shaped, config.algorithm, lambda: self._logprobs(data, state.policy, "entropy"))
        if config.algorithm.name in ("gigpo", "hgpo"):
            metrics["recurring_states"] = credit.recurring(data.turns, np.repeat(data.groups, data.lengths).tolist())
        if self.objective.taught_alone:
            data.columns["advantages"][:] = 0.0
        if state.critic:
            targets = ~np.isnan(data.columns["returns"])
            values, returns = data.columns["values"][targets], data.columns["returns"][targets]
            metrics |= {"explained_variance": explained_variance(values, returns)} | quantiles("return", returns)
        if config.batches.kind != "stored":
            metrics |= quantiles("advantage", data.columns["advantages"])
        data.columns["weights"] = self._weights(data)
        if config.loss.imitate:
            solved = np.array([bool(t.success) for t in data.trajectories], dtype=np.float64)
            data.columns["imitate"] = solved[data.trajectory]

    def measure(self, groups: Sequence[Group]) -> dict[str, float]:
        """Compute the loss of given episodes, and the other metrics of preferences."""
        self.state.ranks.send_command("measure", list(groups))
        data = experience(groups, self.config.samples)
        logprobs = self._logprobs(data, self.state.policy)
        if isinstance(self.config.algorithm, Preference):
            found = self._compare(data, self.state.shaper(data), self.config.algorithm)
            reference = self._reference_logprobs(data) if self.state.reference else None
            return found.advantages(logprobs, reference)[1]
        weights = np.array([turn.reward for turn in data.turns])[data.turn]
        return {"loss": float(-(weights * logprobs).sum() / weights.sum())}

    def _compare(self, data: Experience, shaped: credit.Shaped, settings: Preference) -> Preferences:
        """Find the pairs of a batch; each step computes its advantages from them (:meth:`_prefer`)."""
        rows = zip(shaped.rewards, shaped.penalties, strict=True)
        returns = np.array([sum(rewards) - sum(penalties) for rewards, penalties in rows])
        data.preferences = found = Preferences(data, returns, settings)
        data.columns |= {"advantages": found.taught.astype(np.float64), "weights": np.ones(len(data))}
        return found

    def _prefer(self, data: Experience, step: list[int]) -> dict[str, float]:
        """Write the advantages of a step's preferences, under the policy as it is now; return their metrics."""
        found, state = data.preferences, self.state
        if isinstance(found.settings, Kto) and state.reference:
            others = experience(mismatched(data), self.config.samples)
            away = self._logprobs(others, state.policy) - self._logprobs(others, state.reference)
            found.mismatch = float(away.sum() / len(others.trajectories))
        logprobs = np.nan_to_num(self._logprobs(data, state.policy, samples=step))
        metrics: dict[str, float]
        data.columns["advantages"], metrics = found.advantages(logprobs, data.columns.get("reference"))
        return metrics

    def _reference_logprobs(self, data: Experience) -> Floats:
        """Return (R,) log-probabilities of the reference; those of given episodes, which return, are computed once."""
        reference = self.state.reference
        assert reference is not None
        if self.config.batches.kind != "stored":
            return self._logprobs(data, reference)
        keys = [sample.ids.tobytes() + sample.mask.tobytes() for sample in data.samples]
        if unknown := [i for i, key in enumerate(keys) if key not in self._of_reference]:
            computed = self._logprobs(data, reference, samples=unknown)
            self._of_reference |= {keys[i]: computed[data.starts[i] : data.starts[i + 1]] for i in unknown}
        return np.concatenate([self._of_reference[key] for key in keys])

    def _score(self, data: Experience, metrics: dict[str, float]) -> None:
        """Compute the log-probabilities of the policy, its reference and a teacher, where needed, and their metrics."""
        columns = data.columns
        columns |= self._read_models(data)
        if self.objective.recomputes:
            metrics |= sampler_divergence(columns["proximal"], columns["behavior"], columns["staleness"])
        if self.config.distill.name != "none":
            taught = ~np.isnan(columns["teacher"])
            metrics["taught"] = float(taught.mean())
            metrics["teacher_kl"] = float(
                (columns["behavior"] - columns["teacher"])[taught].sum() / max(taught.sum(), 1)
            )

    def _read_models(self, data: Experience) -> dict[str, Floats]:
        """Return (R,) columns that models compute."""
        state, columns = self.state, dict[str, Floats]()
        if self.objective.recomputes:
            columns["proximal"] = self._logprobs(data, state.policy)
        if state.reference:
            columns["reference"] = self._reference_logprobs(data)
        if self.config.distill.name != "none":
            columns["teacher"] = self._teacher_logprobs(data)
        return columns

    def _teacher_logprobs(self, data: Experience) -> Floats:
        """Return (R,) log-probabilities in the teacher; NaN for tokens without one."""
        teacher = self.state.teacher
        if teacher and self.config.distill.name == "teacher":
            return self._logprobs(data, teacher)
        shown, taught = with_successful_sibling(data, self.state.context)
        return self._logprobs(shown, teacher or self.state.policy, samples=taught)

    def _kl_penalty(self, data: Experience, metrics: dict[str, float]) -> Floats | None:
        """Return the (R,) KL penalties of tokens, if rewards include them, and update their coefficient."""
        settings, kl = self.config.kl, self.state.kl
        if not isinstance(settings, KlReward) or kl is None:
            return None
        policy = torch.from_numpy(data.columns.get("proximal", data.columns["behavior"]))
        away = losses.kl_estimate(policy, torch.from_numpy(data.columns["reference"]), kind=settings.kind)
        penalty: Floats = kl.coefficient * away.numpy()
        metrics |= {"reference_kl": float(away.mean()), "kl_coefficient": kl.coefficient}
        kl.update(float(away.mean()), len(data.trajectories))
        return penalty

    def _weights(self, data: Experience) -> Floats:
        """Return the (R,) weights of tokens."""
        kind, units, length = self.config.loss.aggregate, data.sequence, None
        if kind == "fixed":
            length = self.config.rollout.max_new_tokens
        if kind == "episode":
            kind, units = "sequence", data.trajectory
        # The others have no weight, so a batch in which many are dropped has the same gradient as one without them.
        kept, weights = data.kept[data.trajectory], np.zeros(len(data))
        weights[kept] = losses.token_weights(kind, units[kept], data.prompt[kept], length=length)
        return credit.with_trajectory_weights(data, self.config.rewards, weights)

    def _logprobs(
        self,
        data: Experience,
        policy: LogprobReader,
        what: Literal["logprobs", "entropy"] = "logprobs",
        samples: Sequence[int] | None = None,
    ) -> Floats:
        """Return (R,) log-probabilities or entropies of response tokens; NaN for those of other samples."""

        def compute(batch: Packed) -> torch.Tensor:
            scores: torch.Tensor = getattr(policy.logprobs(batch, (what,)), what)
            return scores

        return self._compute_columns(data, compute, samples, reader=policy)

    def _compute_columns(
        self,
        data: Experience,
        compute: Callable[[Packed], torch.Tensor],
        samples: Sequence[int] | None = None,
        *,
        reader: LogprobReader | None = None,
    ) -> Floats:
        """Compute (R,) numbers of response tokens of some samples (by default all) over all ranks; NaN for others."""
        out = np.zeros(len(data))
        for piece in self.micro_batches(data, samples, reader=reader):
            with torch.no_grad():
                numbers = floats(compute(piece.batch))
            if piece.counts:
                out[data.rows(piece.samples)] = numbers
        out = self.state.ranks.sum(out)
        if samples is not None:
            out[np.isin(data.sequence, samples, invert=True)] = np.nan
        return out

    def hidden_states(self, batch: Packed) -> torch.Tensor | None:
        """Compute the policy's hidden states if the critic is a head on them."""
        critic = self.state.critic
        if critic is None or critic.kind != "head":
            return None
        with torch.no_grad():
            return self.state.policy.logprobs(batch, HIDDEN).hidden

    def micro_batches(
        self,
        data: Experience,
        samples: Sequence[int] | None = None,
        *,
        reader: LogprobReader | None = None,
        observations: bool = False,
    ) -> Iterator[MicroBatch]:
        """Yield the micro-batches of this rank's share of the samples, by default of all."""
        samples = range(len(data.samples)) if samples is None else samples
        ranks, limit = self.state.ranks, self.config.optimizer.micro_batch_tokens
        share = (reader or self.state.policy).packs and self.config.optimizer.share_prefixes
        cut = [micro_batches(data, s, limit, share=share) for s in shares(data, samples, ranks.count, share=share)]
        own, rounds = cut[ranks.number], max(map(len, cut))
        # All ranks take as many passes, as they exchange gradients in each: the last ones of some have zero weight.
        shortest = min(samples, key=lambda i: len(data.inputs[i]), default=0)
        own += [[shortest]] * (rounds - (real := len(own)))
        for number, numbers in enumerate(own):
            counts = number < real
            batch = pack(data, numbers, self.state.policy.device, observations=observations and counts, share=share)
            if reader not in (None, self.state.policy):  # other models choose their own experts
                batch.routes = None
            if not counts:
                batch = with_zero_weight(batch)
            yield MicroBatch(numbers, batch, counts, number == rounds - 1)


def sampler_divergence(policy: Floats, behavior: Floats, staleness: Floats) -> dict[str, float]:
    """Measure the mismatch of sampler and trainer for the same weights, and the divergence by staleness.

    Args:
        policy: (R,) log-probabilities at the start of an update.
        behavior: (R,) log-probabilities during sampling.
        staleness: (R,) updates since each token was sampled.
    """
    fresh = staleness == 0
    moved = losses.divergence(torch.from_numpy(policy - behavior)).numpy()
    metrics = mismatch(policy[fresh], behavior[fresh])
    if not fresh.all():
        metrics |= by_bucket("mismatch_kl/staleness", moved, staleness, AGES)
    return metrics
