"""Readers of tool calls: JSON, elements and Python calls, with the marks of model families."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollenv.core import syntax
from rollenv.core.parsing import first_tagged


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call found in an action."""

    name: str
    arguments: dict[str, Any]
    end: int
    """Index of its end in the action."""
    problem: str = ""
    """The reason why the call is malformed; empty if it is well-formed."""
    id: str = ""
    """What the model called it, where its family does; a result names it."""


#: Maximum calls that are read in one action.
MOST_CALLS = 32

#: JSON schemas of the parameters of functions, by name.
Functions = Mapping[str, Mapping[str, Any]]

# -- calls with marks ------------------------------------------------------------------------------------------------

# Marks of Hermes and Qwen (<tool_call>), Seed, LongCat, MiniMax, Nemotron, Granite and Phi, dots, LFM2, Mistral,
# Llama 3 and 3.1 (<function=), Qwen3-Coder, Kimi K2, DeepSeek (also DSML), Step-3, Anthropic (<invoke), Muse (atem),
# Gemma 4 (<|tool_call>), FunctionGemma, Command (<|START_ACTION|>), InternLM, GigaChat, Apertus, gpt-oss (channels).
_OPENING = re.compile(
    r"<(?:seed:|longcat_)?tool_calls?>|<TOOLCALL>|<(?:dots_)?function_calls?>|<start_function_call>|<functioncall>|<minimax:tool_call>|<｜DSML｜function_calls>"
    r"|(?:<\|start\|>assistant)? to=[\w.\-/]{1,200}<\|message\|>\s*(?=<atem:)|<atem:function_calls>"
    r"|<\|tool_call>|<\|tool_calls?(?:_start)?\|>|\[TOOL_CALLS\]|<\|python_tag\|>|<\|START_ACTION\|>|<\|tool_calls_section_begin\|>"
    r"|<\|tool_call_begin\|>|<｜tool[▁_]calls?[▁_]begin｜>(?:function<｜tool_sep｜>)?|<function=|<(?:\w{1,20}:|｜DSML｜)?invoke\s+name="
    r"|<\|(?:action_start|plugin|function_call|tools_prefix)\|>"
    r"|<\|(?:start|channel)\|>(?:assistant|commentary|analysis)\s*(?:<\|channel\|>(?:commentary|analysis)\s*)?"
    r"to=(?=functions\.)"
)
_CLOSING_MARK = (
    r"</(?:seed:|longcat_)?tool_calls?>|</TOOLCALL>|</(?:dots_)?function_calls?>|<end_function_call>|</functioncall>|</minimax:tool_call>|</｜DSML｜function_calls>"
    r"|</atem:function_calls>|<tool_call\|>|<\|/?tool_calls?(?:_end|_section_end)?\|>|\[/TOOL_CALLS\]|<｜tool[▁_]calls?[▁_]end｜>|<\|END_ACTION\|>|<\|(?:action_end|tools_suffix)\|>|<\|call\|>|<\|e[om]t_id\|>"
)
_CLOSING = re.compile(rf"(?:\s|```|{_CLOSING_MARK})*")
#: Characters between a mark and its call.
_LEADING = re.compile(r"(?:\s|```(?:json|python|tool_call)?\b)*")
_NAMED = re.compile(
    r"(?:function<｜tool▁sep｜>)?(?:functions\.)?([\w.\-/]{1,200}?)(?::\d+)?(?:\s|<\|tool_call_argument_begin\|>|<｜tool▁sep｜>"
    r"|\[CALL_ID\]\w+|\[ARGS\]|<\|channel\|>\w+|<\|constrain\|>|<\|message\|>|```|json\b)*(?=\{)"
)
_ID = re.compile(r"functions\.[\w.\-/]+:\d+|(?<=\[CALL_ID\])\w+")  # Kimi's and Mistral's
_GLM = re.compile(r"([\w.\-/]{1,200})\s*(?=<arg_key>|</tool_call>)")
_GLM_ARGUMENT = re.compile(
    r"<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*(?=<arg_key>|</tool_call>|\Z)", re.DOTALL
)
_ELEMENT = re.compile(
    r"<(?:function=\s*([^<>\s]{1,200}?)|(?:\w{1,20}:|｜DSML｜)?invoke\s+name=[\"']([^\"'<>]{1,200})[\"'])\s*>\s*"
)
_PARAMETER = re.compile(
    r"<(?:\w{1,20}:|｜DSML｜)?parameter(?:=\s*([^<>]{1,200}?)|\s+name=[\"']([^\"'<>]{1,200})[\"'][^<>]{0,100})\s*>(.*?)"
    r"(?:</(?:\w{1,20}:|｜DSML｜)?parameter>\s*(?=<(?:\w{1,20}:|｜DSML｜)?parameter[=\s]|</(?:\w{1,20}:|｜DSML｜)?(?:function|invoke)>))",
    re.DOTALL,
)
_ELEMENT_END = re.compile(r"\s*</(?:\w{1,20}:|｜DSML｜)?(?:function|invoke)>")
_GEMMA = re.compile(r"call:([\w.\-/]{1,200})(?=\{)")
_GEMMA_STRING_OR_KEY = re.compile(r'<\|"\|>(.*?)<\|"\|>|(?<=[{,])\s*([^\s"{}\[\],:<]{1,200})\s*(?=:)', re.DOTALL)
_WRITTEN_ARGUMENTS = re.compile(r'"(?:arguments|parameters|args|input)"\s*:\s*(.*)', re.DOTALL)
_PYTHON_LIST = re.compile(r"\[\s*[A-Za-z_][\w.]*\s*\(")
_PYTHON_CALL = re.compile(r"[A-Za-z_][\w.]*\(")


def is_mark(token: str) -> bool:
    """Return whether a special token is part of how a model family writes calls."""
    if token in (
        "<|tool_call_argument_begin|>",
        "<｜tool▁sep｜>",
        "<｜tool_sep｜>",
        "[ARGS]",
        "[CALL_ID]",
        '<|"|>',
        "<escape>",
    ):
        return True
    ends_turn = token in ("<|call|>", "<|eot_id|>", "<|eom_id|>")
    return not ends_turn and bool(_OPENING.fullmatch(token) or _CLOSING.fullmatch(token))


def first_mark(text: str) -> int:
    """Return where the first mark of a call stands; the text's length if there is none."""
    mark = _OPENING.search(text)
    return mark.start() if mark else len(text)


def written_arguments(call: str) -> str:
    """Return the arguments in the text of a malformed call in JSON as they were written, all of the text if none are.

    They end before the call's closing mark, and before the brackets that close the call around them.
    """
    found = _WRITTEN_ARGUMENTS.search(call)
    if found is None:
        return call.strip()
    arguments = re.split(_CLOSING_MARK, found[1])[0].rstrip()
    if "```" in call[: found.start()]:
        arguments = arguments.removesuffix("```").rstrip()
    if arguments.startswith('"'):
        with contextlib.suppress(ValueError):
            inner, end = _JSON.raw_decode(arguments)
            if not arguments[end:].strip("]} \r\n"):  # JSON in a string, with nothing behind it
                return str(inner)
    for opening, closing in (("[", "]"), ("{", "}")):
        while arguments.endswith(closing) and arguments.count(closing) > arguments.count(opening):
            arguments = arguments[:-1].rstrip()
    return arguments


def marked_calls(text: str, functions: Functions) -> tuple[list[ToolCall], str]:
    """Find the calls behind marks."""
    calls: list[ToolCall] = []
    around, at = [], 0
    while len(calls) <= MOST_CALLS and (mark := _OPENING.search(text, at)):
        around.append(text[at : mark.start()])
        found, at = _behind_mark(text, mark, functions)
        calls += found
    return calls, "".join([*around, text[at:]])


def _behind_mark(text: str, mark: re.Match[str], functions: Functions) -> tuple[list[ToolCall], int]:
    """Read the calls behind a mark; return them and the index behind them.

    The form is told by how the text begins, and the more special beginning is tried first: elements, GEM's and GLM's
    elements, a list of Python calls, a name before JSON, and JSON, which also says what is wrong with anything else.
    A form that begins but fails ends at the closing mark, so that the words of a malformed call are never read again
    as calls.
    """
    start = _LEADING.match(text, mark.end()).end()  # type: ignore[union-attr]  # it matches nothing too
    if mark[0].endswith(("<function=", "name=")):
        start = mark.start()
    elif _OPENING.match(text, start):
        return [], start  # marks of a list around those of its calls
    closing = "</" + mark[0][1:] if mark[0].startswith("<") and "|" not in mark[0] else ""
    closing = {"<|tool_call>": "<tool_call|>", "<start_function_call>": "<end_function_call>"}.get(mark[0], closing)
    try:
        if element := _ELEMENT.match(text, start):
            calls, end = _from_element(text, element, functions)
        elif text.startswith("<tool_name>", start):
            calls, end = _from_gem(text, start)
        elif closing == "</tool_call>" and (name := _GLM.match(text, start)):
            calls, end = _from_glm(text, name, functions)
        elif closing and (name := _GEMMA.match(text, start)):
            calls, end = _from_gemma(text, name, closing)
        elif _PYTHON_LIST.match(text, start):
            calls, end = _from_python_list(text, start)
        elif mark[0] == "<function_calls>" and _PYTHON_CALL.match(text, start):  # OLMo 3: one in a line
            end = text.find(closing, start) if closing in text[start:] else len(text)
            calls = _from_python(text[start : min(end, start + _MOST_PYTHON)].strip(), end)
        elif name := _NAMED.match(text, start):
            data, end = _decode_json(text, name.end())
            own = _ID.search(name[0])
            calls = [replace(_call(name[1], data, end), id=own[0] if own else "")]
        elif mark[0] == "<|tools_prefix|>":
            calls, end = _from_apertus(text, start)
        else:
            calls, end = _from_json(text, start)
    except (ValueError, RecursionError) as error:
        closed = text.find(closing, mark.end()) if closing else -1
        end = closed + len(closing) if closed >= 0 else len(text)
        return [ToolCall("", {}, end, str(error)[:300])], end
    behind = _CLOSING.match(text, end).end()  # type: ignore[union-attr]
    rest = text.find(closing, behind) if closing else -1
    if rest >= 0 and closing not in text[end:behind] and not _OPENING.search(text, behind, rest):
        if text[end:rest].strip(" \t\r\n`]}"):
            end = rest + len(closing)
            return [ToolCall("", {}, end, "the call is not valid JSON: text follows it inside the element")], end
        behind = rest + len(closing)
    at = end + len(text[end:behind].rstrip())
    return [replace(call, end=at) for call in calls], at


# -- JSON --------------------------------------------------------------------------------------------------------------

_NAMES = {"name", "tool_name", "function_name", "recipient_name", "tool", "function", "action"}
_ARGUMENTS = {"arguments", "parameters", "args", "kwargs", "input", "params", "argument", "tool_input", "action_input"}
_TYPES = ("function", "function_call", "tool_call", "tool_use")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("the call is not valid JSON: a key stands in it twice")
    return data


_JSON = json.JSONDecoder(object_pairs_hook=_without_doubles, strict=False)  # line breaks in strings are read
_TRAILING_COMMA = re.compile(r",\s*[}\]]")


def _decode_json(text: str, start: int) -> tuple[Any, int]:
    """Decode JSON from its beginning, with commas at the end of lists and objects; return it and its end."""
    for _ in range(MOST_CALLS):
        try:
            return _JSON.raw_decode(text, start)
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


def _from_json(text: str, start: int) -> tuple[list[ToolCall], int]:
    """Read one or several calls in JSON, or in a Python dictionary."""
    if not text.startswith(("{", "["), start):
        ends = "" if text[start:].strip() else "; the call is not closed"
        raise ValueError(f'the call is not valid JSON of the form {{"name": "...", "arguments": {{...}}}}{ends}')
    calls, at = [], start
    while text.startswith(("{", "["), at):
        try:
            data, end = _decode_json(text, at)
        except ValueError:
            stop = re.compile(r"</|<\||\Z").search(text, at).start()  # type: ignore[union-attr]
            try:
                data, end = syntax.literal_eval(text[at : min(stop, at + 200_000)].strip()), stop
            except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                data = None
            if not isinstance(data, dict) or not _SINGLE_QUOTED.match(text, at):
                raise
        found = _calls_in(data, end)
        if not found:
            raise ValueError('the call is not of the form {"name": "...", "arguments": {...}}')
        calls += found
        at = re.compile(r"[\s;,]*").match(text, end).end()  # type: ignore[union-attr]
    return calls, end


def _calls_in(data: Any, end: int) -> list[ToolCall]:
    """Return the calls in decoded JSON; none if it has another form.

    Unwraps lists, messages with ``tool_calls``, and an inner object ``function``, in this order. What is left needs one
    name and at most one object of arguments: a further key is an argument in the wrong place, which is said to the
    agent, because a call without it would do something else.
    """
    if isinstance(data, list):
        each = [_calls_in(item, end) for item in data]
        return [call for calls in each for call in calls] if all(each) else []
    if not isinstance(data, dict):
        return []
    if "tool_calls" in data:  # OpenAI's message
        calls = _calls_in(data["tool_calls"], end)
        return calls or [ToolCall("", {}, end, "the message has no function with a name in its tool_calls")]
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
        wrong = [*given[1:], *others][0]
        return [ToolCall(name, {}, end, f'the call has the key {wrong[:100]!r}; all arguments belong into "arguments"')]
    return [replace(_call(name, data[given[0]] if given else {}, end), id=str(data.get("id") or ""))]


def _is_about(key: str, value: Any, has_arguments: bool) -> bool:
    """Return whether a key of a call is not an argument of it."""
    return value in _TYPES if key == "type" else has_arguments and key in ("id", "index", "call_id", "tool_call_id")


def _call(name: str, arguments: Any, end: int) -> ToolCall:
    name = name.removeprefix("functions.")
    for _ in range(2):  # some models encode twice
        if isinstance(arguments, str):
            try:
                arguments = _JSON.decode(arguments) if arguments.strip() else {}
            except (ValueError, RecursionError) as error:
                return ToolCall(name, {}, end, f"the arguments are not valid JSON: {str(error)[:200]}")
    arguments = {} if arguments in (None, []) else arguments
    if not isinstance(arguments, dict):
        return ToolCall(name, {}, end, f"the arguments are a JSON object, not {type(arguments).__name__}")
    return ToolCall(name, arguments, end)


_KEYS = sorted({*_NAMES, *_ARGUMENTS, "function_call", "tool_calls", "type", "id", "role", "content"})
#: A possible start of a call; the second group is the first key's value, if it is a string.
_CANDIDATE = re.compile(rf'(?:\[\s*)?\{{\s*"({"|".join(_KEYS)})"\s*:(?:\s*"([^"\\]{{1,200}})")?')


def json_calls(text: str, expected: bool, known: Collection[str]) -> tuple[list[ToolCall], str, int]:
    """Find calls in JSON without marks: a text that is nothing else, or calls of known functions between words.

    Returns:
        The calls, the text around them, and where the first begins.
    """
    whole = _strip_fence(text)
    message = '"tool_calls"' in whole or '"function_call"' in whole
    if whole.startswith(("{", "[")) and (message or (expected and '"name"' in whole)):
        try:
            data, end = _decode_json(whole, 0)
        except ValueError as error:
            return [ToolCall("", {}, len(text), str(error)[:300])], "", 0
        if end == len(whole) and (
            expected or (isinstance(data, dict) and data.keys() & {"tool_calls", "function_call"})
        ):
            calls = _calls_in(data, len(text))
            return (calls, "", 0) if calls else ([], text, len(text))
    if known and whole.startswith(("{", "[")):  # a call of a function that does not exist is a call all the same
        with contextlib.suppress(ValueError):
            data, end = _decode_json(whole, 0)
            if end == len(whole) and _has_only_calls(data):
                return _calls_in(data, len(text)), "", 0
    calls, around, at, start, failed = [], [], 0, len(text), 0
    for candidate in _CANDIDATE.finditer(text):
        if candidate.start() < at:
            continue
        if failed == _MOST_FAILED or len(calls) > MOST_CALLS:
            break
        try:
            data, end = _decode_json(text, candidate.start())
            found = _calls_in(data, end)
        except ValueError as error:
            end = len(text)
            found = [ToolCall(candidate[2], {}, end, str(error)[:300])] if candidate[2] in known else []
        if found and (all(call.name in known for call in found) or (expected and not known)):
            around.append(text[at : candidate.start()])
            calls, at, start = calls + found, end, min(start, candidate.start())
        else:
            failed += 1
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


#: Maximum failed attempts, since each may read to the end of the text.
_MOST_FAILED = 16


def _strip_fence(text: str) -> str:
    """The text without white space around it, and without the code fence that holds all of it."""
    text = text.strip()
    first, _, rest = text.partition("\n")
    fenced = re.fullmatch(r"```[A-Za-z]{0,10}\s{0,10}", first) and rest.endswith("```")
    return rest[:-3].strip() if fenced else text


# -- elements ----------------------------------------------------------------------------------------------------------


def _from_gem(text: str, start: int) -> tuple[list[ToolCall], int]:
    """GEM: ``<tool_name>...</tool_name>``, and ``<arguments>{...}</arguments>`` where there are any."""
    name = first_tagged(text[start:], "tool_name")
    if name is None:
        raise ValueError("the call is not closed: end it with </tool_name>")
    end = start + name.end
    behind = _LEADING.match(text, end).end()  # type: ignore[union-attr]
    if not text.startswith("<arguments>", behind):
        return [_call(name.content.strip(), {}, end)], end
    at = _LEADING.match(text, behind + len("<arguments>")).end()  # type: ignore[union-attr]
    if text.startswith("</arguments>", at):
        return [_call(name.content.strip(), {}, at)], at + len("</arguments>")
    data, end = _decode_json(text, at)
    closing = text.find("</arguments>", end)
    if closing < 0 or text[end:closing].strip():
        raise ValueError("the arguments are not valid JSON, or not closed with </arguments>")
    end = closing + len("</arguments>")
    return [_call(name.content.strip(), data, end)], end


def _from_glm(text: str, name: re.Match[str], functions: Functions) -> tuple[list[ToolCall], int]:
    """GLM: the name, then ``<arg_key>...</arg_key><arg_value>...</arg_value>``."""
    arguments: dict[str, str] = {}
    at = name.end()
    while argument := _GLM_ARGUMENT.match(text, at):
        _add(arguments, argument[1].strip(), argument[2])
        at = argument.end()
    if text.startswith("<arg_", at):
        raise ValueError("an argument is not closed")
    return [ToolCall(name[1], _convert_types(arguments, functions.get(name[1], {})), at)], at


def _from_element(text: str, element: re.Match[str], functions: Functions) -> tuple[list[ToolCall], int]:
    """Qwen3-Coder, MiniMax, Anthropic: the name in an element, parameters in elements; Llama 3.1: JSON in it."""
    name, at = (element[1] or element[2]).strip(), element.end()
    if text.startswith("{", at):
        data, at = _decode_json(text, at)
        call = _call(name, data, at)
    else:
        given: dict[str, str] = {}
        while parameter := _PARAMETER.match(text, at):
            _add(given, (parameter[1] or parameter[2]).strip(), parameter[3])
            at = parameter.end()
        call = ToolCall(name, _convert_types(given, functions.get(name, {})), at)
    end = _ELEMENT_END.match(text, at)
    if end is None:
        raise ValueError("the call is not closed: a parameter or the function lacks its closing mark")
    return [call], end.end()


def _from_apertus(text: str, start: int) -> tuple[list[ToolCall], int]:
    """Apertus: ``[{"name": {...arguments}}, ...]``."""
    data, end = _decode_json(text, start)
    if not isinstance(data, list) or not all(isinstance(each, dict) for each in data):
        raise ValueError('the calls are not of the form [{"NAME": {...}}, ...]')
    return [_call(name, given, end) for each in data for name, given in each.items()], end


def _from_gemma(text: str, name: re.Match[str], closing: str) -> tuple[list[ToolCall], int]:
    """Gemma: ``call:name{key:value}``, strings between ``<|"|>`` or ``<escape>``, keys without quotation marks."""
    closed = text.find(closing, name.end())
    end = closed if closed >= 0 else len(text)
    written = text[name.end() : end].replace("<escape>", '<|"|>')
    if '<|"|>' in written or '"' not in written:
        written = _GEMMA_STRING_OR_KEY.sub(lambda part: json.dumps(part[1] if part[2] is None else part[2]), written)
    data, behind = _decode_json(written, 0)
    if written[behind:].strip():
        raise ValueError("the call is not valid: text follows its arguments")
    return [_call(name[1], data, end)], end


def _add(arguments: dict[str, str], name: str, value: str) -> None:
    if name in arguments:
        raise ValueError(f"the argument {name[:100]!r} is given twice")
    arguments[name] = value.removeprefix("\n").removesuffix("\n")


def _convert_types(arguments: Mapping[str, str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Convert strings to the types of a schema: parameters that are no strings are parsed as JSON if possible."""
    typed: dict[str, Any] = dict(arguments)
    properties = _properties(parameters, parameters)
    for name, value in arguments.items():
        about = properties.get(name)
        if not isinstance(about, Mapping):  # JSON Schema has also true and false
            continue
        types = [each.get("type") or each.get("$ref") for each in (about, *about.get("anyOf", ()))]
        if any(types) and "string" not in str(types):
            with contextlib.suppress(ValueError, RecursionError):  # the function reports the error
                typed[name] = _JSON.decode(value)
    return typed


def _properties(schema: Any, root: Mapping[str, Any], depth: int = 3) -> dict[str, Any]:
    """Return what a JSON schema says of each argument, also in the schemas that it combines or refers to."""
    if not isinstance(schema, Mapping) or depth < 0:
        return {}
    parts = [part for key in ("allOf", "anyOf", "oneOf") for part in schema.get(key) or ()]
    parts += [schema.get("then"), schema.get("else")]
    if str(reference := schema.get("$ref")).startswith("#/"):
        referred: Any = root
        for step in str(reference)[2:].split("/"):
            referred = referred.get(step) if isinstance(referred, Mapping) else None
        parts.append(referred)
    found: dict[str, Any] = {}
    for part in parts:
        found |= _properties(part, root, depth - 1)
    return found | (schema.get("properties") or {})


# -- Python ------------------------------------------------------------------------------------------------------------

#: File name of parsed actions, to silence Python's warnings about model output.
SOURCE = "<action>"
for _category in (SyntaxWarning, DeprecationWarning):
    warnings.filterwarnings("ignore", category=_category, module=re.escape(SOURCE))

_STRINGS_AND_BRACKETS = re.compile(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|[\[\](){}]")
_MOST_PYTHON = 200_000


def python_calls(text: str, known: Collection[str]) -> tuple[list[ToolCall], str, int]:
    """Find ``[f(a=1), g(b="x")]`` or calls without brackets: alone, or lists and known functions between words.

    Returns:
        The calls, the text around them, and where the first begins.
    """
    whole = _strip_fence(text)
    if len(whole) > _MOST_PYTHON or "(" not in whole or "\x00" in whole:
        return [], text, len(text)
    with contextlib.suppress(ValueError):
        return _from_python(whole, len(text)), "", 0
    names = "|".join(map(re.escape, known)) or "(?!)"
    calls: list[ToolCall] = []
    around, at, start = [], 0, len(text)
    candidates = re.finditer(rf"{_PYTHON_LIST.pattern}|^[ \t]*(?:{names})\(", text, re.MULTILINE)
    failed = 0
    for candidate in candidates:
        if candidate.start() < at:
            continue
        if failed == _MOST_FAILED or len(calls) > MOST_CALLS:
            break
        try:
            found, end = _from_python_list(text, candidate.start())
        except ValueError:
            failed += 1
            continue
        around.append(text[at : candidate.start()])
        calls, at, start = calls + found, end, min(start, candidate.start())
    return calls, "".join([*around, text[at:]]), start


def _from_python_list(text: str, start: int) -> tuple[list[ToolCall], int]:
    """Read calls from the bracket that opens to the one that closes it."""
    depth = 0
    for token in _STRINGS_AND_BRACKETS.finditer(text, start, start + _MOST_PYTHON):
        depth += {"[": 1, "(": 1, "{": 1, "]": -1, ")": -1, "}": -1}.get(token[0], 0)
        if depth <= 0 and token[0] in "])}":
            return _from_python(text[start : token.end()].strip(), token.end()), token.end()
    raise ValueError("the call is not closed")


def _from_python(text: str, end: int) -> list[ToolCall]:
    """Read a text that is nothing but calls or lists of calls."""
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
    return [_from_ast(each, end) for each in found[: MOST_CALLS + 1] if isinstance(each, ast.Call)]


class _JSONWords(ast.NodeTransformer):
    """Replace ``true``, ``false`` and ``null`` by Python's constants."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        words = {"true": True, "false": False, "null": None}
        return ast.Constant(words[node.id]) if node.id in words else node


def _from_ast(call: ast.Call, end: int) -> ToolCall:
    try:
        name = ast.unparse(call.func)
    except RecursionError:
        return ToolCall("", {}, end, "the name of the function is nested too deeply")
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        return ToolCall(name, {}, end, "arguments are given by name")
    try:
        given = {str(keyword.arg): ast.literal_eval(_JSONWords().visit(keyword.value)) for keyword in call.keywords}
        return ToolCall(name, given, end)
    except (ValueError, TypeError, RecursionError, SyntaxError, MemoryError):
        return ToolCall(name, {}, end, "arguments are literals")
