"""The local agent: what it samples is what the trainer scores."""

import asyncio
import contextlib
import random
from dataclasses import replace

import pytest
import torch
from chat_templates import SHAPES, tokenizer_for
from transformers import AutoModelForCausalLM

import rollenv
from rollenv import UsageError
from rollenv.agents.engines.base import Sampling
from rollenv.agents.engines.kv_cache import cache_argument
from rollenv.agents.engines.local import LocalEngine
from rollenv.agents.engines.scoring import score
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.cli.common import AgentOptions, make_agent
from rollenv.rollout.evaluate import evaluate

SIZE = TinySize(hidden=32, layers=2, heads=2, intermediate=64)
TEXT = ["the quick brown fox jumps over the lazy dog\n" * 3, "Pac Xdd Oba\n____\n#__#\n", "up down left right"]


@pytest.fixture(scope="module")
def agent():
    tokenizer = build_tokenizer(TEXT, 400)
    return LocalAgent(build_model(SIZE, tokenizer, 0).eval(), tokenizer, StepPrompt("{state}"), Sampling(1.0, 6))


def generate(engine, prompts, sampling, seeds):
    async def all_at_once():
        return await asyncio.gather(
            *(engine.generate(p, sampling, random.Random(s)) for p, s in zip(prompts, seeds, strict=True))
        )

    return asyncio.run(all_at_once())


PROMPTS = [(5, 9, 40), (7,), (5, 9, 40), (100, 101, 102, 103, 104, 105, 106), (3, 3)]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
@pytest.mark.parametrize("tokens", [1, 8])
def test_the_sampler_and_the_scorer_agree(agent, temperature, tokens):
    done = generate(LocalEngine(agent.model, frozenset()), PROMPTS, Sampling(temperature, tokens), range(5))
    scores = score(agent.model, PROMPTS, [tuple(r.ids) for r in done], temperature)
    for row, request in enumerate(done):
        assert len(request.ids) == tokens
        assert scores.logprobs[row].tolist() == pytest.approx(request.logprobs, abs=2e-5)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_models_name_their_cache_in_either_way(agent, name):
    """Transformers 5.24 calls ``cache`` what was ``past_key_values``."""
    whole, own = agent.model.forward, cache_argument(agent.model)

    class Renamed(torch.nn.Module):
        config, device, dtype = agent.model.config, agent.model.device, agent.model.dtype
        generation_config = agent.model.generation_config

        if name == "cache":

            def forward(self, attention_mask, position_ids, cache, **more):
                return whole(attention_mask=attention_mask, position_ids=position_ids, **{own: cache}, **more)

        else:

            def forward(self, attention_mask, position_ids, past_key_values, **more):
                return whole(attention_mask=attention_mask, position_ids=position_ids, **{own: past_key_values}, **more)

    engines = LocalEngine(agent.model, frozenset()), LocalEngine(Renamed(), frozenset())
    want, got = (generate(engine, PROMPTS, Sampling(1.0, 8), range(5)) for engine in engines)
    assert [r.ids for r in got] == [r.ids for r in want]


def test_tokens_are_drawn_with_the_models_probabilities(agent):
    n = 4000
    prompt = (5, 9, 40)
    done = generate(LocalEngine(agent.model, frozenset()), [prompt] * n, Sampling(1.0, 1), range(n))
    with torch.no_grad():
        expected = agent.model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    counts = torch.bincount(torch.tensor([r.ids[0] for r in done]), minlength=len(expected)) / n
    assert (counts - expected).abs().max() < 0.02


def test_a_session_speaks_tokens_and_text(agent):
    env = rollenv.make("game:Sokoban-v0-tiny")
    observation, info = env.reset(0)
    action = asyncio.run(agent.start(env, 1).act(observation, info))
    assert agent.tokenizer.decode(action.prompt_ids) == info["suffix"]
    assert action.text == agent.tokenizer.decode(action.response_ids, skip_special_tokens=True)
    assert len(action.response_ids) == len(action.logprobs)
    again = asyncio.run(agent.start(env, 1).act(observation, info))
    assert again.logprobs == pytest.approx(action.logprobs, abs=1e-5), "this time the cache has the prompt"
    assert replace(again, logprobs=action.logprobs) == action


def test_a_saved_agent_loads_with_transformers_and_plays_the_same(agent, tmp_path):
    agent.save(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([PROMPTS[0]])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, agent.model(ids).logits)
    loaded = LocalAgent.load(tmp_path, temperature=0.5)
    assert loaded.prompt == agent.prompt
    assert loaded.sampling == Sampling(0.5, 6)


def test_loading_what_is_not_a_model_says_so(tmp_path):
    with pytest.raises(UsageError, match="cannot load a model"):
        LocalAgent.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda folder: folder / "model.safetensors", "folder"),
        (lambda folder: [file.unlink() for file in folder.glob("tokenizer*")] and folder, "tokenizer"),
        (lambda folder: (folder / "model.safetensors").write_bytes(bytes(1000)) and folder, "header"),
    ],
)
def test_a_folder_without_a_part_of_the_model_is_an_error_in_a_line(agent, tmp_path, broken, says):
    agent.save(tmp_path)
    with pytest.raises(UsageError, match=says):
        LocalAgent.load(broken(tmp_path))


@pytest.mark.parametrize(("calls", "described"), [("native", 1), ("python", 0)])
def test_a_pretrained_model_plays_episodes_as_chats_with_the_functions_in_its_template(tmp_path, calls, described):
    shape = next(shape for shape in SHAPES if shape.name == "qwen2.5")
    tokenizer = tokenizer_for(shape)
    build_model(TinySize(hidden=32, layers=1, heads=2, intermediate=64, context=2048), tokenizer, 0).save_pretrained(
        tmp_path
    )
    tokenizer.save_pretrained(tmp_path)
    with contextlib.closing(make_agent("harness:pi", AgentOptions(model=f"local:{tmp_path}"))) as harness:
        assert harness.gateway.model.agent.sampling.max_new_tokens >= 1000
    agent = make_agent(f"local:{tmp_path}", AgentOptions(max_tokens=2), native=calls == "native")
    (played,) = evaluate(agent, "tools:Tiny-v0", {"calls": calls, "max_turns": 3}, n=1).trajectories
    told = tokenizer.decode(played.turns[-1].prompt_ids)
    assert told.count('"name": "cancel"') == described
    assert told.count("<|im_start|>assistant") == len(played.turns)
