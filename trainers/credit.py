"""Reward shaping, and advantages for every response token."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rollenv.core.errors import UsageError
from rollenv.core.plugins import users_code
from rollenv.rollout.seats import seat_role_of
from rollenv.rollout.types import Trajectory, Turn
from rollenv.trainers import advantages as adv
from rollenv.trainers.advantages.moments import parts, ragged
from rollenv.trainers.config.algorithms import Algorithm, AnyAlgorithm
from rollenv.trainers.config.own import own_arguments
from rollenv.trainers.config.rewards import RewardsConfig
from rollenv.trainers.config.section import OwnFunction, arguments
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
    baselines: dict[str, float] = field(default_factory=dict)
    """The run's baselines by role."""


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
        invalid = self.settings.invalid_penalty
        penalties = [[0.0 if turn.valid else invalid for turn in t.turns] for t in data.trajectories]
        if self.settings.overlong:
            for row, trajectory in zip(rewards, data.trajectories, strict=True):
                lengths = [len(turn.response_ids) for turn in trajectory.turns]
                longer = adv.overlong_penalty(lengths, limit=self.max_new_tokens, buffer=self.settings.overlong)
                row[:] = [r + p for r, p in zip(row, longer.tolist(), strict=True)]
        if not isinstance(fine := self.settings.at_limit, str):
            for row, trajectory in zip(rewards, data.trajectories, strict=True):
                if row and (trajectory.status == "truncated" or trajectory.turns[-1].finish == "length"):
                    row[-1] -= fine
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
        return [0.0] * (len(trajectory.turns) - 1) + [scale * bool(trajectory.success)][: len(trajectory.turns)]


def _clip_return(rewards: list[float], limit: float) -> list[float]:
    """Clip the cumulative return after each turn to plus and minus a limit."""
    total, before, out = 0.0, 0.0, []
    for reward in rewards:
        total += reward
        clipped = min(max(total, -limit), limit)
        out.append(clipped - before)
        before = clipped
    return out


def assign(
    data: Experience, shaped: Shaped, algorithm: AnyAlgorithm, entropy: Callable[[], Floats] = lambda: np.zeros(0)
) -> None:
    """Write the column "advantages" and, for a critic, "returns" (NaN for tokens without a target).

    With a critic, the last step of a trajectory has the error r_T + gamma V_{T+1} - V_T. V_{T+1} is 0 if the task ended
    (``terminated``), and the critic's value of the last state if a limit did (``truncated``): the rewards that would
    have followed are expected, not lost (Pardo et al., arXiv 1712.00378; Gymnasium's meaning of the two).

    Args:
        data: the batch; for PPO with the column "values".
        entropy: computes the (R,) entropies of the policy, if the algorithm reads them.
    """
    x = _input(data, shaped, entropy)
    if isinstance(algorithm, OwnFunction):
        found: Floats | adv.Gae = _own(x, algorithm)
    else:
        found = ADVANTAGES[algorithm.name](x, **arguments(algorithm, Algorithm))
    if isinstance(found, adv.Gae):
        advantages, data.columns["returns"] = found.advantages, found.returns
    else:
        advantages = found
    if algorithm.whiten:
        advantages = adv.whiten(advantages)
    if limit := algorithm.clip_advantage:
        advantages = advantages.clip(-limit, limit)
    data.columns["advantages"] = advantages


def _input(data: Experience, shaped: Shaped, entropy: Callable[[], Floats]) -> adv.AdvantageInput:
    return adv.AdvantageInput(
        groups=data.groups,
        lengths=data.lengths,
        success=np.array([t.success for t in data.trajectories], dtype=bool),
        kept=data.kept,
        unpenalized=_flat(shaped.rewards),
        penalties=_flat(shaped.penalties),
        states=anchor_keys(data.turns),
        turn=data.turn,
        trajectory=data.trajectory,
        logprobs=data.columns["behavior"],
        kl=shaped.kl,
        values=data.columns.get("values"),
        bootstrap=shaped.bootstrap,
        roles=[f"{t.task.env_id} {seat_role_of(t)}" for t in data.trajectories],
        baselines=shaped.baselines,
        compute_entropy=entropy,
    )


def _flat(rows: Ragged) -> Floats:
    return np.array([number for row in rows for number in row], dtype=np.float64)


def _own(x: adv.AdvantageInput, algorithm: OwnFunction) -> Floats:
    """Call the user's function and check its result."""
    what, settings = f"algorithm.name={algorithm.name}", own_arguments(algorithm, "algorithm")
    with users_code(what):
        found = np.array(algorithm.function(x, **settings), dtype=np.float64)
    if found.shape != x.turn.shape:
        raise UsageError(
            f"{what} returned numbers of the shape {found.shape}; it has to return one for each of the "
            f"{len(x.turn)} response tokens, shape {x.turn.shape}: write numbers[x.trajectory] for numbers of the "
            f"{len(x.groups)} trajectories, numbers[x.turn] for numbers of the {len(x.states)} turns"
        )
    if len(wrong := np.flatnonzero(~np.isfinite(found))):
        raise UsageError(
            f"{what} returned {found[wrong[0]]} for token {wrong[0]}, of trajectory {x.trajectory[wrong[0]]}; "
            f"{len(wrong)} of {len(found)} advantages are not finite (a division by the deviation of equal rewards?)"
        )
    return found


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


# -- the estimators, by their names in recipes, whose keys are their arguments -----------------------------------------


def _rows(x: adv.AdvantageInput, numbers: Floats) -> Ragged:
    """Split (T,) numbers into one list for each trajectory."""
    return parts(numbers, x.lengths)


def _empg(x: adv.AdvantageInput, *, normalize_std: bool, **keys: float) -> Floats:
    """GRPO's advantages of turns with tokens, modulated by the entropy of each; 0 for other turns."""
    counts = np.bincount(x.turn, minlength=len(x.states))
    sampled = counts > 0
    owner = np.repeat(np.arange(len(x.groups)), x.lengths)[sampled]
    plain = adv.grpo(x.returns, x.groups, std=normalize_std)[owner]
    entropy = np.bincount(x.turn, x.entropy, minlength=len(counts))[sampled] / counts[sampled]
    of_turns = np.zeros(len(counts))
    of_turns[sampled] = adv.empg(plain, entropy, np.bincount(owner, minlength=len(x.groups)), **keys)
    return of_turns[x.turn]


def _ppo(
    x: adv.AdvantageInput, *, credit: str, gamma: float, lam: float, turn_gamma: float, turn_lam: float, critic: object
) -> adv.Gae:
    assert x.values is not None
    firsts = np.diff(x.turn, prepend=-1) != 0
    by_token = parts(x.values, x.tokens)
    if credit == "token":
        rewards, sizes = _turns_with_tokens(x, x.unpenalized - x.penalties)
        flat = np.zeros(len(x.turn)) if x.kl is None else -x.kl
        flat[np.append(firsts[1:], True)] += np.concatenate([np.zeros(0), *rewards])  # on the last token of each turn
        return adv.token_gae(parts(flat, x.tokens), by_token, gamma=gamma, lam=lam, bootstrap=x.bootstrap)
    rewards, sizes = _turns_with_tokens(x, x.rewards)
    if credit == "turn":
        at_prompts = parts(x.values[firsts], map(len, sizes))
        gae = adv.turn_gae(rewards, at_prompts, gamma=turn_gamma, lam=turn_lam, bootstrap=x.bootstrap)
        returns = np.full(len(x.turn), np.nan)
        returns[firsts] = gae.returns
        return adv.Gae(np.repeat(gae.advantages, [n for row in sizes for n in row]), returns)
    return adv.bi_level_gae(
        rewards,
        by_token,
        sizes,
        gamma=turn_gamma,
        lam=turn_lam,
        token_gamma=gamma,
        token_lam=lam,
        bootstrap=x.bootstrap,
    )


def _turns_with_tokens(x: adv.AdvantageInput, of_turns: Floats) -> tuple[Ragged, list[list[int]]]:
    """Return rewards and token counts of turns with tokens. Rewards of other turns are added to the turn before."""
    counts = iter(np.bincount(x.turn, minlength=len(x.states)).tolist())
    out: Ragged = []
    sizes: list[list[int]] = []
    for row in _rows(x, of_turns):
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


#: From the batch, and the recipe's keys as arguments, to (R,) advantages; :class:`Gae` for a critic.
ADVANTAGES: dict[str, Callable[..., Floats | adv.Gae]] = {
    "grpo": lambda x, normalize_std: adv.grpo(x.returns, x.groups, std=normalize_std)[x.trajectory],
    "rloo": lambda x: adv.rloo(x.returns, x.groups)[x.trajectory],
    "reinforce": lambda x: adv.reinforce(x.returns)[x.trajectory],
    "reinforce_pp": lambda x, baseline: adv.reinforce_pp(
        x.returns, x.groups, x.tokens.astype(np.float64), baseline=baseline
    )[x.trajectory],
    "maxrl": lambda x: adv.maxrl(x.returns, x.groups)[x.trajectory],
    "rebn": lambda x, gamma: adv.rebn(_rows(x, x.rewards), gamma=gamma)[x.turn],
    "step_reinforce": lambda x, **keys: adv.step_reinforce(_rows(x, x.rewards), x.groups, **keys)[x.turn],
    "gigpo": lambda x, normalize_std, similarity, **keys: adv.gigpo(
        _rows(x, x.after_kl),
        x.groups,
        x.states,
        std=normalize_std,
        penalties=_rows(x, x.penalties),
        similarity=similarity if similarity < 1 else None,
        **keys,
    )[x.turn],
    "hgpo": lambda x, normalize_std, base_group, **keys: adv.hgpo(
        _rows(x, x.after_kl),
        x.groups,
        x.states,
        std=normalize_std,
        base=base_group,
        penalties=_rows(x, x.penalties),
        **keys,
    )[x.turn],
    "mt_grpo": lambda x, normalize_std, turn_weight: adv.mt_grpo(
        _rows(x, x.rewards), x.groups, weight=turn_weight, std=normalize_std
    )[x.turn],
    "empg": _empg,
    "ppo": _ppo,
    "role_baseline": lambda x, decay: adv.role_baseline(x.returns, x.roles, x.baselines, decay=decay)[x.trajectory],
    "imitation": lambda x: x.rewards[x.turn],
}


def dropped(data: Experience, settings: RewardsConfig, vocabulary: int) -> dict[str, NDArray[np.bool_]]:
    """Find the trajectories that are not trained on.

    Returns:
        (N,) mask for each reason in the settings.
    """
    masks: dict[str, NDArray[np.bool_]] = {}
    behavior, numbers = data.columns["behavior"], np.arange(len(data.trajectories))
    if settings.at_limit in ("drop", "drop_failed"):
        teaches = [settings.at_limit == "drop_failed" and bool(t.success) for t in data.trajectories]
        cut = [any(turn.finish == "length" for turn in t.turns) for t in data.trajectories]
        masks["truncated"] = np.array(cut) & ~np.array(teaches)
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
        tokens = np.bincount(data.trajectory, minlength=len(data.trajectories))
        weights = weights * adv.length_weights(tokens.astype(np.float64))[data.trajectory]
    if settings.difficulty_weight:
        solved = np.array([bool(t.success) for t in data.trajectories], dtype=np.float64)
        members = np.bincount(data.groups)
        share = np.bincount(data.groups, solved) / np.maximum(members, 1)
        weights = weights * adv.difficulty_weights(1 - share[data.groups])[data.trajectory]
    return weights
