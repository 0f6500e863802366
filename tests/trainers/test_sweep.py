"""Several settings and seeds in one folder: `rollenv train --seeds N --vary KEY=A,B`, and what is shown of them."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import eventually

from rollenv.cli.sweep import _folder_name, _values
from rollenv.core.errors import UsageError
from rollenv.core.folder_lock import lock_folder
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
        ["--vary", "optimizer.lr=1,1"],
        ["--vary", "optimizer.lr=1,,2"],
        ["--seeds", "2", "--resume", "run_dir=nowhere"],
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


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1, 2", ["1", "2"]),
        ("[1,2],[3,4]", ["[1,2]", "[3,4]"]),
        ("[[1,2],[3,4]],x", ["[[1,2],[3,4]]", "x"]),
        ('"a,b",c', ['"a,b"', "c"]),
        ("'a,b','c'", ["'a,b'", "'c'"]),
        ('["a]",1],2', ['["a]",1]', "2"]),
        ("don't,x", ["don't", "x"]),
        ("{a=1,b=2},3", ["{a=1,b=2}", "3"]),
    ],
)
def test_values_are_split_at_commas_outside_of_brackets_and_quotes(text, values):
    assert _values(text) == values


def test_no_two_settings_share_a_folder():
    settings = [
        ["a=a/b"], ["a=a-b"], ["a=a b"], ["a=é"], ["a=è"], ["a=" + 500 * "x"], ["a=" + 501 * "x"],
        ["a=1,b=2", "b=3"], ["a=1", "b=2,b=3"], ["a=1", "b=2"], ["a=.."],
    ]  # fmt: skip
    names = [_folder_name(chosen) for chosen in settings]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[\w.=,+-]{1,140}", name) for name in names)
    assert _folder_name(["optimizer.lr=1e-3", "algorithm.name=grpo"]) == "optimizer.lr=1e-3,algorithm.name=grpo"


def listed(folder, runs):
    """A folder of runs with the last success of each, None for one that has not begun."""
    plan = []
    for setting, seeds in runs.items():
        for seed, success in enumerate(seeds):
            below = folder / setting / f"seed-{seed}"
            plan.append({"setting": setting, "seed": seed, "folder": f"{setting}/seed-{seed}"})
            if success is not None:
                below.mkdir(parents=True)
                row = {"iteration": 0, "eval/success": success, "loss": float("nan"), "time/update": 1.0}
                (below / "metrics.jsonl").write_text(json.dumps(row) + "\n")
                (below / "config.json").write_text('{"iterations": 0}')
    (folder / "sweep.json").write_text(json.dumps({"recipe": "r", "overrides": [], "runs": plan}))
    return folder


def test_settings_are_compared_by_seed_also_where_one_has_not_begun(tmp_path):
    folder = listed(tmp_path, {"a": [0.1, 0.5, None], "b": [None, 0.6, 0.9], "c": [None, None, None]})
    [table] = sweep_table(open_runs(folder))
    shown = {row[0]: row for row in table["rows"][1:]}
    assert shown["b"][1] == "2"
    assert shown["b"][table["rows"][0].index("against the first, by seed")] == "+10.0 %"
    assert shown.keys() == {"a", "b"}
    assert means(open_runs(folder)[0].seeds)[0]["eval/success"] == pytest.approx(0.3)


def test_a_page_is_made_of_unfinished_runs_beside_an_ordinary_one(tmp_path, rollenv_command):
    listed(tmp_path / "all", {"<script>alert(1)</script>": [0.1, None], "b": [0.6, 0.9]})
    alone = listed(tmp_path / "more", {"a": [0.3]}) / "a" / "seed-0"
    done = rollenv_command("view", str(tmp_path / "all"), str(alone), "--no-open", "--out", "page.html")
    assert done.returncode == 0, done.stderr
    assert "<script>alert(1)" not in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"runs": 1}', '{"runs": [1]}', '{"runs": [{"folder": []}]}', 9**6 * "["]
)
def test_a_damaged_list_of_runs_is_said(text, tmp_path, rollenv_command, small):
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "sweep.json").write_text(text)
    with pytest.raises(UsageError, match="damaged"):
        open_runs(tmp_path / "all")
    done = rollenv_command("train", "sokoban", *small, "run_dir=all", "--seeds", "2", "--resume")
    assert done.returncode == 2
    assert "damaged" in done.stderr.replace("\n", " ")


def test_a_changed_recipe_does_not_go_on_with_runs_of_the_old_one(rollenv_command, tmp_path, small):
    listed(tmp_path / "all", {"own.toml": [0.1]})
    (tmp_path / "own.toml").write_text('seed = 2\n[env]\nid = "game:Sokoban-v0-tiny"\n[model]\npath = "tiny"\n')
    command = ["train", "own.toml", "run_dir=all", "--seeds", "1", "--resume"]
    plan = {"recipe": "own.toml", "overrides": [], "settings": ["seed = 1"], "runs": []}
    (tmp_path / "all" / "sweep.json").write_text(json.dumps(plan))
    done = rollenv_command(*command)
    assert done.returncode == 2
    assert "other settings" in done.stderr


@pytest.mark.parametrize("used", ["all", "all/seed-0"])
def test_runs_that_are_under_way_are_not_started_again(used, rollenv_command, tmp_path, small):
    folder = listed(tmp_path / "all", {"sokoban": [0.1]}) / "seed-0"
    shutil.move(tmp_path / "all" / "sokoban" / "seed-0", folder)
    plan = {"recipe": "sokoban", "overrides": small, "runs": [{"setting": "sokoban", "seed": 0, "folder": "seed-0"}]}
    (tmp_path / "all" / "sweep.json").write_text(json.dumps(plan))
    code = "import sys, fcntl, os; fcntl.flock(os.open(sys.argv[1], 0), fcntl.LOCK_EX); print(flush=True); input()"
    other = [sys.executable, "-c", code, str(tmp_path / used)]
    with subprocess.Popen(other, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        done = rollenv_command("train", "sokoban", *small, "run_dir=all", "--seeds", "1", "--resume")
        process.communicate(b"\n")
    assert done.returncode == 2
    assert "another process is writing" in done.stderr
    assert not (tmp_path / "all" / "seed-0.log").exists()


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_runs_after_saving(number, tmp_path, small):
    command = ["train", "sokoban", *small, *QUICK, "iterations=100000", "run_dir=all", "--seeds", "2"]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "rollenv", *command, "--beside", "2"], cwd=tmp_path, stderr=said, stdout=said
        )
    files = [tmp_path / "all" / f"seed-{seed}" / "metrics.jsonl" for seed in range(2)]
    assert eventually(lambda: all(file.exists() and file.read_text().count("\n") > 2 for file in files), 120)
    process.send_signal(number)
    assert process.wait(120) == (130 if number == signal.SIGINT else 143)
    assert "run_dir=all --resume" in (tmp_path / "said").read_text().replace("\n", " ")
    for file in files:
        lock_folder(file.parent, process)  # no other process is in it
        last = json.loads(file.read_text().splitlines()[-1])["iteration"]
        # A run that is stopped in an evaluation has saved its step, whose row the resumed run writes.
        assert any((file.parent / "checkpoints" / f"step-{step:06d}").exists() for step in (last, last + 1))


@pytest.mark.integration
def test_a_run_that_fails_leaves_the_others_complete(tmp_path, small, rollenv_command):
    settings = [*small, *QUICK, "run_dir=all", "--vary", "rewards.function=own:good,own:bad"]
    (tmp_path / "own.py").write_text(
        "def good(reward):\n    return 1.0\n\ndef bad(reward):\n    raise ValueError('nothing to reward')\n"
    )
    done = rollenv_command("train", "sokoban", *settings)
    assert done.returncode == 1
    assert "1 of 2 runs failed" in done.stderr
    assert (tmp_path / "all" / "report.html").exists()


def test_a_run_that_has_not_finished_has_no_success_after(tmp_path):
    for setting, last in (("good", 2), ("bad", 0)):
        folder = tmp_path / setting
        folder.mkdir()
        (folder / "config.json").write_text('{"iterations": 2}')
        rows = [{"iteration": n, "eval/success": 0.1 + n / 4} for n in range(last + 1)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    runs = [{"setting": name, "seed": 0, "folder": name} for name in ("good", "bad")]
    (tmp_path / "sweep.json").write_text(json.dumps({"runs": runs}))
    [table] = sweep_table(open_runs(tmp_path))
    head, good, bad = table["rows"]
    assert good[head.index("after RL")] == "60.0 %"
    assert bad[head.index("after RL")] == ""
    assert bad[head.index("seeds")] == "0 of 1 finished"
