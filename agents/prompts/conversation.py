"""A chat as token ids: exactly the model's input and sampled tokens, for training."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rollenv.agents.base import ContextFull
from rollenv.agents.engines.base import Ids
from rollenv.agents.prompts.chat_format import ChatFormat, Frame
from rollenv.agents.prompts.step import Examples, unasked
from rollenv.agents.prompts.template import Message, TemplateRefused, squash
from rollenv.core.errors import UsageError
from rollenv.core.parsing import split_thought
from rollenv.core.pictures import Picture
from rollenv.core.tools.call_readers import MOST_CALLS
from rollenv.core.tools.calls import find_calls

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Conversation:
    """One chat with a model, with its history as token ids.

    Later prompts contain the ids of earlier responses unchanged; messages are appended as the tokens that the chat
    template renders after an answer. Responses are never tokenised again, which may give other tokens than were
    sampled.

    Some templates change the history: they drop the thinking of earlier turns (Qwen3, DeepSeek-R1), or move the tools
    to the last message. This is detected by comparing the rendered text with the history, without white space; then the
    next prompt is the rendering of the whole new history, and :attr:`splits` is incremented. Trainers begin a new
    sample there. A turn is compared at the next message and at the next user message, when templates rewrite it.

    Args:
        system: the system prompt, prepended to the first message if the template has no such role.
        tools: schemas (OpenAI's form) for the template's ``tools``; ``env`` for those of :meth:`offer`.
        max_context: maximum number of tokens of a prompt and ``reserve``; None for no limit.
        append_only: keep the history unchanged even if the template changes it, for trainers that need one token
            sequence for a whole chat.
        thoughts: "keep" is ``append_only``; "drop" removes the thoughts of every answer before the next prompt, which
            counts as a split; "template" leaves the choice to the template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | ChatFormat,
        system: str | None = None,
        tools: Sequence[dict[str, Any]] | Literal["env"] | None = None,
        max_context: int | None = None,
        *,
        reserve: int = 1,
        append_only: bool = False,
        thoughts: Literal["template", "keep", "drop"] = "template",
        examples: Examples = (),
    ):
        self.format = tokenizer if isinstance(tokenizer, ChatFormat) else ChatFormat.of(tokenizer)
        self.max_context, self.reserve = max_context, reserve
        self.append_only, self.drops_thoughts = append_only or thoughts == "keep", thoughts == "drop"
        self.splits = self.continued = 0
        """The number of re-rendered histories, and of known tokens of the last prompt."""
        self._system, self.wants_tools = system, tools == "env"
        self.frame = self.format.frame(system, None if tools == "env" else tools)
        self._examples = examples
        self._pictures: list[Picture] = []  # which live as long as somebody holds them
        self._messages: list[Message] = self.format.example_messages(examples)
        self._pending: list[Message] = []
        self._asks_again = False
        self._prompt: Ids = ()
        self._answer: Ids | None = None
        self._said: Message = {}
        """The last answer as a message."""
        self._call_ids: tuple[str, ...] = ()
        self._tools: Sequence[dict[str, Any]] = ()
        """The functions whose calls in it are structured; none if the template refuses these calls."""
        self._ids: dict[str, str] = {}
        """The ids of calls, by those of whoever wrote them."""
        self._user_at = 0
        """Index of the last user message; a template may rewrite later messages when the next one is added."""
        self._since_user: list[str] = []
        """The history's text after that message, without white space."""

    @property
    def messages(self) -> list[Message]:
        """The chat so far as ``{"role": ..., "content": ...}``, without the system prompt. An answer's thought is under
        the key by which the template reads it, or else part of the content; its calls are under ``tool_calls``.
        """
        return [self.format.reveal(message) for message in (*self._messages, *self._pending)]

    def offer(self, tools: Sequence[dict[str, Any]]) -> None:
        """Set the environment's functions for the template, before the first prompt."""
        self.frame, self.wants_tools = self.format.frame(self._system, tools), False

    def add(self, role: Literal["user", "tool"], text: str, images: Sequence[Picture] = ()) -> None:
        """Append a message, as a user message if the template has no tool role.

        Args:
            images: pictures at the marks of the text, or before it.
        """
        if role not in ("user", "tool"):
            raise UsageError(f"a message must be from 'user' or 'tool', not {role!r}; responses go to answer()")
        if self._prompt and self._answer is None:
            raise UsageError("the last prompt has no answer yet; call answer() before the next message")
        if self._examples and not (self._prompt or self._pending):
            self._messages = self._example_messages(unasked(self._examples, text, chat=True))
        message = self.format.message(role, text, images)
        self._pictures += images
        if role == "tool" and len(self._pending) < len(calls := self._said.get("tool_calls", ())):
            message = {**self.format.result_message("", calls[len(self._pending)]["id"]), "content": message["content"]}
        self.extend([message])

    def _example_messages(self, examples: Examples) -> list[Message]:
        """Build the messages of examples. A call of a function of the template and its result are as in an episode;
        several calls of one answer stay text, since the next prompt holds all their results.
        """
        tools = self.frame.tools
        if not tools:
            return self.format.example_messages(examples)
        messages: list[Message] = []
        for number, (prompt, answer) in enumerate(examples):
            asked = self.format.message("user", prompt)
            if messages and (calls := messages[-1].get("tool_calls")) and self.format.has_results:
                asked = self.format.result_message(prompt, calls[0]["id"])
            ids = tuple(self.format.encode(answer))
            said = self.format.answer_message(ids, tools=tools, call_ids=(f"example_{number}",))
            one = len(said.get("tool_calls", ())) == 1 and self.frame.accepts(said)
            messages += [asked, self.with_ids(said) if one else self.format.message("assistant", answer)]
        return messages

    def takes_results(self, info: Mapping[str, Any]) -> bool:
        """Return whether the template shows each of an observation's results of tools as a message of a tool."""
        results = len(info.get("tool_responses") or ())
        by_call = self.format.has_results and results == len(self._said.get("tool_calls", ()))
        return self.format.has_tool_role or by_call

    def extend(self, messages: Sequence[Message]) -> None:
        """Append messages of any role, built by the :class:`ChatFormat`; none to ask for an answer after the last."""
        for message in map(self.with_ids, messages):
            known = message.get("tool_call_id") in self._ids.values()
            if message["role"] == "tool" and not (self.format.has_tool_role or (self.format.has_results and known)):
                message = {"role": "user", "content": message["content"]}
            self._pending.append(message)
        self._asks_again = self._answer is not None

    def with_ids(self, message: Message) -> Message:
        """Return a message with ids of calls in the form that the template takes."""
        if "tool_call_id" in message:
            message = {**message, "tool_call_id": self._ids.get(message["tool_call_id"], message["tool_call_id"])}
        for call in message.get("tool_calls", ()):
            known, number = self._ids.get(call["id"], call["id"]), len({*self._ids.values()})
            self._ids[call["id"]] = call["id"] = self.format.call_id(number, call["function"]["name"], known)
        return message

    def prompt(self) -> Ids:
        """Return all token ids up to the opening of the next answer; unchanged until the next message.

        Raises:
            ContextFull: the prompt and the reserve do not fit.
        """
        if self._pending or self._asks_again:
            if self._answer is None:
                new, text = self.frame.fit(self._messages, self._pending)
                self._prompt = tuple(self.format.encode(text))
                self._append(new)
            else:
                self._continue(self._answer)
            self._pending, self._answer, self._asks_again = [], None, False
        elif not self._prompt or self._answer is not None:
            raise UsageError("there is nothing to answer: add() a message first")
        if self.max_context is not None and len(self._prompt) + self.reserve > self.max_context:
            raise ContextFull(
                f"the conversation has {len(self._prompt)} tokens and its answer needs {self.reserve}, "
                f"but the context holds {self.max_context}; raise max_context or play shorter episodes"
            )
        return self._prompt

    def answer(self, ids: Sequence[int], calls: Sequence[str] = ()) -> None:
        """Append the response to the last prompt as sampled, with its stop token if it has one.

        Args:
            calls: ids of its calls, if their results have them.
        """
        if not self._prompt or self._answer is not None:
            raise UsageError("an answer needs a prompt before it: call add() and prompt()")
        self._answer = tuple(ids)
        self._call_ids = (*calls,) or tuple(f"call_{len(self._messages)}_{number}" for number in range(MOST_CALLS))
        self._tools = self.frame.tools or ()
        known = dict(self._ids)
        self._said = self.with_ids(self._read())
        if "tool_calls" in self._said and not self.frame.accepts(self._said):
            self._ids, self._tools = known, ()
            self._said = self._read()
        for name, call in zip(self._call_ids, self._said.get("tool_calls", ()), strict=False):
            self._ids.setdefault(name, call["id"])

    def restore(self, prompt: Ids) -> None:
        """Replace the last prompt by the recorded ids, as a template with a date may render others."""
        self._prompt = prompt

    def fork(self) -> Conversation:
        """Return an independent copy of the chat."""
        twin = copy.copy(self)
        for name in ("_messages", "_pending", "_since_user", "_ids", "_pictures"):
            setattr(twin, name, getattr(self, name).copy())
        return twin

    def _read(self, *, thoughts: bool = True) -> Message:
        """Convert the last answer to a message."""
        ids, known = self._answer or (), (self._tools, self._call_ids)
        message = self.format.answer_message(ids, self._prompt, *known, thoughts=thoughts)
        if not message["content"] and "tool_calls" not in message and not self.frame.accepts(message):
            message["content"] = " "  # some templates refuse an answer without a text
        return message

    def _continue(self, answer: Ids) -> None:
        message, dropped = self._said, False
        if self.drops_thoughts:
            message = self.with_ids(self._read(thoughts=False))
            dropped = message != self._said
        said = self.format.said(answer)
        try:
            frame = self.frame.bare(message, self._pending)
            new, tail, unchanged = frame.after_answer(self._pending, message)
        except TemplateRefused:  # Mistral's wants results after calls, no user's message: the calls stay text
            if "tool_calls" not in message:
                raise
            self._tools = ()
            self._said = self._read()
            self._continue(answer)
            return
        joint, agrees = self._joint(answer, tail)
        shown = squash(said) if self.append_only else self._shown(frame, message, new, said, tail) if agrees else None
        if shown is not None and (unchanged or self.append_only) and not dropped:
            self.continued = len(self._prompt) + len(answer)
            self._prompt = (*self._prompt, *answer, *joint)
            self._since_user += [shown, squash(tail)]
            self._append([message, *new])
        else:
            self.continued = 0
            self._append([message, *new])
            self._prompt = tuple(self.format.encode(self.frame.render(self._messages)))
            self._since_user = [self.frame.since_user(self._messages[self._user_at + 1 :])]
            self.splits += 1

    def _append(self, messages: list[Message]) -> None:
        self._messages += messages
        users = [i for i, m in enumerate(messages) if m["role"] == "user"]
        if users or not self._since_user:
            self._user_at = len(self._messages) - len(messages) + max(users, default=0)
            self._since_user = [self.frame.since_user(self._messages[self._user_at + 1 :])]

    def _shown(self, frame: Frame, message: Message, new: list[Message], said: str, tail: str) -> str | None:
        """Return the text of an answer in the rendered history, without white space; None if the history does not begin
        with the model's input and answers.

        A thought is compared with its white space, since a template that writes one again writes it in its own form.
        Calls may be written in another form, if they are the same.
        """
        added = squash(said) + squash(tail)
        between = self._messages[self._user_at + 1 :]
        if between and any(m["role"] == "user" for m in new):
            same = self.frame.since_user([*between, message, *new]) == "".join(self._since_user) + added
            return squash(said) if same else None
        before, shown = frame.after_user(), frame.after_user([message, *new])
        written = said
        if squash(shown) != squash(before) + added:
            written = shown.removeprefix(before).removesuffix(tail)
            if before + written + tail != shown or not self._same_calls(said, written):
                return None
        thought = split_thought(said, self.format.opened_thought(self._prompt))
        thinking = said[: len(said) - len(thought.answer)].rstrip() if thought and thought.closed else ""
        if thinking and not shown.startswith(before + thinking):
            return None
        return squash(written)

    def _same_calls(self, said: str, written: str) -> bool:
        """Return whether two texts have the same calls, and are equal around them."""
        found = [find_calls(text, schemas=self.frame.tools or ()) for text in (said, written)]
        (calls, around), (others, around_others) = found
        named = [(call.name, call.arguments) for call in calls]
        same = named == [(call.name, call.arguments) for call in others] and squash(around) == squash(around_others)
        return bool(calls) and same

    def _joint(self, answer: Ids, tail: str) -> tuple[Ids, bool]:
        """Return the tokens between an answer and the next one, without repeating the answer's stop token, and False if
        the answer ends with another token of the template than the template writes there.
        """
        ids = tuple(self.format.encode(tail, anchored=True))
        if not answer or answer[-1] not in self.format.stop_ids:
            return ids, True
        for i, token in enumerate(ids[:4]):
            if token == answer[-1] and not self.format.decode(ids[:i]).strip():
                return ids[i + 1 :], True
        if answer[-1] not in self.format.written_stop_ids:
            return ids, True
        return ids[1:] if self.format.header else ids, False  # harmony ends the last message of all with another token
