"""A function of the user as the reward: by the names of its parameters, one episode or a batch."""

from __future__ import annotations

import asyncio
import json
import sys

import numpy as np
import pytest
import words

import rollenv
from rollenv import UsageError
from rollenv.agents.base import OracleAgent
from rollenv.rollout import RolloutManager, Task, Trajectory
from rollenv.rollout.records import storage
from rollenv.rollout.records.health import RewardUnhealthy
from rollenv.trainers import RunDir, Trainer
from rollenv.trainers.config import load_config
from rollenv.trainers.rewards import FunctionFailed, FunctionReward

ROWS = [{"question": f"What is {n} + {n}?", "answer": str(2 * n), "level": n} for n in range(6)]
QA = "test:Sums-v0"


@pytest.fixture(scope="module", autouse=True)
def _sums(_words):
    rollenv.register(QA, "rollenv.envs.qa.env:QaEnv", abilities=["oracle"], indexed=True, dataset=ROWS)


def played(function, tasks=6, agent=None):
    manager = RolloutManager(agent or OracleAgent(), reward=FunctionReward(function))
    with manager:
        groups = manager.collect([Task(QA, i, options={"index": i}) for i in range(tasks)])
    return [t for group in groups for t in group]


def test_a_function_gets_what_its_parameters_name_and_its_number_is_the_reward():
    seen = []

    def reward(prompt, answer, row, reward, trajectory, weight=2):
        seen.append((prompt, answer, row["level"], reward, isinstance(trajectory, Trajectory)))
        return weight * row["level"]

    episodes = played(reward)
    assert [t.reward for t in episodes] == [0, 2, 4, 6, 8, 10]
    assert [t.own_reward for t in episodes] == [1] * 6
    assert sorted(seen, key=lambda one: one[2])[3] == (
        episodes[3].turns[0].observation,
        "<answer>6</answer>",
        3,
        1.0,
        True,
    )
    assert "What is 3 + 3?" in seen[3][0]


def test_a_function_may_be_a_coroutine_and_take_the_environments_reward():
    async def shorter(answer, reward):
        await asyncio.sleep(0)
        return reward - 0.1 * len(answer)

    assert [t.reward for t in played(shorter)] == pytest.approx([-0.8] * 5 + [-0.9])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_batch_function_gets_lists_of_equal_length(asynchronous):
    batches = []

    def several(answers, rows):
        batches.append(len(answers))
        assert [f"<answer>{row['answer']}</answer>" for row in rows] == answers
        return np.array([row["level"] for row in rows], dtype=float)

    async def later(answers, rows):
        return several(answers, rows)

    assert [t.reward for t in played(later if asynchronous else several)] == [0, 1, 2, 3, 4, 5]
    assert sum(batches) == 6


def test_a_function_of_trl_works_unchanged():
    """TRL's signature: completions, the data set's columns by name, and the rest."""

    def by_column(completions, answer, **kwargs):
        assert {"question", "level"} <= kwargs.keys()
        return [float(a in c) for c, a in zip(completions, answer, strict=True)]

    def strict(prompts, completions, level):
        return level

    assert [t.reward for t in played(by_column)] == [1.0] * 6
    assert [t.reward for t in played(strict)] == [0, 1, 2, 3, 4, 5]


def test_rewards_of_earlier_turns_are_replaced_too_and_the_row_is_empty_without_a_data_set():
    def five(row):
        assert row == {}
        return 5

    with RolloutManager(OracleAgent(), reward=FunctionReward(five)) as manager:
        (group,) = manager.collect([Task(words.ID, 0)], 2)
    assert [[turn.reward for turn in t.turns] for t in group] == [[0, 0, 5]] * 2
    assert [t.own_reward for t in group] == [3.0, 3.0]


def nothing():
    return 1.0


def wrong_name(promt):
    return 1.0


def mixed(prompt, answers):
    return [1.0]


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (nothing, r"nothing takes none, and can take prompt, answer, row"),
        (wrong_name, r"takes promt, and .*did you mean 'prompt'\?"),
    ],
)
def test_wrong_parameters_are_refused_at_once(function, error):
    with pytest.raises(UsageError, match=error):
        FunctionReward(function)


@pytest.mark.parametrize("returned", ["good", None, float("nan"), [1.0], 1e400])
def test_a_function_that_returns_no_number_ends_the_rollout(returned):
    with pytest.raises(UsageError, match=r"<lambda>: what it returns"):
        played(lambda answer: returned, 1)


@pytest.mark.parametrize("returned", [[1.0], 1.0, [[1.0]] * 9, None])
def test_a_batch_function_that_returns_another_number_of_values_ends_the_rollout(returned):
    with pytest.raises(UsageError, match="has to return a list of 6 numbers, one for each answer"):
        played(lambda answers: returned)


def test_a_batch_function_that_asks_for_an_unknown_column_names_the_columns():
    with pytest.raises(UsageError, match=r"takes 'prompt', and a row has only the columns question, answer, level"):
        played(mixed)


def test_an_exception_fails_the_episode_with_its_line_and_then_the_rollout():
    def moody(answer):
        return {}["missing"]

    (one,) = played(moody, 1)
    assert (one.status, one.failure) == ("failed", "reward")
    assert "FunctionFailed" in one.error
    assert "raised KeyError: 'missing' (test_own_reward.py, line" in one.error
    assert one.env_reward is None
    with (
        pytest.raises(RewardUnhealthy, match="moody raised KeyError"),
        RolloutManager(OracleAgent(), reward=FunctionReward(moody), unhealthy_after=5) as manager,
    ):
        manager.collect([Task(QA, i, options={"index": i % 6}) for i in range(80)])
    assert issubclass(FunctionFailed, rollenv.RollenvError)


def test_the_environments_reward_is_stored_beside_the_other(tmp_path):
    episodes = played(lambda row: row["level"])
    for name in ("episodes.jsonl", "episodes.parquet"):
        storage.write(tmp_path / name, episodes)
        assert [(t.reward, t.own_reward) for t in storage.read(tmp_path / name)] == [(n, 1.0) for n in range(6)]


MODULE = """
def zero_to_one(answer, reward):
    return min(1.0, reward / 3)

def best(members):
    return [10.0] * len(members)
"""


@pytest.mark.parametrize("rewards", [["function"], ["group"], ["function", "group"]])
def test_metrics_keep_the_environments_reward_apart_from_the_trained_one(tmp_path, monkeypatch, rewards):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_rewards_test.py").write_text(MODULE)
    sys.modules.pop("own_rewards_test", None)
    names = {"function": "own_rewards_test:zero_to_one", "group": "own_rewards_test:best"}

    def trained(*overrides):
        config = load_config("sokoban", [*words.TRAINED, "iterations=1", *overrides])
        run = RunDir.create(config, "sokoban")
        with Trainer(config, run) as trainer:
            trainer.fit()
        return [json.loads(line) for line in run.metrics_file.read_text().splitlines()]

    plain = trained("run_dir=plain")
    own = trained("run_dir=own", *(f"rewards.{key}={names[key]}" for key in rewards))
    assert "trained_reward" not in plain[1]
    assert own[1]["reward"] == pytest.approx(plain[1]["reward"])
    assert [row["eval/reward"] for row in own[:1]] == pytest.approx([row["eval/reward"] for row in plain[:1]])
    expected = 10.0 * ("group" in rewards) + (min(1.0, plain[1]["reward"]) if "function" in rewards else 0)
    if rewards == ["group"]:
        assert own[1]["trained_reward"] == pytest.approx(expected + own[1]["reward"])
    else:
        assert 10.0 * ("group" in rewards) <= own[1]["trained_reward"] <= 10.0 * ("group" in rewards) + 1
        assert 0 <= own[0]["eval/trained_reward"] <= 1
    sys.modules.pop("own_rewards_test", None)


def test_a_reward_function_is_checked_before_anything_begins():
    with pytest.raises(UsageError, match=r"rewards.function 'json:no_such' cannot be loaded"):
        load_config("sokoban", [*words.TRAINED, "rewards.function=json:no_such"])
    with pytest.raises(UsageError, match=r"rewards.function: json:loads takes s, and can take"):
        load_config("sokoban", [*words.TRAINED, "rewards.function=json:loads"])
    unused = [f"rewards.function={__name__}:nothing_wrong", "rewards.success_only=true"]
    with pytest.raises(UsageError, match=r"rewards.function does nothing here, only with rewards.success_only=false"):
        load_config("sokoban", [*words.TRAINED, *unused])


def nothing_wrong(answer):
    return 1.0
