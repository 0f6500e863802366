"""The contents of a run folder: settings, metrics and episodes of a training or an evaluation."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rollenv.agents.gguf import STEPS
from rollenv.core.errors import UsageError

METRICS, EPISODES, UPDATES = "metrics.jsonl", "episodes.jsonl", "updates.jsonl"
#: Files that mark a folder as a run's, and are the source of its page.
FILES = (METRICS, EPISODES, UPDATES, "eval.json", "result.json", "config.json", "about.json")
#: The file that lists the runs of ``rollenv train --seeds``.
SWEEP = "sweep.json"
#: Maximum depth of the search for runs below a folder.
_DEPTH = 4


def hide_secrets(settings: Any, key: str = "") -> Any:
    """Return settings to publish: without the address of ``alerts``, and without the passwords in other addresses."""
    if isinstance(settings, Mapping):
        return {name: hide_secrets(value, name) for name, value in settings.items()}
    if isinstance(settings, list | tuple):
        return [hide_secrets(value, key) for value in settings]
    if not isinstance(settings, str) or not settings:
        return settings
    return "***" if key == "alerts" else re.sub(r"(://)[^/?#\s]*@", r"\1***@", settings)


@dataclass(slots=True)
class Run:
    """The contents of one folder."""

    path: Path
    kind: Literal["training", "evaluation"]
    settings: dict[str, Any]
    result: dict[str, Any]
    metrics: list[dict[str, Any]]
    recipe: str
    damaged: int = field(default=0)
    """Unreadable lines so far."""
    label: str = ""
    """The setting, where the metrics are means over seeds."""
    seeds: list[list[dict[str, Any]]] = field(default_factory=list)
    """The metrics of each seed, where ``metrics`` are their means."""
    chosen: Callable[[], Iterator[dict[str, Any]]] | None = None
    """Yields the episodes instead of the folder's file."""

    @property
    def name(self) -> str:
        """The setting, or the folder's name."""
        return self.label or self.path.resolve().name

    @property
    def env_id(self) -> str:
        """The environment's id; empty if unknown."""
        env = self.settings.get("env", "")
        return str(_mapping(env).get("id", "") if isinstance(env, Mapping) else env)

    @property
    def agent(self) -> str:
        """The agent of an evaluation, or the model that was trained."""
        return str(self.settings.get("agent") or _mapping(self.settings.get("model")).get("path") or "")

    def parts(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the stored episodes with their part: 0 for :meth:`episodes`, 1 for those of updates."""
        yield from ((0, episode) for episode in self.episodes())
        if self.chosen is None:
            yield from ((1, episode) for episode in self.episodes(UPDATES))

    def episodes(self, file: str = EPISODES) -> Iterator[dict[str, Any]]:
        """Yield the stored episodes of a file as plain data; unreadable lines are counted and skipped."""
        if self.chosen is not None:
            yield from self.chosen()
            return
        for _, row in self.numbered(self.path / file):
            if isinstance(row.get("task"), dict) and isinstance(row.get("turns"), list):
                yield row
            else:
                self.damaged += 1

    def numbered(self, file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the readable rows of a file with the numbers of their lines, from 1; others are counted and skipped."""
        for number, row in numbered_rows(file):
            if row is None:
                self.damaged += 1
            else:
                yield number, row


def numbered_rows(file: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield the number of each line of a JSONL file, from 1, and its object, None if it has none; nothing without a
    file."""
    if not file.is_file():
        return
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            yield number, row if isinstance(row, dict) else None


def open_run(path: Path) -> Run:
    """Read a folder, except its episodes."""
    if not is_run(path):
        raise UsageError(
            f"{path} holds no run: there is no {METRICS}, eval.json or {EPISODES}; pass the folder of a training run "
            "(rollenv train) or of an evaluation (rollenv eval --out); `rollenv view --serve` shows a folder of runs"
        )
    training = (path / METRICS).exists() or (path / "config.json").exists()
    settings = hide_secrets(_read(path / ("config.json" if training else "eval.json")))
    recipe = str(_read(path / "about.json").get("recipe", ""))
    run = Run(path, "training" if training else "evaluation", settings, _read(path / "result.json"), [], recipe)
    run.metrics = [row for _, row in run.numbered(path / METRICS)]
    return run


def is_run(path: Path) -> bool:
    """Return whether a folder is a run's."""
    return any((path / name).is_file() for name in (METRICS, EPISODES, "eval.json"))


def find_runs(root: Path) -> dict[str, Path]:
    """Return all runs, and folders of ``--seeds``, in and below a folder by relative path; links are not followed."""
    found = {}
    for folder, below, _ in os.walk(root):
        path = Path(folder)
        if is_run(path) or (path / SWEEP).is_file():
            found[path.relative_to(root).as_posix() if path != root else root.resolve().name] = path
        if is_run(path) or len(path.relative_to(root).parts) >= _DEPTH:
            below.clear()
        below.sort()
    return dict(sorted(found.items()))


def stamp(path: Path) -> tuple[tuple[int, int], ...]:
    """Return a version that changes with every change of a run's files, or of those of ``--seeds``."""
    files = [path / name for name in FILES]
    if (path / SWEEP).is_file():
        files = [path / SWEEP, *sorted(each for depth in ("*", "*/*") for each in path.glob(f"{depth}/{METRICS}"))]
    return tuple((s.st_mtime_ns, s.st_size) if (s := _stat(file)) else (0, 0) for file in files)


def tokenizer_of(run: Run) -> Any:
    """Load the tokenizer of a run's model; None if it is missing or cannot be loaded."""
    kind, _, folder = str(run.settings.get("policy") or run.agent).partition(":")
    roots = [run.path]
    if run.kind == "evaluation":
        roots = [Path(folder), run.path / folder] if kind in ("local", "vllm") and folder else []
    for root in roots:
        saved = [root / "tokenizer.json", *sorted((root / "checkpoints").glob(f"{STEPS}/tokenizer.json"))]
        if files := [file for file in saved if file.is_file()]:
            return _tokenizer(files[-1])
    return None


@functools.lru_cache(maxsize=4)
def _tokenizer(file: Path) -> Any:
    try:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(file))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # no extra, or a damaged file, at which tokenizers panics: the page shows numbers instead
        return None


def _stat(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except OSError:
        return None


def _read(file: Path) -> dict[str, Any]:
    try:
        return _mapping(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return {}


def _mapping(data: Any) -> dict[str, Any]:
    return data if isinstance(data, dict) else {}
