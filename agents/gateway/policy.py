"""The trained policy behind a gateway: converts requests to tokens and responses to answers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from rollenv.agents.engines.base import Engine, Response, Sampling
from rollenv.agents.gateway.dialects.fields import unheard
from rollenv.agents.gateway.messages import Finish, FunctionCall, GatewayError, Message, ModelAnswer, ModelRequest
from rollenv.agents.gateway.session import GatewaySession, SampledAnswer
from rollenv.agents.gateway.tree import CallNode, Ids, Position
from rollenv.agents.prompts.chat_format import ChatFormat
from rollenv.agents.prompts.conversation import Conversation
from rollenv.agents.prompts.session import ResponseText
from rollenv.agents.prompts.template import TemplateRefused
from rollenv.core.errors import UsageError
from rollenv.core.parsing import THOUGHT_MARKS, after_thoughts, thoughts_in
from rollenv.core.picture_forms import WORD
from rollenv.core.pictures import MARK, Picture, picture
from rollenv.core.tools.call_readers import written_arguments
from rollenv.core.tools.calls import call_instructions, find_calls

#: Maximum number of cached conversations of a session; others are rebuilt from the tree.
_KEPT = 32
#: Maximum number of images of a request, which are decoded and measured one by one.
_MOST_IMAGES = 500
_CALL_NAME = re.compile(r'"(?:name|tool_name|function_name)"\s*:\s*"([^"\\]{1,200})"')


class PolicyModel:
    """A model with token ids in and out.

    If an answer must be a call (``tool_choice``), the opening of the call is part of the prompt: it is neither sampled
    nor trained on. If the model may think first, there is no opening, and an answer without a call is passed on.

    Args:
        agent: a :class:`~rollenv.agents.local.LocalAgent` or
            :class:`~rollenv.agents.engine_agent.EngineAgent`, whose engine, tokenizer, sampling and template arguments
            are used.
        client_sampling: use the client's temperature and ``top_p``. Not for training: with a temperature of 0 all
            members of a group are equal.
    """

    def __init__(self, agent: Any, *, client_sampling: bool = False):
        if not hasattr(agent, "engine") or not hasattr(agent, "sampling"):
            raise UsageError(f"a gateway needs a LocalAgent, EngineAgent or Upstream, not {type(agent).__name__}")
        tokenizer = getattr(agent, "tokenizer", None) or agent.codec.tokenizer
        self.name, self.agent = "policy", agent
        self.engine: Engine = agent.engine
        self.client_sampling = client_sampling
        self.format = ChatFormat.from_settings(tokenizer, getattr(agent.prompt, "template_args", {}))
        self.text = ResponseText(tokenizer)
        self._kept: WeakKeyDictionary[GatewaySession, OrderedDict[int, Conversation]] = WeakKeyDictionary()
        """Cached conversations by session and node, which continue after the node's answer."""

    @property
    def max_context(self) -> int:
        """Context length of the engine."""
        return self.engine.max_context

    @property
    def sees(self) -> bool:
        """False if the model reads texts only."""
        return self.format.family is not None

    def accept(self, request: ModelRequest) -> ModelRequest:
        """Return a request with pictures for images. Nothing is fetched.

        Raises:
            GatewayError: the model reads texts only, or an image cannot be read.
        """
        shown = sum(len(message.images) for message in request.messages)
        if not shown:
            return request
        if not self.sees:
            raise GatewayError("invalid", "the model reads no images; send text only")
        if shown > _MOST_IMAGES:
            raise GatewayError("invalid", f"the request has {shown} images; at most {_MOST_IMAGES} are looked at")
        return dataclasses.replace(request, messages=tuple(map(_with_pictures, request.messages)))

    async def draw(self, session: GatewaySession, position: Position, request: ModelRequest) -> SampledAnswer:
        """Sample the answer to a request; see :class:`~rollenv.agents.gateway.session.Model`."""
        began = time.time()
        chat = self._chat(session, position, request)
        prompt = chat.prompt()
        opening = self._opening(request, prompt)
        prompt += opening
        start = chat.continued
        sampling = self._sampling(session, request, len(prompt))
        rng = random.Random(session.rng.getrandbits(64))
        response = await self.engine.generate(prompt, sampling, rng, session=session.number)
        answer = dataclasses.replace(
            self.read(response, prompt, request, opening),
            prompt_tokens=len(prompt),
            cached_tokens=start,
            completion_tokens=len(response.ids),
            created=int(began),
        )
        chat.answer((*opening, *response.ids), [call.id for call in answer.calls])
        tokens = {
            "continues": start > 0,
            "tail": prompt[start:],
            "opening": len(opening),
            "response_ids": tuple(response.ids),
            "logprobs": tuple(response.logprobs),
            "versions": tuple(response.versions) or (self.engine.version,) * len(response.ids),
            "began": began,
            "ended": time.time(),
            "has_tools": bool(request.tools),
        }
        return SampledAnswer(answer, tokens, lambda node: self._keep(session, node, chat))

    def count(self, session: GatewaySession, position: Position, request: ModelRequest) -> int:
        """Count the tokens of a request's prompt."""
        return len(self._chat(session, position, request).prompt())

    def ignores(self, request: ModelRequest) -> list[str]:
        """Return the names of settings that the policy does not follow."""
        drawn = {} if self.client_sampling else {"temperature": request.temperature, "top_p": request.top_p}
        unused = [name for name, value in drawn.items() if value is not None]
        strict = ["tools.strict"] if any(tool.get("strict") for tool in request.tools) else []
        return [*request.ignored, *unheard(request.more), *strict, *unused]

    def release(self, session: GatewaySession) -> None:
        """Release a finished session."""
        self._kept.pop(session, None)
        self.engine.release(session.number)

    def _keep(self, session: GatewaySession, node: CallNode, chat: Conversation) -> None:
        kept = self._kept.setdefault(session, OrderedDict())
        kept[node.number] = chat
        if node.continues and node.parent is not None:
            kept.pop(node.parent, None)
        while len(kept) > _KEPT:
            kept.popitem(last=False)

    def _sampling(self, session: GatewaySession, request: ModelRequest, prompt: int) -> Sampling:
        room = self.engine.max_context - prompt
        if room < 1:
            raise GatewayError(
                "overflow",
                f"the prompt has {prompt} tokens and the model's context is {self.engine.max_context}",
                tokens=prompt,
                maximum=self.engine.max_context,
            )
        sampling: Sampling = session.sampling or self.agent.sampling
        most = min(room, sampling.max_new_tokens, request.max_tokens or room)
        changes: dict[str, Any] = {"max_new_tokens": most, "stop": (*sampling.stop, *request.stop)}
        if self.client_sampling:
            wanted = {"temperature": request.temperature, "top_p": request.top_p}
            changes |= {name: value for name, value in wanted.items() if value is not None}
            changes["top_p"] = changes.get("top_p") or sampling.top_p  # 0 means unset
        return dataclasses.replace(sampling, **changes)

    # -- prompts -------------------------------------------------------------------------------------------------------

    def _chat(self, session: GatewaySession, position: Position, request: ModelRequest) -> Conversation:
        """Return the conversation that ends with a request's messages."""
        in_a_row = not position.context or position.context[0].role == "assistant"
        if position.extends and position.parent and (self.format.has_answers_in_a_row or not in_a_row):
            chat = self._after_answer(session, position.parent)
            chat.extend([self._message(message) for message in position.context])
            with contextlib.suppress(TemplateRefused):  # answers before are in a row: a rendering merges them
                chat.prompt()
                return chat
        return self._begin(position.chat, request.tools)

    def _begin(
        self, messages: Sequence[tuple[Message, CallNode | None]], tools: Sequence[Mapping[str, Any]]
    ) -> Conversation:
        """Create a conversation whose history is rendered by the template."""
        first = 0
        while first < len(messages) - 1 and messages[first][0].role == "system":
            first += 1
        system = [message.text for message, _ in messages[:first]]
        schemas = [{"type": "function", "function": tool["function"]} for tool in tools]
        try:
            chat = Conversation(self.format, "\n\n".join(system) or None, schemas or None)
        except UsageError:  # the template does not support tools
            chat = Conversation(self.format, "\n\n".join([*system, call_instructions(schemas, "hermes")]))
        chat.extend([self._message(message, node, schemas) for message, node in messages[first:]])
        return chat

    def _after_answer(self, session: GatewaySession, node: CallNode) -> Conversation:
        """Return a copy of the conversation up to a node's answer, cached or rebuilt from the tree."""
        kept, tree = self._kept.get(session), session.tree
        chat = kept.get(node.number) if kept else None
        if chat is None:
            path = tree.path(node)
            start = max(i for i, each in enumerate(path) if not each.continues)
            chat = self._begin(tree.chat(path[start]), tree.tools[node.tools])
            for each in path[start:]:
                if each is not path[start]:
                    chat.extend([self._message(message) for message in each.context])
                chat.prompt()
                prompt = tree.prompt_ids(each)
                chat.restore(prompt[: len(prompt) - each.opening])
                chat.answer(each.answer_ids, [call.id for call in each.answer.calls])
            self._keep(session, node, chat)
        return chat.fork()

    def _message(
        self, message: Message, node: CallNode | None = None, tools: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, Any]:
        """Convert a message for the template. An answer of a node is shown as it was sampled, but for ids."""
        if node is not None:
            prompt = node.tail[: len(node.tail) - node.opening]
            shown = self.format.answer_message(node.answer_ids, prompt, tools)
            for said, call in zip(shown.get("tool_calls", ()), node.answer.calls, strict=False):
                said["id"] = call.id  # as the results of clients name it
            return shown
        text, images = message.text, [image for image in message.images if isinstance(image, Picture)]
        if images:  # as for endpoints, the text stands before them
            text = text.replace(MARK, WORD) + MARK * len(images)
        shown = self.format.message(message.role, text, images)
        if message.role == "tool":
            return {**self.format.result_message("", message.call_id), "content": shown["content"]}
        if message.calls:
            written = [(call.id, call.name, _arguments(call)) for call in message.calls]
            shown = self.format.call_message(message.text, written)
        if message.reasoning and self.format.thought_key:
            shown[self.format.thought_key] = self.format.message("assistant", message.reasoning)["content"]
        return shown

    # -- answers -------------------------------------------------------------------------------------------------------

    def _opening(self, request: ModelRequest, prompt: Ids) -> Ids:
        """Return the tokens of a call's opening if the answer must be a call and the model does not think before it."""
        chosen = request.tool_choice
        if chosen in ("auto", "none"):
            return ()
        if self.text.thinks and not self.text.decode(prompt[-12:]).rstrip().endswith(tuple(THOUGHT_MARKS.values())):
            return ()
        names = {tool["function"]["name"] for tool in request.tools if chosen in ("required", tool["function"]["name"])}
        own = self.format.call_opening(*names if len(names) == 1 else ())
        if own is not None:
            return tuple(own)
        named = f' {json.dumps(*names, ensure_ascii=False)}, "arguments":' if len(names) == 1 else ""
        opening = self.format.message("assistant", f'<tool_call>\n{{"name":{named}')
        return tuple(self.format.encode(opening["content"], anchored=True))

    def read(self, response: Response, prompt: Ids, request: ModelRequest, opening: Ids = ()) -> ModelAnswer:
        """Parse a response to an answer, without its counts.

        Calls of all model families are recognised. Arguments that are not JSON are unchanged, so that the model learns
        from the consequences. Calls are left out if none was allowed.
        """
        whole = self.text.decode((*opening, *response.ids))
        finish: Finish = "length" if response.finish == "length" else "stop"
        sampled = whole[len(self.text.decode(opening)) :]
        stop_text = min((stop for stop in request.stop if stop in sampled), key=sampled.find, default="")
        if stop_text:
            whole, finish = whole[: len(whole) - len(sampled) + sampled.find(stop_text)], "stop_text"
        opened = self.text.opens_thought(prompt)
        text, reasoning = after_thoughts(whole, opened)[0], thoughts_in(whole, opened)
        calls: list[FunctionCall] = []
        if request.tools:
            text, calls = _calls(text, request.tools)
        if request.tool_choice == "none":
            calls = []
        if calls and finish == "stop":
            finish = "tool_calls"
        return ModelAnswer(text, tuple(calls), reasoning, finish, stop_text)


def _with_pictures(message: Message) -> Message:
    if message.images and message.role not in ("user", "tool"):
        raise GatewayError("invalid", f"the model sees images of users and tools, not in a message of {message.role}")
    if any(isinstance(image, str) and not image.startswith("data:") for image in message.images):
        raise GatewayError("invalid", "images are not fetched from addresses here; send them as data (base64)")
    try:
        return dataclasses.replace(message, images=tuple(map(picture, message.images)))
    except UsageError as error:
        raise GatewayError("invalid", f"an image cannot be read: {error}") from error


def _calls(text: str, tools: Sequence[Mapping[str, Any]]) -> tuple[str, list[FunctionCall]]:
    """Split a text into its message and its calls."""
    found, around = find_calls(text, "hermes", tools)
    namespaces = {tool["function"]["name"]: tool.get("namespace", "") for tool in tools}
    calls, begin = [], 0
    for call in found:
        name, arguments = call.name, json.dumps(call.arguments, ensure_ascii=False)
        if call.problem:
            written = text[begin : call.end]
            name_match = _CALL_NAME.search(written)
            if not (name or name_match):
                return text, []  # clients could not read it as a call
            name = name or name_match[1]  # type: ignore[index]
            arguments = written_arguments(written)
        begin = call.end
        calls.append(FunctionCall(f"call_{secrets.token_hex(16)}", name, arguments, namespaces.get(name, "")))
    if not calls:
        return text, calls
    return around, calls


def _arguments(call: FunctionCall) -> dict[str, Any] | str:
    """Return a call's arguments; as written if they are no JSON object."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments
    return arguments if isinstance(arguments, dict) else call.arguments
