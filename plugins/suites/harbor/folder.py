"""The common data of Harbor's and Terminal-Bench's task folders."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollenv.core.errors import UsageError

#: Maximum number of MiB in a task's requirements.
_MOST_MB = 1 << 22
_NAME = re.compile(r"[^=\0]+")
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


class TaskFolderError(UsageError):
    """A task folder is malformed."""


@dataclass(frozen=True)
class Healthcheck:
    """A command that is repeated after the start until it succeeds, with Docker's settings in seconds."""

    command: str
    interval: float = 5.0
    timeout: float = 30.0
    start_period: float = 0.0
    retries: int = 3


@dataclass(frozen=True)
class CollectStep:
    """A command that collects results before the agent's processes are killed."""

    command: str
    timeout: float = 60.0
    user: str = ""


@dataclass(frozen=True)
class Verifier:
    """The grading of a task, or of one of its steps.

    Attributes:
        tests: folders for /tests, in order: the task's, overlaid by the step's.
        script: name of the script in it; "" for pytest on ``test_outputs.py``.
        seconds: time limit.
        env: environment variables of the script.
        user: user that runs it; "" for the image's.
        separate: whether it has its own machine, built from the Dockerfile in ``tests``, else from ``image``, else from
            the agent's image.
        image: image of a registry; "" for none.
        collect: commands that collect results.
        writes_reward: whether the script writes the reward; else the exit code decides.
    """

    tests: tuple[Path, ...]
    script: str = "test.sh"
    seconds: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    separate: bool = False
    image: str = ""
    collect: tuple[CollectStep, ...] = ()
    writes_reward: bool = True

    def find(self, name: str) -> Path | None:
        """Return a file of the tests by name; a step's own takes precedence over the task's."""
        return next((tests / name for tests in reversed(self.tests) if (tests / name).is_file()), None)

    def files(self, pattern: str = "*") -> Iterator[Path]:
        """Yield the tests' files that match a pattern."""
        for tests in self.tests:
            yield from sorted(path for path in tests.rglob(pattern) if path.is_file())


@dataclass(frozen=True)
class Artifact:
    """Files of the agent's machine for a separate verifier."""

    source: str
    destination: str
    exclude: tuple[str, ...] = ()
    """Patterns of names to exclude."""


@dataclass(frozen=True)
class TaskStep:
    """A step of a task, with its own instruction and grading."""

    name: str
    instruction: str
    verifier: Verifier
    solution: Path | None
    user: str = ""
    """User of the agent; "" for the image's."""
    agent_seconds: float | None = None
    setup: Path | None = None
    min_reward: Mapping[str, float] = field(default_factory=dict)
    healthcheck: Healthcheck | None = None
    artifacts: tuple[Artifact, ...] = ()


@dataclass(frozen=True)
class TaskFolder:
    """A task.

    Attributes:
        kind: ``harbor`` or ``tb``.
        steps: one, or several that share a machine.
        context: build context of the Dockerfile.
        ignored: files of the context to exclude from images.
        dockerfile: its name in the context; "" for none.
        image: image of a registry; "" for none.
        env: environment variables of all processes.
        build_seconds: time limit of each instruction of the Dockerfile.
        memory_mb, storage_mb: requirements of the task.
        workdir: working folder of commands; "" for the image's.
        solution_env: environment variables of the solution.
        network_mode: ``public``, ``no-network`` or ``allowlist``.
        allowed_hosts: hosts for ``allowlist``.
        final_only: whether the last step's reward is the task's; else the mean.
        metadata: copied from the folder.
    """

    path: Path
    name: str
    kind: str
    steps: tuple[TaskStep, ...]
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
    """A table of a task file with validated access. Unknown keys are ignored."""

    def __init__(self, file: Path, data: Any, prefix: str = ""):
        self.file, self.prefix = file, prefix
        if not isinstance(data, Mapping):
            raise TaskFolderError(f"{file}: {prefix or 'it'} must be a table, got {data!r}")
        self.data = data

    def table(self, name: str) -> Fields:
        """Return a table in it; by default an empty one."""
        return Fields(self.file, self.data.get(name) or {}, f"{self.prefix}.{name}".strip("."))

    def tables(self, name: str) -> list[Fields]:
        """Return a list of tables in it."""
        found = self.data.get(name) or []
        if not isinstance(found, list):
            self.wrong(name, "a list of tables")
        return [Fields(self.file, each, f"{self.prefix}.{name}[{i}]".strip(".")) for i, each in enumerate(found)]

    def text(self, name: str, default: str = "") -> str:
        """Return a text."""
        value = self.data.get(name, default)
        if value is None:
            return default
        if not isinstance(value, str):
            self.wrong(name, "a text")
        return str(value)

    def seconds(self, name: str, default: float | None) -> float | None:
        """Return a number above 0, or the default."""
        value = self.data.get(name, default)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            self.wrong(name, "a number of seconds above 0")
        return float(value)

    def some_seconds(self, name: str, default: float) -> float:
        """Return a number above 0, never None."""
        return self.seconds(name, default) or default

    def megabytes(self, name: str, old: str = "") -> int | None:
        """Return a number of MiB; old files have a text such as ``2G`` under the name ``old``."""
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
        """Return finite numbers by name; the name of a single one is ``reward``."""
        found = self.data.get(name)
        if found is None:
            return {}
        table = found if isinstance(found, Mapping) else {"reward": found}
        good = (isinstance(each, int | float) and not isinstance(each, bool) for each in table.values())
        if not all(good) or not all(map(math.isfinite, table.values())):
            self.wrong(name, "a number, or a table of numbers")
        return {str(key): float(each) for key, each in table.items()}

    def variables(self, name: str) -> dict[str, str]:
        """Return environment variables, with ``${NAME}`` and ``${NAME:-default}`` from this process's environment."""
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
        """Report an invalid value, with a description of valid ones."""
        where = f"{self.prefix}.{name}".strip(".")
        raise TaskFolderError(f"{self.file}: {where} must be {wanted}, got {self.data.get(name)!r}")


def read_text(path: Path) -> str:
    """Read a file of a task."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskFolderError(f"{path} cannot be read: {error}") from error
