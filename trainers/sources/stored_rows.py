"""Stored rows of answers, for learning from them: the shapes that TRL, axolotl and verl read."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rollenv.core.errors import MissingData, UsageError
from rollenv.core.pictures import MARK, Picture
from rollenv.envs.data.row_pictures import pictures_of
from rollenv.envs.data.rows import files_at, read_file, refuse_twins, split_of

logger = logging.getLogger(__name__)

Row = Mapping[str, Any]
Chat = list[dict[str, Any]]

#: Roles of other formats (ShareGPT's and older ones).
_ROLES = {
    "human": "user", "gpt": "assistant", "model": "assistant", "bot": "assistant", "developer": "system",
    "function": "tool", "observation": "tool", "tool_response": "tool",
}  # fmt: skip
_KNOWN = ("system", "user", "assistant", "tool")
_PAIR = ("user", "assistant")

#: Columns by which the shape of a row is recognised.
_SHAPES = (
    "messages; conversations (from, value); prompt and completion; instruction and output; "
    "chosen and rejected; or prompt, completion and label"
)


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One row: a chat to imitate, a preferred and a rejected one, or one with a label."""

    where: str
    """File and row, for errors."""
    chats: tuple[Chat, ...]
    rewards: tuple[float, ...]
    """Of each chat: 1 for one to imitate or desire, the margin (1 unless given) for one to prefer, else 0."""
    margin: float = 0.0
    """Difference of scores that a pair has to have, if the row says it."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    kind: Literal["answers", "pair", "label"] = "answers"
    images: tuple[Picture, ...] = ()
    """The pictures of each chat, in the order of their places."""


def read_stored_rows(path: Path, unusable: Callable[[UsageError], None]) -> Iterator[StoredRow]:
    """Yield the rows of a file or folder (.jsonl, .jsonl.gz, .parquet, .csv) without test and validation files.

    Args:
        unusable: gets the error of a row that has none of the known shapes, with file and row.

    Raises:
        UsageError: a file cannot be read, or two of a folder seem to hold the same rows.
    """
    files = [file for file in files_at(path) if not path.is_dir() or split_of(file) in (None, "train")]
    refuse_twins(files)
    if path.is_dir() and (others := sorted({p.name for p in path.iterdir() if p.is_file()} - {f.name for f in files})):
        logger.warning("%s: not read are %s", path, ", ".join(others[:10]))
    for file in files:
        for number, row in enumerate(read_file(file), 1):
            row = _without_nulls(row) if file.suffix == ".parquet" else row
            try:
                found = stored_row(row, f"{file.name}, row {number}", file.parent)
            except UsageError as error:
                unusable(error)
            else:
                yield found


def _without_nulls(value: Any) -> Any:
    """Return data without the keys that Arrow fills with null, as all objects of a column have the keys of all."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list | tuple) else value


def stored_row(row: Row, where: str, folder: Path | None = None) -> StoredRow:
    """Convert a row.

    Args:
        folder: paths of pictures are relative to it.

    Raises:
        UsageError: it has none of the known shapes, or a picture cannot be read.
    """
    try:
        images = tuple(pictures_of(row.get("images") or row.get("image"), folder))
        tools = [] if row.get("tools") in (None, "") else _json(row["tools"])
        if not isinstance(tools, list):
            raise UsageError("tools has to be a list of schemas")
        for tool in tools:
            function = tool.get("function", tool) if isinstance(tool, Mapping) else None
            if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
                raise UsageError(f"a tool is a schema with the function's name, not {tool!r:.60}")
        schemas = [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]
        chats, rewards = _chats(row)
        chats = tuple(_with_pictures(chat, images) for chat in chats) if images else chats
        margin = rewards[0] if _kind(row) == "pair" and row.get("margin") not in (None, "") else 0.0
        return StoredRow(where, chats, rewards, margin, schemas, _kind(row), images)
    except (UsageError, MissingData) as error:
        raise UsageError(f"{where}: {error}") from None


def _with_pictures(chat: Chat, images: Sequence[Picture]) -> Chat:
    """Return a chat whose places of pictures, ``<image>`` in texts or parts of the type image, name them by hash."""
    rest = iter(images)
    filled, places = Chat(), 0
    for message in chat:
        parts = message.get("content")
        if message["role"] != "assistant" and isinstance(parts, str) and MARK in parts:
            texts = [{"type": "text", "text": text} for text in parts.split(MARK)]
            parts = [part for text in texts for part in (text, {"type": "image"})][:-1]
        if isinstance(parts, list):
            parts = [dict(part) if isinstance(part, Mapping) else part for part in parts]
            for part in parts:
                if isinstance(part, dict) and part.get("type") == "image":
                    places += 1
                    part["sha256"] = getattr(next(rest, None), "sha256", "")
        filled.append({**message, "content": parts})
    if places != len(images):
        raise UsageError(f"it has {len(images)} pictures for {places} places (<image>, or parts of the type image)")
    return filled


def _kind(row: Row) -> Literal["answers", "pair", "label"]:
    if row.get("chosen") is not None and row.get("rejected") is not None:
        return "pair"
    return "label" if row.get("label") is not None and row.get("completion") is not None else "answers"


def _chats(row: Row) -> tuple[tuple[Chat, ...], tuple[float, ...]]:
    kind = _kind(row)
    if kind == "pair":
        asked = _asked(row)
        pair = tuple(_with_answer(asked, row[name]) for name in ("chosen", "rejected"))
        if pair[0] == pair[1]:
            raise UsageError("chosen and rejected are equal: there is nothing to prefer")
        same = next(i for i, (a, b) in enumerate(itertools.zip_longest(*pair)) if a != b)
        return tuple([*_read_only(chat[:same]), *chat[same:]] for chat in pair), (_margin(row), 0.0)
    if kind == "label":
        words = {"true": 1.0, "1": 1.0, "1.0": 1.0, "false": 0.0, "0": 0.0, "0.0": 0.0}  # CSV has texts
        label = words.get(str(row["label"]).lower())
        if label is None:
            raise UsageError(f"label is true or false, not {row['label']!r:.40}")
        return (_with_answer(_asked(row), row["completion"]),), (label,)
    for name in ("messages", "conversations", "conversation"):
        if row.get(name) is not None:
            return (_answered([*_system(row), *_messages(row[name])]),), (1.0,)
    if row.get("completion") is not None:
        return (_with_answer(_asked(row), row["completion"]),), (1.0,)
    if isinstance(row.get("output"), str) and isinstance(row.get("instruction"), str):
        more = row.get("input") or row.get("query") or ""
        if not isinstance(more, str):
            raise UsageError(f"input is a text, not {more!r:.40}")
        asked = [{"role": "user", "content": "\n\n".join(filter(None, (row["instruction"], more)))}]
        return ([*_system(row), *_history(row), *_with_answer(asked, row["output"])],), (1.0,)
    empty = [str(name) for name, value in row.items() if value is None]
    lacking = f" ({', '.join(empty)}: null)" if empty else ""
    raise UsageError(f"its columns are {', '.join(map(str, row)) or 'none'}{lacking}; known shapes are {_SHAPES}")


def _system(row: Row) -> Chat:
    return [{"role": "system", "content": str(row["system"])}] if row.get("system") else []


def _asked(row: Row) -> Chat:
    """Return the messages before an answer: the columns ``system`` and ``prompt``."""
    system, asked = _system(row), _part(row.get("prompt"), "user") or []
    return asked if asked[:1] == system else [*system, *asked]


def _history(row: Row) -> Chat:
    """Return the earlier questions and answers of LLaMA-Factory's Alpaca format."""
    history = _json(row.get("history") or [])
    if not isinstance(history, Sequence) or not all(
        isinstance(pair, Sequence) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
        for pair in history
    ):
        raise UsageError(f"history is a list of pairs of question and answer, not {history!r:.60}")
    return [{"role": role, "content": text} for pair in history for role, text in zip(_PAIR, pair, strict=True)]


def _margin(row: Row) -> float:
    """Return how much better the chosen answer is: the column ``margin``, or 1."""
    given = row.get("margin")
    try:
        margin = 1.0 if given in (None, "") else float(given)
    except (TypeError, ValueError):
        margin = math.nan
    if not 0 < margin < math.inf:
        raise UsageError(f"margin is a number above 0, not {given!r:.40}")
    return margin


def _read_only(chat: Chat) -> Chat:
    """Return messages whose answers are read, not learned."""
    return [{**message, "weight": 0} if message["role"] == "assistant" else message for message in chat]


def _part(value: Any, role: str) -> Chat | None:
    """Return a text or list of messages as messages; such a list may be JSON in a text, as other JSON is text."""
    if isinstance(value, str) and value.startswith("[{"):
        with contextlib.suppress(ValueError, RecursionError):
            listed = json.loads(value)
            value = listed if all({"role", "from"} & {*message} for message in listed) else value
    if value is None:
        return None
    return [{"role": role, "content": value}] if isinstance(value, str) else _messages(value)


def _with_answer(asked: Chat, answer: Any) -> Chat:
    """Return a prompt, whose answers are not learned, followed by its answer.

    The answer may be a whole chat that repeats the prompt, with other system messages before it.
    """
    said = _part(answer, "assistant")
    if not said:
        raise UsageError("an answer is empty")

    def without_system(chat: Chat) -> Chat:
        return [*itertools.dropwhile(lambda message: message["role"] == "system", chat)]

    prompt, rest = without_system(asked), without_system(said)
    system = asked[: len(asked) - len(prompt)]
    system += [message for message in said[: len(said) - len(rest)] if message not in system]
    if prompt and rest[: len(prompt)] == prompt:
        rest = rest[len(prompt) :]
    elif prompt and rest and rest[0]["role"] == "user" and prompt[-1]["role"] == "user":
        raise UsageError("its answer is a chat that asks something else than its prompt")
    return _answered([*system, *_read_only(prompt), *rest])


def _messages(value: Any) -> Chat:
    """Check messages, and convert those of ShareGPT's shape."""
    value = _json(value)
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise UsageError(f"messages have to be a list of messages, not {value!r:.60}")
    chat = []
    for number, message in enumerate(value, 1):
        if not isinstance(message, Mapping):
            raise UsageError(f"message {number} is no object but {message!r:.60}")
        plain = {key: each for key, each in message.items() if each is not None}
        role = plain.pop("role", None) or plain.pop("from", None)
        role = _ROLES.get(str(role), role)
        if role not in _KNOWN:
            raise UsageError(f"message {number} has the role {role!r}; roles are {', '.join(_KNOWN)}")
        if "value" in plain and "content" not in plain:
            plain["content"] = plain.pop("value")
        if isinstance(plain.get("tool_calls"), str):
            plain["tool_calls"] = _json(plain["tool_calls"])
        chat.append({"role": role, **plain})
    return chat


def _answered(chat: Chat) -> Chat:
    if not any(message["role"] == "assistant" for message in chat):
        raise UsageError("it has no answer: no message has the role assistant")
    return chat


def _json(value: Any) -> Any:
    """Return the value of JSON text, as which Parquet files hold nested columns."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"this is not JSON: {value[:60]!r} ({error})") from error
