"""A run from its start to its end, through kills, and what a person sees of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rollenv.agents.local import LocalAgent
from rollenv.trainers.config import load_config, with_settings
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.sources import task_seed
from rollenv.trainers.trainer import Trainer

#: Of the recipe.
LR = load_config("sokoban").optimizer.lr
COMMAND = [sys.executable, "-c", "from rollenv.cli.main import main; main()", "train", "sokoban"]


def rows(run: Path) -> list[dict[str, float]]:
    """The metrics without what depends on the clock."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    clock = ("time/", "cpu/", "tokens_per_s")
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(clock)} for line in lines]


def fit(path: Path, overrides: list[str]) -> RunDir:
    run = RunDir.create(load_config("sokoban", [*overrides, f"run_dir={path}"]), "sokoban")
    Trainer(load_config("sokoban", overrides), run).fit()
    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory, small) -> RunDir:
    return fit(tmp_path_factory.mktemp("runs") / "whole", small)


@pytest.mark.slow
def test_a_run_directory_holds_everything(finished):
    metrics = rows(finished.path)
    assert [row["iteration"] for row in metrics] == list(range(7))
    assert [row["iteration"] for row in metrics if "eval/success" in row] == [0, 3, 6]
    names = {"reward", "success", "kl", "entropy", "grad_norm", "informative_groups"}
    assert all(names <= row.keys() for row in metrics[1:])
    assert all(row["drift"] == 0 and 0 < row["ratio_ess"] <= 1 for row in metrics[1:])
    assert metrics[-1]["optimizer_steps"] > 0
    assert metrics[1]["kl"] == pytest.approx(0, abs=1e-4), "the first step is on the policy that sampled"
    assert metrics[1]["ratio"] == pytest.approx(1, abs=1e-4)
    assert all({"entropy/turn/0", "entropy/turn/4-7", "entropy/position/0-15"} <= row.keys() for row in metrics[1:])
    assert all(row["entropy/position/0-15"] == pytest.approx(row["entropy"]) for row in metrics[1:])
    assert [p.name for p in sorted(finished.checkpoints.iterdir())] == ["step-000004", "step-000006"]
    assert json.loads(finished.config_file.read_text())["rollout"]["group_size"] == 4
    episodes = [json.loads(line) for line in finished.episodes_file.read_text().splitlines()]
    assert {e["iteration"] for e in episodes} == {0, 3, 6}


def test_a_checkpoint_is_a_hugging_face_folder(finished):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = finished.checkpoints / "step-000006"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    agent = LocalAgent.load(folder)
    text = "_#_\nPaa Xbb Occ"
    assert tuple(tokenizer.encode(text)) == agent.encode(text)
    assert model.config.model_type == "qwen2"
    assert agent.sampling.max_new_tokens == 1


def test_training_never_sees_the_evaluation_seeds(small):
    config = load_config("sokoban", small)
    trained = {task_seed(0, i, k) for i in range(500) for k in range(config.rollout.groups_per_batch)}
    assert len(trained) == 500 * config.rollout.groups_per_batch
    assert not trained & set(range(config.eval.seed, config.eval.seed + config.eval.episodes))
    assert (config.env.kwargs["split"], config.eval.kwargs["split"]) == ("train", "test")


def test_settings_given_again_on_resume_need_not_be_all_of_them(finished):
    _, started = RunDir.resume(finished.path)
    assert finished.extend(started, with_settings(started, [f"optimizer.lr={LR}"])) == started


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("override", ["env.kwargs.max_turn=3", "eval.kwargs.splitt=test", "model.path=nowhere"])
def test_a_start_that_fails_leaves_no_folder(tmp_path, small, rollenv_command, override):
    changes = ["model.warm_up.steps=2", "model.warm_up.episodes=20", override]
    done = rollenv_command("train", "sokoban", "run_dir=new/run", *small, *changes)
    assert done.returncode == 2, done.stderr
    assert not (tmp_path / "new" / "run").exists()


def test_the_entropy_bonus_and_the_learning_rate_decay(tmp_path, small):
    changes = ["optimizer.final_lr=0.5", "loss.final_entropy=0", "loss.entropy=0.1", "iterations=4"]
    config = load_config("sokoban", [*small, *changes, f"run_dir={tmp_path / 'run'}"])
    trainer = Trainer(config, RunDir.create(config, "sokoban"))
    bonuses, rates = [], []
    for trainer.state.iteration in range(5):
        bonuses.append(trainer.learner._entropy_bonus())
        rates.append(trainer.learner._learning_rate())
    assert bonuses == pytest.approx([0.1, 0.075, 0.05, 0.025, 0.0])
    assert rates[4] < LR


def _last_iteration(run: Path) -> int:
    try:
        return int(rows(run)[-1]["iteration"])
    except (OSError, IndexError, ValueError):
        return 0


@pytest.mark.integration
def test_ctrl_c_says_how_to_go_on_and_leaves_no_process(tmp_path, small):
    run = tmp_path / "run"
    command = [*COMMAND, f"run_dir={run}", *small, "iterations=10000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while process.poll() is None and _last_iteration(run) < 3:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"run_dir={run} --resume" in " ".join(errors.split())
    assert "Traceback" not in errors
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def _begun(run: Path, command: list[str]) -> subprocess.Popen[str]:
    """A run after three iterations, in the background of a shell, where SIGINT is ignored."""
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command, "iterations=10000", "checkpoint_every=10000"]
    process = subprocess.Popen([*command, f"run_dir={run}"], stderr=subprocess.PIPE, text=True, start_new_session=True)
    while process.poll() is None and _last_iteration(run) < 3:
        time.sleep(0.01)
    return process


@pytest.mark.integration
@pytest.mark.parametrize(
    "more",
    ["rollout.processes=2", "batches.kind=stream", "batches.kind=early", "rollout.shards=2", "placement.ranks=2"],
)
def test_sigterm_saves_and_leaves_no_process(tmp_path, small, more):
    run = tmp_path / "run"
    if with_ray := more.startswith(("rollout.shards", "placement")):
        pytest.importorskip("ray")
    process = _begun(run, [*COMMAND, *small, more])
    if with_ray:  # a cluster that ends with the run saves nothing
        process.send_signal(signal.SIGTERM)
    else:
        os.killpg(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert f"run_dir={run} --resume" in " ".join(errors.split())
    assert "Traceback" not in errors
    saved = [path.name for path in (run / "checkpoints").iterdir()]
    assert saved == [f"step-{_last_iteration(run):06d}"] or saved == [f"step-{_last_iteration(run) + 1:06d}"]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.integration
@pytest.mark.parametrize("more", ["rollout.workers=ray:2", "placement.ranks=2"])
def test_a_lost_ray_node_ends_the_run_with_an_error(tmp_path, small, more):
    pytest.importorskip("ray")
    process = _begun(tmp_path / "run", [*COMMAND, *small, more])
    (node,) = (p for p in psutil.Process(process.pid).children(recursive=True) if p.name() == "raylet")
    node.kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the Ray node of this process has ended" in " ".join(errors.split())
    assert "Traceback" not in errors


@pytest.mark.integration
def test_the_command_trains_and_reports(tmp_path, small, rollenv_command):
    done = rollenv_command("train", "sokoban", "run_dir=run", *small)
    assert done.returncode == 0, done.stderr
    for said in ("success on unseen", "before", "after", "run/report.html", "run/checkpoints/step-000006"):
        assert said in done.stdout
    again = rollenv_command("train", "sokoban", "run_dir=run", *small)
    assert again.returncode == 2
    assert "run exists" in again.stderr
    changed = rollenv_command("train", "sokoban", "run_dir=run", *small, "optimizer.lr=1e-5", "--resume")
    assert changed.returncode == 2
    assert "optimizer.lr" in changed.stderr
    same = rollenv_command("train", "--resume", "run_dir=run")
    assert same.returncode == 0, same.stderr
    longer = rollenv_command("train", "sokoban", "run_dir=run", "iterations=8", "--resume")
    assert longer.returncode == 0, longer.stderr
    assert [row["iteration"] for row in rows(tmp_path / "run")] == list(range(9))
    evaluated = rollenv_command(
        "eval", "game:Sokoban-v0-tiny", "split=test", "-a", "local:run", "-n", "20", "-s", "1000000000", "--json"
    )
    assert evaluated.returncode == 0, evaluated.stderr
    result = json.loads(evaluated.stdout)
    assert result["success"] == rows(tmp_path / "run")[-1]["eval/success"], "the same episodes as in training"


@pytest.mark.slow
def test_an_evaluation_whose_episodes_all_failed_has_no_success(tmp_path, small, rollenv_command, caplog):
    code = "def reward(reward, trajectory):\n    return reward / (trajectory.task.kwargs['split'] == 'train')\n"
    (tmp_path / "own.py").write_text(code)
    quick = ["iterations=1", "model.warm_up.steps=2", "model.warm_up.episodes=20", "model.warm_up.batch_size=8"]
    command = ["train", "sokoban", *small, *quick, "rewards.function=own:reward", "run_dir=run", "--json"]
    done = rollenv_command(*command)
    assert done.returncode == 0, done.stderr
    assert "ZeroDivisionError" in caplog.text
    for row in (json.loads(done.stdout)[name] for name in ("before", "after")):
        assert {name for name in row if name.startswith("eval/")} == {"eval/failed"}
        assert row["eval/failed"] == 20
