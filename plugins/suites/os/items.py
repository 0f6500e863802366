"""AgentBench's published tasks in an operating system."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollenv.core.errors import UsageError

LANGUAGES = ("bash", "python")
#: Commands that need a network.
_INSTALLS = re.compile(r"\bapt(-get)?\s+(update|install|remove)\b")


@dataclass(frozen=True)
class Script:
    """A program."""

    code: str
    language: str = "bash"

    def words(self, *arguments: str) -> list[str]:
        """Return the command line."""
        if self.language == "python":
            return ["python3", "-c", self.code, *arguments]
        return ["bash", "-c", self.code, "--", *arguments]


@dataclass(frozen=True)
class Item:
    """One task."""

    name: str
    """Folder or split, file, and number in the file, such as ``4-Q09-0``."""
    description: str
    init: tuple[Script, ...] = ()
    """Scripts that prepare the system."""
    start: Script | None = None
    """Script that starts programs for the task."""
    answer: str | None = None
    """The right answer, or with ``regex`` a pattern to find in the answer; None if scripts check."""
    regex: bool = False
    strip: bool = True
    """True to ignore space around an answer."""
    check: tuple[Script | None, ...] = ()
    """Scripts that check in sequence; None means the example."""
    example: Script | None = None
    """A solution, whose output is the answer."""

    @property
    def needs_network(self) -> bool:
        """True if it installs packages."""
        scripts = (*self.init, *([self.example] if self.example else []))
        return any(_INSTALLS.search(script.code) for script in scripts)


def read_items(root: Path, split: str) -> list[Item]:
    """Read the tasks of a split (``test``, ``dev`` or ``train``), in the order of the files' names.

    Args:
        root: the folder with ``data``, ``scripts`` and ``train_0317``.
    """
    sources = {
        "test": [(path, path.parent.name) for path in sorted(root.glob("data/[1-7]/*.json"))],
        "dev": [(root / "data" / "dev.json", "dev")],
        "train": [(root / "train_0317" / "training.json", "7")],
    }[split]
    found: list[Item] = []
    for path, scripts in sources:
        name = f"{scripts}-{path.stem}" if split == "test" else split
        found += _read_file(path, root / "scripts" / scripts, name)
    return found


def _read_file(path: Path, scripts: Path, name: str) -> Iterator[Item]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: the tasks cannot be read: {error}") from error
    for number, row in enumerate(rows if isinstance(rows, list) else [rows]):
        try:
            yield item_of(row, scripts, f"{name}-{number}")
        except (KeyError, TypeError, AttributeError, OSError, ValueError, re.error) as error:
            problem = f"there is no {error}" if isinstance(error, KeyError) else str(error)
            raise UsageError(f"{path}, task {number}: {problem}") from error


def item_of(row: Mapping[str, Any], scripts: Path, name: str) -> Item:
    """Parse one task. ``scripts``: base folder of the paths of its scripts."""

    def script(given: Any) -> Script:
        if isinstance(given, str):
            return Script(given)
        language = given.get("language", "bash")
        if language not in LANGUAGES:
            raise ValueError(f"a script is in {language!r}; there are {', '.join(LANGUAGES)}")
        code = (scripts / given["file"]).read_text(encoding="utf-8") if "file" in given else given["code"]
        return Script(code, language)

    create, evaluation = row.get("create", {}), row["evaluation"]
    if isinstance(create, list):  # two tasks have their check there, which upstream ignores
        create = {}
    if "image" in create:
        raise ValueError(f"it needs the Docker image {create['image']!r}; only AgentBench's local images are known")
    start, example = row.get("start"), evaluation.get("example", row.get("example"))
    return Item(
        name,
        str(row["description"]),
        tuple(script(each) for each in _several(create.get("init", []))),
        None if start is None else script(start),
        example=None if example is None else script(example),
        **_wanted(evaluation, script),
    )


def _wanted(evaluation: Mapping[str, Any], script: Any) -> dict[str, Any]:
    if "match" in evaluation:
        match = evaluation["match"]
        if isinstance(match, str):
            return {"answer": match}
        regex = "answer" not in match
        if regex:
            re.compile(match["regex"])
        return {"answer": match["regex" if regex else "answer"], "regex": regex, "strip": bool(match.get("strip"))}
    check = tuple(None if each is None else script(each) for each in _several(evaluation["check"]))
    if None in check and "example" not in evaluation:
        raise ValueError("a check stands for the example, and there is none")
    if not check:
        raise ValueError("there is nothing to check")
    return {"check": check}


def _several(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]
