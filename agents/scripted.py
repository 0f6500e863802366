"""An agent that replays stored answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollenv.agents.base import Action, Agent, AgentFailed, EnvHandle, Session
from rollenv.core.errors import UsageError, reads


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
        with reads(f"cannot read stored answers from {file}"):
            lines = file.read_text(encoding="utf-8").split("\n")  # texts may contain other line separators
        rows = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            with reads(f"{file}: line {number} is not JSON"):
                row = json.loads(line)
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
