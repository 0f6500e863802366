"""The engine of an SGLang server, against a stub of its native endpoints."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
import torch
from sglang_stub import SGLangStub

from rollenv.agents.engines.base import EngineFailed, EngineLost, Sampling
from rollenv.agents.engines.vllm import VLLMEngine
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.core.errors import UsageError
from rollenv.plugins.engines.sglang_server import SGLangTransport
from rollenv.trainers.config import load_config
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.trainer import Trainer

SIZE = TinySize(hidden=32, layers=1, heads=2, intermediate=64, context=256)
PROMPT = (5, 6, 7, 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved model."""
    at = tmp_path_factory.mktemp("model")
    build_model(SIZE, build_tokenizer(["up down"], 300), 0).save_pretrained(at)
    return at


def engine_of(stub, folder, stop, **more):
    return VLLMEngine(SGLangTransport(stub.url, model=folder, **more), stop)


def model_of(seed):
    return build_model(SIZE, build_tokenizer(["up down"], 300), seed).eval()


def draw(engine, tokens=12, number=1, **sampling):
    return engine.generate(PROMPT, Sampling(1.0, tokens, **sampling), random.Random(number))


def logprobs(model, ids):
    with torch.no_grad():
        logits = model(torch.tensor([[*PROMPT, *ids]])).logits[0, len(PROMPT) - 1 : -1]
    return torch.log_softmax(logits.float(), -1)[range(len(ids)), ids].tolist()


@pytest.mark.parametrize("incremental", [True, False])
def test_tokens_and_their_logprobs_are_the_servers(folder, incremental):
    with SGLangStub(incremental) as stub:
        engine = engine_of(stub, folder, frozenset({2}))
        first = asyncio.run(draw(engine))
        assert (len(first.ids), first.finish) == (12, "length")
        assert first.logprobs == pytest.approx(logprobs(model_of(0), first.ids), abs=1e-5)
        again = engine_of(stub, folder, frozenset({first.ids[3]}))
        stopped = asyncio.run(draw(again))
        assert (stopped.ids, stopped.finish) == (first.ids[: first.ids.index(first.ids[3]) + 1], "stop")
        assert engine.max_context == 200


def test_a_response_goes_on_with_new_weights_and_says_from_where(folder):
    async def play(engine, stub):
        running = asyncio.ensure_future(draw(engine, tokens=60))
        await asyncio.to_thread(stub.drawn.wait)
        await engine.suspend()
        await engine.update_weights(model_of(1).named_parameters())
        await engine.resume()
        return await running

    with SGLangStub() as stub:
        engine = engine_of(stub, folder, frozenset())
        response = asyncio.run(play(engine, stub))
        start = response.versions.index(1)
        assert response.versions == [0] * start + [1] * (60 - start)
        assert 0 < start < 60
        expected = logprobs(model_of(1), response.ids)
        assert response.logprobs[start:] == pytest.approx(expected[start:], abs=1e-5)
        assert response.logprobs[:start] != pytest.approx(expected[:start], abs=1e-3)
        assert stub.version == "1"
        engine.close()


@pytest.mark.parametrize(
    ("how", "key"), [({"schema": '{"type": "object"}'}, "json_schema"), ({"grammar": 'root ::= "a"'}, "ebnf")]
)
def test_a_schema_or_a_grammar_is_sent(folder, how, key):
    with SGLangStub() as stub:
        asyncio.run(draw(engine_of(stub, folder, frozenset()), **how))
        (asked,) = [body for path, body in stub.asked if path == "/generate"]
    assert asked["sampling_params"][key] == next(iter(how.values()))


def test_what_it_cannot_do_is_refused(folder, tmp_path):
    with SGLangStub() as stub:
        engine = engine_of(stub, folder, frozenset())
        for narrow in ({"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}):
            with pytest.raises(UsageError, match="top_p"):
                asyncio.run(draw(engine, **narrow))
        with pytest.raises(UsageError, match=r"SGLang server at .* takes no pictures"):
            asyncio.run(engine.generate((5, 1 << 62 | 7), Sampling(), random.Random(0)))
        with pytest.raises(UsageError, match=r"player\.lora=merged"):
            engine.check_rank(4)
        with pytest.raises(UsageError, match="sleep"):
            engine.check_sleep()
        with pytest.raises(UsageError, match="load"):
            SGLangTransport(stub.url, model=tmp_path)
    with pytest.raises(UsageError, match=r"sglang\.launch_server"):
        SGLangTransport(stub.url, patience=0.1)


def test_a_server_that_aborts_or_goes_is_said(folder):
    with SGLangStub(finish="abort") as stub:
        engine = engine_of(stub, folder, frozenset(), patience=0.2)
        with pytest.raises(EngineFailed, match="'abort'") as failed:
            asyncio.run(draw(engine))
        assert len(failed.value.response.ids) == 1, "what was drawn is kept"
    with pytest.raises(EngineLost):
        asyncio.run(draw(engine))


@pytest.mark.integration
def test_a_recipe_trains_with_an_sglang_server(tmp_path):
    sizes = ["hidden=32", "layers=1", "heads=2", "intermediate=64"]
    small = [*(f"model.size.{size}" for size in sizes), "rollout.groups_per_batch=2", "rollout.group_size=2"]
    small += [
        "iterations=2",
        "model.warm_up.steps=5",
        "model.warm_up.episodes=20",
        "eval.every=9",
        "eval.episodes=4",
        "threads=1",
        "kl.name=loss",
    ]
    with SGLangStub(context=256) as stub:
        config = load_config(
            "sokoban", ["player.kind=sglang", f"player.url={stub.url}", f"run_dir={tmp_path}/run", *small]
        )
        run = RunDir.create(config, "sokoban")
        Trainer(config, run).fit()
        assert stub.version == "2"
    rows = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    assert all(row["drift"] == 0 for row in rows[1:])
    assert all(abs(row["ratio_ess"] - 1) < 1e-3 for row in rows[1:]), "it drew with the trainer's own weights"
