"""The whole probe of one environment and one agent."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rollenv.agents.base import Agent
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.registry import spec
from rollenv.core.wrappers.factory import with_tokenizer
from rollenv.probe.floors import CUT, Floor, TimedAgent, floors_of
from rollenv.probe.repeat import Repeated, play_again
from rollenv.probe.teach import Iteration, Lengths, Taught, iteration, lengths, taught
from rollenv.probe.verdict import (
    Advice,
    FloorResult,
    Remark,
    Trial,
    advice,
    allowed,
    candidates,
    imitation,
    judge,
    remarks,
    share_of,
)
from rollenv.rollout.evaluate import tasks_of, wilson_interval
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task, Trajectory
from rollenv.trainers.config import TrainConfig

#: ``watch(stage, done, total)``
Watch = Callable[[str, int, int], None]

#: The shares of the probe's time for the model's episodes, all trials, all floors and the second process.
_MODEL, _TRIALS, _FLOORS, _AGAIN = 0.5, 0.2, 0.2, 0.2

#: Tasks of each floor; tasks and episodes of a trial.
_FLOOR_TASKS, _TRIAL_TASKS, _TRIAL_EPISODES = 64, 12, 8


@dataclass
class ProbeResult:
    """Everything that a probe found."""

    env_id: str
    agent: str
    kwargs: dict[str, Any]
    k: int
    group_size: int
    told: Taught
    lengths: Lengths
    iteration: Iteration
    floors: list[FloorResult]
    again: Repeated
    trials: list[Trial]
    remarks: list[Remark]
    advice: list[Advice]
    imitation: str
    left_out: list[str]
    """What was not measured, and why."""
    seconds: float
    cores: int
    episodes: list[Trajectory] = field(repr=False)

    @property
    def red(self) -> list[Remark]:
        """What makes the environment unfit to train on, or the model unfit for it."""
        return [remark for remark in self.remarks if remark.level == "red"]

    @property
    def command(self) -> str:
        """The training that the first advice gives; without advice the plain one."""
        model = self.agent.removeprefix("local:") if self.agent.startswith("local:") else "MODEL"
        settings = [f"env.kwargs.{key}={json.dumps(value)}" for key, value in self.kwargs.items() if key != "split"]
        settings += self.advice[0].settings if self.advice else ()
        return " ".join(["rollenv train", self.env_id, f"model={model}", *settings])

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain data, without the episodes."""
        whole = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("episodes", "told")}
        plain = {name: _plain(value) for name, value in whole.items()}
        return plain | {"told": self.told.to_dict(), "informative": share_of(self.told, self.group_size)}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value


def probe(
    config: TrainConfig,
    agent: Agent,
    name: str,
    manager: RolloutManager,
    *,
    n: int,
    k: int,
    seconds: float,
    watch: Watch,
    variant: Callable[[TrainConfig], Agent] | None = None,
) -> ProbeResult:
    """Probe an environment with an agent.

    Args:
        config: the recipe of the run that is considered; its training tasks are played.
        name: the agent's name.
        manager: plays with ``agent``.
        n: tasks.
        k: episodes of each.
        seconds: time for everything; episodes that it does not suffice for are left out.
        variant: makes the agent for changed settings; None for an agent whose settings are not the recipe's.

    Raises:
        UsageError: no task was played to its end in time.
    """
    began = time.monotonic()
    env_spec = spec(config.env.id)
    tasks = tasks_for(config, n)
    watch("playing", 0, len(tasks) * k)
    episodes, took = _play(manager, agent, tasks, k, _MODEL * seconds, watch, "playing")
    planned = len(tasks) * k
    if not episodes:
        raise UsageError(
            f"no task of {config.env.id} was played {k} times in {_MODEL * seconds:.0f} s: give more --minutes, fewer "
            f"episodes with -k, or shorter answers with --max-tokens ({config.rollout.max_new_tokens} now)"
        )
    told = taught(config.env.id, episodes, k, planned - len(episodes))
    local = agent if hasattr(agent, "tokenizer") else None
    rollout = config.rollout
    limits = {"context": None, "max_prompt": rollout.max_prompt_tokens or None, "max_new": None}
    if local is not None:
        sampling: Any = local.sampling  # type: ignore[attr-defined]
        limits |= {"context": local.engine.max_context, "max_new": sampling.max_new_tokens}  # type: ignore[attr-defined]
    seen = lengths(episodes, limits)
    trials = []
    tried = candidates(config, env_spec, told, seen) if variant else []
    for settings in tried:
        watch(f"trying {' '.join(settings)}", 0, 1)
        trial = _try(manager, config, settings, variant, _TRIALS * seconds / len(tried))
        trials += [trial] if trial else []
    floors = _floors(manager, config, env_spec, episodes, _FLOORS * seconds, watch)
    watch("playing again in a second process", 0, 1)
    again = play_again(env_spec, episodes, max(20.0, _AGAIN * seconds))
    watch("measuring an update", 0, 1)
    measured = local if hasattr(local, "model") else None
    steps = iteration(
        episodes,
        took,
        rollout.groups_per_batch,
        rollout.group_size,
        config.optimizer.epochs,
        measured,  # type: ignore[arg-type]
    )
    judge(floors, told)
    given = advice(config, env_spec, told, seen, floors, trials)
    return ProbeResult(
        config.env.id,
        name,
        dict(config.env.kwargs),
        k,
        rollout.group_size,
        told,
        seen,
        steps,
        floors,
        again,
        trials,
        remarks(env_spec, told, floors, again, rollout.group_size),
        given,
        imitation(told, env_spec, given),
        _left_out(local is not None, variant is not None, told, steps),
        time.monotonic() - began,
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        episodes,
    )


def tasks_for(config: TrainConfig, n: int) -> list[Task]:
    """Return up to ``n`` training tasks of a recipe; rows of a data set are spread over all of it."""
    env = config.env
    wrappers = with_tokenizer(env.wrappers, config.model.tokenizer)
    if not spec(env.id).indexed or "index" in env.options:
        return tasks_of(env.id, env.kwargs, n, config.seed, wrappers, env.options)
    whole = tasks_of(env.id, env.kwargs, None, config.seed, wrappers, env.options)
    return [whole[i * len(whole) // n] for i in range(n)] if len(whole) > n else whole


def _play(
    manager: RolloutManager, agent: Agent, tasks: Sequence[Task], k: int, seconds: float, watch: Watch, stage: str
) -> tuple[list[Trajectory], float]:
    """Play each task ``k`` times while there is time.

    Returns:
        The episodes of the tasks that were played to their ends, and the time.
    """
    episodes = [Trajectory(task, group=i, member=j) for i, task in enumerate(tasks) for j in range(k)]
    began, done = time.monotonic(), 0
    ended: set[int] = set()

    def begun() -> Iterator[Trajectory]:
        for trajectory in episodes:
            if time.monotonic() < began + seconds:
                yield trajectory

    def count(trajectory: Trajectory) -> None:
        nonlocal done
        done += 1
        watch(stage, done, len(episodes))
        if CUT not in trajectory.record:
            ended.add(id(trajectory))

    timed: Any = TimedAgent(agent, began + seconds)
    lazily: Any = begun()
    manager.with_agent(timed).play(lazily, count)
    groups = [episodes[i : i + k] for i in range(0, len(episodes), k)]
    whole = [t for group in groups if all(id(t) in ended for t in group) for t in group]
    return whole, time.monotonic() - began


def _try(
    manager: RolloutManager,
    config: TrainConfig,
    settings: tuple[str, ...],
    variant: Callable[[TrainConfig], Agent] | None,
    seconds: float,
) -> Trial | None:
    """Play some tasks with changed settings; None if that is not possible, or too slow."""
    changed = allowed(config, settings)
    if changed is None or variant is None:
        return None
    try:
        agent, tasks = variant(changed), tasks_for(changed, _TRIAL_TASKS)
        episodes, _ = _play(manager, agent, tasks, _TRIAL_EPISODES, seconds, lambda *_: None, "")
    except RollenvError:
        return None
    if not episodes:
        return None
    told = taught(config.env.id, episodes, _TRIAL_EPISODES)
    return Trial(settings, len(told.tasks), told.success, share_of(told, config.rollout.group_size))


def _floors(
    manager: RolloutManager,
    config: TrainConfig,
    env_spec: EnvSpec,
    episodes: Sequence[Trajectory],
    seconds: float,
    watch: Watch,
) -> list[FloorResult]:
    tasks = tasks_for(config, _FLOOR_TASKS)
    said = [turn.text for t in episodes for turn in t.turns]
    try:
        floors = floors_of(env_spec, tasks[0], said)
    except Exception:  # the environment's own, which the model's episodes have counted
        return []
    found = []
    until = time.monotonic() + seconds
    for number, floor in enumerate(floors):
        watch("playing without skill", number, len(floors))
        left = max(0.5, until - time.monotonic()) / (len(floors) - number)
        with contextlib.suppress(RollenvError):
            played, _ = _play(manager, floor.agent, tasks, 1, left, lambda *_: None, "")
            if result := _earned(floor, played):
                found.append(result)
    return found


def _earned(floor: Floor, played: Sequence[Trajectory]) -> FloorResult | None:
    """Return what a floor earned; None if no episode ended in time."""
    done = [t for t in played if t.complete]
    if not done:
        return None
    rewards, wins = [t.reward for t in done], sum(t.success for t in done)
    spread = statistics.stdev(rewards) / len(rewards) ** 0.5 if len(rewards) > 1 else 0.0
    success = wins / len(done), *wilson_interval(wins, len(done))
    return FloorResult(
        floor.name, floor.kind, len(done), success, statistics.fmean(rewards), spread, len(played) - len(done)
    )


def _left_out(tokens: bool, recipe: bool, told: Taught, steps: Iteration) -> list[str]:
    found = []
    if told.cut:
        found.append(f"{told.cut} episodes for lack of time; their tasks are in no number (--minutes, --max-tokens)")
    if not tokens:
        found.append("prompts in tokens, lengths against the context, and the time of an update: it has no tokens")
    elif steps.update is None:
        found.append("the time of an update: there is no memory for gradients here")
    if not recipe:
        found.append("trials of settings: the agent does not play by a recipe")
    return found
