"""Several settings and seeds in one folder: `rollenv train --seeds N --vary KEY=A,B`, and what is shown of them."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.report.sweep import interval, means, open_runs, sweep_table

QUICK = ["iterations=1", "model.warm_up.steps=2", "model.warm_up.episodes=20", "eval.episodes=2"]


@pytest.mark.integration
def test_each_setting_is_trained_with_each_seed_and_goes_on_where_it_stopped(rollenv_command, tmp_path, small):
    settings = [*small, *QUICK]
    command = ["train", "sokoban", *settings, "run_dir=all", "--seeds", "2", "--vary", "optimizer.lr=1e-3,1e-4"]
    done = rollenv_command(*command)
    assert done.returncode == 0, done.stderr
    runs = sorted(tmp_path.glob("all/*/seed-*/config.json"))
    chosen = [(json.loads(file.read_text())["optimizer"]["lr"], json.loads(file.read_text())["seed"]) for file in runs]
    assert sorted(chosen) == [(1e-4, 0), (1e-4, 1), (1e-3, 0), (1e-3, 1)]
    page = (tmp_path / "all" / "report.html").read_text()
    assert "optimizer.lr=1e-3 against optimizer.lr=1e-4" in page
    [table] = sweep_table(open_runs(tmp_path / "all"))
    assert [row[:2] for row in table["rows"]] == [
        ["setting", "seeds"],
        ["optimizer.lr=1e-3", "2"],
        ["optimizer.lr=1e-4", "2"],
    ]

    again = rollenv_command(*command)
    assert again.returncode == 2
    assert "--resume" in again.stderr
    lost, kept = runs[0].parent, runs[1]
    shutil.rmtree(lost)
    before = kept.stat().st_mtime_ns
    resumed = rollenv_command(*command, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert (lost / "metrics.jsonl").exists()
    assert kept.stat().st_mtime_ns == before
    other = rollenv_command(
        "train", "sokoban", *settings, "optimizer.lr=1e-2", "run_dir=all", "--seeds", "2", "--resume"
    )
    assert other.returncode == 2
    assert "sweep.json" in other.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        ["--vary", "optimizer.lr"],
        ["--vary", "optimizer.lr=1,none"],
        ["--vary", "seed=1,2"],
        ["--vary", "optimizer.lrr=1"],
        ["--seeds", "2", "--dry-run"],
        ["--seeds", "-1"],
    ],
    ids=lambda words: " ".join(words),
)
def test_wrong_settings_are_refused_before_anything_runs(rollenv_command, tmp_path, wrong):
    done = rollenv_command("train", "sokoban", *wrong)
    assert done.returncode == 2
    assert not (tmp_path / "runs").exists()


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=14))
def test_the_interval_of_a_mean_is_around_it_and_shrinks_to_equal_values(values):
    low, high = interval(values)
    assert low <= sum(values) / len(values) + 1e-6
    assert high >= sum(values) / len(values) - 1e-6
    assert interval([values[0]] * len(values)) == pytest.approx((values[0], values[0]))


def test_means_are_of_the_iterations_that_all_seeds_reached():
    first = [{"iteration": n, "reward": float(n), "eval/success": 0.5, "eval/low": 0.1} for n in range(3)]
    second = [{"iteration": n, "reward": 3.0 * n, "eval/success": 0.7, "text": "x"} for n in range(2)]
    rows = means([first, second])
    assert [row["reward"] for row in rows] == [0.0, 2.0]
    assert rows[1]["eval/success"] == pytest.approx(0.6)
    assert rows[1]["eval/low"] == 0.0  # 12.7 standard errors below 0.6
    assert not any(re.search("text", key) for row in rows for key in row)
