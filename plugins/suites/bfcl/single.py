"""BFCL's files, its single-turn categories, and its check of calls by the rules for Python."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollenv.core.env import StepResult
from rollenv.core.errors import UsageError
from rollenv.core.tools.backend import Backend
from rollenv.core.tools.calls import find_calls
from rollenv.envs.tools.base import Judgement, Problem, ToolEnv
from rollenv.plugins.suites.bfcl import SINGLE, need

Entry = Mapping[str, Any]

#: JSON schema types by the files' names for them; ``any`` has no type.
_SOURCE_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": ""}
#: Keys of a description that are copied besides the type.
_KEPT = ("description", "enum", "default", "minimum", "maximum", "required")


@functools.lru_cache(maxsize=32)
def _lines(path: Path) -> tuple[Entry, ...]:
    with open(path, encoding="utf-8") as lines:
        return tuple(json.loads(line) for line in lines if line.strip())


def entries(category: str) -> tuple[Entry, ...]:
    """Return the tasks of a category."""
    return _lines(need(category).found() / f"BFCL_v4_{category}.json")


@functools.lru_cache(maxsize=16)
def _answers(path: Path) -> Mapping[str, Sequence[Any]]:
    if path.exists():
        return {line["id"]: line["ground_truth"] for line in _lines(path)}
    return {}


def answers(category: str) -> Mapping[str, Sequence[Any]]:
    """Return the right answers by the id of the task; empty if no call is right."""
    return _answers(need(category).found() / "possible_answer" / f"BFCL_v4_{category}.json")


def documented(category: str, names: Iterable[str]) -> list[Entry]:
    """Return the functions in files of descriptions; of those with the same name, the last."""
    folder = need(category).found() / "multi_turn_func_doc"
    found = {about["name"]: about for name in names for about in _lines(folder / f"{name}.json")}
    return list(found.values())


def plain_name(name: str) -> str:
    """Return a name without dots, which endpoints do not accept."""
    return name.replace(".", "_")


def schema(function: Entry) -> dict[str, Any]:
    """Convert a description to the format of OpenAI's ``tools`` parameter."""
    about = {"name": plain_name(function["name"]), "description": function["description"]}
    return {"type": "function", "function": about | {"parameters": json_schema(function["parameters"])}}


def json_schema(about: Entry) -> dict[str, Any]:
    """Convert a description with types such as ``dict`` and ``float`` to a JSON schema."""
    kept = {key: about[key] for key in _KEPT if key in about}
    kind = _SOURCE_TYPES.get(about.get("type", ""), about.get("type", ""))
    found = ({"type": kind} if kind else {}) | kept
    if "properties" in about:
        found["properties"] = {name: json_schema(each) for name, each in about["properties"].items()}
    if isinstance(about.get("items"), Mapping):
        found["items"] = json_schema(about["items"])
    return found


class Described(Backend):
    """A backend with given schemas, in the format of OpenAI's ``tools`` parameter, which are shared."""

    def __init__(self, schemas: Sequence[Mapping[str, Any]], state: dict[str, Any] | None = None):
        super().__init__(state)
        self._schemas = schemas

    def schemas(self, names: Collection[str] | None = None) -> list[dict[str, Any]]:
        return [dict(each) for each in self._schemas if names is None or each["function"]["name"] in names]


#: A function's name and its arguments.
Call = tuple[str, Mapping[str, Any]]

_TYPES: Mapping[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}
_IGNORED = re.compile(r"[ ,./\-_*^]")


def check(functions: Sequence[Mapping[str, Any]], calls: Sequence[Call], answer: Sequence[Mapping[str, Any]]) -> str:
    """Return the error of calls; empty if they are right.

    The order is free: each call of the answer is matched with one of the remaining calls.

    Args:
        functions: the descriptions in BFCL's format.
        answer: for each call, the function's name and the possible values of each argument.
    """
    if len(calls) != len(answer):
        return f"there are {len(calls)} calls, not {len(answer)}"
    described = {about["name"]: about for about in functions}
    left = list(calls)
    for wanted in answer:
        ((name, possible),) = wanted.items()
        problems = []
        for at, call in enumerate(left):
            problem = _check_call(described[name], call, possible)
            if not problem:
                del left[at]
                break
            problems.append(problem)
        else:
            if len(problems) == 1:
                return problems[0]
            return f"no call fits {name}: {'; '.join(problems)[:2000]}"
    return ""


def _check_call(about: Mapping[str, Any], call: Call, possible: Mapping[str, Sequence[Any]]) -> str:
    name, arguments = call
    if name != about["name"]:
        return f"{name} is called, not {about['name']}"
    parameters = about["parameters"]
    for parameter in parameters["required"]:
        if parameter not in arguments:
            return f"{parameter} is missing"
    for parameter, value in arguments.items():
        if parameter not in parameters["properties"] or parameter not in possible:
            return f"{parameter} should not be given"
        try:
            right = _fits(parameters["properties"][parameter], value, possible[parameter])
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RecursionError):
            right = False  # a value of another shape than the answers
        if not right:
            return f"{parameter} is not right: {value!r}"[:300]
    left_out = [each for each in possible if each not in arguments and "" not in possible[each]]
    return f"{left_out[0]} is missing" if left_out else ""


def _fits(about: Mapping[str, Any], value: Any, possible: Sequence[Any]) -> bool:
    """Return whether a value has the right type and is one of the possible ones."""
    kind = about["type"]
    expected = _TYPES[kind]
    inner = _TYPES[about["items"]["type"]] if kind in ("array", "tuple") else None
    if kind == "tuple" and type(value) is tuple:
        value = list(value)
    if kind == "float" and type(value) is int:
        value = float(value)
    if not _has_type(value, possible, expected, inner):
        return False
    if _type_of(possible) not in (None, expected):  # a variable's name, or another placeholder
        return value in possible
    if expected is dict:
        return _fits_dict(value, possible)
    if inner is dict:
        return any(
            len(value) == len(each) and all(_fits_dict(v, [one]) for v, one in zip(value, each, strict=True))
            for each in possible
        )
    if expected is list:
        return _folded_each(value) in [_folded_each(each) for each in possible]
    if expected is str:
        return _folded(value) in [_folded(each) for each in possible if type(each) is str]
    return value in possible


def _type_of(possible: Sequence[Any]) -> type | None:
    return next((type(each) for each in possible if each != ""), None)


def _has_type(value: Any, possible: Sequence[Any], expected: type, inner: type | None) -> bool:
    """Return whether a value has the right type; elements of lists, that of at least one possible list."""
    kind = type(value)
    if kind is not expected:
        return kind is _type_of(possible)
    if inner is None:
        return True
    return any(not isinstance(each, list) or all(_has_type(v, each, inner, None) for v in value) for each in possible)


def _folded(value: Any) -> Any:
    """Normalise a text for comparison; return anything else unchanged."""
    if type(value) is str:
        return _IGNORED.sub("", value).lower().replace("'", '"')
    return value


def _folded_each(values: Iterable[Any]) -> list[Any]:
    return [_folded(value) for value in values]


def _fits_dict(value: Mapping[str, Any], possible: Sequence[Any]) -> bool:
    return any(
        all(key in each and _folded(v) in _folded_each(each[key]) for key, v in value.items())
        and all(key in value or "" in values for key, values in each.items())
        for each in possible
        if each != ""
    )


def first_right(about: Mapping[str, Any], possible: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return right arguments: the first possible value of each, without optional ones."""
    required = about["parameters"]["required"]
    return {
        name: _unfolded(next(each for each in values if each != ""))
        for name, values in possible.items()
        if (name in required or "" not in values) and any(each != "" for each in values)
    }


def _unfolded(value: Any) -> Any:
    """Return one value of a possible one, in which the entries of dicts are lists of possible values."""
    if isinstance(value, dict):
        return {k: _unfolded(next(each for each in v if each != "")) for k, v in value.items() if "" not in v}
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        return [_unfolded(each) for each in value]
    return value


_POLICY = (
    "Answer the request with calls of the functions that it needs, all in one reply and without other text; they are "
    "not carried out. Where no function fits, or one fits but lacks what it must be given, say so without a call."
)


class BFCLEnv(ToolEnv):
    """BFCL's tasks of one turn: the calls in the reply are checked, not carried out.

    The rules are those of bfcl-eval's AST checker; for ``irrelevance``, every reply without a call is right. A constant
    reply without calls thus scores 100 % there and 0 % elsewhere: report the categories together.

    Functions are shown with underscores instead of dots in their names; calls may use either.

    Args:
        category: simple_python, multiple, parallel or irrelevance.
    """

    def __init__(self, *, category: str = "simple_python", **settings: Any):
        super().__init__(**settings)
        if category not in SINGLE:
            raise UsageError(f"BFCL has no category {category!r} of one turn; choose from {', '.join(SINGLE)}")
        self.category = category
        self.entries, self.answers = entries(category), answers(category)
        self.tasks = len(self.entries)

    def _fresh(self) -> None:
        super()._fresh()
        self.problem_seen = ""

    def problem(self, key: int) -> Problem:
        entry = self.entries[key]
        described = {about["name"]: about for about in entry["function"]}
        right = [next(iter(wanted.items())) for wanted in self.answers.get(entry["id"], ())]
        plan = [(plain_name(name), first_right(described[name], possible)) for name, possible in right]
        return Problem(
            "\n".join(message["content"] for message in entry["question"][0]),
            Described([schema(about) for about in entry["function"]]),
            plan=[plan] if plan else [],
            name=entry["id"],
            policy=_POLICY,
            category=self.category,
        )

    def _step(self, action: str) -> StepResult:
        self.turn += 1
        found, message = find_calls(action, self.calls, self.current.backend.schemas())
        self.called, self.failed = len(found), sum(bool(call.problem) for call in found)
        self.messages.append(message)
        entry = self.entries[self.key]
        if self.category == "irrelevance":
            wrong = "no function fits, but one is called" if found else ""
        elif problems := [call.problem for call in found if call.problem]:
            wrong = problems[0]
        else:
            names = {plain_name(about["name"]): about["name"] for about in entry["function"]}
            calls = [(names.get(call.name, call.name), call.arguments) for call in found]
            wrong = check(entry["function"], calls, self.answers[entry["id"]])
        self.last = self.problem_seen = wrong.encode(errors="replace").decode()  # names may have lone surrogates
        return self._after(ended=True, valid=not self.failed, info={"use_tool": bool(found)})

    def judge(self, problem: Problem) -> Judgement:
        right = not self.problem_seen
        return Judgement(right, float(right))

    def closing(self) -> str:
        return "None of the functions fits."
