"""Four dialects of one call: chat completions, Responses, Messages, Gemini. Pure functions from JSON and to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from rollenv.agents.gateway.dialects import anthropic_messages, chat, gemini, responses
from rollenv.agents.gateway.dialects.fields import Known
from rollenv.agents.gateway.messages import Answer, GatewayError, Request, Stored

__all__ = ["DIALECTS", "OF_PATHS", "Dialect", "Known", "models"]


class Dialect(Protocol):
    """A way to write requests, answers and errors. A module is one."""

    keepalive: bytes
    """A sign of life in a stream; may be sent before the answer any number of times."""

    def read(self, body: dict[str, Any], stored: Stored, known: Known | None = None) -> Request:
        """The request in a body; ``known`` is what was read of the same session before, in the same dialect.

        Raises:
            GatewayError: something in it cannot be read, or names an answer that is not there.
        """

    def whole(self, answer: Answer, request: Request) -> dict[str, Any]:
        """The body of an answer that is not streamed."""

    def events(self, answer: Answer, request: Request) -> Iterator[bytes]:
        """The stream of an answer, complete."""

    def status(self, problem: GatewayError) -> int:
        """The HTTP status of an error."""

    def error(self, problem: GatewayError) -> dict[str, Any]:
        """The body of an error."""

    def error_event(self, problem: GatewayError) -> bytes:
        """The end of a stream that has begun and cannot go on."""


#: By the path below ``/v1/``.
OF_PATHS: dict[str, Dialect] = {"chat/completions": chat, "responses": responses, "messages": anthropic_messages}
#: All, by name. Gemini's calls have the model in their path.
DIALECTS = {**OF_PATHS, "gemini": gemini}


def models(names: Iterable[str]) -> dict[str, Any]:
    """The answer of ``/v1/models``: OpenAI's and Anthropic's list in one.

    Codex reads ``models``. It is empty: an entry there replaces Codex' own instructions, and a missing one is no error.
    """
    names = list(names)
    of_anthropic = {"type": "model", "created_at": "1970-01-01T00:00:00Z", "lifecycle": "active"}
    data = [
        {"id": name, "object": "model", "created": 0, "owned_by": "rollenv", "display_name": name, **of_anthropic}
        for name in names
    ]
    ends = {"first_id": names[0] if names else None, "last_id": names[-1] if names else None, "has_more": False}
    return {"object": "list", "data": data, **ends, "models": []}
