"""Runs that are played by managers in Ray actors, on a real cluster on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rank_runs import settings
from ray_cluster import local_cluster, ray, search_path

from rollenv import UsageError
from rollenv.rollout.group_runner import RolloutBroken
from rollenv.rollout.ray_shards import ActorShard
from rollenv.trainers.batches import Batches
from rollenv.trainers.run_dir import RunDir, read_rows
from rollenv.trainers.trainer import Trainer
from rollenv.trainers.updater import Updater

pytestmark = pytest.mark.integration
SHARDS = ["rollout.shards=2", "rollout.shard_options={num_cpus=0.5}"]
STREAM = ["batches.kind=stream", "batches.max_staleness=1"]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    os.environ["PYTHONPATH"] = search_path(__file__)
    with local_cluster(2) as cluster:
        yield cluster


@pytest.fixture
def played(monkeypatch):
    """The groups of all batches of a run."""
    groups, real = [], Batches.next

    def following(batches, metrics):
        groups.append(real(batches, metrics))
        return groups[-1]

    monkeypatch.setattr(Batches, "next", following)
    return groups


def train(path: Path, *overrides: str, resume: bool = False):
    config = settings("tasks.kind=seeds", f"run_dir={path}", *overrides)
    if resume:
        run, started = RunDir.resume(path)
        config = run.extend(started, config)
    else:
        run = RunDir.create(config, "sokoban")
    with Trainer(config, run) as trainer:
        trainer.fit()
    return read_rows(path / "metrics.jsonl")


def seeds(batches):
    return sorted(group.task.seed for batch in batches for group in batch)


def pid(shard: ActorShard) -> int:
    return ray.get(shard.actor.__ray_call__.remote(lambda _: os.getpid()))


def kill(shard: ActorShard) -> None:
    os.kill(pid(shard), signal.SIGKILL)


@pytest.fixture
def killings(monkeypatch):
    """Once both counts are set to 0: ends the process of a shard in a group, and that of another during an update."""
    told, play, update = {"groups": -1000, "updates": -1000}, ActorShard.play, Updater.update

    async def playing(shard, *group):
        doing = asyncio.ensure_future(play(shard, *group))
        told["groups"] += 1
        if told["groups"] == 8:
            number = await shard.actor.__ray_call__.remote(lambda _: os.getpid())
            os.kill(number, signal.SIGKILL)
        return await doing

    def updating(learner, *given):
        told["updates"] += 1
        if told["updates"] == 3:
            fleet = learner.state.player
            kill(next(slot.shard for slot in fleet.slots if slot.shard))
            time.sleep(1.0)
        return update(learner, *given)

    monkeypatch.setattr(ActorShard, "play", playing)
    monkeypatch.setattr(Updater, "update", updating)
    return told


@pytest.mark.parametrize("kind", [[], STREAM], ids=["collect", "stream"])
def test_a_run_whose_shards_are_killed_plays_what_one_process_plays(tmp_path, played, killings, kind, caplog):
    plain = train(tmp_path / "plain", "iterations=4")
    expected = [*played]
    played.clear()
    killings.update(groups=0, updates=0)
    train(tmp_path / "run", *SHARDS, *kind, "iterations=2", "checkpoint_every=2")
    rows = train(tmp_path / "run", *SHARDS, *kind, "iterations=4", "checkpoint_every=2", resume=True)
    health = json.loads((tmp_path / "run" / "health.json").read_text())
    assert {row["name"] for row in health["workers"]} & {"shard-0/inline", "shard-1/inline"}
    assert sum(" is lost (" in record.message for record in caplog.records) == 2
    assert [row["iteration"] for row in rows] == [0, 1, 2, 3, 4]
    assert seeds(played) == seeds(expected)
    assert [sum(len(group.complete) for group in batch) for batch in played] == [15] * 4
    assert max(row.get("staleness/max", 0) for row in rows) <= 1
    drawn = [{v for g in batch for t in g for turn in t.turns for v in (turn.policy_version,)} for batch in played]
    assert all(max(versions) <= step and min(versions) >= step - bool(kind) for step, versions in enumerate(drawn))
    keys = [{k for k in row if not k.startswith(("time/", "cpu/", "staleness/"))} for row in (plain[-1], rows[-1])]
    assert keys[0] == keys[1]
    first = [{k: v for k, v in row.items() if k.startswith("eval/")} for row in (plain[0], rows[0])]
    assert first[0] == pytest.approx(first[1], rel=1e-4)


def test_a_run_without_shards_ends_and_says_why(tmp_path, monkeypatch):
    def killed(learner, *_):
        for slot in learner.state.player.slots:
            kill(slot.shard)
        return {}

    monkeypatch.setattr(Updater, "update", killed)
    with pytest.raises(RolloutBroken):
        train(tmp_path / "run", *SHARDS, "rollout.shard_losses=0", "iterations=2")


def test_a_cluster_that_is_too_small_and_unknown_options_are_errors_at_once(tmp_path):
    with pytest.raises(UsageError, match="for 9"):
        train(tmp_path / "many", "rollout.shards=9", "iterations=1")
    with pytest.raises(UsageError, match="num_cpu"):
        train(tmp_path / "option", "rollout.shards=1", "rollout.shard_options={num_cpu=1}", "iterations=1")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_command_that_is_ended_leaves_no_shard(cluster, tmp_path, how):
    command = [sys.executable, "-m", "rollenv", "train", "sokoban", f"run_dir={tmp_path / 'run'}", "threads=1"]
    small = [
        "model.warm_up.steps=2",
        "model.warm_up.episodes=9",
        "eval.episodes=4",
        "rollout.groups_per_batch=4",
        *SHARDS,
    ]
    there = {**os.environ, "RAY_ADDRESS": cluster.address}
    process = subprocess.Popen([*command, *small], env=there, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        until(lambda: ray.available_resources().get("CPU") == 1, process)
        until((tmp_path / "run" / "metrics.jsonl").exists, process)
        process.send_signal(how)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == (130 if how == signal.SIGINT else -how), said
    finally:
        process.kill()
    until(lambda: ray.available_resources().get("CPU") == 2)


def until(true, process=None) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, process.stderr.read()
        time.sleep(0.2)
