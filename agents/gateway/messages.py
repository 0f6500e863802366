"""A model call, independent of its dialect."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rollenv.core.errors import RollenvError
from rollenv.core.pictures import Picture

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function call in an answer."""

    id: str
    name: str
    arguments: str
    """The model's JSON, which may be invalid; compact JSON for dialects that have an object instead."""
    namespace: str = ""
    """Namespace of the function, in the Responses dialect."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a chat."""

    role: Role
    """The role; "developer" becomes "system"."""
    text: str = ""
    """The text of all blocks, joined without a separator."""
    calls: tuple[FunctionCall, ...] = ()
    """Calls of an assistant."""
    call_id: str = ""
    """The call that a tool's message answers."""
    reasoning: str = ""
    """Reasoning of an assistant, if the client sends it back."""
    images: tuple[str | Picture, ...] = ()
    """URLs, in the order of their blocks; what a model sees itself, as pictures."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A client's request."""

    messages: tuple[Message, ...]
    """Messages with system prompts and instructions first, and tool results in the order they were sent."""
    model: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Functions in the form ``{"type": "function", "function": {"name", "description", "parameters"}}``, with the
    additional keys ``namespace``, ``strict``, and ``form`` for calls in a form of their own ("custom", "local_shell").
    Tools that a server would run (web search) are left out."""
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
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further settings, by their names in chat completions, for an endpoint that may know them."""
    ignored: tuple[str, ...] = ()
    """Names of settings that cannot be passed on to any model."""
    previous: str = ""
    """Id of the answer whose chat precedes ``messages`` (``previous_response_id``)."""


Finish = Literal["stop", "stop_text", "length", "tool_calls", "content_filter"]


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The answer to a call."""

    text: str
    """The text without reasoning, calls, special tokens, and everything from a stop text on."""
    calls: tuple[FunctionCall, ...] = ()
    reasoning: str = ""
    finish: Finish = "stop"
    stop_text: str = ""
    """The stop text that ended it, if ``finish`` is "stop_text"."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Number of prompt tokens that were computed before."""
    completion_tokens: int = 0
    prompt_ids: tuple[int, ...] = ()
    response_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    """Id without the prefix of a dialect ("chatcmpl-", "resp_", "msg_")."""
    created: int = 0
    """Seconds since 1970."""
    echo: Mapping[str, Any] = field(default_factory=dict)
    """Fields that an endpoint wants back with the calls; see :class:`~rollenv.agents.chat.replies.ChatReply`."""

    @property
    def message(self) -> Message:
        """The answer as a message of a later request."""
        return Message("assistant", self.text, self.calls, reasoning=self.reasoning)


#: Looks up the answer with an id (without prefix), or with a call of that id, in the same session.
Stored = Callable[[str], ModelAnswer | None]

#: Kinds of errors with their HTTP status, unless a dialect has its own.
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
    """A call without an answer.

    Args:
        kind: one of :data:`ERRORS`; "overflow" is a prompt that leaves no room for an answer.
        maximum: size of the context in tokens, for "overflow"; 0 if unknown.
        details: further data for Anthropic's clients.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        param: str | None = None,
        tokens: int = 0,
        maximum: int = 0,
        details: Mapping[str, Any] | None = None,
    ):
        super().__init__(message)
        self.kind, self.param, self.tokens, self.maximum, self.details = kind, param, tokens, maximum, details
        self.status = ERRORS[kind]


def ended_error() -> GatewayError:
    """Create the error of a call after its session's end."""
    return GatewayError("ended", "the episode of this session is over; the agent has to stop")


def canonical(arguments: str) -> str:
    """Return arguments as compact JSON with sorted keys; unchanged if they are not JSON."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments


def image_json(image: str | Picture | Mapping[str, Any]) -> Any:
    """Return the JSON form of an image without its data: by its hash, which of a data URL is that of the URL."""
    if isinstance(image, Picture):
        return image.as_json(data=False)
    if isinstance(image, Mapping) or not image.startswith("data:"):
        return image
    return {"type": "image", "sha256": hashlib.sha256(image.encode()).hexdigest()}


def as_openai(message: Message, *, data: bool = True) -> dict[str, Any]:
    """Convert a message to the form of OpenAI's chat completions, without reasoning.

    Args:
        data: with the images' data; else their JSON forms.
    """
    shown: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.images:
        urls = [image.url if isinstance(image, Picture) else image for image in message.images]
        images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        shown["content"] = [
            {"type": "text", "text": message.text},
            *(images if data else map(image_json, message.images)),
        ]
    if message.calls:
        shown["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    if message.role == "tool":
        shown["tool_call_id"] = message.call_id
    return shown
