"""An external model behind a gateway: its answers are forwarded and recorded, without tokens."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

from rollenv.agents.chat.endpoint import Endpoint
from rollenv.agents.chat.replies import as_answered
from rollenv.agents.gateway.messages import Finish, FunctionCall, GatewayError, ModelAnswer, ModelRequest, as_openai
from rollenv.agents.gateway.session import GatewaySession, SampledAnswer
from rollenv.agents.gateway.tree import Position
from rollenv.core.errors import UsageError

_FINISH: Mapping[str, Finish] = {"length": "length", "content_filter": "content_filter"}


class Upstream:
    """An OpenAI-compatible endpoint, called with chat completions for clients of any dialect.

    Args:
        model: the model's name at the endpoint; if empty, the name in the client's request.
    """

    def __init__(
        self, endpoint: Endpoint, model: str, *, max_context: int = 131_072, body: Mapping[str, Any] | None = None
    ):
        self.endpoint, self.name, self.body = endpoint, model, dict(body or {})
        self.max_context = max_context

    @property
    def sees(self) -> bool:
        """True, as far as is known here."""
        return True

    def accept(self, request: ModelRequest) -> ModelRequest:
        """Return the request: images are the endpoint's to see."""
        return request

    async def draw(self, session: GatewaySession, position: Position, request: ModelRequest) -> SampledAnswer:
        """Send a request to the endpoint.

        Raises:
            GatewayError: it refuses the request.
        """
        began = time.time()
        try:
            reply = await self.endpoint.complete(self._body(request, position))
        except UsageError as error:
            raise GatewayError("invalid", f"the endpoint refuses: {error}") from error
        ids = {call.id: f"call_{secrets.token_hex(16)}" for call in reply.calls}
        namespaces = {tool["function"]["name"]: tool.get("namespace", "") for tool in request.tools}
        calls = tuple(FunctionCall(ids[c.id], c.name, c.arguments, namespaces.get(c.name, "")) for c in reply.calls)
        answer = ModelAnswer(
            reply.text,
            calls,
            reply.thoughts,
            "tool_calls" if calls else _FINISH.get(reply.finish, "stop"),
            prompt_tokens=reply.prompt_tokens,
            cached_tokens=reply.cached_tokens,
            completion_tokens=reply.completion_tokens,
            created=int(began),
            echo=reply.echo,
        )
        return SampledAnswer(answer, {"began": began, "ended": time.time(), "has_tools": bool(request.tools)})

    def count(self, session: GatewaySession, position: Position, request: ModelRequest) -> int:
        """Estimate the number of prompt tokens, as four bytes each."""
        return len(json.dumps(self._body(request, position)).encode()) // 4

    def ignores(self, request: ModelRequest) -> list[str]:
        """Return the names of settings that the endpoint is not asked for."""
        return [*request.ignored, *(["logprobs"] if request.include_tokens else [])]

    def release(self, session: GatewaySession) -> None:
        """Do nothing."""

    def _body(self, request: ModelRequest, position: Position) -> dict[str, Any]:
        strict = ({"strict": tool["strict"]} if "strict" in tool else {} for tool in request.tools)
        tools = [
            {"type": "function", "function": {**tool["function"], **more}}
            for tool, more in zip(request.tools, strict, strict=True)
        ]
        choice: Any = request.tool_choice
        if choice not in ("auto", "none", "required"):
            choice = {"type": "function", "function": {"name": choice}}
        settings = {
            "tools": tools or None,
            "tool_choice": choice if tools and choice != "auto" else None,
            "stop": list(request.stop) or None,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
        }
        messages = []
        for message, node in position.chat:
            messages.append(as_openai(message))
            if node and node.answer.echo and len(message.calls) == len(node.answer.calls):
                messages[-1] = as_answered(messages[-1], node.answer.echo)
        body = {"model": self.name or request.model, "messages": messages}
        given = {key: value for key, value in settings.items() if value is not None}
        return body | dict(request.more) | given | self.body
