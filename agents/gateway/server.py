"""The HTTP side of a gateway: one app for agents, and one for administration."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import hmac
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

from rollenv.agents.gateway.dialects import Dialect, chat, dialects, models
from rollenv.agents.gateway.dialects.fields import readable
from rollenv.agents.gateway.messages import GatewayError, ModelRequest, ended_error
from rollenv.agents.gateway.session import GatewaySession
from rollenv.agents.gateway.sessions import GatewaySessions
from rollenv.agents.gateway.tree import CallNode
from rollenv.core.errors import RollenvError, UsageError, reads
from rollenv.core.needs import extra

with extra("serve", "A gateway"):
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.requests import Request as Http
    from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route
    from starlette.types import Send

#: What is done with a call of a session, in a dialect.
Work = Callable[[Http, GatewaySession, Dialect], Awaitable[Response]]

#: Seconds before a response starts without its answer, and between keepalives from then on. Two frameworks time out
#: after 30 seconds of silence.
PATIENCE, PULSE = 15.0, 10.0
#: Timeout in seconds for the body of a request.
BODY = 60.0
#: Maximum bytes of a body for each token of the model's context; larger bodies do not fit and delay other requests.
_BYTES = 64
#: The header of an answer that names the settings of its request that had no effect.
IGNORED = "x-rollenv-ignored"
#: The status if the client has disconnected.
_GONE = 499


def agent_app(gateway: GatewaySessions) -> Starlette:
    """Create the app for agents, with model calls only. The session's key is in the path or in a header."""

    async def list_models(http: Http) -> Response:
        return JSONResponse(models(filter(None, [gateway.model.name])))

    async def show_model(http: Http) -> Response:
        for model in models(filter(None, [gateway.model.name]))["data"]:
            if model["id"] == http.path_params["model"]:
                return JSONResponse(model)
        raise HTTPException(404)

    async def missing(http: Http, _: Exception) -> Response:
        paths = (path for dialect in dialects().values() for path in (*dialect.paths, *dialect.counts))
        model = f"; the model is {gateway.model.name!r}" if gateway.model.name else ""
        text = f"nothing is here; the addresses are models, {', '.join(paths)}{model}"
        dialect = dialects().get("messages" if "anthropic-version" in http.headers else "chat", chat)
        return JSONResponse(dialect.error(GatewayError("not_found", text)), 404)

    routes = []
    for prefix in ("/s/{key}/v1", "/s/{key}", "/v1", ""):
        routes.append(Route(f"{prefix}/models", list_models, methods=["GET"]))
        routes.append(Route(f"{prefix}/models/{{model:path}}", show_model, methods=["GET"]))
        for dialect in dialects().values():
            works: dict[str, Work] = dict.fromkeys(dialect.paths, _answer)
            works |= {path: functools.partial(_count, key) for path, key in dialect.counts.items()}
            for path, work in works.items():
                routes.append(Route(f"{prefix}/{path}", _endpoint(gateway, dialect, work), methods=["POST"]))
    routes.append(Route("/s/{key}/mcp", _tools(gateway), methods=["POST"]))
    routes.append(Route("/livez", lambda _: PlainTextResponse("ok")))
    return Starlette(routes=routes, exception_handlers={404: missing})


def _session(gateway: GatewaySessions, http: Http) -> GatewaySession:
    """Return the session of a call's key."""
    authorization = http.headers.get("authorization", "")
    scheme, _, bearer = authorization.partition(" ")
    if scheme.lower() != "bearer":
        bearer = ""
    headers = map(http.headers.get, ("x-api-key", "x-goog-api-key"))
    named = [*headers, http.query_params.get("key"), bearer.strip()]
    if "key" in http.path_params:
        named = [http.path_params["key"]]
    for key in filter(None, named):
        session = gateway.find(key)
        if session is not None and not session.over:
            return session
        if session is not None or gateway.was_open(key):
            raise ended_error()
    gateway.refused_keys += 1
    raise GatewayError("auth", "this gateway knows no such session: use the base URL and the key of an open one")


async def _body(http: Http, session: GatewaySession) -> bytes:
    """Read the body of a request."""
    if session.reading >= session.caps.waiting:
        session.forget_delivered()
        raise session.refuse_crowded()
    context, cap = session.model.max_context, session.caps.body
    most = cap if session.model.sees else min(cap, _BYTES * context)  # a picture has few tokens for its bytes
    length = http.headers.get("content-length", "0")
    size, parts = int(length) if length.isdecimal() else 0, []
    session.reading += 1
    try:
        if size <= most:
            size = 0
            async with asyncio.timeout(BODY):
                async for part in http.stream():
                    size += len(part)
                    if size > most:
                        break
                    parts.append(part)
                else:
                    return b"".join(parts)
    except TimeoutError:
        session.counts["refused_late"] += 1
        session.forget_delivered()
        raise GatewayError("late", f"the body of the request did not come within {BODY:g} s") from None
    finally:
        session.reading -= 1
    session.counts["refused_too_large"] += 1
    if size > cap:
        raise GatewayError("too_large", f"the request has more than {cap} bytes, which is this session's cap")
    many = f"{size} bytes do not fit into the model's context of {context} tokens"
    raise GatewayError("overflow", many, tokens=max(size // 4, context), maximum=context)


def _read(body: bytes, session: GatewaySession, dialect: Dialect) -> ModelRequest:
    with session.refusals():
        try:
            data = json.loads(body)
        except (ValueError, RecursionError) as error:
            why = error or "it is nested too deeply"
            raise GatewayError("invalid", f"the body is not JSON, or has a content-encoding: {why}") from error
        return session.with_previous(dialect.read(data, session.find_answer, session.known_in[dialect]))


def _endpoint(gateway: GatewaySessions, dialect: Dialect, work: Work) -> Callable[[Http], Any]:
    """Create an endpoint that converts errors to a dialect."""

    async def endpoint(http: Http) -> Response:
        try:
            return await work(http, _session(gateway, http), dialect)
        except GatewayError as error:
            status = dialect.status(error)
            headers = {"Retry-After": "1"} if status == 429 or status >= 500 else {}
            if error.kind in ("late", "too_large"):  # the rest of the body is not read
                headers["Connection"] = "close"
            return JSONResponse(dialect.error(error), status, headers=headers)
        except ClientDisconnect:
            return Response(status_code=_GONE)

    return endpoint


async def _count(key: str, http: Http, session: GatewaySession, dialect: Dialect) -> Response:
    """Answer with the number of prompt tokens under a key."""
    session.check_caps("counts")
    tokens = session.count(_read(await _body(http, session), session, dialect))
    return JSONResponse({key: tokens})


async def _answer(http: Http, session: GatewaySession, dialect: Dialect) -> Response:
    """Answer a call, complete or as a stream. Nothing is sent before the whole answer is recorded.

    A client that disconnects cancels its call.
    """
    body = await _body(http, session)
    idempotency = http.headers.get("idempotency-key", "")
    key = hashlib.sha256(f"{http.url.path} {idempotency} ".encode() + body).hexdigest()
    if refusal := session.late_refusals.pop(key, None):
        raise refusal
    if not session.repeats(key):
        session.check_caps("calls")  # before parsing, which takes time
    request = _read(body, session, dialect)
    if "model" in http.path_params:
        request = replace(request, model=http.path_params["model"], stream=":stream" in http.url.path)
    retry = bool(idempotency) or http.headers.get("x-stainless-retry-count", "0") != "0"
    call = asyncio.ensure_future(session.call(request, key, retry=retry))
    disconnect = asyncio.ensure_future(_wait_for_disconnect(http))
    try:
        await asyncio.wait((call, disconnect), timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        call.cancel()
        raise
    finally:
        disconnected = disconnect.done()
        disconnect.cancel()
    headers = {"content-type": "text/event-stream" if request.stream else "application/json"}
    if ignored := session.model.ignores(request):
        headers[IGNORED] = re.sub("[^ -~]", "?", ", ".join(ignored))[:1000].strip()
    if disconnected:
        call.cancel()
        await asyncio.wait((call,))
        return Response(status_code=_GONE)
    if not call.done():
        return _Late(_slowly(call, session, dialect, request, key), headers=headers)
    node = call.result()
    session.sent(node)
    return Response(b"".join(_pieces(dialect, session, node, request)), headers=headers)


async def _slowly(
    call: asyncio.Task[CallNode], session: GatewaySession, dialect: Dialect, request: ModelRequest, key: str
) -> AsyncIterator[bytes]:
    """Yield keepalives (white space in JSON), then the answer or an error. The status is already 200.

    Raises:
        GatewayError: the call failed and is not a stream, which has no place for an error.
    """
    try:
        while not call.done():
            yield dialect.keepalive if request.stream else b" "
            await asyncio.wait((call,), timeout=PULSE)
        node = call.result()
        session.sent(node)
        for piece in _pieces(dialect, session, node, request):
            yield piece
    except GatewayError as error:
        if request.stream:
            yield dialect.error_event(error)
            return
        if dialect.status(error) < 500 and len(session.late_refusals) < session.caps.waiting:
            session.late_refusals[key] = error
        raise
    finally:
        call.cancel()


class _Late(StreamingResponse):
    """An answer whose status was sent before it was known. If the call fails, the connection ends in the middle of the
    body: clients then raise, and most send the call again, which gets the reason."""

    async def stream_response(self, send: Send) -> None:
        with contextlib.suppress(GatewayError):
            await super().stream_response(send)


def _pieces(dialect: Dialect, session: GatewaySession, node: CallNode, request: ModelRequest) -> Iterable[bytes]:
    answer = node.answer
    if request.include_tokens:
        prompt = session.tree.prompt_ids(node)
        answer = replace(answer, prompt_ids=prompt, response_ids=node.response_ids, logprobs=node.logprobs)
    if request.stream:
        return dialect.response_events(answer, request)
    return [json.dumps(dialect.response_body(answer, request)).encode()]


async def _wait_for_disconnect(http: Http) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _tools(gateway: GatewaySessions) -> Callable[[Http], Any]:
    """Create the MCP endpoint for the environment's tools of a session."""

    async def endpoint(http: Http) -> Response:
        try:
            session = _session(gateway, http)
            if session.tools is None:
                raise GatewayError("not_found", "this session has no tools")
            message = readable(json.loads(await _body(http, session)))
        except GatewayError as error:
            return JSONResponse({"error": str(error)}, error.status)
        except (ValueError, RecursionError):
            return JSONResponse({"error": "the body is not JSON"}, 400)
        answer = await session.tools.answer(message)
        return Response(status_code=202) if answer is None else JSONResponse(answer)

    return endpoint


# -- administration ----------------------------------------------------------------------------------------------------


def admin_app(gateway: GatewaySessions, key: str) -> Starlette:
    """Create the app that opens, rewards and finishes sessions. Agents must not have access to it."""

    def guarded(work: Callable[[Http], Any]) -> Callable[[Http], Any]:
        async def endpoint(http: Http) -> Response:
            if not hmac.compare_digest(http.headers.get("authorization", "").encode(), f"Bearer {key}".encode()):
                return JSONResponse({"error": "this needs the administrator's key as a bearer token"}, 401)
            try:
                if "id" in http.path_params and http.path_params["id"] not in gateway.sessions:
                    return JSONResponse({"error": f"there is no session {http.path_params['id']!r}"}, 404)
                result = await work(http)
                return result if isinstance(result, Response) else JSONResponse(result)
            except (RollenvError, ValueError) as error:
                return JSONResponse({"error": str(error)}, 400)

        return endpoint

    def session_of(http: Http) -> GatewaySession:
        return gateway.sessions[http.path_params["id"]]

    async def open_session(http: Http) -> Any:
        data = await _object(http, {"task": str, "seed": int, "key": str})
        session = gateway.open(data.get("task", ""), seed=data.get("seed"), key=data.get("key", ""))
        urls = {"base_url": session.base_url, "anthropic_url": session.anthropic_url}
        return {"id": session.id, "key": session.key, **urls}

    async def list_sessions(http: Http) -> Any:
        names = ("id", "task", "over", "reward", "success", "total_reward")
        return [{name: getattr(session, name) for name in names} for session in list(gateway.sessions.values())]

    async def show(http: Http) -> Any:
        return session_of(http).to_dict()

    async def samples(http: Http) -> Any:
        samples = session_of(http).samples()
        return [asdict(each) | {"images": [image.as_json() for image in each.images]} for each in samples]

    async def reward(http: Http) -> Any:
        data = await _object(http, {"value": float, "call": str})
        if "value" not in data:
            raise UsageError("a reward has a 'value', and 'call': the id of an answer or a call, or 'last'")
        session_of(http).set_reward(data["value"], data.get("call", "last"))
        return {}

    async def finish(http: Http) -> Any:
        data = await _object(http, {"reward": float, "success": bool})
        session_of(http).finish(data.get("reward"), data.get("success"))
        return session_of(http).to_dict()

    async def forget(http: Http) -> Any:
        gateway.forget(session_of(http))
        return {}

    async def metrics(http: Http) -> Any:
        return PlainTextResponse(metrics_text(gateway))

    one = "/sessions/{id}"
    routes: list[tuple[str, str, Callable[[Http], Any]]] = [
        ("POST", "/sessions", open_session),
        ("GET", "/sessions", list_sessions),
        ("GET", one, show),
        ("DELETE", one, forget),
        ("GET", f"{one}/samples", samples),
        ("POST", f"{one}/reward", reward),
        ("POST", f"{one}/finish", finish),
        ("GET", "/metrics", metrics),
    ]
    return Starlette(routes=[Route(path, guarded(work), methods=[method]) for method, path, work in routes])


async def _object(http: Http, known: dict[str, type]) -> dict[str, Any]:
    """Read the body as a JSON object with known keys; an empty body has none."""
    with reads("the body is not JSON"):
        data = json.loads(await http.body() or b"{}")
    if not isinstance(data, dict):
        raise UsageError("the body must be a JSON object")
    for name, value in data.items():
        if name not in known:
            raise UsageError(f"unknown key {name!r}; there are {', '.join(known)}")
        allowed = (int, float) if known[name] is float else known[name]
        if isinstance(value, bool) != (allowed is bool) or not isinstance(value, allowed):
            raise UsageError(f"{name!r} has the wrong type: {value!r:.80}")
    return data


def metrics_text(gateway: GatewaySessions) -> str:
    """Return the gateway's counters in Prometheus' text format."""
    counts, matches, tokens = Counter(gateway.past_counts), Counter(gateway.past_matches), gateway.past_tokens
    sessions = list(gateway.sessions.values())  # another thread may open one
    for session in sessions:
        counts.update(session.counts)
        matches.update(session.tree.matches)
        tokens += session.drawn_tokens
    lines = ["# TYPE rollenv_gateway_sessions_open gauge"]
    lines.append(f"rollenv_gateway_sessions_open {sum(not s.over for s in sessions)}")
    lines.append("# TYPE rollenv_gateway_drawn_tokens_total counter")
    lines.append(f"rollenv_gateway_drawn_tokens_total {tokens}")
    counts["refused_auth"] += gateway.refused_keys
    for name, label, values in (("events", "event", counts), ("matches", "kind", matches)):
        lines.append(f"# TYPE rollenv_gateway_{name}_total counter")
        lines += [f'rollenv_gateway_{name}_total{{{label}="{key}"}} {n}' for key, n in sorted(values.items())]
    return "\n".join(lines) + "\n"
