"""A tokenizer's chat template, and what probing it tells."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rollenv.agents.engines.base import vision_of
from rollenv.core.errors import UsageError
from rollenv.core.parsing import THOUGHT_MARKS
from rollenv.core.tools.call_readers import is_mark

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: ``role`` and ``content``; answers also have the key by which the template reads thoughts, and ``tool_calls``.
Message = dict[str, Any]

#: The keys by which templates read the thought of an answer.
_THOUGHT_KEYS = ("reasoning_content", "thinking", "reasoning")

#: Private-use characters that enclose text which a template must not interpret. In texts they are escaped too.
OPEN, CLOSE = "\ue000", "\ue001"
HIDDEN = re.compile(f"{OPEN}(\\d+){CLOSE}")
#: A picture's place in a text, by its number, which has 19 digits.
PICTURE = re.compile(f"({OPEN}\\d{{19}}{CLOSE})")
ANSWER, QUESTION, NAME = f"{OPEN}answer{CLOSE}", f"{OPEN}question{CLOSE}", f"{OPEN}name{CLOSE}"

#: The forms in which templates take calls: ids, the client's or of a number and the name; whether arguments are JSON in
#: a string.
_CALL_FORMS = [*itertools.product(("", "{0:09d}", "functions.{1}:{0}"), (False, True))]


class TemplateRefused(UsageError):
    """A chat template raised an exception for the messages."""


class ChatTemplate:
    """A tokenizer's chat template, probed once with placeholders: what it shows, and the tokens that mark turns.

    Args:
        template_args: arguments of the template, such as ``enable_thinking=False`` or ``date_string="26 Jul 2026"``.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, **template_args: Any):
        if not tokenizer.chat_template:
            raise UsageError(
                "the tokenizer has no chat template; set tokenizer.chat_template, or use StepPrompt(chat=False)"
            )
        self.tokenizer, self.template_args = tokenizer, template_args
        self.family = vision_of(tokenizer)
        self._call_id, self._arguments_as_text = _CALL_FORMS[0]
        self._literals = [OPEN]
        self._anything = self._in_answers = re.compile(OPEN)
        self._examine()

    def render(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None, *, opening: bool = True
    ) -> str:
        """Render messages, followed by the opening of the assistant's next turn.

        Args:
            opening: False to leave out the opening.

        Raises:
            TemplateRefused: the template raised an error.
        """
        try:
            given = [self._accepted(message) for message in messages]
            text = self.tokenizer.apply_chat_template(
                given, tools=tools, tokenize=False, add_generation_prompt=opening, **self.template_args
            )
        except Exception as error:  # templates may raise any exception: jinja2's, TypeError, KeyError
            roles = ", ".join(m["role"] for m in messages)
            raise TemplateRefused(f"the chat template refuses messages of the roles {roles}: {error}") from error
        pictures = [found for message in messages for found in PICTURE.findall(message["content"])]
        return self._with_pictures(str(text), pictures) if pictures else str(text)

    def _with_pictures(self, text: str, pictures: list[str]) -> str:
        """Put the places of pictures where the template has its marks of them."""
        assert self.family is not None
        pieces = text.split(self.family.mark)
        if len(pieces) != len(pictures) + 1:
            raise TemplateRefused(f"the chat template shows {len(pieces) - 1} of {len(pictures)} pictures")
        return "".join(part for pair in zip(pieces, [*pictures, ""], strict=True) for part in pair)

    def _accepted(self, message: Message) -> Message:
        """Return a message with contents and arguments in the form that the template takes."""
        content = message["content"]
        if self._in_parts or PICTURE.search(content):
            pieces = [piece for piece in PICTURE.split(content) if piece] or [""]
            parts = [{"type": "image"} if PICTURE.match(one) else {"type": "text", "text": one} for one in pieces]
            message = {**message, "content": parts}
        if self._arguments_as_text and "tool_calls" in message:
            calls = [(call["id"], *call["function"].values()) for call in message["tool_calls"]]
            written = [(*call, json.dumps(arguments, ensure_ascii=False)) for *call, arguments in calls]
            message = {**message, "tool_calls": tool_calls_of(written)}
        return message

    def call_id(self, number: int, name: str, given: str) -> str:
        """Return the id of a call in the form that the template takes.

        Args:
            number: the number of calls before it in the chat.
            name: its function.
            given: its id elsewhere, which stays if it has that form.
        """
        own = self._call_id.format(number, name)
        fits = re.fullmatch(rf"functions\.{re.escape(name)}:\d+" if ":" in own else "[A-Za-z0-9]{9}", given)
        return given if fits else own or given

    def _examine(self) -> None:
        """Detect the template's features and the tokens that mark turns."""
        source = str(self.tokenizer.chat_template)
        added = {i: str(token) for i, token in self.tokenizer.added_tokens_decoder.items()}
        special = {i for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        question, answered = user_of(QUESTION), {"role": "assistant", "content": ANSWER}
        shown, refused = "", None
        for self._in_parts in (False, True):
            try:
                shown = self.render([question, answered, question])
            except TemplateRefused as error:
                refused = refused or error
            if QUESTION in shown and ANSWER in shown:
                break
        else:
            raise refused or UsageError(
                "the chat template does not show the messages it is given; it cannot be used for chat"
            )
        markers = {i: token for i, token in added.items() if token and (i in special or token in shown)}
        self._set_markers(markers)
        self.has_system = self._shows([{"role": "system", "content": ANSWER}, question])
        result = {"role": "tool", "content": ANSWER, "tool_call_id": "-"}
        self.has_tool_role = self._shows([question, {"role": "assistant", "content": "-"}, result])
        tails = [shown.partition(ANSWER)[2]]
        if self.has_tool_role:
            tails.append(self.render([question, answered, {**result, "content": "-"}]).partition(ANSWER)[2])
        self._find_calls()
        after_call = [question, self._calling("f", {}), {**result, "tool_call_id": self.call_id(0, "f", "-")}]
        self.has_results = self.has_tool_role or (self.writes_calls and self._shows(after_call))
        self.has_answers_in_a_row = self._shows([question, {"role": "assistant", "content": "-"}, answered, question])
        self.thought_key = next((key for key in _THOUGHT_KEYS if self._reads(key)), "")
        self.special = {i: markers[i] for i in markers if i in special}
        self._marks = any_of([*self.special.values()] or [OPEN])
        thinking = {"role": "assistant", "content": f"<think>\n{QUESTION}\n</think>\n\n{ANSWER}"}
        self._shows_thoughts = "</think>" not in source or self._last(thinking).count(QUESTION) > 1
        self._find_header(shown.partition(ANSWER)[0])
        own = {self.tokenizer.eos_token_id, self.tokenizer.pad_token_id} - {None}
        ends = set() if self.header else {m[0] for m in map(self._anything.search, tails) if m}
        ends |= self._ends_of_calls() if self.writes_calls else set()
        after = {i for i, token in markers.items() if token in ends}
        #: The tokens that end a response: the tokenizer's own and the template's after an answer.
        self.stop_ids = frozenset(own | after)
        #: Those that the template writes itself: a history has them only where the template writes them.
        self.written_stop_ids = frozenset(after | {i for i in own if added.get(i, OPEN) in source})
        from jinja2 import Environment  # a dependency of rendering

        given = self.tokenizer.chat_template
        sources = given.values() if isinstance(given, dict) else [given]  # of several, one is for tools
        parts = (part for each in sources for part in Environment().lex(each))
        strings = (value[1:-1] for _, kind, value in parts if kind == "string")
        self._words = sorted({text for text in strings if text.strip()})

    def _find_header(self, before: str) -> None:
        """Detect what a model writes itself before its answer, after the opening: the header of a message in a turn of
        several, whose end is not the end of the turn.
        """
        self.header = self._thought_header = ""
        opening = self.render([user_of(QUESTION)])
        header = before.removeprefix(opening) if before.startswith(opening) else ""
        thoughts = {*THOUGHT_MARKS, *THOUGHT_MARKS.values()}
        if not set(self._marks.findall(header)) - thoughts:
            return
        self.header = header
        if self.thought_key:
            thinking = {"role": "assistant", "content": "-", self.thought_key: ANSWER}
            self._thought_header = self._last(thinking).partition(ANSWER)[0].removeprefix(opening).lstrip()

    def _find_calls(self) -> None:
        """Detect the form in which the template takes calls, and how it writes one: the text before its name, and from
        there to its arguments.
        """
        self._call_form: tuple[str, str] | None = None
        parameters = {"type": "object", "properties": {"a": {"type": "string", "description": "-"}}, "required": ["a"]}
        tools = [{"type": "function", "function": {"name": "f", "description": "-", "parameters": parameters}}]
        for self._call_id, self._arguments_as_text in _CALL_FORMS:
            shown = self._last(self._calling(NAME, {"a": ANSWER}), tools)
            before, _, behind = shown.partition(NAME)
            if ANSWER in behind and self._ends_of_calls():
                break
        else:
            self._call_id, self._arguments_as_text = _CALL_FORMS[0]
            return
        begin = len(common_start(before, self.render([user_of(QUESTION)], tools)))
        begin = next((m.start() for m in self._anything.finditer(before) if m.start() < begin < m.end()), begin)
        before = before[begin:]
        for closing in THOUGHT_MARKS.values():  # an empty thought before the call
            before = before.rpartition(closing)[2]
        empty = self._last(self._calling(NAME, {}), tools).partition(NAME)[2]
        self._call_form = before.lstrip("\n"), common_start(behind, empty)

    def _ends_of_calls(self) -> set[str]:
        """Return the tokens with which the template ends an answer with a call."""
        call = self._calling("f", {"a": ANSWER})
        result = {"role": "tool", "content": "-", "tool_call_id": self.call_id(0, "f", "-")}
        ends = set()
        for new in ([], [result], [user_of("-")]):
            with contextlib.suppress(TemplateRefused):
                shown = self.render([user_of("-"), call, *new], opening=False)
                ends |= {m[0] for m in [self._anything.match(self.end_of_call(shown.rpartition(ANSWER)[2]))] if m}
        return ends

    def _calling(self, name: str, arguments: dict[str, Any]) -> Message:
        """Build an answer with a call and no text."""
        calls = tool_calls_of([(self.call_id(0, name, "-"), name, arguments)])
        return {"role": "assistant", "content": "", "tool_calls": calls}

    def end_of_call(self, text: str) -> str:
        """Return a text that follows the last argument of a call from the token that ends the answer; empty if none."""
        ends = (m.start() for m in self._anything.finditer(text) if m[0] != OPEN and not is_mark(m[0]))
        return text[next(ends, len(text)) :]

    @property
    def writes_calls(self) -> bool:
        """True if the template writes the calls of an answer in a form of its own."""
        return self._call_form is not None

    def _reads(self, key: str) -> bool:
        """Return whether the template shows the thought that an answer has under this key."""
        if key not in str(self.tokenizer.chat_template):
            return False
        answers = [{"role": "assistant", "content": "-"}, self._calling("f", {})]  # some show it only before calls
        return any(ANSWER in self._last({**answer, key: ANSWER}) for answer in answers)

    def _last(self, answer: Message, tools: Sequence[dict[str, Any]] | None = None) -> str:
        """Render an answer that ends a chat; empty if the template refuses it."""
        try:
            return self.render([user_of(QUESTION), answer], tools, opening=False)
        except TemplateRefused:
            return ""

    def _shows(self, messages: list[Message], text: str = "") -> bool:
        """Return whether the template accepts the messages and renders their placeholder (around ``text``)."""
        wanted = f"{QUESTION}{text}{ANSWER}" if text else ANSWER
        try:
            return wanted in self.render(messages)
        except TemplateRefused:
            return False

    def _set_markers(self, markers: dict[int, str]) -> None:
        tokens = sorted(set(markers.values()), key=len, reverse=True)
        source = str(self.tokenizer.chat_template)
        self._literals = [OPEN, *tokens]
        self._anything = any_of(self._literals)
        # A token that the template searches for in answers, such as </think>, must not be escaped there; nor the marks
        # of thoughts, which some templates search for only together.
        thoughts = {*THOUGHT_MARKS, *THOUGHT_MARKS.values()}
        shown = ([user_of("-"), answer_of(t), user_of("-")] for t in tokens)
        looked_for = {
            t for t, m in zip(tokens, shown, strict=True) if t in source and (t in thoughts or not self._shows(m, t))
        }
        self._in_answers = any_of([t for t in self._literals if t not in looked_for])


def common_start(a: str, b: str) -> str:
    """Return the common beginning of two texts."""
    return a[: next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))]


def squash(text: str) -> str:
    """Remove white space, which templates trim and add."""
    return "".join(text.split())


def any_of(literals: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern of any of these texts."""
    return re.compile("|".join(map(re.escape, literals)))


def user_of(text: str) -> Message:
    """Build a user's message."""
    return {"role": "user", "content": text}


def tool_calls_of(calls: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Build calls in the form of OpenAI's from their ids, names and arguments."""
    return [
        {"id": name, "type": "function", "function": {"name": function, "arguments": arguments}}
        for name, function, arguments in calls
    ]


def answer_of(text: str = "") -> Message:
    """Build an answer with placeholders around a text."""
    return {"role": "assistant", "content": f"{QUESTION}{text}{ANSWER}" if text else ANSWER}
