"""One call of a model, in whichever dialect it came."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rollenv.core import RollenvError

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function that an answer makes."""

    id: str
    name: str
    arguments: str
    """JSON as the model wrote it, which may not be valid; where a dialect has an object instead, compact JSON of it."""
    namespace: str = ""
    """Of the function, in the Responses dialect."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a chat."""

    role: Role
    """"developer" is "system"."""
    text: str = ""
    """The text of all blocks, joined without anything between them."""
    calls: tuple[Call, ...] = ()
    """Of an assistant."""
    call_id: str = ""
    """The call that a tool's message answers."""
    reasoning: str = ""
    """Of an assistant, where the client sends it back."""
    images: tuple[str, ...] = ()
    """URLs, in the order of their blocks."""


@dataclass(frozen=True, slots=True)
class Request:
    """All that a client asks for with one call."""

    messages: tuple[Message, ...]
    """System prompts and instructions are the first ones; results of tools come in the order they were sent."""
    model: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Functions in the form ``{"type": "function", "function": {"name", "description", "parameters"}}``, with a key
    ``namespace`` besides where they have one. Tools that a server would run (web search) are left out."""
    tool_choice: str = "auto"
    """"auto", "none", "required", or the name of a function."""
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool = False
    include_usage: bool = True
    """Whether a stream ends with the usage (in chat completions, ``stream_options.include_usage``)."""
    include_tokens: bool = False
    """Chat completions with ``return_token_ids`` or ``logprobs``: the answer has token ids and log-probabilities."""
    previous: str = ""
    """Id of the answer whose chat comes before ``messages`` (``previous_response_id``)."""


Finish = Literal["stop", "stop_text", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a call."""

    text: str
    """Without reasoning, calls, special tokens, and what a stop text cut off."""
    calls: tuple[Call, ...] = ()
    reasoning: str = ""
    finish: Finish = "stop"
    stop_text: str = ""
    """The stop text that ended it, where ``finish`` is "stop_text"."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt's tokens, those that had been computed before."""
    completion_tokens: int = 0
    prompt_ids: tuple[int, ...] = ()
    response_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    """Without a prefix; each dialect puts its own before it ("chatcmpl-", "resp_", "msg_")."""
    created: int = 0
    """Seconds since 1970."""

    @property
    def message(self) -> Message:
        """The answer as a client would send it back."""
        return Message("assistant", self.text, self.calls, reasoning=self.reasoning)


#: The answer with an id (without prefix), or with a call of that id, in the same session; None if there is none.
Stored = Callable[[str], Answer | None]

#: Kinds of errors, with the status that they have in every dialect unless it has one of its own.
ERRORS = {
    "invalid": 400,
    "overflow": 400,
    "limit": 400,
    "auth": 401,
    "not_found": 404,
    "late": 408,
    "ended": 410,
    "too_large": 413,
    "failed": 500,
    "overloaded": 503,
}


class GatewayError(RollenvError):
    """A call that gets no answer.

    Args:
        kind: one of :data:`ERRORS`; "overflow" is a prompt that leaves no room for an answer.
        message: what happened and what to do, for the reader of the client's log.
        param: the field of the request that is at fault.
        tokens: of the prompt, for "overflow".
        maximum: tokens that the context holds, for "overflow"; 0 if unknown.
    """

    def __init__(self, kind: str, message: str, *, param: str | None = None, tokens: int = 0, maximum: int = 0):
        super().__init__(message)
        self.kind, self.param, self.tokens, self.maximum = kind, param, tokens, maximum
        self.status = ERRORS[kind]


def ended() -> GatewayError:
    """The error of every call after its session's end."""
    return GatewayError("ended", "the episode of this session is over; the agent has to stop")


def canonical(arguments: str) -> str:
    """Arguments as JSON with sorted keys and nothing between; as they are where they are not JSON."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments


def as_openai(message: Message) -> dict[str, Any]:
    """A message in the form of OpenAI's chat completions, without reasoning."""
    data: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.images:
        images = [{"type": "image_url", "image_url": {"url": url}} for url in message.images]
        data["content"] = [{"type": "text", "text": message.text}, *images]
    if message.calls:
        data["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    if message.role == "tool":
        data["tool_call_id"] = message.call_id
    return data
