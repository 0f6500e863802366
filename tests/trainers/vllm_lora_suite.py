"""Adapters are trained while vLLM plays: as adapters of its own, and merged into its weights.

Not collected by itself: ``test_vllm.py`` runs it in an interpreter that has vLLM.
"""

import asyncio
import copy
import random

import pytest
import rank_runs
import torch

from rollenv.agents.engines.base import Sampling
from rollenv.agents.engines.scoring import score
from rollenv.trainers.policies.lora import without
from rollenv.trainers.run_dir import RunDir, read_rows
from rollenv.trainers.trainer import Trainer

pytest.importorskip("peft")
OPTIONS = "player.options={dtype='float32',enforce_eager=true,max_model_len=128,max_num_seqs=16}"
SETTINGS = [
    "model.size.hidden=64", "model.size.intermediate=64", "player.kind=vllm", OPTIONS, "model.lora.rank=4",
    "optimizer.lr=5e-2", "optimizer.old_logprobs=recomputed", "checkpoint_every=1", "eval.every=1", "iterations=3",
]  # fmt: skip


def fit(way, folder, iterations=3, before=lambda trainer: None):
    """The trainer and the versions that played each batch and each evaluation."""
    config = rank_runs.settings(*SETTINGS, f"player.lora={way}", f"run_dir={folder}")
    run = RunDir(folder) if folder.exists() else RunDir.create(config, "sokoban")
    played = []
    with Trainer(config, run) as trainer:
        trainer.config.iterations = iterations
        trainer.run.keep_episodes = lambda iteration, episodes: played.append((iteration, versions(episodes)))
        judge = trainer.learner.compute_advantages
        trainer.learner.compute_advantages = lambda groups, metrics: (
            played.append(("batch", versions(t for group in groups for t in group))) or judge(groups, metrics)
        )
        before(trainer)
        trainer.fit()
        check_plays_the_policy(trainer, moved=True)
    return played


def versions(trajectories):
    return {v for t in trajectories for turn in t.turns for v in turn.versions or (turn.policy_version,)}


def check_plays_the_policy(trainer, moved):
    """The player draws with what the policy says, and whether that is far from the model without its adapter."""
    parts = trainer.state
    prompts = [tuple(random.Random(n).randrange(10, 90) for _ in range(n)) for n in (3, 40, 17)]

    async def draw():
        asked = (parts.player.engine.generate(p, Sampling(1.0, 12), random.Random(0)) for p in prompts)
        return await asyncio.gather(*asked)

    drawn = trainer.manager.run(draw())
    model = copy.deepcopy(parts.policy.model)
    model.set_attn_implementation("sdpa")
    for off in (False, True):
        with torch.no_grad(), without(model) if off else torch.enable_grad():
            scores = score(model, prompts, [tuple(r.ids) for r in drawn])
        says = [scores.logprobs[row][scores.mask[row].bool()].tolist() for row in range(len(drawn))]
        apart = max(abs(a - b) for r, s in zip(drawn, says, strict=True) for a, b in zip(r.logprobs, s, strict=True))
        assert (apart > 0.02) if off and moved else (apart < 1e-3)


@pytest.fixture(scope="module")
def seen():
    return {}


@pytest.mark.parametrize("way", ["adapter", "merged"])
def test_a_training_with_adapters_goes_on_where_it_ended(way, tmp_path, seen):
    first = fit(way, tmp_path / "run", iterations=2)
    assert first == [(0, {0}), ("batch", {0}), (1, {1}), ("batch", {1}), (2, {2})]
    again = fit(way, tmp_path / "run", before=lambda trainer: check_plays_the_policy(trainer, moved=True))
    assert again == [("batch", {2}), (3, {3})]
    rows = list(read_rows(tmp_path / "run" / "metrics.jsonl"))
    assert max(row["logprob_drift_max"] for row in rows if "logprob_drift_max" in row) < 1e-3
    rewards = [(row.get("reward"), row["eval/reward"]) for row in rows]
    assert len(rewards) == 4
    assert rewards == seen.setdefault("rewards", rewards), "both ways play the same"
