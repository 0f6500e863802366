"""Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollenv.agents.gateway.dialects import contents, fields
from rollenv.agents.gateway.dialects.fields import Known, event, invalid
from rollenv.agents.gateway.messages import FunctionCall, GatewayError, Message, ModelAnswer, ModelRequest, Stored
from rollenv.plugins.dialects import anthropic_tools, common

paths = ("messages",)
counts = {"messages/count_tokens": "input_tokens"}
keepalive = b'event: ping\ndata: {"type": "ping"}\n\n'

#: Fields that are read, or have no use here.
_READ = (
    *("messages", "system", "model", "tools", "tool_choice", "stop_sequences", "max_tokens", "temperature", "top_p"),
    *("stream", "output_config", "output_format"),
)
_STOP_REASONS = {
    **{"stop": "end_turn", "stop_text": "stop_sequence", "length": "max_tokens", "tool_calls": "tool_use"},
    "content_filter": "refusal",
}
_ERROR_TYPES = {
    "auth": "authentication_error",
    "not_found": "not_found_error",
    "too_large": "request_too_large",
    "failed": "api_error",
    "overloaded": "overloaded_error",
}


def read(body: dict[str, Any], stored: Stored, known: Known | None = None) -> ModelRequest:
    """Parse the request in a body, also for counting tokens; ``stored`` is not used."""
    body, items = fields.lists(body, known, needed="messages", messages=_messages, tools=_tool)
    messages = [*contents.system(body, "system"), *items["messages"]]
    if body.get("thread"):  # SDKs then send the whole chat
        details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        raise GatewayError("invalid", "thread: send the whole chat instead", param="thread", details=details)
    container = body.get("container")
    if isinstance(container, str) or (isinstance(container, dict) and container.get("id")):
        raise invalid("refers to what is not kept here; leave it out", "container")
    if body.get("compaction"):
        raise invalid("is not done here; ask for a summary in a message", "compaction")
    more, ignored = _settings(body)
    common = fields.common(body, items["tools"], "stop_sequences", "max_tokens")
    return ModelRequest(tuple(messages), **common, more=more, ignored=ignored)


def _settings(body: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return further settings by their names in chat completions, and the names of others."""
    others = fields.rest(body, *_READ)
    choice: Any = body.get("tool_choice") if isinstance(body.get("tool_choice"), dict) else {}
    output = fields.field(body, "output_config", dict) or {}
    kind = fields.field({**body, **output}, "format" if "format" in output else "output_format", dict) or {}
    said = {
        "top_k": others.pop("top_k", None),
        "parallel_tool_calls": False if choice.get("disable_parallel_tool_use") is True else None,
        "reasoning_effort": output.get("effort"),
        "response_format": common.json_format("", kind["schema"]) if "schema" in kind else None,
    }
    return {name: value for name, value in said.items() if value is not None}, tuple(fields.unheard(others))


def _tool(of: dict[str, Any], where: str) -> Iterator[dict[str, Any]]:
    if of.get("type") in (None, "custom"):
        yield fields.function(of, where, "input_schema")
    else:
        yield from anthropic_tools.functions(of, where)


def _messages(of: dict[str, Any], where: str) -> list[Message]:
    content = contents.blocks(of, "content", where)
    match of.get("role"):
        case "system":
            text, images = contents.join_blocks(content)
            return [Message("system", text, images=images)]
        case "assistant":
            return [*_assistant(content)]
        case "user":
            return _user(content)
    raise invalid("must be user, assistant or system", f"{where}.role")


def _assistant(content: list[tuple[dict[str, Any], str]]) -> Iterator[Message]:
    """Yield an answer, in parts where it holds results of tools that a server ran."""
    part: list[tuple[dict[str, Any], str]] = []
    for block, where in content:
        if not str(block.get("type")).endswith("_tool_result"):
            part.append((block, where))
            continue
        if part:
            yield _answer(part)
        yield _result(block, where)
        part = []
    if part or not content:
        yield _answer(part)


def _answer(content: list[tuple[dict[str, Any], str]]) -> Message:
    blocks, calls, reasoning = [], [], ""
    for block, where in content:
        kind = block.get("type")
        if kind == "thinking":
            reasoning += fields.text(block, "thinking", where)
        elif kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
            arguments = common.arguments(block, "input", where)
            calls.append(
                FunctionCall(fields.required(block, "id", where), fields.required(block, "name", where), arguments)
            )
        elif kind != "redacted_thinking":
            blocks.append((block, where))
    text, images = contents.join_blocks(blocks)
    return Message("assistant", text, tuple(calls), reasoning=reasoning, images=images)


def _user(content: list[tuple[dict[str, Any], str]]) -> list[Message]:
    """Return a message for each tool result, then the user's message."""
    messages, blocks = [], []
    for block, where in content:
        if str(block.get("type")).endswith("tool_result"):
            messages.append(_result(block, where))
        else:
            blocks.append((block, where))
    if blocks or not messages:
        text, images = contents.join_blocks(blocks)
        messages.append(Message("user", text, images=images))
    return messages


def _result(block: dict[str, Any], where: str) -> Message:
    text, images = contents.content(block, "content", where)
    return Message("tool", text, call_id=fields.required(block, "tool_use_id", where), images=images)


def response_body(answer: ModelAnswer, request: ModelRequest) -> dict[str, Any]:
    """Return the body of an answer that is not streamed."""
    content: list[dict[str, Any]] = []
    if answer.reasoning:  # clients require a signature and send it back unchanged
        content.append({"type": "thinking", "thinking": answer.reasoning, "signature": answer.id})
    if answer.text or not answer.calls:
        content.append({"type": "text", "text": answer.text})
    content += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": common.as_object(call)} for call in answer.calls
    ]
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": _STOP_REASONS[answer.finish],
        "stop_sequence": answer.stop_text or None,
        "usage": {
            "input_tokens": answer.prompt_tokens - answer.cached_tokens,
            "cache_read_input_tokens": answer.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": answer.completion_tokens,
        },
    }


def response_events(answer: ModelAnswer, request: ModelRequest) -> Iterator[bytes]:
    """Yield the stream of an answer."""
    for data in _events(response_body(answer, request)):
        yield event(data, data["type"])


def _events(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    start = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
    start["usage"] = {**message["usage"], "output_tokens": 0}
    yield {"type": "message_start", "message": start}
    for index, block in enumerate(message["content"]):
        match block["type"]:
            case "thinking":
                empty: dict[str, Any] = {"thinking": "", "signature": ""}
                deltas = [
                    {"type": "thinking_delta", "thinking": block["thinking"]},
                    {"type": "signature_delta", "signature": block["signature"]},
                ]
            case "text":
                empty, deltas = {"text": ""}, [{"type": "text_delta", "text": block["text"]}]
            case _:
                empty = {"input": {}}
                deltas = [{"type": "input_json_delta", "partial_json": fields.compact(block["input"])}]
        yield {"type": "content_block_start", "index": index, "content_block": {**block, **empty}}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stopped = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
    yield {"type": "message_delta", "delta": stopped, "usage": message["usage"]}
    yield {"type": "message_stop"}


def status(problem: GatewayError) -> int:
    """Return the HTTP status of an error."""
    return {"overloaded": 529}.get(problem.kind, problem.status)


def error(problem: GatewayError) -> dict[str, Any]:
    """Return the body of an error."""
    message = str(problem)
    if problem.kind == "overflow":  # Claude Code parses both numbers
        numbers = f"{problem.tokens} tokens > {problem.maximum} maximum"
        message = f"prompt is too long: {numbers if problem.maximum else problem}"
    kind = _ERROR_TYPES.get(problem.kind, "invalid_request_error")
    details = {"details": dict(problem.details)} if problem.details else {}
    return {"type": "error", "error": {"type": kind, "message": message, **details}}


def error_event(problem: GatewayError) -> bytes:
    """Return the end of a stream that fails after its start."""
    return event(error(problem), "error")
