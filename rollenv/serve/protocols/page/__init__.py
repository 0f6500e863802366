"""The web page at ``/``: browse and play environments, watch sessions, and monitor the server.

Static files and a JSON API below ``/page/api``. Its sessions have the same tokens, limits and leases as those of other
protocols.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from rollenv.core import drawing
from rollenv.core.errors import RollenvError
from rollenv.core.version import __version__
from rollenv.remote.protocol import NotAllowed, error_answer
from rollenv.report.plain import plain
from rollenv.serve.auth import Client
from rollenv.serve.catalog import read_catalog
from rollenv.serve.protocols.page import episodes
from rollenv.serve.protocols.page.episodes import EpisodeCatalogue, Episodes, Nothing
from rollenv.serve.protocols.page.history import MetricsHistory
from rollenv.serve.protocols.page.live import Live, OfKey, Watch
from rollenv.serve.protocols.page.static import HEADERS, PageFiles
from rollenv.serve.responses import Json, body_of, retry_after, status_of, validated
from rollenv.serve.server import EnvServer

#: Answers a client's request.
_Handler = Callable[[Client, Any], Awaitable[Any]]

#: Values of Sec-Fetch-Site for requests of the page itself; clients that are no browsers send none.
_OWN = ("", "same-origin", "none")

#: Size in bytes above which answers are compressed.
_LARGE = 4096

_NOT_KEPT = {"Cache-Control": "no-store"}


def routes(server: EnvServer) -> list[BaseRoute]:
    """Routes of the page's files and of its API."""
    files, samples = PageFiles(), MetricsHistory(server)
    catalogue = EpisodeCatalogue(server.sessions)
    plays, live = Episodes(server.sessions, catalogue), Live(server.sessions)

    async def me(client: Client, params: Nothing) -> Any:
        return {
            "client": client.name,
            "scopes": sorted(client.scopes),
            "tokens": bool(server.tokens),
            "version": __version__,
            "grounds": drawing.grounds(),
            "pieces": drawing.shapes(),
        }

    async def health(client: Client, params: Nothing) -> Any:
        return plain(server.health()) | {"readiness": samples.readiness(), "samples": samples.columns()}

    async def check(client: Client, params: Nothing) -> Any:
        await server.readiness.problems()
        return samples.readiness()

    async def packages(client: Client, params: Nothing) -> Any:
        index = server.settings.packages
        return [asdict(package) for package in await asyncio.to_thread(read_catalog, str(index))] if index else []

    handlers: dict[str, tuple[str | None, type[BaseModel], _Handler]] = {
        "me": (None, Nothing, me),
        "catalogue": ("environments", Nothing, catalogue.rows),
        "packages": ("environments", Nothing, packages),
        "card": ("environments", episodes.CardRequest, catalogue.card),
        "open": ("environments", episodes.Open, plays.open),
        "reset": ("environments", episodes.Reset, plays.reset),
        "step": ("environments", episodes.Act, plays.step),
        "suggest": ("environments", episodes.Suggest, plays.suggest),
        "end": ("environments", episodes.OfSession, plays.end),
        "replay": ("environments", episodes.Replay, plays.replay),
        "sessions": ("admin", Nothing, live.table),
        "watch": ("admin", Watch, live.watch),
        "link": ("admin", OfKey, live.link),
        "health": ("admin", Nothing, health),
        "check": ("admin", Nothing, check),
    }
    static: list[BaseRoute] = [Route("/", files.index), Route("/page/{name}", files.file)]
    return static + [
        Route(f"/page/api/{name}", _answers(server, *how), methods=["POST"]) for name, how in handlers.items()
    ]


def _answers(
    server: EnvServer, scope: str | None, model: type[BaseModel], handler: _Handler
) -> Callable[[Request], Awaitable[Response]]:
    async def answered(request: Request) -> Response:
        headers = dict(HEADERS)
        try:
            if request.headers.get("sec-fetch-site", "") not in _OWN:
                raise NotAllowed("pages of other sites may not use this server")
            client = server.client(request, scope)
            answer = await handler(client, validated(model, await body_of(request)))
            if isinstance(answer, Response):
                answer.headers.update(headers | _NOT_KEPT)
                return answer
            response: Response = Json(answer)
        except RollenvError as error:
            kind, text, details = error_answer(error)
            response = Json({"detail": f"{text:.2000}", "kind": kind, "how": details.get("kind", "")}, status_of(error))
            headers |= retry_after(error)
        if len(response.body) > _LARGE and "gzip" in request.headers.get("accept-encoding", ""):
            response = Response(gzip.compress(response.body, 5), response.status_code, media_type=response.media_type)
            headers["Content-Encoding"] = "gzip"
        response.headers.update(headers | _NOT_KEPT)
        return response

    return answered
