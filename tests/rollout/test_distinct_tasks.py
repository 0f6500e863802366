"""Evaluations whose seeds draw some tasks twice say so, and count each task once."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rollenv.agents.base import OracleAgent, RandomAgent
from rollenv.core.pictures import picture
from rollenv.report.summary import tiles
from rollenv.rollout.evaluate import evaluate, wilson_interval
from rollenv.rollout.records.folders import Run

SUMS = {"operands": [0, 1], "answers": [0, 2], "operators": "+"}


def test_repeated_tasks_of_one_turn_are_one_toss_each():
    result = evaluate(RandomAgent(), "math:Arithmetic-v0-digit", SUMS, n=60)
    assert (result.n, result.distinct, result.repeats) == (60, 4, True)
    assert result.tasks_high - result.tasks_low > 3 * (result.high - result.low)
    assert (result.low, result.high) == wilson_interval(result.success * 60, 60)


def test_the_page_of_a_run_gives_the_interval_over_different_tasks(tmp_path):
    row = {"eval/success": 0.5, "eval/low": 0.4, "eval/high": 0.6, "eval/tasks_low": 0.2, "eval/tasks_high": 0.8}
    label, value, _ = tiles(Run(tmp_path, "training", {}, {}, [{"iteration": 0, **row}], ""), ())[0]
    assert (label, value) == ("Success before RL", "50.0 % (20 to 80)")


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [("math:Arithmetic-v0-digit", {"operands": [0, 10**9], "answers": None}), ("game:GuessTheNumber-v0", {})],
)
def test_tasks_that_may_differ_are_not_taken_for_one(env_id, kwargs):
    result = evaluate(OracleAgent(), env_id, kwargs, n=20)
    assert not result.repeats
    assert (result.tasks_low, result.tasks_high) == pytest.approx((result.low, result.high))


def test_one_question_about_several_pictures_is_several_tasks(tmp_path):
    shades = {i: picture(np.full((8, 8, 3), i, np.uint8)).url for i in range(3)}
    rows = [json.dumps({"question": "How bright?", "answer": i, "image": url}) for i, url in shades.items()]
    (tmp_path / "shades.jsonl").write_text("\n".join(rows))
    result = evaluate(OracleAgent(), f"data:{tmp_path / 'shades.jsonl'}", {"split": "all"})
    assert (result.n, result.distinct) == (3, 3)


def test_episodes_that_end_at_once_are_not_one_task_where_more_turns_were_to_come():
    result = evaluate(RandomAgent(), "game:GuessTheNumber-v0", {"max_number": 2}, n=10)
    assert result.distinct == 10
