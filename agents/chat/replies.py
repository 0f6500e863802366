"""Parses the answers of a chat endpoint, whole or as a stream of events; nothing in them is trusted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from rollenv.agents.engines.base import Ids
from rollenv.parsing import well_formed


class BadReply(Exception):
    """The response is not a chat completion; a retry may help."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the endpoint gave it; the arguments are JSON text, if the model got it right."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class Reply:
    """One answer."""

    text: str
    calls: list[ToolCall] = field(default_factory=list)
    finish: str = "stop"
    prompt_ids: Ids = ()
    ids: Ids = ()
    logprobs: tuple[float, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    thoughts: str = ""
    """The thoughts, if the server separates them from the text (vLLM, DeepSeek, OpenRouter)."""


def parse_json(body: bytes, content_type: str) -> Any:
    """Parse the body of a response.

    Args:
        content_type: of the response, for error messages.

    Raises:
        BadReply: the body is not JSON.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        start = body[:80].decode("utf-8", "replace")
        kind = content_type or "no content type"
        raise BadReply(f"the answer ({kind}) is not JSON or was cut: {len(body)} bytes, beginning {start!r}") from error


#: Counts above this are mistakes.
_MOST_TOKENS = 10**9
#: Under which names servers give thoughts.
_THOUGHTS = ("reasoning_content", "reasoning")


def read_reply(data: Any) -> Reply:
    """The answer in the data of a chat completion.

    Raises:
        BadReply: if there is none.
    """
    if isinstance(data, dict) and data.get("error"):
        raise BadReply(f"the endpoint reports an error: {error_text(data)}")
    choices = data.get("choices") if isinstance(data, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise BadReply("the answer has no choices")
    choice = choices[0]
    message = choice.get("message")
    if not isinstance(message, dict):
        raise BadReply("the answer's choice has no message")
    calls, content = _calls(message.get("tool_calls")), _text(message.get("content"))
    finish = str(choice.get("finish_reason") or "stop")
    thoughts = next((message[key] for key in _THOUGHTS if isinstance(message.get(key), str)), "")
    if content is None:
        if not (calls or thoughts) and finish != "length":  # a model may use all its tokens for its thoughts
            why = message.get("refusal") or f"its finish_reason is {finish!r}"
            raise BadReply(f"the answer has no content ({str(why)[:200]})")
        content = ""
    usage = _mapping(data.get("usage"))
    prompt_tokens = _count(usage.get("prompt_tokens"))
    cached = _count(_mapping(usage.get("prompt_tokens_details")).get("cached_tokens"))
    return Reply(
        well_formed(content),
        calls,
        "length" if finish == "length" else "stop",
        _ids(data.get("prompt_token_ids")),
        _ids(choice.get("token_ids")),
        _logprobs(_mapping(choice.get("logprobs")).get("content")),
        prompt_tokens,
        _count(usage.get("completion_tokens")),
        min(cached, prompt_tokens),
        well_formed(thoughts),
    )


def error_text(data: Any) -> str:
    """The message in an error's data, in any of the usual forms; one line of at most 300 characters."""
    found = data
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(key):
            found = found[key]
    return " ".join((found if isinstance(found, str) else json.dumps(found)).split())[:300]


async def read_events(lines: AsyncIterator[str]) -> Any:
    """The data of a whole completion, put together from a stream of events.

    Raises:
        BadReply: if the stream breaks off, or holds no completion.
    """
    whole: dict[str, Any] = {"choices": []}
    finished = done = False
    async for line in lines:  # to its end, so that the connection can serve again
        if done or not line.startswith("data:"):
            continue  # comments, names of events, empty lines
        data = line[5:].strip()
        if data == "[DONE]":
            finished = done = True
            continue
        event = parse_json(data.encode(), "text/event-stream")
        if not isinstance(event, dict) or event.get("error"):
            raise BadReply(f"the stream reports an error: {error_text(event)}")
        try:
            _add_event(whole, event)
        except (TypeError, ValueError) as error:
            raise BadReply(f"an event of the stream has another form: {str(error)[:100]}") from error
        finished = finished or any(c.get("finish_reason") for c in whole["choices"])
    if not finished:
        raise BadReply("the stream was cut before the answer's end")
    return whole


def _add_event(whole: dict[str, Any], event: dict[str, Any]) -> None:
    for key in ("usage", "prompt_token_ids"):
        if event.get(key):
            whole[key] = event[key]
    choices = event.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return  # the last event of OpenAI's streams has only the usage
    if not whole["choices"]:
        whole["choices"].append({"message": {"content": None}, "token_ids": [], "logprobs": {"content": []}})
    choice, part = whole["choices"][0], choices[0]
    message, delta = choice["message"], _mapping(part.get("delta"))
    for key in ("content", *_THOUGHTS):
        if (text := _text(delta.get(key))) is not None:
            message[key] = (message.get(key) or "") + text
    for call in delta.get("tool_calls") or ():
        _add_call(message.setdefault("tool_calls", []), _mapping(call))
    choice["token_ids"] += part.get("token_ids") or ()
    choice["logprobs"]["content"] += _mapping(part.get("logprobs")).get("content") or ()
    choice["finish_reason"] = part.get("finish_reason") or choice.get("finish_reason")


def _add_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """Names and ids come once, arguments in pieces."""
    index, function = part.get("index"), _mapping(part.get("function"))
    if not calls or (isinstance(index, int) and index >= len(calls)):
        calls.append({"id": "", "function": {"name": "", "arguments": ""}})
    call = calls[index if isinstance(index, int) and 0 <= index < len(calls) else -1]
    call["id"] = part.get("id") or call["id"]
    call["function"]["name"] += function.get("name") or ""
    call["function"]["arguments"] += _json_text(function.get("arguments") or "")


def _text(content: Any) -> str | None:
    """The text of a message; some servers give it in parts."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    parts = [_mapping(part).get("text") for part in content]
    texts = [text for text in parts if isinstance(text, str)]
    return "".join(texts) if texts else None


def _calls(data: Any) -> list[ToolCall]:
    """Each with an id of its own: the answers to calls name them."""
    calls: dict[str, ToolCall] = {}
    for number, call in enumerate(data if isinstance(data, list) else ()):
        function = _mapping(_mapping(call).get("function"))
        if not isinstance(function.get("name"), str):
            raise BadReply("the answer calls a tool without a name")
        own = well_formed(str(_mapping(call).get("id") or ""))
        own = own if own and own not in calls else f"call_{number}"
        text = _json_text(function.get("arguments") or {})
        calls[own] = ToolCall(own, well_formed(function["name"]), well_formed(text))
    return list(calls.values())


def _json_text(arguments: Any) -> str:
    """Some servers give arguments as JSON, not as its text."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _mapping(data: Any) -> dict[str, Any]:
    return data if isinstance(data, dict) else {}


def _count(data: Any) -> int:
    """A number of tokens; 0 for what cannot be one."""
    return data if type(data) is int and 0 < data <= _MOST_TOKENS else 0


def _ids(data: Any) -> Ids:
    return tuple(data) if isinstance(data, list) and all(type(i) is int for i in data) else ()


def _logprobs(data: Any) -> tuple[float, ...]:
    numbers = [_mapping(entry).get("logprob") for entry in data] if isinstance(data, list) else []
    return tuple(float(n) for n in numbers if isinstance(n, int | float)) if None not in numbers else ()
