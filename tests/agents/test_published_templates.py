"""The published chat templates in TRL's wheel: prompts of chats with thoughts are those of the template."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest

from rollenv.agents.prompts.chat_format import ChatFormat
from rollenv.agents.prompts.conversation import Conversation
from rollenv.agents.tiny.model import build_tokenizer

FOLDER = next(Path(__file__).parents[2].glob(".bench/trl/lib/python*/site-packages/trl/chat_templates"), None)
TEMPLATES = {
    file.stem: file for file in sorted(FOLDER.glob("*.jinja")) if "_training" not in file.stem
} if FOLDER else {}  # fmt: skip
MARKS = re.compile(r"<[|｜]?/?[A-Za-z_][\w▁:-]{1,40}[|｜]?>|\[/?[A-Z_]{3,30}\]|</s>|<s>")
ENDS = ("<|return|>", "<|im_end|>", "<|eot_id|>", "<|eot|>", "<end_of_turn>", "<turn|>", "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>", "<|end|>")  # fmt: skip

every_template = pytest.mark.parametrize("name", TEMPLATES or [pytest.param("", marks=pytest.mark.skip)])
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not TEMPLATES, reason="needs the templates of trl: make peers"),
]


@functools.cache
def tokenizer_of(name: str):
    template = TEMPLATES[name].read_text(encoding="utf-8")
    tokenizer = build_tokenizer(["the user said hello to the assistant: hm, it is 5, look paris"] * 9, 330)
    marks = sorted({*MARKS.findall(template), "<bos>"})
    tokenizer.add_special_tokens({"additional_special_tokens": [m for m in marks if "think" not in m and "/" not in m]})
    tokenizer.add_tokens([m for m in marks if "think" in m or "/" in m])
    tokenizer.bos_token = "<bos>"
    tokenizer.eos_token = next((end for end in ENDS if end in template), "<|endoftext|>")
    tokenizer.chat_template = template
    return tokenizer


def rendered(tokenizer, messages: list[dict[str, Any]], tools: Any = None, opening: bool = True) -> str:
    if "message['content'][0]" in tokenizer.chat_template:  # it takes content only in parts
        messages = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
    return str(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=opening))


def sampled(tokenizer, before: list[dict[str, Any]], answer: dict[str, Any], after: dict[str, Any], tools: Any) -> str:
    """What a model that was trained on the template writes for a message, with its end token."""
    opening = rendered(tokenizer, before, tools)
    last = rendered(tokenizer, [*before, answer], tools, opening=False)
    text = last[len(opening) :].rstrip() if last.startswith(opening) else ""
    if not text:  # the last answer is shown without its thought, or with an empty one where the opening has none
        thought = answer.get("reasoning_content", "")
        opens = next((mark for mark in ("<think>", "<|channel>thought") if opening.rstrip().endswith(mark)), "")
        text = f"{thought}\n</think>\n\n" if opens else ""
        text += last.rpartition(answer["content"])[1] + last.rpartition(answer["content"])[2].rstrip()
    end = text.find(tokenizer.eos_token)
    if end >= 0:
        return text[: end + len(tokenizer.eos_token)]
    if not MARKS.findall(text[-40:]):  # the next role's token ends the turn
        tail = rendered(tokenizer, [*before, answer, after], tools).rpartition(text.strip())[2]
        text += (MARKS.findall(tail) or [tokenizer.eos_token])[0]
    return text


def play(name: str, *steps: tuple[dict[str, Any], dict[str, Any]], tools: Any = None) -> list[tuple[str, str]]:
    """Return the prompts of a chat and what the template renders."""
    tokenizer = tokenizer_of(name)
    chat = Conversation(ChatFormat.of(tokenizer), tools=tools)
    messages = [{"role": "user", "content": "hello"}]
    chat.add("user", "hello")
    pairs = [(tokenizer.decode(chat.prompt()), rendered(tokenizer, messages, tools))]
    for answer, after in steps:
        text = sampled(tokenizer, messages, answer, after, tools)
        ids = tokenizer.encode(text, add_special_tokens=False)
        end = next((i for i, token in enumerate(ids, 1) if token in chat.format.stop_ids), len(ids))
        chat.answer(ids[:end])
        chat.add(after["role"], after["content"])
        messages += [answer, after]
        pairs.append((tokenizer.decode(chat.prompt()), rendered(tokenizer, messages, tools)))
    return pairs


def answer(content: str, thought: str = "") -> dict[str, Any]:
    keys = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), thought) if thought else {}
    return {"role": "assistant", "content": content, **keys}


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


@every_template
def test_plain_and_thinking_turns(name):
    steps = [
        (answer("It is 5."), user("sure")), (answer("the 5", "hm hm"), user("so")),
        (answer("hm it is"), user("and")), (answer("look", "it is, hm"), user("the end")),
    ]  # fmt: skip
    for ours, its in play(name, *steps):
        assert ours == its
