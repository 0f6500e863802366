"""Repeatability: the same seeds and actions in a second process, and graded again there a day later by its clock."""

from __future__ import annotations

import contextlib
import math
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollenv.core.checker.digests import HelperProcess
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import Broken
from rollenv.rollout.types import Task, Trajectory
from rollenv.rollout.workers.base import describe, make_env

#: An episode as it can be compared: observations from the reset on, and the reward of each step.
Trace = tuple[list[str], list[float]]

#: Episodes to play again, and the maximum number of their turns.
_EPISODES, _TURNS = 8, 64

#: What the clock of the second grading is ahead: a day, a minute and a second, so that each part of a time changes.
_AHEAD = 86_461.0


@dataclass
class Repeated:
    """What playing again showed; ``differences`` say where and what, one line for each episode that differs."""

    episodes: int = 0
    observations: int = 0
    """Episodes whose observations differ in the second process."""
    rewards: int = 0
    """Episodes whose rewards differ there, after equal observations."""
    graded: int = 0
    """Episodes that were equal there, and whose second grading differs."""
    differences: list[str] = field(default_factory=list)
    unchecked: str = ""
    """Why nothing could be compared; empty if something was."""


def play_again(env_spec: EnvSpec, played: Sequence[Trajectory], seconds: float) -> Repeated:
    """Play stored episodes twice in a second process, which has another hash seed, and compare.

    Args:
        seconds: deadline of the second process.
    """
    found = Repeated()
    chosen = _chosen(played)
    if not chosen:
        found.unchecked = "no episode is a function of its seed and actions"
        return found
    requests = [(t.task, [turn.text for turn in t.turns]) for t in chosen]
    try:
        pickle.dumps(env_spec)
    except Exception as error:
        found.unchecked = f"its spec cannot be sent to a second process: {describe(error)}"
        return found
    try:
        with HelperProcess(seconds, {"PYTHONHASHSEED": "4321"}) as process:
            answers = process.call("rollenv.probe.repeat:traces", env_spec, requests)
    except Broken as error:
        found.unchecked = str(error)
        return found
    found.episodes = len(chosen)
    for trajectory, (first, second) in zip(chosen, answers, strict=True):
        before: Trace = (
            [*(turn.observation for turn in trajectory.turns), trajectory.final_observation],
            [turn.reward for turn in trajectory.turns],
        )
        where = f"seed {trajectory.task.seed}"
        if index := trajectory.task.options.get("index"):
            where = f"task {index}"
        if text := _difference(before, first):
            found.differences.append(f"{where}, second process: {text}")
            found.rewards += text.startswith("the reward")
            found.observations += not text.startswith("the reward")
        elif text := _difference(first, second):
            found.differences.append(f"{where}, graded again with a clock a day later: {text}")
            found.graded += 1
    return found


def _chosen(played: Sequence[Trajectory]) -> list[Trajectory]:
    """Return complete episodes of as many tasks as possible, with both outcomes where there are both."""
    fit = [t for t in played if t.complete and not t.record and 0 < len(t.turns) <= _TURNS]
    fit = [t for t in fit if t.env_reward is None]  # reward functions cannot be asked again
    won, lost = ([t for t in fit if t.success is is_won] for is_won in (True, False))
    mixed = [t for pair in zip(won, lost, strict=False) for t in pair]
    mixed += won[len(lost) :] + lost[len(won) :]
    by_task = {(t.task.seed, str(t.task.options), t.success): t for t in reversed(mixed)}
    return list(reversed(by_task.values()))[:_EPISODES]


def _difference(a: Trace, b: Trace) -> str:
    """Say where two episodes differ first; empty if they do not."""
    for turn, (x, y) in enumerate(zip(a[0], b[0], strict=False)):
        if x != y:
            at = next((i for i, (p, q) in enumerate(zip(x, y, strict=False)) if p != q), min(len(x), len(y)))
            seen = f"{x[max(0, at - 20) : at + 30]!r}, then {y[max(0, at - 20) : at + 30]!r}"
            return f"the observation after turn {turn} was {seen}"
        if turn < min(len(a[1]), len(b[1])) and not math.isclose(a[1][turn], b[1][turn], rel_tol=1e-9, abs_tol=1e-12):
            return f"the reward of turn {turn + 1} was {a[1][turn]:g}, then {b[1][turn]:g}"
    if len(a[0]) != len(b[0]):
        return f"the episode had {len(a[0]) - 1} turns, then {len(b[0]) - 1}"
    return ""


# -- in the second process ---------------------------------------------------------------------------------------------


def traces(env_spec: EnvSpec, requests: Sequence[tuple[Task, list[str]]]) -> list[tuple[Trace, Trace]]:
    """Play each episode twice, the second time with a clock that is ahead."""
    found = []
    for task, actions in requests:
        first = _trace(env_spec, task, actions)
        try:
            with _later():
                second = _trace(env_spec, task, actions)
        except Exception:  # what needs the right time, such as a certificate, says nothing about rewards
            second = _trace(env_spec, task, actions)
        found.append((first, second))
    return found


@contextlib.contextmanager
def _later() -> Iterator[None]:
    real = time.time
    time.time = lambda: real() + _AHEAD
    try:
        yield
    finally:
        time.time = real


def _trace(env_spec: EnvSpec, task: Task, actions: Sequence[str]) -> Trace:
    with contextlib.closing(make_env(env_spec, task)) as env:
        given: dict[str, Any] = {"options": dict(task.options)} if task.options else {}
        observation, _ = env.reset(task.seed, **given)
        observations, rewards = [observation], []
        for action in actions:
            observation, reward, terminated, truncated, _ = env.step(action)
            observations.append(observation)
            rewards.append(float(reward))
            if terminated or truncated:
                break
        return observations, rewards
