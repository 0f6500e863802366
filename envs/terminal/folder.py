"""Task folders: what Harbor's and Terminal-Bench's have in common, as data."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollenv.core import UsageError

#: The most MiB that a task may ask for.
_MOST_MB = 1 << 22
_NAME = re.compile(r"[^=\0]+")
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


class TaskFolderError(UsageError):
    """A task folder is not as its format says."""


@dataclass(frozen=True)
class Healthcheck:
    """Repeated after the start until it succeeds. Seconds, as Docker has them."""

    command: str
    interval: float = 5.0
    timeout: float = 30.0
    start_period: float = 0.0
    retries: int = 3


@dataclass(frozen=True)
class Collect:
    """A command that gathers what is graded, before the agent's processes are ended."""

    command: str
    timeout: float = 60.0
    user: str = ""


@dataclass(frozen=True)
class Verifier:
    """The grading of a task, or of one of its steps.

    Attributes:
        tests: folders that are uploaded to /tests, in order: the task's, and a step's over them.
        script: what runs there; "" for pytest on ``test_outputs.py``.
        seconds: until it is stopped.
        env: of the script.
        user: user that runs it; "" for the image's.
        separate: whether it has a machine of its own, built from the Dockerfile in ``tests`` if there is one, else
            from ``image`` or as the agent's.
        image: of a registry; "" where none is named.
        collect: commands that gather what is graded.
        writes_reward: whether the script writes the reward; else its exit code is it.
    """

    tests: tuple[Path, ...]
    script: str = "test.sh"
    seconds: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    separate: bool = False
    image: str = ""
    collect: tuple[Collect, ...] = ()
    writes_reward: bool = True

    def find(self, name: str) -> Path | None:
        """A file of the tests by its name: a step's own comes before the task's."""
        return next((tests / name for tests in reversed(self.tests) if (tests / name).is_file()), None)

    def files(self, pattern: str = "*") -> Iterator[Path]:
        """The tests' files whose names fit."""
        for tests in self.tests:
            yield from sorted(path for path in tests.rglob(pattern) if path.is_file())


@dataclass(frozen=True)
class Artifact:
    """Return the files of the agent's machine that a separate verifier gets."""

    source: str
    destination: str
    exclude: tuple[str, ...] = ()
    """Patterns of names that are not given."""


@dataclass(frozen=True)
class Step:
    """A part of a task with an instruction and a grade of its own."""

    name: str
    instruction: str
    verifier: Verifier
    solution: Path | None
    user: str = ""
    """The agent's; "" for the image's."""
    agent_seconds: float | None = None
    setup: Path | None = None
    min_reward: Mapping[str, float] = field(default_factory=dict)
    healthcheck: Healthcheck | None = None
    artifacts: tuple[Artifact, ...] = ()


@dataclass(frozen=True)
class TaskFolder:
    """A task.

    Attributes:
        path: the folder.
        name: of the task.
        kind: ``harbor`` or ``tb``.
        steps: one, or several that share a machine.
        context: what the Dockerfile copies from.
        ignored: what no image is to have of it.
        dockerfile: its name there; "" where there is none.
        image: of a registry; "" where none is named.
        env: of everything that runs.
        build_seconds: for each instruction of the Dockerfile.
        memory_mb, storage_mb: that the task asks for.
        workdir: where commands start; "" for the image's.
        solution_env: of the solution.
        network_mode: ``public``, ``no-network`` or ``allowlist``.
        allowed_hosts: the list.
        final_only: whether the last step's reward is the task's; else their mean is.
        metadata: as the folder has it.
    """

    path: Path
    name: str
    kind: str
    steps: tuple[Step, ...]
    context: Path
    dockerfile: str
    ignored: tuple[str, ...] = ()
    image: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    build_seconds: float = 600.0
    memory_mb: int | None = None
    storage_mb: int | None = None
    workdir: str = ""
    healthcheck: Healthcheck | None = None
    solution_env: Mapping[str, str] = field(default_factory=dict)
    network_mode: str = "public"
    allowed_hosts: tuple[str, ...] = ()
    final_only: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Fields:
    """A table of a task file, whose values are checked as they are taken. Keys that are not known are left alone."""

    def __init__(self, file: Path, data: Any, prefix: str = ""):
        self.file, self.prefix = file, prefix
        if not isinstance(data, Mapping):
            raise TaskFolderError(f"{file}: {prefix or 'it'} must be a table, got {data!r}")
        self.data = data

    def table(self, name: str) -> Fields:
        """A table in it; an empty one where there is none."""
        return Fields(self.file, self.data.get(name) or {}, f"{self.prefix}.{name}".strip("."))

    def tables(self, name: str) -> list[Fields]:
        """A list of tables in it."""
        found = self.data.get(name) or []
        if not isinstance(found, list):
            self.wrong(name, "a list of tables")
        return [Fields(self.file, each, f"{self.prefix}.{name}[{i}]".strip(".")) for i, each in enumerate(found)]

    def text(self, name: str, default: str = "") -> str:
        """A text.

        Args:
            default: the value where the table has none.
        """
        value = self.data.get(name, default)
        if value is None:
            return default
        if not isinstance(value, str):
            self.wrong(name, "a text")
        return str(value)

    def seconds(self, name: str, default: float | None) -> float | None:
        """A number above 0.

        Args:
            default: the value where the table has none.
        """
        value = self.data.get(name, default)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            self.wrong(name, "a number of seconds above 0")
        return float(value)

    def some_seconds(self, name: str, default: float) -> float:
        """A number above 0, never None.

        Args:
            default: the value where the table has none.
        """
        return self.seconds(name, default) or default

    def megabytes(self, name: str, old: str = "") -> int | None:
        """A number of MiB, or in an old file a text such as ``2G``.

        Args:
            old: its name in old files.
        """
        value = self.data.get(name)
        if value is None and old and isinstance(self.data.get(old), str):
            match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])i?B?", self.data[old].strip(), re.IGNORECASE)
            if not match:
                self.wrong(old, "a size such as 2G")
            assert match
            return min(max(1, int(float(match[1]) * 1024 ** ("KMGT".index(match[2].upper()) - 1))), _MOST_MB)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            self.wrong(name, "a whole number of MiB")
        return min(int(value), _MOST_MB)

    def numbers(self, name: str) -> dict[str, float]:
        """Finite numbers by name; a single one is ``reward``."""
        found = self.data.get(name)
        table = found if isinstance(found, Mapping) else {} if found is None else {"reward": found}
        good = (isinstance(each, int | float) and not isinstance(each, bool) for each in table.values())
        if not all(good) or not all(map(math.isfinite, table.values())):
            self.wrong(name, "a number, or a table of numbers")
        return {str(key): float(each) for key, each in table.items()}

    def variables(self, name: str) -> dict[str, str]:
        """Environment variables; ``${NAME}`` and ``${NAME:-default}`` are taken from this process's environment."""
        found = self.data.get(name) or {}
        if not isinstance(found, Mapping) or not all(_NAME.fullmatch(str(key)) for key in found):
            self.wrong(name, "a table of texts, by names of variables")
        return {str(key): self._with_variables(name, str(value)) for key, value in found.items()}

    def _with_variables(self, name: str, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            found = os.environ.get(match[1], match[2])
            if found is None:
                raise TaskFolderError(f"{self.file}: {self.prefix}.{name} needs the environment variable {match[1]}")
            return found

        return _VARIABLE.sub(value, text).replace("\0", "")

    def wrong(self, name: str, wanted: str) -> None:
        """Say what a value should be.

        Raises:
            TaskFolderError: always.
        """
        where = f"{self.prefix}.{name}".strip(".")
        raise TaskFolderError(f"{self.file}: {where} must be {wanted}, got {self.data.get(name)!r}")


def read_text(path: Path) -> str:
    """A file of a task.

    Raises:
        TaskFolderError: if it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskFolderError(f"{path} cannot be read: {error}") from error
