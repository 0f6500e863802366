"""rollenv's environments as a taskset of verifiers (0.4, ``verifiers.v1``), for ``vf-eval`` and prime-rl.

verifiers finds tasksets as installed packages. This writes one, which names an environment and imports this module:

    python -m rollenv.plugins.adapters.verifiers FOLDER game:Sokoban-v0-tiny
    pip install FOLDER

Any other id can be chosen when it is run: ``--env.taskset.env ID --env.taskset.kwargs '{"max_turns": 5}'``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollenv.agents.base import Action, Agent, ContextFull, EnvHandle, Session
from rollenv.agents.prompts.session import shown
from rollenv.core.errors import MissingExtra, UsageError
from rollenv.core.needs import peer
from rollenv.core.picture_forms import bound, content
from rollenv.core.pictures import pictures
from rollenv.core.registry import spec
from rollenv.plugins.adapters import EpisodeFailed, in_a_line
from rollenv.rollout.episode import Episode, EpisodeLimits
from rollenv.rollout.evaluate import tasks_of
from rollenv.rollout.group_runner import GroupRunner
from rollenv.rollout.records.health import Health
from rollenv.rollout.types import Task, Trajectory
from rollenv.rollout.workers import InlineWorkers
from rollenv.rollout.workers.factory import make_workers

try:
    with peer("verifiers", "0.4"):
        import verifiers.v1 as vf
except MissingExtra as error:
    if __name__ == "__main__":
        sys.exit(f"error: {error}")
    raise


class RollenvConfig(vf.TasksetConfig):  # type: ignore[misc]
    """The choice of tasks (``--env.taskset.*``)."""

    env: str = ""
    """Any id that :func:`rollenv.make` takes."""
    kwargs: dict[str, Any] = {}
    """Arguments of its constructor."""
    seed: int = 0
    """Seed of the first task; the others count up."""


class RollenvData(vf.TaskData):  # type: ignore[misc]
    """One task."""

    env: str
    kwargs: dict[str, Any]
    seed: int
    options: dict[str, Any]


class RollenvTask(vf.Task[RollenvData, vf.State, vf.TaskConfig]):  # type: ignore[misc]
    """One task; its reward is recorded while it is played."""


class RollenvTaskset(vf.Taskset[RollenvTask, RollenvConfig]):  # type: ignore[misc]
    """Tasks: an endless sequence from seeds, or those of a data set."""

    #: Default id of the environment.
    ENV = ""

    def __init__(self, config: RollenvConfig):
        super().__init__(config)
        self.env_id = config.env or self.ENV
        if not self.env_id:
            raise UsageError("this taskset needs an environment: --env.taskset.env game:Sokoban-v0-tiny")
        self.INFINITE = not spec(self.env_id).indexed

    def load(self) -> Iterator[RollenvTask]:
        """Yield the tasks."""
        env_id, kwargs, seed = self.env_id, self.config.kwargs, self.config.seed
        tasks = (Task(env_id, seed + i, kwargs) for i in itertools.count())
        for task in tasks if self.INFINITE else tasks_of(env_id, kwargs, None, seed):
            name = f"{env_id}#{task.options.get('index', task.seed)}"
            data = RollenvData(name=name, env=env_id, kwargs=kwargs, seed=task.seed, options=task.options)
            yield RollenvTask(data, self.config.task)


class RollenvEnvConfig(vf.EnvConfig):  # type: ignore[misc]
    """The player (``--env.player.*``), and the workers of environments."""

    player: vf.AgentConfig = vf.AgentConfig()
    workers: str = "1"
    """``inline``, or a number of worker processes, which enforce deadlines."""
    step_deadline: float = 120.0
    """Seconds for a step of an environment in a worker."""


class RollenvEnv(vf.Env[RollenvEnvConfig]):  # type: ignore[misc]
    """An episode: the environment is the user, who speaks first."""

    async def start(self) -> None:
        """Start the workers."""
        self._held = contextlib.ExitStack()
        self._workers = self._held.enter_context(make_workers(self.config.workers)) or InlineWorkers()
        self._health = Health()

    async def stop(self) -> None:
        """End the workers."""
        if hasattr(self, "_held"):
            await asyncio.to_thread(self._held.close)

    async def run(self, task: RollenvTask, agents: Any) -> None:
        """Play an episode, and record its reward, success and turns.

        Raises:
            EpisodeFailed: the environment failed, and failed again when it was played again.
        """
        data = task.data
        async with agents.player.interaction(task) as talk:
            played = Trajectory(Task(data.env, data.seed, data.kwargs, options=data.options))
            limits = EpisodeLimits(step=self.config.step_deadline)
            async with GroupRunner[Trajectory]() as runner:
                now = asyncio.get_running_loop().time
                runner.start(
                    Episode(
                        played, _Player(talk), self._workers, limits, self._health, False, now, runner.cancelled
                    ).play()
                )
                await runner.next()
            if not played.complete:
                raise EpisodeFailed(in_a_line(played.error))
        talk.trace.record_reward("reward", played.reward)
        talk.trace.record_metric("success", float(bool(played.success)))
        talk.trace.record_metric("turns", float(len(played.turns)))


@dataclass(slots=True)
class _Player(Session, Agent):
    """verifiers' agent as one of rollenv's."""

    talk: Any

    def start(self, env: EnvHandle, seed: int) -> Session:
        return self

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        images = pictures(info)
        said = content("openai", bound(shown(observation, info), images), images)
        segment = await self.talk.turn([{"role": "user", "content": said}] if images else said)
        if segment.terminated:  # a limit of verifiers', or its model failed; its trace says which
            raise ContextFull("verifiers ended the conversation")
        return Action(segment.last_reply)


def package(folder: str | Path, env_id: str) -> Path:
    """Write a taskset's package, which verifiers finds by the folder's name once it is installed.

    Args:
        folder: to write; its name becomes the package's.
        env_id: default id of the environment.

    Raises:
        UsageError: there is such a folder, its name cannot be a package's, or there is no such environment.
    """
    folder = Path(folder)
    name = folder.name.replace("-", "_").lower()
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", name) or folder.exists():
        raise UsageError(f"{folder}: {'already exists' if folder.exists() else 'the name cannot be a package'}")
    code = _CODE.format(env_id=spec(env_id).id)
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code, encoding="utf-8")
    (folder / "pyproject.toml").write_text(_PROJECT.format(name=name, env_id=env_id), encoding="utf-8")
    return folder


_CODE = '''"""{env_id} of rollenv's as a taskset of verifiers."""

from rollenv.plugins.adapters.verifiers import RollenvEnv, RollenvTaskset


class Taskset(RollenvTaskset):
    ENV = "{env_id}"


__all__ = ["RollenvEnv", "Taskset"]
'''

_PROJECT = """[project]
name = "{name}"
version = "0.1.0"
description = "{env_id} of rollenv's as a taskset of verifiers"
requires-python = ">=3.11"
dependencies = ["rollenv", "verifiers>=0.4,<0.5"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["{name}"]
"""


def _main() -> None:
    parser = argparse.ArgumentParser(description="Write a taskset's package, to be installed with pip.")
    parser.add_argument("folder", help="to write; its name becomes the package's")
    parser.add_argument("env_id", help="an id of rollenv's; `rollenv list` shows them")
    given = parser.parse_args()
    try:
        package(given.folder, given.env_id)
    except UsageError as error:
        parser.error(str(error))


if __name__ == "__main__":
    _main()
