"""Fields of requests in all dialects: types, ranges, tools; and events of a stream."""

from __future__ import annotations

import json
import marshal
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from rollenv.agents.gateway.messages import GatewayError
from rollenv.core.parsing import well_formed

T = TypeVar("T")

#: Names by which a client may refer to what it has sent before. What is not kept here is refused, known or not: the
#: model would see a part of the chat only.
_REFERS = re.compile("thread|conversation|previous|parent|contin|resume|history|cached_?content|checkpoint", re.I)
#: Settings that no answer depends on.
_QUIET = frozenset({
    *("billing_policy", "cache_control", "client_metadata", "diagnostics", "include", "metadata", "prompt_cache_key"),
    *("prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier", "store", "stream_options"),
    *("speed", "user", "user_profile_id", "inference_geo", "fallbacks", "labels", "anthropic_beta", "betas"),
})  # fmt: skip

_DEPTH = 100
#: Size in bytes at which a cache of parsed items is cleared, and the overhead of each item.
_ROOM = 8 << 20
_EACH = 500
_STOPS = 16
_KINDS: dict[type, str] = {str: "a string", bool: "true or false", list: "a list", dict: "an object"}


def invalid(message: str, param: str | None = None) -> GatewayError:
    """Create the error for an invalid request."""
    where = f"{param}: " if param else ""
    return GatewayError("invalid", where + message, param=param)


def readable(body: Any) -> dict[str, Any]:
    """Validate a body; return a copy if it has lone surrogates, which no tokenizer accepts and which are replaced."""
    if not isinstance(body, dict):
        raise invalid("the body must be a JSON object")
    level: list[Any] = [body]
    for _ in range(_DEPTH):
        inner = (value for one in level for value in (one.values() if isinstance(one, dict) else one))
        level = [value for value in inner if isinstance(value, dict | list)]
        if not level:
            break
    else:
        raise _too_deep()
    try:
        written = json.dumps(body, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise invalid("the body holds NaN, Infinity or a number that is too long, which JSON does not have") from None
    try:
        written.encode()
    except UnicodeEncodeError:
        return dict(json.loads(well_formed(written)))
    return body


class Known:
    """A cache of parsed request items: clients send their whole chat, and all tools, with every call."""

    def __init__(self) -> None:
        self.readings: defaultdict[str, dict[bytes, tuple[Any, ...]]] = defaultdict(dict)
        """Parsed items by the name of their list and their :mod:`marshal` encoding. As objects, 1 and true would be
        equal, and JSON takes five times as long to encode."""
        self._size = 0

    def keep(self, key: str, written: bytes, reading: tuple[Any, ...]) -> None:
        """Store a parsed item."""
        self._size += len(written) + _EACH
        if self._size > _ROOM:
            self._size, self.readings = 0, defaultdict(dict)
        self.readings[key][written] = reading


def lists(
    body: Any, known: Known | None, needed: str = "", **readers: Callable[[dict[str, Any], str], Iterable[Any]]
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Parse the objects in lists of a body, each once in a session.

    Args:
        readers: parsers by the name of the list, called with an object and its path ("messages[3]").

    Returns:
        The body (see :func:`readable`), whose lists have only new items, and the parsed items of each list.
    """
    if not isinstance(body, dict):
        raise invalid("the body must be a JSON object")
    known = known or Known()
    written: dict[str, list[bytes]] = {}
    found: dict[str, list[tuple[Any, ...] | None]] = {}
    new: dict[str, list[Any]] = {}
    for key in readers:
        if isinstance(items := body.get(key), list):
            try:
                written[key] = [marshal.dumps(item, 2) for item in items]
            except ValueError as error:
                raise _too_deep() from error
            found[key] = [*map(known.readings[key].get, written[key])]
            new[key] = [item for item, reading in zip(items, found[key], strict=True) if reading is None]
    body = readable({**body, **new})
    result: dict[str, list[Any]] = {key: [] for key in readers}
    for key, reader in readers.items():
        unread = iter(field(body, key, list) or [])
        for index, reading in enumerate(found.get(key, ())):
            if reading is None:
                item, where = next(unread), f"{key}[{index}]"
                if not isinstance(item, dict):
                    raise invalid(f"must be an object, not {json.dumps(item)[:80]}", where)
                reading = tuple(reader(item, where))
                known.keep(key, written[key][index], reading)
            result[key] += reading
    if needed and not result[needed]:
        raise invalid(f"must hold at least a {needed.removesuffix('s')}", needed)
    return body, result


def _too_deep() -> GatewayError:
    return invalid(f"the body is nested deeper than {_DEPTH} levels; send a flatter one")


def field(of: Mapping[str, Any], key: str, kind: type[T], where: str = "") -> T | None:
    """Return the value of a key; None if it is absent or null."""
    value = of.get(key)
    if value is None or isinstance(value, kind):
        return value
    raise invalid(f"must be {_KINDS[kind]}, not {json.dumps(value)[:80]}", f"{where}.{key}".lstrip("."))


def text(of: Mapping[str, Any], key: str, where: str = "") -> str:
    """Return a text; empty if it is absent or null."""
    return field(of, key, str, where) or ""


def required(of: Mapping[str, Any], key: str, where: str) -> str:
    """Return a required text."""
    if value := text(of, key, where):
        return value
    raise invalid("is missing; it must be a string with at least a character", f"{where}.{key}")


def objects(of: Mapping[str, Any], key: str, where: str = "") -> list[tuple[dict[str, Any], str]]:
    """Return pairs of an object of a list and its path ("messages[3]"); none if the list is absent or null."""
    path = f"{where}.{key}".lstrip(".")
    pairs = []
    for index, value in enumerate(field(of, key, list, where) or []):
        if not isinstance(value, dict):
            raise invalid(f"must be an object, not {json.dumps(value)[:80]}", f"{path}[{index}]")
        pairs.append((value, f"{path}[{index}]"))
    return pairs


def function(of: Mapping[str, Any], where: str, schema: str = "parameters", namespace: str = "") -> dict[str, Any]:
    """Convert a client's function to the form of ``Request.tools``."""
    described: dict[str, Any] = {
        "name": required(of, "name", where),
        "description": text(of, "description", where),
        "parameters": field(of, schema, dict, where) or {"type": "object", "properties": {}},
    }
    described = {"type": "function", "function": described}
    if (strict := field(of, "strict", bool, where)) is not None:
        described["strict"] = strict
    if namespace:
        described["namespace"] = namespace
    return described


def common(body: Mapping[str, Any], tools: list[dict[str, Any]], stop: str, *limits: str) -> dict[str, Any]:
    """Return the arguments of ``Request`` that all dialects have.

    Args:
        limits: its names for the maximum number of answer tokens, the preferred one first.
    """
    stops = [body[stop]] if isinstance(body.get(stop), str) else field(body, stop, list) or []
    if len(stops) > _STOPS or not all(isinstance(one, str) and one for one in stops):
        raise invalid(f"must be at most {_STOPS} strings, none of them empty", stop)
    most = next((limit for limit in limits if body.get(limit) is not None), limits[0])
    max_tokens = _number(body, most, 1, 2**53)
    if max_tokens is not None and max_tokens != int(max_tokens):
        raise invalid(f"must be a whole number, not {max_tokens}", most)
    return {
        "model": text(body, "model"),
        "tools": tuple(tools),
        "tool_choice": _tool_choice(body, tools),
        "stop": tuple(stops),
        "max_tokens": None if max_tokens is None else int(max_tokens),
        "temperature": _number(body, "temperature", 0, 2),
        "top_p": _number(body, "top_p", 0, 1),
        "stream": field(body, "stream", bool) or False,
    }


def rest(body: Mapping[str, Any], *read: str) -> dict[str, Any]:
    """Return the other settings of a body, without absent ones.

    Raises:
        GatewayError: one refers to something that is not kept here.
    """
    names = [name for name, value in body.items() if name not in read and value not in (None, "", [], {})]
    for name in names:
        if _REFERS.search(name) and body[name] is not False:
            raise invalid("refers to what is not kept here; send the whole chat without it", name)
    return {name: body[name] for name in names}


def unheard(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of settings that would have changed an answer."""
    for name, value in settings.items():
        neutral = value in (False, 0, "auto", "default", "none", "disabled", "text") and name not in (
            "seed",
            "truncation",
        )
        if name == "parallel_tool_calls":
            neutral = value is not False
        elif isinstance(value, dict):
            neutral = value.get("type") in ("text", "disabled")
        if name not in _QUIET and not neutral:
            yield name


def _number(body: Mapping[str, Any], key: str, least: int, most: int) -> float | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise invalid(f"must be a number from {least} to {most}, not {json.dumps(value)[:80]}", key)
    return float(value)


def _tool_choice(body: Mapping[str, Any], tools: list[dict[str, Any]]) -> str:
    """Return "auto", "none", "required" or the name of a function, from any dialect."""
    value = body.get("tool_choice")
    choice: dict[str, Any] = value if isinstance(value, dict) else {"type": value}
    kind = choice.get("type")
    if kind in (None, "auto", "none"):
        return kind or "auto"
    if kind in ("required", "any") and tools:
        return "required"
    forms = [tool.get("form") for tool in tools]
    if kind in ("function", "tool", "custom") or (kind in forms and isinstance(kind, str)):
        inner = field(choice, str(kind), dict, "tool_choice") or choice
        name = str(kind) if kind in forms and kind != "custom" else required(inner, "name", "tool_choice")
        if any(tool["function"]["name"] == name for tool in tools):
            return name
    raise invalid(
        f"{json.dumps(value)[:80]} cannot be met; ask for auto, none, or a call of functions that `tools` offers",
        "tool_choice",
    )


def compact(value: Any) -> str:
    """Encode JSON without spaces and without escaping characters."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    """Encode an event of a stream in ASCII, as some clients treat U+2028 as a line end."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
