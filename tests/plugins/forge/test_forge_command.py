"""`rollenv forge` tells what is wrong, and what it made."""

from __future__ import annotations

import json


def test_what_cannot_be_forged_is_reported(rollenv_command, tmp_path):
    (tmp_path / "empty-1").mkdir()
    done = rollenv_command("forge", "empty-1", "--out", "tasks")
    assert done.returncode == 1
    assert "library" in done.stderr
    assert "0 tasks in tasks" in done.stdout


def test_a_missing_archive_is_an_error_of_usage(rollenv_command):
    done = rollenv_command("forge", "gone.tar.gz", "--out", "tasks")
    assert done.returncode == 2
    assert "gone.tar.gz" in done.stderr


def test_rows_of_swebench(rollenv_command, tmp_path):
    row = {
        "instance_id": "a-1",
        "repo": "a/a",
        "base_commit": "abc",
        "problem_statement": "It fails.",
        "patch": "diff --git a/a.py b/a.py\n",
        "test_patch": "diff --git a/t.py b/t.py\n",
        "FAIL_TO_PASS": ["t.py::test_a"],
        "PASS_TO_PASS": [],
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n{}\n")
    done = rollenv_command("forge", "swebench", "rows.jsonl", "--out", "tasks", "--image", "eval.{instance_id}")
    assert done.returncode == 1
    assert "rows.jsonl, line 2: " in done.stderr
    assert "1 task in tasks" in done.stdout
    assert (tmp_path / "tasks/a-1/task.toml").is_file()
