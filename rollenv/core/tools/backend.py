"""A backend: one definition of state and functions for an environment, an MCP server and an oracle."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import marshal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ValidationError

from rollenv.core.errors import did_you_mean
from rollenv.core.pictures import Picture
from rollenv.core.tools.function import argument_model, function_schema, shown_result

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Maximum bytes of JSON of a call's arguments.
MOST_ARGUMENTS = 100_000
#: Maximum nesting of lists and objects in arguments, which are copied and compared recursively.
_DEEPEST = 50
#: Maximum absolute value of integers in arguments, so that sums can always be written.
_LARGEST = 10**18


class ToolError(Exception):
    """An invalid call; the message is for the agent."""


class _TextAnswer(NamedTuple):
    text: str
    failed: bool = False


class Answer(_TextAnswer):
    """The result of a call: (text, failed)."""

    images: Sequence[Picture] = ()
    """Pictures, which have bound marks in the text (:mod:`rollenv.core.picture_forms`)."""


class Change(NamedTuple):
    """One difference between two states."""

    path: tuple[str, ...]
    """Keys from the outermost to the innermost, such as ``("orders", "17", "status")``."""
    before: Any
    """Old value; :data:`ABSENT` if there was none."""
    after: Any
    """New value; :data:`ABSENT` if it was removed."""

    def __str__(self) -> str:
        where = "/".join(self.path)
        if self.before is ABSENT:
            return f"+ {where} = {_brief(self.after)}"
        if self.after is ABSENT:
            return f"- {where} = {_brief(self.before)}"
        return f"~ {where}: {_brief(self.before)} -> {_brief(self.after)}"


class _Absent:
    def __repr__(self) -> str:
        return "absent"


#: Marks a missing value.
ABSENT = _Absent()


@dataclass(frozen=True)
class Function:
    """A function that an agent may call."""

    name: str
    method: str
    model: type[BaseModel]
    schema: Mapping[str, Any]
    """Schema in the form of OpenAI's ``tools`` parameter."""


def tool(function: _Function) -> _Function:
    """Mark a method of a :class:`Backend` as a function that agents may call.

    Its type hints and the first paragraph of its docstring become the schema; ``Args:`` lines describe arguments.
    """
    function.__tool__ = True  # type: ignore[attr-defined]
    return function


class Backend:
    """A world that changes only through its functions.

    A subclass marks methods with :func:`tool` and keeps all that changes in :attr:`state`: plain JSON data, so that it
    can be copied, compared and sent. A function raises :class:`ToolError` for what the agent did wrong; whatever a
    failed call has changed is taken back.
    """

    def __init__(self, state: dict[str, Any] | None = None):
        self.state: dict[str, Any] = {} if state is None else state

    @classmethod
    @functools.cache
    def functions(cls) -> Mapping[str, Function]:
        """Return the functions by name."""
        marked = [name for name, member in inspect.getmembers(cls) if getattr(member, "__tool__", False)]
        models = {name: argument_model(getattr(cls, name)) for name in marked}
        return {
            name: Function(name, name, model, function_schema(getattr(cls, name), model))
            for name, model in models.items()
        }

    def schemas(self, names: Collection[str] | None = None) -> list[dict[str, Any]]:
        """The functions, or those of some names, in the form of OpenAI's ``tools`` parameter."""
        known = self.functions()
        return [dict(known[name].schema) for name in known if names is None or name in names]

    def call(self, name: str, arguments: Mapping[str, Any], names: Collection[str] | None = None) -> Answer:
        """Carry out a call. Mistakes of the agent never raise."""
        function = self.functions().get(name) if names is None or name in names else None
        if function is None:
            offered = [known for known in self.functions() if names is None or known in names]
            return Answer(unknown(name, offered), failed=True)
        if wrong := not_arguments(name, arguments):
            return Answer(wrong, failed=True)
        try:
            given = function.model.model_validate(arguments)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:10])
            return Answer(f"error: {name}: {problems[:2000]}", failed=True)
        before = self.snapshot()
        try:
            result = getattr(self, function.method)(**{key: getattr(given, key) for key in type(given).model_fields})
            text, images = shown_result(result)
            answer = Answer(text)
            answer.images = images
            return answer
        except ToolError as error:
            self.restore(before)
            return Answer(f"error: {str(error)[:2000]}", failed=True)
        except Exception as error:
            self.restore(before)
            return Answer(f"error: {name} failed: {type(error).__name__}: {str(error)[:500]}", failed=True)

    # -- state ---------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Any:
        """Return the state for :meth:`restore`, which can use it many times."""
        return marshal.dumps(self.state)

    def restore(self, snapshot: Any) -> None:
        """Restore a snapshot of the same kind of backend."""
        self.state = marshal.loads(snapshot)

    def data(self) -> dict[str, Any]:
        """Return the whole state as readable JSON data, for comparisons."""
        return self.state

    def load(self, data: dict[str, Any]) -> None:
        """Load the result of :meth:`data` of the same kind of backend."""
        self.state = marshal.loads(marshal.dumps(data))

    def pack(self) -> Any:
        """Return the state as JSON data for storage: by default all of it; large backends return the changes only."""
        return marshal.loads(marshal.dumps(self.data()))

    def unpack(self, packed: Any) -> None:
        """Load the result of :meth:`pack` of the same kind of backend."""
        self.load(packed)

    def digest(self) -> str:
        """Return a hash of the state; equal states have equal hashes."""
        canonical = json.dumps(self.data(), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(canonical.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.twin()

    def twin(self) -> Self:
        """Return a copy that shares no mutable state."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.restore(self.snapshot())
        return other


def unknown(name: str, known: Collection[str]) -> str:
    """Return the error text for a call of a function that does not exist."""
    hint = did_you_mean(name[:100], known, f"there are {', '.join(known)}.")
    return f"error: there is no function {name[:100]!r}; {hint}"


def not_arguments(name: str, arguments: Mapping[str, Any]) -> str:
    """Return the reason why the arguments are invalid; empty if they are valid."""
    try:
        size = len(json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        return f"error: the arguments of {name} are not JSON: {str(error)[:200]}"
    if size > MOST_ARGUMENTS:
        return f"error: the arguments of {name} are too long: {size} bytes of JSON"
    level: list[Any] = [arguments]
    for _ in range(_DEEPEST):
        level = [each for value in level for each in (value.values() if isinstance(value, Mapping) else value)]
        if any(isinstance(each, int) and abs(each) > _LARGEST for each in level):
            return f"error: the arguments of {name} have a whole number above {_LARGEST:g}"
        level = [each for each in level if isinstance(each, Mapping | list | tuple)]
    return f"error: the arguments of {name} are nested deeper than {_DEEPEST} levels" if level else ""


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Return the differences of two states: dicts are compared key by key, everything else as a whole."""
    return list(_differences((), before, after))


def _differences(path: tuple[str, ...], before: Any, after: Any) -> Iterator[Change]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        if before == after:
            return
        for key in [*before, *(key for key in after if key not in before)]:
            yield from _differences((*path, str(key)), before.get(key, ABSENT), after.get(key, ABSENT))
    elif before is ABSENT or after is ABSENT or type(before) is not type(after) or before != after:
        yield Change(path, before, after)


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 300 else f"{text[:280]}... ({len(text)} characters)"
