"""Episodes of models that draw tokens, over an engine that answers from a script and remembers what it was asked."""

from __future__ import annotations

import asyncio
import random

import pytest
from chat_templates import SHAPES, tokenizer_for
from hypothesis import given, settings
from hypothesis import strategies as st

import rollenv
from rollenv.agents.base import ContextFull
from rollenv.agents.engines.base import Response, Sampling
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.prompts.session import TokenAgent, TokenizerCodec
from rollenv.agents.tiny.model import build_tokenizer
from rollenv.core.errors import UsageError
from rollenv.rollout.records.samples import drift, trajectory_samples
from rollenv.rollout.types import Task, Trajectory, Turn

BY_NAME = {shape.name: shape for shape in SHAPES}


class ScriptEngine:
    """Says what it is told to; every answer is a list of token ids."""

    def __init__(self, answers, max_context=10_000):
        self.version, self.max_context = 3, max_context
        self.answers = iter(answers)
        self.asked, self.released = [], []

    async def generate(self, prompt, sampling, rng, *, session=-1):
        ids = list(next(self.answers))[: sampling.max_new_tokens]
        self.asked.append((prompt, tuple(ids), sampling.max_new_tokens, session))
        logprobs = [-rng.random() for _ in ids]
        versions = [self.version + (i > 1) for i in range(len(ids))]
        return Response(ids, logprobs, versions, "stop")

    def release(self, session):
        self.released.append(session)


def play(agent, says, seed=0):
    """An episode against fixed observations, as a trajectory."""
    session = agent.start(None, seed)

    async def turns():
        done = []
        for observation, info in says:
            a = await session.act(observation, info)
            turn = Turn(a.prompt_ids, a.response_ids, a.logprobs, 1.0, a.text, observation)
            turn.policy_version, turn.versions = a.policy_version, a.versions
            done.append(turn)
        return done

    try:
        return Trajectory(Task("game:Test-v0", 0), asyncio.run(turns()), "terminated")
    finally:
        session.close()


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_trainer_sees_what_the_sampler_saw(shape, data):
    tokenizer = tokenizer_for(shape)
    ids = st.lists(st.integers(0, len(tokenizer) - 1), max_size=6)
    answers = data.draw(st.lists(ids, min_size=4, max_size=4))
    says = data.draw(st.lists(st.tuples(st.text(), st.sampled_from([{}, {"use_tool": True}])), min_size=4, max_size=4))
    engine = ScriptEngine(answers)
    played = play(TokenAgent(engine, tokenizer, system="be brief"), says)
    assert [(t.prompt_ids, t.response_ids) for t in played.turns] == [asked[:2] for asked in engine.asked]
    samples = trajectory_samples(played)
    assert drift(played, samples) == 0
    assert shape.rewrites or len(samples) == 1
    assert sum(s.mask.sum() for s in samples) == sum(map(len, answers))


def encoded(tokenizer, text):
    return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]


@pytest.mark.parametrize(
    ("said", "action"),
    [
        ("<think>\nup or\n</think>\n\nleft", "left"),
        ("a</think>b</think> c", "c"),
        ("<think>left? I never", ""),
        ("left <thought>or right", "left"),
        ("[THINK]a[/THINK]left", "left"),
        (" left ", " left "),
        ("", ""),
    ],
)
@pytest.mark.parametrize("special", [True, False])
def test_thoughts_are_cut_and_nothing_else(said, action, special):
    tokenizer = build_tokenizer(["left"], 300)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    if special:
        tokenizer.add_special_tokens({"additional_special_tokens": ["</think>"]})
    tokenizer.chat_template = BY_NAME["chatml"].template
    for cut in (True, False):
        played = play(TokenAgent(ScriptEngine([encoded(tokenizer, said)]), tokenizer, cut_thoughts=cut), [("go", {})])
        (turn,) = played.turns
        assert turn.text == (action if cut else said) or (special and not cut and turn.text.count("</think>") == 1)
        assert list(turn.response_ids) == encoded(tokenizer, said)


@pytest.mark.parametrize("said", ["left, or", "<think>left", "no</think>right <think>left"])
def test_a_thought_that_does_not_end_holds_no_action(said):
    tokenizer = build_tokenizer(["left"], 300)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]})
    tokenizer.chat_template = BY_NAME["chatml"].template + "{% if add_generation_prompt %}<think>\n{% endif %}"
    session = TokenAgent(ScriptEngine([encoded(tokenizer, said)]), tokenizer).start(None, 0)
    action = asyncio.run(session.act("go", {}))
    assert (action.finish, "left" in action.text, action.raw) == ("unfinished", False, said)


def test_pictures_are_refused_before_a_token_is_drawn():
    engine, part = ScriptEngine([]), {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    with pytest.raises(UsageError, match="pictures"):
        play(TokenAgent(engine, tokenizer_for(BY_NAME["chatml"])), [("<image>", {"images": [part]})])
    assert engine.asked == []


def test_long_observations_lose_their_middle_with_a_word():
    tokenizer = tokenizer_for(BY_NAME["chatml"])
    engine = ScriptEngine([encoded(tokenizer, "up")])
    play(TokenAgent(engine, tokenizer, max_observation=20), [("a" * 10 + "b" * 500 + "c" * 10, {})])
    text = tokenizer.decode(engine.asked[0][0])
    assert "a" * 10 + "\n[... 500 characters left out ...]\n" + "c" * 10 in text


def test_a_chat_shows_the_state_that_info_carries():
    tokenizer = tokenizer_for(BY_NAME["chatml"])
    engine = ScriptEngine([encoded(tokenizer, "up")] * 2)
    says = [("rules", {"suffix": "board 1"}), ("moved\nboard 2", {"suffix": "board 2", "prefix": "page"})]
    play(TokenAgent(engine, tokenizer), says)
    text = tokenizer.decode(engine.asked[1][0])
    assert "rules\nboard 1<" in text
    assert "page\nmoved\nboard 2<" in text


def test_bounded_prompts_stand_alone_and_remember_what_they_are_told_to():
    tokenizer = tokenizer_for(BY_NAME["qwen2.5"])
    engine = ScriptEngine([encoded(tokenizer, "<think>x</think>up"), encoded(tokenizer, "down")])
    agent = TokenAgent(engine, tokenizer, StepPrompt("{history}{state}", history_length=1))
    play(agent, [("one", {}), ("two", {"suffix": "board"})])
    texts = [tokenizer.decode(asked[0]) for asked in engine.asked]
    assert "user\none<|im_end|>" in texts[0]
    assert "user\none\nYou: up\nboard<|im_end|>" in texts[1]


def test_prompts_without_a_chat_are_the_text_alone():
    tokenizer = build_tokenizer(["left"], 300)
    engine = ScriptEngine([[5]])
    play(TokenAgent(engine, tokenizer, StepPrompt("{state}", chat=False)), [("left \ud800", {})])
    assert tokenizer.decode(engine.asked[0][0]) == "left �"
    assert TokenizerCodec(tokenizer, chat=False).decode((5,)) == tokenizer.decode([5])


@pytest.mark.parametrize("prompt", [None, StepPrompt()])
def test_a_prompt_and_its_answer_fit_the_context(prompt):
    tokenizer = tokenizer_for(BY_NAME["chatml"])
    engine = ScriptEngine([[9] * 99] * 9)
    play(TokenAgent(engine, tokenizer, prompt, Sampling(max_new_tokens=50)), [("hello", {})])
    size = len(engine.asked[0][0])
    engine = ScriptEngine([[9] * 99] * 9, max_context=size + 4)
    played = play(TokenAgent(engine, tokenizer, prompt, Sampling(max_new_tokens=50)), [("hello", {})])
    assert engine.asked[0][2] == len(played.turns[0].response_ids) == 4
    engine = ScriptEngine([[9] * 99] * 9, max_context=size)
    session = TokenAgent(engine, tokenizer, prompt).start(None, 0)
    with pytest.raises(ContextFull, match=f"{size} tokens"):
        asyncio.run(session.act("hello", {}))
    assert engine.asked == []
    assert session.next_prompt("hello", {}) == (), "the episode ends there"


def test_a_prompt_drops_its_oldest_history_to_keep_within_its_limit():
    tokenizer = tokenizer_for(BY_NAME["chatml"])
    says = [(f"room {i} " + "x " * 20, {}) for i in range(6)]

    def asked(most):
        engine = ScriptEngine([encoded(tokenizer, f"go {i}") for i in range(6)])
        prompt = StepPrompt("{history}{state}", history_length=4, max_tokens=most)
        play(TokenAgent(engine, tokenizer, prompt), says)
        return [ids for ids, *_ in engine.asked]

    free = asked(0)
    limit = len(free[2])  # two turns of history
    held = asked(limit)
    assert held[:3] == free[:3]
    for number, ids in enumerate(held[3:], 3):
        text = tokenizer.decode(ids)
        assert len(ids) <= limit < len(free[number])
        assert f"go {number - 1}" in text, "the newest stays"
        assert f"go {number - 3}" not in text
    with pytest.raises(ContextFull, match=f"more than max_tokens={len(free[0]) - 1}"):
        asked(len(free[0]) - 1)


@pytest.mark.parametrize("fits", [True, False])
def test_a_local_agent_heeds_the_limit_of_its_prompts_in_chats_too(fits):
    from rollenv.agents.local import LocalAgent
    from rollenv.agents.prompts import ChatPrompt
    from rollenv.agents.tiny.model import build_model
    from rollenv.agents.tiny.settings import TinySize

    tokenizer = tokenizer_for(BY_NAME["chatml"])
    size = TinySize(hidden=16, layers=1, heads=2, intermediate=16, context=256, vocabulary=300)
    model = build_model(size, tokenizer, 0)
    for prompt in (ChatPrompt("be brief", 200 if fits else 3), StepPrompt(max_tokens=200 if fits else 3)):
        agent = LocalAgent(model, tokenizer, prompt, Sampling(max_new_tokens=2))
        session = agent.start(None, 0)
        if fits:
            assert asyncio.run(session.act("hello", {})).response_ids
        else:
            with pytest.raises(ContextFull, match="max_tokens=3"):
                asyncio.run(session.act("hello", {}))
        session.close()


def test_versions_numbers_and_draws_belong_to_the_session():
    tokenizer = tokenizer_for(BY_NAME["chatml"])
    engine = ScriptEngine([[5], [5, 6, 7], []] * 3)
    agent = TokenAgent(engine, tokenizer)
    says = [("a", {}), ("b", {}), ("c", {})]
    first, second, again = play(agent, says, 1), play(agent, says, 2), play(agent, says, 1)
    assert [(t.policy_version, t.versions) for t in first.turns] == [(3, ()), (3, (3, 3, 4)), (3, ())]
    assert [asked[3] for asked in engine.asked] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert engine.released == [0, 1, 2]
    assert first == again
    assert [t.logprobs for t in first.turns] != [t.logprobs for t in second.turns]
    assert agent.version == 3
    assert first.turns[1].logprobs[0] == -_second_draw(1)


def _second_draw(seed):
    rng = random.Random(seed)
    rng.random()
    return rng.random()


def test_functions_of_the_environment_go_through_the_template_once():
    env = rollenv.make("tools:Files-v0-easy", calls="native")
    observation, info = env.reset(seed=1)
    tokenizer = tokenizer_for(BY_NAME["qwen2.5"])
    engine = ScriptEngine([(5, 6), (7,)])
    play(TokenAgent(engine, tokenizer, tools="env"), [(observation, info), ("done", {})])
    text = tokenizer.decode(engine.asked[-1][0])
    for schema in info["tools"]:
        name = f'"name": "{schema["function"]["name"]}"'
        assert name not in observation
        assert text.count(name) == 1


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_each_result_of_a_tool_is_one_message_in_the_templates_own_wrapper(shape):
    tokenizer = tokenizer_for(shape)
    environments_own = "<tool_response>\nfirst\n</tool_response>\n<tool_response>\nsecond\n</tool_response>"
    info = {"use_tool": True, "tool_responses": ["first", "second"], "suffix": "two turns left"}
    environments_own += "\nno more calls"
    engine = ScriptEngine([tokenizer.encode("hi", add_special_tokens=False)] * 2)
    play(TokenAgent(engine, tokenizer), [("hello", {}), (environments_own, info)])
    begun, after = (tokenizer.decode(asked[0]) for asked in engine.asked)
    said = after[len(begun) :] if after.startswith(begun) else after
    places = [said.index(text) for text in ("first", "second", "no more calls", "two turns left")]
    assert places == sorted(places)
    assert said.count("first") == said.count("second") == 1
    assert "<tool_response>\n<tool_response>" not in said.replace(" ", "")
    assert said.count("<tool_response>") in (0, 2)
