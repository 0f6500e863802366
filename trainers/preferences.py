"""Learning from preferences: pairs of trajectories of one task, and the gradient of their loss at each token.

A preference loss reads two trajectories at once, which may be in different micro-batches or on different ranks. So its
gradient is computed in two parts, by the chain rule: first that of the scores, from the log-probabilities of the whole
step without a graph; then these numbers are the advantages of an ordinary pass, whose loss is -A log π of each token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from rollenv.rollout.filters import preferred
from rollenv.rollout.types import Group, Trajectory, Turn
from rollenv.trainers.config.algorithms import BradleyTerry, Dmpo, Dpo, Ipo, Kto, PairedPreference, Preference, Simpo
from rollenv.trainers.experience import Experience, Floats, Ints
from rollenv.trainers.losses import preference

#: The tokens of an episode that count, and their weights in its score.
Weighted = tuple[Ints, Floats]


class Preferences:
    """The pairs of a batch, or for KTO its good and bad trajectories.

    Args:
        returns: (N,) what is compared within a group.
    """

    def __init__(self, data: Experience, returns: Floats, settings: Preference):
        self.settings, self.data = settings, data
        self._tokens = np.split(np.arange(len(data)), np.cumsum(np.bincount(data.trajectory, minlength=len(returns))))
        self.chosen: list[Weighted] = []
        """Of each pair the preferred trajectory, for KTO each trajectory."""
        self.rejected: list[Weighted] = []
        self.desirable = np.zeros(0, dtype=bool)
        self.mismatch = 0.0
        """Mean of log π - log π_ref over answers to other prompts, which KTO reads."""
        self.pairs: list[tuple[int, int]] = []
        self.wanted = torch.zeros(0)
        """(P,) the wanted differences of the scores of a reward model."""
        if isinstance(settings, PairedPreference):
            self._pair(returns, settings)
        elif isinstance(settings, BradleyTerry):
            self._match(returns, settings)
        else:
            self._label(returns)

    def _pair(self, returns: Floats, settings: PairedPreference) -> None:
        trained = self.data.kept & (np.bincount(self.data.trajectory, minlength=len(returns)) > 0)
        for group in np.unique(self.data.groups):
            members = sorted(np.flatnonzero((self.data.groups == group) & trained).tolist(), key=lambda i: -returns[i])
            if settings.pairs == "extremes":
                members = members[:1] + members[1:][-1:]
            answers = [[turn.response_ids for turn in self.data.trajectories[i].turns] for i in members]
            pairs = preferred(returns[members].tolist(), answers, settings.margin)
            self.pairs += [(members[better], members[worse]) for better, worse in pairs]
        for better, worse in self.pairs:
            shared = self._shared_turns(better, worse) if settings.parted else 0
            self.chosen.append(self._weighted(better, shared))
            self.rejected.append(self._weighted(worse, shared))

    def _match(self, returns: Floats, settings: BradleyTerry) -> None:
        """Take the pairs of :func:`~rollenv.trainers.reward_model.pairs_of`, the preferred trajectory first."""
        self.pairs = [(at, at + 1) for at in range(0, len(returns), 2) if self.data.kept[at : at + 2].all()]
        self.chosen, self.rejected = ([self._weighted(pair[side], 0) for pair in self.pairs] for side in (0, 1))
        of_rows = [self.data.trajectories[better].record.get("margin", 0.0) for better, _ in self.pairs]
        apart = [settings.margin * float(returns[better] - returns[worse]) for better, worse in self.pairs]
        self.wanted = torch.tensor([sum(each) for each in zip(apart, of_rows, strict=True)], dtype=torch.float64)

    def _shared_turns(self, a: int, b: int) -> int:
        """Return the number of leading turns with equal prompts and answers."""
        turns = zip(self.data.trajectories[a].turns, self.data.trajectories[b].turns, strict=False)
        same = [x.prompt_ids == y.prompt_ids and x.response_ids == y.response_ids for x, y in turns]
        return same.index(False) if False in same else len(same)

    def _weighted(self, number: int, shared: int) -> Weighted:
        """Return the tokens of a trajectory after the turns that it shares, and their weights in its score."""
        rows = self._tokens[number]
        turns = self.data.turn_number[rows]
        rows, turns = rows[turns >= shared], turns[turns >= shared]
        if isinstance(self.settings, Dmpo):
            return rows, preference.dmpo_weights(len(self.data.trajectories[number].turns), self.settings.gamma)[turns]
        return rows, np.full(len(rows), 1 / max(len(rows), 1) if isinstance(self.settings, Ipo | Simpo) else 1.0)

    def _label(self, returns: Floats) -> None:
        """Call a trajectory desirable if its return is above its group's mean; alone, if it succeeded, or has a
        positive reward where nobody said what a success is.

        Where all members of a group have equal returns, none is better than another: it is left out.
        """
        counts, groups = np.bincount(self.data.groups), self.data.groups
        apart = returns - (np.bincount(groups, returns) / np.maximum(counts, 1))[groups]
        differs = np.bincount(groups, np.abs(apart) > 1e-9)[groups] > 0
        succeeded = np.array([t.reward > 0 if t.success is None else t.success for t in self.data.trajectories])
        alone = counts[groups] == 1
        numbers = np.flatnonzero(self.data.kept & (alone | differs))
        self.desirable = np.where(alone, succeeded, apart > 0)[numbers]
        self.chosen = [self._weighted(number, 0) for number in numbers.tolist()]
        self.pairs = [(number, number) for number in numbers.tolist()]

    @property
    def taught(self) -> NDArray[np.bool_]:
        """(R,) mask of the tokens that are part of a score."""
        mask = np.zeros(len(self.data), dtype=bool)
        for rows, _ in (*self.chosen, *self.rejected):
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
            torch.tensor(_sums(side, against), requires_grad=True) for side in (self.chosen, self.rejected)
        )
        values = self._losses(better, worse)
        values.mean().backward()
        gradients = np.zeros(len(self.data))
        for side, scores in ((self.chosen, better), (self.rejected, worse)):
            if scores.grad is not None:
                for gradient, (rows, weights) in zip(scores.grad.tolist(), side, strict=True):
                    gradients[rows] += gradient * weights
        if isinstance(self.settings, PairedPreference):  # the mean NLL of each preferred trajectory
            for rows, _ in self.chosen:
                gradients[rows] -= self.settings.sft / (max(len(rows), 1) * count)
        return -gradients, self._metrics(values.detach().numpy(), better.detach(), worse.detach(), logprobs)

    def _losses(self, better: torch.Tensor, worse: torch.Tensor) -> torch.Tensor:
        """Return the (P,) losses of pairs, for KTO of trajectories."""
        settings = self.settings
        margins = better if isinstance(settings, Kto) else better - worse
        match settings:
            case Kto():
                good = torch.from_numpy(self.desirable)
                weights = torch.where(good, settings.desirable, settings.undesirable)
                return weights * preference.kto(better, good, max(self.mismatch, 0.0), beta=settings.beta)
            case Ipo():
                return preference.ipo(margins, beta=settings.beta)
            case Simpo():
                return preference.simpo(margins, beta=settings.beta, gamma=settings.gamma)
            case BradleyTerry():
                losses = preference.dpo(margins - self.wanted, beta=1.0, smoothing=settings.smoothing)
                return losses + settings.centre * (better + worse) ** 2
            case Dpo():
                return preference.dpo(margins, beta=settings.beta, smoothing=settings.smoothing, robust=settings.robust)
        assert isinstance(settings, Dmpo)
        return preference.dpo(margins, beta=settings.beta)

    def _metrics(self, values: Floats, better: torch.Tensor, worse: torch.Tensor, logprobs: Floats) -> dict[str, float]:
        """Return means over pairs; pairs of equal scores, such as all before the first update, are half right."""
        beta = getattr(self.settings, "beta", 1.0)
        chosen, rejected = beta * better.numpy(), beta * worse.numpy()
        logps, logps_rejected = (
            _sums([(rows, np.ones(len(rows))) for rows, _ in side], logprobs) for side in (self.chosen, self.rejected)
        )
        if isinstance(self.settings, Kto):
            good = self.desirable
            chosen, rejected, logps, logps_rejected = chosen[good], chosen[~good], logps[good], logps[~good]
            more = {"kl": max(self.mismatch, 0.0), "desirable": float(good.mean())}
        else:
            margins = np.where(np.abs(chosen - rejected) < 1e-6, 0.0, chosen - rejected)
            more = {"accuracy": float((np.sign(margins) / 2 + 0.5).mean()), "margin": float(margins.mean())}
        named = {"rewards/chosen": chosen, "rewards/rejected": rejected}
        named |= {"logps/chosen": logps, "logps/rejected": logps_rejected}
        if isinstance(self.settings, BradleyTerry):
            scores, named = np.concatenate([chosen, rejected]), {"score": chosen}
            more |= {"scores/mean": float(scores.mean()), "scores/std": float(scores.std())}
        means = {name: float(each.mean()) for name, each in named.items() if len(each)}
        return {"loss": float(values.mean()), "pairs": float(len(self.pairs)), **means, **more}


def _sums(side: Sequence[Weighted], values: Floats) -> Floats:
    """Return the (P,) weighted sums of (R,) numbers."""
    return np.array([values[rows] @ weights for rows, weights in side], dtype=np.float64)


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
