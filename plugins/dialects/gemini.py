"""Google's Gemini API. The path has the model's name and whether the answer is a stream."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rollenv.agents.gateway.dialects import chat, contents, fields
from rollenv.agents.gateway.dialects.fields import Known, event, invalid
from rollenv.agents.gateway.messages import FunctionCall, GatewayError, Message, ModelAnswer, ModelRequest, Role, Stored
from rollenv.plugins.dialects import common

_CALL = "{version}/models/{model}"
paths = (f"{_CALL}:generateContent", f"{_CALL}:streamGenerateContent")
counts = {f"{_CALL}:countTokens": "totalTokens"}
#: An empty line: SDKs treat any other line that does not begin with "data:" as an error.
keepalive = b"\n"
status = chat.status

_STATUS = {401: "UNAUTHENTICATED", 404: "NOT_FOUND", 500: "INTERNAL", 503: "UNAVAILABLE"}
#: Fields of ``generationConfig`` that are read, or have no use here.
_READ = ("topP", "top_p", "tool_choice", "stopSequences", "maxOutputTokens", "temperature", "candidateCount")
_OF_CHAT = {
    **{"topK": "top_k", "seed": "seed", "presencePenalty": "presence_penalty"},
    "frequencyPenalty": "frequency_penalty",
}
_MODES = {"": "auto", "AUTO": "auto", "VALIDATED": "auto", "NONE": "none", "ANY": "required"}
_ROLES: dict[str, Role] = {"user": "user", "function": "user", "model": "assistant"}
#: Objects whose keys are the client's, not Google's.
_FREE = ("args", "response", "parameters", "parametersJsonSchema", "responseSchema", "responseJsonSchema")


def read(body: dict[str, Any], stored: Stored, known: Known | None = None) -> ModelRequest:
    """Parse the request in a body, also for counting tokens; ``stored`` is not used."""
    body, items = fields.lists(body, known, needed="contents", contents=_messages, tools=_tools)
    body = _camel(body)
    config = fields.field(body, "generationConfig", dict) or {}
    if config.get("candidateCount") not in (None, 1) or body.get("cachedContent"):
        raise invalid("send a request for each answer, with all of its contents", "candidateCount, cachedContent")
    config = {**config, "top_p": config.get("topP"), "tool_choice": _choice(body, items["tools"])}
    prompt = _messages({**(fields.field(body, "systemInstruction", dict) or {}), "role": "user"}, "systemInstruction")
    system = [replace(message, role="system") for message in prompt if message.text or message.images]
    settings = fields.common(config, items["tools"], "stopSequences", "maxOutputTokens")
    more, ignored = _settings(body, config)
    return ModelRequest((*system, *_match_by_name(items["contents"])), **settings, more=more, ignored=ignored)


def _settings(body: dict[str, Any], config: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return further settings by their names in chat completions, and the names of others."""
    read = ("contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "model", "cachedContent")
    others = fields.rest({**body, **config}, *read, *_READ)
    more = {name: others.pop(key) for key, name in _OF_CHAT.items() if key in others}
    schema = others.pop("responseJsonSchema", None) or others.pop("responseSchema", None)
    if others.pop("responseMimeType", "") == "application/json":
        more["response_format"] = common.json_format("", _small(schema)) if schema else {"type": "json_object"}
    return more, tuple(fields.unheard(others))


def _camel(of: Any) -> Any:
    """Convert Google's own keys to camel case, as Google accepts snake case too."""
    if isinstance(of, list):
        return [_camel(one) for one in of]
    if not isinstance(of, dict):
        return of
    keys = {key: re.sub("_([a-z])", lambda found: found[1].upper(), key) for key in of}
    return {keys[key]: value if keys[key] in _FREE else _camel(value) for key, value in of.items()}


def _tools(of: dict[str, Any], where: str) -> Iterator[dict[str, Any]]:
    for one, at in fields.objects(_camel(of), "functionDeclarations", where):
        schema = one.get("parametersJsonSchema") or _small(one.get("parameters"))
        yield fields.function({**one, "parameters": schema}, at)


def _small(schema: Any) -> Any:
    """Return a schema with types in lower case; Google's are OBJECT and STRING."""
    return json.loads(re.sub('"type": "[A-Z]+"', lambda found: found[0].lower(), json.dumps(schema)))


def _choice(body: dict[str, Any], tools: list[dict[str, Any]]) -> Any:
    config = fields.field(fields.field(body, "toolConfig", dict) or {}, "functionCallingConfig", dict) or {}
    mode, names = fields.text(config, "mode", "toolConfig"), fields.field(config, "allowedFunctionNames", list) or []
    if mode == "ANY" and len(names) == 1:
        return {"type": "tool", "name": names[0]}
    if names and {tool["function"]["name"] for tool in tools} != set(map(str, names)):
        raise invalid("cannot be met; allow one function, or those that `tools` offers", "toolConfig")
    return _MODES.get(mode, mode)


def _messages(of: dict[str, Any], where: str) -> Iterator[Message]:
    """Yield a message for each tool result, then one for the rest of a content."""
    of = _camel(of)
    if (role := fields.text(of, "role", where) or "user") not in _ROLES:
        raise invalid("must be user or model", f"{where}.role")
    blocks: list[tuple[dict[str, Any], str]] = []
    calls, reasoning, results = [], "", 0
    for part, at in fields.objects(of, "parts", where):
        if call := fields.field(part, "functionCall", dict, at):
            arguments = common.arguments(call, "args", at)
            calls.append(FunctionCall(fields.text(call, "id", at), fields.required(call, "name", at), arguments))
        elif result := fields.field(part, "functionResponse", dict, at):
            response = fields.field(result, "response", dict, at) or {}
            only = response.get("output", response.get("result")) if len(response) == 1 else None
            name = fields.text(result, "id", at) or f"{fields.required(result, 'name', at)}()"
            said = only if isinstance(only, str) else fields.compact(response)
            beside, images = contents.join_blocks([_block(*one) for one in fields.objects(result, "parts", at)])
            yield Message("tool", f"{said}\n{beside}" if beside else said, call_id=name, images=images)
            results += 1
        elif part.get("thought") is True:
            reasoning += fields.text(part, "text", at)
        else:
            blocks.append(_block(part, at))
    if blocks or calls or not results:
        text, images = contents.join_blocks(blocks)
        yield Message(_ROLES[role], text, tuple(calls), reasoning=reasoning, images=images)


def _block(part: dict[str, Any], at: str) -> tuple[dict[str, Any], str]:
    """Return the block of a part that is data or a text."""
    data = fields.field(part, "inlineData", dict, at) or fields.field(part, "fileData", dict, at)
    if not data:
        other = next((key for key in part if key not in ("text", "thought", "thoughtSignature")), "text")
        return {**part, "type": other}, at
    kind, inline = fields.text(data, "mimeType", at), fields.text(data, "data", at)
    url = data.get("fileUri") or f"data:{kind};base64,{inline.replace('-', '+').replace('_', '/')}"
    shown = {"type": "image", "image_url": url} if kind.startswith("image/") else {"type": "input_file"}
    key = "file_url" if data.get("fileUri") else "file_data"
    return {"filename": fields.text(data, "displayName", at), key: url, **shown}, at


def _match_by_name(messages: list[Message]) -> Iterator[Message]:
    """Match tool results without an id to the first unanswered call of the same name."""
    waiting: list[FunctionCall] = []
    for number, message in enumerate(messages):
        if message.calls:
            waiting = [replace(c, id=c.id or f"call_{number}_{i}") for i, c in enumerate(message.calls)]
            message = replace(message, calls=tuple(waiting))
        for call in waiting if message.role == "tool" else ():
            if message.call_id in (call.id, f"{call.name}()"):
                waiting = [other for other in waiting if other is not call]
                message = replace(message, call_id=call.id)
                break
        yield message


def response_body(answer: ModelAnswer, request: ModelRequest) -> dict[str, Any]:
    """Return the body of an answer that is not streamed."""
    parts: list[dict[str, Any]] = []
    if answer.reasoning:
        parts.append({"text": answer.reasoning, "thought": True})
    if answer.text or not answer.calls:
        parts.append({"text": answer.text})
    for call in answer.calls:
        parts.append({"functionCall": {"id": call.id, "name": call.name, "args": common.as_object(call)}})
    finish = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}.get(answer.finish, "STOP")
    usage = {
        "promptTokenCount": answer.prompt_tokens,
        "cachedContentTokenCount": answer.cached_tokens,
        "candidatesTokenCount": answer.completion_tokens,
        "totalTokenCount": answer.prompt_tokens + answer.completion_tokens,
    }
    candidate = {"index": 0, "content": {"role": "model", "parts": parts}, "finishReason": finish}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": request.model, "responseId": answer.id}


def response_events(answer: ModelAnswer, request: ModelRequest) -> Iterator[bytes]:
    """Yield the stream of an answer, a single event."""
    yield event(response_body(answer, request))


def error(problem: GatewayError) -> dict[str, Any]:
    """Return the body of an error."""
    code = _STATUS.get(problem.status, "INVALID_ARGUMENT")
    return {"error": {"code": problem.status, "message": str(problem), "status": code}}


def error_event(problem: GatewayError) -> bytes:
    """Return the end of a stream that fails after its start; not an event, so that SDKs raise it."""
    return json.dumps(error(problem)).encode() + b"\n\n"
