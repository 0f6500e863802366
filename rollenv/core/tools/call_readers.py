"""Readers of tool calls: JSON, GEM's elements and Python calls, with the marks of model families around them."""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rollenv.core import syntax
from rollenv.core.parsing import first_tagged
from rollenv.core.plugins import load_all

#: Maximum calls that are read in one action.
MOST_CALLS = 32

#: JSON schemas of the parameters of functions, by name.
Functions = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call found in an action."""

    name: str
    arguments: dict[str, Any]
    end: int = 0
    """Index of its end in the action."""
    problem: str = ""
    """The reason why the call is malformed; empty if it is well-formed."""
    id: str = ""
    """What the model called it, where its family does; a result names it."""


# -- calls with marks ------------------------------------------------------------------------------------------------


class Behind(NamedTuple):
    """The place behind a mark, white space and the beginning of a code fence, where a reader begins."""

    text: str
    start: int
    mark: re.Match[str]
    closing: str
    """The closing mark; empty if the call needs none."""
    functions: Functions


#: Calls and the index behind them in the text; their own ends are set later.
Reading = tuple[list[ToolCall], int]


@dataclass(frozen=True, slots=True)
class CallFamily:
    """Marks and a reader of the calls of a family of models; entry points ``rollenv.calls`` name tuples of these."""

    name: str
    elements: Mapping[str, str] = field(default_factory=dict)
    """Opening marks, each with the closing mark before which all belongs to the call."""
    opening: tuple[str, ...] = ()
    """Opening marks of calls that may end without a mark."""
    pattern: str = ""
    """A regular expression of opening marks that are no fixed texts; each of them begins with a fixed character."""
    closing: tuple[str, ...] = ()
    """Marks that may follow a call."""
    ends: tuple[str, ...] = ()
    """Tokens that end an answer behind a call."""
    inner: tuple[str, ...] = ()
    """Special tokens within calls."""
    read: Callable[[Behind], Reading | None] | None = None
    """A reader where JSON does not do; None if the text begins in another form, ValueError if it is no call.

    It is asked behind the marks of all families, since models mix them."""
    unmarked: Callable[[str, Functions], tuple[list[ToolCall], str] | None] | None = None
    """A reader of answers whose calls have no marks: calls and the text around them."""

    def __post_init__(self) -> None:
        re.compile(f"|{self.pattern}")  # as one of many


#: The entry point group of families; rollenv's own are in ``plugins/calls``.
GROUP = "rollenv.calls"


class _Marks:
    """The marks of all families, and their readers."""

    def __init__(self, families: Iterable[CallFamily]):
        self.pairs = {opening: closing for each in families for opening, closing in each.elements.items()}
        opening = {*self.pairs, *(mark for each in families for mark in each.opening)}
        self.opening = re.compile("|".join([_any_of(opening), *(each.pattern for each in families if each.pattern)]))
        self.ends = {mark for each in families for mark in each.ends}
        self.closing = _any_of(
            {*self.pairs.values(), *self.ends, *(mark for each in families for mark in each.closing)}
        )
        self.behind = re.compile(rf"(?:\s|```|{self.closing})*")
        self.inner = {mark for each in families for mark in each.inner}
        self.readers = dict.fromkeys(each.read for each in families if each.read)
        self.unmarked = [each.unmarked for each in families if each.unmarked]


def _any_of(texts: Iterable[str]) -> str:
    """A pattern of texts; one that begins another comes behind it."""
    return "|".join(map(re.escape, sorted(texts, reverse=True)))


@functools.cache
def marks() -> _Marks:
    """Load the marks of all families; an entry point that is no table of them is left out and reported."""
    families: list[CallFamily] = []
    for name, found in load_all(GROUP, kind=tuple).items():
        if all(isinstance(each, CallFamily) for each in found):
            families += found
        else:
            warnings.warn(f"the entry point {name} of {GROUP} is no tuple of CallFamily", stacklevel=2)
    hermes = CallFamily("Hermes", {"<tool_call>": "</tool_call>", "<tool_calls>": "</tool_calls>"})
    return _Marks([*families, hermes, CallFamily("GEM", read=_from_gem), CallFamily("Python", read=_from_python_list)])


#: Characters between a mark and its call.
_LEADING = re.compile(r"(?:\s|```(?:json|python|tool_call)?\b)*")
_WRITTEN_ARGUMENTS = re.compile(r'"(?:arguments|parameters|args|input)"\s*:\s*(.*)', re.DOTALL)


def is_mark(token: str) -> bool:
    """Return whether a special token is part of how a model family writes calls."""
    known = marks()
    outer = token not in known.ends and bool(known.opening.fullmatch(token) or known.behind.fullmatch(token))
    return outer or token in known.inner


def first_mark(text: str) -> int:
    """Return where the first mark of a call stands; the text's length if there is none."""
    mark = marks().opening.search(text)
    return mark.start() if mark else len(text)


def written_arguments(call: str) -> str:
    """Return the arguments in the text of a malformed call in JSON as they were written, all of the text if none are.

    They end before the call's closing mark, and before the brackets that close the call around them.
    """
    found = _WRITTEN_ARGUMENTS.search(call)
    if found is None:
        return call.strip()
    arguments = re.split(marks().closing, found[1])[0].rstrip()
    if "```" in call[: found.start()]:
        arguments = arguments.removesuffix("```").rstrip()
    if arguments.startswith('"'):
        with contextlib.suppress(ValueError):
            inner, end = JSON.raw_decode(arguments)
            if not arguments[end:].strip("]} \r\n"):  # JSON in a string, with nothing behind it
                return str(inner)
    for opening, closing in (("[", "]"), ("{", "}")):
        while arguments.endswith(closing) and arguments.count(closing) > arguments.count(opening):
            arguments = arguments[:-1].rstrip()
    return arguments


def unmarked_calls(text: str, functions: Functions) -> tuple[list[ToolCall], str, int]:
    """Find calls that a family of models writes without marks; the third is where the first begins."""
    for read in marks().unmarked:
        if found := read(text, functions):
            return *found, 0
    return [], text, len(text)


def marked_calls(text: str, functions: Functions) -> tuple[list[ToolCall], str]:
    """Find the calls behind marks."""
    calls: list[ToolCall] = []
    around, at = [], 0
    while len(calls) <= MOST_CALLS and (mark := marks().opening.search(text, at)):
        around.append(text[at : mark.start()])
        found, end = _behind_mark(text, mark, functions)
        calls += [replace(call, end=end) for call in found]
        at = max(end, mark.start() + 1)
    return calls, "".join([*around, text[at:]])


def _behind_mark(text: str, mark: re.Match[str], functions: Functions) -> Reading:
    """Read the calls behind a mark; return them and the index behind them.

    The form is told by how the text begins. JSON is tried last, which also says what is wrong with anything else.
    A form that begins but fails ends at the closing mark, so that the words of a malformed call are never read again
    as calls.
    """
    known = marks()
    start = _LEADING.match(text, mark.end()).end()  # type: ignore[union-attr]  # it matches nothing too
    closing = known.pairs.get(mark[0], "")
    behind = Behind(text, start, mark, closing, functions)
    found = None
    try:
        for read in known.readers:
            found = found or read(behind)
        if found is None and known.opening.match(text, start):
            return [], start  # marks of a list around those of its calls
        calls, end = found or _from_json(text, start)
    except (ValueError, RecursionError) as error:
        closed = text.find(closing, mark.end()) if closing else -1
        return [ToolCall("", {}, problem=str(error)[:300])], closed + len(closing) if closed >= 0 else len(text)
    after = known.behind.match(text, end).end()  # type: ignore[union-attr]
    rest = text.find(closing, after) if closing else -1
    if rest >= 0 and closing not in text[end:after] and not known.opening.search(text, after, rest):
        after = rest + len(closing)
        if text[end:rest].strip(" \t\r\n`]}"):
            calls = [ToolCall("", {}, problem="the call is not valid JSON: text follows it inside the element")]
            return calls, after
    return calls, end + len(text[end:after].rstrip())


# -- JSON --------------------------------------------------------------------------------------------------------------

_NAMES = {"name", "tool_name", "function_name", "recipient_name", "tool", "function", "action"}
_ARGUMENTS = {"arguments", "parameters", "args", "kwargs", "input", "params", "argument", "tool_input", "action_input"}
_TYPES = ("function", "function_call", "tool_call", "tool_use")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("the call is not valid JSON: a key stands in it twice")
    return data


JSON = json.JSONDecoder(object_pairs_hook=_without_doubles, strict=False)  # line breaks in strings are read
_TRAILING_COMMA = re.compile(r",\s*[}\]]")


def decode_json(text: str, start: int) -> tuple[Any, int]:
    """Decode JSON from its beginning, with commas at the end of lists and objects; return it and its end."""
    for _ in range(MOST_CALLS):
        try:
            return JSON.raw_decode(text, start)
        except json.JSONDecodeError as error:
            comma = text.rfind(",", start, error.pos + 1)
            found = _TRAILING_COMMA.match(text, comma) if comma >= 0 else None
            if found is None or found.end() <= error.pos:
                cut = " and not closed" if not text[error.pos :].strip() else ""
                raise ValueError(f"the call is not valid JSON{cut}: {error}") from error
            text = f"{text[:comma]} {text[comma + 1 :]}"
        except RecursionError:
            raise ValueError("the call is not valid JSON: it is nested too deeply") from None
    raise ValueError("the call is not valid JSON: it has too many commas")


_SINGLE_QUOTED = re.compile(r"\{\s*'")


def _from_json(text: str, start: int) -> Reading:
    """Read one or several calls in JSON, or in a Python dictionary."""
    if not text.startswith(("{", "["), start):
        ends = "" if text[start:].strip() else "; the call is not closed"
        raise ValueError(f'the call is not valid JSON of the form {{"name": "...", "arguments": {{...}}}}{ends}')
    calls, at = [], start
    while text.startswith(("{", "["), at):
        try:
            data, end = decode_json(text, at)
        except ValueError:
            stop = re.compile(r"</|<\||\Z").search(text, at).start()  # type: ignore[union-attr]
            try:
                data, end = syntax.literal_eval(text[at : min(stop, at + 200_000)].strip()), stop
            except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                data = None
            if not isinstance(data, dict) or not _SINGLE_QUOTED.match(text, at):
                raise
        found = _calls_in(data)
        if not found:
            raise ValueError('the call is not of the form {"name": "...", "arguments": {...}}')
        calls += found
        at = re.compile(r"[\s;,]*").match(text, end).end()  # type: ignore[union-attr]
    return calls, end


def _calls_in(data: Any) -> list[ToolCall]:
    """Return the calls in decoded JSON; none if it has another form.

    Unwraps lists, messages with ``tool_calls``, and an inner object ``function``, in this order. What is left needs one
    name and at most one object of arguments: a further key is an argument in the wrong place, which is said to the
    agent, because a call without it would do something else.
    """
    if isinstance(data, list):
        each = [_calls_in(item) for item in data]
        return [call for calls in each for call in calls] if all(each) else []
    if not isinstance(data, dict):
        return []
    if "tool_calls" in data:  # OpenAI's message
        calls = _calls_in(data["tool_calls"])
        return calls or [ToolCall("", {}, problem="the message has no function with a name in its tool_calls")]
    for key in ("function", "function_call"):
        if isinstance(inner := data.get(key), dict):
            beside = {k: v for k, v in data.items() if k not in (key, "role", "content")}
            data = beside | inner if not (beside.keys() - {"type", "id"}) & inner.keys() else {**data, "name": key}
    names = [key for key in data if key.lower() in _NAMES and isinstance(data[key], str)]
    given = [key for key in data if key.lower() in _ARGUMENTS]
    if not names:
        return []
    name = data[names[0]]
    others = [key for key in data if key not in (names[0], *given) and not _is_about(key, data[key], bool(given))]
    if len(given) > 1 or others:
        wrong = f'the call has the key {[*given[1:], *others][0][:100]!r}; all arguments belong into "arguments"'
        return [ToolCall(name, {}, problem=wrong)]
    return [replace(named_call(name, data[given[0]] if given else {}), id=str(data.get("id") or ""))]


def _is_about(key: str, value: Any, has_arguments: bool) -> bool:
    """Return whether a key of a call is not an argument of it."""
    if key == "type":
        return value in _TYPES
    return has_arguments and key in ("id", "index", "call_id", "tool_call_id")


def named_call(name: str, arguments: Any) -> ToolCall:
    """Return a call of a function by decoded JSON, which may be JSON in a string again."""
    name = name.removeprefix("functions.")
    for _ in range(2):  # some models encode twice
        if isinstance(arguments, str):
            try:
                arguments = JSON.decode(arguments) if arguments.strip() else {}
            except (ValueError, RecursionError) as error:
                return ToolCall(name, {}, problem=f"the arguments are not valid JSON: {str(error)[:200]}")
    arguments = {} if arguments in (None, []) else arguments
    if not isinstance(arguments, dict):
        return ToolCall(name, {}, problem=f"the arguments are a JSON object, not {type(arguments).__name__}")
    return ToolCall(name, arguments)


_KEYS = sorted({*_NAMES, *_ARGUMENTS, "function_call", "tool_calls", "type", "id", "role", "content"})
#: A possible start of a call; the second group is the first key's value, if it is a string.
_CANDIDATE = re.compile(rf'(?:\[\s*)?\{{\s*"({"|".join(_KEYS)})"\s*:(?:\s*"([^"\\]{{1,200}})")?')


def json_calls(text: str, expected: bool, known: Collection[str]) -> tuple[list[ToolCall], str, int]:
    """Find calls in JSON without marks: a text that is nothing else, or calls of known functions between words.

    Returns:
        The calls, the text around them, and where the first begins.
    """
    whole = _strip_fence(text)
    if whole.startswith(("{", "[")):
        meant = any(key in whole for key in ('"tool_calls"', '"function_call"')) or (expected and '"name"' in whole)
        try:
            data, end = decode_json(whole, 0)
        except ValueError as error:
            if meant:
                return [ToolCall("", {}, len(text), str(error)[:300])], "", 0
        else:
            message = isinstance(data, dict) and data.keys() & {"tool_calls", "function_call"}
            # a call of a function that does not exist is a call all the same
            wanted = message or (expected and meant) or (known and _has_only_calls(data))
            if wanted and end == len(whole):
                calls = [replace(call, end=len(text)) for call in _calls_in(data)]
                return (calls, "", 0) if calls else ([], text, len(text))

    def read(candidate: re.Match[str]) -> Reading:
        try:
            data, end = decode_json(text, candidate.start())
            found = _calls_in(data)
        except ValueError as error:
            end = len(text)
            found = [ToolCall(candidate[2], {}, problem=str(error)[:300])] if candidate[2] in known else []
        wanted = all(call.name in known for call in found) or (expected and not known)
        return (found if wanted else []), end

    return _between_words(text, _CANDIDATE, read)


#: Maximum failed attempts, since each may read to the end of the text.
_MOST_FAILED = 16


def _between_words(
    text: str, pattern: re.Pattern[str], read: Callable[[re.Match[str]], Reading]
) -> tuple[list[ToolCall], str, int]:
    """Read calls where they may begin; return them, the text around them, and where the first begins."""
    calls: list[ToolCall] = []
    around, at, start, failed = [], 0, len(text), 0
    for candidate in pattern.finditer(text):
        if candidate.start() < at:
            continue
        if failed == _MOST_FAILED or len(calls) > MOST_CALLS:
            break
        found, end = read(candidate)
        if not found:
            failed += 1
            continue
        around.append(text[at : candidate.start()])
        calls += [replace(call, end=end) for call in found]
        at, start = end, min(start, candidate.start())
    return calls, "".join([*around, text[at:]]), start


def _has_only_calls(data: Any) -> bool:
    """Return whether JSON is calls and cannot be meant as an answer: names with arguments, and nothing else."""
    each = data if isinstance(data, list) else [data]
    forms = ({"name", "arguments"}, {"name", "parameters"})
    return bool(each) and all(
        isinstance(one, dict)
        and one.keys() in forms
        and isinstance(one["name"], str)
        and isinstance(one.get("arguments", one.get("parameters")), dict)
        for one in each
    )


def _strip_fence(text: str) -> str:
    """The text without white space around it, and without the code fence that holds all of it."""
    text = text.strip()
    first, _, rest = text.partition("\n")
    fenced = re.fullmatch(r"```[A-Za-z]{0,10}\s{0,10}", first) and rest.endswith("```")
    return rest[:-3].strip() if fenced else text


def _from_gem(behind: Behind) -> Reading | None:
    """Read GEM's ``<tool_name>...</tool_name>``, and ``<arguments>{...}</arguments>`` where there are any."""
    text, data = behind.text, None
    if not text.startswith("<tool_name>", behind.start):
        return None
    name = first_tagged(text[behind.start :], "tool_name")
    if name is None:
        raise ValueError("the call is not closed: end it with </tool_name>")
    end = behind.start + name.end
    at = _LEADING.match(text, end).end()  # type: ignore[union-attr]
    if text.startswith("<arguments>", at):
        at = _LEADING.match(text, at + len("<arguments>")).end()  # type: ignore[union-attr]
        if not text.startswith("</arguments>", at):
            data, at = decode_json(text, at)
        closing = text.find("</arguments>", at)
        if closing < 0 or text[at:closing].strip():
            raise ValueError("the arguments are not valid JSON, or not closed with </arguments>")
        end = closing + len("</arguments>")
    return [named_call(name.content.strip(), data)], end


# -- Python ------------------------------------------------------------------------------------------------------------

#: File name of parsed actions, to silence Python's warnings about model output.
SOURCE = "<action>"
for _category in (SyntaxWarning, DeprecationWarning):
    warnings.filterwarnings("ignore", category=_category, module=re.escape(SOURCE))

_STRINGS_AND_BRACKETS = re.compile(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|[\[\](){}]")
_PYTHON_LIST = re.compile(r"\[\s*[A-Za-z_][\w.]*\s*\(")
MOST_PYTHON = 200_000


def python_calls(text: str, known: Collection[str]) -> tuple[list[ToolCall], str, int]:
    """Find ``[f(a=1), g(b="x")]`` or calls without brackets: alone, or lists and known functions between words.

    Returns:
        The calls, the text around them, and where the first begins.
    """
    whole = _strip_fence(text)
    if len(whole) > MOST_PYTHON or "(" not in whole or "\x00" in whole:
        return [], text, len(text)
    with contextlib.suppress(ValueError):
        return [replace(call, end=len(text)) for call in read_python(whole)], "", 0
    names = "|".join(map(re.escape, known)) or "(?!)"

    def read(candidate: re.Match[str]) -> Reading:
        try:
            return _python_list(text, candidate.start())
        except ValueError:
            return [], 0

    return _between_words(text, re.compile(rf"{_PYTHON_LIST.pattern}|^[ \t]*(?:{names})\(", re.MULTILINE), read)


def _from_python_list(behind: Behind) -> Reading | None:
    begins = _PYTHON_LIST.match(behind.text, behind.start)
    return _python_list(behind.text, behind.start) if begins else None


def _python_list(text: str, start: int) -> Reading:
    """Read calls from the bracket that opens to the one that closes it."""
    depth = 0
    for token in _STRINGS_AND_BRACKETS.finditer(text, start, start + MOST_PYTHON):
        depth += {"[": 1, "(": 1, "{": 1, "]": -1, ")": -1, "}": -1}.get(token[0], 0)
        if depth <= 0 and token[0] in "])}":
            return read_python(text[start : token.end()].strip()), token.end()
    raise ValueError("the call is not closed")


def read_python(text: str) -> list[ToolCall]:
    """Read a text that is nothing but Python calls or lists of them.

    Raises:
        ValueError: it is something else.
    """
    try:
        statements = syntax.parse(text, SOURCE).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"these are no Python calls: {error}") from error
    found: list[ast.expr] = []
    for statement in statements:
        if not isinstance(statement, ast.Expr):
            raise ValueError("these are no Python calls")
        found += statement.value.elts if isinstance(statement.value, ast.List) else [statement.value]
    if not found or not all(isinstance(each, ast.Call) for each in found):
        raise ValueError("these are no Python calls")
    return [_from_ast(each) for each in found[: MOST_CALLS + 1] if isinstance(each, ast.Call)]


class _JSONWords(ast.NodeTransformer):
    """Replace ``true``, ``false`` and ``null`` by Python's constants."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        words = {"true": True, "false": False, "null": None}
        return ast.Constant(words[node.id]) if node.id in words else node


def _from_ast(call: ast.Call) -> ToolCall:
    try:
        name = ast.unparse(call.func)
    except RecursionError:
        return ToolCall("", {}, problem="the name of the function is nested too deeply")
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        return ToolCall(name, {}, problem="arguments are given by name")
    try:
        given = {str(keyword.arg): ast.literal_eval(_JSONWords().visit(keyword.value)) for keyword in call.keywords}
        return ToolCall(name, given)
    except (ValueError, TypeError, RecursionError, SyntaxError, MemoryError):
        return ToolCall(name, {}, problem="arguments are literals")
