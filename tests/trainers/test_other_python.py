"""Environments in another Python, with packages of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy
import psutil
import pytest
from tiny_runs import chat_model

from rollenv import UsageError
from rollenv.agents.base import RandomAgent, Session
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task
from rollenv.rollout.workers.factory import make_workers, workers_of
from rollenv.rollout.workers.interpreter import interpreter

#: The environment of a package that is installed there alone.
OLD = """
import numpy
import rollenv

class Old(rollenv.Env):
    def _reset(self, options):
        self.turn = 0
        return f"numpy {numpy.__version__}", {"array": numpy.arange(3), "number": numpy.float64(self.randint(10))}

    def _step(self, action):
        self.turn += 1
        return f"numpy {numpy.__version__}", float(self.turn), self.turn == 4, False, {"array": numpy.arange(3)}

    def sample_random_action(self):
        return self.action_rng.choice("ab")

def register():
    rollenv.register("old:Old-v0", "old_numpy:Old", abilities=["random_action"])
"""
PROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "old-numpy"
version = "1"
dependencies = ["numpy<2"]
[project.entry-points."rollenv.envs"]
old = "old_numpy:register"
[tool.setuptools]
py-modules = ["old_numpy"]
"""


@pytest.mark.parametrize("name", ["2@", "0@python", "@python", "ray:2@python", "inline@python"])
def test_wrong_names_are_refused(name):
    with pytest.raises(UsageError, match="workers"):
        workers_of(name)


def program(path, code):
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("echo 'ModuleNotFoundError: No module named rollenv' >&2; exit 1", "install rollenv"),
        ("echo; echo rollenv 0.0.9 80", "0.0.9"),
        ("kill -9 $$", "cannot import rollenv"),
        ("echo no JSON", "cannot import rollenv"),
        ("echo; echo rollenv 0.0.9 80; echo bye", "0.0.9"),
    ],
)
def test_a_python_without_this_rollenv_is_refused(tmp_path, code, said):
    with pytest.raises(UsageError, match=said):
        interpreter(program(tmp_path / "python", code))


def test_a_python_that_never_answers_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("rollenv.rollout.workers.interpreter._ANSWER_SECONDS", 1.0)
    with pytest.raises(UsageError, match="did not say within 1 s"):
        interpreter(program(tmp_path / "python", "exec sleep 3600"))


def test_a_python_or_file_that_is_not_there_is_named(tmp_path):
    for name in ("python", "folder/requirements.txt"):
        with pytest.raises(UsageError, match=f"{name}.*No such file"):
            interpreter(str(tmp_path / name))


class Killing(RandomAgent):
    """Kills the process of the environments once, in the second turn of an episode."""

    def __init__(self):
        self.workers, self.killed = None, []

    def start(self, env, seed):
        return KillingSession(self, super().start(env, seed))


class KillingSession(Session):
    def __init__(self, agent, session):
        self.agent, self.session, self.turns = agent, session, 0

    async def act(self, observation, info):
        self.turns += 1
        if self.turns == 2 and not self.agent.killed:
            (pid,) = {one["pid"] for one in self.agent.workers.report() if one["pid"]}
            self.agent.killed.append(psutil.Process(pid).cmdline()[0])
            os.kill(pid, signal.SIGKILL)
        return await self.session.act(observation, info)


@pytest.mark.slow
@pytest.mark.parametrize("python", [sys.executable, sys.prefix])
def test_deaths_in_another_python_are_replayed(python):
    """Here this Python by its path, so that nothing has to be installed."""
    tasks, agent = [Task("game:Sokoban-v0-tiny", seed) for seed in range(4)], Killing()
    with make_workers(f"1@{python}") as agent.workers, RolloutManager(agent, agent.workers) as manager:
        there = manager.collect(tasks, 2)
    assert agent.killed == [sys.executable]
    assert sum(trajectory.replays for group in there for trajectory in group) >= 1
    assert there == RolloutManager(RandomAgent()).collect(tasks, 2)


@pytest.fixture(scope="module")
def requirements(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    (folder / "old_numpy.py").write_text(OLD)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "requirements.txt").write_text(f"numpy==1.26.4\n{folder}\n")
    links = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.find-links"], capture_output=True)
    with pytest.MonkeyPatch.context() as patch:
        if links.stdout.strip():
            patch.setenv("UV_FIND_LINKS", links.stdout.decode().strip())
        patch.setenv("ROLLENV_CACHE", str(folder / "cache"))
        yield folder / "requirements.txt"


@pytest.mark.smoke
def test_an_old_numpy_plays_beside_a_new_one(requirements, tmp_path):
    assert not numpy.__version__.startswith("1.")
    with make_workers(f"2@{requirements}") as workers, RolloutManager(RandomAgent(), workers) as manager:
        ((one,),) = manager.collect([Task("old:Old-v0", 0)], 1)
    assert one.turns[0].observation == "numpy 1.26.4"
    assert one.reward == 10
    command = [sys.executable, "-m", "rollenv"]
    where = ["--workers", f"2@{requirements}", "--out", str(tmp_path / "eval")]
    done = subprocess.run([*command, "eval", "old:Old-v0", "-n", "4", *where], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    model = chat_model(tmp_path / "model")
    small = ["env.id=old:Old-v0", f"model={model}", "model.sync=copy", "threads=1"]
    small += ["iterations=1", "rollout.groups_per_batch=2", "rollout.group_size=2", "eval.episodes=2"]
    small += [f"rollout.workers=2@{requirements}", f"run_dir={tmp_path / 'run'}"]
    done = subprocess.run([*command, "train", "sokoban", *small], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "numpy 1.26.4" in (tmp_path / "run/episodes.jsonl").read_text()


@pytest.mark.smoke
def test_requirements_that_do_not_resolve_say_what_uv_says(requirements, tmp_path):
    (tmp_path / "requirements.txt").write_text("numpy==0.0.1\n")
    with pytest.raises(UsageError, match=r"uv says: (.|\n)*numpy==0.0.1"):
        interpreter(str(tmp_path / "requirements.txt"))
    assert not list((Path(os.environ["ROLLENV_CACHE"]) / "python").glob("*-partial-*"))
