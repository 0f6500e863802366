"""Batches that are played beside training: bounds on staleness, resumes, and what stays as it was."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter

import pytest
import words

import rollenv
from rollenv.core.errors import UsageError
from rollenv.trainers.config import load_config
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.sources import SourcedTask
from rollenv.trainers.trainer import Trainer

SLOW = "test:SlowWords-v0"
SAME = "test:SameWords-v0"
UNSOLVED = "test:UnsolvedWords-v0"

BASE = [
    *words.RUN, "iterations=6", "checkpoint_every=2", "model.warm_up.steps=20", "rollout.groups_per_batch=3",
    "rollout.group_size=3", "optimizer.lr=5e-2", "eval.every=3",
]  # fmt: skip


class SlowWords(words.Words):
    """One task of four takes long, whatever is said."""

    def _step(self, action):
        if self.word == "left":
            time.sleep(0.03)
        return super()._step(action)


class SameWords(words.Words):
    """All answers are worth the same."""

    def _step(self, action):
        observation, _, *others = super()._step(action)
        return observation, 1.0, *others


class UnsolvedWords(words.Words):
    """Answers are worth different amounts, and none is right."""

    def _step(self, action):
        *others, info = super()._step(action)
        return *others, info | {"success": False}


@pytest.fixture(scope="module", autouse=True)
def _others(_words):
    for env_id, name in ((SLOW, "SlowWords"), (SAME, "SameWords"), (UNSOLVED, "UnsolvedWords")):
        abilities = ["oracle", "random_action", "state_key"]
        rollenv.register(env_id, f"test_batches:{name}", abilities=abilities, indexed=True)


def start(path, *overrides) -> Trainer:
    config = load_config("sokoban", [*BASE, *overrides, f"run_dir={path}"])
    return Trainer(config, RunDir(path) if path.exists() else RunDir.create(config, "sokoban"))


def followed(trainer: Trainer) -> list[list]:
    """The groups of each batch that the trainer takes from now on."""
    taken: list[list] = []
    following = trainer.batches.next

    def remember(metrics):
        taken.append(following(metrics))
        return taken[-1]

    trainer.batches.next = remember
    return taken


def rows(path) -> list[dict]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.combinations
@pytest.mark.parametrize("bound", [0, 1, 3])
def test_no_trained_token_is_older_than_the_bound_and_every_task_is_trained_on_once(tmp_path, bound):
    settings = ("batches.kind=stream", f"batches.max_staleness={bound}", "rollout.extra_groups=2", "iterations=9")
    with start(tmp_path / "run", *settings) as trainer:
        taken = followed(trainer)
        trainer.fit()
        assert trainer.batches.stream.pending == [] or bound == 0 or len(trainer.batches.stream.pending) <= 2
    ages = [
        updates - version
        for updates, batch in enumerate(taken)
        for group in batch
        for t in group
        for turn in t.turns
        for version in (turn.versions or [turn.policy_version] * len(turn.response_ids))
    ]
    assert 0 <= min(ages) <= max(ages) <= bound
    logged = [row["staleness/max"] for row in rows(tmp_path / "run")[1:]]
    assert max(logged) == max(ages)
    assert [len(batch) for batch in taken] == [3] * 9
    counted = Counter(group.task.origin for batch in taken for group in batch)
    assert set(counted.values()) == {1}


def test_a_stream_without_staleness_plays_the_same_tasks_as_collecting(tmp_path):
    seeds = {}
    for kind in ("stream", "collect"):
        extra = ["batches.max_staleness=0"] if kind == "stream" else []
        with start(tmp_path / kind, f"batches.kind={kind}", *extra, "iterations=3") as trainer:
            taken = followed(trainer)
            trainer.fit()
        seeds[kind] = [sorted(group.task.seed for group in batch) for batch in taken]
    assert seeds["stream"] == seeds["collect"]


@pytest.mark.parametrize("kind", ["stream", "tail"])
@pytest.mark.integration
def test_a_resumed_run_goes_on_with_the_tasks_that_were_begun(tmp_path, kind):
    """Together with those that still wait, every task up to the cursor was trained on once."""
    settings = [f"batches.kind={kind}", f"env.id={SLOW}", "rollout.extra_groups=2"]
    seen: list[tuple] = []
    for iterations in (4, 8):
        with start(tmp_path / "run", *settings, f"iterations={iterations}") as trainer:
            assert trainer.state.iteration == (0 if iterations == 4 else 4)
            taken = followed(trainer)
            trainer.fit()
            seen += [group.task.origin for batch in taken for group in batch]
            state = trainer.batches.state()
    waiting = [SourcedTask(**plain).origin for plain in state["pending"]]
    assert Counter(seen + waiting) == Counter((number,) for number in range(state["source"]["drawn"]))


def test_a_colocated_player_rests_during_updates(tmp_path):
    with start(tmp_path / "run", "batches.kind=stream", "batches.colocated=true", "rollout.extra_groups=2") as trainer:
        engine, update, drawn = trainer.state.player.engine, trainer.learner.update, []

        def watched(data):
            before = engine.stats.total
            time.sleep(0.02)
            result = update(data)
            drawn.append(engine.stats.total - before)
            return result

        trainer.learner.update = watched
        trainer.fit()
    assert drawn == [0] * 6


def test_evaluations_beside_a_stream_do_not_change_how_it_draws(tmp_path):
    with start(tmp_path / "run", "batches.kind=stream", "eval.temperature=0", "eval.every=1") as trainer:
        taken = followed(trainer)
        trainer.fit()
        assert trainer.state.player.sampling.temperature == 1.0
    turns = [turn for batch in taken for group in batch for t in group for turn in t.turns]
    assert any(logprob < 0 for turn in turns for logprob in turn.logprobs)
    evaluated = [row["eval/success"] for row in rows(tmp_path / "run")]
    assert len(evaluated) == 7


def test_a_stream_drops_no_more_groups_a_batch_than_refill_says(tmp_path):
    with start(tmp_path / "run", "batches.kind=stream", f"env.id={SAME}", "rollout.refill=2") as trainer:
        trainer.fit()
        drawn = trainer.batches.state()["source"]["drawn"]
    assert drawn == 6 * (3 + 2)


@pytest.mark.parametrize("keep", [[], ["rollout.keep.mean=[0.01, 1.0]"]])
def test_equal_success_teaches_nothing_where_success_alone_is_the_reward(tmp_path, keep):
    settings = [f"env.id={UNSOLVED}", "rollout.refill=2", "rewards.success_only=true", "iterations=2", *keep]
    with start(tmp_path / "run", *settings) as trainer:
        trainer.fit()
    drawn = [row for row in rows(tmp_path / "run") if "refilled" in row]
    assert [(row["refilled"], row["informative_groups"]) for row in drawn] == [(2.0, 0.0)] * 2
    assert any(row["reward_std"] > 0 for row in drawn), "the rewards do differ"


@pytest.mark.parametrize(("strict", "refill"), [(True, 0), (True, 2), (False, 2)])
def test_groups_outside_the_bounds_that_cannot_be_replaced_are_trained_on_only_if_asked(tmp_path, strict, refill):
    bounds = ["rollout.keep.mean=[5.0, 6.0]", f"rollout.keep.strict={str(strict).lower()}", f"rollout.refill={refill}"]
    with start(tmp_path / "run", *bounds, "iterations=1") as trainer:
        trainer.fit()
    row = rows(tmp_path / "run")[-1]
    assert row.get("refilled", 0) == refill
    assert (row["trained_samples"] == 0) == strict


def test_the_cache_of_an_engine_is_dropped_where_the_engine_runs(tmp_path):
    with start(tmp_path / "run", "batches.kind=stream", "iterations=2", "eval.every=1") as trainer:
        engine, where = trainer.state.player.engine, []
        engine.forget = lambda: where.append(threading.current_thread())
        trainer.fit()
        assert where == [trainer.manager._loop.thread] * 3


@pytest.mark.parametrize("kind", [["batches.kind=stream"], ["batches.kind=early", "optimizer.epochs=1"]])
def test_an_error_of_the_task_reaches_the_trainer_and_ends_the_thread(tmp_path, kind):
    with start(tmp_path / "run", *kind) as trainer:
        trainer.state.source.template.kwargs["nonsense"] = 1
        with pytest.raises(UsageError, match="nonsense"):
            trainer.fit()
    assert not trainer.manager._loop.thread.is_alive()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["batches.kind=stream", "model.sync=in_place"], "model.sync"),
        (["batches.kind=tail"], "rollout.extra_groups"),
        (["batches.max_staleness=2"], "stream"),
        (["batches.kind=stream", "batches.max_staleness=-1"], "max_staleness"),
        (["batches.kind=streem"], "'stream'"),
    ],
)
def test_settings_that_cannot_work_are_errors(settings, says):
    with pytest.raises(UsageError, match=says):
        load_config("sokoban", settings)


def test_corrected_losses_read_the_age_of_each_token(tmp_path):
    settings = ["batches.kind=stream", "batches.max_staleness=2", "optimizer.old_logprobs=interpolated"]
    with start(tmp_path / "run", *settings, "correction.name=tis", "iterations=5") as trainer:
        trainer.fit()
    with start(tmp_path / "two", *settings[:2], "correction.name=icepop", "iterations=5") as trainer:
        trainer.fit()
    assert all("correction/weight" in row for row in rows(tmp_path / "run")[1:])
    assert any("mismatch_kl/staleness/1" in row for row in rows(tmp_path / "two"))
