"""GEM over HTTP for ROCK's clients: ``rock.make(ENV_ID)`` with ``ROCK_BASE_URL`` set to the server."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from rollenv.core.errors import UsageError
from rollenv.core.registry import list_envs
from rollenv.remote.protocol import session_name
from rollenv.serve.responses import Json, body_of
from rollenv.serve.server import EnvServer
from rollenv.serve.session import EnvSession

_PATH = "/apis/v1/envs/gem"


def routes(server: EnvServer) -> list[BaseRoute]:
    """Routes of make, reset, step, close and list."""

    async def make(request: Request) -> Response:
        client = server.client(request, "environments")
        body = await body_of(request)
        session = await server.sessions.open(session_name(), client.name, _text(body, "env_id"))
        return Json({"sandbox_id": session.name})

    async def session_and_body(request: Request) -> tuple[EnvSession, dict[str, Any]]:
        client = server.client(request, "environments")  # authenticate before the body is read
        body = await body_of(request)
        return server.sessions.get(_text(body, "sandbox_id"), client.name), body

    async def reset(request: Request) -> Response:
        session, body = await session_and_body(request)
        observation, info, *_ = await session.call("reset", [body.get("seed")])
        return Json({"observation": observation, "info": info})

    async def step(request: Request) -> Response:
        session, body = await session_and_body(request)
        answer = await session.call("step", [_text(body, "action")])
        return Json(dict(zip(("observation", "reward", "terminated", "truncated", "info"), answer, strict=False)))

    async def close(request: Request) -> Response:
        session, _ = await session_and_body(request)
        server.sessions.close(session)
        return Json({"sandbox_id": session.name})

    async def every(request: Request) -> Response:
        server.client(request, "environments")
        return Json({"env_id": [env_spec.id for env_spec in list_envs()]})

    handlers = {"make": make, "reset": reset, "step": step, "close": close, "list": every}
    return [Route(f"{_PATH}/{name}", handler, methods=["POST"]) for name, handler in handlers.items()]


def _text(body: dict[str, Any], name: str) -> str:
    if not isinstance(body.get(name), str):
        raise UsageError(f"the request needs {name!r}, a text")
    return str(body[name])
