"""Checks of forged tasks in the sandbox, with their own grader: doing nothing scores 0, the solution 1."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from rollenv.core.errors import RollenvError
from rollenv.sandbox import Limits, Sandbox

_GRADE = (
    "import sys; sys.path.insert(0, {tests!r}); import grade; sys.exit(grade.main({libraries!r}, {app!r}, {logs!r}))"
)


class Rewards(NamedTuple):
    """The rewards of a task for doing nothing, and for its solution."""

    nothing: float
    solution: float

    @property
    def sound(self) -> bool:
        return self == (0.0, 1.0)


class TaskSandbox:
    """A sandbox with the folders of a forged task: ``app``, ``tests``, ``solution`` and ``logs``. A context manager."""

    def __init__(self, folder: Path):
        about = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
        limits = Limits(about["verifier"]["timeout_sec"], 2048, disk_mb=512, files=50_000, processes=256)
        self.sandbox = Sandbox.create(limits=limits)
        self.sandbox.files.write_many(_under(folder / "environment" / "app", "app"))
        self.root = self.sandbox.commands.run("pwd").stdout.strip()
        self.folder = folder
        self.libraries = [os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib")]

    def solve(self) -> None:
        """Run the task's solution."""
        files = _under(self.folder / "solution", "solution")
        script = files["solution/solve.sh"].replace(b" /app/", f" {self.root}/app/".encode())
        self.sandbox.files.write_many({**files, "solution/solve.sh": script})
        done = self.sandbox.commands.run(["bash", "solution/solve.sh"])
        if done.exit_code:
            raise RollenvError(f"{self.folder}: solve.sh failed: {done.stderr.strip()}")

    def grade(self) -> float:
        """Return the reward of the current ``app``."""
        self.sandbox.files.write_many(_under(self.folder / "tests", "tests"))
        names: dict[str, Any] = {name: f"{self.root}/{name}" for name in ("app", "tests", "logs")}
        names["libraries"] = self.libraries
        words = [os.path.realpath(sys.executable), "-I", "-S", "-B", "-c", _GRADE.format(**names)]
        done = self.sandbox.commands.run(words)
        if done.exit_code:
            raise RollenvError(f"{self.folder}: not graded: {(done.stdout + done.stderr).strip()[-500:]}")
        return float(json.loads(self.sandbox.files.read("logs/reward.json"))["reward"])

    def __enter__(self) -> TaskSandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.sandbox.kill()


def _under(folder: Path, name: str) -> dict[str, bytes]:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {f"{name}/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in paths}


def check(folder: Path | str) -> Rewards:
    """Grade a task without changes, and then with its solution.

    Raises:
        RollenvError: the tests cannot be run, or the solution fails.
    """
    with TaskSandbox(Path(folder)) as task:
        nothing = task.grade()
        task.solve()
        return Rewards(nothing, task.grade())
