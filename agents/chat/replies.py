"""Parses the answers of a chat endpoint, complete or as a stream of events, without trusting their contents."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollenv.agents.engines.base import Ids
from rollenv.core.parsing import well_formed


class BadReply(Exception):
    """The response is not a chat completion; a retry may help."""


class ErrorInReply(BadReply):
    """The response has an error, ``data``, instead of an answer."""

    def __init__(self, data: Any):
        super().__init__(f"the endpoint reports an error in its answer: {error_text(data)}")
        self.data = data


@dataclass(frozen=True, slots=True)
class ChatToolCall:
    """A tool call of the endpoint; the arguments should be JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class ChatReply:
    """One answer."""

    text: str
    calls: list[ChatToolCall] = field(default_factory=list)
    finish: str = "stop"
    prompt_ids: Ids = ()
    ids: Ids = ()
    logprobs: tuple[float, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False
    """True if a token count is estimated, not the endpoint's."""
    thoughts: str = ""
    """The thoughts, if the server separates them from the text (vLLM, DeepSeek, OpenRouter)."""
    echo: dict[str, Any] = field(default_factory=dict)
    """Fields that go back with the calls (:func:`as_answered`): DeepSeek and Gemini refuse a request without them."""


def parse_json(body: bytes, content_type: str) -> Any:
    """Parse the body of a response."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        start = body[:80].decode("utf-8", "replace")
        kind = content_type or "no content type"
        raise BadReply(f"the answer ({kind}) is not JSON or was cut: {len(body)} bytes, beginning {start!r}") from error


#: Larger counts are ignored as errors.
_MOST_TOKENS = 10**9
#: Names of the counts of prompt tokens, answer tokens, cached prompt tokens, and all tokens.
_NAMES = (
    ("prompt_tokens", "input_tokens", "prompt_eval_count", "promptTokenCount", "inputTokens", "promptTokens"),
    ("completion_tokens", "output_tokens", "eval_count", "candidatesTokenCount", "outputTokens", "completionTokens"),
    ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens", "cachedContentTokenCount"),
    ("total_tokens", "totalTokenCount", "totalTokens"),
)
#: Servers' names for thoughts.
_THOUGHTS = ("reasoning_content", "reasoning")
#: Fields of a message with calls, and of a call, that go back to the server.
_ECHOED, _OF_CALL = (*_THOUGHTS, "reasoning_details"), "extra_content"
#: Finish reasons of failures: aborted, disconnected, out of resources.
_BROKEN = re.compile(
    r"error|abort|cancel|fail|time.?d?.?out|unavailable|resource|overload|interrupt|network|unknown|unspecified|disconnect"
    r"|exception|crash|evict|kill",
    re.IGNORECASE,
)
_REACHED_LIMIT = re.compile(r"length|max|context", re.IGNORECASE)
_WITHHELD = re.compile(r"filter|refus|safety|sensitive|recitation|prohibit|block", re.IGNORECASE)


def read_reply(data: Any) -> ChatReply:
    """Read the answer in the data of a chat completion."""
    choice = next(iter(_list(_mapping(data).get("choices"))), None)
    if error := _error(data) or _error(choice):
        raise ErrorInReply(error)
    if not isinstance(choice, dict):
        raise BadReply(f"the answer has no choices: {error_text(data)}")
    message = choice.get("message")
    if not isinstance(message, dict):
        raise BadReply("the answer's choice has no message")
    if error := _error(message):
        raise ErrorInReply(error)
    finish = str(choice.get("finish_reason") or "")
    if _BROKEN.search(finish):
        raise ErrorInReply(f"its finish_reason is {finish[:100]!r}")
    calls, content = _calls(message.get("tool_calls")), _text(message.get("content"))
    reached_limit = bool(_REACHED_LIMIT.search(finish))
    thoughts = next((message[key] for key in _THOUGHTS if isinstance(message.get(key), str)), "")
    withheld = bool(_WITHHELD.search(finish))
    if not (content or calls or thoughts):
        content = _text(message.get("refusal")) or content
        if not (content or reached_limit or withheld) and (content is None or not finish):  # thoughts may be its length
            raise BadReply(f"the answer has no content (its finish_reason is {finish[:100]!r})")
    prompt_tokens, completion_tokens, cached_tokens = _usage(data)
    return ChatReply(
        well_formed(content or ""),
        calls,
        "length" if reached_limit else "content_filter" if withheld else "stop",
        _ids(data.get("prompt_token_ids")),
        _ids(choice.get("token_ids")),
        _logprobs(_mapping(choice.get("logprobs")).get("content")),
        prompt_tokens,
        completion_tokens,
        cached_tokens,
        thoughts=well_formed(thoughts),
        echo=_echo(message) if calls else {},
    )


def _echo(message: dict[str, Any]) -> dict[str, Any]:
    echo: dict[str, Any] = {key: message[key] for key in _ECHOED if message.get(key)}
    extras = [{_OF_CALL: call[_OF_CALL]} if call.get(_OF_CALL) else {} for call in message["tool_calls"]]
    text = well_formed(json.dumps({**echo, "tool_calls": extras}, ensure_ascii=False))
    return dict(json.loads(text, parse_constant=str))  # NaN and Infinity cannot be sent


def as_answered(message: dict[str, Any], echo: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer's message for a later request, with the fields that its server wants back."""
    calls = [{**call, **extra} for call, extra in zip(message["tool_calls"], echo["tool_calls"], strict=True)]
    return {**message, **echo, "tool_calls": calls}


def _error(data: Any) -> Any:
    """Return the error in an answer or a part of one, or None."""
    if not isinstance(data, dict):
        return None
    if "error" in (data.get("object"), data.get("type")):
        return data.get("error") or data
    return data.get("error")


def error_text(data: Any) -> str:
    """Return the message in an error's data, in any common form, as one line of at most 300 characters."""
    message = data
    for key in ("error", "message", "detail"):
        if isinstance(message, dict) and message.get(key):
            message = message[key]
    return " ".join(_json_text(message).split())[:300]


async def read_events(lines: AsyncIterator[str]) -> Any:
    """Assemble the data of a completion from a stream of events."""
    whole: dict[str, Any] = {"choices": []}
    done = failed = False
    async for line in lines:  # to its end, so that the connection can be reused
        failed = failed or bool(re.match(r"event:\s*error\b", line))
        if done or not line.startswith("data:"):
            continue  # comment, event name, empty line
        data = line[5:].strip()
        if data == "[DONE]":
            done = True
            continue
        event = parse_json(data.encode(), "text/event-stream")
        if not isinstance(event, dict) or failed:
            raise ErrorInReply(event)
        if error := _error(event):
            raise ErrorInReply(error)
        try:
            _add_event(whole, event)
        except (TypeError, ValueError) as error:
            raise BadReply(f"an event of the stream has another form: {str(error)[:100]}") from error
    if not any(choice.get("finish_reason") for choice in whole["choices"]):
        raise BadReply("the stream has no choices, or was cut before the answer's end")
    return whole


def _add_event(whole: dict[str, Any], event: dict[str, Any]) -> None:
    whole |= {key: value for key, value in event.items() if value and key != "choices"}  # usage and other fields
    choices = event.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return  # the last event of OpenAI's streams has only the usage
    if not whole["choices"]:
        whole["choices"].append({"message": {"content": None}, "token_ids": [], "logprobs": {"content": []}})
    choice, part = whole["choices"][0], choices[0]
    message, delta = choice["message"], _mapping(part.get("delta"))
    for key in ("content", "refusal", *_THOUGHTS):
        if (text := _text(delta.get(key))) is not None:
            message[key] = (message.get(key) or "") + text
    if details := _list(delta.get("reasoning_details")):
        message["reasoning_details"] = [*message.get("reasoning_details", ()), *details]
    for each in delta.get("tool_calls") or ():
        _add_call(message.setdefault("tool_calls", []), _mapping(each))
    choice["token_ids"] += part.get("token_ids") or ()
    choice["logprobs"]["content"] += _mapping(part.get("logprobs")).get("content") or ()
    for key in ("finish_reason", "error", "usage"):
        choice[key] = part.get(key) or choice.get(key)


def _add_call(calls: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    """Add a piece of a call.

    OpenAI numbers the calls and sends name and id once, before the arguments, which come in pieces. Other servers give
    all calls the number 0, or none, repeat the name in each piece, or give each piece an id of its own. So a piece with
    a name also begins a call if the arguments before it are complete or belong to another name.
    """
    number, own, function = piece.get("index"), piece.get("id"), _mapping(piece.get("function"))
    name, arguments = function.get("name") or "", _json_text(function.get("arguments") or "")
    numbered = calls if number is None else [call for call in calls if call["index"] == number]
    if not numbered:  # the first of its number; without numbers, a name or a new id begins a call
        begins = not calls or bool(name) or bool(own and all(call["id"] != own for call in calls))
    else:  # a number may be that of all calls
        last = next((call for call in reversed(numbered) if own and call["id"] == own), numbered[-1])
        before, known = last["function"]["arguments"], last["function"]["name"]
        complete = _is_object(before)
        if complete and own and own == last["id"] and name == known and arguments in ("", before):
            return  # the whole call once more
        if before:  # a name after arguments: another call, or the same name in each piece
            begins = bool(name) and (name != known or complete)
        else:  # a name after a name: another call, or a name in pieces
            begins = bool(name and own and last["id"]) and own != last["id"]
    if begins:
        function = {"name": name, "arguments": arguments}
        calls.append({"index": number, "id": own, "function": function, _OF_CALL: piece.get(_OF_CALL)})
        return
    call = last if numbered else calls[-1]
    call["id"] = call["id"] or own
    call[_OF_CALL] = call[_OF_CALL] or piece.get(_OF_CALL)
    if name != call["function"]["name"]:
        call["function"]["name"] += name
    call["function"]["arguments"] += arguments


def _is_object(text: str) -> bool:
    """Return whether a text is a complete JSON object."""
    try:
        return text.rstrip().endswith("}") and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _text(content: Any) -> str | None:
    """Return the text of a message, which some servers send in parts."""
    if isinstance(content, str):
        return content
    parts = [_mapping(part).get("text") for part in _list(content)]
    texts = [text for text in parts if isinstance(text, str)]
    return "".join(texts) if texts else None


def _calls(data: Any) -> list[ChatToolCall]:
    """Read tool calls, each with a unique id, to which tool messages refer."""
    calls: dict[str, ChatToolCall] = {}
    for number, call in enumerate(_list(data)):
        function = _mapping(_mapping(call).get("function"))
        if not isinstance(function.get("name"), str):
            raise BadReply("the answer calls a tool without a name")
        own = well_formed(str(_mapping(call).get("id") or ""))
        if not own or own in calls:
            own = f"call_{number}"
        while own in calls:
            own += "_"
        text = _json_text(function.get("arguments") or {})
        calls[own] = ChatToolCall(own, well_formed(function["name"]), well_formed(text))
    return list(calls.values())


def _json_text(arguments: Any) -> str:
    """Return arguments as JSON text; some servers send them as JSON."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _list(data: Any) -> list[Any]:
    return data if isinstance(data, list) else []


def _mapping(data: Any) -> dict[str, Any]:
    return data if isinstance(data, dict) else {}


def _usage(data: Any) -> tuple[int, int, int]:
    """Return the numbers of prompt, answer, and cached prompt tokens, by any of their names; 0 if absent."""
    for usage in _parts(data):
        prompt, answer, cached, total = (max(_count(usage.get(name)) for name in names) for names in _NAMES)
        if not (prompt or answer):
            continue
        if "input_tokens" in usage and "prompt_tokens" not in usage:  # Anthropic counts cached tokens separately
            prompt += sum(_count(usage.get(f"cache_{what}_input_tokens")) for what in ("read", "creation"))
        answer += _count(usage.get("thoughtsTokenCount"))
        cached = max([cached, *(_count(_mapping(value).get("cached_tokens")) for value in usage.values())])
        prompt, answer = prompt or max(0, total - answer), answer or max(0, total - prompt)
        return prompt, answer, min(cached, prompt)
    return 0, 0, 0


def _parts(data: Any) -> Iterator[dict[str, Any]]:
    """Yield the mappings in the data of an answer that may have its usage, the outermost first."""
    level = [data]
    for _ in range(4):
        level = [part for each in level for part in (_list(each) or [each]) if isinstance(part, dict)]
        yield from level
        level = [value for part in level for key, value in part.items() if key not in ("message", "logprobs")]


def _count(data: Any) -> int:
    """Read a number of tokens; 0 if it is invalid."""
    if isinstance(data, str) and data.isdecimal() and len(data) < 12:
        data = int(data)
    whole = type(data) is int or (isinstance(data, float) and data.is_integer())
    return int(data) if whole and 0 < data <= _MOST_TOKENS else 0


def _ids(data: Any) -> Ids:
    ids = tuple(_list(data))
    return ids if all(type(i) is int for i in ids) else ()


def _logprobs(data: Any) -> tuple[float, ...]:
    numbers = [_mapping(entry).get("logprob") for entry in _list(data)]
    return () if None in numbers else tuple(float(n) for n in numbers if isinstance(n, int | float))
