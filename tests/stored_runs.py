"""Small runs with stored episodes, for tests of their pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rollenv.report import write_report
from rollenv.rollout.types import Task, Trajectory, Turn


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
