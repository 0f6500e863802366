"""AdamW with moments of 8 bits, and in main memory."""

from __future__ import annotations

import copy
import sys

import pytest
import torch

from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.core.errors import MissingExtra, UsageError
from rollenv.trainers.config import load_config
from rollenv.trainers.memory import Shape, update_memory
from rollenv.trainers.policies.local import LocalPolicy


def policy(**how):
    tokenizer = build_tokenizer(["up down left right"], 280)
    model = build_model(TinySize(hidden=64, layers=1, heads=2, intermediate=64), tokenizer, 1)
    return LocalPolicy(model, weight_decay=0.1, max_grad_norm=1e9, **how)


def steps(trained, count):
    for number in range(count):
        random = torch.Generator().manual_seed(number)
        for weight in trained.weights.values():
            weight.grad = torch.randn(weight.shape, generator=random)
        trained.step(1e-2)
    return {name: weight.detach().clone() for name, weight in trained.weights.items()}


KINDS = [
    {"offload": True},
    pytest.param({"optimizer": "adamw8bit"}, id="8bit"),
    pytest.param({"optimizer": "adamw8bit", "offload": True}, id="8bit-offload"),
]


@pytest.mark.parametrize("how", KINDS)
def test_steps_are_those_of_adamw_and_go_on_from_a_saved_state(how):
    eight = how.get("optimizer") == "adamw8bit"
    if eight:
        pytest.importorskip("bitsandbytes")
    plain, own, later = policy(), policy(**how), policy(**how)
    start, expected, found = steps(plain, 0), steps(plain, 3), steps(own, 3)
    for name, weight in expected.items():
        moved = (weight - start[name]).norm()
        assert (found[name] - weight).norm() <= (0.1 if eight else 1e-6) * moved
    later.load_state_dict(copy.deepcopy(own.state_dict()))
    assert all(torch.equal(a, b) for a, b in zip(steps(own, 2).values(), steps(later, 2).values(), strict=True))


def test_eight_bits_are_eight_bits():
    pytest.importorskip("bitsandbytes")
    trained = policy(optimizer="adamw8bit")
    steps(trained, 1)
    types = {tensor.dtype for state in trained.adam.state.values() for n, tensor in state.items() if n == "state1"}
    assert torch.uint8 in types


def test_without_the_library_eight_bits_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(MissingExtra, match="pip install bitsandbytes"):
        policy(optimizer="adamw8bit")


@pytest.mark.parametrize(
    "keys",
    [
        ["optimizer.offload=true", "model.precision=float16"],
        ["optimizer.offload=true", "placement.ranks=2"],
        ["optimizer.kind=adamw8bit", "placement.ranks=2"],
    ],
)
def test_what_cannot_work_together_is_refused(keys):
    with pytest.raises(UsageError, match=r"optimizer\.offload"):
        load_config("sokoban", keys)


def test_the_plan_counts_the_moments():
    shape = Shape(1_000_000, 2, 64, 128, 64, 64, 1000)
    found = {}
    for keys in ((), ("optimizer.kind=adamw8bit",), ("optimizer.offload=true",)):
        found[keys] = update_memory(shape, load_config("sokoban", keys), 100)["Adam's two moments"]
    assert list(found.values()) == [8_000_000, 2_031_250, 0]


def test_the_plan_counts_no_model_that_an_actor_has():
    keys = ["kl.name=loss", "distill.name=teacher", "distill.path=a/b"]
    roles = ["placement.roles.reference.actors=1", "placement.roles.teacher.actors=1"]
    shape = Shape(1_000_000, 2, 64, 128, 64, 64, 1000)
    found = (update_memory(shape, load_config("sokoban", more), 100, teacher=9) for more in (keys, [*keys, *roles]))
    assert [(each["the reference in float32"], each["the teacher in float32"]) for each in found] == [
        (4_000_000, 36),
        (0, 0),
    ]
