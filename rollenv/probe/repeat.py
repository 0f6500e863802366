"""Repeatability: the same seeds and actions in a second process, and graded again there a day later by its clock."""

from __future__ import annotations

import contextlib
import math
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rollenv.core.checker.digests import HelperProcess
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import Broken, describe
from rollenv.rollout.types import Task, Trajectory
from rollenv.rollout.workers.base import make_env

#: An episode as it can be compared: observations from the reset on, and the reward of each step.
Trace = tuple[list[str], list[float]]

#: Episodes to play again, and the maximum number of their turns.
_EPISODES, _TURNS = 8, 64

#: What the clock of the second grading is ahead: a day and a half, a minute and a second: each part of a time changes.
_AHEAD = 129_661.0


@dataclass
class Repeated:
    """The differences that playing again showed."""

    episodes: int = 0
    differences: list[str] = field(default_factory=list)
    """A line for each episode that differs: place and difference."""
    unchecked: str = ""
    """Why nothing could be compared; empty if something was."""


def play_again(env_spec: EnvSpec, played: Sequence[Trajectory], seconds: float) -> Repeated:
    """Play stored episodes twice in a second process, which has another hash seed, time zone and user, and compare.

    Args:
        seconds: deadline of the second process.
    """
    chosen = _chosen(played)
    if not chosen:
        return Repeated(unchecked=f"no episode that one agent's answers make ended within {_TURNS} turns")
    try:
        pickle.dumps(env_spec)
    except Exception as error:
        return Repeated(unchecked=f"its spec cannot be sent to a second process: {describe(error)}")
    requests = [(t.task, [turn.text for turn in t.turns]) for t in chosen]
    try:
        with HelperProcess(seconds, {"PYTHONHASHSEED": "4321", "TZ": "Etc/GMT-12", "USER": "somebody"}) as process:
            answers = process.call("rollenv.probe.repeat:traces", env_spec, requests)
    except Broken as error:
        return Repeated(unchecked=str(error))
    found = Repeated(len(chosen))
    for t, (first, second, third) in zip(chosen, answers, strict=True):
        place = f"row {t.task.options['index']}" if "index" in t.task.options else f"seed {t.task.seed}"
        before = [*(turn.observation for turn in t.turns), t.final_observation], [turn.reward for turn in t.turns]
        if told := _difference(before, first):
            found.differences.append(f"{place}, in a second process: {told}")
        elif told := _difference(first, third):
            found.differences.append(f"{place}, played twice by one process: {told}")
        elif told := _difference(first, second):
            found.differences.append(f"{place}, graded again with a clock a day later: {told}")
    return found


def _chosen(played: Sequence[Trajectory]) -> list[Trajectory]:
    """Return complete episodes, one of each task and outcome, those without success first by turns."""
    fit = [t for t in played if t.complete and not t.record and t.env_reward is None and 0 < len(t.turns) <= _TURNS]
    one = {(t.success, t.task.seed, str(t.task.options)): t for t in reversed(fit)}
    won, lost = ([t for t in one.values() if t.success is wanted] for wanted in (True, False))
    half = max(_EPISODES // 2, _EPISODES - len(lost))
    return [*won[:half], *lost[: _EPISODES - len(won[:half])]]


def _difference(a: Trace, b: Trace) -> str:
    """Return what differs first in two episodes; empty if nothing does."""
    for turn, (x, y) in enumerate(zip(a[0], b[0], strict=False)):
        if turn and not math.isclose(a[1][turn - 1], b[1][turn - 1], rel_tol=1e-9, abs_tol=1e-12):
            return f"the reward of turn {turn} was {a[1][turn - 1]:g}, then {b[1][turn - 1]:g}"
        if x != y:
            at = next((i for i, (p, q) in enumerate(zip(x, y, strict=False)) if p != q), min(len(x), len(y)))
            begin = max(0, at - 20)
            return f"the observation after turn {turn} was {x[begin : at + 30]!r}, then {y[begin : at + 30]!r}"
    return f"the episode had {len(a[1])} turns, then {len(b[1])}" if len(a[1]) != len(b[1]) else ""


# -- in the second process ---------------------------------------------------------------------------------------------


def traces(env_spec: EnvSpec, requests: Sequence[tuple[Task, list[str]]]) -> list[tuple[Trace, Trace, Trace]]:
    """Play each episode twice, the second time with a clock that is ahead; if that differs, once more without."""
    found, real = [], time.time
    for task, actions in requests:
        first = second = third = _trace(env_spec, task, actions)
        time.time = lambda: real() + _AHEAD
        with contextlib.suppress(Exception):  # what needs the right time, such as a certificate, tells nothing
            second = _trace(env_spec, task, actions)
        time.time = real
        if _difference(first, second):
            third = _trace(env_spec, task, actions)
        found.append((first, second, third))
    return found


def _trace(env_spec: EnvSpec, task: Task, actions: Sequence[str]) -> Trace:
    with contextlib.closing(make_env(env_spec, task)) as env:
        given: dict[str, Any] = {"options": dict(task.options)} if task.options else {}
        observations, rewards = [env.reset(task.seed, **given)[0]], []
        for action in actions:
            observation, reward, terminated, truncated, _ = env.step(action)
            observations.append(observation)
            rewards.append(float(reward))
            if terminated or truncated:
                break
        return observations, rewards
