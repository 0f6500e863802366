"""From a reply to an action of an OpenEnv server, by the JSON schema that the server gives."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from typing import Any

from rollenv.errors import UsageError
from rollenv.parsing import last_boxed, last_code_block, well_formed

_TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)}
_BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
#: Characters of choices that an agent is shown.
_LONGEST = 4000


class Form:
    r"""The form of actions.

    Where one field is required, or there is but one, the reply is that field: all of it for a text, the last
    ``\boxed{}`` for numbers and choices. Otherwise the reply has a JSON object, in a code block, in a box or alone.

    Args:
        schema: of actions; empty if it is not known.

    Raises:
        UsageError: there is no such field, or the schema is none.
    """

    def __init__(self, schema: Mapping[str, Any], field: str | None = None):
        try:
            self._take(schema, field)
            if self.asked and self.can_sample:
                self.sample(random.Random(0))
        except UsageError:
            raise
        except (TypeError, ValueError, AttributeError, LookupError, OverflowError, RecursionError) as error:
            raise UsageError(
                f"the server's form of actions is no JSON schema that can be read: {error!r:.100}"
            ) from error

    def _take(self, schema: Mapping[str, Any], field: str | None) -> None:
        parts = schema.get("properties") or {}
        known = {n: _resolved(each, schema) for n, each in parts.items() if n != "metadata"}
        required = [name for name in schema.get("required") or () if name in known]
        if field is not None and known and field not in known:
            raise UsageError(f"the server's actions have no field {field!r}; there are {', '.join(known)}")
        self.fields: dict[str, Mapping[str, Any]] = known
        self.required = required
        alone = required or list(known)
        self.only = field or (alone[0] if len(alone) == 1 else None)

    @property
    def _of_the_only(self) -> Mapping[str, Any]:
        return self.fields.get(self.only or "", {"type": "string"})

    @property
    def asked(self) -> str:
        """The form of a reply, for the agent; empty where any text is one."""
        return well_formed(self._asked())

    def _asked(self) -> str:
        if self.only is not None:
            told = _words(self._of_the_only)
            if _is_text(self._of_the_only):
                return "" if told == "text" else f"Your reply is {self.only}: {told}."
            return f"Reply with {self.only} in a box, as in \\boxed{{...}}: {told}."
        if not self.fields:
            return "Reply with a JSON object."
        optional = {name: "" if name in self.required else " (may be left out)" for name in self.fields}
        lines = [f"- {name}: {_words(each)}{optional[name]}" for name, each in self.fields.items()]
        return "Reply with a JSON object of these fields:\n" + "\n".join(lines)

    def read(self, reply: str) -> dict[str, Any]:
        """The action that a reply means.

        Raises:
            ValueError: it means none; the message says why.
        """
        if self.only is None:
            block = last_code_block(reply, None)
            found = _json(block if block is not None else _boxed(reply))
            if not isinstance(found, dict):
                raise ValueError("a JSON object is wanted")
            return found
        told = self._of_the_only
        if _is_text(told):
            return {self.only: well_formed(reply)}
        text = _boxed(reply)
        value = text if text in (told.get("enum") or ()) else _json(text)
        if not _fits(value, told):
            raise ValueError(f"{text!r:.60} is not {_words(told)}")
        return {self.only: value}

    @property
    def can_sample(self) -> bool:
        """True if the form bounds actions."""
        wanted = [self.only] if self.only else self.required
        return bool(wanted) and all(_bounded(self.fields.get(name or "", {})) for name in wanted)

    def sample(self, rng: random.Random) -> str:
        """A reply that means a random action."""
        if self.only is not None:
            value = _drawn(self._of_the_only, rng)
            return f"\\boxed{{{value if isinstance(value, str) else json.dumps(value)}}}"
        return json.dumps({name: _drawn(self.fields[name], rng) for name in self.required})


def _resolved(schema: Any, whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a field; one that is named elsewhere is looked up, and one that may be null is as if it may not."""
    if not isinstance(schema, Mapping):
        return {}
    if isinstance(ref := schema.get("$ref"), str):
        named = (whole.get("$defs") or {}).get(ref.rpartition("/")[2]) or {}
        return {**named, **{key: value for key, value in schema.items() if key != "$ref"}}
    for several in ("anyOf", "oneOf", "allOf"):
        options = schema.get(several) or ()
        some = [_resolved(each, whole) for each in options if isinstance(each, Mapping) and each.get("type") != "null"]
        if len(some) == 1:
            return {**some[0], **{key: value for key, value in schema.items() if key != several}}
    if isinstance(schema.get("type"), list):
        kinds = [kind for kind in schema["type"] if kind != "null"]
        return {**schema, "type": kinds[0] if len(kinds) == 1 else kinds}
    if "const" in schema:
        return {**schema, "enum": [schema["const"]]}
    return schema


def _is_text(told: Mapping[str, Any]) -> bool:
    several = any(name in told for name in ("anyOf", "oneOf", "allOf"))
    return told.get("type", "string") == "string" and not told.get("enum") and not several


def _words(told: Mapping[str, Any]) -> str:
    if told.get("enum"):
        kind = f"one of {', '.join(map(str, told['enum'])):.{_LONGEST}}"
    elif _is_text(told):
        kind = "text"
    else:
        kind = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}.get(
            str(told.get("type")), "a JSON value"
        )
        bounds = [f"{word} {told[key]}" for key, word in _BOUNDS.items() if key in told]
        kind = " ".join([kind, *bounds])
    description = " ".join(str(told.get("description") or "").split())
    return kind if kind == "text" and not description else f"{kind} ({description})" if description else kind


def _fits(value: Any, told: Mapping[str, Any]) -> bool:
    if told.get("enum"):
        return value in told["enum"]
    kinds = _TYPES.get(str(told.get("type")))
    if kinds is None:
        return True
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _bounded(told: Mapping[str, Any]) -> bool:
    has_range = told.get("type") == "integer" and "minimum" in told and "maximum" in told
    return bool(told.get("enum")) or told.get("type") == "boolean" or has_range


def _drawn(told: Mapping[str, Any], rng: random.Random) -> Any:
    if told.get("enum"):
        return rng.choice(list(told["enum"]))
    if told.get("type") == "boolean":
        return rng.random() < 0.5
    return rng.randint(math.ceil(told["minimum"]), math.floor(told["maximum"]))


def _boxed(reply: str) -> str:
    boxed = last_boxed(reply)
    return well_formed((reply if boxed is None else boxed).strip())


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text!r:.60} cannot be read: {error!s:.80}") from None
