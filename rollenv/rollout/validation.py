"""Validation of values that environments and agents return: type, size and finiteness, not for ``make_vec``.

A wrong value is a :class:`BadValue` that names it by ``what``; a valid one is converted to plain Python. That of an
environment fails its episode after replays (``Episode._call_env``), that of an agent or a reward at once; that
of a group's reward or a recipe's own function ends the run, since it would fail every episode.
"""

from __future__ import annotations

import json
import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rollenv.agents.base import Action
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.pictures import Picture, is_picture_token, picture, pictures

#: Maximum characters of one observation, action, state key or drawing.
LARGEST_TEXT = 1 << 24

#: The largest reward of an environment, an agent or a reward function: a turn's sum stays below the trainer's 1e100.
LARGEST_NUMBER = 1e99

#: Maximum bytes of plain data.
LARGEST_DATA = 1 << 26

_SMALL, _USUAL = frozenset({float, bool, type(None)}), 1 << 64

#: Bytes that each list or mapping counts in addition to its values.
_CONTAINER = 256
_CONTAINERS = (list, tuple, set, frozenset, deque)

_LARGEST_ID = (1 << 31) - 1
_PROMPTS = ("prompt_ids", "next_prompt")
_FINISHES = ("stop", "length", "unfinished")

#: Maximum numbers that an environment or an agent may report for an episode.
_MOST_METRICS = 100

_MOST_PLAYERS = 1000

_NUMBERS: tuple[type[Any], ...] = (float, int, np.integer, np.floating, np.bool_)


class BadValue(RollenvError):
    """A value has the wrong type or range; the text names it, its type and the expected type."""


def kind(value: Any) -> str:
    """Name the type of a value for an error text."""
    return "None" if value is None else type(value).__name__


def text(value: Any, what: str) -> str:
    """Check a text (length, no lone surrogates) and convert it to an exact ``str``."""
    if type(value) is not str:
        if not isinstance(value, str):
            raise BadValue(f"{what} must be a str, not {kind(value)}")
        value = "".join((value,))
    if len(value) > LARGEST_TEXT:
        raise BadValue(f"{what} has {len(value)} characters; at most {LARGEST_TEXT} are allowed")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise BadValue(f"{what} has a lone surrogate at {error.start}, which is not valid text") from None
    return value  # type: ignore[no-any-return]


def number(value: Any, what: str) -> float:
    """Check a number of Python or NumPy and convert it to a finite ``float``."""
    if type(value) is not float:
        if isinstance(value, np.timedelta64) or not isinstance(value, _NUMBERS):
            raise BadValue(f"{what} must be a number, not {kind(value)}")
        try:
            value = float(value)
        except OverflowError:
            raise BadValue(f"{what} must be a finite number, not an int of {int.bit_length(value)} bits") from None
    if not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:  # NaN is in no range
        raise BadValue(f"{what} must be a finite number of at most {LARGEST_NUMBER:g}, not {value!r}")
    return value  # type: ignore[no-any-return]


def flag(value: Any, what: str) -> bool:
    """Check a boolean of Python or NumPy."""
    if value is True or value is False:
        return value
    if not isinstance(value, np.bool_):
        raise BadValue(f"{what} must be a bool, not {kind(value)}")
    return bool(value)


def info(value: Any) -> dict[str, Any]:
    """Check an info dictionary: the keys that rollenv reads must have the right types."""
    if not isinstance(value, dict):
        raise BadValue(f"info must be a dict, not {kind(value)}")
    checked: dict[str, Any] = dict(value)
    for name in ("prefix", "suffix"):
        if name in checked:
            checked[name] = text(checked[name], f"info[{name!r}]")
    if "players" in checked:
        _check_seats(checked)
    elif checked.get("success") is not None:
        checked["success"] = _success(checked["success"])
    for name in ("actions", "tool_responses"):
        if name in checked:
            checked[name] = [text(each, f"every value of info[{name!r}]") for each in _list(checked, name)]
    if "images" in checked:
        try:
            checked["images"] = pictures(checked)
        except UsageError as error:
            raise BadValue(str(error)) from error
    if "metrics" in checked:
        checked["metrics"] = numbers(checked["metrics"], "info['metrics']")
    return checked


def _success(value: Any) -> bool:
    if type(value) is bool:
        return value
    if number(value, "info['success']") not in (0.0, 1.0):
        raise BadValue(f"info['success'] must be True or False, not {value!r}; put a score into the reward")
    return bool(value)


def _check_seats(info: dict[str, Any]) -> None:
    """Check what an environment of several players reports: numbers and texts by player, and who is next."""
    info["players"] = players = non_negative_int(info["players"], "info['players']")
    if players > _MOST_PLAYERS:
        raise BadValue(f"info['players'] is {players}; at most {_MOST_PLAYERS} can play")
    checks: dict[str, Callable[[Any], Any]] = {
        "rewards": lambda value: number(value, "every value of info['rewards']"),
        "success": _success,
        "roles": lambda value: text(value, "every value of info['roles']"),
        "observations": lambda value: text(value, "every value of info['observations']"),
    }
    for name, check in checks.items():
        if name in info:
            info[name] = [check(each) for each in _list(info, name)]
            if len(info[name]) != players:
                raise BadValue(f"info[{name!r}] must have a value for each of the {players} players")
    if "forfeit" in info:
        info["forfeit"] = [number(each, "every value of info['forfeit']") for each in _list(info, "forfeit")]
        if len(info["forfeit"]) != 2:
            raise BadValue("info['forfeit'] must have two returns: of who forfeits, and of each other player")
    if "player" in info:
        info["player"] = non_negative_int(info["player"], "info['player']")
        if info["player"] >= players:
            raise BadValue(f"info['player'] must be from 0 to {players - 1}, not {info['player']}")


def _list(info: dict[str, Any], name: str) -> tuple[Any, ...]:
    value = info[name]
    return _sequence(value.tolist() if isinstance(value, np.ndarray) else value, f"info[{name!r}]")


def numbers(values: Any, what: str) -> dict[str, float]:
    """Check a mapping of names to finite numbers."""
    if not isinstance(values, Mapping):
        raise BadValue(f"{what} must be a dict of numbers, not {kind(values)}")
    if len(values) > _MOST_METRICS:
        raise BadValue(f"{what} has {len(values)} numbers; at most {_MOST_METRICS} are allowed")
    return {text(name, f"a name in {what}"): number(value, f"{what}[{name!r:.40}]") for name, value in values.items()}


def bounded(value: Any, what: str) -> None:
    """Check the size of plain data; a list that it contains a million times counts a million times."""
    left, rest = LARGEST_DATA, [(value,)]
    while rest:
        for each in rest.pop():
            kind_of = type(each)
            if kind_of in _SMALL or (kind_of is int and -_USUAL < each < _USUAL):
                continue
            left -= len(each) if kind_of is str else _size(each)
            if left < 0:
                raise BadValue(f"{what} is too large: it has more than {LARGEST_DATA >> 20} MiB")
            if kind_of is str:
                continue
            if isinstance(each, dict):
                rest += [each.values(), each]  # type: ignore[list-item]
            elif isinstance(each, _CONTAINERS):
                rest.append(each)  # type: ignore[arg-type]


def _size(value: Any) -> int:
    """Estimate the bytes of a value without its contents."""
    if isinstance(value, (dict, range, *_CONTAINERS)):
        return _CONTAINER + 8 * len(value)
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() >> 3
    if isinstance(value, Picture):
        return len(value.data) * 4 // 3 + _CONTAINER  # as base64
    return 8 * value.size if isinstance(value, np.ndarray) else 8


def parts(value: Any, n: int, what: str) -> Sequence[Any]:
    """Check that a value is a tuple of the right length."""
    if not isinstance(value, tuple | list):
        raise BadValue(f"{what} must be a tuple of {n} values, not {kind(value)}")
    if len(value) != n:
        raise BadValue(f"{what} must be a tuple of {n} values, not {kind(value)} of {len(value)}")
    return tuple(value)


def action(value: Any) -> Action:
    """Check what will be stored of an action, and return a copy that its agent cannot change."""
    if not isinstance(value, Action):
        raise BadValue(f"an answer must be an Action, as in Action(text), not {kind(value)}")
    finish = text(value.finish, "an action's finish")
    if finish not in _FINISHES:
        raise BadValue(f"an action's finish must be one of {_FINISHES}, not {finish[:40]!r}")
    checked = Action(
        text(value.text, "an action's text"),
        integers(value.prompt_ids, "prompt_ids"),
        integers(value.response_ids, "response_ids"),
        tuple(number(each, "every value of logprobs") for each in _sequence(value.logprobs, "logprobs")),
        non_negative_int(value.policy_version, "an action's policy_version"),
        integers(value.versions, "versions"),
        finish,
        text(value.raw, "an action's raw response"),
        _messages(value.messages),
        numbers(value.usage, "an action's usage"),
        number(value.reward, "an action's reward"),
        text(value.routes, "an action's routes"),
        tuple(map(picture, _sequence(value.images, "an action's images"))),
        tuple(map(action, _sequence(value.calls, "an action's calls"))),
        None if value.prompt is None else text(value.prompt, "an action's prompt"),
    )
    tokens = len(checked.response_ids)
    for name, n in (("logprobs", len(checked.logprobs)), ("versions", len(checked.versions))):
        if n not in (0, tokens):
            raise BadValue(f"{name} has {n} values for {tokens} response tokens")
    return checked


def _messages(values: Any) -> tuple[dict[str, Any], ...]:
    """Check messages and copy them, so that later changes do not reach the record."""
    messages = _sequence(values, "messages")
    if not all(isinstance(message, dict) for message in messages):
        raise BadValue("an action's messages are dicts with a role and a content")
    return tuple(json_copy(messages, "an action's messages")) if messages else ()


def json_copy(value: Any, what: str) -> Any:
    """Copy JSON data."""
    try:
        return json.loads(json.dumps(value)) if value else value
    except (TypeError, ValueError, RecursionError) as error:
        raise BadValue(f"{what}: not JSON data: {error}") from error


def integers(values: Any, what: str) -> tuple[int, ...]:
    """Check non-negative integers that fit 32 bits; in a prompt, some may be tokens of pictures."""
    try:
        items = tuple(map(operator.index, _sequence(values, what)))
    except TypeError as error:
        raise BadValue(f"{what} holds whole numbers: {error}") from None
    if items and not 0 <= min(items) <= max(items) <= _LARGEST_ID:
        if what in _PROMPTS and min(items) >= 0 and all(i <= _LARGEST_ID or is_picture_token(i) for i in items):
            return items
        raise BadValue(f"{what} holds a number that is not from 0 to {_LARGEST_ID}")
    return items


def non_negative_int(value: Any, what: str) -> int:
    """Check a non-negative integer that fits 32 bits."""
    return integers((value,), what)[0]


def _sequence(values: Any, what: str) -> tuple[Any, ...]:
    if not isinstance(values, tuple | list):
        raise BadValue(f"{what} must be a tuple, not {kind(values)}")
    return tuple(values)
