"""Runs whose ranks Ray Train starts, on a real cluster of two nodes on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path

import psutil
import pytest
from rank_runs import settings
from ray_cluster import local_cluster, ray, search_path
from tiny_runs import SIZE, numbers, saved

from rollenv import UsageError
from rollenv.agents.local import LocalAgent
from rollenv.agents.tiny.model import build_model
from rollenv.trainers import checkpoint
from rollenv.trainers.checkpoint import CheckpointError
from rollenv.trainers.config import load_config
from rollenv.trainers.run_dir import RunDir, read_rows

pytest.importorskip("ray.train", reason="Ray Train is not installed: pip install 'rollenv[ray]'")

from rollenv.trainers.launch import RankFailed, train_on_ranks

pytestmark = [pytest.mark.integration, pytest.mark.early]
RANKS = ["placement.ranks=2", "placement.cpus=1", "checkpoint_every=1", "eval.every=1"]


@pytest.fixture(scope="module")
def cluster():
    os.environ["PYTHONPATH"] = search_path(__file__)
    with local_cluster(2) as cluster:
        yield cluster


def train(path: Path, *overrides: str, resume: bool = False, watch=lambda *_: None):
    config = settings(*RANKS, f"run_dir={path}", *overrides)
    if resume:
        run, started = RunDir.resume(path)
        config = run.extend(started, config)
    else:
        run = RunDir.create(config, "sokoban")
    return train_on_ranks(config, run, watch)


@pytest.fixture(scope="module")
def whole(cluster, tmp_path_factory):
    """A run that nothing happens to."""
    path = tmp_path_factory.mktemp("whole") / "run"
    train(path, "iterations=4")
    return path


def kill_rank(number: int) -> None:
    """Kill the process of a rank; Ray starts them in their order."""
    ranks = sorted(process.pid for process in psutil.Process().children(recursive=True) if is_rank(process))
    os.kill(ranks[number], signal.SIGKILL)


def is_rank(process: psutil.Process) -> bool:
    try:
        return any("RayTrainWorker" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def when(iteration: int, do):
    """Calls ``do`` once, beside the run, when that iteration is told."""
    done = threading.Event()

    def watch(stage, number, total, numbers):
        if stage == "training" and number == iteration and not done.is_set():
            done.set()
            threading.Thread(target=do).start()

    return watch


def test_a_killed_rank_costs_a_restart_and_changes_no_number(whole, tmp_path):
    told = []
    watch = when(2, lambda: kill_rank(0))
    result = train(
        tmp_path / "run", "iterations=4", "placement.max_failures=1",
        watch=lambda *news: (told.append(news), watch(*news)),
    )  # fmt: skip
    assert numbers(tmp_path / "run") == numbers(whole)
    assert Path(result.checkpoint).name == "step-000004"
    assert sum(news[1] == 4 for news in told if news[0] == "training") == 1
    one, other = (LocalAgent.load(checkpoint.checkpoints(p / "checkpoints")[-1]) for p in (whole, tmp_path / "run"))
    assert all((w == other.model.state_dict()[n]).all() for n, w in one.model.state_dict().items())


def test_without_restarts_a_killed_rank_ends_the_run_and_says_how_to_go_on(whole, tmp_path):
    with pytest.raises(RankFailed, match=r"rank \d.*step-00000\d.*--resume"):
        train(tmp_path / "run", "iterations=4", watch=when(2, lambda: kill_rank(1)))
    train(tmp_path / "run", "iterations=4", resume=True)
    assert numbers(tmp_path / "run") == numbers(whole)


def test_a_lost_node_costs_a_restart_and_changes_no_number(cluster, whole, tmp_path):
    """Both ranks have room on the node that is left."""
    node = cluster.add_node(num_cpus=2, object_store_memory=80 * 2**20)
    holder = ray.remote(num_cpus=1)(Held).options(scheduling_strategy=on(cluster.head_node)).remote()
    ray.get(holder.here.remote())  # so that one rank has to go to the other node
    lost = threading.Event()

    def lose():
        ray.kill(holder)
        cluster.remove_node(node, allow_graceful=False)
        lost.set()

    train(tmp_path / "run", "iterations=4", "placement.max_failures=1", watch=when(2, lose))
    assert lost.wait(30)
    assert numbers(tmp_path / "run") == numbers(whole)


class Held:
    """Keeps a CPU."""

    def here(self):
        return True


def on(node):
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node.node_id, soft=False)


def test_relative_paths_start_where_the_run_was_launched(cluster, tmp_path, monkeypatch):
    saved(lambda tokenizer: build_model(SIZE, tokenizer, 0), tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    short = ["iterations=1", "eval.episodes=2", "rollout.groups_per_batch=2", "rollout.max_new_tokens=4"]
    config = load_config("math:Arithmetic-v0-digit", ["model=model", "run_dir=run", *RANKS, *short])
    train_on_ranks(config, RunDir.create(config, "arithmetic"), lambda *_: None)
    assert [row["iteration"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == [0, 1]


def test_errors_of_the_first_rank_come_out_as_they_are(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    cut = next(checkpoint.checkpoints(tmp_path / "run" / "checkpoints")[-1].glob("shards/*"))
    cut.write_bytes(cut.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=cut.name):
        train(tmp_path / "run", "iterations=5", "placement.max_failures=1", resume=True)


@pytest.mark.parametrize(("setting", "said"), [("placement.ranks=99", "99 ranks"), ("placement.devices=gpu", "GPUs")])
def test_a_cluster_that_is_too_small_is_an_error_at_once(cluster, tmp_path, setting, said):
    with pytest.raises(UsageError, match=said):
        train(tmp_path / "run", setting)
