"""``vf-eval`` of verifiers over rollenv's environments, against an endpoint on this machine. Nothing is uploaded."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from peer_envs import GUESS, guess, guessed

import rollenv

with warnings.catch_warnings():
    warnings.simplefilter("error")  # the version is the tested one
    from rollenv.plugins.adapters.verifiers import RollenvConfig, RollenvTaskset, package

from rollenv.core.errors import UnknownEnv, UsageError

sys.path.append(str(Path(__file__).parents[1] / "harnesses"))
from stub_endpoint import Endpoint

BIN = Path(sys.executable).parent

BRITTLE = """
import os
import rollenv

class Brittle(rollenv.Env):
    def _reset(self, options):
        return "Say something.", {}

    def _step(self, action):
        raise OSError("the disk\\nis full")

def register():
    rollenv.register("test:Brittle-v0", Brittle)
"""


class Guessing(Endpoint):
    """Guesses the middle of what is left."""

    def __init__(self):
        super().__init__(commands=[])

    def answer(self, body):
        return guess(str(body["messages"])), None


@pytest.fixture(scope="module")
def endpoint():
    found = Guessing()
    yield found
    found.close()


@pytest.fixture
def url(endpoint):
    return f"http://{endpoint.address}/v1"


def vf_eval(folder, url, *args):
    """Run it; the episodes that it wrote."""
    path = os.pathsep.join([str(folder / "guessing-tasks"), str(folder), os.environ["PYTHONPATH"]])
    environ = os.environ | {"PYTHONPATH": path, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    command = [
        BIN / "vf-eval", "guessing-tasks", "--env.player.harness.id", "null", "--env.player.runtime.type", "subprocess",
        "--model", "stub", "--client.base-url", url, "--client.api-key-var", "NO_KEY", "--no-push", "--no-rich",
        "--run.dir", "run", *args,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)
    written = folder / "outputs" / "run" / "traces.jsonl"
    assert written.exists(), done.stdout + done.stderr
    return [json.loads(line) for line in written.read_text().splitlines()]


def test_an_evaluation_plays_what_is_played_by_hand(tmp_path, url):
    package(tmp_path / "guessing-tasks", GUESS)
    kwargs = {"max_turns": 2}
    settings = ("--env.taskset.kwargs", json.dumps(kwargs), "--env.taskset.seed", "5")
    episodes = vf_eval(tmp_path, url, "-n", "2", "-r", "1", *settings)
    assert len(episodes) == 2
    for episode in episodes:
        assert episode["ok"], episode
        (trace,) = episode["traces"]
        data = trace["task"]["data"]
        assert data["name"] == f"{GUESS}#{data['seed']}"
        total, turns, success = guessed(data["seed"], **kwargs)
        assert trace["rewards"]["reward"]["score"] == pytest.approx(total)
        assert trace["metrics"] == {"success": success, "turns": turns}
    assert sorted(e["task"]["data"]["seed"] for e in episodes) == [5, 6]


def test_a_failing_environment_is_reported_in_one_line(tmp_path, url):
    package(tmp_path / "guessing-tasks", GUESS)
    (tmp_path / "brittle.py").write_text(BRITTLE)
    about = tmp_path / "brittle-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: brittle\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[rollenv.envs]\nbrittle = brittle:register\n")
    (episode,) = vf_eval(tmp_path, url, "-n", "1", "--env.taskset.env", "test:Brittle-v0")
    assert not episode["ok"]
    (error,) = episode["errors"]
    assert "test:Brittle-v0" in error["message"]
    assert "OSError: the disk is full" in error["message"]
    assert "\n" not in error["message"]


def test_tasks_are_drawn_from_seeds_without_end_or_are_those_of_a_data_set():
    drawn = RollenvTaskset(RollenvConfig(id="x", env=GUESS, seed=7))
    assert not drawn.bounded
    assert [task.data.seed for task in drawn.take(3)] == [7, 8, 9]
    assert len({task.key for task in drawn.take(3)}) == 3
    with pytest.raises(UsageError, match=r"--env\.taskset\.env"):
        RollenvTaskset(RollenvConfig(id="x"))
    with pytest.raises(UnknownEnv):
        RollenvTaskset(RollenvConfig(id="x", env="game:Nothing-v0"))


def test_the_package_is_one(tmp_path):
    folder = package(tmp_path / "My-Tasks", "game:Sokoban-v0-tiny")
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*.*")) == ["my_tasks/__init__.py", "pyproject.toml"]
    for wrong in (folder, tmp_path / "1x", tmp_path / "a b"):
        with pytest.raises(UsageError):
            package(wrong, GUESS)
    with pytest.raises(UnknownEnv):
        package(tmp_path / "other", "game:Nothing-v0")
    assert not (tmp_path / "other").exists()
    command = [sys.executable, "-m", "rollenv.plugins.adapters.verifiers", str(folder), GUESS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr.count("\n")) == (2, 2)
    assert "already exists" in done.stderr


def test_pictures_reach_the_model_with_equal_bytes(tmp_path, endpoint, url):
    package(tmp_path / "guessing-tasks", "game:Sokoban-v0-tiny")
    kwargs = json.dumps({"images": "only"})
    before = len(endpoint.asked)
    settings = ("--env.taskset.kwargs", kwargs, "--env.taskset.seed", "5")
    (episode,) = vf_eval(tmp_path, url, "-n", "1", "-r", "1", *settings)
    assert episode["ok"], episode
    env = rollenv.make("game:Sokoban-v0-tiny", images="only")
    (first,) = env.reset(5)[1]["images"]
    parts = [part for m in endpoint.asked[before]["messages"] for part in m["content"] if isinstance(part, dict)]
    assert [part["image_url"]["url"] for part in parts if part["type"] == "image_url"] == [first.url]
