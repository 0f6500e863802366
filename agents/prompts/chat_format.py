"""Analysis of a tokenizer's chat template: done once, shared by all conversations."""

from __future__ import annotations

import functools
import inspect
import json
import re
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rollenv.agents.engines.base import Ids
from rollenv.agents.prompts.step import Examples, as_chat
from rollenv.core import UsageError
from rollenv.parsing import well_formed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, str]

#: Private-use characters that enclose what must pass through a template unread. In texts they are hidden themselves.
_OPEN, _CLOSE = "\ue000", "\ue001"
_HIDDEN = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
_ANSWER, _QUESTION = f"{_OPEN}answer{_CLOSE}", f"{_OPEN}question{_CLOSE}"

#: The most frames (system prompt and tools) that are kept with their analysis.
_REMEMBERED = 64
#: Kinds of messages whose texts are remembered to be the same in a bare frame, or not.
_KINDS = 1024


class TemplateRefused(UsageError):
    """A chat template raised on the messages it was given."""


class ChatFormat:
    """A tokenizer's chat template, and how texts become tokens under it.

    Tokens that mark turns come from the template alone: where a text spells one (``<|im_end|>`` in what a web page
    says), its characters are encoded, not the token. Safe to use from several threads.

    Args:
        tokenizer: of Hugging Face, with a chat template.
        template_args: passed to the template, such as ``enable_thinking=False`` or ``date_string="26 Jul 2026"``.

    Raises:
        UsageError: if there is no template, or it cannot render a user's message and an answer.
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
        """The format of a tokenizer, cached after its first analysis."""
        key = json.dumps(template_args, sort_keys=True)
        return _analysed(tokenizer, str(tokenizer.chat_template), key)

    @staticmethod
    def from_settings(tokenizer: PreTrainedTokenizerBase, template_args: Mapping[str, Any]) -> ChatFormat:
        """The format of a tokenizer with arguments from a user's settings, all of which the template has to read.

        Raises:
            UsageError: see :class:`ChatFormat`; or the template never reads one of the arguments, or it is not for
                users to set.
        """
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
        """The format with a system prompt and tool schemas, cached after its first analysis."""
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
        """The prompt that consists of one user message, after those of examples and their answers."""
        return tuple(self.encode(self.frame().render([*self.example_messages(examples), self.message("user", text)])))

    def example_messages(self, examples: Examples) -> list[Message]:
        """Build the messages of examples."""
        return [self.message(role, text) for role, text in as_chat(examples)]

    def message(self, role: str, text: str) -> Message:
        """Build a message for the template; turn markers in the text are escaped and lone surrogates replaced.

        Args:
            role: "system", "user", "assistant" or "tool".
        """
        hidden = self._in_answers if role == "assistant" else self._anything
        return {"role": role, "content": self._hide(hidden, well_formed(text))}

    def answer_message(self, ids: Ids) -> Message:
        """A response as a message; special tokens that it drew stay special, and their spelling as text stays text."""
        parts, run = [], list[int]()
        for i in self.without_stop(ids):
            if i in self.special:
                parts += [self._hide(self._in_answers, self.decode(run)), self.special[i]]
                run = []
            else:
                run.append(i)
        return {"role": "assistant", "content": "".join([*parts, self._hide(self._in_answers, self.decode(run))])}

    def _hide(self, what: re.Pattern[str], text: str) -> str:
        return what.sub(lambda m: f"{_OPEN}{self._literals.index(m[0])}{_CLOSE}", text)

    def reveal(self, text: str) -> str:
        """The original text, before anything in it was hidden."""
        return _HIDDEN.sub(lambda m: self._literals[int(m[1])], text)

    def without_stop(self, ids: Ids) -> Ids:
        """A response without the stop token at its end."""
        return ids[:-1] if ids and ids[-1] in self.stop_ids else ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Decode tokens; bytes that are not UTF-8 become U+FFFD.

        Args:
            ids: token ids; not all need be known.
            skip_special_tokens: whether to leave out special tokens.
        """
        if not ids:
            return ""
        with self._lock:
            text = self.tokenizer.decode(
                list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
            )
        return str(text)

    def encode(self, text: str, *, anchored: bool = False) -> list[int]:
        """The tokens of a rendered text.

        Args:
            anchored: encode as what follows a special token, not as the beginning of a text (where SentencePiece
                puts a space).
        """
        ids: list[int] = []
        for number, piece in enumerate(self._pieces(text)):
            ids += self._encode(piece, anchored or number > 0)
        return ids

    def _pieces(self, text: str) -> Iterator[str]:
        """Pieces of the text, cut inside and behind every hidden literal, so that none becomes a special token."""
        piece, done = "", 0
        for hidden in _HIDDEN.finditer(text):
            literal = self._literals[int(hidden[1])]
            piece += text[done : hidden.start()]
            while literal and (found := self._anything.search(literal)):
                yield piece + literal[: found.start() + 1]
                piece, literal = "", literal[found.start() + 1 :]
            yield piece + literal
            piece, done = "", hidden.end()
        yield piece + text[done:]

    def _encode(self, text: str, anchored: bool) -> list[int]:
        if not text:
            return []
        skip = self._anchor_ids if anchored else 0
        with self._lock:  # tokenizers keep settings that change with every call
            ids: list[int] = self.tokenizer.encode((self._anchor if skip else "") + text, add_special_tokens=False)
        return ids[skip:]

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None) -> str:
        """Render messages, followed by the opening of the assistant's next turn.

        Raises:
            TemplateRefused: the template raised an error.
        """
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), tools=tools, tokenize=False, add_generation_prompt=True, **self.template_args
            )
        except Exception as error:  # a template may raise anything: jinja2's errors, TypeError, KeyError
            roles = ", ".join(m["role"] for m in messages)
            raise TemplateRefused(f"the chat template refuses messages of the roles {roles}: {error}") from error
        return str(text)

    def _examine(self) -> None:
        """Find out what the template can do and which tokens it marks turns with."""
        added = {i: str(token) for i, token in self.tokenizer.added_tokens_decoder.items()}
        special = {i for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        question, answered = _user(_QUESTION), {"role": "assistant", "content": _ANSWER}
        shown = self.render([question, answered, question])
        if _QUESTION not in shown or _ANSWER not in shown:
            raise UsageError("the chat template does not show the messages it is given; it cannot be used for chat")
        markers = {i: token for i, token in added.items() if token and (i in special or token in shown)}
        self._set_markers(markers)
        self.has_system = self._shows([{"role": "system", "content": _ANSWER}, question])
        self.has_tool_role = self._shows(
            [question, {"role": "assistant", "content": "-"}, {"role": "tool", "content": _ANSWER}]
        )
        self.special = {i: markers[i] for i in markers if i in special}
        closing = next((i for i in self.encode(shown.partition(_ANSWER)[2], anchored=True) if i in markers), None)
        ends = (self.tokenizer.eos_token_id, self.tokenizer.pad_token_id, closing)
        #: The tokens that end a response: the tokenizer's own and the one that the template closes an answer with.
        self.stop_ids = frozenset(i for i in ends if i is not None)
        from jinja2 import Environment  # comes with what renders templates

        parts = Environment().lex(str(self.tokenizer.chat_template))
        strings = (value[1:-1] for _, kind, value in parts if kind == "string")
        self._words = sorted({text for text in strings if text.strip()})

    def kind(self, messages: Sequence[Message]) -> Hashable:
        """All that decides what a template does with messages: their roles, and which of its own words are in them."""
        kinds = []
        for message in messages:
            text = message["content"]
            words = [(w, text.startswith(w), text.endswith(w)) for w in self._words if w in text]
            kinds.append((message["role"], text.strip() == "", text == text.strip(), tuple(words)))
        return tuple(kinds)

    def _set_markers(self, markers: dict[int, str]) -> None:
        tokens = sorted(set(markers.values()), key=len, reverse=True)
        source = str(self.tokenizer.chat_template)
        # A token that the template looks for in answers, such as </think>, must not be hidden from it there.
        looked_for = {t for t in tokens if t in source and not self._shows([_user("-"), _answer(t), _user("-")], t)}
        self._literals = [_OPEN, *tokens]
        self._anything = _any_of(self._literals)
        self._in_answers = _any_of([t for t in self._literals if t not in looked_for])
        strip = {str(t) for t in self.tokenizer.added_tokens_decoder.values() if t.rstrip}
        for token in (t for t in [self.tokenizer.eos_token, *tokens] if t and t not in strip):
            if len(self.tokenizer.encode(token, add_special_tokens=False)) == 1:
                self._anchor, self._anchor_ids = token, 1
                break

    def _shows(self, messages: list[Message], text: str = "") -> bool:
        """Return whether the template accepts the messages and shows the placeholder in them (around ``text``)."""
        wanted = f"{_QUESTION}{text}{_ANSWER}" if text else _ANSWER
        try:
            return wanted in self.render(messages)
        except TemplateRefused:
            return False


class Frame:
    """A chat format with a system prompt and tools: the part that all episodes of an agent share.

    Where the template knows no system role, the system prompt opens the first user message.

    Raises:
        UsageError: if there are tools and the template does not render them.
    """

    def __init__(self, chat_format: ChatFormat, system: str | None, tools: Sequence[dict[str, Any]] | None):
        self.format, self.tools = chat_format, list(tools) if tools else None
        self._system = chat_format.message("system", system)["content"] if system is not None else None
        self._bare: dict[Hashable, bool] = {}
        """True where the text is the same without system prompt and tools, by the kind of messages."""
        self._opening = self._open()
        if tools and Frame(chat_format, system, None)._opening == self._opening:
            raise UsageError("the chat template does not support tools; describe them in the system prompt instead")

    def render(self, messages: Sequence[Message]) -> str:
        """The text of a conversation that begins with these messages after the system prompt."""
        if self._system is None:
            return self.format.render(messages, self.tools)
        if self.format.has_system:
            return self.format.render([{"role": "system", "content": self._system}, *messages], self.tools)
        first = {**messages[0], "content": f"{self._system}\n\n{messages[0]['content']}"}
        return self.format.render([first, *messages[1:]], self.tools)

    def fit(self, before: Sequence[Message], new: Sequence[Message]) -> tuple[list[Message], str]:
        """Find a form of new messages that the template accepts.

        Messages are merged where the template insists on alternating roles.

        Returns:
            The messages to append, and the rendered text of the whole conversation.

        Raises:
            TemplateRefused: the template accepts no form.
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
        """Return the template's text after an answer: the messages as it accepts them, the text from the answer's end
        to the opening of the next one, and whether all before the answer stays as it was when the model gave it.
        """
        form, text = self.fit([_user(_QUESTION), _answer()], new)
        before, _, tail = text.rpartition(_ANSWER)
        if squash(before) != self._opening:  # the date in it may be another one than when it was rendered
            self._opening = self._open()
            before = self.render([_user(_QUESTION), _answer(), *form]).rpartition(_ANSWER)[0]
        return form, tail, squash(before) == self._opening

    def since_user(self, messages: Sequence[Message] = ()) -> str:
        """Return the template's text after a user's message when these follow, without white space."""
        text = squash(self.render([_user(_QUESTION), *messages])) if messages else self._opening
        return text.partition(_QUESTION)[2]

    def bare(self, answer: Message, new: Sequence[Message]) -> Frame:
        """A frame with the same texts around these messages: the one without system prompt and tools, which is quicker,
        if they made no difference the first time that an answer and messages of this kind came; else this one.

        Raises:
            TemplateRefused: the template accepts no form of them.
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
    """The messages as they are; with neighbours of one role merged; as one message of the user."""
    yield list(messages)
    merged: list[Message] = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1] = {**message, "content": f"{merged[-1]['content']}\n\n{message['content']}"}
        else:
            merged.append(message)
    yield merged
    yield [_user("\n\n".join(m["content"] for m in messages))]


def squash(text: str) -> str:
    """The text without white space, which templates trim and add."""
    return "".join(text.split())


def _any_of(literals: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, literals)))


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _answer(text: str = "") -> Message:
    return {"role": "assistant", "content": f"{_QUESTION}{text}{_ANSWER}" if text else _ANSWER}
