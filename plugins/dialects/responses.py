"""OpenAI's Responses API. Ids refer to an answer: ``resp_<id>``, ``rs_<id>``, ``msg_<id>``, ``fc_<id of the call>``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rollenv.agents.gateway.dialects import chat, client_tools, contents, fields
from rollenv.agents.gateway.dialects.fields import Known, event, invalid
from rollenv.agents.gateway.messages import FunctionCall, GatewayError, Message, ModelAnswer, ModelRequest, Stored
from rollenv.plugins.dialects import response_items

paths = ("responses",)
counts = {"responses/input_tokens": "input_tokens"}
keepalive = chat.keepalive
status = chat.status
error = chat.error

#: Fields that are read, or have no use here.
_READ = (
    *("input", "instructions", "model", "tools", "tool_choice", "stop", "max_output_tokens", "temperature", "top_p"),
    *("stream", "previous_response_id", "conversation", "prompt", "background", "background_options", "reasoning"),
    "text",
)
#: Fields with the same name and meaning in chat completions.
_OF_CHAT = (
    *("metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"),
    *("service_tier", "user"),
)
_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
#: What the events of an item add to it, by its type.
_STREAMED = {"message": "content", "reasoning": "content", "function_call": "arguments", "custom_tool_call": "input"}


def read(body: dict[str, Any], stored: Stored, known: Known | None = None) -> ModelRequest:
    """Parse the request in a body."""
    if isinstance(body, dict) and isinstance(body.get("input"), str):
        body = {**body, "input": [{"role": "user", "content": body["input"]}]}
    body, items = fields.lists(
        body,
        known,
        input=lambda item, at: [(_kind(item), message) for message in _messages(item, at, stored)],
        tools=_tools,
    )
    for key in ("conversation", "prompt"):
        if body.get(key) is not None:
            raise invalid("is not stored here; send the items themselves", key)
    if body.get("background"):
        raise invalid("cannot be true: an answer is sent when it is complete", "background")
    messages = contents.system(body, "instructions")
    parts: list[str] = []
    for kind, message in items["input"]:
        if message.role != "assistant":
            parts = []
        elif parts and not _begins_answer(kind, parts):
            last = messages.pop()
            message = replace(
                last,
                text=last.text + message.text,
                calls=last.calls + message.calls,
                reasoning=last.reasoning + message.reasoning,
                images=last.images + message.images,
            )
            parts.append(kind)
        else:
            parts = [kind]
        messages.append(message)
    previous = fields.text(body, "previous_response_id").removeprefix("resp_")
    if previous and stored(previous) is None:
        raise _not_found(previous, "previous_response_id")
    if not messages and not previous:
        raise invalid("must hold at least an item", "input")
    more, ignored = _settings(body)
    common = fields.common(body, items["tools"], "stop", "max_output_tokens")
    return ModelRequest(tuple(messages), **common, more=more, ignored=ignored, previous=previous)


def _settings(body: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return further settings by their names in chat completions, and the names of others."""
    others = fields.rest(body, *_READ)
    more = {name: others.pop(name) for name in _OF_CHAT if name in others}
    reasoning, text = (fields.field(body, name, dict) or {} for name in ("reasoning", "text"))
    kind = fields.field(text, "format", dict, "text") or {}
    if kind.get("type") == "json_schema":
        schema = {name: value for name, value in kind.items() if name != "type" and value is not None}
        more["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif kind.get("type", "text") != "text":
        more["response_format"] = kind
    said = {"reasoning_effort": reasoning.get("effort"), "verbosity": text.get("verbosity")}
    return more | {name: value for name, value in said.items() if value}, tuple(fields.unheard(others))


def _kind(item: dict[str, Any]) -> str:
    """Return the kind of an item, also of one that is only referred to."""
    kind = str(item.get("type") or ("message" if "role" in item else "item_reference"))
    prefix = str(item.get("id")).partition("_")[0]
    return {"msg": "message", "rs": "reasoning"}.get(prefix, kind) if kind == "item_reference" else kind


def _begins_answer(kind: str, parts: list[str]) -> bool:
    """Return whether an assistant's item begins another answer: one has its thoughts first, and one message at most."""
    if kind == "reasoning":
        return parts[-1] != kind
    return kind == "message" and kind in parts


def _messages(item: dict[str, Any], where: str, stored: Stored) -> Iterator[Message]:
    """Yield the message of an item or the part of one; of a call that the server ran, also its result."""
    kind = fields.field(item, "type", str, where) or ("message" if "role" in item else "item_reference")
    call_id = fields.text(item, "call_id", where)
    if kind.startswith("local_shell_call"):
        call_id = call_id or fields.text(item, "id", where).removeprefix("lsh_")

    # What was said: messages and thoughts.
    if kind == "message":
        role = item.get("role")
        if role not in ("system", "developer", "user", "assistant"):
            raise invalid("must be system, developer, user or assistant", f"{where}.role")
        text, images = contents.content(item, "content", where)
        yield Message("system" if role == "developer" else role, text, images=images)
    elif kind == "reasoning":
        text = contents.content(item, "content", where)[0] or contents.content(item, "summary", where)[0]
        yield Message("assistant", reasoning=text)

    # What stands for other items.
    elif kind.endswith("compaction") and item.get("encrypted_content"):
        raise invalid("a compacted history of another server cannot be read here; send the items themselves", where)
    elif kind == "item_reference":
        yield _find_referred(fields.required(item, "id", where), where, stored)

    # Results of calls, and calls; one that the server ran holds both.
    elif kind.endswith("_call_output") or (call_id and kind.endswith("_output")):
        text, images = contents.content(item, "tools" if "tools" in item else "output", where)
        if item.get("status") == "failed":
            text = f"[failed]\n{text}".rstrip()
        yield Message("tool", text, call_id=call_id or fields.required(item, "call_id", where), images=images)
    elif kind.endswith("_call"):
        ran = not call_id and kind not in ("function_call", *response_items.KINDS)
        call_id = call_id or fields.required(item, "id" if ran else "call_id", where)
        yield Message("assistant", calls=(_call(item, kind, call_id, where),))
        if ran:
            key = next((key for key in ("error", "output", "outputs", "results") if item.get(key)), "")
            found = [({"type": "result", **block}, at) for block, at in contents.blocks(item, key, where)]
            text, images = contents.join_blocks(found)
            yield Message("tool", text or f"[{kind}]", call_id=call_id, images=images)

    else:  # a part of a message without the message, which some clients send
        text, images = contents.join_blocks([(item, where)])
        yield Message("user", text, images=images)


def _call(item: dict[str, Any], kind: str, call_id: str, where: str) -> FunctionCall:
    """Read a call of a function or of a tool whose calls have a form of their own."""
    if kind == "function_call":
        arguments = fields.text(item, "arguments", where)
    else:
        arguments = response_items.arguments(item, where)
    name = fields.text(item, "name", where)
    if not name and kind in ("function_call", "custom_tool_call"):
        name = fields.required(item, "name", where)
    name = name or kind.removesuffix("_call")
    return FunctionCall(call_id, name, arguments, fields.text(item, "namespace", where))


def _find_referred(reference: str, where: str, stored: Stored) -> Message:
    """Return the part of an answer that an item's id refers to."""
    prefix, _, id_ = reference.partition("_")
    answer = stored(id_)
    if answer is not None:
        if prefix == "msg":
            return Message("assistant", answer.text)
        if prefix == "rs":
            return Message("assistant", reasoning=answer.reasoning)
        if calls := tuple(call for call in answer.calls if call.id == id_):
            return Message("assistant", calls=calls)
    raise _not_found(reference, where)


def _not_found(reference: str, where: str) -> GatewayError:
    return GatewayError(
        "not_found", f"{where}: this session has no {reference!r}; send the items themselves", param=where
    )


def _tools(of: dict[str, Any], where: str, namespace: str = "") -> Iterator[dict[str, Any]]:
    """Yield the function of a tool, or those of a namespace, without tools that a server would run."""
    if of.get("type") == "function":
        yield fields.function(of, where, namespace=namespace)
    elif of.get("type") == "namespace" and not namespace:
        name = fields.required(of, "name", where)
        for one, at in fields.objects(of, "tools", where):
            yield from _tools(one, at, name)
    else:
        yield from response_items.tools(of, where, namespace)


def response_body(answer: ModelAnswer, request: ModelRequest) -> dict[str, Any]:
    """Return the body of an answer that is not streamed."""
    cut, wanted = _CUT.get(answer.finish), dict(request.more.get("response_format", {"type": "text"}))
    wanted |= wanted.pop("json_schema", {})
    state = "incomplete" if cut else "completed"
    output: list[dict[str, Any]] = []
    if answer.reasoning:
        content = [{"type": "reasoning_text", "text": answer.reasoning}]
        output.append({"id": f"rs_{answer.id}", "type": "reasoning", "summary": [], "content": content})
    if answer.text or not answer.calls:
        part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        output.append({"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "content": [part]})
    for call in answer.calls:
        form, arguments = client_tools.form_of(call, request.tools)
        if form:
            output.append(response_items.item(call, form, arguments))
            continue
        item = {"id": f"fc_{call.id}", "type": "function_call", "call_id": call.id, "name": call.name}
        space = {"namespace": call.namespace} if call.namespace else {}
        output.append({**item, **space, "arguments": call.arguments})
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": answer.created,
        "status": state,
        "error": None,
        "incomplete_details": {"reason": cut} if cut else None,
        "instructions": None,
        "max_output_tokens": request.max_tokens,
        "metadata": {},
        "model": request.model,
        "output": [{"status": state, **item} for item in output],
        "parallel_tool_calls": request.more.get("parallel_tool_calls", True),
        "previous_response_id": f"resp_{request.previous}" if request.previous else None,
        "temperature": request.temperature,
        "text": {"format": wanted},  # clients parse by it
        "tool_choice": "auto",
        "tools": [],
        "top_p": request.top_p,
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": answer.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        },
    }


def response_events(answer: ModelAnswer, request: ModelRequest) -> Iterator[bytes]:
    """Yield the stream of an answer."""
    for number, (name, data) in enumerate(_events(response_body(answer, request))):
        yield event({"type": name, "sequence_number": number, **data}, name)


def _events(response: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    start = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield "response.created", {"response": start}
    yield "response.in_progress", {"response": start}
    for index, item in enumerate(response["output"]):
        at: dict[str, Any] = {"output_index": index, "item_id": item["id"]}
        said = _STREAMED.get(item["type"], "")
        empty = {said: [] if said == "content" else ""} if said else {}
        yield "response.output_item.added", {"output_index": index, "item": {**item, "status": "in_progress", **empty}}
        if said == "arguments":
            yield "response.function_call_arguments.delta", {**at, "delta": item["arguments"]}
            done = {**at, "name": item["name"], "arguments": item["arguments"]}
            yield "response.function_call_arguments.done", done
        elif said == "input":
            yield "response.custom_tool_call_input.delta", {**at, "delta": item["input"]}
            yield "response.custom_tool_call_input.done", {**at, "input": item["input"]}
        elif said:
            (part,) = item["content"]
            kind, at["content_index"] = part["type"], 0
            logprobs: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
            yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
            yield f"response.{kind}.delta", {**at, "delta": part["text"], **logprobs}
            yield f"response.{kind}.done", {**at, "text": part["text"], **logprobs}
            yield "response.content_part.done", {**at, "part": part}
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield f"response.{response['status']}", {"response": response}


def error_event(problem: GatewayError) -> bytes:
    """Return the end of a stream that fails after its start: the event that SDKs raise, then the one for Codex."""
    body = error(problem)
    details = body["error"]
    # Codex does not retry these codes.
    code = details["code"] or ("invalid_prompt" if problem.status < 500 else "server_error")
    failed = {**response_body(ModelAnswer(""), ModelRequest(())), "status": "failed", "output": [], "usage": None}
    failed["error"] = {"code": code, "message": details["message"]}
    error_fields = {"code": code, "message": details["message"], "param": details["param"], **body}
    return event({"type": "error", "sequence_number": 0, **error_fields}, "error") + event(
        {"type": "response.failed", "sequence_number": 1, "response": failed}, "response.failed"
    )
