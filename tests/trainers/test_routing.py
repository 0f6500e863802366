"""Mixtures of experts: the balance of routers, and training of a tiny Qwen3-MoE."""

from __future__ import annotations

import asyncio
import copy
import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rank_runs import settings as small
from transformers import AutoModelForCausalLM, Qwen2Config

from rollenv.agents.engines.adapters import saved_weights
from rollenv.agents.engines.base import Sampling, read_routes, room_for, write_routes
from rollenv.agents.engines.local import LocalEngine
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.core.errors import UsageError
from rollenv.rollout.records.samples import trajectory_samples
from rollenv.rollout.types import Group, Task, Trajectory, Turn
from rollenv.trainers.batches import as_saved
from rollenv.trainers.config import load_config
from rollenv.trainers.experience import experience
from rollenv.trainers.policies.local import LocalPolicy
from rollenv.trainers.policies.packed import pack
from rollenv.trainers.policies.routing import NAMES, balance, loads
from rollenv.trainers.preflight import preflight
from rollenv.trainers.run_dir import RunDir, read_rows
from rollenv.trainers.trainer import Trainer

MOE = ["model.size.experts=4", "optimizer.old_logprobs=recomputed", "iterations=2", "kl.name=loss"]


def numbers(*layers, chosen):
    return dict(zip(NAMES, balance(loads(layers, chosen), chosen).tolist(), strict=True))


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
    before = balance(loads([gate(states)], 2), 2)
    for _ in range(200):
        adam.zero_grad()
        balance(loads([gate(states)], 2), 2)[0].backward()
        adam.step()
    after = balance(loads([gate(states)], 2), 2)
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


@pytest.mark.integration
def test_with_replay_the_ratio_of_the_first_step_is_one(tmp_path):
    one_step = ["loss.routing=replay", "optimizer.minibatch_sequences=1000", f"run_dir={tmp_path / 'run'}"]
    config = small(*MOE, *one_step)
    with Trainer(config, RunDir.create(config, "sokoban")) as run:
        run.fit()
    for row in read_rows(tmp_path / "run" / "metrics.jsonl")[1:]:
        assert row["drift"] == 0
        assert row["logprob_drift_max"] < 1e-4
        assert row["ratio"] == pytest.approx(1, abs=1e-4)


def tied(experts=6):
    """A model, and one whose routers differ by a hair, which makes them choose other experts."""
    tokenizer = build_tokenizer(["up down left right"], 280)
    model = build_model(TinySize(hidden=32, layers=2, heads=2, intermediate=32, experts=experts), tokenizer, 1)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight[:] = layer.mlp.gate.weight[0]
    other = copy.deepcopy(model)
    with torch.no_grad():
        for layer in other.model.layers:
            layer.mlp.gate.weight += torch.arange(experts)[:, None] * 1e-5 * layer.mlp.gate.weight.sign()
            layer.mlp.gate.weight += 1e-6 * torch.randn(layer.mlp.gate.weight.shape)
    return model, other


def test_a_copy_in_another_process_tells_of_its_routers_too():
    model = tied()[1]
    groups = drawn_turns(model, [(3, 1, 4, 1, 5), (9, 2, 6)], 6)
    data = experience(groups, "turn")
    policy = LocalPolicy(model)
    batch = pack(data, range(2), share=policy.packs)
    expected = policy.logprobs(batch).router
    assert expected[0].sum() > 0
    policy.scorer = pickle.loads(pickle.dumps(policy.scorer))  # as ranks get it, after forward passes
    torch.testing.assert_close(policy.logprobs(batch).router, expected)


@pytest.mark.parametrize("pieces", [[range(6)], [[0, 1], [2, 3, 4, 5]], [[5], [0, 3], [1, 2, 4]]])
@pytest.mark.parametrize("share", [True, False])
def test_loads_do_not_depend_on_micro_batches_and_shared_prefixes(pieces, share):
    model = tied()[1]
    data = experience(drawn_turns(model, [(3, 1, 4, 1, 5), (3, 1, 4, 1, 6), (9, 2)] * 2, 6), "turn")
    policy = LocalPolicy(model)
    batches = [pack(data, piece, share=share) for piece in pieces]
    assert sum(int(batch.readers.sum()) for batch in batches) == sum(map(len, data.inputs))
    alone = [policy.logprobs(pack(data, [number])).router for number in range(6)]
    torch.testing.assert_close(sum(policy.logprobs(batch).router for batch in batches), sum(alone))


def drawn_turns(model, prompts, tokens):
    engine = LocalEngine(model, frozenset({1}), max_batch_tokens=200)
    sampling = Sampling(1.0, tokens, routes=True)

    async def all_of_them():
        asked = (engine.generate(p, sampling, random.Random(i)) for i, p in enumerate(prompts))
        return await asyncio.gather(*asked)

    for _ in range(2):  # the second time from what is kept
        answers = asyncio.run(all_of_them())
    turns = [
        Turn(p, tuple(a.ids), tuple(a.logprobs), 0.0, "", "", routes=a.routes)
        for p, a in zip(prompts, answers, strict=True)
    ]
    task = Task("game:X", 0)
    return [Group(task, [Trajectory(task, [turn], "terminated") for turn in turns])]


@pytest.mark.parametrize(("tokens", "checkpointing"), [(1, False), (7, False), (7, True)])
def test_replayed_experts_give_the_probabilities_of_the_engine_though_routers_choose_others(tokens, checkpointing):
    model, other = tied()
    begun = tuple(range(3, 40))
    prompts = [(*begun, n, *range(50, 50 + n)) for n in range(3, 15)] + [begun, (5,)]
    groups = drawn_turns(model, prompts, tokens)
    policy = LocalPolicy(other, gradient_checkpointing=checkpointing)
    away = {}
    for replay in (True, False):
        data = experience(groups, "turn", replay=replay)
        for share in (True, False):
            out = policy.logprobs(pack(data, range(len(data.samples)), share=share)).logprobs
            policy.backward(out.sum())
            away[replay, share] = float((out.detach() - torch.from_numpy(data.columns["behavior"])).abs().max())
    assert max(away[True, True], away[True, False]) < 1e-4
    assert min(away[False, True], away[False, False]) > 1e-3


def test_a_token_keeps_the_experts_of_the_weights_that_read_it_first():
    model, other = tied()
    engine = LocalEngine(model, frozenset())
    prompt = tuple(range(3, 20))

    async def with_new_weights_in_between():
        asked = asyncio.ensure_future(engine.generate(prompt, Sampling(1.0, 12, routes=True), random.Random(0)))
        while engine.stats.drawn < 5:
            await asyncio.sleep(0)
        before = engine._batch.routes(0, len(prompt))
        await engine.update_weights(other.named_parameters())
        return before, await asked

    before, response = asyncio.run(with_new_weights_in_between())
    routes = read_routes(response.routes, len(prompt) + len(response.ids) - 1)
    assert response.versions[0] < response.versions[-1]
    assert (routes[: len(prompt)] == before).all()
    assert (routes[-1] != before[0]).any(), "what was read later has the experts of the new weights"


def test_engines_elsewhere_refuse_to_tell_experts():
    with pytest.raises(UsageError, match="experts"):
        room_for((1, 2), Sampling(routes=True), 10, decodes=True)


def test_turns_are_replayed_by_the_experts_of_the_first_reading():
    first, second = np.array([[1, 2], [3, 4]]), np.array([[9, 9], [9, 9], [5, 6], [7, 8]])
    turns = [
        Turn((1, 2), (3,), (0.0,), 0.0, "", "", routes=write_routes(first)),
        Turn((1, 2, 3, 4), (5,), (0.0,), 0.0, "", "", routes=write_routes(second)),
    ]
    (sample,) = trajectory_samples(Trajectory(Task("game:X", 0), turns))
    assert sample.routes.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    turns[0].routes = ""
    trajectory = Trajectory(Task("game:X", 0), turns, "terminated")
    with pytest.raises(UsageError, match=r"loss\.routing=replay needs"):
        experience([Group(trajectory.task, [trajectory])], "trajectory", replay=True)


@pytest.mark.parametrize("keys", [["player.kind=vllm"], ["distill.name=sibling"]])
def test_replay_is_refused_where_experts_are_not_reported(keys):
    with pytest.raises(UsageError, match=r"loss\.routing"):
        small("loss.routing=replay", *keys)


@pytest.mark.parametrize("key", ["loss.routing=replay", "loss.router=0.1"])
def test_settings_of_routers_are_refused_without_routers(key, tmp_path):
    with pytest.raises(UsageError, match=r"model\.size\.experts"):
        small(key)
    dense = Qwen2Config(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    AutoModelForCausalLM.from_config(dense).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=key.split("=")[0]):
        preflight(load_config("sokoban", [key, f"model.path={tmp_path}"]))


def test_engines_of_other_projects_get_the_weights_of_a_checkpoint(tmp_path):
    """transformers joins the experts of a layer; a checkpoint has them one by one."""
    model = build_model(
        TinySize(hidden=32, layers=2, heads=2, intermediate=64, experts=4), build_tokenizer(["up"], 300), 0
    )
    model.save_pretrained(tmp_path)
    sent = dict(as_saved(model, model.state_dict().items()))
    saved = dict(saved_weights(tmp_path))
    assert sent.keys() - saved.keys() <= {"lm_head.weight"}  # tied to the embedding
    assert all(torch.equal(sent[name], weight) for name, weight in saved.items())
