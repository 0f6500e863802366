"""Mixtures of experts: the balance of routers, and training of a tiny Qwen3-MoE."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_runs import register
from rank_runs import settings as small

from rollenv import registry
from rollenv.core import UsageError
from rollenv.trainers.policies.routing import NAMES, balance
from rollenv.trainers.run_dir import RunDir, read_rows
from rollenv.trainers.trainer import Trainer

MOE = ["model.size.experts=4", "optimizer.old_logprobs=recomputed", "iterations=2", "kl.name=loss"]


@pytest.fixture(autouse=True)
def _words(monkeypatch):
    registry.list_envs()
    monkeypatch.setattr(registry, "ENV_REGISTRY", dict(registry.ENV_REGISTRY))
    register()


def numbers(*layers, chosen):
    return dict(zip(NAMES, balance(layers, chosen).tolist(), strict=True))


@settings(deadline=None, max_examples=40)
@given(experts=st.integers(2, 8), tokens=st.integers(1, 30), data=st.data())
def test_the_balance_is_one_where_routers_are_even_and_most_where_all_go_one_way(experts, tokens, data):
    chosen = data.draw(st.integers(1, experts))
    turning = torch.stack([torch.arange(experts).roll(n).float() * 9 for n in range(experts)])
    assert numbers(turning, chosen=chosen)["router/balance"] == pytest.approx(1, abs=1e-5)
    assert numbers(turning, chosen=chosen)["router/largest_load"] == pytest.approx(1)
    one_way = torch.zeros(tokens, experts)
    one_way[:, :chosen] = 60.0
    found = numbers(one_way, one_way, chosen=chosen)
    assert found["router/balance"] == pytest.approx(experts / chosen)
    assert found["router/largest_load"] == pytest.approx(experts / chosen)
    assert found["router/idle_experts"] == pytest.approx(1 - chosen / experts)
    any_way = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(tokens))
    assert numbers(any_way, chosen=chosen)["router/balance"] <= experts / chosen + 1e-5


def test_steps_along_its_gradient_make_routers_even():
    torch.manual_seed(0)
    states, gate = torch.randn(200, 8) + 1, torch.nn.Linear(8, 6, bias=False)
    adam = torch.optim.Adam(gate.parameters(), lr=0.01)
    before = balance([gate(states)], 2)
    for _ in range(200):
        adam.zero_grad()
        balance([gate(states)], 2)[0].backward()
        adam.step()
    after = balance([gate(states)], 2)
    assert after[0] < before[0]
    assert after[1] < before[1], "the fullest expert has less"


@pytest.mark.integration
def test_a_mixture_of_experts_trains_as_it_plays_and_tells_of_its_routers(tmp_path):
    rows = {}
    for router in (0.0, 0.5):
        config = small(*MOE, f"loss.router={router}", f"run_dir={tmp_path / str(router)}")
        with Trainer(config, RunDir.create(config, "sokoban")) as run:
            run.fit()
        rows[router] = read_rows(tmp_path / str(router) / "metrics.jsonl")
    for row in [*rows[0.0][1:], *rows[0.5][1:]]:
        assert row["drift"] == 0
        assert row["logprob_drift_max"] < 1e-4, "engine and trainer agree on every token"
        assert 1 - 1e-5 <= row["router/largest_load"] <= 2
        assert 0 <= row["router/idle_experts"] < 1
        assert row["router/entropy"] > 0
    assert rows[0.0][-1]["grad_norm"] != rows[0.5][-1]["grad_norm"]


def test_a_balance_of_routers_that_are_not_there_is_refused(tmp_path):
    config = small("loss.router=0.1", "model.warm_up.steps=0", f"run_dir={tmp_path / 'run'}")
    with pytest.raises(UsageError, match="the model has no routers"):
        Trainer(config, RunDir.create(config, "sokoban"))
