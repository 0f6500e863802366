"""Chats as clients write them, and junk, drawn at random."""

from __future__ import annotations

import json
import random
import re

from hypothesis import strategies as st

from rollenv.agents.gateway.messages import FunctionCall, Message

TOOL = {"name": "bash", "description": "Run.", "parameters": {"type": "object", "properties": {"command": {}}}}
FUNCTION = {"type": "function", "function": TOOL}

texts = st.sampled_from(["", "a", " \n b ", "caf\u00e9\u2028", "\U0001f642", '{"x": 1}', "<think>", "\x00\x1b["])
urls = st.sampled_from(["https://a/b.png", "data:image/png;base64,AAAA", "http://a"])
images = st.lists(urls, max_size=2).map(tuple)
arguments = st.sampled_from(
    [
        "{}",
        '{"command":"echo caf\u00e9\\n"}',
        '{"b":[1,2.5,null,{"\U0001f642":-0.0}],"a":0.1}',
        '{"n":123456789012345678901}',
    ]
)
users = st.builds(Message, st.just("user"), texts, images=images)
systems = st.builds(Message, st.just("system"), texts.filter(bool))


@st.composite
def turns(draw):
    """An assistant's message with the results of its calls."""
    ids = draw(st.permutations(["call_1", "call_2", "call_3"]))[: draw(st.integers(0, 3))]
    calls = tuple(FunctionCall(id_, "bash", draw(arguments)) for id_ in ids)
    results = [Message("tool", draw(texts), call_id=id_, images=draw(images)) for id_ in draw(st.permutations(ids))]
    return [Message("assistant", draw(texts), calls, reasoning=draw(texts)), *results]


@st.composite
def chats(draw):
    """A chat as clients have it: turns, with a user or system message or two before each."""
    found = draw(st.lists(systems, max_size=1))
    for turn in draw(st.lists(turns(), max_size=2)):
        found += draw(st.lists(users | systems, min_size=1, max_size=2)) + turn
    return (*found, draw(users))


class Writer:
    """Writes messages as a client of a dialect does, in any of the forms that clients use."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def either(self, *forms):
        return self.random.choice(forms)

    def content(self, message, text="text", image=lambda url: {"type": "image_url", "image_url": {"url": url}}):
        if not message.images and self.either(True, False):
            return message.text
        middle = len(message.text) // 2
        pieces = self.either([message.text], [message.text[:middle], message.text[middle:]])
        mark = self.either({}, {"cache_control": {"type": "ephemeral"}})
        return [*({"type": text, "text": piece, **mark} for piece in pieces), *map(image, message.images)]

    def chat(self, chat):
        messages = []
        for message in chat:
            written = {"role": message.role, "content": self.content(message)}
            if message.role == "system":
                written["role"] = self.either("system", "developer")
            if message.role == "assistant":
                if not message.text:
                    written["content"] = self.either("", None, [])
                calls = [
                    {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                    for call in message.calls
                ]
                written["tool_calls"] = calls or self.either(None, [])
                written[self.either("reasoning_content", "reasoning")] = message.reasoning or self.either("", None)
            if message.role == "tool":
                written["tool_call_id"] = message.call_id
            messages.append(written)
        return {"messages": messages, "model": "m", "store": False}

    def responses(self, chat):
        body = {"model": "m", "store": False, "include": ["reasoning.encrypted_content"]}
        if chat[0].role == "system" and self.either(True, False):
            body["instructions"], chat = chat[0].text, chat[1:]
        items = body["input"] = []
        if len(chat) == 1 and not chat[0].images and chat[0].role == "user":
            body["input"] = chat[0].text
            return body
        for message in chat:

            def image(url):
                return {"type": "input_image", "image_url": url, "detail": "auto"}

            if message.role == "tool":
                output = self.content(message, "input_text", image)
                items.append({"type": "function_call_output", "call_id": message.call_id, "output": output})
                continue
            if message.reasoning:
                part = [{"type": "reasoning_text", "text": message.reasoning}]
                summary = [{"type": "summary_text", "text": message.reasoning}]
                items.append({"type": "reasoning", "id": "rs_1", "encrypted_content": None})
                items[-1] |= self.either({"summary": [], "content": part}, {"summary": summary, "content": None})
            if message.text or not message.calls:
                kind = "output_text" if message.role == "assistant" else "input_text"
                role = self.either("system", "developer") if message.role == "system" else message.role
                typed = self.either({}, {"type": "message", "id": "msg_1", "status": "completed"})
                items.append({**typed, "role": role, "content": self.content(message, kind, image)})
            for call in message.calls:
                named = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
                items.append({"type": "function_call", **named, **self.either({}, {"id": f"fc_{call.id}"})})
        return body

    def messages(self, chat):
        body = {"model": "m", "max_tokens": 100, "metadata": {"user_id": "u"}, "thinking": {"type": "adaptive"}}

        def image(url):
            if url.startswith("data:"):
                kind, data = url.removeprefix("data:").split(";base64,")
                return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}
            return {"type": "image", "source": {"type": "url", "url": url}}

        def blocks(message):
            content = self.content(message, image=image)
            return [{"type": "text", "text": content}] if isinstance(content, str) else content

        if chat[0].role == "system":
            body["system"], chat = self.content(chat[0]), chat[1:]
        messages = body["messages"] = []
        for before, message in zip([None, *chat], chat, strict=False):
            if message.role == "assistant":
                content = [{"type": "thinking", "thinking": message.reasoning, "signature": "s"}]
                content = content if message.reasoning else [{"type": "redacted_thinking", "data": "x"}]
                content += blocks(message) if message.text else []
                for call in message.calls:
                    named = {"id": call.id, "name": call.name, "input": json.loads(call.arguments)}
                    content.append({"type": "tool_use", **named})
            elif message.role == "tool":
                result = {"type": "tool_result", "tool_use_id": message.call_id, "is_error": False}
                content = [{**result, "content": self.content(message, image=image)}]
            else:
                content = blocks(message)
            if before and before.role == "tool" and message.role in ("tool", "user"):
                messages[-1]["content"] += content
            else:
                messages.append({"role": "user" if message.role == "tool" else message.role, "content": content})
        return body


WORDS = re.findall(
    r"\w+",
    """system user assistant tool message function_call function_call_output reasoning item_reference text image
    image_url tool_use tool_result thinking function namespace required any auto rs_1 msg_1 fc_1""",
)
KEYS = re.findall(
    r"\w+",
    """type role content text id call_id name arguments function tool_calls tool_call_id output image_url source url
    data summary thinking input tool_use_id messages tools tool_choice stop n system instructions max_tokens temperature
    previous_response_id stream_options stop_sequences""",
)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(WORDS)
junk = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)


def spoil(body, found, chance, keys):
    """Put junk somewhere into a body, at one of its keys or of these."""
    while chance.random() < 0.8:
        inner = [one for one in (body.values() if isinstance(body, dict) else body) if isinstance(one, dict | list)]
        body = chance.choice(inner) if inner else body
    if isinstance(body, dict):
        body[chance.choice([*body, *keys])] = found
    elif body:
        body[chance.randrange(len(body))] = found
