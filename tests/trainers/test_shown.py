"""What an update stores of its tokens: the trainer's own numbers, of a few groups, without a change of the training."""

from __future__ import annotations

import json
import math

import pytest
from early_runs import COLLECT, EARLY, start

from rollenv import UsageError
from rollenv.agents import LocalAgent
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.rollout.records.stored import stored
from rollenv.rollout.types import Task, Trajectory, Turn
from rollenv.trainers import Learner


def rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def each_token(values, count):
    return values if isinstance(values, list) else [values] * count


def numbers_of(folder):
    """The stored numbers of updates, without times."""
    return [
        (row["iteration"], row["task"]["seed"], row["member"], row["update"]) for row in rows(folder / "updates.jsonl")
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown") / "run"
    with start(folder, *COLLECT, "report.tokens=2") as trainer:
        trainer.fit()
    return folder


def test_an_update_stores_groups_with_the_numbers_that_it_computed(tmp_path):
    with start(tmp_path / "run", *COLLECT, "report.tokens=6") as trainer:
        metrics: dict[str, float] = {}
        data = trainer.learner.compute_advantages(trainer._collect(metrics), metrics)
        found = trainer.learner.update(data)
    kept = rows(tmp_path / "run" / "updates.jsonl")
    assert len(kept) == 24
    advantages, entropies, useful = [], [], 0
    for row in kept:
        for turn, numbers in zip(row["turns"], row["update"]["turns"], strict=True):
            count = len(turn["response_ids"])
            advantages += each_token(numbers["advantages"], count)
            trained = numbers["why"] == ""
            assert trained or numbers["why"] == "no advantage"
            if trained:
                useful += 1
                assert each_token(numbers["steps"], count) == [0] * count
                assert each_token(numbers["logprobs"], count) == pytest.approx(turn["logprobs"], abs=1e-4)
                entropies += each_token(numbers["entropy"], count)
            else:
                assert numbers["logprobs"] is None
    assert advantages == pytest.approx(data.columns["advantages"].tolist(), abs=1e-5)
    assert useful == found["trained_samples"]
    assert sum(entropies) / len(entropies) == pytest.approx(found["entropy"], abs=1e-4)


def test_what_is_stored_changes_nothing_in_the_training(run, tmp_path):
    with start(tmp_path / "run", *COLLECT) as trainer:
        trainer.fit()
    plain, shown = (
        [{k: v for k, v in row.items() if not k.startswith(("time/", "cpu/", "tokens_per_s"))} for row in rows(folder)]
        for folder in (tmp_path / "run" / "metrics.jsonl", run / "metrics.jsonl")
    )
    assert plain == shown
    assert not (tmp_path / "run" / "updates.jsonl").exists()
    kept = rows(run / "updates.jsonl")
    assert [sum(row["iteration"] == i for row in kept) for i in range(6)] == [0, 8, 8, 8, 8, 0]
    assert {len({r["update"]["group"] for r in kept if r["iteration"] == i}) for i in range(1, 5)} == {2}
    assert len(list(stored(run / "updates.jsonl"))) == len(kept), "its episodes are read as those of other files"


def test_a_resumed_run_stores_each_update_once(run, tmp_path):
    folder = tmp_path / "run"
    with start(folder, *COLLECT, "report.tokens=2") as trainer:
        trainer.config = trainer.config.model_copy(update={"iterations": 2})
        trainer.fit()
    with (folder / "updates.jsonl").open("a") as out:
        row = rows(folder / "updates.jsonl")[-1]
        out.write(json.dumps(row | {"iteration": 3}) + '\n{"iteration": 3, "task": {"env')
    with start(folder, *COLLECT, "report.tokens=2") as trainer:
        trainer.fit()
    assert numbers_of(folder) == numbers_of(run)


def test_gradients_before_the_last_episode_store_the_same(run, tmp_path):
    with start(tmp_path / "run", EARLY, "report.tokens=2") as trainer:
        trainer.fit()
    for (i, *who, early), (j, *also, collected) in zip(numbers_of(tmp_path / "run"), numbers_of(run), strict=True):
        assert (i, who) == (j, also)
        assert early["group"] == collected["group"]
        if i == 1:
            for a, b in zip(early["turns"], collected["turns"], strict=True):
                assert a["why"] == b["why"]
                assert each_token(a["logprobs"], 1)[0] == pytest.approx(each_token(b["logprobs"], 1)[0], abs=1e-4)


def test_later_steps_of_an_update_are_told_from_the_first(tmp_path):
    with start(tmp_path / "run", "iterations=1", "optimizer.minibatch_sequences=4", "report.tokens=6") as trainer:
        trainer.fit()
    turns = [
        turn for row in rows(tmp_path / "run" / "updates.jsonl") for turn in row["update"]["turns"] if not turn["why"]
    ]
    assert {0.0, 1.0} <= {turn["steps"] for turn in turns}


def test_what_a_correction_recomputes_is_stored_of_all_tokens(tmp_path):
    alike = "rollout.temperature=0.001"  # in most groups all members answer alike
    how = ["iterations=1", "optimizer.old_logprobs=recomputed", "report.tokens=6", alike]
    with start(tmp_path / "run", *COLLECT, *how) as trainer:
        trainer.fit()
    turns = [turn for row in rows(tmp_path / "run" / "updates.jsonl") for turn in row["update"]["turns"]]
    assert all(turn["logprobs"] is not None and turn["steps"] == 0 for turn in turns)
    assert "no advantage" in {turn["why"] for turn in turns}


def test_a_large_update_is_cut_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("rollenv.trainers.run_dir.MOST_OF_UPDATE", (5, 0))
    with start(tmp_path / "run", *COLLECT, "iterations=1", "report.tokens=6") as trainer:
        trainer.fit()
    kept = rows(tmp_path / "run" / "updates.jsonl")
    assert 1 <= len(kept) < 6
    assert all(not turn["prompt_ids"] for row in kept for turn in row["turns"])
    assert rows(tmp_path / "run" / "metrics.jsonl")[-1]["report/left_out"] == 24 - len(kept)


def test_a_loop_of_ones_own_stores_them_in_its_folder(tmp_path):
    tokenizer = build_tokenizer(["a b"] * 9, 300, chat=True)
    model = build_model(TinySize(hidden=32, layers=1, heads=2, context=64), tokenizer, seed=0)
    agent = LocalAgent(model, tokenizer)
    with pytest.raises(UsageError, match="run_dir"):
        Learner(agent, "report.tokens=1")
    turns = [Turn((1, 2), (3, 4), (-1.0, -2.0), reward, "", "") for reward in (0.0, 1.0)]
    played = [Trajectory(Task("own:a", 0), [turn], "terminated", member=i) for i, turn in enumerate(turns)]
    Learner(agent, "report.tokens=1", run_dir=tmp_path / "own").update(played)
    kept = rows(tmp_path / "own" / "updates.jsonl")
    assert [row["iteration"] for row in kept] == [1, 1]
    low, high = (row["update"]["turns"][0]["advantages"] for row in kept)
    assert low < 0 < high
    assert all(math.isfinite(value) for row in kept for value in row["update"]["turns"][0]["logprobs"])
