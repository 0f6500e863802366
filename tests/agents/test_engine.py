"""The local engine: sessions share a batch, caches and new weights, and none of it changes what they are told."""

import asyncio
import contextlib
import copy
import importlib
import random
import sys
import types
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    Qwen2Config,
)

from rollenv import UsageError
from rollenv.agents.base import ContextFull
from rollenv.agents.engines import onednn
from rollenv.agents.engines.base import EngineFailed, Sampling
from rollenv.agents.engines.local import LocalEngine, context_length
from rollenv.agents.engines.scoring import score
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize

VOCABULARY = 300
STOP = frozenset({7, 8, 9})


@pytest.fixture(scope="module")
def model():
    tokenizer = build_tokenizer(["up down left right\n" * 9], VOCABULARY)
    return build_model(TinySize(hidden=32, layers=2, heads=2, intermediate=64, context=128), tokenizer, 0).eval()


def prompt(n, seed=0):
    rng = random.Random(seed)
    return tuple(rng.randrange(10, 250) for _ in range(n))


def play(engine, prompts, sampling, seeds=None):
    """The responses to prompts that are asked for at the same time."""

    async def all_at_once():
        asked = zip(prompts, seeds or range(len(prompts)), strict=True)
        return await asyncio.gather(*(engine.generate(p, sampling, random.Random(s)) for p, s in asked))

    return asyncio.run(all_at_once())


def alone(model, asked, sampling, seed, stop=STOP):
    return play(LocalEngine(model, stop), [asked], sampling, [seed])[0]


def assert_scored(model, asked, response, temperature=1.0):
    """The trainer gives the tokens the log-probabilities that the engine reported."""
    with torch.no_grad():
        scores = score(model, [asked], [tuple(response.ids)], temperature)
    assert scores.logprobs[0].tolist() == pytest.approx(response.logprobs, abs=1e-4)


def generated(model, asked, tokens):
    ids = torch.tensor([asked])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        pad_token_id=0,
    )
    return out[0, len(asked) :].tolist()


@pytest.mark.integration
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=7),
    tokens=st.integers(1, 12),
    temperature=st.sampled_from([0.0, 0.6, 1.0, 1.7]),
    batch=st.sampled_from([1, 100, 1 << 16]),
)
def test_a_response_follows_its_prompt_and_stream_alone(model, lengths, tokens, temperature, batch):
    sampling = Sampling(temperature, tokens)
    prompts = [prompt(n, n % 5) for n in lengths]
    engine = LocalEngine(model, STOP, max_batch_tokens=batch)
    for seed, (asked, response) in enumerate(zip(prompts, play(engine, prompts, sampling), strict=True)):
        by_itself = alone(model, asked, sampling, seed)
        assert response.ids == by_itself.ids
        assert (response.finish, response.versions) == (by_itself.finish, by_itself.versions)
        assert_scored(model, asked, response, temperature or 1.0)
    assert engine.active == 0


def test_different_samplings_share_a_batch(model):
    samplings = [Sampling(t, n) for t in (0.0, 0.5, 1.0) for n in (1, 3, 9)]

    async def all_at_once():
        engine = LocalEngine(model, STOP)
        return await asyncio.gather(
            *(engine.generate(prompt(12), s, random.Random(i)) for i, s in enumerate(samplings))
        )

    for seed, response in enumerate(asyncio.run(all_at_once())):
        assert response.ids == alone(model, prompt(12), samplings[seed], seed).ids


@pytest.mark.parametrize(
    "build",
    [
        lambda: LlamaForCausalLM(
            LlamaConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
        ),
        lambda: GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=64)),
        lambda: Gemma3ForConditionalGeneration(
            Gemma3Config(
                text_config={"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 32, "head_dim": 8,
                             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                             "max_position_embeddings": 64, "sliding_window": 64},
                vision_config={"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
                               "num_attention_heads": 2},
            )
        ),
    ],
    ids=["llama with grouped heads", "gpt2", "gemma3 with a vision tower"],
)  # fmt: skip
def test_greedy_responses_equal_transformers_generate(build):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        other = build().eval()
    prompts = [prompt(n, n) for n in (3, 20, 7, 20)]
    responses = play(LocalEngine(other, frozenset()), prompts, Sampling(0.0, 10))
    assert [r.ids for r in responses] == [generated(other, p, 10) for p in prompts]


def test_long_prompts_go_through_the_model_in_pieces(model, monkeypatch):
    prompts = [prompt(n, n) for n in (100, 70, 61)]
    whole = play(LocalEngine(model, STOP), prompts, Sampling(1.0, 6))
    monkeypatch.setattr("rollenv.agents.engines.kv_cache._CHUNK_TOKENS", 16)
    pieces = play(LocalEngine(model, STOP), prompts, Sampling(1.0, 6))
    assert [r.ids for r in whole] == [r.ids for r in pieces]


@pytest.mark.parametrize("turns_before", [0, 1, 2, 5])
def test_a_cancelled_request_leaves_at_once_and_the_others_do_not_notice(model, turns_before):
    engine = LocalEngine(model, frozenset())
    sampling = Sampling(1.0, 12)

    async def cancel_some():
        tasks = [
            asyncio.create_task(engine.generate(prompt(8 + n, n), sampling, random.Random(n), session=n))
            for n in range(6)
        ]
        for _ in range(turns_before):
            await asyncio.sleep(0)
        for n in (0, 3, 5):
            tasks[n].cancel()
        await asyncio.gather(*(tasks[n] for n in (0, 3, 5)), return_exceptions=True)
        assert engine.active == 3
        return await asyncio.gather(*(tasks[n] for n in (1, 2, 4)))

    for n, response in zip((1, 2, 4), asyncio.run(cancel_some()), strict=True):
        assert response.ids == alone(model, prompt(8 + n, n), sampling, n, frozenset()).ids
    assert engine.active == 0


def test_an_abandoned_event_loop_leaves_the_engine_usable(model):
    engine = LocalEngine(model, frozenset())

    async def abandon():
        task = asyncio.create_task(engine.generate(prompt(9), Sampling(1.0, 50), random.Random(0)))
        for _ in range(4):
            await asyncio.sleep(0)
        assert not task.done()

    asyncio.run(abandon())
    assert engine.active == 0
    assert (
        play(engine, [prompt(9)], Sampling(1.0, 5))[0].ids
        == alone(model, prompt(9), Sampling(1.0, 5), 0, frozenset()).ids
    )


@pytest.fixture
def other_weights(model):
    """Weights quite unlike the model's, which are put back afterwards."""
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.Generator().manual_seed(3)
    yield {name: t + 0.3 * torch.randn(t.shape, generator=generator) for name, t in saved.items()}
    model.load_state_dict(saved)


def test_unfinished_responses_go_on_with_new_weights(model, other_weights):
    engine = LocalEngine(model, frozenset())
    sampling = Sampling(0.0, 10)
    before = [generated(model, prompt(8 + n, n), 10) for n in range(5)]

    async def update_in_the_middle():
        tasks = [
            asyncio.create_task(engine.generate(prompt(8 + n, n), sampling, random.Random(n), session=n))
            for n in range(4)
        ]
        for _ in range(4):
            await asyncio.sleep(0)
        await engine.suspend()
        tasks.append(asyncio.create_task(engine.generate(prompt(12, 4), sampling, random.Random(4))))
        drawn = engine.stats.drawn
        for _ in range(9):
            await asyncio.sleep(0)
        assert engine.stats.drawn == drawn, "nothing is drawn while suspended"
        await engine.update_weights(other_weights.items())
        await engine.resume()
        return await asyncio.gather(*tasks)

    responses = asyncio.run(update_in_the_middle())
    for n, response in enumerate(responses):
        cut = response.versions.count(0)
        assert response.versions == [0] * cut + [1] * (10 - cut)
        assert (0 < cut < 10) == (n < 4)
        assert response.ids[:cut] == before[n][:cut]
        assert response.ids[cut:] == generated(model, (*prompt(8 + n, n), *response.ids[:cut]), 10 - cut)
    assert engine.version == 1


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ({"model.embed_token.weight": torch.zeros(1)}, "'model.embed_tokens.weight'"),
        ({"model.norm.weight": torch.zeros(3)}, "shape"),
    ],
)
def test_wrong_weights_are_refused(model, weights, says):
    with pytest.raises(UsageError, match=says):
        asyncio.run(LocalEngine(model, STOP).update_weights(weights.items()))


@pytest.mark.parametrize("how", [{"schema": "{}"}, {"grammar": 'root ::= "a"'}])
def test_answers_of_a_form_need_another_engine(model, how):
    with pytest.raises(UsageError, match="vLLM"):
        play(LocalEngine(model, frozenset()), [prompt(3)], Sampling(**how))


def test_the_context_bounds_prompts_and_responses(model):
    engine = LocalEngine(model, frozenset())
    assert engine.max_context == 128
    response = play(engine, [prompt(120)], Sampling(1.0, 50))[0]
    assert (len(response.ids), response.finish) == (8, "length")
    with pytest.raises(ContextFull, match="128 tokens"):
        play(engine, [prompt(128)], Sampling(1.0, 1))
    with pytest.raises(UsageError):
        play(engine, [()], Sampling(1.0, 1))


def test_a_sliding_window_bounds_the_context_and_unknown_layers_are_refused():
    assert context_length(MistralConfig(sliding_window=256, max_position_embeddings=4096)) == 256
    assert context_length(Qwen2Config(max_position_embeddings=4096)) == 4096
    config = Qwen2Config(num_hidden_layers=1, max_position_embeddings=4096)
    config.layer_types = ["linear_attention"]
    with pytest.raises(UsageError, match="vLLM"):
        context_length(config)


def test_the_loop_has_turns_between_tokens_and_late_requests_join(model):
    engine = LocalEngine(model, frozenset())
    order = []

    async def ask(name, tokens):
        await engine.generate(prompt(5), Sampling(1.0, tokens), random.Random(0))
        order.append(name)

    async def late_but_short():
        long = asyncio.create_task(ask("long", 60))
        for _ in range(5):
            await asyncio.sleep(0)
        await ask("short", 3)
        await long

    asyncio.run(late_but_short())
    assert order == ["short", "long"]
    assert engine.stats.steps < 63, "they ran together"


@pytest.mark.parametrize("calls", [0, 1, 5])
def test_a_failure_reaches_those_it_concerns_and_the_engine_goes_on(model, calls):
    engine = LocalEngine(model, frozenset())
    left = [calls]

    def fail_once(*_):
        left[0] -= 1
        if left[0] == -1:
            raise RuntimeError("out of memory")

    async def ask():
        asked = (engine.generate(prompt(5, n), Sampling(1.0, 20), random.Random(n)) for n in range(3))
        return await asyncio.gather(*asked, return_exceptions=True)

    hook = model.register_forward_pre_hook(fail_once)
    try:
        failed, answered = asyncio.run(ask()), asyncio.run(ask())
    finally:
        hook.remove()
    for n, (failure, response) in enumerate(zip(failed, answered, strict=True)):
        assert isinstance(failure, EngineFailed)
        assert "out of memory" in str(failure)
        assert response.ids == alone(model, prompt(5, n), Sampling(1.0, 20), n, frozenset()).ids
        assert failure.response.ids == response.ids[:calls]
    with pytest.raises(UsageError, match="1000000"):
        play(engine, [(10**6,)], Sampling(1.0, 3))
    assert engine.active == 0


def test_one_batch_can_fail_while_others_go_on(model):
    engine = LocalEngine(model, frozenset())

    async def one_bad():
        good = asyncio.create_task(engine.generate(prompt(5), Sampling(1.0, 20), random.Random(0)))
        for _ in range(4):
            await asyncio.sleep(0)
        with pytest.raises(EngineFailed, match="IndexError"):
            await engine.generate((10**6,), Sampling(1.0, 1), random.Random(0))
        return await good

    assert asyncio.run(one_bad()).ids == alone(model, prompt(5), Sampling(1.0, 20), 0, frozenset()).ids


@pytest.fixture
def transfers(monkeypatch):
    """The module that sends weights to vLLM, with vLLM and GPUs left out; and what becomes of the engines it starts."""
    base = "vllm.distributed.weight_transfer"
    sent, devices = [], []

    class Engine:
        def send_weights(self):
            sent.append(self)
            if len(sent) == 2:
                raise RuntimeError("the other side has ended")

    def device(where):
        devices.append(where)
        return contextlib.nullcontext()

    anything = SimpleNamespace(trainer_init=lambda *_, **__: Engine())
    names = {
        "vllm": (),
        "vllm.distributed": (),
        base: ("HTTPVLLMWeightSyncClient", "WeightTransferTrainerFactory"),
        f"{base}.base": ("ParamMeta",),
        f"{base}.ipc_engine": ("IPCTrainerInitInfo",),
        f"{base}.nccl_engine": ("NCCLTrainerInitInfo",),
        "vllm.utils": (),
        "vllm.utils.network_utils": ("get_ip", "get_open_port"),
    }
    for name, members in names.items():
        module = types.ModuleType(name)
        vars(module).update(dict.fromkeys(members, anything))
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules[base].HTTPVLLMWeightSyncClient = str
    sys.modules[f"{base}.base"].WeightSource = object
    sys.modules[f"{base}.ipc_engine"].IPCTrainerInitInfo = SimpleNamespace
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", device)
    yield importlib.import_module("rollenv.agents.engines.vllm_transfer"), sent, devices
    sys.modules.pop("rollenv.agents.engines.vllm_transfer")


def test_weights_go_to_vllm_from_the_gpu_that_they_are_on_and_anew_after_a_failure(transfers):
    """A thread begins with the first GPU, whichever the process trains on."""
    module, sent, devices = transfers
    where = torch.device("cuda", 3)
    weight = SimpleNamespace(is_cuda=True, device=where, detach=lambda: weight, to=lambda device: (weight, device))
    transfer = module.Transfer("ipc", "http://here", 1)
    transfer.send([("a", weight)])
    with pytest.raises(UsageError, match="ended"):
        transfer.send([("a", weight)])
    transfer.send([("a", weight)])
    assert devices == [where] * 3
    assert sent[0] is sent[1]
    assert sent[2] is not sent[0]


def test_model_of_forty_megabytes_draws_with_its_current_weights():
    """From 32 MiB on, few rows are computed on CPUs with rearranged copies of the weights."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=20_000, **sizes)).eval()
    engine = LocalEngine(model, frozenset())
    asked = [prompt(9, seed) for seed in range(5)]
    for _ in range(2):
        for question, response in zip(asked, play(engine, asked, Sampling(1.0, 12)), strict=True):
            assert_scored(model, question, response)
        score(model, asked[:1], [(5, 6)]).logprobs.sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        asyncio.run(engine.update_weights())


@pytest.mark.skipif(not onednn.multiplies_in_bfloat16(), reason="this CPU has no instructions for bfloat16")
def test_bfloat16_draws_close_to_the_models_own_probabilities_and_follows_new_weights(model):
    model = copy.deepcopy(model)
    engine = LocalEngine(model, STOP)
    engine.set_precision("bfloat16")
    sampling = Sampling(max_new_tokens=12)
    for _ in range(2):
        prompts = [prompt(20, n) for n in range(4)]
        for asked, response in zip(prompts, play(engine, prompts, sampling), strict=True):
            own = score(model, [asked], [tuple(response.ids)]).logprobs[0].tolist()
            assert response.logprobs == pytest.approx(own, abs=0.1)
            assert response.logprobs != pytest.approx(own, abs=1e-7), "drawn in float32"
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(-2)
        engine.weights_changed()


def test_a_precision_that_is_none_is_refused(model):
    with pytest.raises(UsageError, match="bfloat16"):
        LocalEngine(model, STOP).set_precision("int8")


def test_bfloat16_is_refused_where_the_cpu_has_no_instructions_for_it(model, monkeypatch):
    monkeypatch.setattr(onednn, "multiplies_in_bfloat16", lambda: False)
    with pytest.raises(UsageError, match="float32"):
        LocalEngine(model, STOP).set_precision("bfloat16")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(4, 96), (600, 96), (8, 200, 96)])
def test_linear_layers_by_onednn_and_their_gradients_are_those_of_torch(shape, bias, monkeypatch):
    monkeypatch.setattr(onednn, "_SMALLEST", 0)
    torch.manual_seed(0)
    plain = torch.nn.Linear(96, 80, bias=bias)
    fast = copy.deepcopy(plain)
    onednn.use_onednn(fast)
    assert type(fast) is not type(plain)
    plain.weight.requires_grad_(bias)
    fast.weight.requires_grad_(bias)
    inputs = torch.randn(shape)
    results = []
    for layer in (plain, copy.deepcopy(fast)):
        given = inputs.clone().requires_grad_()
        output = layer(given)
        output.square().sum().backward()
        results.append([output.detach(), given.grad, *(p.grad for p in layer.parameters() if p.requires_grad)])
    for own, fast_one in zip(*results, strict=True):
        assert torch.allclose(own, fast_one, rtol=1e-4, atol=1e-4 * own.abs().max())


def test_a_small_model_keeps_the_layers_of_torch(model):
    modules = LocalEngine(copy.deepcopy(model), STOP).model.named_modules()
    layers = [type(module) for name, module in modules if name.endswith("q_proj")]
    assert set(layers) == {torch.nn.Linear}
