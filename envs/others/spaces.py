r"""Actions of Gymnasium's spaces as text, and back.

Numbers, lists and JSON objects stand in the last ``\boxed{}``, or are the whole reply. A text is the reply's last code
block, or its last box, or all of it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rollenv.errors import UsageError
from rollenv.parsing import last_boxed, last_code_block, well_formed

#: Spaces whose actions are a JSON value.
_OF_NUMBERS = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)
_NESTED = (spaces.Dict, spaces.Tuple)
_WITHOUT_TEXT = (spaces.Graph, spaces.Sequence, spaces.OneOf)

#: The names of discrete actions, by number.
Names = Mapping[int, str]


def is_text(space: gymnasium.Space[Any]) -> bool:
    """Return whether actions are texts. Those of spaces that are not Gymnasium's are taken for texts."""
    return not isinstance(space, (*_OF_NUMBERS, *_NESTED))


def check(space: gymnasium.Space[Any], env_id: str) -> None:
    """Refuse a space whose actions cannot be written.

    Raises:
        UsageError: if they cannot.
    """
    if not isinstance(space, gymnasium.Space):
        raise UsageError(f"{env_id}: its action_space is {space!r:.60}, which is no space of Gymnasium's")
    if isinstance(space, _WITHOUT_TEXT):
        raise UsageError(f"{env_id}: actions of {type(space).__name__} spaces cannot be written as text")
    if isinstance(space, spaces.Dict) and not all(isinstance(name, str) for name in space.spaces):
        raise UsageError(f"{env_id}: actions of a Dict space whose names are no texts cannot be written as text")
    for inner in _inner(space):
        check(inner, env_id)


def _inner(space: gymnasium.Space[Any]) -> Sequence[gymnasium.Space[Any]]:
    if isinstance(space, spaces.Dict):
        return list(space.spaces.values())
    return list(space.spaces) if isinstance(space, spaces.Tuple) else []


def found(reply: str, space: gymnasium.Space[Any]) -> str:
    """The part of a reply that is the action."""
    if is_text(space) and (block := last_code_block(reply, None)) is not None:
        return well_formed(block.strip())
    boxed = last_boxed(reply)
    return well_formed((reply if boxed is None else boxed).strip())


def read(text: str, space: gymnasium.Space[Any], names: Names | None = None) -> Any:
    """The action that a text means.

    Args:
        text: as :func:`found` returns it.

    Returns:
        A member of the space.

    Raises:
        ValueError: it means none; the message says why.
    """
    value: Any = text
    if isinstance(space, spaces.Discrete):
        value = next((n for n, name in (names or {}).items() if name.lower() == text.lower()), text)
        value = _whole(value) if isinstance(value, str) else value
    elif isinstance(space, _NESTED):
        value = _json(text)
    elif isinstance(space, _OF_NUMBERS):
        value = _json(text) if text.startswith("[") else [_json(each) for each in re.split(r"[\s,]+", text)]
    action = _member(value, space)
    if not space.contains(action):
        raise ValueError(f"{text:.60} is not among {form(space, names)}")
    return action


def _member(value: Any, space: gymnasium.Space[Any]) -> Any:
    """JSON data as the space has it."""
    if isinstance(space, spaces.Discrete):
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{value!r:.60} is not a whole number")
        least, most = np.iinfo(space.dtype).min, np.iinfo(space.dtype).max
        return space.dtype.type(value) if least <= value <= most else value
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or set(value) != set(space.spaces):
            raise ValueError(f"a JSON object with {', '.join(space.spaces)} is wanted")
        return {name: _member(value[name], inner) for name, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, list) or len(value) != len(space.spaces):
            raise ValueError(f"a JSON list of {len(space.spaces)} is wanted")
        return tuple(_member(each, inner) for each, inner in zip(value, space.spaces, strict=True))
    if isinstance(space, _OF_NUMBERS):
        return _array(value, space)
    if not isinstance(value, str):
        raise ValueError("a text is wanted")
    return value


def _array(value: Any, space: Any) -> Any:
    flat = _flat(value)
    whole = space.dtype.kind not in "f"
    flags = space.dtype.kind == "b"
    if not all(isinstance(n, int if whole else int | float) and (flags or not isinstance(n, bool)) for n in flat):
        raise ValueError(f"a list of {'whole ' if whole else ''}numbers is wanted")
    if len(flat) != math.prod(space.shape):
        raise ValueError(f"{math.prod(space.shape)} numbers are wanted, not {len(flat)}")
    try:
        array = np.array(flat, dtype=np.int64 if whole else np.float64)
    except OverflowError:
        raise ValueError("a number is too large") from None
    if not np.isfinite(array).all():
        raise ValueError("a number is not finite")
    with np.errstate(over="ignore"):
        cast = array.astype(space.dtype)
    if (cast != array if whole else np.isinf(cast)).any():
        raise ValueError("a number is out of its range")
    return cast.reshape(space.shape)


def _flat(value: Any) -> list[Any]:
    return [n for each in value for n in _flat(each)] if isinstance(value, list) else [value]


def _whole(text: str) -> int:
    if not re.fullmatch(r"[-+]?\d{1,18}", text):
        raise ValueError(f"{text!r:.60} is not one of the actions")
    return int(text)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text!r:.60} cannot be read: {error!s:.80}") from None


def write(action: Any, space: gymnasium.Space[Any], names: Names | None = None) -> str:
    """A reply that means an action.

    Args:
        action: a member of the space.
    """
    if is_text(space):
        return f"```\n{action}\n```"
    return f"\\boxed{{{_written(action, space, names)}}}"


def _written(action: Any, space: gymnasium.Space[Any], names: Names | None) -> str:
    if isinstance(space, spaces.Discrete):
        return (names or {}).get(int(action), str(int(action)))
    return json.dumps(_data(action, space))


def _data(action: Any, space: gymnasium.Space[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _data(action[name], inner) for name, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return [_data(each, inner) for each, inner in zip(action, space.spaces, strict=True)]
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":  # the shortest that is read as the same number
        return _nested([float(str(n)) for n in np.ravel(action)], space.shape)
    return action.tolist() if hasattr(action, "tolist") else action


def _nested(flat: list[float], shape: tuple[int, ...]) -> Any:
    return np.array(flat, dtype=np.float64).reshape(shape).tolist()


def form(space: gymnasium.Space[Any], names: Names | None = None) -> str:
    """Return the form of actions, in words."""
    if isinstance(space, spaces.Discrete):
        if names:
            return ", ".join(names.values())
        return f"the whole numbers from {int(space.start)} to {int(space.start + space.n - 1)}"
    if isinstance(space, spaces.MultiDiscrete):
        return f"lists of whole numbers below {json.dumps((space.start + space.nvec).tolist())}, from {_low(space)}"
    if isinstance(space, spaces.MultiBinary):
        return f"lists of {math.prod(space.shape)} numbers, each 0 or 1"
    if isinstance(space, spaces.Box):
        shape = f" (in the shape {list(space.shape)})" if len(space.shape) > 1 else ""
        return f"lists of {math.prod(space.shape)} numbers{shape}, each {_range(space)}"
    if isinstance(space, spaces.Dict):
        return "JSON objects with " + "; ".join(f"{name}: {form(inner)}" for name, inner in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return "JSON lists of " + "; ".join(map(form, space.spaces))
    if isinstance(space, spaces.Text):
        return f"texts of {space.min_length} to {space.max_length} of the characters {space.characters!r:.300}"
    return "texts"


def _low(space: spaces.MultiDiscrete) -> str:
    return json.dumps(space.start.tolist()) if np.any(space.start) else "0"


def _range(space: spaces.Box) -> str:
    low, high = np.unique(space.low), np.unique(space.high)
    if len(low) == 1 and len(high) == 1:
        return f"from {low[0]:g} to {high[0]:g}"
    return f"at least {space.low.ravel().tolist()} and at most {space.high.ravel().tolist()}"
