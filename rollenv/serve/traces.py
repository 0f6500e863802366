"""OpenTelemetry traces (``rollenv serve --traces``): spans of requests, calls, and the work of workers.

Without ``--traces`` this module is not imported.

OpenTelemetry's own ASGI package is not used: its spans hold whole paths, with the names of sandboxes, and one span
lasts as long as a WebSocket, whose calls have spans of their own here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rollenv.core.needs import extra
from rollenv.serve.native import Native
from rollenv.serve.replayed_env import ReplayedEnv
from rollenv.serve.responses import EXPECTED, status_of
from rollenv.serve.session import Callback, EnvSession

with extra("otel", "rollenv serve --traces"):
    from opentelemetry import propagate, trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

_tracer = trace.get_tracer("rollenv")

#: Paths of frequent requests without interest.
_PROBES = ("/livez", "/readyz", "/metrics")

#: Maximum seconds to send the last spans when the server stops.
_LAST = 5.0


def start_exporting() -> list[Callable[[], Awaitable[None]]]:
    """Send spans to this process's provider, or by OTLP over HTTP to ``OTEL_EXPORTER_OTLP_ENDPOINT``.

    Returns:
        Functions to call when the server stops.
    """
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return []
    name = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "rollenv"}
    provider = TracerProvider(resource=Resource.create(name), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)

    async def send_last() -> None:  # a collector that does not answer must not block the server
        last = threading.Thread(target=provider.shutdown, daemon=True)
        last.start()
        await asyncio.to_thread(last.join, _LAST)

    return [send_last]


class TracedRequests:
    """A span for each HTTP request, with the parent of the header ``traceparent``."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _PROBES:
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        status = 0

        async def send_and_record(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        parent = propagate.extract(headers)
        with _span(scope["method"], {"http.request.method": scope["method"]}, trace.SpanKind.SERVER, parent) as span:
            try:
                await self._app(scope, receive, send_and_record)
            finally:
                route = getattr(scope.get("route"), "path", "")
                span.update_name(f"{scope['method']} {route}".strip())
                attributes = {
                    "http.route": route,
                    "http.response.status_code": status,
                    "rollenv.owner": scope.get("state", {}).get("client", ""),
                    "rollenv.env": scope.get("path_params", {}).get("env_id", ""),
                }
                span.set_attributes({name: value for name, value in attributes.items() if value})
                if status >= 500:
                    span.set_status(trace.StatusCode.ERROR)


class TracedNative(Native):
    """A connection with a span for each request."""

    async def _carry_out(self, operation: Any, args: list[Any]) -> Any:
        method = f" {args[2]:.40}" if operation == "call" and len(args) == 4 and isinstance(args[2], str) else ""
        name = f"{operation:.40}{method}" if isinstance(operation, str) else "nothing"
        about = {"rollenv.owner": self.client.name}
        if args and isinstance(args[0], str) and operation not in ("hello", "spec"):
            about["rollenv.session"] = args[0][:6]
            if session := self.sessions.by_name.get(args[0]):
                about["rollenv.env"] = session.env.task.env_id
        with _span(name, about, trace.SpanKind.SERVER):
            return await super()._carry_out(operation, args)


class TracedEnv(ReplayedEnv):
    """An environment with a span for each call in its worker, including those of a replay."""

    __slots__ = ()

    async def _open(self) -> None:
        with _span("worker open", self._attributes("open")):
            await super()._open()

    async def _ask(self, method: str, args: list[Any]) -> Any:
        with _span(f"worker {method}", self._attributes(method)):
            return await super()._ask(method, args)

    def _attributes(self, method: str) -> dict[str, str]:
        about = {"rollenv.env": self.task.env_id, "rollenv.method": method, "rollenv.owner": self.owner}
        worker = self.pooled.worker if self.pooled else ""
        return about | {"rollenv.session": self.session[:6], "rollenv.worker": worker}


class TracedSession(EnvSession):
    """A session whose steps run in tasks, because spans belong to tasks."""

    __slots__ = ()
    env_class = TracedEnv

    def start_step(self, count: int, action: str, callback: Callback) -> bool:
        return False


@contextlib.contextmanager
def _span(
    name: str, about: Mapping[str, str], kind: trace.SpanKind = trace.SpanKind.INTERNAL, parent: Any = None
) -> Iterator[trace.Span]:
    """Open a span that records the class of an error but not its text, which can quote an agent."""
    span = _tracer.start_span(name, parent, kind, dict(about))
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        outcome = "ok"
        try:
            yield span
        except BaseException as error:
            outcome = type(error).__name__
            is_fault = status_of(error) >= 500 if isinstance(error, EXPECTED) else isinstance(error, Exception)
            if is_fault:  # a fault of the server, not an error or cancellation of the client
                span.set_status(trace.StatusCode.ERROR)
            raise
        finally:
            span.set_attribute("rollenv.outcome", outcome)
