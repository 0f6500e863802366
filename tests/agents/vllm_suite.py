"""vLLM in process: what it draws is what the trainer scores, before and after new weights.

Not collected by itself: ``test_vllm.py`` runs it in an interpreter that has vLLM.
"""

import asyncio
import contextlib
import copy
import importlib.util
import json
import random
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm_places import PLACES, Server, is_greedy

import rollenv
from rollenv import UsageError
from rollenv.agents.base import ContextFull
from rollenv.agents.engine_agent import EngineAgent
from rollenv.agents.engines.base import EngineFailed, Sampling, vision_of
from rollenv.agents.engines.scoring import score
from rollenv.agents.engines.vllm import VLLMEngine
from rollenv.agents.engines.vllm_http import HttpTransport
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.agents.vllm import VLLMAgent
from rollenv.core.errors import MissingExtra

PROMPT = StepPrompt("{state}", chat=False)
BLOCK = 32
AT_ONCE = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizer = build_tokenizer(["up down left right\n" * 9, "__##\nPcc Xcb Oca\n"], 300)
    folder = tmp_path_factory.mktemp("model")
    model = build_model(TinySize(hidden=64, layers=2, heads=2, intermediate=128), tokenizer, 0)
    LocalAgent(model, tokenizer, PROMPT).save(folder)
    return folder


@pytest.fixture(scope="module")
def loaded(folder):
    options = {"dtype": "float32", "enforce_eager": True, "block_size": BLOCK, "max_num_seqs": AT_ONCE}
    agent = VLLMAgent.load(folder, PROMPT, Sampling(1.0, 6), **options)
    yield agent
    agent.close()
    with pytest.raises(EngineFailed, match="closed"):
        asyncio.run(agent.engine.generate((5,), Sampling(), random.Random(0)))
    agent.close()


@pytest.fixture
def model(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture
def engine(loaded, model):
    """The engine with the saved model's weights, whatever a test did to it."""
    if loaded.engine.version:
        asyncio.run(loaded.engine.update_weights(model.state_dict().items()))
    return loaded.engine


def prompt(n, seed=0):
    rng = random.Random(seed)
    return tuple(rng.randrange(10, 250) for _ in range(n))


def play(engine, prompts, sampling):
    async def all_at_once():
        return await asyncio.gather(*(engine.generate(p, sampling, random.Random(s)) for s, p in enumerate(prompts)))

    return asyncio.run(all_at_once())


def noisy(model):
    """Weights quite unlike the model's."""
    generator = torch.Generator().manual_seed(1)
    weights = {n: t + 0.2 * torch.randn(t.shape, generator=generator) for n, t in model.state_dict().items()}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    return weights


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 1.5])
def test_the_sampler_and_the_trainer_agree(engine, model, temperature):
    prompts = [prompt(n, n) for n in (3, 50, 17, 50, 90)]
    responses = play(engine, prompts, Sampling(temperature, 12))
    with torch.no_grad():
        scores = score(model, prompts, [tuple(r.ids) for r in responses], temperature or 1.0)
    assert any(len(r.ids) == 12 for r in responses)
    for row, response in enumerate(responses):
        assert len(response.ids) == len(response.logprobs) == len(response.versions)
        scored = scores.logprobs[row][scores.mask[row].bool()]
        assert scored.tolist() == pytest.approx(response.logprobs, abs=1e-3)


def test_greedy_tokens_are_the_best_of_transformers(engine, model):
    prompts = [prompt(n, n) for n in (3, 50, 17)]
    for asked, response in zip(prompts, play(engine, prompts, Sampling(0.0, 10)), strict=True):
        assert is_greedy(model, asked, response.ids)
        assert len(response.ids) == 10 or response.finish == "stop"


def test_a_response_follows_its_prompt_and_stream_alone(engine):
    together = play(engine, [prompt(30)] * 6, Sampling(1.0, 8))
    for seed, response in enumerate(together):
        by_itself = asyncio.run(engine.generate(prompt(30), Sampling(1.0, 8), random.Random(seed)))
        assert response.ids == by_itself.ids
    assert len({tuple(r.ids) for r in together}) > 2


def test_prompts_may_be_more_than_vllm_computes_in_a_step(engine):
    together = play(engine, [prompt(480, seed) for seed in range(AT_ONCE)], Sampling(1.0, 4))
    for seed, response in enumerate(together):
        by_itself = asyncio.run(engine.generate(prompt(480, seed), Sampling(1.0, 4), random.Random(seed)))
        assert response.ids == by_itself.ids


def test_a_response_ends_with_its_stop_token(engine, model):
    stop = next(iter(engine.stop))
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    weights["model.embed_tokens.weight"][stop] = 40 * weights["model.embed_tokens.weight"].std()
    asyncio.run(engine.update_weights(weights.items()))
    responses = play(engine, [prompt(9, s) for s in range(40)], Sampling(1.0, 30))
    ended = [r for r in responses if r.finish == "stop"]
    assert ended
    for response in responses:
        assert (response.ids[-1] == stop) == (response.finish == "stop")
        assert stop not in response.ids[:-1]
        assert response.finish == "stop" or len(response.ids) == 30


def test_prefixes_of_groups_and_earlier_turns_are_not_computed_again(engine):
    async def two_turns():
        first = await engine.generate(prompt(64, 5), Sampling(1.0, 20), random.Random(0))
        before = engine.stats.reused
        await engine.generate((*prompt(64, 5), *first.ids, 11, 12), Sampling(1.0, 4), random.Random(0))
        turn = engine.stats.reused - before
        await engine.generate(prompt(64, 5), Sampling(1.0, 4), random.Random(1))
        return turn, engine.stats.reused - before - turn

    turn, member = asyncio.run(two_turns())
    assert turn >= 64
    assert member >= 64 - BLOCK


def test_unfinished_responses_go_on_with_new_weights(engine, model):
    version = engine.version
    before = copy.deepcopy(model)
    other = noisy(model)

    async def update_in_the_middle():
        tasks = [
            asyncio.create_task(engine.generate(prompt(20 + n, n), Sampling(0.0, 40), random.Random(n)))
            for n in range(4)
        ]
        drawn = engine.stats.drawn
        while engine.stats.drawn < drawn + 12:
            await asyncio.sleep(0.001)
        await engine.suspend()
        drawn = engine.stats.drawn
        tasks.append(asyncio.create_task(engine.generate(prompt(24, 4), Sampling(0.0, 40), random.Random(4))))
        await asyncio.sleep(0.05)
        assert engine.stats.drawn == drawn, "nothing is drawn while suspended"
        await engine.update_weights(other.items())
        await engine.resume()
        return await asyncio.gather(*tasks)

    responses = asyncio.run(update_in_the_middle())
    model.load_state_dict(other)
    for n, response in enumerate(responses):
        cut = response.versions.count(version)
        assert response.versions == [version] * cut + [version + 1] * (len(response.ids) - cut)
        assert (cut > 0) == (n < 4)
        assert len(response.ids) == 40 or response.finish == "stop"
        assert is_greedy(before, prompt(20 + n, n), response.ids[:cut])
        assert is_greedy(model, (*prompt(20 + n, n), *response.ids[:cut]), response.ids[cut:])
    assert engine.active == 0


def test_new_weights_show_in_the_next_token(engine, model):
    asked = prompt(70, 9)
    old = play(engine, [asked], Sampling(0.0, 1))[0]
    weights = noisy(model)
    asyncio.run(engine.update_weights(weights.items()))
    new = play(engine, [asked], Sampling(0.0, 1))[0]
    model.load_state_dict(weights)
    assert is_greedy(model, asked, new.ids)
    assert new.ids != old.ids
    assert new.versions == [old.versions[0] + 1]


def test_what_is_cancelled_makes_room(engine):
    async def cancel():
        long = [
            asyncio.create_task(engine.generate(prompt(20, n), Sampling(1.0, 400), random.Random(n)))
            for n in range(2 * AT_ONCE)
        ]
        drawn = engine.stats.drawn
        while engine.stats.drawn < drawn + 10:
            await asyncio.sleep(0.001)
        for task in long[1:]:
            task.cancel()
        await asyncio.gather(*long[1:], return_exceptions=True)
        assert engine.active == 1
        steps = engine.stats.steps
        short = await engine.generate(prompt(5), Sampling(1.0, 3), random.Random(0))
        assert engine.stats.steps - steps < 10, "it did not wait for the cancelled ones"
        long[0].cancel()
        return short

    short = asyncio.run(cancel())
    again = asyncio.run(engine.generate(prompt(5), Sampling(1.0, 3), random.Random(0)))
    assert short.ids == again.ids
    assert engine.active == 0


SCHEMA = {"type": "object", "properties": {"move": {"enum": ["up", "down"]}}, "required": ["move"]}


@pytest.mark.parametrize(
    ("how", "right"),
    [
        ({"schema": json.dumps(SCHEMA)}, lambda text: json.loads(text)["move"] in ("up", "down")),
        ({"grammar": 'root ::= "up" | "down"'}, lambda text: text in ("up", "down")),
    ],
    ids=["schema", "grammar"],
)
def test_answers_follow_a_schema_or_a_grammar(engine, folder, how, right):
    """With random weights, no other answer would."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for response in play(engine, [prompt(5, seed) for seed in range(4)], Sampling(1.0, 300, **how)):
        assert response.finish == "length" or right(tokenizer.decode(response.ids, skip_special_tokens=True))
        assert all(logprob <= 0 for logprob in response.logprobs)
    assert response.finish == "stop"


def test_a_grammar_that_is_none_is_refused(engine):
    with pytest.raises(UsageError, match="vLLM"):
        play(engine, [prompt(5)], Sampling(1.0, 8, grammar="nothing but text"))


def test_what_cannot_be_done_is_said(engine):
    with pytest.raises(ContextFull, match="512"):
        play(engine, [prompt(512)], Sampling(1.0, 1))
    with pytest.raises(UsageError, match="named weights"):
        asyncio.run(engine.update_weights())
    with pytest.raises(UsageError, match="enable_sleep_mode"):
        asyncio.run(engine.sleep())


def test_a_model_that_is_none_is_refused(tmp_path):
    with pytest.raises(UsageError, match="model"):
        VLLMAgent.load(tmp_path / "nothing")


def test_the_agent_plays_what_the_local_agent_plays(loaded, engine, folder):
    env = rollenv.make("game:Sokoban-v0-tiny")
    observation, info = env.reset(0)
    local = LocalAgent.load(folder)
    loaded.sampling = local.sampling = Sampling(0.0, 6)
    one = asyncio.run(loaded.start(env, 1).act(observation, info))
    two = asyncio.run(local.start(env, 1).act(observation, info))
    assert (one.prompt_ids, one.response_ids, one.text) == (two.prompt_ids, two.response_ids, two.text)
    assert one.logprobs == pytest.approx(two.logprobs, abs=1e-3)


# -- pictures ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """The folder of a model that sees, with attention heads of a size that vLLM has for CPUs."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    pytest.importorskip("PIL")
    folder = tmp_path_factory.mktemp("a model that sees")
    import seeing

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"hidden_size": 64, "num_attention_heads": 2, "head_dim": 32}.items():
            patch.setitem(seeing._TEXT, name, value)
        patch.setitem(seeing._ROPE, "mrope_section", [4, 6, 6])
        patch.setitem(seeing._VISION, "hidden_size", 64)
        seeing.seeing("qwen2_vl").save(folder)
    return folder


def sees():
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):  # a build for another torch
        return False
    return True


def test_without_torchvision_a_model_that_sees_is_refused_in_a_line(seen, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: name != "torchvision" and found(name, *more))
    with pytest.raises(MissingExtra, match="pip install torchvision"):
        VLLMAgent.load(seen)


@contextlib.contextmanager
def agent_that_sees(place, folder, log, **options):
    options = {"dtype": "float32", "enforce_eager": True, "max_model_len": 1024} | options
    sampling = Sampling(1.0, 6)
    if place == "process":
        agent = VLLMAgent.load(folder, None, sampling, **options)
        try:
            yield agent
        finally:
            agent.close()
    else:
        local, server = LocalAgent.load(folder), Server(folder, log, **options)
        try:
            transport = HttpTransport(server.url, model=folder)
            engine = VLLMEngine(transport, local.engine.stop, family=vision_of(local.tokenizer))
            yield EngineAgent(engine, local.tokenizer, None, sampling)
        finally:
            server.kill()


SEES = pytest.mark.skipif(not sees(), reason="vLLM's models that see need torchvision, of the same build as torch")


async def looks(agent):
    """Two turns with three pictures."""
    from seeing import drawn

    turns = ("look <image> and <image>", [drawn(1), drawn(2, 112, 84)]), ("now <image>", [drawn(1)])
    session = agent.start(None, 0)
    return [await session.act(text, {"images": images}) for text, images in turns]


def check_looks(model, actions):
    for action in actions:
        scores = score(model, [action.prompt_ids], [action.response_ids])
        assert action.logprobs == pytest.approx(scores.logprobs[0].tolist(), abs=1e-4)


@SEES
@pytest.mark.parametrize("place", PLACES)
def test_pictures_give_the_log_probabilities_of_the_trainer(place, seen, tmp_path):
    with agent_that_sees(place, seen, tmp_path / "log") as agent:
        check_looks(LocalAgent.load(seen).model, asyncio.run(looks(agent)))
    few = {"mm_processor_kwargs": {"size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28}}}
    with (
        agent_that_sees(place, seen, tmp_path / "log", **few) as agent,
        pytest.raises(UsageError, match=r"vLLM makes \d+ tokens of a prompt that has \d+ here, with <Picture"),
    ):
        asyncio.run(looks(agent))


@SEES
@pytest.mark.parametrize("place", PLACES)
def test_pictures_are_seen_with_new_weights(place, seen, tmp_path):
    async def before_and_after(agent):
        before = await looks(agent)
        torch.manual_seed(0)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight), alpha=0.02)
        await agent.engine.update_weights(list(model.state_dict().items()))
        return before, await looks(agent)

    model = LocalAgent.load(seen).model
    with agent_that_sees(place, seen, tmp_path / "log") as agent:
        before, after = asyncio.run(before_and_after(agent))
    check_looks(model, after)
    assert before[0].logprobs != after[0].logprobs
