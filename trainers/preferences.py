"""Learning from preferences: pairs of trajectories of one task, and the gradient of their loss at each token.

A preference loss reads two trajectories at once, which may be in different micro-batches or on different ranks. So its
gradient is computed in two parts, by the chain rule: first that of the scores, from the log-probabilities of the whole
step without a graph; then these numbers are the advantages of an ordinary pass, whose loss is -A log π of each token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from rollenv.rollout.types import Group, Trajectory, Turn
from rollenv.trainers.config.algorithms import Dmpo, Dpo, Ipo, Kto, PairedPreference, Preference, Simpo
from rollenv.trainers.experience import Experience, Floats, Ints
from rollenv.trainers.losses import preference


@dataclass(slots=True)
class Side:
    """Tokens with their weights in the scores of all pairs: a sparse matrix of ``P`` pairs and ``R`` tokens."""

    pairs: list[Ints] = field(default_factory=list)
    rows: list[Ints] = field(default_factory=list)
    weights: list[Floats] = field(default_factory=list)

    def add(self, pair: int, rows: Ints, weights: Floats) -> None:
        """Add the tokens of a trajectory."""
        self.pairs.append(np.full(len(rows), pair))
        self.rows.append(rows)
        self.weights.append(weights)

    def scores(self, values: Floats, count: int) -> Floats:
        """Return the (P,) weighted sums of (R,) numbers."""
        if not self.rows:
            return np.zeros(count)
        rows, weights = np.concatenate(self.rows), np.concatenate(self.weights)
        return np.bincount(np.concatenate(self.pairs), values[rows] * weights, minlength=count).astype(np.float64)

    def spread(self, gradients: Floats, out: Floats) -> None:
        """Add the (P,) gradients of scores to those of tokens, (R,)."""
        for pairs, rows, weights in zip(self.pairs, self.rows, self.weights, strict=True):
            out[rows] += gradients[pairs] * weights


class Preferences:
    """The pairs of a batch, or for KTO its good and bad trajectories.

    Args:
        returns: (N,) what is compared within a group.
    """

    def __init__(self, data: Experience, returns: Floats, settings: Preference):
        self.settings, self.data = settings, data
        self._tokens = np.split(np.arange(len(data)), np.cumsum(np.bincount(data.trajectory, minlength=len(returns))))
        self.chosen, self.rejected = Side(), Side()
        self.desirable = np.zeros(0, dtype=bool)
        self.mismatch = 0.0
        """Mean of log π - log π_ref over answers to other prompts, which KTO reads."""
        self.pairs: list[tuple[int, int]] = []
        if isinstance(settings, PairedPreference):
            self._pair(returns, settings)
        else:
            self._label(returns)

    def _pair(self, returns: Floats, settings: PairedPreference) -> None:
        groups = np.unique(self.data.groups).tolist()
        self.pairs = [pair for group in groups for pair in self._pairs_of(group, returns, settings)]
        for number, (better, worse) in enumerate(self.pairs):
            shared = self._shared_turns(better, worse) if settings.parted else 0
            for side, one in ((self.chosen, better), (self.rejected, worse)):
                side.add(number, *self._weighted(one, shared))

    def _pairs_of(self, group: int, returns: Floats, settings: PairedPreference) -> Iterator[tuple[int, int]]:
        """Yield pairs of a preferred and a rejected trajectory; never of equal returns or equal answers."""
        trained = self.data.kept & (np.bincount(self.data.trajectory, minlength=len(returns)) > 0)
        members = np.flatnonzero((self.data.groups == group) & trained)
        ranked = sorted(members.tolist(), key=lambda i: -returns[i])
        if settings.pairs == "extremes":
            ranked = ranked[:1] + ranked[1:][-1:]
        for place, better in enumerate(ranked):
            for worse in ranked[place + 1 :]:
                apart = returns[better] - returns[worse] > max(settings.margin, 1e-9)
                if apart and self._answers(better) != self._answers(worse):
                    yield better, worse

    def _answers(self, number: int) -> list[tuple[int, ...]]:
        return [turn.response_ids for turn in self.data.trajectories[number].turns]

    def _shared_turns(self, a: int, b: int) -> int:
        """Return the number of leading turns with equal prompts and answers."""
        turns = zip(self.data.trajectories[a].turns, self.data.trajectories[b].turns, strict=False)
        same = [x.prompt_ids == y.prompt_ids and x.response_ids == y.response_ids for x, y in turns]
        return same.index(False) if False in same else len(same)

    def _weighted(self, number: int, shared: int) -> tuple[Ints, Floats]:
        """Return the tokens of a trajectory after the turns that it shares, and their weights in its score."""
        rows = self._tokens[number]
        turns = self.data.turn_number[rows]
        rows, turns = rows[turns >= shared], turns[turns >= shared]
        if isinstance(self.settings, Dmpo):
            return rows, preference.dmpo_weights(len(self.data.trajectories[number].turns), self.settings.gamma)[turns]
        return rows, np.full(len(rows), 1 / max(len(rows), 1) if isinstance(self.settings, Ipo | Simpo) else 1.0)

    def _label(self, returns: Floats) -> None:
        """Call a trajectory desirable if its return is above its group's mean; alone, if it succeeded.

        Where all members of a group have equal returns, none is better than another: it is left out.
        """
        counts, groups = np.bincount(self.data.groups), self.data.groups
        apart = returns - (np.bincount(groups, returns) / np.maximum(counts, 1))[groups]
        differs = np.bincount(groups, np.abs(apart) > 1e-9)[groups] > 0
        succeeded = np.array([t.success for t in self.data.trajectories], dtype=bool)
        alone = counts[groups] == 1
        numbers = np.flatnonzero(self.data.kept & (alone | differs))
        self.desirable = np.where(alone, succeeded, apart > 0)[numbers]
        for place, number in enumerate(numbers.tolist()):
            self.chosen.add(place, *self._weighted(number, 0))
        self.pairs = [(number, number) for number in numbers.tolist()]

    @property
    def taught(self) -> NDArray[np.bool_]:
        """(R,) mask of the tokens that are part of a score."""
        mask = np.zeros(len(self.data), dtype=bool)
        for rows in (*self.chosen.rows, *self.rejected.rows):
            mask[rows] = True
        return mask

    def advantages(self, logprobs: Floats, reference: Floats | None) -> tuple[Floats, dict[str, float]]:
        """Compute the negative gradient of the loss with respect to each log-probability, and metrics.

        Args:
            logprobs: (R,) of the policy now.
            reference: (R,) of the frozen reference; None for SimPO.

        Returns:
            (R,) advantages; and the loss and its metrics, as means over pairs.
        """
        count = len(self.pairs)
        if not count:
            return np.zeros(len(self.data)), {"pairs": 0.0}
        against = logprobs if reference is None else logprobs - reference
        better, worse = (
            torch.tensor(side.scores(against, count), requires_grad=True) for side in (self.chosen, self.rejected)
        )
        values = self._losses(better, worse)
        values.mean().backward()
        gradients = np.zeros(len(self.data))
        for side, scores in ((self.chosen, better), (self.rejected, worse)):
            if scores.grad is not None:
                side.spread(scores.grad.numpy(), gradients)
        if (
            isinstance(self.settings, PairedPreference) and self.settings.sft
        ):  # the mean NLL of each preferred trajectory
            for rows in self.chosen.rows:
                gradients[rows] -= self.settings.sft / (max(len(rows), 1) * count)
        return -gradients, self._metrics(values.detach().numpy(), better.detach(), worse.detach(), logprobs)

    def _losses(self, better: torch.Tensor, worse: torch.Tensor) -> torch.Tensor:
        """Return the (P,) losses of pairs, for KTO of trajectories."""
        settings, margins = self.settings, better - worse
        match settings:
            case Kto():
                good = torch.from_numpy(self.desirable)
                weights = torch.where(good, settings.desirable, settings.undesirable)
                return weights * preference.kto(better, good, max(self.mismatch, 0.0), beta=settings.beta)
            case Ipo():
                return preference.ipo(margins, beta=settings.beta)
            case Simpo():
                return preference.simpo(margins, beta=settings.beta, gamma=settings.gamma)
            case Dpo():
                return preference.dpo(margins, beta=settings.beta, smoothing=settings.smoothing, robust=settings.robust)
        return preference.dpo(margins, beta=settings.beta)

    def _metrics(self, values: Floats, better: torch.Tensor, worse: torch.Tensor, logprobs: Floats) -> dict[str, float]:
        beta, count = self.settings.beta, len(self.pairs)
        chosen, rejected = beta * better.numpy(), beta * worse.numpy()
        plain = [
            np.array([logprobs[rows].sum() for rows in side.rows]) for side in (self.chosen, self.rejected) if side.rows
        ]
        if isinstance(self.settings, Kto):
            good = self.desirable
            chosen, rejected, logps = chosen[good], chosen[~good], [plain[0][good], plain[0][~good]]
            more = {"kl": max(self.mismatch, 0.0), "desirable": float(good.mean())}
        else:
            logps, more = (
                plain,
                {
                    "accuracy": float((chosen > rejected).mean()),
                    "margin": float((chosen - rejected).mean()),
                },
            )
        named = {"rewards/chosen": chosen, "rewards/rejected": rejected}
        named |= {"logps/chosen": logps[0], "logps/rejected": logps[1]}
        means = {name: float(each.mean()) for name, each in named.items() if len(each)}
        return {"loss": float(values.mean()), "pairs": float(count), **means, **more}


def mismatched(data: Experience) -> list[Group]:
    """Build trajectories with the prompt of one and the answers of the one before, in the order of the batch (KTO's z).

    Turns whose prompts do not continue the first one are left out.
    """
    numbers = np.flatnonzero(data.kept & (np.bincount(data.trajectory, minlength=len(data.kept)) > 0))
    groups = []
    for number, other in zip(numbers, np.roll(numbers, 1), strict=True):
        prompt, turns = data.trajectories[number].turns[0].prompt_ids, data.trajectories[other].turns
        first, moved = turns[0].prompt_ids, []
        for turn in turns:
            if turn.prompt_ids[: len(first)] == first:
                ids = prompt + turn.prompt_ids[len(first) :]
                moved.append(Turn(ids, turn.response_ids, (0.0,) * len(turn.response_ids), 0.0, "", ""))
        task = data.trajectories[number].task
        groups.append(Group(task, [Trajectory(task, moved, "terminated")]))
    return groups
