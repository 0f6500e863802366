"""Checkpoints are complete or absent, and a damaged one is noticed."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
import torch

from rollenv.agents.engines.base import Sampling
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.trainers import checkpoint
from rollenv.trainers.checkpoint import CheckpointError
from rollenv.trainers.policies.attention import PackedRow
from rollenv.trainers.policies.local import LocalPolicy

SIZE = TinySize(hidden=32, layers=1, heads=2, intermediate=64)
#: One sequence of two tokens, for a model that reads packed ones.
ALONE = {"packed_row": PackedRow.of(2)}


@pytest.fixture(scope="module")
def agent() -> LocalAgent:
    tokenizer = build_tokenizer(["up down left right"], SIZE.vocabulary)
    return LocalAgent(build_model(SIZE, tokenizer, 0), tokenizer, StepPrompt(chat=False), Sampling(1.0, 1))


@pytest.fixture
def states(agent) -> dict[str, LocalPolicy]:
    policy = LocalPolicy(agent.model)
    policy.backward(policy.model(input_ids=torch.tensor([agent.encode("up down")]), **ALONE).logits.sum())
    policy.step(1e-3)
    return {"policy": policy}


def test_what_was_saved_is_loaded(tmp_path, agent, states):
    folder = checkpoint.save(tmp_path, 7, agent, states, keep=2, more={"schedule": {"level": 2}})
    loaded, saved, about = checkpoint.load(folder)
    assert about == {"iteration": 7, "version": 0, "schedule": {"level": 2}}
    assert loaded.prompt == agent.prompt
    assert loaded.sampling == agent.sampling
    for name, weight in agent.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name].cpu(), weight)  # loaded to a GPU where there is one
    twin = LocalPolicy(build_model(SIZE, loaded.tokenizer, 1))
    twin.load_state_dict(saved["policy"])
    assert saved.keys() == {"policy"}
    for name, weight in states["policy"].weights.items():
        assert torch.equal(twin.weights[name], weight)
        for moment, value in states["policy"].adam.state[weight].items():
            assert torch.equal(twin.adam.state[twin.weights[name]][moment], value)


def test_only_the_last_ones_are_kept(tmp_path, agent, states):
    for iteration in (1, 2, 10):
        checkpoint.save(tmp_path, iteration, agent, states, keep=2)
    assert [p.name for p in checkpoint.checkpoints(tmp_path)] == ["step-000002", "step-000010"]


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize(
    "file", ["model.safetensors", "optimizer.pt", "config.json", "MANIFEST.json", "tokenizer.json"]
)
@pytest.mark.parametrize("damage", ["cut", "gone", "flipped"])
def test_damage_is_noticed_and_the_way_out_is_said(tmp_path, agent, states, file, damage):
    checkpoint.save(tmp_path, 1, agent, states, keep=2)
    folder = checkpoint.save(tmp_path, 2, agent, states, keep=2)
    path, data = folder / file, (folder / file).read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        path.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
    with pytest.raises(CheckpointError, match=r"step-000002.*step-000001") as caught:
        checkpoint.load(folder)
    assert file in str(caught.value)
    shutil.rmtree(folder)
    checkpoint.load(checkpoint.checkpoints(tmp_path)[-1])


@pytest.mark.parametrize("manifest", ["[]", "3", '{"config.json": 1}', '{"config.json": {"bytes": 2}}'])
def test_a_manifest_of_another_kind_is_damage(tmp_path, manifest):
    (tmp_path / "MANIFEST.json").write_text(manifest)
    with pytest.raises(CheckpointError, match=r"MANIFEST\.json"):
        checkpoint.load(tmp_path)


def test_folders_that_a_user_set_aside_are_left_alone(tmp_path, agent, states):
    own = [checkpoint.save(tmp_path, iteration, agent, states, keep=2) for iteration in (1, 2)]
    for name in ("step-000001-best", "step-best"):
        shutil.copytree(own[0], tmp_path / name)
    newest = checkpoint.save(tmp_path, 3, agent, states, keep=2)
    assert checkpoint.checkpoints(tmp_path) == [own[1], newest]
    assert {p.name for p in tmp_path.iterdir()} == {own[1].name, newest.name, "step-000001-best", "step-best"}


def test_what_a_kill_left_half_written_is_not_a_checkpoint(tmp_path, agent, states):
    checkpoint.save(tmp_path, 1, agent, states, keep=2)
    shutil.copytree(tmp_path / "step-000001", tmp_path / "partial-step-000002")
    assert [p.name for p in checkpoint.checkpoints(tmp_path)] == ["step-000001"]
    checkpoint.save(tmp_path, 2, agent, states, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000001", "step-000002"]


def test_a_full_disk_leaves_the_last_good_one(tmp_path, agent, states):
    mounted = os.geteuid() == 0 and (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(tmp_path)], capture_output=True).returncode
        == 0
    )
    if not mounted:
        pytest.skip("only root may mount the small file system that this test fills")
    try:
        good = checkpoint.save(tmp_path, 1, agent, states, keep=2)
        filler = tmp_path / "filler"
        free = shutil.disk_usage(tmp_path).free
        filler.write_bytes(b"x" * (free - 60_000))
        with pytest.raises(CheckpointError, match=rf"step-000002.*{good}.*--resume"):
            checkpoint.save(tmp_path, 2, agent, states, keep=2)
        assert [p.name for p in sorted(tmp_path.iterdir())] == ["filler", "step-000001"]
        assert checkpoint.load(good)[2]["iteration"] == 1
        filler.unlink()
        checkpoint.save(tmp_path, 2, agent, states, keep=2)
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
