"""Google's Gemini. The path names the model, and says whether the answer is a stream."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from rollenv.agents.gateway.dialects import fields
from rollenv.agents.gateway.dialects.fields import Decode, Known, event, invalid, token_name
from rollenv.agents.gateway.messages import Answer, Call, GatewayError, Message, Request, Role, Stored

#: An empty line: SDKs take any other line that does not begin with "data:" for an error.
keepalive = b"\n"

_STATUS = {401: "UNAUTHENTICATED", 404: "NOT_FOUND", 500: "INTERNAL", 503: "UNAVAILABLE"}
_MODES = {"AUTO": "auto", "VALIDATED": "auto", "NONE": "none", "ANY": "required"}


def read(body: dict[str, Any], stored: Stored, known: Known | None = None) -> Request:
    """The request in a body, also one whose tokens are only to be counted.

    Args:
        body: JSON of the client.
        stored: not needed, this dialect refers to no earlier answer.
        known: what was read before.

    Raises:
        GatewayError: something in it cannot be read.
    """
    body, said = fields.lists(_camel(body), known, contents=_messages, tools=_tools)
    if not said["contents"]:
        raise invalid("must hold at least a content", "contents")
    config = _camel(fields.field(body, "generationConfig", dict) or {})
    if isinstance(config.get("candidateCount"), bool) or config.get("candidateCount") not in (None, 1):
        raise invalid("must be 1; send a request for each answer", "generationConfig.candidateCount")
    if body.get("cachedContent"):
        raise invalid("is not kept here; send the contents themselves", "cachedContent")
    config = {**config, "top_p": config.get("topP"), "tool_choice": _choice(body, said["tools"])}
    prompt = _messages({**(fields.field(body, "systemInstruction", dict) or {}), "role": "user"}, "systemInstruction")
    system = [replace(message, role="system") for message in prompt if message.text or message.images]
    settings = fields.common(config, said["tools"], "stopSequences", "maxOutputTokens")
    return Request(tuple(_named([*system, *said["contents"]])), **settings)


def _camel(of: Any) -> Any:
    """An object with its own keys in camel case; Google reads them in snake case too."""
    if not isinstance(of, dict):
        return of
    return {re.sub("_([a-z])", lambda found: found[1].upper(), key): value for key, value in of.items()}


def _tools(of: dict[str, Any], where: str) -> Iterator[dict[str, Any]]:
    for one, at in fields.objects(_camel(of), "functionDeclarations", where):
        one = _camel(one)
        schema = one.get("parametersJsonSchema") or _schema(one.get("parameters"))
        yield fields.function({**one, "parameters": schema}, at)


def _schema(value: Any) -> Any:
    """A schema as JSON Schema writes it; Google writes types in capitals."""
    if isinstance(value, list):
        return [_schema(one) for one in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    lower = {"type": kind.lower()} if isinstance(kind, str) else {}
    return {key: _schema(one) for key, one in value.items()} | lower


def _choice(body: dict[str, Any], tools: list[dict[str, Any]]) -> Any:
    config = _camel(fields.field(body, "toolConfig", dict)) or {}
    config = _camel(fields.field(config, "functionCallingConfig", dict, "toolConfig")) or {}
    mode, names = fields.text(config, "mode"), fields.field(config, "allowedFunctionNames", list) or []
    if mode == "ANY" and len(names) == 1:
        return {"type": "tool", "name": names[0]}
    if names and {tool["function"]["name"] for tool in tools} != {str(name) for name in names}:
        raise invalid("cannot be met; allow one function, or those that `tools` offers", "toolConfig")
    return _MODES.get(mode, mode or None)


def _messages(of: dict[str, Any], where: str) -> Iterable[Message]:
    """The results of tools, each a message, then what else a content says."""
    role = fields.text(of, "role", where) or "user"
    if role not in ("user", "function", "model"):
        raise invalid("must be user or model", f"{where}.role")
    said: list[str] = []
    reasoning, images, calls, results = "", [], [], []
    for part, at in fields.objects(of, "parts", where):
        part = _camel(part)
        if call := fields.field(part, "functionCall", dict, at):
            given = fields.arguments(call, "args", at)
            calls.append(Call(fields.text(call, "id", at), fields.required(call, "name", at), given))
        elif result := fields.field(part, "functionResponse", dict, at):
            told = fields.field(result, "response", dict, at) or {}
            only = told.get("output", told.get("result")) if len(told) == 1 else None
            name = fields.text(result, "id", at) or f"{fields.required(result, 'name', at)}()"
            results.append(Message("tool", only if isinstance(only, str) else fields.compact(told), call_id=name))
        elif part.get("inlineData") or part.get("fileData"):
            images.append(_image(_camel(part.get("inlineData") or part.get("fileData")), at))
        elif part.get("thought") is True:
            reasoning += fields.text(part, "text", at)
        elif part.keys() <= {"text", "thought", "thoughtSignature"}:
            said.append(fields.text(part, "text", at))
        else:
            raise invalid(f"a part with {', '.join(part)[:80]} cannot be read here; send texts, images and calls", at)
    yield from results
    if said or images or calls or not results:
        speaker: Role = "assistant" if role == "model" else "user"
        yield Message(speaker, "".join(said), tuple(calls), reasoning=reasoning, images=tuple(images))


def _image(data: Any, where: str) -> str:
    url = data.get("fileUri") if isinstance(data, dict) else None
    if isinstance(data, dict) and isinstance(data.get("data"), str):
        url = f"data:{data.get('mimeType')};base64,{data['data'].replace('-', '+').replace('_', '/')}"
    if isinstance(url, str) and url.startswith(("http://", "https://", "data:image/")):
        return url
    raise invalid("is no image with data or an http URL; send texts and images", where)


def _named(messages: list[Message]) -> Iterator[Message]:
    """The messages, where a result without an id has that of the first call of its name that has none."""
    waiting: list[Call] = []
    for number, message in enumerate(messages):
        if message.calls:
            waiting = [replace(c, id=c.id or f"call_{number}_{i}") for i, c in enumerate(message.calls)]
            message = replace(message, calls=tuple(waiting))
        if message.role == "tool":
            answered = next((c for c in waiting if message.call_id in (c.id, f"{c.name}()")), None)
            waiting = [call for call in waiting if call is not answered]
            message = replace(message, call_id=answered.id if answered else message.call_id)
        yield message


def whole(answer: Answer, request: Request, decode: Decode = token_name) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    parts: list[dict[str, Any]] = [{"text": answer.reasoning, "thought": True}] if answer.reasoning else []
    parts += [{"text": answer.text}] if answer.text or not answer.calls else []
    for call in answer.calls:
        parts.append({"functionCall": {"id": call.id, "name": call.name, "args": fields.as_object(call)}})
    finish = "MAX_TOKENS" if answer.finish == "length" else "STOP"
    return {
        "candidates": [{"index": 0, "content": {"role": "model", "parts": parts}, "finishReason": finish}],
        "usageMetadata": {
            "promptTokenCount": answer.prompt_tokens,
            "cachedContentTokenCount": answer.cached_tokens,
            "candidatesTokenCount": answer.completion_tokens,
            "totalTokenCount": answer.prompt_tokens + answer.completion_tokens,
        },
        "modelVersion": request.model,
        "responseId": answer.id,
    }


def events(answer: Answer, request: Request, decode: Decode = token_name) -> Iterator[bytes]:
    """The stream of an answer: one event."""
    yield event(whole(answer, request))


def status(problem: GatewayError) -> int:
    """The HTTP status of an error."""
    return problem.status


def error(problem: GatewayError) -> dict[str, Any]:
    """The body of an error."""
    told = f"The input token count ({problem.tokens}) exceeds the maximum number of tokens allowed ({problem.maximum})."
    code = _STATUS.get(problem.status, "INVALID_ARGUMENT")
    message = told if problem.kind == "overflow" and problem.maximum else str(problem)
    return {"error": {"code": problem.status, "message": message, "status": code}}


def error_event(problem: GatewayError) -> bytes:
    """The end of a stream that has begun and cannot go on. SDKs raise it if it is no event."""
    return json.dumps(error(problem)).encode() + b"\n\n"
