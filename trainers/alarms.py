"""Alarms about training that goes wrong, computed from the logged metrics.

An alarm is a pure function of the rows so far: it needs no state beyond the log, and a resumed run continues as if it
had not stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Real
from typing import Any

Row = Mapping[str, Any]
Rows = Sequence[Row]


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm: what happened, with the numbers, and what to do."""

    name: str
    happened: str
    do: str

    def __str__(self) -> str:
        return f"{self.name}: {self.happened}. {self.do}"


@dataclass(frozen=True, slots=True)
class AlarmLimits:
    """The limits at which alarms go off."""

    patience: int = 3
    """Consecutive iterations before an alarm about what can happen by chance: equal rewards, no informative group."""
    quiet: int = 10
    """Iterations in which an alarm is not repeated."""
    entropy: float = 0.1
    """Minimum entropy, as a share of the first iteration's."""
    ratio: float = 1.5
    """Maximum mean ratio; its inverse is the minimum."""
    logprob_drift: float = 0.1
    """Maximum mean of |log π - log μ| for the same weights, in nats. bfloat16 samplers are at about 0.01."""


def alarms(metrics: Row, history: Rows, limits: AlarmLimits | None = None) -> list[Alarm]:
    """Return the alarms of a new row. Each cause is reported when it begins, not again while it lasts.

    Rows may lack metrics; a rule uses only the rows that have its own. The rules read ``reward_std`` (spread of all
    episodes' rewards), ``reward``, ``informative_groups`` (share), ``entropy``, ``ratio``, ``drift`` (turns whose
    tokens are not those that were played), ``logprob_drift``, and ``turns`` with ``failed``, also of evaluations. Every
    number must be finite.

    Args:
        history: rows of all iterations before it, oldest first.
    """
    limits = limits or AlarmLimits()
    rows = [*history, metrics]
    found = []
    recent = range(max(len(rows) - limits.quiet, 0), len(rows))
    for name, rule in RULES.items():
        for happened, advice in rule(rows, limits):
            if not any(any(rule(rows[:end], limits)) for end in recent):
                found.append(Alarm(name, happened, advice))
    return found + _not_finite(rows, limits)


#: A rule yields what happened and what to do, at most once.
Rule = Callable[[Rows, AlarmLimits], Iterator[tuple[str, str]]]


def _last(rows: Rows, name: str, n: int = 1) -> list[float]:
    """Return the ``n`` latest values, latest first; none if the last row lacks one: old values raise no alarm."""
    if not rows or not _finite(rows[-1].get(name)):
        return []
    return list(islice((row[name] for row in reversed(rows) if _finite(row.get(name))), n))


def _constant_reward(rows: Rows, limits: AlarmLimits) -> Iterator[tuple[str, str]]:
    last = _last(rows, "reward_std", limits.patience)
    if len(last) == limits.patience and max(last) <= 1e-9:
        reward = rows[-1].get("trained_reward", rows[-1].get("reward", math.nan))
        yield (
            f"all episodes of the last {limits.patience} iterations had one reward, {reward:g}",
            "Look at an episode: is the task far too hard or easy, or does its reward ignore the answer? Change the "
            "level, warm up by imitation, or give partial rewards",
        )


def _no_informative_group(rows: Rows, limits: AlarmLimits) -> Iterator[tuple[str, str]]:
    last = _last(rows, "informative_groups", limits.patience)
    known = any(_constant_reward(rows, limits))  # which has the same cause
    if len(last) == limits.patience and max(last) <= 0 and not known:
        yield (
            f"in {limits.patience} iterations no group had members that differ in reward, so nothing was learned",
            "Raise the group size or the temperature, or pick tasks with a success rate near one half",
        )


def _entropy_collapse(rows: Rows, limits: AlarmLimits) -> Iterator[tuple[str, str]]:
    start = next((row["entropy"] for row in rows if _finite(row.get("entropy"))), 0.0)
    for now in _last(rows, "entropy"):
        if start > 0 and now <= limits.entropy * start:
            yield (
                f"entropy fell to {now:.3g} nats per token from {start:.3g} at the start",
                "Members of a group become copies. If the reward no longer rises, lower the learning rate, raise the "
                "upper clip, add an entropy bonus or go back to an earlier checkpoint",
            )


def _ratio_far(rows: Rows, limits: AlarmLimits) -> Iterator[tuple[str, str]]:
    for now in _last(rows, "ratio"):
        if not 1 / limits.ratio <= now <= limits.ratio:
            yield (
                f"the mean ratio of policy and old policy is {now:.3g}, not {1 / limits.ratio:.2f} to {limits.ratio:g}",
                "Make fewer updates per batch, lower the learning rate or the staleness, and check that old "
                "log-probabilities belong to the same tokens and temperature",
            )


def _drift(rows: Rows, limits: AlarmLimits) -> Iterator[tuple[str, str]]:
    for now in _last(rows, "drift"):
        if now:
            yield (
                f"the tokens of {now:g} turns in training differ from those that were sampled",
                "The agent's prompts are rebuilt from text: keep token ids, and run the drift check on one episode",
            )


def _logprob_drift(rows: Rows, limits: AlarmLimits) -> Iterator[tuple[str, str]]:
    for now in _last(rows, "logprob_drift"):
        if now > limits.logprob_drift:
            yield (
                f"sampler and trainer disagree by {now:.3g} nats per token, more than {limits.logprob_drift:g}",
                "Check that weights were synchronised and that both use the same temperature and precision, and no "
                "top-p or top-k; if they must differ, use a correction such as tis or icepop",
            )


def _nothing_played(rows: Rows, limits: AlarmLimits) -> Iterator[tuple[str, str]]:
    row = rows[-1] if rows else {}
    parts = [name.removesuffix("turns") for name in row if name == "turns" or name.startswith("eval/")]
    empty = [part for part in parts if row.get(f"{part}turns") == 0 and row.get(f"{part}failed") == 0]
    if empty:
        names = " and ".join(part.strip("/") or "training" for part in empty)
        yield (
            f"no episode of {names} had a turn, and none failed: the first prompts leave no room for an answer",
            "Raise the model's context, shorten the prompt, or check that eval.kwargs holds all that env.kwargs does",
        )


def _not_finite(rows: Rows, limits: AlarmLimits) -> list[Alarm]:
    """Return one alarm for all metrics that have newly become non-finite."""
    bad = _bad(rows[-1]).difference(*map(_bad, rows[-limits.quiet - 1 : -1]))
    values = ", ".join(f"{name} is {rows[-1][name]}" for name in sorted(bad))
    advice = (
        "Lower the learning rate or the maximum gradient norm, and look for log-probabilities of -inf. The last "
        "checkpoint before this iteration is good"
    )
    return [Alarm("not_finite", values, advice)] if bad else []


def _bad(row: Row) -> set[str]:
    return {name for name, value in row.items() if isinstance(value, Real) and not _finite(value)}


def _finite(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


RULES: dict[str, Rule] = {
    "constant_reward": _constant_reward,
    "no_informative_group": _no_informative_group,
    "entropy_collapse": _entropy_collapse,
    "ratio_far": _ratio_far,
    "drift": _drift,
    "logprob_drift": _logprob_drift,
    "nothing_played": _nothing_played,
}
