"""OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollenv.agents.gateway.dialects import client_tools, contents, fields
from rollenv.agents.gateway.dialects.fields import Known, event, invalid
from rollenv.agents.gateway.messages import FunctionCall, GatewayError, Message, ModelAnswer, ModelRequest, Stored

paths = ("chat/completions",)
counts: Mapping[str, str] = {}
keepalive = b": keepalive\n\n"

#: Fields that are read, or have no use here.
_READ = (
    *("messages", "model", "tools", "tool_choice", "stop", "max_completion_tokens", "max_tokens", "temperature"),
    *("top_p", "stream", "stream_options", "n", "return_token_ids", "logprobs", "top_logprobs", "modalities"),
)
_CODES = {"overflow": "context_length_exceeded", "auth": "invalid_api_key"}


def read(body: dict[str, Any], stored: Stored, known: Known | None = None) -> ModelRequest:
    """Parse the request in a body; ``stored`` is not used, as this dialect does not refer to earlier answers."""
    body, items = fields.lists(body, known, needed="messages", messages=_message, tools=_tool)
    if isinstance(body.get("n"), bool) or body.get("n") not in (None, 1):
        raise invalid("must be 1; send a request for each answer", "n")
    if body.get("functions") or body.get("function_call"):
        raise invalid("is an old form; send tools and tool_choice", "functions")
    if body.get("modalities") not in (None, ["text"]):
        raise invalid("must be text alone", "modalities")
    options = fields.field(body, "stream_options", dict) or {}
    return ModelRequest(
        tuple(items["messages"]),
        **fields.common(body, items["tools"], "stop", "max_completion_tokens", "max_tokens"),
        more=fields.rest(body, *_READ),
        include_usage=fields.field(options, "include_usage", bool, "stream_options") or False,
        include_tokens=any([fields.field(body, "return_token_ids", bool), fields.field(body, "logprobs", bool)]),
    )


def _tool(of: dict[str, Any], where: str) -> Iterator[dict[str, Any]]:
    if of.get("type", "function") == "function":
        yield fields.function(fields.field(of, "function", dict, where) or {}, f"{where}.function")
    else:
        yield from client_tools.custom(of, where)


def _message(of: dict[str, Any], where: str) -> Iterator[Message]:
    text, images = contents.content(of, "content", where)
    match of.get("role"):
        case "system" | "developer":
            yield Message("system", text, images=images)
        case "user":
            yield Message("user", text, images=images)
        case "assistant":
            if fields.field(of, "audio", dict, where) and not text:
                raise invalid("refers to what is not kept here; send its transcript as content", f"{where}.audio")
            calls = tuple(_call(one, path) for one, path in fields.objects(of, "tool_calls", where))
            # vLLM and OpenRouter use "reasoning", all others DeepSeek's name.
            reasoning = fields.field(of, "reasoning_content", str, where) or fields.text(of, "reasoning", where)
            said = text or fields.text(of, "refusal", where)
            yield Message("assistant", said, calls, reasoning=reasoning, images=images)
        case "tool":
            yield Message("tool", text, call_id=fields.required(of, "tool_call_id", where), images=images)
        case _:
            raise invalid("must be system, developer, user, assistant or tool", f"{where}.role")


def _call(of: dict[str, Any], where: str) -> FunctionCall:
    if custom := fields.field(of, "custom", dict, where):
        given = fields.compact({"input": fields.text(custom, "input", where)})
        return FunctionCall(fields.required(of, "id", where), fields.required(custom, "name", where), given)
    named = fields.field(of, "function", dict, where) or {}
    arguments = named.get("arguments")
    if not isinstance(arguments, str):
        arguments = fields.compact({} if arguments is None else arguments)
    return FunctionCall(
        fields.required(of, "id", where), fields.required(named, "name", f"{where}.function"), arguments
    )


def response_body(answer: ModelAnswer, request: ModelRequest) -> dict[str, Any]:
    """Return the body of an answer that is not streamed."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or (None if answer.calls else "")}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [_written(call, request) for call in answer.calls]
    ids, choice = _tokens(answer, request)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(answer), **choice}
    return {**_head(answer, request, "chat.completion"), "choices": [choice], "usage": _usage(answer), **ids}


def response_events(answer: ModelAnswer, request: ModelRequest) -> Iterator[bytes]:
    """Yield the stream of an answer."""
    head = _head(answer, request, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]}

    ids, choice = _tokens(answer, request)
    yield event({**chunk({"role": "assistant", "content": ""}, **choice), **ids})
    if answer.reasoning:
        yield event(chunk({"reasoning_content": answer.reasoning}))
    if answer.text:
        yield event(chunk({"content": answer.text}))
    for index, call in enumerate(answer.calls):
        written = _written(call, request)
        kind = written["type"]
        (said,) = written[kind].keys() - {"name"}
        yield event(chunk({"tool_calls": [{"index": index, **written, kind: {"name": call.name, said: ""}}]}))
        yield event(chunk({"tool_calls": [{"index": index, kind: {said: written[kind][said]}}]}))
    yield event(chunk({}, _finish(answer)))
    if request.include_usage:
        yield event({**head, "choices": [], "usage": _usage(answer)})
    yield b"data: [DONE]\n\n"


def _head(answer: ModelAnswer, request: ModelRequest, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": answer.created, "model": request.model}


def _finish(answer: ModelAnswer) -> str:
    return "stop" if answer.stop_text else answer.finish


def _written(call: FunctionCall, request: ModelRequest) -> dict[str, Any]:
    form, given = client_tools.form_of(call, request.tools)
    if form == "custom":
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, **given}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(answer: ModelAnswer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


def _tokens(answer: ModelAnswer, request: ModelRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return token fields by vLLM's names, for the answer and for its choice."""
    if not request.include_tokens or not answer.response_ids:  # an upstream endpoint's answer has none
        return {}, {}
    content = []
    for token, logprob in zip(answer.response_ids, answer.logprobs, strict=True):
        text = f"token_id:{token}"  # vLLM's format
        content.append({"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []})
    return (
        {"prompt_token_ids": list(answer.prompt_ids)},
        {"token_ids": list(answer.response_ids), "logprobs": {"content": content, "refusal": None}},
    )


def status(problem: GatewayError) -> int:
    """Return the HTTP status of an error."""
    return problem.status


def error(problem: GatewayError) -> dict[str, Any]:
    """Return the body of an error."""
    message = str(problem)
    if problem.kind == "overflow" and problem.maximum:  # clients compact their context at these words
        message = (
            f"This model's maximum context length is {problem.maximum} tokens. However, your messages resulted in "
            f"{problem.tokens} tokens. Please reduce the length of the messages."
        )
    kind = "invalid_request_error" if problem.status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": problem.param, "code": _CODES.get(problem.kind)}}


def error_event(problem: GatewayError) -> bytes:
    """Return the end of a stream that fails after its start."""
    return event(error(problem))
