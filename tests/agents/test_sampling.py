"""How tokens are drawn and where responses end: as transformers does it, whatever else is in the batch."""

import asyncio
import logging
import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    GptOssConfig,
    MinPLogitsWarper,
    RwkvConfig,
    RwkvForCausalLM,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from rollenv import UsageError
from rollenv.agents.engines.base import Sampling
from rollenv.agents.engines.local import LocalEngine, context_length
from rollenv.agents.engines.router import Router
from rollenv.agents.engines.sampling import distributions, draw
from rollenv.agents.engines.token_cache import Remembered
from rollenv.agents.local import LocalAgent
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize

TOKENIZER = build_tokenizer(["up down left right\n" * 9], 300)
SIZE = TinySize(hidden=32, layers=2, heads=2, intermediate=64, context=128)
PROMPT = tuple(range(20, 32))


@pytest.fixture
def model():
    return build_model(SIZE, TOKENIZER, 0).eval()


def ask(engine, sampling, seed=0, prompt=PROMPT):
    return asyncio.run(engine.generate(prompt, sampling, random.Random(seed)))


def test_equal_logits_are_kept_together_and_top_p_1_keeps_all():
    tied = distributions(torch.tensor([[1.0, 3.0, 1.0, 0.0]]), [Sampling(top_k=2)])
    assert tied.isfinite().tolist() == [[True, True, True, False]]
    steep = torch.linspace(0, 80, 1000)[None]
    assert distributions(steep, [Sampling(top_k=2000)]).isfinite().all()
    assert distributions(steep, [Sampling(min_p=1e-30)]).isfinite().sum() > 800


@given(
    seed=st.integers(0, 10**6),
    top_k=st.integers(0, 30),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
)
def test_narrowed_distributions_are_those_of_transformers(seed, top_k, top_p, min_p, temperature):
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(seed)) * 3
    expected = logits / temperature
    for used, warper in [
        (top_k, TopKLogitsWarper(top_k or 1)), (top_p < 1, TopPLogitsWarper(top_p)), (min_p, MinPLogitsWarper(min_p)),
    ]:  # fmt: skip
        expected = warper(None, expected) if used else expected
    sampling = Sampling(temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    plain = Sampling(1.0)
    found = distributions(torch.cat([logits, logits]), [sampling] * 3 + [plain] * 3)
    torch.testing.assert_close(found[:3], expected.log_softmax(-1))
    torch.testing.assert_close(found[3:], logits.log_softmax(-1))


@given(st.integers(0, 10**6), st.floats(0, 1))
def test_only_what_may_be_drawn_is_drawn(seed, uniform):
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(seed))
    sampling = [Sampling(1.0, top_k=3)]
    logprobs = distributions(logits, sampling)
    token = draw(logprobs, sampling, [uniform])
    assert token.item() in logits[0].topk(3).indices.tolist()


def test_a_narrowed_engine_draws_the_likeliest_alone(model):
    greedy = ask(LocalEngine(model, frozenset()), Sampling(0.0, 12))
    for sampling in (Sampling(1.0, 12, top_k=1), Sampling(1.0, 12, top_p=1e-6), Sampling(1.0, 12, min_p=1.0)):
        response = ask(LocalEngine(model, frozenset()), sampling)
        assert response.ids == greedy.ids
        assert response.logprobs == pytest.approx([0.0] * 12, abs=1e-6), "of the distribution it was drawn from"


@pytest.mark.parametrize(
    "wrong",
    [
        {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}, {"min_p": 2.0}, {"temperature": -1.0}, {"temperature": "1"},
        {"top_k": 1.5}, {"max_new_tokens": 1.5}, {"temperature": float("nan")}, {"stop": ("",)}, {"stop": (3,)},
    ],
)  # fmt: skip
def test_samplings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Sampling(**wrong)


def test_the_generation_configs_end_tokens_end_a_response(model):
    free = ask(LocalEngine(model, frozenset()), Sampling(0.0, 20)).ids
    for ends in (free[4], [299, free[4]]):
        model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=0)
        generated = model.generate(torch.tensor([PROMPT]), do_sample=False, max_new_tokens=20)[
            0, len(PROMPT) :
        ].tolist()
        response = ask(LocalEngine(model, frozenset()), Sampling(0.0, 20))
        assert response.ids == generated == free[: free.index(free[4]) + 1]
        assert response.finish == "stop"


def test_the_templates_end_token_ends_a_response(model):
    tokenizer = build_tokenizer(["up down left right\n" * 9], 300)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn|>"]})
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '<turn|>' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    agent = LocalAgent(build_model(SIZE, tokenizer, 0).eval(), tokenizer)
    assert tokenizer.convert_tokens_to_ids("<turn|>") in agent.engine.stop


def test_a_text_ends_a_response_with_the_token_that_completes_it(model):
    agent = LocalAgent(model, TOKENIZER)
    agent.engine.stop = frozenset()
    free = ask(agent.engine, Sampling(0.0, 30))
    text = TOKENIZER.decode(free.ids)
    stop = text[7:9]
    response = ask(agent.engine, Sampling(0.0, 30, stop=(stop, "never said")))
    assert response.finish == "stop"
    assert response.ids == free.ids[: len(response.ids)]
    assert stop in TOKENIZER.decode(response.ids)
    assert stop not in TOKENIZER.decode(response.ids[:-1])
    with pytest.raises(UsageError, match="decode="):
        ask(LocalEngine(model, frozenset()), Sampling(stop=("a",)))


@pytest.mark.parametrize("prompt", [list(PROMPT), range(20, 32), ["a"], "text", (1.5,), (True,), [[1]], None, (-1,)])
def test_a_prompt_that_is_no_tuple_hangs_nobody(model, prompt):
    right = isinstance(prompt, list | range) and set(map(type, prompt)) == {int}

    async def both(engine):
        asked = [
            engine.generate(p, Sampling(0.0, 4), random.Random(0), session=n) for n, p in ((0, PROMPT), (1, prompt))
        ]
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 30)

    for engine in (LocalEngine(model, frozenset()), Router([LocalEngine(model, frozenset())])):
        good, other = asyncio.run(both(engine))
        assert len(good.ids) == 4
        assert other.ids == good.ids if right else isinstance(other, UsageError)


@pytest.mark.parametrize(
    ("config", "window"),
    [(GptOssConfig(num_hidden_layers=2), 128), (Gemma3TextConfig(num_hidden_layers=2, sliding_window=512), 512)],
    ids=["gpt-oss", "gemma"],
)
def test_a_window_that_caps_the_context_is_said_with_what_to_do(config, window, caplog):
    with caplog.at_level(logging.WARNING):
        assert context_length(config) == window
    for word in (str(window), "sliding_window", "VLLMAgent"):
        assert word in caplog.text


@pytest.mark.parametrize(
    "model",
    [
        lambda: BloomForCausalLM(BloomConfig(vocab_size=99, hidden_size=16, n_layer=1, n_head=2)),
        lambda: RwkvForCausalLM(RwkvConfig(vocab_size=99, hidden_size=16, num_hidden_layers=2)),
    ],
    ids=["bloom", "rwkv"],
)
def test_models_that_the_engine_cannot_run_are_refused_by_name(model):
    with pytest.raises(UsageError, match=r"'(bloom|rwkv)'.*vLLM"):
        LocalEngine(model(), frozenset())


@given(st.lists(st.text(max_size=200), max_size=60), st.integers(500, 5000))
def test_what_is_remembered_is_right_and_within_its_bytes(texts, bound):
    remembered = Remembered(lambda text: tuple(map(ord, text)), bound)
    for text in texts:
        assert remembered(text) == tuple(map(ord, text))
        assert remembered.bytes <= bound


def test_a_replica_that_failed_rests_and_is_taken_back(model, caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("rollenv.agents.engines.router.time", SimpleNamespace(monotonic=lambda: now[0]))
    fails = {"now": True}

    def maybe(*_):
        if fails["now"]:
            raise RuntimeError("the device is gone")

    other = build_model(SIZE, TOKENIZER, 0).eval()
    other.register_forward_pre_hook(maybe)
    router = Router([LocalEngine(other, frozenset()), LocalEngine(model, frozenset())], rest=0.05)

    async def gone(weights=None):
        raise RuntimeError("the device is gone")

    async def play():
        async def say(number):
            return (await router.generate(PROMPT, Sampling(0.0, 4), random.Random(0), session=number)).ids

        first = await say(0)
        assert router.alive == [1]
        now[0] += 0.1
        assert await say(1) == first, "the trial failed, and the request went on elsewhere"
        assert router.alive == [1]
        fails["now"] = False
        assert await say(2) == first
        assert router.alive == [1], "it rests for longer now"
        now[0] += 0.3
        assert await say(3) == first
        assert router.alive == [0, 1]
        fails["now"] = True
        await say(4)
        await say(5)
        router._replicas[0].engine.update_weights = gone  # it cannot follow an update
        fails["now"] = False
        await router.update_weights()
        now[0] += 0.3
        await say(6)
        assert router.alive == [1], "its weights are old"

    asyncio.run(play())
    assert "back in use" in caplog.text


def test_a_temperature_by_which_no_logits_can_be_divided_is_greedy():
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    sampling = Sampling(temperature=1e-42)
    logprobs = distributions(logits, [sampling])
    assert logprobs.isfinite().all()
    assert draw(logprobs, [sampling], [0.0]).tolist() == [1]
