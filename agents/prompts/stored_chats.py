"""Stored chats as tokens: what a model would have read and sampled, if it had said them."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollenv.agents.engines.base import Ids
from rollenv.agents.prompts.chat_format import THOUGHT, ChatFormat
from rollenv.agents.prompts.conversation import Conversation
from rollenv.agents.prompts.template import Message
from rollenv.core.errors import UsageError
from rollenv.core.picture_forms import WORD
from rollenv.core.pictures import MARK, Picture
from rollenv.core.tools.calls import call_instructions


def stored_answers(
    chat_format: ChatFormat,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[dict[str, Any]] = (),
    images: Mapping[str, Picture] = {},
) -> Iterator[tuple[Ids, Ids, float]]:
    """Yield prompt, answer and loss weight of each assistant message, as tokens.

    The prompt of an answer is what the model reads in an episode with this history, and the answer what it has to
    sample there, with its stop token. So nothing is searched for in a text, and training and play see the same tokens.

    Args:
        messages: of OpenAI's shape; an assistant message with ``weight`` 0, or ``train`` false, is only read.
        tools: OpenAI's schemas, for the chat template.
        images: pictures by their hashes, for contents with parts that name them (``Picture.as_json``).

    Raises:
        UsageError: a message is not of that shape, or out of order; or the template refuses it.
    """
    leading = itertools.takewhile(lambda m: m["role"] == "system", messages)
    system = [_text(message, number) for number, message in enumerate(leading, 1)]
    try:
        chat = Conversation(chat_format, "\n\n".join(system) or None, [*tools] or None)
    except UsageError:  # the template does not support tools
        chat = Conversation(chat_format, "\n\n".join([*system, call_instructions([*tools], "hermes")]))
    asked = False
    for number, message in enumerate(messages[len(system) :], len(system) + 1):
        if message["role"] != "assistant":
            chat.extend([_given(chat_format, message, number, images)])
            asked = True
            continue
        if not asked:
            before = "another answer" if number > len(system) + 1 else "nothing that asks for it"
            raise UsageError(f"message {number} is an answer after {before}; a user or tool message has to be between")
        weight, asked = _weight(message, number), False
        answer = chat.with_ids(_answer(chat_format, message, number, learned=weight > 0))
        prompt, ids = chat.prompt(), chat.frame.answer_ids(answer)
        chat.answer(ids, [call["id"] for call in answer.get("tool_calls", ())])
        yield prompt, ids, weight


def _weight(message: Mapping[str, Any], number: int) -> float:
    weight = message.get("weight", message.get("train", True))
    if not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        raise UsageError(
            f"message {number}: weight is a number of at least 0, and train true or false, not {weight!r:.40}"
        )
    return float(weight)


def _given(chat_format: ChatFormat, message: Mapping[str, Any], number: int, images: Mapping[str, Picture]) -> Message:
    """Build a message that is only read."""
    parts = message.get("content")
    seen = [images.get(str(part.get("sha256"))) for part in parts or () if isinstance(part, dict)] if images else []
    shown = [image for image in seen if image]
    if shown and isinstance(parts, list):
        texts = (str(part.get("text", "")).replace(MARK, WORD) if "text" in part else MARK for part in parts)
        message = {**message, "content": "".join(texts)}
    built = chat_format.message(message["role"], _text(message, number), shown)
    if message["role"] == "tool":
        return {**chat_format.result_message("", str(message.get("tool_call_id") or "")), "content": built["content"]}
    return built


def _answer(chat_format: ChatFormat, message: Mapping[str, Any], number: int, learned: bool) -> Message:
    """Build an answer, with its thought and calls."""
    text, calls = _text(message, number), []
    given = message.get("tool_calls") or ()
    if not isinstance(given, list | tuple):
        raise UsageError(f"message {number}: tool_calls are a list of calls, not {given!r:.40}")
    for place, call in enumerate(given):
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise UsageError(f"message {number}: a tool call is an object with a function, not {call!r:.40}")
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                arguments = None
        if not isinstance(arguments, dict) or not isinstance(function.get("name"), str):
            raise UsageError(f"message {number}: a tool call needs a name, and arguments that are a JSON object")
        calls.append((str(call.get("id") or f"call_{number}_{place}"), function["name"], arguments))
    shown = chat_format.call_message(text, calls) if calls else chat_format.message("assistant", text)
    thought = message.get("reasoning_content") or message.get("thinking") or message.get("reasoning")
    if thought:
        shown[chat_format.thought_key or THOUGHT] = chat_format.message("assistant", str(thought))["content"]
    if learned and not (text.strip() or calls or thought):
        raise UsageError(f"message {number} is an empty answer: there is nothing to imitate")
    return shown


def _text(message: Mapping[str, Any], number: int) -> str:
    """Return the text of a message."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        content = "".join(texts) if len(texts) == len(parts) else parts
    if content is not None and not isinstance(content, str):
        raise UsageError(f"message {number}: its content has to be text, not {content!r:.60}")
    return content or ""
