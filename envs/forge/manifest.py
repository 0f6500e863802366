"""The record of an output folder, one JSON object per line, so that a run can resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from rollenv.core import RollenvError

NAME = "forge.jsonl"


@dataclass(frozen=True)
class Tried:
    """One mutant and what came of it.

    Args:
        why: the verdict: ``kept``, ``duplicate``, ``equivalent``, ``invalid``, ``crowded``, ``told`` (another file of
            the project has the answer) or one of the judge's.
        function: first line of the function around it, as ``path:line``.
        task: folder of the task, if it was kept.
        digest: names the change, wherever it is.
    """

    package: str
    version: str
    seed: int
    key: str
    why: str
    function: str = ""
    task: str = ""
    digest: str = ""
    seconds: float = 0.0


class Manifest:
    """The rows of ``forge.jsonl`` in a folder.

    A last line that was cut off is dropped, and so is a task whose folder is gone: it will be made again.

    Args:
        folder: of the tasks; made if it is missing.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.path = folder, folder / NAME
        self.rows = [row for row in self._read() if not row.task or (folder / row.task / "task.toml").is_file()]
        self.digests = {row.digest for row in self.rows if row.why == "kept"}

    def _read(self) -> Iterator[Tried]:
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            self.path.write_bytes(whole)
        names = {one.name for one in fields(Tried)}
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                row = json.loads(line)
                yield Tried(**{name: row[name] for name in names})
            except (ValueError, KeyError, TypeError) as error:
                raise RollenvError(f"{self.path}, line {number} is damaged: {error!r}; remove it to go on") from error

    def add(self, row: Tried) -> None:
        """Keep a row, on disk too."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        self.rows.append(row)
        if row.why == "kept":
            self.digests.add(row.digest)

    def of(self, package: str, version: str, seed: int) -> dict[str, Tried]:
        """The rows of a package, by key."""
        wanted = (package, version, seed)
        return {row.key: row for row in self.rows if (row.package, row.version, row.seed) == wanted}
