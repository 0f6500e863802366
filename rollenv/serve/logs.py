"""The server's logs: a line for each request, and an audit log of what clients opened and closed."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import sys
import time
from contextvars import ContextVar
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rollenv.core.errors import UsageError

_requests = logging.getLogger("rollenv.serve.requests")
_audit = logging.getLogger("rollenv.serve.audit")

#: Forms of the log.
FORMS = ("off", "text", "json")

#: The path of the request that is being answered; empty outside of one.
opened_by: ContextVar[str] = ContextVar("opened_by", default="")

_REQUEST_ID = re.compile(rb"[A-Za-z0-9_.-]{1,64}")


def audit(event: str, client: str, **fields: Any) -> None:
    """Log an event of a client.

    Args:
        fields: details, without tokens and with only the first letters of secret names.
    """
    _audit.info("%s by %s", event, client, extra={"fields": {"event": event, "client": client, **fields}})


class Requests:
    """Gives every request an id, sent in the header ``X-Request-ID`` of the answer, and logs its end."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        sent = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = sent if _REQUEST_ID.fullmatch(sent) else secrets.token_hex(8).encode()
        state, began, status = scope.setdefault("state", {}), time.monotonic(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start", "websocket.accept"):
                status = message.get("status", 101)
                message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", request_id)]}
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except asyncio.CancelledError:  # the server stops, and waits for no answer any longer
            if not status and scope["type"] == "http":
                await PlainTextResponse("the server stops\n", 503)(scope, receive, send_with_id)
        finally:
            if _requests.isEnabledFor(logging.INFO):
                fields = {
                    "request": request_id.decode(),
                    "method": scope.get("method", "WS"),
                    "path": scope["path"],
                    "status": status,
                    "client": state.get("client", ""),
                    "ms": round(1000 * (time.monotonic() - began), 1),
                }
                text = "{method} {path} {status} {client} {ms} ms".format(**fields)
                _requests.info("%s", text, extra={"fields": fields})


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": record.created, "level": record.levelname.lower(), "logger": record.name}
        line |= getattr(record, "fields", {"message": record.getMessage()})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        first, *more = super().format(record).splitlines() or [""]
        line = first.encode("unicode_escape").decode()  # so that a path cannot forge a line
        return "\n".join([line, *more]) if record.exc_info else "\\n".join([line, *more])


def write_to_stderr(form: str) -> None:
    """Write the server's log to standard error.

    Args:
        form: one of :data:`FORMS`; "off" changes nothing.
    """
    if form not in FORMS:
        raise UsageError(f"there is no log of the form {form!r}; there are {', '.join(FORMS)}")
    if form == "off":
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    logger = logging.getLogger("rollenv")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
