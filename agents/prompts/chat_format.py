"""Cached analysis of a tokenizer's chat template, shared by all conversations."""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import re
import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rollenv.agents.engines.base import Ids, text_tokens
from rollenv.agents.prompts.step import Examples, as_chat, placed, unasked
from rollenv.agents.prompts.template import (
    ANSWER,
    CLOSE,
    HIDDEN,
    NAME,
    OPEN,
    QUESTION,
    ChatTemplate,
    Message,
    TemplateRefused,
    answer_of,
    common_start,
    squash,
    tool_calls_of,
    user_of,
)
from rollenv.core.errors import UsageError
from rollenv.core.parsing import THOUGHT_MARKS, after_thoughts, opening_thought, split_thought, well_formed
from rollenv.core.pictures import MARK, Picture, is_picture_token, numbered
from rollenv.core.tools.calls import find_calls, write_calls

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: The key of thoughts in answers whose template reads none.
THOUGHT = "reasoning_content"

#: Maximum number of cached frames (system prompt and tools).
_REMEMBERED = 64
_CALL_ID = re.compile(r"[\w.:/\-]{1,64}")  # of a model: it goes into later prompts, and must hold no mark
#: Maximum number of cached comparisons with a bare frame, by kind of messages.
_KINDS = 1024


class ChatFormat(ChatTemplate):
    """A tokenizer's chat template with the encoding of texts.

    Only the template may insert tokens that mark turns: if a text contains one (``<|im_end|>`` in a web page), its
    characters are encoded, not the token. Thread-safe.

    Args:
        template_args: arguments of the template, such as ``enable_thinking=False`` or ``date_string="26 Jul 2026"``.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, **template_args: Any):
        super().__init__(tokenizer, **template_args)
        self._lock = threading.Lock()
        self._frames: dict[tuple[str | None, str], Frame] = {}
        strip = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.rstrip}
        anchors = (t for t in [tokenizer.eos_token, *self._literals[1:]] if t and t not in strip)
        alone = (t for t in anchors if len(tokenizer.encode(t, add_special_tokens=False)) == 1)
        self._anchor = next(alone, "")

    @staticmethod
    def of(tokenizer: PreTrainedTokenizerBase, **template_args: Any) -> ChatFormat:
        """Return the format of a tokenizer, cached after its first analysis."""
        key = json.dumps(template_args, sort_keys=True)
        return _analysed(tokenizer, str(tokenizer.chat_template), key)

    @staticmethod
    def from_settings(tokenizer: PreTrainedTokenizerBase, template_args: Mapping[str, Any]) -> ChatFormat:
        """Return a tokenizer's format with a user's arguments, all of which the template must use."""
        ours = {"messages", *inspect.signature(tokenizer.apply_chat_template).parameters}
        for name in template_args if tokenizer.chat_template else ():
            if name in ours:
                raise UsageError(f"template_args: {name!r} is set by rollenv itself; leave it out")
            if not name.isidentifier() or not re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template)):
                raise UsageError(
                    f"template_args: the chat template never reads {name!r}; look at tokenizer.chat_template"
                )
        return ChatFormat.of(tokenizer, **template_args)

    def frame(self, system: str | None = None, tools: Sequence[dict[str, Any]] | None = None) -> Frame:
        """Return the format with a system prompt and tool schemas, cached after its first analysis."""
        key = (system, json.dumps(tools, sort_keys=True) if tools else "")
        with self._lock:
            frame = self._frames.get(key)
        if frame is None:
            frame = Frame(self, system, tools)
            with self._lock:
                if len(self._frames) >= _REMEMBERED:
                    self._frames.clear()
                self._frames[key] = frame
        return frame

    def prompt(self, text: str, examples: Examples = (), images: Sequence[Picture] = ()) -> Ids:
        """Return the prompt of one user message, after other examples and their answers."""
        before = self.example_messages(unasked(examples, text))
        return tuple(self.encode(self.frame().render([*before, self.message("user", text, images)])))

    def example_messages(self, examples: Examples) -> list[Message]:
        """Build the messages of examples."""
        return [self.message(role, text) for role, text in as_chat(examples)]

    def message(self, role: str, text: str, images: Sequence[Picture] = ()) -> Message:
        """Build a message for the template; turn markers in the text are escaped and lone surrogates replaced.

        Args:
            role: "system", "user", "assistant" or "tool".
            images: pictures at the marks of the text, or before it.
        """
        if images and self.family is None:
            raise UsageError("this model's tokenizer reads texts only; its messages cannot have pictures")
        if role == "assistant":
            return self._message_with_thought(self._hide(self._in_answers, well_formed(text)), "")
        parts = placed(text, images)
        content = (
            f"{OPEN}{part.number}{CLOSE}"
            if isinstance(part, Picture)
            else self._hide(self._anything, well_formed(part))
            for part in parts
        )
        return {"role": role, "content": "".join(content)}

    def answer_message(
        self,
        ids: Ids,
        prompt: Ids = (),
        tools: Sequence[Mapping[str, Any]] = (),
        call_ids: Iterable[str] = (),
        *,
        thoughts: bool = True,
    ) -> Message:
        """Convert a response to a message, with its thought under the key by which the template reads thoughts.

        Args:
            prompt: the prompt of the response, or its end, which may have opened the thought.
            tools: the functions that the template describes, whose calls go into ``tool_calls``; others stay text.
            call_ids: ids of the calls that the model gives none.
            thoughts: False to leave the thought out.
        """
        said, opened = self.said(ids), self.opened_thought(prompt)
        message = self._channel_message(said) if self.header else self._message_with_thought(said, opened)
        answer, unfinished = after_thoughts(said, bool(opened))
        if not thoughts:
            message = {"role": "assistant", "content": message["content"] if self.header else answer}
        if not tools or not self.writes_calls or unfinished:
            return message
        content = message["content"]
        calls, text = find_calls(said if self.header else content, schemas=tools)
        if not calls or any(call.problem for call in calls):
            return message
        text = "" if self.header else content[: opening_thought(content)] + text  # a call is such a template's message
        names = itertools.chain(call_ids, map("call_{}".format, itertools.count()))
        given = [call.id if _CALL_ID.fullmatch(call.id) else name for name, call in zip(names, calls, strict=False)]
        written = [(name, call.name, call.arguments) for name, call in zip(given, calls, strict=True)]
        return {**message, "content": text, "tool_calls": tool_calls_of(written)}

    def _message_with_thought(self, said: str, opened: str) -> Message:
        thought = split_thought(said, opened)
        if thought is not None and self.thought_key:
            return {"role": "assistant", "content": thought.answer, self.thought_key: thought.text}
        if thought is not None:
            said = opened + said if self._shows_thoughts else thought.answer
        return {"role": "assistant", "content": said}

    def _channel_message(self, said: str) -> Message:
        """Convert a response of several messages, such as harmony's channels: the last behind the header is shown."""
        _, found, answer = said.rpartition(self.header)
        message = {"role": "assistant", "content": self._marks.sub("", answer if found else after_thoughts(said)[0])}
        if self.thought_key and said.lstrip().startswith(self._thought_header):
            thought = said.lstrip().removeprefix(self._thought_header)
            message[self.thought_key] = next(iter(self._marks.split(thought)))
            if not found and message["content"] == message[self.thought_key]:
                message["content"] = ""
        return message

    def opened_thought(self, prompt: Ids) -> str:
        """Return the mark with which the end of a prompt opens a thought; empty if it opens none."""
        end = self.decode(prompt[-12:]).rstrip()
        return next((mark for mark in THOUGHT_MARKS if end.endswith(mark)), "")

    def said(self, ids: Ids) -> str:
        """Return the escaped text of a response without its stop token; sampled special tokens remain special, and
        their spelling remains text. The token of a picture is text there too.
        """
        parts, run = [], list[int]()
        for i in self.without_stop(ids):
            if i in self.special and not (self.family and self.special[i] in self.family.literals):
                parts += [self._hide(self._in_answers, self.decode(run)), self.special[i]]
                run = []
            else:
                run.append(i)
        return "".join([*parts, self._hide(self._in_answers, self.decode(run))])

    def _hide(self, what: re.Pattern[str], text: str) -> str:
        return what.sub(lambda m: f"{OPEN}{self._literals.index(m[0])}{CLOSE}", text)

    def reveal(self, shown: Any) -> Any:
        """Return the original of an escaped text, or of all texts in a message."""
        if isinstance(shown, dict):
            return {self.reveal(key): self.reveal(value) for key, value in shown.items()}
        if isinstance(shown, list):
            return [self.reveal(value) for value in shown]
        if not isinstance(shown, str):
            return shown
        return HIDDEN.sub(lambda m: MARK if is_picture_token(int(m[1])) else self._literals[int(m[1])], shown)

    def without_stop(self, ids: Ids) -> Ids:
        """Return a response without its stop token."""
        return ids[:-1] if ids and ids[-1] in self.stop_ids else ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Decode tokens, but not those of pictures; bytes that are not UTF-8 become U+FFFD."""
        ids = text_tokens(ids)
        if not ids:
            return ""
        with self._lock:
            text = self.tokenizer.decode(
                list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
            )
        return str(text)

    def encode(self, text: str, *, anchored: bool = False) -> list[int]:
        """Encode a rendered text.

        Args:
            anchored: encode as after a special token, not as the beginning of a text (where SentencePiece inserts a
                space).
        """
        ids: list[int] = []
        pictures: list[Picture] = []
        for number, piece in enumerate(self._pieces(text, pictures)):
            ids += self._encode(piece, anchored or number > 0)
        return self.family.marked(ids, pictures) if self.family and pictures else ids

    def _pieces(self, text: str, pictures: list[Picture]) -> Iterator[str]:
        """Split the text inside and after every escaped literal, so that none becomes a special token.

        Args:
            pictures: gets those of the text, which become what the processor writes for them.
        """
        piece, done = "", 0
        for hidden in HIDDEN.finditer(text):
            number = int(hidden[1])
            piece += text[done : hidden.start()]
            if self.family and is_picture_token(number):
                pictures.append(numbered(number))
                piece, done = piece + self.family.written(pictures[-1]), hidden.end()
                continue
            literal = self._literals[number]
            while literal and (match := self._anything.search(literal)):
                yield piece + literal[: match.start() + 1]
                piece, literal = "", literal[match.start() + 1 :]
            yield piece + literal
            piece, done = "", hidden.end()
        yield piece + text[done:]

    def _encode(self, text: str, anchored: bool) -> list[int]:
        if not text:
            return []
        skip = int(bool(self._anchor and anchored))
        with self._lock:  # tokenizers have mutable settings that change with every call
            ids: list[int] = self.tokenizer.encode((self._anchor if skip else "") + text, add_special_tokens=False)
        return ids[skip:]

    def call_message(self, text: str, calls: Sequence[tuple[str, str, Any]]) -> Message:
        """Build an answer with calls, as text if the template writes none or their arguments are no objects.

        Args:
            calls: their ids, names and arguments.
        """

        def hidden(value: Any) -> Any:
            if isinstance(value, str):
                return self._hide(self._in_answers, well_formed(value))
            if isinstance(value, dict):
                return {hidden(key): hidden(each) for key, each in value.items()}
            return [hidden(each) for each in value] if isinstance(value, list) else value

        message = {**self.message("assistant", text), "tool_calls": tool_calls_of([hidden([*call]) for call in calls])}
        objects = all(isinstance(arguments, dict) for _, _, arguments in calls)
        return message if objects and self.writes_calls else _with_calls_as_text(message)

    def result_message(self, text: str, call: str) -> Message:
        """Build the message with the result of a call.

        Args:
            call: its id.
        """
        return {**self.message("tool", text), "tool_call_id": self._hide(self._in_answers, well_formed(call))}

    def call_opening(self, name: str = "") -> list[int] | None:
        """Return the tokens that open a call, of a function if one is named; None if the template writes no calls."""
        if self._call_form is None:
            return None
        before, between = self._call_form
        function = self._hide(self._in_answers, well_formed(name))
        text = f"{before}{function}{between.replace(NAME, function)}".rstrip(' {"<') if name else before.rstrip(' "')
        return self.encode(text, anchored=True)

    def kind(self, messages: Sequence[Message]) -> Hashable:
        """Return the properties of messages that templates depend on: roles, white space, and the template's words."""
        kinds = []
        for message in messages:
            for key, value in message.items():
                text = value if isinstance(value, str) else json.dumps(value)
                words = [(w, text.startswith(w), text.endswith(w)) for w in self._words if w in text]
                kinds.append((message["role"], key, text.strip() == "", text == text.strip(), tuple(words)))
        return tuple(kinds)


class Frame:
    """A chat format with a system prompt and tools, shared by all episodes of an agent.

    If the template has no system role, the system prompt is prepended to the first user message.
    """

    def __init__(self, chat_format: ChatFormat, system: str | None, tools: Sequence[dict[str, Any]] | None):
        self.format, self.tools = chat_format, list(tools) if tools else None
        self._system = chat_format.message("system", system)["content"] if system is not None else None
        self._bare: dict[Hashable, bool] = {}
        """True if the text is the same without system prompt and tools, by kind of messages."""
        self._opening = self._open()
        if tools and Frame(chat_format, system, None)._opening == self._opening:
            raise UsageError("the chat template does not support tools; describe them in the system prompt instead")

    def render(self, messages: Sequence[Message], *, opening: bool = True) -> str:
        """Render a conversation of these messages after the system prompt; see :meth:`ChatTemplate.render`."""
        if self._system is not None and self.format.has_system:
            messages = [{"role": "system", "content": self._system}, *messages]
        elif self._system is not None:
            messages = [{**messages[0], "content": f"{self._system}\n\n{messages[0]['content']}"}, *messages[1:]]
        return self.format.render(messages, self.tools, opening=opening)

    def answer_ids(self, answer: Message) -> Ids:
        """Return the tokens of a given answer as the model would have to sample them, with the token that ends it.

        Raises:
            TemplateRefused: the template refuses it, or opens a thought in the prompt that the answer does not have.
        """
        before = self.render([user_of("-")])
        whole = self.render([user_of("-"), answer], opening=False)
        said = whole.removeprefix(before)
        if not whole.startswith(before):  # the template leaves out of an answer what its opening of a prompt has
            opened = next((mark for mark in THOUGHT_MARKS if before.rstrip().endswith(mark)), "")
            thought = answer.get(self.format.thought_key or THOUGHT)
            if not (opened and thought):
                why = "a prompt opens a thought, and this answer has none" if opened else f"it has {before[-30:]!r}"
                raise TemplateRefused(
                    f"the chat template does not write this answer after its opening: {why}. Give answers thoughts "
                    f"({THOUGHT}), or set prompt.template_args (such as enable_thinking=false)"
                )
            closing = THOUGHT_MARKS[opened]
            said = whole[len(common_start(before, whole)) :].removeprefix(closing).lstrip()
            said = f"{thought}\n{closing}\n\n{said}"
        ids = self.format.encode(said.rstrip(), anchored=True)
        end = next((n for n, token in enumerate(ids, 1) if token in self.format.stop_ids), 0)
        return tuple(ids[:end] if end else [*ids, self._end_of(answer)])

    def _end_of(self, answer: Message) -> int:
        """Return the token that ends an answer where the template writes none: the one that begins the next message."""
        calls = answer.get("tool_calls")
        new = self.format.result_message("-", calls[-1]["id"]) if calls else user_of("-")
        text = self.after_answer([new], answer)[1]
        ends = (token for token in self.format.encode(text, anchored=True) if token in self.format.stop_ids)
        return next(ends, self.format.tokenizer.eos_token_id)

    def accepts(self, answer: Message) -> bool:
        """Return whether the template takes an answer: some take one call only."""
        try:
            self.render([user_of("-"), answer])
        except TemplateRefused:
            return False
        return True

    def fit(self, before: Sequence[Message], new: Sequence[Message]) -> tuple[list[Message], str]:
        """Find a form of new messages that the template accepts.

        Messages are merged if the template requires alternating roles.
        """
        refused: TemplateRefused | None = None
        for form in _forms(new):
            try:
                return form, self.render([*before, *form])
            except TemplateRefused as error:
                refused = refused or error
        assert refused is not None
        raise refused

    def after_answer(self, new: Sequence[Message], answer: Message | None = None) -> tuple[list[Message], str, bool]:
        """Return the accepted form of messages after an answer, the text from the answer's end to the opening of the
        next one, and whether the text before the answer is unchanged, apart from an opened thought.

        Args:
            answer: the answer, if it has calls.
        """
        given = answer_of()
        if answer and (calls := answer.get("tool_calls")):
            *others, last = ((call["id"], *call["function"].values()) for call in calls)
            given = {**answer, "content": "", "tool_calls": tool_calls_of([*others, (*last[:2], {"a": ANSWER})])}
        form, text = self.fit([user_of(QUESTION), given], new)
        before, _, tail = text.rpartition(ANSWER)
        if not self._opens_as(before):  # its date may have changed since it was rendered
            self._opening = self._open()
            before = self.render([user_of(QUESTION), given, *form]).rpartition(ANSWER)[0]
        # The last answer of a chat may be shown with its thought, which the placeholder lacks.
        tail = self.format.end_of_call(tail) if "tool_calls" in given else tail
        return form, tail, not new or self._opens_as(before)

    def _opens_as(self, before: str) -> bool:
        """Return whether a text before an answer is the opening of it, or both differ only in what follows at the end:
        a template may open a thought, or show an empty one in a history.
        """
        before = squash(before)
        return before.startswith(self._opening) or self._opening.startswith(before)

    def since_user(self, messages: Sequence[Message] = ()) -> str:
        """Return the text after a user's message that these messages follow, without white space."""
        return squash(self.after_user(messages)) if messages else self._opening.partition(QUESTION)[2]

    def after_user(self, messages: Sequence[Message] = ()) -> str:
        """Return the text after a user's message that these messages follow."""
        return self.render([user_of(QUESTION), *messages]).partition(QUESTION)[2]

    def bare(self, answer: Message, new: Sequence[Message]) -> Frame:
        """Return the frame without system prompt and tools, which is faster, if it renders these messages equally.

        The comparison is made once for each kind of messages.
        """
        kind, bare = self.format.kind([answer, *new]), self.format.frame()
        if kind not in self._bare:
            mine, its = self.after_answer(new, answer), bare.after_answer(new, answer)
            turns = [answer, *mine[0]]
            same = mine == its and self.since_user(turns) == bare.since_user(turns)
            if len(self._bare) >= _KINDS:
                self._bare.clear()
            self._bare[kind] = same and self.since_user() == bare.since_user()
        return bare if self._bare[kind] else self

    def _open(self) -> str:
        return squash(self.render([user_of(QUESTION)]))


@functools.lru_cache(maxsize=16)
def _analysed(tokenizer: PreTrainedTokenizerBase, template: str, template_args: str) -> ChatFormat:
    return ChatFormat(tokenizer, **json.loads(template_args))


def _forms(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield the messages unchanged; with consecutive ones of one role merged; as a single user message."""
    yield list(messages)
    if any("tool_calls" in message for message in messages):  # it refuses their ids, or an answer without a text
        messages = [_with_calls_as_text(message) for message in messages]
        yield list(messages)
    merged: list[Message] = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1] = {**merged[-1], **message, "content": f"{merged[-1]['content']}\n\n{message['content']}"}
        else:
            merged.append(message)
    yield merged
    yield [user_of("\n\n".join(m["content"] for m in messages))]


def _with_calls_as_text(message: Message) -> Message:
    """Write the calls of a message in Hermes' form; arguments that are no object stay as they are."""
    written = []
    for call in message.get("tool_calls", ()):
        name, arguments = call["function"].values()
        if isinstance(arguments, dict):
            written.append(write_calls([(name, arguments)]))
        else:
            written.append(f'<tool_call>{{"name": {json.dumps(name)}, "arguments": {arguments}}}</tool_call>')
    others = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**others, "content": "\n".join(filter(None, (message["content"], *written)))}
