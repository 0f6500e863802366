"""The state in a checkpoint: versions, optimizers, and those of another model."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_runs import SIZE, policy_of, trained

from rollenv.agents.local import LocalAgent
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.trainers import checkpoint
from rollenv.trainers.policies.local import LocalPolicy


def test_a_checkpoint_from_a_gpu_loads_without_one(tmp_path, monkeypatch):
    tokenizer = build_tokenizer(["up down"], 300)
    agent = LocalAgent(build_model(SIZE, tokenizer, 0), tokenizer)
    agent.version = 7
    policy = trained(torch.bfloat16, steps=1)[2]
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")  # as CUDA tensors are saved
    folder = checkpoint.save(tmp_path, 3, agent, {"policy": policy}, keep=1)
    monkeypatch.undo()
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="CUDA"):
            torch.load(folder / "optimizer.pt", weights_only=True)
    loaded, state, about = checkpoint.load(folder)
    assert (about["iteration"], loaded.version) == (3, 7)
    assert {m.device.type for m in state["policy"]["masters"].values()} == {"cpu"}


def manifest(folder):
    (folder / checkpoint.MANIFEST).unlink()
    checkpoint._write_manifest(folder)


def test_a_checkpoint_with_another_content_cannot_be_read(tmp_path):
    tokenizer = build_tokenizer(["up down"], 300)
    agent = LocalAgent(build_model(SIZE, tokenizer, 0), tokenizer)
    folder = checkpoint.save(tmp_path, 5, agent, {"policy": LocalPolicy(agent.model)}, keep=1)
    for name, text in (("trainer.json", "{}"), ("trainer.json", "[1]"), ("optimizer.pt", "no tensors")):
        (folder / name).write_text(text)
        manifest(folder)
        with pytest.raises(checkpoint.CheckpointError, match="read"):
            checkpoint.load(folder)


@pytest.mark.parametrize(
    "wrong", ["plain Adam", "no masters", "other size", "other type", "no optimizer", "other count"]
)
def test_an_optimizer_of_another_model_is_reported_and_changes_nothing(wrong):
    policy = trained(torch.bfloat16, lr=1e-2, steps=1)[2]
    state = copy.deepcopy(policy.state_dict())
    if wrong == "plain Adam":
        state = state["adam"]
    elif wrong == "no masters":
        state["masters"] = {}
    elif wrong == "other size":
        for moments in state["adam"]["state"].values():
            moments["exp_avg"] = torch.zeros(7)
    elif wrong == "no optimizer":
        del state["adam"]
    elif wrong == "other count":
        state["adam"]["param_groups"][0]["params"].pop()
        state["masters"] = {name: weight + 1 for name, weight in state["masters"].items()}
    else:
        state = policy_of(torch.float32, share=True)[1].state_dict()
    before = copy.deepcopy(policy.state_dict())
    with pytest.raises(ValueError, match=r"master|another model|parameter group"):
        policy.load_state_dict(state)
    after = policy.state_dict()
    assert all(torch.equal(before["masters"][name], weight) for name, weight in after["masters"].items())
    for number, moments in before["adam"]["state"].items():
        assert all(torch.equal(value, after["adam"]["state"][number][name]) for name, value in moments.items())
