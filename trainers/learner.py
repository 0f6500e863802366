"""Updates of the weights from a batch of trajectories: advantages, minibatches, gradients, steps."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from rollenv.core.errors import RollenvError, UsageError
from rollenv.rollout.types import Group
from rollenv.trainers import checkpoint, credit, losses
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.algorithms import Kto, Ppo, Preference
from rollenv.trainers.config.losses import KlReward
from rollenv.trainers.diagnostics import (
    AGES,
    POSITIONS,
    TURNS,
    by_bucket,
    explained_variance,
    floats,
    mismatch,
    quantiles,
)
from rollenv.trainers.experience import (
    Experience,
    Floats,
    Ints,
    experience,
    last_states,
    micro_batches,
    minibatches,
    shares,
    with_successful_sibling,
)
from rollenv.trainers.objective import Objective
from rollenv.trainers.policies.averaged import Averaged
from rollenv.trainers.policies.base import HIDDEN, LogprobReader, Output
from rollenv.trainers.policies.packed import Packed, pack, with_zero_weight
from rollenv.trainers.policies.routing import NAMES, balance
from rollenv.trainers.preferences import Preferences, mismatched
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.sources import task_seed
from rollenv.trainers.training_state import TrainingState

logger = logging.getLogger(__name__)


class TrainingError(RollenvError):
    """Training cannot continue; the checkpoints are intact."""


#: Suffix of the squares of metrics, for their effective sample size.
SQUARED = "_squared"


@dataclass(slots=True)
class StepTotals:
    """Sums over the tokens of finished steps."""

    tokens: int = 0
    computed: int = 0
    """Tokens that went through the model."""
    whole: int = 0
    """Tokens that would have gone through the model without shared prefixes."""
    sums: dict[str, float] = field(default_factory=dict)
    norms: list[float] = field(default_factory=list)
    """Gradient norm of each step that was taken."""
    skipped: int = 0
    loads: torch.Tensor | None = None
    """See :func:`~rollenv.trainers.policies.routing.loads`; None for a model without routers."""
    entropies: list[tuple[Ints, Floats]] = field(default_factory=list)
    """Positions of response tokens in the batch, and the entropy at each."""
    compared: list[dict[str, float]] = field(default_factory=list)
    """Metrics of each step's preferences, which are means over pairs."""

    def add(self, name: str, value: float) -> None:
        """Add to the sum of a metric."""
        self.sums[name] = self.sums.get(name, 0.0) + value

    def add_loads(self, loads: torch.Tensor | None) -> None:
        """Add loads of experts."""
        if loads is not None:
            loads = loads.detach().double().cpu()
            self.loads = loads if self.loads is None else self.loads + loads

    def means(self) -> dict[str, float]:
        """Return the mean of every metric over all tokens, and of the norms."""
        means = {name: total / max(self.tokens, 1) for name, total in self.sums.items()}
        for name in [name for name in means if name.endswith(SQUARED)]:
            plain, square = name.removesuffix(SQUARED), means.pop(name)
            means[f"{plain}_ess"] = means[plain] ** 2 / square if square else 0.0
        if self.norms:
            means["grad_norm"] = sum(self.norms) / len(self.norms)
        for name in dict.fromkeys(name for metrics in self.compared for name in metrics):
            known = [metrics[name] for metrics in self.compared if name in metrics]
            means[name] = sum(known) / len(known)
        return means


@dataclass(slots=True)
class MicroBatch:
    """A micro-batch of one rank. All ranks have the same number, since they compute together."""

    samples: list[int]
    batch: Packed
    counts: bool
    """True if it is part of the batch; False for padding without weight."""
    last: bool
    """True for the last micro-batch of a step."""


class Updater:
    """Trains a run's policy, and its critic if it has one."""

    def __init__(self, config: TrainConfig, state: TrainingState, run: RunDir):
        self.config, self.state, self.run = config, state, run
        self.objective = Objective(config, state.policy.scorer.experts_per_token)
        self._of_reference: dict[bytes, Floats] = {}
        """Log-probabilities in the reference, by the tokens of a given sample."""
        self.vocabulary = int(state.policy.model.config.get_text_config().vocab_size)
        if config.rewards.drop_gibberish >= self.vocabulary:
            raise UsageError(
                f"rewards.drop_gibberish={config.rewards.drop_gibberish} drops nothing: token ids of the model are "
                f"below {self.vocabulary}"
            )

    # -- from trajectories to advantages -----------------------------------------------------------------------------

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
                return critic.values(batch, self._hidden_states(batch))

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
        for piece in self._micro_batches(data, samples, reader=reader):
            with torch.no_grad():
                numbers = floats(compute(piece.batch))
            if piece.counts:
                out[data.rows(piece.samples)] = numbers
        out = self.state.ranks.sum(out)
        if samples is not None:
            out[np.isin(data.sequence, samples, invert=True)] = np.nan
        return out

    def _hidden_states(self, batch: Packed) -> torch.Tensor | None:
        """Compute the policy's hidden states if the critic is a head on them."""
        critic = self.state.critic
        if critic is None or critic.kind != "head":
            return None
        with torch.no_grad():
            return self.state.policy.logprobs(batch, HIDDEN).hidden

    def _micro_batches(
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

    # -- from advantages to steps ------------------------------------------------------------------------------------

    def update(self, data: Experience) -> dict[str, float]:
        """Take the optimizer steps of a batch; metrics are means over response tokens.

        Raises:
            TrainingError: a loss or gradient is not finite and ``on_nonfinite`` is "stop"; or all steps were skipped,
                or a weight is not finite.
        """
        state = self.state
        useful = self._trainable(data)
        if not useful.any():
            self._warn_of_no_signal(data)
        totals = StepTotals()
        self._take_steps(data, useful, totals)
        self._check_finite(totals)
        taught = {int(data.groups[s.trajectory]) for s, learned in zip(data.samples, useful, strict=True) if learned}
        counts: dict[str, float] = {
            "optimizer_steps": len(totals.norms),
            "skipped_steps": totals.skipped,
            "trained_samples": int(useful.sum()),
            "taught_groups": len(taught) / max(1, len(np.unique(data.groups))),
        }
        counts |= {f"dropped/{why}": int(them.sum()) for why, them in data.dropped.items()}
        if totals.loads is not None:
            counts |= zip(NAMES, balance(totals.loads, self.objective.experts_per_token).tolist(), strict=True)
        if totals.computed:
            counts["sharing"] = totals.whole / totals.computed
        gathered = [pair for each in state.ranks.gather(totals.entropies) for pair in each]
        return totals.means() | entropies(data, gathered) | counts | {"lr": self._learning_rate()}

    def _take_steps(self, data: Experience, useful: NDArray[np.bool_], totals: StepTotals) -> None:
        """Take the optimizer steps of a batch over its useful samples, (M,)."""
        config = self.config
        rng = random.Random(task_seed(config.seed, self.state.iteration, -1))
        for _ in range(config.optimizer.epochs * useful.any()):
            if data.preferences:  # the trajectories of a pair belong together
                steps = [np.flatnonzero(useful).tolist()]
            else:
                steps = minibatches(data, config.optimizer.minibatch_sequences, rng, useful=useful)
            for step in filter(None, steps):
                self._step(data, step, len(steps), totals)

    def _trainable(self, data: Experience) -> NDArray[np.bool_]:
        """Return the (M,) mask of the samples with a gradient."""
        useful: NDArray[np.bool_] = np.add.reduceat(np.abs(data.columns["advantages"]), data.starts[:-1]) > 0
        if "teacher" in data.columns:
            useful |= np.add.reduceat(~np.isnan(data.columns["teacher"]), data.starts[:-1]) > 0
        if self.objective.trains_zero_advantages or self.state.critic:
            useful[:] = True
        return useful & data.kept[[s.trajectory for s in data.samples]]

    def _warn_of_no_signal(self, data: Experience) -> None:
        reason, remedy = "all advantages were 0", "easier tasks, larger groups or a longer warm-up"
        if self.objective.taught_alone:
            reason = "no group had a success"
        if data.preferences:
            reason = "no two trajectories of a group differed in their returns and answers"
        if data.dropped:
            keys = {why: f"rewards.drop_{why}" for why in data.dropped} | {"out_of_bounds": "rollout.keep"}
            left_out = ", ".join(f"{int(them.sum())} by {keys[why]}" for why, them in data.dropped.items())
            reason += f" in the episodes that were not dropped ({left_out})"
        if all(trajectory.success for trajectory in data.trajectories):
            remedy = "harder tasks: all were solved"
        what = "iteration %d gave no learning signal: %s; look at the sampled episodes, and try %s"
        logger.warning(what, self.state.iteration + 1, reason, remedy)

    def _step(self, data: Experience, step: list[int], steps: int, totals: StepTotals) -> None:
        """Take one optimizer step over some samples, unless a gradient is not finite."""
        step_totals = self._accumulate(data, step, steps, totals)
        step_entropies, step_totals.entropies = step_totals.entropies, []  # too many to send
        self._end_step(self.state.ranks.gather(step_totals), step_entropies, totals)

    def _accumulate(self, data: Experience, step: list[int], steps: int, totals: StepTotals) -> StepTotals:
        """Add the gradients of this rank's share of some samples, and return the sums over its tokens."""
        state = self.state
        targets = 0
        if state.critic:
            targets = int((~np.isnan(data.columns["returns"][data.rows(step)])).sum())
        observed = 0
        if self.config.loss.observations:  # counting them takes longer than a small model's update
            observed = data.observed
        if data.preferences:
            totals.compared.append(self._prefer(data, step))
        step_totals = StepTotals()
        for piece in self._micro_batches(data, step, observations=self.config.loss.observations > 0):
            piece.batch.columns["weights"] *= steps  # they add up to one over the whole batch
            state.policy.last_piece(piece.last)
            metrics, loads = self._backward(piece.batch, observed / steps, max(targets, 1))
            if piece.counts:
                step_totals.add_loads(loads)
                rows = data.rows(piece.samples)
                for name, values in metrics.items():
                    step_totals.add(name, float(values.double().sum()))
                if "entropy" in metrics:
                    step_totals.entropies.append((rows, floats(metrics["entropy"])))
                step_totals.tokens += len(rows)
                step_totals.computed += len(piece.batch.ids)
                step_totals.whole += sum(len(data.inputs[i]) for i in piece.samples)
        return step_totals

    def _end_step(self, parts: Sequence[StepTotals], entropies: list[tuple[Ints, Floats]], totals: StepTotals) -> None:
        """Step with the gradients so far.

        Args:
            parts: the sums of all ranks.
            entropies: this rank's, see :class:`StepTotals`.
        """
        state = self.state
        for each in parts:
            totals.computed += each.computed
            totals.whole += each.whole
        norm = self._optimizer_step()
        if not math.isfinite(norm):
            self._skip_step(totals, sum(each.sums.get("loss", 0.0) for each in parts), norm)
            return
        if isinstance(state.teacher, Averaged):
            state.teacher.follow(state.policy)
        totals.norms.append(norm)
        totals.entropies += entropies
        for each in parts:
            totals.tokens += each.tokens
            totals.add_loads(each.loads)
            for name, value in each.sums.items():
                totals.add(name, value)

    def _optimizer_step(self) -> float:
        """Step policy and critic if both gradient norms are finite; return the policy's norm, or one not finite."""
        policy, critic = self.state.policy, self.state.critic
        norm = critic_norm = 0.0
        if critic:
            critic_norm = critic.gradient_norm()
        if self._learns:
            norm = policy.step(self._learning_rate(), hold=not math.isfinite(critic_norm))
        if critic:
            critic.step(hold=not math.isfinite(norm))
        return norm if math.isfinite(critic_norm) else critic_norm

    def _backward(
        self, batch: Packed, observed: float, targets: int
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
        """Add a micro-batch's gradients and return metrics for each token, and the loads of experts."""
        state, critic = self.state, self.state.critic
        metrics: dict[str, torch.Tensor] = {}
        hidden = loads = None
        if self._learns:
            wanted: tuple[Output, ...] = ("logprobs", "entropy", *(HIDDEN if critic else ()))
            out = state.policy.logprobs(batch, wanted, entropy_gradient=self.config.loss.entropy > 0)
            loss, metrics = self.objective(batch, out, entropy=self._entropy_bonus(), observed=observed)
            state.policy.backward(loss)
            hidden, loads = out.hidden, out.router
        if critic:
            if hidden is None:
                hidden = self._hidden_states(batch)
            metrics |= critic.backward(batch, hidden, 1 / targets)
        return metrics, loads

    @property
    def _learns(self) -> bool:
        """True if the policy is trained in this iteration, not only the critic."""
        algorithm = self.config.algorithm
        return not isinstance(algorithm, Ppo) or self.state.iteration >= algorithm.critic.warm_up

    def _skip_step(self, totals: StepTotals, loss: float, norm: float) -> None:
        totals.skipped += 1
        iteration = self.state.iteration + 1
        if self.state.policy.overflowed and math.isfinite(loss):
            logger.info("iteration %d: a step was skipped while the float16 loss scale is adjusted", iteration)
        elif self.config.optimizer.on_nonfinite == "stop":
            raise self._not_finite(f"the loss is {loss} and the norm of the gradient {norm}")
        else:
            logger.warning("iteration %d: a step was skipped: its loss or gradient is not finite", iteration)

    def _check_finite(self, totals: StepTotals) -> None:
        state = self.state
        if totals.skipped and not totals.norms and not state.policy.overflowed:
            raise self._not_finite("no loss or gradient of the iteration was finite")
        if not state.policy.finite():
            raise self._not_finite("a weight is no longer finite")
        if state.critic and not state.critic.finite():
            raise self._not_finite("a weight of the critic is no longer finite")

    def _not_finite(self, what: str) -> TrainingError:
        saved = checkpoint.checkpoints(self.run.checkpoints)
        last = "there is no checkpoint yet"
        if saved:
            last = f"the last checkpoint, {saved[-1]}, is intact"
        return TrainingError(
            f"training stopped in iteration {self.state.iteration + 1}: {what}; {last}. Try a lower optimizer.lr or "
            "optimizer.max_grad_norm in a new run"
        )

    def _learning_rate(self) -> float:
        """Learning rate of this iteration: linear warm-up, then linear decay to ``final_lr`` times the rate."""
        settings = self.config.optimizer
        warm = min(1.0, (self.state.iteration + 1) / (settings.warmup_iterations + 1))
        return settings.lr * warm * self._decay_factor(settings.final_lr)

    def _entropy_bonus(self) -> float:
        """Entropy coefficient of this iteration: linear decay to ``final_entropy`` times the setting."""
        return self.config.loss.entropy * self._decay_factor(self.config.loss.final_entropy)

    def _decay_factor(self, final: float) -> float:
        """Factor of this iteration, decaying linearly from 1 to ``final``."""
        return final + (1 - final) * (1 - self.state.iteration / self.config.iterations)


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


def entropies(data: Experience, pairs: Sequence[tuple[Ints, Floats]]) -> dict[str, float]:
    """Mean entropy by turn and by position in the response."""
    if not pairs:
        return {}
    at, values = (np.concatenate(part) for part in zip(*pairs, strict=True))
    by_turn = by_bucket("entropy/turn", values, data.turn_number[at], TURNS)
    return by_turn | by_bucket("entropy/position", values, data.position[at], POSITIONS)
