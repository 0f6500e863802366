"""Agents without a model: a rule-based one for environments with tools, and one that replays stored answers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollenv.agents.base import Action, Agent, AgentFailed, EnvHandle, Session
from rollenv.agents.offered_tools import offered_tools
from rollenv.core.errors import UsageError
from rollenv.core.tools.calls import write_calls

#: Number of calls after which the scripted agent answers.
_MOST_CALLS = 6
_WORD = re.compile(r"[a-z]{3,}")
_STOP = frozenset({"the", "and", "for", "with", "from", "that", "this", "all", "any", "please", "can", "you", "are"})


class ScriptedAgent(Agent):
    """A rule-based baseline for tasks with tools (ReAct, arXiv 2210.03629): it matches words and copies values.

    In every turn it calls the function whose name and description share most words with the request, if it can fill
    the arguments: texts, dates, times, addresses and numbers from the request, ids from results. Otherwise it calls a
    search function. After a few calls it answers with the last result. It needs ``info["tools"]``.
    """

    def start(self, env: EnvHandle, seed: int) -> Session:
        return _Scripted()


@dataclass(slots=True)
class _Scripted(Session):
    tools: list[dict[str, Any]] = field(default_factory=list)
    request: str = ""
    values: dict[str, list[str]] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    last: str = ""

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        if not self.request:
            self.tools = [schema["function"] for schema in offered_tools(info)]
            if not self.tools:
                raise AgentFailed('the agent "react" is for environments that offer functions in info["tools"]')
            self.request = observation.rpartition("\n\n")[2]
            self.values = values_in(self.request)
        else:
            self.last = observation
            self.ids |= dict(ids_in(observation))
        call = self._next() if len(self.done) < _MOST_CALLS else None
        if call is None:
            return Action(self.last or "I could not find a function for that.")
        self.done.add(json.dumps(call))
        return Action(write_calls([call]))

    def _next(self) -> tuple[str, dict[str, Any]] | None:
        """Return the best new call, or None."""
        wanted = words_of(self.request)
        for tool in sorted(self.tools, key=lambda tool: -self._fit(tool, wanted)):
            useful = self._fit(tool, wanted) > 0 or _SEARCHES.match(tool["name"])
            arguments = self._fill_arguments(tool.get("parameters") or {}) if useful else None
            if arguments is not None and json.dumps((tool["name"], arguments)) not in self.done:
                return tool["name"], arguments
        return None

    @staticmethod
    def _fit(tool: Mapping[str, Any], wanted: set[str]) -> float:
        name, about = words_of(tool["name"].replace("_", " ")), words_of(tool.get("description") or "")
        return 2.0 * len(name & wanted) + len(about & wanted) / math.sqrt(1 + len(about))

    def _fill_arguments(self, schema: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the required arguments; None if a value is missing."""
        required, out = schema.get("required", ()), {}
        used: dict[str, int] = {}
        for name in required:
            value = self._value(name, schema.get("properties", {}).get(name, {}), used)
            if value is None:
                return None
            out[name] = value
        return out

    def _value(self, name: str, about: Mapping[str, Any], used: dict[str, int]) -> Any:
        enum = about.get("enum")
        if isinstance(enum, list) and enum:
            return next((o for o in map(str, enum) if o.lower() in self.request.lower()), None)
        if name == "id" or name.endswith("_id"):
            own = next(iter(self.values.get("id", [])), None)
            return self.ids.get(name) or self.ids.get(name[:1].upper()) or own
        kind = next((kind for kind in ("email", "date", "time") if kind in name), "")
        if about.get("type") in ("integer", "number"):
            kind = "number"
        for source in [kind] if kind else ["quoted", "name", "phrase"]:
            found = self.values.get(source, [])
            if used.get(source, 0) < len(found):
                used[source] = used.get(source, 0) + 1
                value = found[used[source] - 1]
                if kind == "number":
                    return float(value) if "." in value else int(value)
                return value
        return None


_VALUES = {
    "email": re.compile(r"[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{1,64}"),
    "date": re.compile(r"\b\d{4}-\d{2}-\d{2}\b"),
    "time": re.compile(r"\b\d{1,2}:\d{2}\b"),
    "quoted": re.compile(r"['\"“]([^'\"“”\n]{1,200})['\"”]"),
    "id": re.compile(r"\b(?=[A-Za-z_-]{0,10}\d)[A-Za-z]{1,5}[-_]?\d{1,12}\b|#\w{1,20}"),
    "number": re.compile(r"(?<![\w.-])\d{1,12}(?:\.\d{1,6})?(?![\w-])"),
    "name": re.compile(r"(?<!^)(?<![.?!] )\b[A-Z][a-z]{1,20}(?: [A-Z][a-z]{1,20})?\b"),
}


def values_in(text: str) -> dict[str, list[str]]:
    """Return the values in a request by kind: quoted texts, dates, times, addresses, ids, numbers and names."""
    text = text[:20_000]
    found = {kind: [m[m.lastindex or 0] for m in each.finditer(text)] for kind, each in _VALUES.items()}
    # Likely subjects: words between small words, from the end.
    runs = [run.strip() for run in _SMALL.split(text.splitlines()[0] if text else "")]
    return found | {"phrase": [run for run in reversed(runs) if run][:2]}


#: Function words and punctuation, which separate phrases.
_SMALL = re.compile(
    r"\b(?:a|an|the|of|in|on|at|to|for|from|with|by|about|is|does|do|my|me|tell|take|place|new|how|many|it|make)\b"
    r"|[^\w\s]|\d",
    re.IGNORECASE,
)
_SEARCHES = re.compile(r"(?:find|search|list|get|look)", re.IGNORECASE)
_CODE = re.compile(r"\b([A-Z])(\d{2,12})\b")
_ID = re.compile(r"['\"]?(\w{0,30}id)['\"]?\s?[:=]\s?['\"]?([\w-]{1,40})")


def ids_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield names and values of ids in an answer, and codes such as ``C17`` by letter; only the first of each name."""
    pairs = [(match[1], match[2]) for match in _ID.finditer(text[:20_000])]
    pairs += [(match[1], match[0]) for match in _CODE.finditer(text[:20_000])]
    yield from dict(reversed(pairs)).items()


def words_of(text: str) -> set[str]:
    """Return the content words of a text, without endings."""
    return {word.rstrip("s") for word in _WORD.findall(text.lower()[:20_000])} - _STOP


class ReplayAgent(Agent):
    """Replays stored answers: the actions of recorded episodes, or answers to numbered tasks.

    Args:
        rows: rows with ``actions``, a list of texts, and the episode: ``env_id`` with ``idx`` (of a numbered task), or
            with ``seed`` and ``member`` (0 by default).
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]]):
        self._known: dict[tuple[Any, ...], tuple[str, ...]] = {}
        for number, row in enumerate(rows, 1):
            key, actions = _read_row(row, number)
            if self._known.setdefault(key, actions) != actions:
                raise UsageError(f"row {number} has other actions for {key} than an earlier one; remove one of them")

    @classmethod
    def load(cls, path: Path) -> ReplayAgent:
        """Read a ``.jsonl`` file of rows, or of recorded episodes (``episodes.jsonl``, or the folder that holds it)."""
        file = path / "episodes.jsonl" if path.is_dir() else path
        try:
            lines = file.read_text(encoding="utf-8").split("\n")  # texts may contain other line separators
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read stored answers from {file}: {error}") from error
        rows = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UsageError(f"{file}: line {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise UsageError(f"{file}: line {number} is not a JSON object")
            if row.get("status") not in ("failed", "cancelled"):
                rows.append(row)
        return cls(rows)

    def start(self, env: EnvHandle, seed: int) -> Session:
        return _Replay(self._known, env.env_id, *divmod(seed, 1_000_003))


@dataclass(slots=True)
class _Replay(Session):
    known: Mapping[tuple[Any, ...], Sequence[str]]
    env_id: str
    seed: int
    member: int
    turn: int = 0
    actions: Sequence[str] | None = None

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        if self.actions is None:
            of_seed = self.known.get((self.env_id, "seed", self.seed, self.member))
            self.actions = of_seed or self.known.get((self.env_id, "idx", info.get("idx")))
        if self.actions is None:
            where = f"idx {info['idx']}, or for " if "idx" in info else ""
            raise AgentFailed(f"no answer is stored for {self.env_id}, {where}seed {self.seed}, member {self.member}")
        if self.turn >= len(self.actions):
            raise AgentFailed(f"the stored answer ends after {self.turn} actions, and the episode goes on")
        self.turn += 1
        return Action(self.actions[self.turn - 1])


def _read_row(row: Mapping[str, Any], number: int) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """Return the episode of a row, and its actions."""
    task, turns = row.get("task"), row.get("turns")
    key: tuple[Any, ...]
    if isinstance(task, Mapping) and isinstance(turns, list):  # a recorded episode
        key = (task.get("env_id"), "seed", task.get("seed"), row.get("member", 0))
        actions: Any = [turn.get("text") if isinstance(turn, Mapping) else None for turn in turns]
    elif "idx" in row:
        key, actions = (row.get("env_id"), "idx", row["idx"]), row.get("actions")
    else:
        key, actions = (row.get("env_id"), "seed", row.get("seed"), row.get("member", 0)), row.get("actions")
    whole = all(isinstance(part, str | int) for part in key)
    if not whole or not isinstance(actions, list) or not all(isinstance(action, str) for action in actions):
        raise UsageError(
            f"row {number} is not a stored answer: it needs env_id, idx or seed, and actions (a list of texts)"
        )
    return key, tuple(actions)
