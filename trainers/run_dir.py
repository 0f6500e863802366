"""A run's folder: config.json, metrics.jsonl, episodes.jsonl, checkpoints/, report.html."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rollenv.core import RollenvError, UsageError
from rollenv.trainers.config import TrainConfig, changed_keys, parse_config


class RunDirError(RollenvError, OSError):
    """A run's folder cannot be used or written."""

    exit_code = 4


class RunDir:
    """Paths and files of one run."""

    def __init__(self, path: Path):
        self.path = path
        self.config_file = path / "config.json"
        self.metrics_file = path / "metrics.jsonl"
        self.episodes_file = path / "episodes.jsonl"
        self.checkpoints = path / "checkpoints"
        self.report_file = path / "report.html"

    @classmethod
    def create(cls, config: TrainConfig, recipe: str) -> RunDir:
        """A new folder, ``config.run_dir`` or the next free ``runs/RECIPE-N``.

        Raises:
            UsageError: if the folder exists.
            RunDirError: if it cannot be made.
        """
        path = Path(config.run_dir) if config.run_dir else next_free(Path("runs"), Path(recipe).stem)
        run = cls(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
            run.config_file.write_text(json.dumps(config.model_dump(mode="json"), indent=2) + "\n")
        except FileExistsError as error:
            raise UsageError(
                f"the run directory {path} exists; continue it with --resume, or choose another with run_dir=PATH"
            ) from error
        except OSError as error:
            raise RunDirError(f"cannot write the run directory {path}: {error.strerror or error}") from error
        return run

    @classmethod
    def resume(cls, path: Path) -> tuple[RunDir, TrainConfig]:
        """An existing folder and the configuration it was started with.

        Raises:
            UsageError: if it is not a run's folder or its configuration cannot be read.
        """
        run = cls(path)
        try:
            data = json.loads(run.config_file.read_text())
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot resume {path}: its config.json cannot be read: {error}") from error
        return run, parse_config(data)

    def check_same(self, started: TrainConfig, wanted: TrainConfig) -> None:
        """Refuse to continue with settings that differ from those the run was started with.

        Raises:
            UsageError: with every changed key.
        """
        wanted = wanted.model_copy(update={"run_dir": started.run_dir})
        if changes := changed_keys(started, wanted):
            raise UsageError(
                f"cannot resume {self.path} with another configuration ({'; '.join(changes)}); "
                f"leave the changes out, or start a new run without --resume"
            )

    def append(self, file: Path, row: dict[str, Any]) -> None:
        """Add one line of JSON, on disk when this returns.

        Raises:
            RunDirError: if it cannot be written.
        """
        try:
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            raise RunDirError(f"cannot write {file}: {error.strerror or error}") from error

    def cut_back(self, iteration: int) -> None:
        """Drop what was logged after ``iteration``, and a last line that a kill cut short."""
        for file in (self.metrics_file, self.episodes_file):
            rows = [row for row in read_rows(file) if row["iteration"] <= iteration]
            partial = file.with_suffix(".partial")
            partial.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            partial.replace(file)


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSONL file; none if there is no file."""
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def next_free(root: Path, name: str) -> Path:
    """``root/name-N`` with the smallest N after all that exist."""
    return root / f"{name}-{max(_numbers(root, name), default=0) + 1}"


def latest(root: Path, name: str) -> Path | None:
    """The ``root/name-N`` with the largest N."""
    numbers = _numbers(root, name)
    return root / f"{name}-{max(numbers)}" if numbers else None


def _numbers(root: Path, name: str) -> list[int]:
    tails: Iterable[str] = (p.name.removeprefix(f"{name}-") for p in root.glob(f"{name}-*"))
    return [int(tail) for tail in tails if tail.isdigit()]
