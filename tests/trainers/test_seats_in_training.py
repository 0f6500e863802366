"""Self-play: what is trained on, the pool of earlier weights, a second learner, and resuming all of them."""

from __future__ import annotations

import json

import card_game
import numpy as np
import pytest
import words
from card_game import ID, Cards
from tiny_runs import numbers

from rollenv.core.errors import RollenvError, UsageError
from rollenv.trainers import advantages
from rollenv.trainers.config import load_config
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.trainer import Trainer
from rollenv.trainers.training_state import TrainingState

BASE = [
    *words.RUN, "iterations=4", f"env.id={ID}", "model.warm_up.steps=30", "model.warm_up.lr=1e-2",
    "rollout.groups_per_batch=6", "rollout.group_size=4", "rollout.temperature=3", "rollout.max_new_tokens=4",
    "optimizer.lr=2e-2", "optimizer.epochs=1", "eval.episodes=10",
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _games():
    with card_game.registered():
        yield


def start(path, *overrides) -> Trainer:
    config = load_config("sokoban", [*BASE, *overrides, f"run_dir={path}"])
    return Trainer(config, RunDir(path) if path.exists() else RunDir.create(config, "sokoban"))


def fit(path, *overrides):
    with start(path, *overrides) as trainer:
        trainer.fit()
    return numbers(path)


KINDS = {
    "alone": ["algorithm=spiral"],
    "past": ["seats.others=past", "seats.past.every=1", "seats.past.size=2", "seats.past.draw=hard"],
    "rival": ["seats.others=rival", "algorithm=spiral"],
    "agent": ["seats.others=noisy:0.5"],
    "adapters": ["seats.others=rival", "algorithm=spiral", "model.lora.rank=4"],
}


#: The state of "rival" includes that of "alone"; an agent has none.
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.integration] * (kind in ("alone", "agent"))) for kind in KINDS]
)
def test_a_run_resumes_to_equal_numbers(kind, tmp_path):
    whole = fit(tmp_path / "whole", *KINDS[kind])
    assert [row["iteration"] for row in whole] == [0, 1, 2, 3, 4]
    assert all(row["failed"] == 0 and row["drift"] == 0 for row in whole[1:])
    with start(tmp_path / "cut", *KINDS[kind]) as trainer:  # ended between two updates
        trainer.watch = lambda stage, done, total, numbers: _stop(stage, done)
        with pytest.raises(Interrupted):
            trainer.fit()
    assert fit(tmp_path / "cut", *KINDS[kind]) == whole


def test_a_rival_keeps_what_the_learners_last_checkpoint_needs(tmp_path, monkeypatch):
    settings = [*KINDS["rival"], "keep_checkpoints=1"]
    save = TrainingState.save
    with monkeypatch.context() as patched, start(tmp_path / "cut", *settings) as trainer:

        def stop(state, *rest):
            if state is trainer.state:
                _stop("training", state.iteration)
            save(state, *rest)

        patched.setattr(TrainingState, "save", stop)
        with pytest.raises(Interrupted):
            trainer.fit()
    assert fit(tmp_path / "cut", *settings) == fit(tmp_path / "whole", *settings)


class Once(Cards):
    """The first player alone moves."""

    def _step(self, action):
        info = {"rewards": [1.0, -1.0], "observations": ["", ""], "success": [True, False]}
        return "", 1.0, True, False, info


def test_a_batch_without_a_turn_of_the_learner_is_not_learnt_from(tmp_path):
    settings = ["env.id=seats:Once-v0", "rollout.groups_per_batch=1", "seats.others=rival", "eval.every=4", "seed=1"]
    with card_game.registered(Once=Once):
        rows = fit(tmp_path / "run", *settings)[1:]
    assert {("drift" in row, "rival/drift" in row) for row in rows} == {(True, False), (False, True)}


def test_a_measure_that_is_no_number_is_named(tmp_path):
    with pytest.raises(RollenvError, match="operator:ne"):
        fit(tmp_path / "run", "eval.measures=['operator:ne']", "iterations=0")


class Interrupted(Exception):
    pass


def _stop(stage, done):
    if stage == "training" and done == 3:
        raise Interrupted


def test_all_seats_of_the_learner_are_trained_on(tmp_path):
    with start(tmp_path / "run", "seats.others=self") as trainer:
        found = []
        compute = trainer.learner.compute_advantages
        trainer.learner.compute_advantages = lambda groups, metrics: found.append(groups) or compute(groups, metrics)
        trainer.fit()
    for groups in found:
        assert sorted({group.trajectories[0].seat for group in groups}) == [0, 1]
        assert all(turn.response_ids for group in groups for t in group for turn in t.turns)
        assert abs(sum(t.reward for group in groups for t in group)) < 1e-9  # zero-sum, all turns played by all


def test_the_pool_holds_models_and_drops_the_oldest(tmp_path):
    rows = fit(tmp_path / "run", *KINDS["past"], "seats.past.current=0")
    assert sorted(path.name for path in (tmp_path / "run" / "past").iterdir()) == ["000003", "000004"]
    assert all(0 <= row["past/wins"] <= 1 for row in rows[1:])
    from rollenv.agents.local import LocalAgent

    LocalAgent.load(tmp_path / "run" / "past" / "000004")


def test_a_rival_is_another_model_with_checkpoints_of_its_own(tmp_path):
    import torch

    with start(tmp_path / "run", *KINDS["rival"]) as trainer:
        trainer.fit()
        own, rival = trainer.state.policy, trainer.opponents.rival.state.policy
        pairs = list(zip(own.model.parameters(), rival.model.parameters(), strict=True))
        assert not any(a is b for a, b in pairs)
        assert any(not torch.equal(a, b) for a, b in pairs)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(row["rival/grad_norm"] > 0 for row in rows[1:])
    assert (tmp_path / "run" / "rival" / "checkpoints" / "step-000004").is_dir()


def test_adapters_of_both_learners_are_on_one_base_model(tmp_path):
    import torch

    with start(tmp_path / "run", *KINDS["adapters"]) as trainer:
        trainer.fit()
        own, rival = (dict(s.policy.model.named_parameters()) for s in (trainer.state, trainer.opponents.rival.state))
        shared = {name for name in own if own[name].data_ptr() == rival[name].data_ptr()}
        assert shared == {name for name in own if ".lora_" not in name}
        assert not any(torch.equal(own[name], rival[name]) for name in own.keys() - shared)


def test_role_baselines_telescope():
    rng = np.random.default_rng(0)
    rewards, roles = rng.normal(1.0, 2.0, 500), [f"seat {i % 2}" for i in range(500)]
    kept = {"seat 0": 0.25}
    before = dict(kept)
    found = advantages.role_baseline(rewards, roles, kept, decay=0.95)
    for seat in ("seat 0", "seat 1"):
        of_role = sum(a for a, role in zip(found, roles, strict=True) if role == seat)
        assert abs(of_role - (kept[seat] - before.get(seat, 0.0)) / 0.05) < 1e-9


@pytest.mark.parametrize("wrong", [
    ["seats.others=nobody"], ["seats.others=self", "batches.kind=early"], ["seats.others=self", "rollout.shards=1"],
    ["seats.others=['self','self']"],
])  # fmt: skip
def test_wrong_seats_are_refused(wrong, tmp_path):
    with pytest.raises(UsageError):
        fit(tmp_path / "run", *wrong)
