"""Updates of the weights from the columns of a batch: minibatches, gradients, steps."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from rollenv.trainers import checkpoint
from rollenv.trainers.columns import Columns, TrainingError
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.algorithms import Ppo
from rollenv.trainers.diagnostics import POSITIONS, TURNS, by_bucket, floats
from rollenv.trainers.experience import Experience, Floats, Ints, minibatches
from rollenv.trainers.policies.averaged import Averaged
from rollenv.trainers.policies.base import HIDDEN, Output
from rollenv.trainers.policies.packed import Packed
from rollenv.trainers.policies.routing import NAMES, balance
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.shown import NUMBERS, Numbers, shown_episodes, shown_tokens
from rollenv.trainers.sources import task_seed
from rollenv.trainers.training_state import TrainingState

logger = logging.getLogger(__name__)


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
    shown: list[Numbers] = field(default_factory=list)
    """What is stored of the tokens of ``report.tokens`` groups."""
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


class Updater(Columns):
    """Trains a run's policy, and its critic if it has one."""

    def __init__(self, config: TrainConfig, state: TrainingState, run: RunDir):
        super().__init__(config, state)
        self.run = run

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
        if self.config.report.tokens:
            counts |= self._keep_tokens(data, useful, totals)
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

    def _keep_tokens(self, data: Experience, useful: NDArray[np.bool_], totals: StepTotals) -> dict[str, float]:
        """Store the tokens of a few groups in the run's folder; return how many episodes of them were left out."""
        state = self.state
        parts = [part for each in state.ranks.gather(totals.shown) for part in each]
        if not state.ranks.first:
            return {}
        why = "the step was skipped" if self._learns else "only the critic learned"
        shown = shown_episodes(data, self.config.report.tokens, parts, useful, state.version, why)
        return self.run.keep_update(state.iteration + 1, ((data.trajectories[i], numbers) for i, numbers in shown))

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
        own = StepTotals(entropies=step_totals.entropies, shown=step_totals.shown)
        step_totals.entropies, step_totals.shown = [], []  # too many to send
        self._end_step(self.state.ranks.gather(step_totals), own, totals)

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
        shown = shown_tokens(data, self.config.report.tokens)
        for piece in self.micro_batches(data, step, observations=self.config.loss.observations > 0):
            piece.batch.columns["weights"] *= steps  # they add up to one over the whole batch
            state.policy.last_piece(piece.last)
            metrics, loads = self._backward(piece.batch, observed / steps, max(targets, 1))
            if piece.counts:
                step_totals.add_loads(loads)
                rows = data.rows(piece.samples)
                if (kept := shown[rows]).any():
                    numbers = {name: floats(metrics[name])[kept] for name in NUMBERS if name in metrics}
                    step_totals.shown.append((rows[kept], numbers))
                metrics.pop("logprobs", None)
                for name, values in metrics.items():
                    step_totals.add(name, float(values.double().sum()))
                if "entropy" in metrics:
                    step_totals.entropies.append((rows, floats(metrics["entropy"])))
                step_totals.tokens += len(rows)
                step_totals.computed += len(piece.batch.ids)
                step_totals.whole += sum(len(data.inputs[i]) for i in piece.samples)
        return step_totals

    def _end_step(self, parts: Sequence[StepTotals], own: StepTotals, totals: StepTotals) -> None:
        """Step with the gradients so far.

        Args:
            parts: the sums of all ranks.
            own: this rank's numbers of single tokens.
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
        taken = float(len(totals.norms))
        totals.shown += [(rows, numbers | {"steps": np.full(len(rows), taken)}) for rows, numbers in own.shown]
        totals.norms.append(norm)
        totals.entropies += own.entropies
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
            if self.config.report.tokens and out.logprobs is not None:
                metrics = metrics | {"logprobs": out.logprobs.detach()}
            state.policy.backward(loss)
            hidden, loads = out.hidden, out.router
        if critic:
            if hidden is None:
                hidden = self.hidden_states(batch)
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


def entropies(data: Experience, pairs: Sequence[tuple[Ints, Floats]]) -> dict[str, float]:
    """Mean entropy by turn and by position in the response."""
    if not pairs:
        return {}
    at, values = (np.concatenate(part) for part in zip(*pairs, strict=True))
    by_turn = by_bucket("entropy/turn", values, data.turn_number[at], TURNS)
    return by_turn | by_bucket("entropy/position", values, data.position[at], POSITIONS)
