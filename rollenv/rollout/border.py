"""The border: every value that an environment or an agent hands over is checked here, once, by type, size and
finiteness. What is wrong is an error of its episode; what is right is plain Python afterwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rollenv.agents.base import Action
from rollenv.core import RollenvError

#: Characters of one observation, action, state's name or drawing.
LARGEST_TEXT = 1 << 24

#: Of a reward, so that sums of them stay finite.
LARGEST_NUMBER = 1e100

_LARGEST_ID = (1 << 31) - 1
_FINISHES = ("stop", "length")


class BadValue(RollenvError):
    """A value is not what it has to be; the text says what it is of, its kind, and what was wanted."""


def kind(value: Any) -> str:
    """The type of a value, for people."""
    return "None" if value is None else type(value).__name__


def text(value: Any, what: str) -> str:
    """A text of bearable length, as an exact ``str``."""
    if type(value) is not str:
        if not isinstance(value, str):
            raise BadValue(f"{what} is a str, not {kind(value)}")
        value = "".join((value,))
    if len(value) > LARGEST_TEXT:
        raise BadValue(f"{what} has {len(value)} characters; at most {LARGEST_TEXT} are taken")
    return value  # type: ignore[no-any-return]


def number(value: Any, what: str) -> float:
    """A finite number. Scalars of NumPy are converted; arrays are none."""
    if type(value) is not float:
        if not isinstance(value, int | float | np.number | np.bool_):
            raise BadValue(f"{what} is a number, not {kind(value)}")
        try:
            value = float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadValue(f"{what} is a finite number, not this {kind(value)}: {error}") from None
    if not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:
        raise BadValue(f"{what} is a finite number of at most {LARGEST_NUMBER:g}, not {value!r}")
    return value  # type: ignore[no-any-return]


def flag(value: Any, what: str) -> bool:
    """True or False, of Python or NumPy."""
    if value is True or value is False:
        return value
    if not isinstance(value, np.bool_):
        raise BadValue(f"{what} is a bool, not {kind(value)}")
    return bool(value)


def info(value: Any) -> dict[str, Any]:
    """A dictionary whose keys that mean something to rollenv hold what they have to."""
    if not isinstance(value, dict):
        raise BadValue(f"info is a dict, not {kind(value)}")
    checked: dict[str, Any] = value if type(value) is dict else dict(value)
    for name in ("prefix", "suffix"):
        if name in checked:
            text(checked[name], f"info[{name!r}]")
    if checked.get("success") is not None:
        number(checked["success"], "info['success']")
    return checked


def parts(value: Any, n: int, what: str) -> Sequence[Any]:
    """A tuple of ``n`` values."""
    if not isinstance(value, tuple | list) or len(value) != n:
        size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
        raise BadValue(f"{what} is a tuple of {n} values, not {kind(value)}{size}")
    return value


def action(value: Any) -> Action:
    """An action with its tokens, if it has any."""
    if not isinstance(value, Action):
        raise BadValue(f"an answer is an Action, not {kind(value)}")
    value.text = text(value.text, "an action's text")
    if value.finish not in _FINISHES:
        raise BadValue(f"an action's finish is one of {_FINISHES}, not {value.finish!r:.40}")
    if type(value.policy_version) is not int:
        (value.policy_version,) = _integers((value.policy_version,), "an action's policy_version")
    if value.prompt_ids or value.response_ids or value.logprobs or value.versions:
        _tokens(value)
    return value


def _tokens(value: Action) -> None:
    value.prompt_ids = _integers(value.prompt_ids, "prompt_ids")
    value.response_ids = _integers(value.response_ids, "response_ids")
    value.versions = _integers(value.versions, "versions")
    value.logprobs = _numbers(value.logprobs, "logprobs")
    n = len(value.response_ids)
    for name in ("logprobs", "versions"):
        if len(getattr(value, name)) not in (0, n):
            raise BadValue(f"{name} has {len(getattr(value, name))} values for {n} response tokens")


def _integers(values: Any, what: str) -> tuple[int, ...]:
    """Whole numbers from 0 on that fit 32 bits."""
    found = _sequence(values, what)
    if not found:
        return ()
    if set(map(type, found)) != {int}:
        for value in found:
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise BadValue(f"{what} holds whole numbers, not {kind(value)}")
        found = tuple(map(int, found))
    if min(found) < 0 or max(found) > _LARGEST_ID:
        raise BadValue(f"{what} holds numbers from 0 to {_LARGEST_ID}, not {min(found)} to {max(found)}")
    return found


def _numbers(values: Any, what: str) -> tuple[float, ...]:
    found = _sequence(values, what)
    if set(map(type, found)) <= {float} and all(map(math.isfinite, found)):
        return found
    return tuple(number(value, f"every value of {what}") for value in found)


def _sequence(values: Any, what: str) -> tuple[Any, ...]:
    if type(values) is tuple:
        return values
    if not isinstance(values, tuple | list):
        raise BadValue(f"{what} is a tuple, not {kind(values)}")
    return tuple(values)
