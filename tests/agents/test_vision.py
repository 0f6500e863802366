"""Models that see: the tokens of pictures, and the numbers of engine, trainer and transformers."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch
from seeing import DEAF_TOOLS, FAMILY, drawn, processor, seeing

from rollenv.agents import vision
from rollenv.agents.base import AgentFailed, ContextFull
from rollenv.agents.engines.local import LocalEngine
from rollenv.agents.engines.scoring import score
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.core.errors import UsageError
from rollenv.core.pictures import is_picture_token

A, B, C = drawn(1), drawn(2, 112, 84), drawn(3)


def play(agent, *turns):
    """Play an episode of observations and their pictures, and return the actions."""

    async def episode():
        session = agent.start(None, 0)
        return [await session.act(text, {"images": images, **info}) for text, images, info in turns]

    return asyncio.run(episode())


def turn(text, *images, **info):
    return text, images, info


def parts(text, images):
    pieces, images = text.split("<image>"), iter(images)
    given = [{"type": "text", "text": pieces[0]}]
    for piece in pieces[1:]:
        given += [{"type": "image", "image": next(images).array()}, {"type": "text", "text": piece}]
    return {"role": "user", "content": [part for part in given if part.get("text") != ""]}


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize("text", ["look <image> and\n<image>: what?", "<image><image>", "<image>\n\nsee <image>\n"])
def test_tokens_are_those_of_the_familys_processor(family, text):
    agent = seeing(family)
    talk = agent.conversation()
    talk.add("user", text, (A, B))
    own = processor(agent)
    whole = own.apply_chat_template([parts(text, (A, B))], add_generation_prompt=True, tokenize=False)
    expected = own(text=[whole], images=[[A.array(), B.array()]], return_tensors="pt")["input_ids"][0].tolist()
    token = agent.model.config.image_token_id
    prompt = talk.prompt()
    assert [token if is_picture_token(i) else i for i in prompt] == expected
    shown = [i for i in prompt if is_picture_token(i)]
    count = agent.model.rollenv_vision.count
    assert shown == [A.number] * count(A) + [B.number] * count(B)


@pytest.mark.parametrize("family", FAMILY)
def test_engine_agrees_with_transformers(family):
    agent = seeing(family, temperature=0.0, max_new_tokens=8)
    text = "look <image> and <image>: what?"
    (action,) = play(agent, turn(text, A, B))
    own = processor(agent)
    whole = own.apply_chat_template([parts(text, (A, B))], add_generation_prompt=True, tokenize=False)
    given = own(text=[whole], images=[[A.array(), B.array()]], return_tensors="pt")
    how = {"max_new_tokens": 8, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    out = agent.model.generate(**given, **how)
    expected = out.sequences[0, given["input_ids"].shape[1] :].tolist()[: len(action.response_ids)]
    assert list(action.response_ids) == expected
    rows = torch.cat(out.logits).log_softmax(-1)[: len(expected)]
    assert torch.allclose(
        rows.gather(1, torch.tensor(expected)[:, None])[:, 0], torch.tensor(action.logprobs), atol=1e-4
    )


@pytest.mark.parametrize("family", FAMILY)
def test_log_probabilities_of_engine_and_scores_agree_over_turns(family):
    agent = seeing(family)
    actions = play(agent, turn("see <image>", A), turn("now", B, C), turn("no picture"), turn("<image> again", A))
    assert agent.engine.stats.reused > 0
    scores = score(agent.model, [a.prompt_ids for a in actions], [a.response_ids for a in actions])
    for row, action in enumerate(actions):
        expected = scores.logprobs[row][scores.mask[row].bool()]
        assert torch.allclose(expected, torch.tensor(action.logprobs), atol=1e-4)
    assert actions[3].prompt_ids[: len(actions[2].prompt_ids)] == actions[2].prompt_ids


@pytest.mark.parametrize("max_new_tokens", [1, 6])
def test_members_of_a_group_share_their_pictures_and_pictures_are_seen(max_new_tokens):
    agent = seeing(max_new_tokens=max_new_tokens)
    prompts = [
        (*range(7, 50), *agent.model.rollenv_vision.tokens(p, agent.tokenizer.encode), 9, end)
        for p in (A, B, C)
        for end in (11, 11, 12)
    ]

    async def together():
        sampling, rng = agent.sampling, random.Random(0)
        return await asyncio.gather(*(agent.engine.generate(p, sampling, rng) for p in prompts))

    answers = asyncio.run(together())
    scores = score(agent.model, prompts, [tuple(a.ids) for a in answers])
    for row, answer in enumerate(answers):
        expected = scores.logprobs[row][scores.mask[row].bool()]
        assert torch.allclose(expected, torch.tensor(answer.logprobs), atol=1e-4)
    first = score(agent.model, prompts, [(5,)] * len(prompts)).logprobs[:, 0]
    assert first[0] == first[1]
    assert not torch.isclose(first[0], first[3], atol=1e-3)


@pytest.mark.parametrize("family", FAMILY)
def test_chunks_and_a_cached_prefix_may_cut_a_picture(monkeypatch, family):
    agent = seeing(family)
    monkeypatch.setattr("rollenv.agents.engines.kv_cache._CHUNK_TOKENS", 5)
    agent.engine = LocalEngine(agent.model, agent.engine.stop, keep_tokens=30)  # ends in the middle of a picture
    play(agent, turn("look <image> and <image>", A, B))
    (action,) = play(agent, turn("look <image> and <image>", A, B))
    (score_of,) = score(agent.model, [action.prompt_ids], [action.response_ids]).logprobs
    assert torch.allclose(score_of, torch.tensor(action.logprobs), atol=1e-4)


def test_a_text_that_spells_a_mark_is_text():
    agent = seeing()
    (action,) = play(agent, turn("say <image> or <|image_pad|>"))
    assert not any(map(is_picture_token, action.prompt_ids))
    assert agent.model.config.image_token_id not in action.prompt_ids
    (action,) = play(agent, turn("say <|image_pad|> here: <image>", A))
    assert sum(map(is_picture_token, action.prompt_ids)) == agent.model.rollenv_vision.count(A)
    assert agent.model.config.image_token_id not in action.prompt_ids


@pytest.mark.parametrize("family", FAMILY)
def test_a_sampled_image_token_is_no_picture(family):
    agent = seeing(family)
    token = agent.model.config.image_token_id
    talk = agent.conversation()
    talk.add("user", "see <image>", (A,))
    prompts = [(*talk.prompt(), token, 8), (7, token, 8)]
    for prompt in prompts:
        answer = asyncio.run(agent.engine.generate(prompt, agent.sampling, random.Random(0)))
        again = asyncio.run(agent.engine.generate((*prompt, *answer.ids[:3], token), agent.sampling, random.Random(0)))
        asked, said = [prompt, (*prompt, *answer.ids[:3], token)], [tuple(answer.ids), tuple(again.ids)]
        scores = score(agent.model, [*asked, prompts[0]], [*said, (9,)])  # beside a picture
        for row, expected in enumerate((answer, again)):
            found = scores.logprobs[row][scores.mask[row].bool()]
            assert torch.allclose(found, torch.tensor(expected.logprobs), atol=1e-4)


def test_step_prompts_show_the_current_pictures_only():
    form = StepPrompt("{instructions}\n{history}{observation}\n{state}", history_length=2)
    agent = seeing(prompt=form)
    actions = play(agent, turn("rules <image>", A), turn("board <image>", B), turn("board <image>", C))
    for action, shown in zip(actions, (A, B, C), strict=True):
        assert {i for i in action.prompt_ids if is_picture_token(i)} == {shown.number}
    said = agent.tokenizer.decode([i for i in actions[2].prompt_ids if not is_picture_token(i)])
    assert "rules [image]" in said
    assert "board [image]" in said
    assert "<image>" not in said


def test_pictures_of_a_tool_turn_are_shown_even_if_the_template_would_drop_them():
    agent = seeing(template=DEAF_TOOLS)
    actions = play(agent, turn("call it"), turn("result <image>", A, use_tool=True))
    assert sum(map(is_picture_token, actions[1].prompt_ids)) == agent.model.rollenv_vision.count(A)


def test_marks_and_pictures_must_match():
    with pytest.raises(AgentFailed, match="2 marks <image> for 1 pictures"):
        play(seeing(), turn("<image> <image>", A))


def test_a_cut_picture_is_an_error_that_names_it():
    agent = seeing()
    prompt = (5, *agent.model.rollenv_vision.tokens(A, agent.tokenizer.encode)[:-3])
    with pytest.raises(UsageError, match=r"4 tokens of <Picture 84x56 .*>, which has 6"):
        asyncio.run(agent.engine.generate(prompt, agent.sampling, random.Random(0)))


def test_a_model_of_texts_refuses_pictures_in_a_line():
    agent = seeing()
    agent.model.rollenv_vision = agent.tokenizer.rollenv_vision = None
    with pytest.raises(UsageError, match="reads texts only"):
        play(agent, turn("<image>", A))


def test_a_picture_larger_than_the_context_fills_it():
    agent = seeing()
    agent.engine.max_context = 40
    with pytest.raises(ContextFull):
        play(agent, turn("<image>", drawn(4, 224, 224)))


def test_an_older_transformers_is_refused_for_models_that_see(tmp_path, monkeypatch):
    seeing().save(tmp_path)
    monkeypatch.setattr(vision, "NEEDED", "99.0")
    said = r"transformers 99\.0 or newer, and \d+\.\d+\S* is installed"
    with pytest.raises(UsageError, match=said):
        LocalAgent.load(tmp_path)
    with pytest.raises(UsageError, match=said):
        build_model(TinySize(), build_tokenizer(["up down"], 300, sees=True), 0)


@pytest.mark.parametrize("family", ["qwen2_vl", "smolvlm"])
def test_a_saved_model_sees_the_same(tmp_path, family):
    agent = seeing(family)
    (before,) = play(agent, turn("see <image>", A))
    agent.save(tmp_path)
    loaded = LocalAgent.load(tmp_path)
    (after,) = play(loaded, turn("see <image>", A))
    assert (after.prompt_ids, after.response_ids) == (before.prompt_ids, before.response_ids)
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again" / "preprocessor_config.json").read_bytes() == (
        tmp_path / "preprocessor_config.json"
    ).read_bytes()
