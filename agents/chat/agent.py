"""An agent behind any OpenAI-compatible chat endpoint: OpenAI, vLLM, SGLang, llama.cpp, Ollama and others."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from rollenv.agents.base import Action, Agent, AgentFailed, EnvHandle, Session
from rollenv.agents.chat.endpoint import Budget, Endpoint, Patience, Prices, Totals
from rollenv.agents.chat.replies import ChatReply, ChatToolCall, as_answered
from rollenv.agents.offered_tools import offered_tools
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.prompts.session import chat_messages, refuse_pictures, shown
from rollenv.agents.prompts.step import StepEpisode, as_chat, unasked
from rollenv.core.errors import UsageError
from rollenv.core.parsing import THOUGHT_MARKS, after_thoughts, well_formed
from rollenv.core.picture_forms import bound, content
from rollenv.core.pictures import Picture, pictures
from rollenv.core.tools.calls import as_element

#: Keys of a request that :class:`ChatAgent` sets itself.
_RESERVED = ("model", "messages", "stream", "stream_options", "tools")


class ChatAgent(Agent):
    """Plays through POST requests to ``base_url/chat/completions``.

    The action is the text of an answer without the thoughts before it; an unfinished thought has no action. Tool calls
    that the endpoint reports separately are appended to the text as ``<tool_call>{"name": ..., "arguments":
    ...}</tool_call>``, which :class:`~rollenv.core.wrappers.tool_env.ToolEnvWrapper` answers in order. Pictures
    (``info["images"]``) are sent as ``image_url`` parts, in place of ``<image>`` in the text.

    Use it with ``async with``, or call :meth:`aclose`; it also closes when its event loop shuts down.

    Args:
        base_url: address before ``/chat/completions``, such as ``https://api.openai.com/v1``.
        api_key: by default the environment variable OPENAI_API_KEY; without either, none is sent.
        prompt: builds a bounded prompt for every turn; None keeps the whole chat.
        tools: schemas of tools, sent to the endpoint; ``"env"`` for the environment's (``info["tools"]``), whose text
            should then not describe them as well (``calls="native"`` of the ids ``tools:*``).
        temperature: this, ``max_tokens``, ``top_p``, ``top_k``, ``min_p`` and ``stop`` (stop strings) are not sent if
            None. vLLM, SGLang and llama.cpp support ``top_k`` and ``min_p``, OpenAI does not.
        seeded: send a seed with every request, derived from the episode's.
        stream: receive answers as they are generated; with more servers, cancelling one then stops the generation.
        token_ids: request token ids and log-probabilities, which vLLM (0.10.2 and newer) returns, for training. vLLM
            reports log-probabilities before the temperature is applied unless it is started with
            ``--logprobs-mode processed_logprobs``.
        requests_per_minute: maximum number of requests in any 60 seconds; None for no limit.
        tokens_per_minute: maximum number of tokens of prompts and answers in any 60 seconds; None for no limit.
        names: names of settings at the endpoint, such as ``{"max_tokens": "max_completion_tokens"}``; those with an
            empty name are not sent.
    """

    def __init__(
        self,
        model: str,
        base_url: str,
        api_key: str | None = None,
        *,
        prompt: StepPrompt | None = None,
        system: str | None = None,
        tools: Sequence[dict[str, Any]] | Literal["env"] | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        stop: Sequence[str] | None = None,
        seeded: bool = True,
        stream: bool = False,
        token_ids: bool = False,
        cut_thoughts: bool = True,
        extra_body: Mapping[str, Any] | None = None,
        patience: Patience | None = None,
        concurrency: int = 32,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        prices: Prices | None = None,
        budget: Budget | None = None,
        names: Mapping[str, str] | None = None,
    ):
        if reserved := sorted(set(_RESERVED) & set(extra_body or ())):
            raise UsageError(f"extra_body may not set {reserved[0]!r}; the other arguments set it")
        self.endpoint = Endpoint(
            base_url,
            api_key or os.environ.get("OPENAI_API_KEY") or None,
            patience=patience,
            concurrency=concurrency,
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            prices=prices,
            budget=budget,
            names=names,
        )
        self.prompt, self.seeded, self.token_ids, self.cut_thoughts = prompt, seeded, token_ids, cut_thoughts
        #: Set once an answer has closed a thought that it did not open; truncated answers are then thoughts.
        self.template_opens_thoughts = False
        self.first = [{"role": "system", "content": well_formed(system)}] if system is not None else []
        self.tools_of_env = tools == "env"
        if self.tools_of_env and prompt is not None:
            raise UsageError('tools="env" needs the whole chat, so prompt must be None')
        self.body: dict[str, Any] = {"model": well_formed(model)}
        if wrong := [n for n in (temperature, top_p, min_p) if isinstance(n, float) and not math.isfinite(n)]:
            raise UsageError(f"a sampling setting is {wrong[0]}; it must be a finite number")
        settings = {
            "temperature": temperature,
            "max_tokens": max_tokens,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "stop": list(stop or ()) or None,
            "tools": list(tools) if tools and tools != "env" else None,
        }
        self.body |= {key: value for key, value in settings.items() if value is not None}
        if stream:
            self.body |= {"stream": True, "stream_options": {"include_usage": True}}
        if token_ids:
            self.body |= {"return_token_ids": True, "logprobs": True}
        self.body |= dict(extra_body or {})

    @property
    def totals(self) -> Totals:
        """Requests, retries, tokens and cost so far."""
        return self.endpoint.totals

    def start(self, env: EnvHandle, seed: int) -> ChatSession:
        return ChatSession(self, random.Random(seed), StepEpisode(self.prompt) if self.prompt else None)

    async def aclose(self) -> None:
        """Close all connections; a later request opens new ones."""
        await self.endpoint.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


@dataclass(slots=True)
class ChatSession(Session):
    """One episode of a :class:`ChatAgent`."""

    agent: ChatAgent
    rng: random.Random
    steps: StepEpisode | None
    """None if ``messages`` are the whole chat."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    _calls: list[ChatToolCall] = field(default_factory=list)
    _tools: list[dict[str, Any]] = field(default_factory=list)
    """The environment's tools, if the agent passes them on."""
    _pictures: dict[str, Picture] = field(default_factory=dict)
    """The pictures so far, by their hashes."""
    _sent: int = 0
    """The number of messages that earlier turns have recorded."""

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        agent = self.agent
        if agent.token_ids:
            refuse_pictures(info, "training on token ids")
        try:
            images = pictures(info)
            messages = [*agent.first, *self._messages(observation, info, images)]
        except UsageError as error:
            raise AgentFailed(str(error)) from error
        self._pictures |= {image.sha256: image for image in images}
        body = {**agent.body, "messages": self._written("openai", messages)}
        if agent.tools_of_env:
            self._tools = offered_tools(info) or self._tools
            if self._tools:
                body["tools"] = self._tools
        if agent.seeded:
            body["seed"] = self.rng.getrandbits(31)
        reply = await agent.endpoint.complete(body)
        if agent.token_ids and not (reply.ids and reply.prompt_ids and len(reply.logprobs) == len(reply.ids)):
            raise UsageError(
                f"{agent.endpoint.url} returned {len(reply.prompt_ids)} prompt ids, {len(reply.ids)} response ids and "
                f"{len(reply.logprobs)} log-probabilities; use a server that returns them all (vLLM 0.10.2 or newer), "
                "or token_ids=False"
            )
        text, finish = self._action(reply)
        new = tuple(self._written("stored", messages[self._sent :]))
        if self.steps is None:
            message: dict[str, Any] = {"role": "assistant", "content": well_formed(reply.text)}
            self._calls = reply.calls
            if self._calls:
                message["tool_calls"] = [
                    {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                    for call in self._calls
                ]
                message = as_answered(message, reply.echo)
            self.messages.append(message)
            self._sent = len(agent.first) + len(self.messages)
        else:
            self.steps.add(text)
        thoughts = f"<think>{reply.thoughts}</think>" if reply.thoughts else ""
        raw = "\n".join(part for part in (thoughts, reply.text, *map(call_text, reply.calls)) if part)
        return Action(
            text,
            reply.prompt_ids,
            reply.ids,
            reply.logprobs if reply.ids else (),
            finish=finish,
            raw="" if raw == text else raw,
            messages=new,
            usage=agent.endpoint.usage(reply),
        )

    def close(self) -> None:
        self.messages.clear()

    def _messages(self, observation: str, info: dict[str, Any], images: Sequence[Picture]) -> list[dict[str, Any]]:
        """Return the messages up to this turn, those of the user with bound marks."""
        if self.steps is None:
            said = shown(observation, info)
            if self._calls:  # endpoints want results after calls, whatever the environment says
                texts = [text for _, text, _ in chat_messages(observation, info, as_results=True)]
                if len(texts) != len(self._calls):
                    texts = [said, *["(answered above)"] * (len(self._calls) - 1)]
                for call, text in zip(self._calls, map(str, texts), strict=True):
                    self.messages.append({"role": "tool", "tool_call_id": call.id, "content": well_formed(text)})
                if images:  # tool messages cannot have any
                    self.messages.append({"role": "user", "content": bound("", images)})
            else:
                self.messages.append({"role": "user", "content": bound(said, images)})
            return self.messages
        text = next(self.steps.prompts(observation, info))
        others = as_chat(unasked(self.steps.form.examples, text))
        examples = [{"role": role, "content": well_formed(turn)} for role, turn in others]
        return [*examples, {"role": "user", "content": bound(text, images)}]

    def _written(self, form: str, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return messages with the pictures of the user's in a form; what the model writes is text."""
        images = self._pictures.values()
        return [
            {**message, "content": content(form, message["content"], images)} if message["role"] == "user" else message
            for message in messages
        ]

    def _action(self, reply: ChatReply) -> tuple[str, str]:
        """Return the action of an answer and its finish reason."""
        text, finish = reply.text, "length" if reply.finish == "length" else "stop"
        if self.agent.body.get("max_tokens") == 1 and finish == "length":
            finish = "stop"  # an answer of one token is an action, not cut
        if self.agent.cut_thoughts:
            text, unfinished = after_thoughts(text, self.agent.template_opens_thoughts and finish == "length")
            if text != reply.text and not any(mark in reply.text for mark in THOUGHT_MARKS):
                self.agent.template_opens_thoughts = True
            if finish != "length" and (unfinished or (reply.thoughts and not text and not reply.calls)):
                finish = "unfinished"
        return "\n".join(part for part in (text, *map(call_text, reply.calls)) if part), finish


def call_text(call: ChatToolCall) -> str:
    """Format a call in Hermes' form. Arguments that are not JSON are unchanged; the environment refuses them."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = call.arguments
    return as_element(json.dumps({"name": call.name, "arguments": arguments}, ensure_ascii=False))
