"""Dialects of a model call, as pure functions from and to JSON: chat completions here.

Other packages add dialects through the entry point group ``rollenv.dialects``, each entry naming a module; rollenv's
own are Responses, Messages and Gemini.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from rollenv.agents.gateway.dialects import chat
from rollenv.agents.gateway.dialects.fields import Known
from rollenv.agents.gateway.messages import GatewayError, ModelAnswer, ModelRequest, Stored
from rollenv.core.plugins import load_all

__all__ = ["GROUP", "Dialect", "Known", "dialects", "models"]

GROUP = "rollenv.dialects"


@runtime_checkable
class Dialect(Protocol):
    """The format of requests, answers and errors, implemented by a module."""

    paths: tuple[str, ...]
    """Paths of calls below the base URL; ``{model}`` in one is the request's model, ``:stream`` asks for a stream."""
    counts: Mapping[str, str]
    """Paths that count the tokens of a prompt, each with the key of the number in its answer."""
    keepalive: bytes
    """A keepalive message of a stream, which may be sent repeatedly before the answer."""

    def read(self, body: dict[str, Any], stored: Stored, known: Known | None = None) -> ModelRequest:
        """Parse the request in a body; ``known`` caches parsed items of the same session and dialect."""

    def response_body(self, answer: ModelAnswer, request: ModelRequest) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""

    def response_events(self, answer: ModelAnswer, request: ModelRequest) -> Iterator[bytes]:
        """Yield the complete stream of an answer."""

    def status(self, problem: GatewayError) -> int:
        """Return the HTTP status of an error."""

    def error(self, problem: GatewayError) -> dict[str, Any]:
        """Return the body of an error."""

    def error_event(self, problem: GatewayError) -> bytes:
        """Return the end of a stream that fails after its start."""


@functools.cache
def dialects() -> dict[str, Dialect]:
    """Return all dialects by name; one that lacks a member is left out and reported."""
    return {"chat": chat, **load_all(GROUP, ("chat",), Dialect)}


def models(names: Iterable[str]) -> dict[str, Any]:
    """Return the answer of ``/v1/models``, which combines OpenAI's and Anthropic's lists.

    Codex reads ``models``, which is empty: an entry would replace Codex' own instructions, and a missing one is no
    error.
    """
    names = list(names)
    of_anthropic = {"type": "model", "created_at": "1970-01-01T00:00:00Z", "lifecycle": "active"}
    data = [
        {"id": name, "object": "model", "created": 0, "owned_by": "rollenv", "display_name": name, **of_anthropic}
        for name in names
    ]
    first, last = (names[0], names[-1]) if names else (None, None)
    ends = {"first_id": first, "last_id": last, "has_more": False}
    return {"object": "list", "data": data, **ends, "models": []}
