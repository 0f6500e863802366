"""Reward shaping, and advantages for every response token."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollenv.rollout.types import Trajectory, Turn
from rollenv.trainers import advantages as adv
from rollenv.trainers.advantages.moments import parts, ragged
from rollenv.trainers.config.algorithms import AnyAlgorithm, Empg, Gigpo, Hgpo, Ppo
from rollenv.trainers.config.rewards import RewardsConfig
from rollenv.trainers.experience import Experience, Floats

Ragged = list[list[float]]


@dataclass(slots=True)
class Shaped:
    """The shaped rewards of all turns, one list for each trajectory."""

    rewards: Ragged
    penalties: Ragged
    """Penalties of at least 0 that are not yet subtracted from ``rewards``."""
    kl: Floats | None = None
    """(R,) the KL penalty of each token, not yet subtracted."""
    bootstrap: Floats | None = None
    """(N,) the critic's value of the state where a limit cut each trajectory; 0 for those that terminated."""


@dataclass(slots=True)
class Shaper:
    """Shapes the environment's rewards before advantages are computed."""

    settings: RewardsConfig
    max_new_tokens: int
    running: adv.RunningMoments = field(default_factory=adv.RunningMoments)

    def __call__(self, data: Experience) -> Shaped:
        """Shape the rewards of a batch.

        Raises:
            UsageError: a reward is not finite. Those of environments, agents and reward functions were checked before.
        """
        ragged([[turn.reward for turn in t.turns] for t in data.trajectories], "reward")
        rewards = [self._of(t) for t in data.trajectories]
        fine = self.settings.invalid_penalty
        penalties = [[0.0 if turn.valid else fine for turn in t.turns] for t in data.trajectories]
        if self.settings.overlong:
            for row, trajectory in zip(rewards, data.trajectories, strict=True):
                lengths = [len(turn.response_ids) for turn in trajectory.turns]
                longer = adv.overlong_penalty(lengths, limit=self.max_new_tokens, buffer=self.settings.overlong)
                row[:] = [r + p for r, p in zip(row, longer.tolist(), strict=True)]
        if self.settings.limit_penalty:
            for row, trajectory in zip(rewards, data.trajectories, strict=True):
                if row and (trajectory.status == "truncated" or trajectory.turns[-1].finish == "length"):
                    row[-1] -= self.settings.limit_penalty
        totals = np.array([sum(row) for row in rewards], dtype=np.float64)
        settings, shifted = self.settings, totals + self.settings.shift
        if "running" in (settings.mean, settings.std):
            self.running.update(shifted)
        if (settings.mean, settings.std) != ("none", "none"):
            shifted = adv.normalize(shifted, data.groups, mean=settings.mean, std=settings.std, running=self.running)
        for row, total, wanted in zip(rewards, totals, shifted, strict=True):
            if row:
                row[-1] += wanted - total
            if self.settings.clip:
                row[:] = _clip_return(row, self.settings.clip)
        return Shaped(rewards, penalties)

    def _of(self, trajectory: Trajectory) -> list[float]:
        scale = self.settings.scale
        if not self.settings.success_only:
            return [scale * turn.reward for turn in trajectory.turns]
        return [0.0] * (len(trajectory.turns) - 1) + [scale * trajectory.success][: len(trajectory.turns)]


def _clip_return(rewards: list[float], limit: float) -> list[float]:
    """Clip the cumulative return after each turn to plus and minus a limit."""
    total, before, out = 0.0, 0.0, []
    for reward in rewards:
        total += reward
        clipped = min(max(total, -limit), limit)
        out.append(clipped - before)
        before = clipped
    return out


def assign(data: Experience, shaped: Shaped, algorithm: AnyAlgorithm) -> None:
    """Write the column "advantages" and, for a critic, "returns" (NaN for tokens without a target).

    With a critic, the last step of a trajectory has the error r_T + gamma V_{T+1} - V_T. V_{T+1} is 0 if the task ended
    (``terminated``), and the critic's value of the last state if a limit did (``truncated``): the rewards that would
    have followed are expected, not lost (Pardo et al., arXiv 1712.00378; Gymnasium's meaning of the two).

    Args:
        data: the batch; for PPO with the column "values", for EMPG with "entropy".
    """
    if isinstance(algorithm, Ppo):
        _assign_gae(data, shaped, algorithm)
    else:
        shaped = _with_kl(data, shaped)
        separate = isinstance(algorithm, Gigpo | Hgpo)
        rewards = shaped.rewards if separate else _subtract_penalties(shaped)
        data.columns["advantages"] = data.of_turns(_ALGORITHMS[algorithm.name](data, rewards, shaped, algorithm))
    if algorithm.whiten:
        data.columns["advantages"] = adv.whiten(data.columns["advantages"])
    if limit := algorithm.clip_advantage:
        data.columns["advantages"] = data.columns["advantages"].clip(-limit, limit)


def _subtract_penalties(shaped: Shaped) -> Ragged:
    pairs = zip(shaped.rewards, shaped.penalties, strict=True)
    return [[r - p for r, p in zip(row, penalties, strict=True)] for row, penalties in pairs]


def _with_kl(data: Experience, shaped: Shaped) -> Shaped:
    """Subtract the KL penalties of a turn's tokens from its reward."""
    if shaped.kl is None:
        return shaped
    paid = np.bincount(data.turn, shaped.kl, minlength=int(data.lengths.sum()))
    parts = np.split(paid, np.cumsum(data.lengths)[:-1])
    rewards = [[r - p for r, p in zip(row, part, strict=True)] for row, part in zip(shaped.rewards, parts, strict=True)]
    return replace(shaped, rewards=rewards, kl=None)


def _repeat_for_turns(of_trajectories: Callable[[Floats, Experience, Any], Floats]) -> Callable[..., Floats]:
    """Repeat the advantage of each trajectory for its turns."""

    def advantages(data: Experience, rewards: Ragged, shaped: Shaped, algorithm: Any) -> Floats:
        totals = np.array([sum(row) for row in rewards], dtype=np.float64)
        return np.repeat(of_trajectories(totals, data, algorithm), data.lengths)

    return advantages


def _tokens_of_trajectories(data: Experience) -> Floats:
    return np.bincount(data.trajectory, minlength=len(data.trajectories)).astype(np.float64)


def anchor_keys(turns: Sequence[Turn]) -> list[str]:
    """Return the anchor state of each turn: the environment's ``state_key``, or else the observation.

    GiGPO's authors use the observation (arXiv 2505.10978, section 4.2).
    """
    return [turn.state_key or turn.observation for turn in turns]


def recurring(turns: Sequence[Turn], groups: Sequence[int]) -> float:
    """Return the share of turns whose anchor state recurs in its group: only these get step-level advantages."""
    states = list(zip(groups, anchor_keys(turns), strict=True))
    counts = Counter(states)
    return sum(counts[state] > 1 for state in states) / max(len(states), 1)


#: (data, rewards, shaped, algorithm) -> (T,)
_ALGORITHMS: dict[str, Callable[..., Floats]] = {
    "grpo": _repeat_for_turns(lambda r, d, a: adv.grpo(r, d.groups, std=a.normalize_std)),
    "rloo": _repeat_for_turns(lambda r, d, a: adv.rloo(r, d.groups)),
    "reinforce": _repeat_for_turns(lambda r, d, a: adv.reinforce(r)),
    "reinforce_pp": _repeat_for_turns(
        lambda r, d, a: adv.reinforce_pp(r, d.groups, _tokens_of_trajectories(d), baseline=a.baseline)
    ),
    "maxrl": _repeat_for_turns(lambda r, d, a: adv.maxrl(r, d.groups)),
    "rebn": lambda d, rewards, shaped, a: adv.rebn(rewards, gamma=a.gamma),
    "step_reinforce": lambda d, rewards, shaped, a: adv.step_reinforce(
        rewards, d.groups, gamma=a.gamma, mean=a.mean, std=a.std
    ),
    "gigpo": lambda d, rewards, shaped, a: adv.gigpo(
        rewards,
        d.groups,
        anchor_keys(d.turns),
        gamma=a.gamma,
        step_weight=a.step_weight,
        std=a.normalize_std,
        statistics=a.statistics,
        penalties=shaped.penalties,
        similarity=a.similarity if a.similarity < 1 else None,
    ),
    "empg": lambda d, rewards, shaped, a: _modulate_by_entropy(d, rewards, a),
    "mt_grpo": lambda d, rewards, shaped, a: adv.mt_grpo(rewards, d.groups, weight=a.turn_weight, std=a.normalize_std),
    "hgpo": lambda d, rewards, shaped, a: adv.hgpo(
        rewards,
        d.groups,
        anchor_keys(d.turns),
        gamma=a.gamma,
        history=a.history,
        alpha=a.alpha,
        std=a.normalize_std,
        base=a.base_group,
        penalties=shaped.penalties,
    ),
}


def _modulate_by_entropy(data: Experience, rewards: Ragged, algorithm: Empg) -> Floats:
    """GRPO's advantages of turns with tokens, modulated by the entropy of each; 0 for other turns."""
    plain = adv.grpo([sum(row) for row in rewards], data.groups, std=algorithm.normalize_std)
    counts = np.bincount(data.turn, minlength=int(data.lengths.sum()))
    sampled = counts > 0
    owner = np.repeat(np.arange(len(data.trajectories)), data.lengths)[sampled]
    out = np.zeros(len(counts))
    out[sampled] = adv.empg(
        plain[owner],
        np.bincount(data.turn, data.columns["entropy"], minlength=len(counts))[sampled] / counts[sampled],
        np.bincount(owner, minlength=len(data.trajectories)),
        scale=algorithm.scale,
        future_scale=algorithm.future_scale,
        bonus=algorithm.bonus,
    )
    return out


def _assign_gae(data: Experience, shaped: Shaped, algorithm: Ppo) -> None:
    values, firsts = data.columns["values"], data.first_of_turn
    by_trajectory = data.by_trajectory(values)
    if algorithm.credit == "token":
        rewards, sizes = _turns_with_tokens(data, _subtract_penalties(shaped))
        flat = np.zeros(len(data)) if shaped.kl is None else -shaped.kl
        flat[np.append(firsts[1:], True)] += np.concatenate([np.zeros(0), *rewards])  # on the last token of each turn
        gae = adv.token_gae(
            data.by_trajectory(flat),
            by_trajectory,
            gamma=algorithm.gamma,
            lam=algorithm.lam,
            bootstrap=shaped.bootstrap,
        )
        data.columns["advantages"], data.columns["returns"] = gae.advantages, gae.returns
        return
    rewards, sizes = _turns_with_tokens(data, _subtract_penalties(_with_kl(data, shaped)))
    if algorithm.credit == "turn":
        at_prompts = parts(values[firsts], map(len, sizes))
        gae = adv.turn_gae(
            rewards, at_prompts, gamma=algorithm.turn_gamma, lam=algorithm.turn_lam, bootstrap=shaped.bootstrap
        )
        data.columns["advantages"] = np.repeat(gae.advantages, [n for row in sizes for n in row])
        data.columns["returns"] = np.full(len(data), np.nan)
        data.columns["returns"][firsts] = gae.returns
        return
    gae = adv.bi_level_gae(
        rewards,
        by_trajectory,
        sizes,
        gamma=algorithm.turn_gamma,
        lam=algorithm.turn_lam,
        token_gamma=algorithm.gamma,
        token_lam=algorithm.lam,
        bootstrap=shaped.bootstrap,
    )
    data.columns["advantages"], data.columns["returns"] = gae.advantages, gae.returns


def _turns_with_tokens(data: Experience, rewards: Ragged) -> tuple[Ragged, list[list[int]]]:
    """Return rewards and token counts of turns with tokens. Rewards of other turns are added to the turn before."""
    counts = iter(np.bincount(data.turn, minlength=int(data.lengths.sum())).tolist())
    out: Ragged = []
    sizes: list[list[int]] = []
    for row in rewards:
        merged: list[float] = []
        tokens: list[int] = []
        early = 0.0
        for reward in row:
            if n := next(counts):
                merged.append(reward + early)
                tokens.append(n)
                early = 0.0
            elif merged:
                merged[-1] += reward
            else:
                early += reward
        out.append(merged)
        sizes.append(tokens)
    return out, sizes


def dropped(data: Experience, settings: RewardsConfig, vocabulary: int) -> dict[str, NDArray[np.bool_]]:
    """Find the trajectories that are not trained on.

    Returns:
        (N,) mask for each reason in the settings.
    """
    masks: dict[str, NDArray[np.bool_]] = {}
    behavior, numbers = data.columns["behavior"], np.arange(len(data.trajectories))
    if settings.drop_truncated:
        masks["truncated"] = np.array([any(turn.finish == "length" for turn in t.turns) for t in data.trajectories])
    if settings.drop_long_failures:
        longest = [max((len(turn.response_ids) for turn in t.turns), default=0) for t in data.trajectories]
        failed = np.array([not t.success for t in data.trajectories])
        masks["long_failures"] = failed & (np.array(longest) >= settings.drop_long_failures)
    if settings.drop_repetition:
        sure = behavior > math.log(0.99)
        begins = np.flatnonzero(data.first_of_turn | np.diff(sure, prepend=sure[:1]))
        long = np.diff(begins, append=len(data)) >= settings.drop_repetition
        masks["repetition"] = np.isin(numbers, data.trajectory[begins[sure[begins] & long]])
    if settings.drop_gibberish:
        rare = np.concatenate([s.ids[s.mask] for s in data.samples]) >= settings.drop_gibberish
        masks["gibberish"] = np.isin(numbers, data.trajectory[rare & (behavior < -math.log(vocabulary) - 2)])
    return masks


def with_trajectory_weights(data: Experience, settings: RewardsConfig, weights: Floats) -> Floats:
    """Multiply the weights of tokens by those of their trajectories.

    Args:
        weights: (R,) token weights of the aggregation.

    Returns:
        (R,)
    """
    if settings.length_weight:
        weights = weights * adv.length_weights(_tokens_of_trajectories(data))[data.trajectory]
    if settings.difficulty_weight:
        solved = np.array([t.success for t in data.trajectories], dtype=np.float64)
        members = np.bincount(data.groups)
        share = np.bincount(data.groups, solved) / np.maximum(members, 1)
        weights = weights * adv.difficulty_weights(1 - share[data.groups])[data.trajectory]
    return weights
