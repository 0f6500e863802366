"""Reward models: pairs, losses, the run, and the reward in training."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
import torch
import words
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rollenv import UsageError
from rollenv.agents import LocalAgent
from rollenv.cli.reward_model import settings_of
from rollenv.rollout.records import storage
from rollenv.rollout.types import Group, Task, Trajectory, Turn
from rollenv.trainers.config import load_config
from rollenv.trainers.config.algorithms import BradleyTerry
from rollenv.trainers.experience import experience
from rollenv.trainers.preferences import Preferences
from rollenv.trainers.reward_model import RewardModel, pairs_of
from rollenv.trainers.rewards.learned import LearnedReward
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.trainer import Trainer

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import best_of


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_runs.chat_model(tmp_path_factory.mktemp("a chat model"))


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Pairs whose preferred answer has an "up", of equal lengths."""
    file = tmp_path_factory.mktemp("rows") / "pairs.jsonl"
    pairs = [{"prompt": f"what is {n}", "chosen": f"up {n}", "rejected": f"down {n}"} for n in range(60)]
    file.write_text("".join(json.dumps(row) + "\n" for row in pairs))
    return file


@pytest.fixture(scope="module")
def trained(model, rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "reward"
    settings = ["lr=2e-2", "epochs=8", "size=16", "held_out=0.3", "checkpoint_every=3", "threads=1"]
    settings = [str(rows), f"model={model}", *settings]
    with trainer_of(*settings, f"run_dir={path}") as trainer:
        return path, settings, trainer.fit().after


def trainer_of(*words, watch=lambda *_: None):
    config = load_config("reward-model", settings_of(words))
    return Trainer(config, RunDir.create(config, "reward-model"), watch)


def episode(reward, *ids, task=0):
    turn = Turn((1, 2), ids, (0.0,) * len(ids), reward, "", "")
    return Trajectory(Task("test:Pairs-v0", task), [turn], "terminated", success=reward > 0.5)


def test_pairs_are_of_one_task_with_different_returns_and_tokens():
    same, other = [episode(1.0, 4), episode(0.0, 5), episode(0.0, 4)], [episode(0.5, 6), episode(0.5, 7)]
    pairs = pairs_of([Group(same[0].task, same), Group(other[0].task, other)])
    assert [[(t.turns[0].prompt_ids[-1], t.reward) for t in pair] for pair in pairs] == [[(4, 1.0), (5, 0.0)]]


def test_losses_are_bradley_and_terrys():
    settings = BradleyTerry(smoothing=0.1, margin=0.5, centre=0.01)
    pair = pairs_of([Group(Task("test:Pairs-v0", 0), [episode(3.0, 4), episode(1.0, 5)])])
    found = Preferences(experience(pair, "trajectory"), np.array([3.0, 1.0]), settings)
    chosen, rejected = 2.0, 0.5
    d = chosen - rejected - 0.5 * (3.0 - 1.0)
    wanted = -0.9 * math.log(1 / (1 + math.exp(-d))) - 0.1 * math.log(1 / (1 + math.exp(d))) + 0.01 * 2.5**2
    advantages, metrics = found.advantages(np.array([chosen, rejected]), None)
    slope = -0.9 / (1 + math.exp(d)) + 0.1 / (1 + math.exp(-d))
    assert metrics["loss"] == pytest.approx(wanted)
    assert advantages == pytest.approx([-(slope + 0.01 * 2 * 2.5), slope - 0.01 * 2 * 2.5])


def test_scores_do_not_depend_on_the_other_episodes_of_a_batch(model):
    scorer = RewardModel.begin(str(model), 0)
    episodes = [(1, 2, 3), (4,) * 30, (5, 6)]
    with torch.no_grad():
        together = scorer.scores(episodes)
        alone = torch.cat([scorer.scores([ids]) for ids in episodes])
    assert torch.allclose(together, alone, atol=1e-5)


def test_it_tells_held_out_pairs_apart_better_than_their_lengths_do(trained):
    _, _, last = trained
    assert last["eval/accuracy"] > 0.9
    assert last["eval/accuracy_of_lengths"] == pytest.approx(0.5, abs=0.2)


def test_a_run_that_was_interrupted_goes_on_with_equal_numbers(trained, tmp_path):
    _, settings, last = trained

    def stop(stage, done, total, numbers):
        if done == 5 and stage == "training":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), trainer_of(*settings, f"run_dir={tmp_path / 'cut'}", watch=stop) as cut:
        cut.fit()
    with Trainer(cut.config, RunDir(cut.run.path)) as resumed:
        assert resumed.state.iteration == 3
        again = resumed.fit().after
    same = [key for key in last if not key.startswith(("time/", "cpu/"))]
    # the address of a batch of odd size decides about its last bits
    assert {key: again[key] for key in same} == pytest.approx({key: last[key] for key in same}, rel=1e-6, abs=1e-6)
    scales = [RewardModel.load(path) for path in (trained[0], cut.run.path)]
    assert scales[0].mean == pytest.approx(scales[1].mean, rel=1e-5)


def test_adapters_are_trained_with_the_head_and_merged(model, rows, tmp_path):
    settings = [str(rows), f"model={model}", "model.lora.rank=4", "lr=3e-2", "epochs=12", "size=16", "held_out=0.3"]
    with trainer_of(*settings, f"run_dir={tmp_path / 'run'}") as trainer:
        last = trainer.fit().after
        pairs = trainer.batches.held_out
    assert last["eval/accuracy"] > 0.9
    loaded = RewardModel.load(tmp_path / "run")
    with torch.no_grad():
        better, worse = (loaded.scores([pair.trajectories[i].turns[0].prompt_ids for pair in pairs]) for i in (0, 1))
    assert float((better - worse).mean()) == pytest.approx(last["eval/margin"], rel=1e-4)


def test_rewards_are_in_deviations_of_the_scores_that_were_trained_on_and_clipped(trained):
    path, _, _ = trained
    scorer = RewardModel.load(path)
    reward = LearnedReward(str(path), clip=0.01)
    shown = episode(0.0, 3, 4)
    (value,) = scorer.rewards([shown])
    with torch.no_grad():
        assert value == pytest.approx((float(scorer.scores([(1, 2, 3, 4)])) - scorer.mean) / scorer.std, abs=1e-5)
    assert abs(asyncio.run(reward(shown))) <= 0.01
    with pytest.raises(UsageError, match="tokenizer"):
        asyncio.run(reward(episode(0.0, 10**6)))
    with pytest.raises(UsageError, match="no tokens"):
        scorer.rewards([shown, replace(shown, turns=[replace(shown.turns[0], prompt_ids=(), response_ids=())])])


def test_training_may_see_the_reward_model_alone_and_logs_the_true_reward(trained, model, tmp_path):
    path, _, _ = trained
    rewards = [f"rewards.domains=[{{kind='learned', path='{path}'}}]", "rewards.own=0"]
    small = ["threads=1", "iterations=1", "eval.episodes=4", "rollout.groups_per_batch=2", "rollout.group_size=2"]
    small += ["env.kwargs={}", "eval.kwargs={}", "prompt.kind=conversation", "rollout.max_new_tokens=4"]
    config = load_config(
        "sokoban", [f"env.id={words.ID}", f"model={model}", f"run_dir={tmp_path / 'run'}", *small, *rewards]
    )
    with Trainer(config, RunDir.create(config, "sokoban")) as trainer:
        trainer.fit()
        rows = trainer.rows
    assert rows[-1]["eval/trained_reward"] != rows[-1]["eval/reward"]
    assert abs(rows[-1]["eval/trained_reward"]) <= 3


def test_a_pair_without_one_of_its_episodes_is_left_out(model, tmp_path):
    file = tmp_path / "stored.jsonl"
    cut = episode(0.0, 5)
    cut.turns[0].finish = "length"
    storage.write(file, [episode(1.0, 4), cut, episode(1.0, 6, task=1), episode(0.0, 7, task=1)])
    settings = [str(file), f"model={model}", "held_out=0", "rewards.at_limit=drop", f"run_dir={tmp_path / 'run'}"]
    with trainer_of(*settings) as trainer:
        trainer.fit()
    assert (trainer.rows[1]["pairs"], trainer.rows[1]["trained_samples"]) == (1, 2)


def test_equal_pairs_and_a_folder_without_a_model_are_refused(model, tmp_path):
    file = tmp_path / "equal.jsonl"
    storage.write(file, [episode(0.5, 3, task=0), episode(0.5, 4, task=0)])
    with pytest.raises(UsageError, match="no pair"):
        trainer_of(str(file), f"model={model}", f"run_dir={tmp_path / 'run'}")
    with pytest.raises(UsageError, match="no reward model"):
        RewardModel.load(tmp_path)


def test_a_reward_model_neither_plays_nor_begins_another(trained, rows, tmp_path):
    with pytest.raises(UsageError, match="gives scores"):
        LocalAgent.load(trained[0])
    with pytest.raises(UsageError, match="gives scores"):
        trainer_of(str(rows), f"model={trained[0]}", f"run_dir={tmp_path / 'run'}")


def test_best_of_n_is_the_mean_over_all_choices():
    pool = [(0.1, 1.0), (0.9, 0.0), (0.5, 1.0)]
    assert best_of.best_of(pool, 1) == pytest.approx((0.5, 2 / 3))
    assert best_of.best_of(pool, 2) == pytest.approx(((0.9 + 0.9 + 0.5) / 3, 1 / 3))
    assert best_of.best_of(pool, 3) == pytest.approx((0.9, 0.0))


def test_a_run_is_as_far_from_its_start_as_its_tokens_say(tmp_path):
    rows = [
        {"iteration": 0, "eval/reward": 0.2, "eval/trained_reward": -0.3},
        {"iteration": 1, "reference_kl": 0.1},
        {"iteration": 2, "reference_kl": 0.25, "response_tokens": 64, "eval/reward": 0.4, "eval/trained_reward": 0.9},
    ]
    run = RunDir(tmp_path)
    for row in rows:
        run.append(run.metrics_file, row)
    run.config_file.write_text(json.dumps({"rollout": {"groups_per_batch": 2, "group_size": 2}}))
    start, later = best_of.evaluations_of(tmp_path)
    assert start == {"iteration": 0, "root_kl": 0.0, "proxy": -0.3, "true": 0.2}
    assert later == {"iteration": 2, "root_kl": 2.0, "proxy": 0.9, "true": 0.4}
    run.metrics_file.write_text("")
    with pytest.raises(UsageError, match="KL"):
        best_of.evaluations_of(tmp_path)


def test_the_best_of_n_is_what_the_model_prefers(trained):
    played = [episode(float(i % 2), 3 + i, task=task) for task in range(2) for i in range(4)]
    rows = best_of.rows_of(RewardModel.load(trained[0]), played)
    assert [row["n"] for row in rows] == [1, 2, 4]
    assert [row["proxy"] for row in rows] == sorted(row["proxy"] for row in rows)
    with pytest.raises(UsageError, match="two episodes"):
        best_of.rows_of(RewardModel.load(trained[0]), played[:1])


def test_transformers_reads_the_same_scores_in_a_padded_batch(model, tmp_path):
    made = RewardModel.begin(str(model), 0)
    made.save(tmp_path)
    other = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float32).eval()
    end, padding = made.tokenizer.eos_token_id, other.config.pad_token_id
    assert padding == AutoTokenizer.from_pretrained(tmp_path).pad_token_id
    assert padding != end
    episodes = [(5, 6, 7, end), (8, 9, 10, 11, 12, end)]
    ids = torch.tensor([[*each, *[padding] * (6 - len(each))] for each in episodes])
    with torch.no_grad():
        batch = other(input_ids=ids, attention_mask=(ids != padding).long()).logits[:, 0]
        assert torch.allclose(batch, made.scores(episodes), atol=1e-4)


def test_the_margin_of_a_row_is_wanted_of_its_scores(model, tmp_path):
    file = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"what is {n}", "chosen": "up", "rejected": "down", "margin": 50} for n in range(4)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with trainer_of(str(file), f"model={model}", "held_out=0", f"run_dir={tmp_path / 'run'}") as trainer:
        trainer.fit()
    assert trainer.rows[1]["loss"] == pytest.approx(50, abs=2)
