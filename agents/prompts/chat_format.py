"""Cached analysis of a tokenizer's chat template, shared by all conversations."""

from __future__ import annotations

import functools
import inspect
import json
import re
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rollenv.agents.engines.base import Ids
from rollenv.agents.prompts.step import Examples, as_chat, unasked
from rollenv.core.errors import UsageError
from rollenv.core.parsing import THOUGHT_MARKS, after_thoughts, split_thought, well_formed
from rollenv.core.tools.calls import write_calls

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: ``role`` and ``content``; answers also have the key by which the template reads thoughts, and ``tool_calls``.
Message = dict[str, Any]

#: The keys by which templates read the thought of an answer.
_THOUGHT_KEYS = ("reasoning_content", "thinking", "reasoning")

#: Private-use characters that enclose text which a template must not interpret. In texts they are escaped too.
_OPEN, _CLOSE = "\ue000", "\ue001"
_HIDDEN = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
_ANSWER, _QUESTION = f"{_OPEN}answer{_CLOSE}", f"{_OPEN}question{_CLOSE}"

#: Maximum number of cached frames (system prompt and tools).
_REMEMBERED = 64
#: Maximum number of cached comparisons with a bare frame, by kind of messages.
_KINDS = 1024


class TemplateRefused(UsageError):
    """A chat template raised an exception for the messages."""


class ChatFormat:
    """A tokenizer's chat template with the encoding of texts.

    Only the template may insert tokens that mark turns: if a text contains one (``<|im_end|>`` in a web page), its
    characters are encoded, not the token. Thread-safe.

    Args:
        template_args: arguments of the template, such as ``enable_thinking=False`` or ``date_string="26 Jul 2026"``.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, **template_args: Any):
        if not tokenizer.chat_template:
            raise UsageError(
                "the tokenizer has no chat template; set tokenizer.chat_template, or use StepPrompt(chat=False)"
            )
        self.tokenizer, self.template_args = tokenizer, template_args
        self._lock = threading.Lock()
        self._frames: dict[tuple[str | None, str], Frame] = {}
        self._words: list[str] = []
        self._literals = [_OPEN]
        self._anything = self._in_answers = re.compile(_OPEN)
        self._anchor, self._anchor_ids = "", 0
        self._examine()

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

    def prompt(self, text: str, examples: Examples = ()) -> Ids:
        """Return the prompt of one user message, after other examples and their answers."""
        before = self.example_messages(unasked(examples, text))
        return tuple(self.encode(self.frame().render([*before, self.message("user", text)])))

    def example_messages(self, examples: Examples) -> list[Message]:
        """Build the messages of examples."""
        return [self.message(role, text) for role, text in as_chat(examples)]

    def message(self, role: str, text: str) -> Message:
        """Build a message for the template; turn markers in the text are escaped and lone surrogates replaced.

        Args:
            role: "system", "user", "assistant" or "tool".
        """
        if role == "assistant":
            return self._answer_message(self._hide(self._in_answers, well_formed(text)), "")
        return {"role": role, "content": self._hide(self._anything, well_formed(text))}

    def answer_message(self, ids: Ids, prompt: Ids = ()) -> Message:
        """Convert a response to a message, with its thought under the key by which the template reads thoughts.

        Args:
            prompt: the prompt of the response, or its end, which may have opened the thought.
        """
        return self._answer_message(self.said(ids), self.opened_thought(prompt))

    def _answer_message(self, said: str, opened: str) -> Message:
        if self.header:
            return self._channel_message(said)
        thought = split_thought(said, opened)
        if thought is not None and self.thought_key:
            return {"role": "assistant", "content": thought.answer, self.thought_key: thought.text}
        if thought is not None and thought.closed:
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

    def without_thought(self, ids: Ids, prompt: Ids) -> tuple[Message, bool]:
        """Convert a response to a message without thoughts; also return whether it had any."""
        said, opened = self.said(ids), self.opened_thought(prompt)
        if self.header:
            message = self._channel_message(said)
            return {"role": "assistant", "content": message["content"]}, bool(message.get(self.thought_key))
        answer = after_thoughts(said, bool(opened))[0]
        return {"role": "assistant", "content": answer}, answer != said

    def opened_thought(self, prompt: Ids) -> str:
        """Return the mark with which the end of a prompt opens a thought; empty if it opens none."""
        end = self.decode(prompt[-12:]).rstrip()
        return next((mark for mark in THOUGHT_MARKS if end.endswith(mark)), "")

    def said(self, ids: Ids) -> str:
        """Return the escaped text of a response without its stop token; sampled special tokens remain special, and
        their spelling remains text.
        """
        parts, run = [], list[int]()
        for i in self.without_stop(ids):
            if i in self.special:
                parts += [self._hide(self._in_answers, self.decode(run)), self.special[i]]
                run = []
            else:
                run.append(i)
        return "".join([*parts, self._hide(self._in_answers, self.decode(run))])

    def _hide(self, what: re.Pattern[str], text: str) -> str:
        return what.sub(lambda m: f"{_OPEN}{self._literals.index(m[0])}{_CLOSE}", text)

    def reveal(self, text: str) -> str:
        """Return the original text of an escaped one."""
        return _HIDDEN.sub(lambda m: self._literals[int(m[1])], text)

    def without_stop(self, ids: Ids) -> Ids:
        """Return a response without its stop token."""
        return ids[:-1] if ids and ids[-1] in self.stop_ids else ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Decode tokens; bytes that are not UTF-8 become U+FFFD."""
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
        for number, piece in enumerate(self._pieces(text)):
            ids += self._encode(piece, anchored or number > 0)
        return ids

    def _pieces(self, text: str) -> Iterator[str]:
        """Split the text inside and after every escaped literal, so that none becomes a special token."""
        piece, done = "", 0
        for hidden in _HIDDEN.finditer(text):
            literal = self._literals[int(hidden[1])]
            piece += text[done : hidden.start()]
            while literal and (match := self._anything.search(literal)):
                yield piece + literal[: match.start() + 1]
                piece, literal = "", literal[match.start() + 1 :]
            yield piece + literal
            piece, done = "", hidden.end()
        yield piece + text[done:]

    def _encode(self, text: str, anchored: bool) -> list[int]:
        if not text:
            return []
        skip = self._anchor_ids if anchored else 0
        with self._lock:  # tokenizers have mutable settings that change with every call
            ids: list[int] = self.tokenizer.encode((self._anchor if skip else "") + text, add_special_tokens=False)
        return ids[skip:]

    def render(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None, *, opening: bool = True
    ) -> str:
        """Render messages, followed by the opening of the assistant's next turn.

        Args:
            opening: False to leave out the opening.

        Raises:
            TemplateRefused: the template raised an error.
        """
        given: list[dict[str, Any]] = list(messages)
        if self._in_parts:
            given = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
        try:
            text = self.tokenizer.apply_chat_template(
                given, tools=tools, tokenize=False, add_generation_prompt=opening, **self.template_args
            )
        except Exception as error:  # templates may raise any exception: jinja2's, TypeError, KeyError
            roles = ", ".join(m["role"] for m in messages)
            raise TemplateRefused(f"the chat template refuses messages of the roles {roles}: {error}") from error
        return str(text)

    def _examine(self) -> None:
        """Detect the template's features and the tokens that mark turns."""
        source = str(self.tokenizer.chat_template)
        added = {i: str(token) for i, token in self.tokenizer.added_tokens_decoder.items()}
        special = {i for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        question, answered = _user(_QUESTION), {"role": "assistant", "content": _ANSWER}
        shown, refused = "", None
        for self._in_parts in (False, True):
            try:
                shown = self.render([question, answered, question])
            except TemplateRefused as error:
                refused = refused or error
            if _QUESTION in shown and _ANSWER in shown:
                break
        else:
            raise refused or UsageError(
                "the chat template does not show the messages it is given; it cannot be used for chat"
            )
        markers = {i: token for i, token in added.items() if token and (i in special or token in shown)}
        self._set_markers(markers)
        self.has_system = self._shows([{"role": "system", "content": _ANSWER}, question])
        result = {"role": "tool", "content": _ANSWER}
        self.has_tool_role = self._shows([question, {"role": "assistant", "content": "-"}, result])
        tails = [shown.partition(_ANSWER)[2]]
        if self.has_tool_role:
            tails.append(self.render([question, answered, {**result, "content": "-"}]).partition(_ANSWER)[2])
        self.has_answers_in_a_row = self._shows([question, {"role": "assistant", "content": "-"}, answered, question])
        self.thought_key = next((key for key in _THOUGHT_KEYS if self._reads(key)), "")
        self.special = {i: markers[i] for i in markers if i in special}
        self._marks = _any_of([*self.special.values()] or [_OPEN])
        thinking = {"role": "assistant", "content": f"<think>\n{_QUESTION}\n</think>\n\n{_ANSWER}"}
        self._shows_thoughts = "</think>" not in source or self._last(thinking).count(_QUESTION) > 1
        self._find_header(shown.partition(_ANSWER)[0])
        self._find_calls()
        own = {self.tokenizer.eos_token_id, self.tokenizer.pad_token_id} - {None}
        closings = {next((i for i in self.encode(tail, anchored=True) if i in markers), None) for tail in tails}
        after = set() if self.header else closings - {None}
        #: The tokens that end a response: the tokenizer's own and the template's after an answer.
        self.stop_ids = frozenset(own | after)
        #: Those that the template writes itself: a history has them only where the template writes them.
        self.written_stop_ids = frozenset(after | {i for i in own if added.get(i, _OPEN) in source})
        from jinja2 import Environment  # a dependency of rendering

        parts = Environment().lex(source)
        strings = (value[1:-1] for _, kind, value in parts if kind == "string")
        self._words = sorted({text for text in strings if text.strip()})

    def _find_header(self, before: str) -> None:
        """Detect what a model writes itself before its answer, after the opening: the header of a message in a turn of
        several, whose end is not the end of the turn.
        """
        self.header = self._thought_header = ""
        opening = self.render([_user(_QUESTION)])
        header = before.removeprefix(opening) if before.startswith(opening) else ""
        thoughts = {*THOUGHT_MARKS, *THOUGHT_MARKS.values()}
        if not set(self._marks.findall(header)) - thoughts:
            return
        self.header = header
        if self.thought_key:
            thinking = {"role": "assistant", "content": "-", self.thought_key: _ANSWER}
            self._thought_header = self._last(thinking).partition(_ANSWER)[0].removeprefix(opening).lstrip()

    def _find_calls(self) -> None:
        """Detect how the template writes a call: the text before its name, and from there to its arguments."""
        self._call_form: tuple[str, str] | None = None
        schema = {"type": "function", "function": {"name": "f", "description": "-", "parameters": {"type": "object"}}}
        texts = []
        try:
            opening = self.render([_user(_QUESTION)], [schema])
            if not self.has_tool_role or opening == self.render([_user(_QUESTION)]):
                return
            for arguments in ({"a": _ANSWER}, {}):
                call = {"id": "", "type": "function", "function": {"name": _QUESTION, "arguments": arguments}}
                message = {"role": "assistant", "content": "", "tool_calls": [call]}
                texts.append(self.render([_user("-"), message], [schema], opening=False))
        except TemplateRefused:
            return
        start = self.render([_user("-")], [schema])
        (before, _, behind), (_, _, empty) = (text.partition(_QUESTION) for text in texts)
        before, between = before[len(_common(before, start)) :], _common(behind, empty)
        for closing in THOUGHT_MARKS.values():  # an empty thought before the call
            before = before.rpartition(closing)[2]
        if _ANSWER in behind and _QUESTION not in between:
            self._call_form = before.lstrip(), between

    @property
    def writes_calls(self) -> bool:
        """True if the template writes the calls of an answer in a form of its own."""
        return self._call_form is not None

    def call_message(self, text: str, calls: Sequence[tuple[str, str, Any]]) -> Message:
        """Build an assistant's message with calls.

        Args:
            calls: their ids, names and arguments.
        """

        def hidden(value: Any) -> Any:
            if isinstance(value, str):
                return self._hide(self._in_answers, well_formed(value))
            if isinstance(value, dict):
                return {hidden(key): hidden(each) for key, each in value.items()}
            return [hidden(each) for each in value] if isinstance(value, list) else value

        functions = [
            {"id": name, "type": "function", "function": {"name": hidden(function), "arguments": hidden(arguments)}}
            for name, function, arguments in calls
        ]
        return {**self.message("assistant", text), "tool_calls": functions}

    def call_opening(self, name: str = "") -> list[int] | None:
        """Return the tokens that open a call, of a function if one is named; None if the template writes no calls."""
        if self._call_form is None:
            return None
        before, between = self._call_form
        function = self._hide(self._in_answers, well_formed(name))
        text = f"{before}{function}{between}".rstrip(' {"<') if name else before.rstrip(' "')
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

    def _set_markers(self, markers: dict[int, str]) -> None:
        tokens = sorted(set(markers.values()), key=len, reverse=True)
        source = str(self.tokenizer.chat_template)
        self._literals = [_OPEN, *tokens]
        self._anything = _any_of(self._literals)
        # A token that the template searches for in answers, such as </think>, must not be escaped there; nor the marks
        # of thoughts, which some templates search for only together.
        thoughts = {*THOUGHT_MARKS, *THOUGHT_MARKS.values()}
        shown = ([_user("-"), _answer(t), _user("-")] for t in tokens)
        looked_for = {
            t for t, m in zip(tokens, shown, strict=True) if t in source and (t in thoughts or not self._shows(m, t))
        }
        self._in_answers = _any_of([t for t in self._literals if t not in looked_for])
        strip = {str(t) for t in self.tokenizer.added_tokens_decoder.values() if t.rstrip}
        for token in (t for t in [self.tokenizer.eos_token, *tokens] if t and t not in strip):
            if len(self.tokenizer.encode(token, add_special_tokens=False)) == 1:
                self._anchor, self._anchor_ids = token, 1
                break

    def _reads(self, key: str) -> bool:
        """Return whether the template shows the thought that an answer has under this key."""
        thinking = {"role": "assistant", "content": "-", key: _ANSWER}
        return key in str(self.tokenizer.chat_template) and _ANSWER in self._last(thinking)

    def _last(self, answer: Message) -> str:
        """Render an answer that ends a chat; empty if the template refuses it."""
        try:
            return self.render([_user(_QUESTION), answer], opening=False)
        except TemplateRefused:
            return ""

    def _shows(self, messages: list[Message], text: str = "") -> bool:
        """Return whether the template accepts the messages and renders their placeholder (around ``text``)."""
        wanted = f"{_QUESTION}{text}{_ANSWER}" if text else _ANSWER
        try:
            return wanted in self.render(messages)
        except TemplateRefused:
            return False


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

    def render(self, messages: Sequence[Message]) -> str:
        """Render a conversation of these messages after the system prompt."""
        if self._system is None:
            return self.format.render(messages, self.tools)
        if self.format.has_system:
            return self.format.render([{"role": "system", "content": self._system}, *messages], self.tools)
        first = {**messages[0], "content": f"{self._system}\n\n{messages[0]['content']}"}
        return self.format.render([first, *messages[1:]], self.tools)

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

    def after_answer(self, new: Sequence[Message]) -> tuple[list[Message], str, bool]:
        """Return the accepted form of messages after an answer, the text from the answer's end to the opening of the
        next one, and whether the text before the answer is unchanged, apart from an opened thought.
        """
        form, text = self.fit([_user(_QUESTION), _answer()], new)
        before, _, tail = text.rpartition(_ANSWER)
        if not self._opens_as(before):  # its date may have changed since it was rendered
            self._opening = self._open()
            before = self.render([_user(_QUESTION), _answer(), *form]).rpartition(_ANSWER)[0]
        # The last answer of a chat may be shown with its thought, which the placeholder lacks.
        return form, tail, not new or self._opens_as(before)

    def _opens_as(self, before: str) -> bool:
        """Return whether a text before an answer is the opening of it, or both differ only in what follows at the end:
        a template may open a thought, or show an empty one in a history.
        """
        before = squash(before)
        return before.startswith(self._opening) or self._opening.startswith(before)

    def since_user(self, messages: Sequence[Message] = ()) -> str:
        """Return the text after a user's message that these messages follow, without white space."""
        return squash(self.after_user(messages)) if messages else self._opening.partition(_QUESTION)[2]

    def after_user(self, messages: Sequence[Message] = ()) -> str:
        """Return the text after a user's message that these messages follow."""
        return self.render([_user(_QUESTION), *messages]).partition(_QUESTION)[2]

    def bare(self, answer: Message, new: Sequence[Message]) -> Frame:
        """Return the frame without system prompt and tools, which is faster, if it renders these messages equally.

        The comparison is made once for each kind of messages.
        """
        kind, bare = self.format.kind([answer, *new]), self.format.frame()
        if kind not in self._bare:
            mine, its = self.after_answer(new), bare.after_answer(new)
            turns = [answer, *mine[0]]
            same = mine == its and self.since_user(turns) == bare.since_user(turns)
            if len(self._bare) >= _KINDS:
                self._bare.clear()
            self._bare[kind] = same and self.since_user() == bare.since_user()
        return bare if self._bare[kind] else self

    def _open(self) -> str:
        return squash(self.render([_user(_QUESTION)]))


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
    yield [_user("\n\n".join(m["content"] for m in messages))]


def _with_calls_as_text(message: Message) -> Message:
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    others = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**others, "content": "\n".join(filter(None, (message["content"], write_calls(calls) if calls else "")))}


def _common(a: str, b: str) -> str:
    """Return the common beginning of two texts."""
    return a[: next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))]


def squash(text: str) -> str:
    """Remove white space, which templates trim and add."""
    return "".join(text.split())


def _any_of(literals: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, literals)))


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _answer(text: str = "") -> Message:
    return {"role": "assistant", "content": f"{_QUESTION}{text}{_ANSWER}" if text else _ANSWER}
