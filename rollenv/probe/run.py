"""The whole probe of one environment and one agent."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rollenv.agents.base import Agent
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.registry import spec
from rollenv.core.wrappers.factory import with_tokenizer
from rollenv.probe import verdict
from rollenv.probe.floors import Floor, floors_of
from rollenv.probe.repeat import Repeated, play_again
from rollenv.probe.teach import Taught, lengths, taught, update_seconds
from rollenv.probe.verdict import Advice, FloorResult, Remark
from rollenv.rollout.evaluate import tasks_of, wilson_interval
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task, Trajectory
from rollenv.trainers.config import TrainConfig

#: ``watch(stage, done, total)``
Watch = Callable[[str, int, int], None]

#: The shares of the probe's time for the model's episodes, all floors and the second process.
_MODEL, _FLOORS, _AGAIN = 0.6, 0.2, 0.2

#: Most and fewest tasks of each floor.
_FLOOR_TASKS, _FLOOR_FEWEST = 64, 8


@dataclass
class ProbeResult:
    """Everything that a probe found."""

    env_id: str
    agent: str
    settings: list[str]
    """The settings of the recipe that differ from what is chosen for the id, as KEY=VALUE."""
    k: int
    group_size: int
    told: Taught
    lengths: dict[str, Any]
    limits: dict[str, int]
    """Limits of the lengths, as far as they are known."""
    iteration: dict[str, float | None]
    """Episodes of an iteration, its seconds of playing and of updating, and its cost."""
    floors: list[FloorResult]
    again: Repeated
    remarks: list[Remark]
    advice: list[Advice]
    imitation: str
    cores: int
    seconds: float
    episodes: list[Trajectory] = field(repr=False)

    @property
    def red(self) -> bool:
        """True if something must be mended first."""
        return any(remark.level == "red" for remark in self.remarks)

    @property
    def command(self) -> str:
        """The training with the first advice, if there is one."""
        model = self.agent.removeprefix("local:") if self.agent.startswith("local:") else "MODEL"
        settings = [f"model={model}", *self.settings, *(self.advice[0].settings if self.advice else ())]
        last = {setting.partition("=")[0]: setting for setting in settings}
        return shlex.join(["rollenv", "train", self.env_id, *last.values()])

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain data, without the episodes."""
        plain = asdict(replace(self, episodes=[]))
        del plain["episodes"]
        return plain | {"told": self.told.to_dict(), "command": self.command}


def probe(
    config: TrainConfig,
    agent: Any,
    name: str,
    manager: RolloutManager,
    *,
    n: int,
    k: int,
    seconds: float,
    watch: Watch,
    settings: Sequence[str] = (),
) -> ProbeResult:
    """Probe an environment with an agent.

    Args:
        config: the recipe of the run that is considered; its training tasks are played.
        name: the agent's name.
        n: tasks, each played ``k`` times.
        seconds: time for everything; tasks that it does not suffice for are left out.
        settings: those of the recipe that were given, to show them in the command.

    Raises:
        UsageError: there is no time at all.
    """
    began = time.monotonic()
    env_spec, rollout = spec(config.env.id), config.rollout
    tasks = tasks_for(config, n)
    episodes = _play(manager, agent, tasks, k, _MODEL * seconds, lambda done: watch("playing", done, len(tasks) * k))
    played = time.monotonic() - began
    if not episodes:
        raise UsageError(f"there is no time to play {config.env.id}, {_MODEL * seconds:.0f} s: give more --minutes")
    told, seen = taught(config.env.id, episodes, k, len(tasks) * k - len(episodes)), lengths(episodes)
    floors = []  # nothing is compared with failures alone, and what a seat earns depends on the others
    if told.count("failed") < len(told.tasks) and not any(t.record.get("seats") for t in episodes):
        floors = _floors(manager, config, [turn.text for t in episodes for turn in t.turns], _FLOORS * seconds, watch)
    verdict.judge(floors, told)
    watch("playing again in a second process", 0, 1)
    again = play_again(env_spec, episodes, max(20.0, _AGAIN * seconds))
    groups, size = rollout.groups_per_batch, rollout.group_size
    watch("measuring an update", 0, 1)
    update = update_seconds(agent.model, episodes, size) if hasattr(agent, "model") else None
    limits = {}
    if hasattr(agent, "tokenizer"):
        limits["tokens of a prompt"] = rollout.max_prompt_tokens or agent.engine.max_context
        limits["tokens of an answer"] = agent.sampling.max_new_tokens
    costs = [t.metrics["cost"] for t in episodes if "cost" in t.metrics]
    advice = verdict.advice(config, env_spec, told, seen, floors)
    return ProbeResult(
        env_id=config.env.id,
        agent=name,
        settings=[*settings],
        k=k,
        group_size=size,
        told=told,
        lengths=seen,
        limits=limits,
        iteration={
            "episodes": groups * size,
            "play": played / len(episodes) * groups * size,
            "update": update and update * groups * config.optimizer.epochs,
            "cost": statistics.fmean(costs) * groups * size if costs else None,
        },
        floors=floors,
        again=again,
        remarks=verdict.remarks(env_spec, told, floors, again, size),
        advice=advice,
        imitation=verdict.imitation(config, env_spec, told),
        cores=len(os.sched_getaffinity(0)),
        seconds=time.monotonic() - began,
        episodes=episodes,
    )


def tasks_for(config: TrainConfig, n: int) -> list[Task]:
    """Return up to ``n`` training tasks of a recipe; rows of a data set are spread over all of it."""
    env, wrappers = config.env, with_tokenizer(config.env.wrappers, config.model.tokenizer)
    rows = spec(env.id).indexed and "index" not in env.options
    whole = tasks_of(env.id, env.kwargs, None if rows else n, config.seed, wrappers, env.options)
    return [whole[i * len(whole) // n] for i in range(n)] if len(whole) > n else whole


def _play(
    manager: RolloutManager,
    agent: Agent,
    tasks: Sequence[Task],
    k: int,
    seconds: float,
    watch: Callable[[int], None] = lambda _: None,
) -> list[Trajectory]:
    """Play each task ``k`` times, some tasks at a time while there is time, and return the episodes."""
    episodes = [Trajectory(task, group=i, member=j) for i, task in enumerate(tasks) for j in range(k)]
    until, done = time.monotonic() + seconds, 0
    together = k * max(1, (manager.max_concurrent or len(episodes)) // k)
    player, ended = manager.with_agent(agent), itertools.count(1)
    watch(0)
    while done < len(episodes) and time.monotonic() < until:
        player.play(episodes[done : done + together], lambda _: watch(next(ended)))
        done += together
    return episodes[:done]


def _floors(
    manager: RolloutManager, config: TrainConfig, said: Sequence[str], seconds: float, watch: Watch
) -> list[FloorResult]:
    tasks = tasks_for(config, _FLOOR_TASKS)
    floors: list[Floor] = []
    each = 0.0  # seconds of an episode
    with contextlib.suppress(Exception):  # the environment's own, which the model's episodes have counted
        floors = floors_of(spec(config.env.id), tasks[0], said)
    found, until = [], time.monotonic() + seconds
    for number, floor in enumerate(floors):
        watch("playing without skill", number, len(floors))
        began = time.monotonic()
        left = max(0.5, until - began) / (len(floors) - number)
        some = tasks[: max(_FLOOR_FEWEST, int(left / each))] if each else tasks[:_FLOOR_FEWEST]
        with contextlib.suppress(RollenvError):
            played = _play(manager, floor.agent, some, 1, seconds)
            each = (time.monotonic() - began) / len(some)
            rewards, wins = [t.reward for t in played if t.complete], sum(bool(t.success) for t in played if t.complete)
            if n := len(rewards):
                success = wins / n, *wilson_interval(wins, n)
                spread = statistics.stdev(rewards) / n**0.5 if n > 1 else 0.0
                found.append(FloorResult(floor.name, floor.kind, n, success, statistics.fmean(rewards), spread))
    return found
