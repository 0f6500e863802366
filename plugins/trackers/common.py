"""The common parts of trackers: texts of episodes, names of runs, and the rows that a resumed run has logged."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollenv.rollout.types import Trajectory

#: Maximum number of logged episodes per call, and of characters of each.
MOST_EPISODES = 16
MOST_CHARACTERS = 20_000

_LONGEST_NAME = 100


@dataclass
class Continued:
    """A tracker's file in the run folder, with which a resumed run continues without duplicate rows."""

    file: Path
    id: str = ""
    logged: int = -1
    """The latest iteration that was logged."""

    @classmethod
    def read(cls, file: Path) -> Continued:
        try:
            saved = json.loads(file.read_text())
            return cls(file, str(saved["id"]), int(saved.get("logged", -1)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls(file)

    def write(self) -> None:
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps({"id": self.id, "logged": self.logged}) + "\n")
        partial.replace(self.file)

    def is_new(self, iteration: int) -> bool:
        """Return whether an iteration was not logged yet, and mark it as logged."""
        if iteration <= self.logged:
            return False
        self.logged = iteration
        self.write()
        return True


def name_and_group(run_path: Path) -> tuple[str, str]:
    """Return the name of a run in a tracker, and its group: those of ``rollenv train --seeds`` have one a setting.

    Names and groups have at most 128 characters, as W&B demands.
    """
    name, above = run_path.name, run_path.absolute().parent
    if not re.fullmatch(r"seed-\d+", name):
        return name, ""
    group = f"{above.parent.name}/{above.name}" if "=" in above.name else above.name
    if len(group) > _LONGEST_NAME:
        group = f"{group[:_LONGEST_NAME]}-{hashlib.sha256(group.encode()).hexdigest()[:8]}"
    return f"{group}/{name}", group


def episode_rows(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """Choose evenly spaced episodes and return them as rows of a table, with the same keys and plain values."""
    n, most = len(trajectories), MOST_EPISODES
    chosen = trajectories if n <= most else [trajectories[i * n // most] for i in range(most)]
    return [
        {
            "env": t.task.env_id,
            "seed": str(t.task.seed),  # tables of W&B round large integers
            "member": t.member,
            "status": t.status,
            "success": t.success,
            "reward": t.reward if math.isfinite(t.reward) else str(t.reward),
            "turns": len(t.turns),
            "episode": transcript(t),
        }
        for t in chosen
    ]


def episode_text(row: Mapping[str, Any]) -> str:
    """Format a row of :func:`episode_rows` as text."""
    head = "\n".join(f"{name}: {value}" for name, value in row.items() if name != "episode")
    return f"{head}\n\n{row['episode']}"


def transcript(trajectory: Trajectory) -> str:
    """Return an episode as readable text; the middle of a long one is left out."""
    texts = [
        f"[{number}] {turn.observation}\n> {turn.raw or turn.text}\n({turn.reward:g})"
        for number, turn in enumerate(trajectory.turns, 1)
    ]
    ending = trajectory.error or trajectory.final_observation
    text = "\n\n".join(filter(None, [*texts, ending])).encode("utf-8", "replace").decode()
    half = MOST_CHARACTERS // 2
    return text if len(text) <= 2 * half else f"{text[:half]}\n[...]\n{text[-half:]}"


def flat(config: Mapping[str, Any], before: str = "") -> dict[str, bool | int | float | str]:
    """Flatten nested settings to dotted keys; lists and empty values become text."""
    out: dict[str, bool | int | float | str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            out |= flat(value, f"{before}{key}.")
        else:
            out[before + key] = value if isinstance(value, bool | int | float | str) else json.dumps(value)
    return out
