"""Ranks that train together come to what one process comes to."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import os
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from rank_runs import Together, settings
from tiny_runs import numbers
from torch.distributed import checkpoint as dcp

from rollenv import MissingExtra, UsageError
from rollenv.agents.local import LocalAgent
from rollenv.rollout.manager import RolloutManager
from rollenv.trainers import checkpoint
from rollenv.trainers.checkpoint import CheckpointError
from rollenv.trainers.experience import experience, shares
from rollenv.trainers.ranks import ALONE, RankLost, Ranks
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.trainer import Trainer
from rollenv.trainers.training_state import begin, restore
from rollenv.trainers.updater import Updater
from rollenv.trainers.worker_rank import run_worker_rank

CASES = {
    "grpo": ["optimizer.epochs=2"],
    "gigpo and a reference": ["algorithm.name=gigpo", "kl.name=loss", "optimizer.old_logprobs=recomputed"],
    "a critic model": ["algorithm.name=ppo", "algorithm.critic.lr=1e-3", "kl.name=reward", "kl.target=0.01"],
    "a critic head": ["algorithm.name=ppo", "algorithm.critic.lr=1e-3", "algorithm.critic.kind=head"],
    "siblings": ["distill.name=sibling", "distill.decay=0.5", "rollout.samples=trajectory",
      "optimizer.micro_batch_tokens=1000", "model.warm_up.steps=200", "model.warm_up.noise=0.3",
      "model.warm_up.lr=1e-2", "rollout.group_size=6"],
    "adapters and their reference": ["model.lora.rank=2", "model.lora.alpha=8.0", "kl.name=loss"],
    "adapters of experts": ["model.size.experts=4", "model.lora.rank=2"],
    "one group": ["rollout.groups_per_batch=1", "rollout.group_size=2", "model.gradient_checkpointing=true"],
    "each micro-batch": ["placement.ranks=2", "placement.gradients=micro_batch", "algorithm.name=empg"],
}  # fmt: skip


def quiet(*_):
    pass


def learned(ranks: Ranks, overrides: list[str], updates: int = 4):
    """Weights and metrics after some updates with what the first model plays; nothing on the other ranks."""
    config, run = settings(*overrides), RunDir(Path("nowhere"))
    if not ranks.first:
        return run_worker_rank(config, run, ranks)
    parts = restore(config, run, {}, quiet, ranks) or begin(config, {}, quiet, ranks)
    learner, rows = Updater(config, parts, run), []
    with RolloutManager(parts.player) as manager:
        batches = [
            manager.batch(parts.source, config.rollout.groups_per_batch, config.rollout.group_size)
            for _ in range(updates)
        ]
    for groups in batches:
        rows.append({})
        rows[-1] |= learner.update(learner.compute_advantages(groups, rows[-1]))
        parts.iteration += 1
    weights = {name: weight.clone() for name, weight in parts.policy.named_weights()}
    ranks.send_command("end")
    return weights, rows


def learned_all(ranks: Ranks, names: list[str]):
    return {name: learned(ranks, CASES[name]) for name in names}


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def smooth(row: dict[str, float]):
    """Without what jumps when a value moves by its rounding."""
    return {name: value for name, value in row.items() if name != "value_clipped"}


def assert_equals_one_process(name: str, found):
    overrides = [o for o in CASES[name] if not o.startswith("placement")]
    weights, rows = learned(ALONE, overrides)
    theirs, their_rows = found
    assert weights.keys() == theirs.keys()
    for key, weight in weights.items():
        if key.endswith("k_proj.bias"):  # it shifts all scores alike: its gradient is rounding, which Adam makes a step
            continue
        message = partial("{} {}: {}".format, name, key)
        torch.testing.assert_close(theirs[key], weight, atol=1e-5, rtol=1e-5, msg=message)
    for row, other in zip(rows, their_rows, strict=True):
        assert smooth(row) == pytest.approx(smooth(other), rel=1e-3, abs=1e-5)
    return sum(row["optimizer_steps"] for row in rows)


@pytest.mark.smoke
@pytest.mark.integration
@pytest.mark.parametrize("name", ["grpo", "adapters of experts"])
def test_two_ranks_equal_one_process(tmp_path, name):
    found = Together(2, tmp_path, learned_all, [name]).end()[0]
    assert assert_equals_one_process(name, found[name]) >= 16


@pytest.mark.integration
def test_ranks_equal_one_process_whatever_they_train(tmp_path):
    names = [name for name in CASES if name != "grpo"]
    found = Together(3, tmp_path, learned_all, names).end()[0]
    for name in names:
        assert assert_equals_one_process(name, found[name]) >= 1
    assert all(row["taught"] for row in found["siblings"][1])


@pytest.mark.integration
def test_half_precision_learns_nearly_the_same_on_two_ranks(tmp_path):
    """Of the types that layers are rounded to; float16 finds its scale alike on all ranks."""
    names = ["model.precision=float32", "model.precision=bfloat16", "model.precision=float16"]
    found = Together(2, tmp_path, learned_with, names).end()[0]
    (exact, _), *rounded = found
    for weights, rows in rounded:
        assert all(math.isfinite(v) for row in rows for v in row.values())
        assert sum(row["optimizer_steps"] for row in rows) >= 4
        for name, weight in weights.items():
            assert weight.dtype == torch.float32
            torch.testing.assert_close(weight, exact[name], atol=0.02, rtol=0)
            assert not torch.equal(weight, exact[name]) or name.endswith("bias")


def learned_with(ranks: Ranks, settings_of_each: list[str]):
    return [learned(ranks, [setting]) for setting in settings_of_each]


def test_shares_are_even_and_whole_and_equal_inputs_stay_together():
    config = settings("rollout.groups_per_batch=6")
    parts = begin(config, {}, quiet)
    with RolloutManager(parts.player) as manager:
        data = experience(manager.batch(parts.source, 6, 4), "turn")
    for count in range(1, 7):
        for step in (range(len(data.samples)), [3, 1, 7], [5], []):
            found = shares(data, step, count, share=True)
            assert len(found) == count
            assert sorted(i for each in found for i in each) == sorted(step)
            owners = {data.keys[i]: {n for n, each in enumerate(found) if i in each} for i in step}
            assert len(step) < 9 or max(map(len, owners.values())) == 1
            read = [sum(len(k) for k in {data.keys[i] for i in each}) for each in found]
            assert max(read) - min(read) <= sum(read) / count + max(map(len, data.keys))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["placement.ranks=2", "model.sync=in_place"], "model.sync"),
        (["placement.ranks=2", "placement.min_ranks=3"], "placement.min_ranks"),
        (["placement.ranks=2", "placement.backend=nccl", "placement.devices=cpu"], "use gloo"),
        (["placement.max_failures=2"], "placement.max_failures"),
        (["placement.address=local", "placement.gradients=micro_batch"], "placement.ranks"),
        (["placement.ranks=0"], "placement.ranks"),
        (["rollout.shards=-1"], "rollout.shards"),
        (["rollout.shard_losses=1"], "rollout.shard_losses"),
        (["rollout.shard_options={num_cpus=2}"], "rollout.shard_options"),
        *(
            ([*whose, f"{key}={{{option}}}"], said)
            for whose, key in ((["rollout.shards=2"], "rollout.shard_options"),)
            for option, said in (
                ("num_cpus=nan", "num_cpus"),
                ("num_gpus=inf", "num_gpus"),
                ("num_gpus='all'", "num_gpus"),
                ("memory=-1", "memory"),
                ("num_cpus=true", "num_cpus"),
                ("resources=3", "resources"),
                ("resources={ fast='yes' }", "fast"),
                ("name='mine'", "name"),
                ("max_restarts=3", "max_restarts"),
            )
        ),
        (["rollout.shards=2", "rollout.processes=2"], "rollout.processes"),
        (["rollout.shards=2", "rollout.workers=ray:2"], "rollout.workers cannot be actors of their own"),
        (["rollout.shards=2", "player.kind=vllm", "player.sleep=1"], "leave out player.url"),
        (["rollout.shards=2", "rewards.domains=[{name='format', pattern='a', domain='test'}]"], "rewards.domains"),
    ],
)
def test_placements_that_cannot_be_are_errors(given, said):
    with pytest.raises(UsageError, match=said):
        settings(*given)


def test_a_machine_takes_so_many_ranks_only(tmp_path):
    pytest.importorskip("ray.train")
    from rollenv.trainers.launch import train_on_ranks

    config = settings("placement.ranks=5000", "placement.address=local")
    with pytest.raises(UsageError, match="machine"):
        train_on_ranks(config, RunDir(tmp_path), lambda *_: None)


@pytest.mark.parametrize("address", ["nowhere.invalid:1", "127.0.0.1:9", "127.0.0.1:99999", "[::1]:9", "http://x", "?"])
def test_a_cluster_that_is_nowhere_is_one_line_at_once(address):
    pytest.importorskip("ray")
    from rollenv.rollout.ray_calls import connected

    with pytest.raises(UsageError, match="Ray cluster") as said, connected(address):
        pass
    assert "\n" not in str(said.value)


def test_without_ray_train_the_command_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "rollenv.trainers.launch", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"rollenv\[ray\]"):
        importlib.import_module("rollenv.trainers.launch")


# -- whole runs --------------------------------------------------------------------------------------------------------


def trained(ranks: Ranks, path: Path, *overrides: str, die=(-1, "update", -1)):
    """Train or go on; the first rank returns what was logged.

    Rank ``die[0]`` dies in the update or save of number ``die[2]``.
    """
    given = settings("checkpoint_every=1", "placement.ranks=2", f"run_dir={path}", *overrides)
    if ranks.first and not path.exists():
        RunDir.create(given, "sokoban")
    ranks.gather(None)
    run, started = RunDir.resume(path) if ranks.first else (RunDir(path), given)  # which locks the folder
    config = run.extend(started, given) if ranks.first else given
    dying, place, number = die
    calls, (owner, name) = itertools.count(1), {"update": (Updater, "_optimizer_step"), "save": (dcp, "save")}[place]
    real = getattr(owner, name)

    def fatal(*args, **kwargs):
        if ranks.number == dying and next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)

    setattr(owner, name, fatal)
    try:
        if not ranks.first:
            return run_worker_rank(config, run, ranks)
        with Trainer(config, run, ranks=ranks) as trainer:
            trainer.fit()
            weights = {name: weight.clone() for name, weight in trainer.state.policy.named_weights()}
            return weights, numbers(path)
    finally:
        setattr(owner, name, real)


PPO = ["algorithm.name=ppo", "algorithm.critic.lr=1e-3", "rewards.mean=running", "kl.name=reward", "kl.target=0.01"]


@pytest.mark.integration
@pytest.mark.parametrize(("dying", "place", "number"), [(0, "update", 12), (1, "save", 2)])
def test_a_rank_that_dies_ends_all_and_they_go_on_to_the_same_numbers(tmp_path, dying, place, number):
    fatal = partial(trained, die=(dying, place, number))
    whole = Together(2, tmp_path / "1", trained, tmp_path / "whole", "iterations=3", *PPO)
    ended = Together(2, tmp_path / "2", fatal, tmp_path / "run", "iterations=3", *PPO)
    expected, left = whole.end()[0], ended.end()
    assert list(left) == [1 - dying]
    assert isinstance(left[1 - dying], RankLost if place == "save" else RuntimeError | RankLost)
    saved = checkpoint.checkpoints(tmp_path / "run" / "checkpoints")
    assert 1 <= len(saved) < 3
    weights, rows = Together(2, tmp_path / "3", trained, tmp_path / "run", "iterations=3", *PPO).end()[0]
    assert rows == expected[1]
    assert all(torch.equal(weights[name], weight) for name, weight in expected[0].items())


@pytest.mark.integration
def test_a_checkpoint_of_two_ranks_goes_on_with_any_number(tmp_path):
    begun = Together(2, tmp_path / "2", trained, tmp_path / "run", "iterations=2", *PPO).end()[0]
    paths = {count: tmp_path / f"run{count}" for count in (1, 2, 4)}
    for path in paths.values():
        shutil.copytree(tmp_path / "run", path)
    found = {n: Together(n, tmp_path / f"on{n}", trained, paths[n], "iterations=3", *PPO).end()[0] for n in (2, 4)}
    found[1] = trained(ALONE, paths[1], "iterations=3", "placement.ranks=1", *PPO)
    for count, (weights, rows) in found.items():
        assert rows[:-1] == begun[1]
        assert smooth(rows[-1]) == pytest.approx(smooth(found[2][1][-1]), rel=1e-3, abs=1e-5), count
        for name, weight in weights.items():
            torch.testing.assert_close(weight, found[2][0][name], atol=1e-5, rtol=1e-5)
    again = Together(2, tmp_path / "back", trained, paths[1], "iterations=4", *PPO).end()[0]
    assert len(again[1]) == 5, "what one process wrote, two go on with"


@pytest.mark.integration
def test_a_checkpoint_of_two_ranks_has_all_that_training_goes_on_with(tmp_path):
    """Loaded by one process, it is bit for bit what the ranks had; its model is a whole Hugging Face model."""
    weights, _ = Together(2, tmp_path / "2", trained, tmp_path / "run", "iterations=1").end()[0]
    (folder,) = checkpoint.checkpoints(tmp_path / "run" / "checkpoints")
    agent = LocalAgent.load(folder)
    config = settings("checkpoint_every=1")
    parts = restore(config, RunDir(tmp_path / "run"), {}, quiet)
    for name, weight in weights.items():
        assert torch.equal(agent.model.state_dict()[name], weight)
        assert torch.equal(dict(parts.policy.named_weights())[name], weight)
    moments = [t for name, t in parts.policy.tensors().items() if not name.startswith("weight/")]
    assert all(t.abs().sum() > 0 for t in moments)
    victim = next((folder / "shards").glob("__1*"))
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"shards/__1_0\.distcp"):
        restore(config, RunDir(tmp_path / "run"), {}, quiet)


@pytest.mark.integration
def test_two_ranks_store_the_tokens_that_one_process_does(tmp_path):
    how = ["iterations=1", "report.tokens=5"]
    trained(ALONE, tmp_path / "alone", *how, "placement.ranks=1")
    Together(2, tmp_path / "meet", trained, tmp_path / "both", *how).end()
    alone, both = (
        [json.loads(line) for line in (tmp_path / name / "updates.jsonl").read_text().splitlines()]
        for name in ("alone", "both")
    )
    assert len(alone) == len(both) > 0
    for a, b in zip(alone, both, strict=True):
        assert (a["iteration"], a["member"], a["turns"][0]["response_ids"]) == (
            b["iteration"], b["member"], b["turns"][0]["response_ids"],
        )  # fmt: skip
        for x, y in zip(a["update"]["turns"], b["update"]["turns"], strict=True):
            assert (x["why"], x["steps"]) == (y["why"], y["steps"])
            for name in ("logprobs", "entropy"):
                numbers = (x[name], y[name]) if isinstance(x[name], list) else ([x[name]], [y[name]])
                assert numbers[0] == pytest.approx(numbers[1], abs=1e-4)
