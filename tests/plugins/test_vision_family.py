"""The vision family of the page "Extend": a class of another package, found by its entry point."""

from __future__ import annotations

import asyncio
import pickle
import re
from pathlib import Path

import pytest
import torch
import transformers
from packages import declare
from seeing import drawn, processor, seeing

from rollenv.agents.engines.scoring import score
from rollenv.agents.local import LocalAgent
from rollenv.agents.vision import why_blind
from rollenv.core.errors import BadEntryPoint, RollenvError
from rollenv.core.pictures import is_picture_token
from rollenv.core.plugins import entry_points, load

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "extend.md").read_text()
A, B = drawn(1), drawn(2, 112, 84)


@pytest.fixture
def acme(tmp_path, monkeypatch):
    """Install the page's vision family as a package."""
    (tmp_path / "acme").mkdir()
    (code,) = re.findall(r"```python\n# acme/vision.py\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "acme" / "vision.py").write_text(code)
    (entry,) = re.findall(r'"rollenv.vision"\]\n(.*)', PAGE)
    declare(tmp_path, "acme", "[rollenv.vision]\n" + entry.replace('"', ""))
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        entry_points.cache_clear()
        yield
    entry_points.cache_clear()


def act(agent, *turns):
    async def episode():
        session = agent.start(None, 0)
        return [await session.act(text, {"images": images}) for text, images in turns]

    return asyncio.run(episode())


@pytest.mark.usefixtures("acme")
def test_it_sees_as_transformers_does():
    agent = seeing("llava", temperature=0.0, max_new_tokens=8)
    (action,) = act(agent, ("look <image> and <image>: what?", (A, B)))
    own = processor(agent)
    image = {"type": "image"}
    parts = [{"type": "text", "text": text} for text in ("look ", " and ", ": what?")]
    messages = [{"role": "user", "content": [parts[0], image, parts[1], image, parts[2]]}]
    whole = own.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    given = own(text=[whole], images=[[A.array(), B.array()]], return_tensors="pt")
    token = agent.model.config.image_token_id
    assert [token if is_picture_token(i) else i for i in action.prompt_ids] == given["input_ids"][0].tolist()
    out = agent.model.generate(**given, max_new_tokens=8, do_sample=False)
    expected = out[0, given["input_ids"].shape[1] :].tolist()
    assert list(action.response_ids) == expected[: len(action.response_ids)]


@pytest.mark.usefixtures("acme")
def test_turns_are_scored_as_played_and_a_saved_model_sees_the_same(tmp_path):
    turns = (("see <image>", (A,)), ("now", (B, A)), ("no picture", ()))
    agent = seeing("llava")
    actions = act(agent, *turns)
    scores = score(agent.model, [a.prompt_ids for a in actions], [a.response_ids for a in actions])
    for row, action in enumerate(actions):
        found = scores.logprobs[row][scores.mask[row].bool()]
        assert torch.allclose(found, torch.tensor(action.logprobs), atol=1e-4)
    agent.save(tmp_path / "saved")
    again = act(LocalAgent.load(tmp_path / "saved"), *turns)
    assert [a.prompt_ids for a in again] == [a.prompt_ids for a in actions]
    assert [a.response_ids for a in again] == [a.response_ids for a in actions]
    eyes = pickle.loads(pickle.dumps(agent.model.rollenv_vision))
    assert (eyes.count(A), eyes.written(A)) == (16, "<image>" * 16)


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(("length", "says"), [(15, "15 tokens .* 16 features"), (0, "no <image>")])
def test_a_class_with_a_wrong_number_of_tokens_is_refused(length, says):
    agent = seeing("llava")
    agent.model.config.image_seq_length = length
    with pytest.raises(RollenvError, match=says):
        act(agent, ("see <image>", (A,)))


def test_without_the_package_its_models_are_blind_and_the_families_are_named():
    with pytest.raises(BadEntryPoint, match="llava"):
        seeing("llava")
    why = why_blind(transformers.LlavaConfig())
    assert "'gemma3', 'qwen2_5_vl', 'qwen2_vl', 'qwen3_vl', 'smolvlm'" in why
    assert "llava" not in entry_points("rollenv.vision")
    assert load("rollenv.vision", "qwen3_vl").__name__ == "DeepQwenVision"
