"""Small runs with stored episodes, for tests of their pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollenv.report import write_report
from rollenv.rollout.types import Task, Trajectory, Turn

HOSTILE = (
    '</script><script>document.title="stolen"</script><img src=x onerror="document.title=1">&amp;\u2028\x1b[31m\u202e'
    "<!-- <script> </title> javascript:alert(1) {{data}}"
)
Open = Callable[..., Any]
NUMBERS = {"logprobs": [-0.5, None], "entropy": [0.25, None], "steps": 1, "advantages": -0.75, "cut": [0, 1], "why": ""}


def trajectory(seed: int = 0, *, member: int = 0, turns: int = 2, reward: float = 0.5, **changes: Any) -> Trajectory:
    """An episode of Sokoban that nobody played."""
    board = "# # # #\n# P X #\n# _ O #\n# # # #"
    said = [Turn((5, 6), (7, 8), (-0.1, -2.0), reward, f"up{i}", f"seen {i}", view=board) for i in range(turns)]
    whole = {"status": "terminated", "success": True, "final_observation": "the end", "final_view": board} | changes
    return Trajectory(Task("game:Sokoban-v0-easy", seed), said, member=member, **whole)


def keep(folder: Path, *trajectories: Trajectory, **iteration: int) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    with (folder / "episodes.jsonl").open("a") as out:
        for each in trajectories:
            out.write(json.dumps({**iteration, **each.to_dict()}) + "\n")
    return folder


def page_of(*folders: Path) -> Path:
    return write_report(folders, folders[0] / "report.html")


def updated(
    iteration: int = 1, *, seed: int = 5, member: int = 0, group: int = 0, version: int = 3, **changes: Any
) -> str:
    """A line of an update's file: an episode of two turns of two tokens, the second of which had no advantage."""
    row = trajectory(seed, member=member).to_dict() | {"iteration": iteration}
    unused = {"logprobs": None, "entropy": None, "steps": None, "advantages": 0.0, "why": "no advantage"}
    turns = [NUMBERS | changes, unused]
    return json.dumps(row | {"update": {"group": group, "version": version, "turns": turns}}) + "\n"
