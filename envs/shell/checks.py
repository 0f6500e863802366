"""Checks of files. Each is a dataclass of expectations; its call returns a description of the error, empty if none.

Expected values are never written into the machine. Nothing raises, whatever the machine contains.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollenv.envs.shell.workspace import Workspace

_NUMBER = re.compile(r"[-+]?[0-9]{1,18}(\.[0-9]{0,18})?")
#: Maximum number of entries of a tree; a larger tree is wrong.
_MOST_ENTRIES = 2000


def text_of(workspace: Workspace, path: str) -> str | None:
    """Return a file's text; None if it is not a readable file, or not text."""
    data = workspace.read(path)
    try:
        return None if data is None else data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def lines_of(text: str) -> list[str]:
    """Split into lines, without trailing spaces and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


@dataclass(frozen=True)
class Number:
    """Checks that a file contains one number and nothing else; surrounding space is ignored."""

    path: str
    value: float
    tolerance: float = 0.0

    def __call__(self, workspace: Workspace) -> str:
        text = (text_of(workspace, self.path) or "").strip()
        if not _NUMBER.fullmatch(text):
            return f"{self.path} does not hold a number"
        if abs(float(text) - self.value) <= self.tolerance + 1e-9:
            return ""
        return f"{self.path} holds a wrong number"


@dataclass(frozen=True)
class Lines:
    """Checks that a file contains these lines, ignoring trailing spaces and empty lines at the end."""

    path: str
    lines: tuple[str, ...]
    ordered: bool = True

    def __call__(self, workspace: Workspace) -> str:
        text = text_of(workspace, self.path)
        if text is None:
            return f"{self.path} is not a text file"
        actual, wanted = lines_of(text), lines_of("\n".join(self.lines))
        if not self.ordered:
            actual, wanted = sorted(line for line in actual if line), sorted(wanted)
        return "" if actual == wanted else f"{self.path} holds other lines"


def Line(path: str, text: str) -> Lines:
    """Check that a file contains one line."""
    return Lines(path, (text,))


@dataclass(frozen=True)
class Paths(Lines):
    """Checks that a file lists these paths, one per line, in any order; a leading ``./`` is ignored."""

    ordered: bool = False

    def __call__(self, workspace: Workspace) -> str:
        text = text_of(workspace, self.path)
        if text is None:
            return f"{self.path} is not a text file"
        actual = sorted(line.strip().removeprefix("./") for line in text.splitlines() if line.strip())
        return "" if actual == sorted(self.lines) else f"{self.path} lists other paths"


@dataclass(frozen=True)
class Table:
    """Checks that a file is a CSV table with these rows, with any quoting and any usual format of numbers."""

    path: str
    rows: tuple[tuple[str, ...], ...]
    ordered: bool = True
    delimiter: str = ","

    def __call__(self, workspace: Workspace) -> str:
        try:
            reader = csv.reader(io.StringIO(text_of(workspace, self.path) or ""), delimiter=self.delimiter)
            actual = [tuple(cell.strip() for cell in row) for row in reader if row]
        except csv.Error:
            return f"{self.path} is not a table"
        wanted = [tuple(cell.strip() for cell in row) for row in self.rows]
        if not self.ordered:
            actual[1:], wanted[1:] = sorted(actual[1:]), sorted(wanted[1:])
        same = len(actual) == len(wanted) and all(map(_same_cells, actual, wanted))
        return "" if same else f"{self.path} holds other rows"


def _same_cells(actual: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    return len(actual) == len(wanted) and all(map(_same_cell, actual, wanted))


def _same_cell(actual: str, wanted: str) -> bool:
    if actual == wanted:
        return True
    numbers = "." in wanted and _NUMBER.fullmatch(actual) and _NUMBER.fullmatch(wanted)
    return bool(numbers) and abs(float(actual) - float(wanted)) < 1e-6


@dataclass(frozen=True)
class HoldsJson:
    """Checks that a file contains this JSON value, with any order of keys and any layout."""

    path: str
    text: str
    """The value as JSON."""

    def __call__(self, workspace: Workspace) -> str:
        try:
            actual = json.loads(text_of(workspace, self.path) or "")
            if _same_json(actual, json.loads(self.text)):
                return ""
            return f"{self.path} holds another value"
        except (ValueError, RecursionError):
            return f"{self.path} is not JSON"


def _same_json(actual: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        same_keys = isinstance(actual, dict) and actual.keys() == wanted.keys()
        return same_keys and all(_same_json(actual[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(actual, list) and len(actual) == len(wanted) and all(map(_same_json, actual, wanted))
    if isinstance(wanted, int | float) and not isinstance(wanted, bool):
        number = isinstance(actual, int | float) and not isinstance(actual, bool)
        return number and abs(actual) < 1e15 and abs(actual - wanted) < 1e-6
    return type(actual) is type(wanted) and bool(actual == wanted)


@dataclass(frozen=True)
class Holds:
    """Checks that a file contains these bytes; with ``loose``, spaces and empty lines at the end are ignored."""

    path: str
    data: bytes
    loose: bool = True

    def __call__(self, workspace: Workspace) -> str:
        actual = workspace.read(self.path)
        if actual is None:
            return f"{self.path} is not a readable file"
        same = actual.rstrip() == self.data.rstrip() if self.loose else actual == self.data
        return "" if same else f"{self.path} has other contents"


@dataclass(frozen=True)
class HoldsTree:
    """Checks that a folder has exactly these files below it, and, if set, exactly these ``folders``."""

    path: str
    files: Mapping[str, bytes]
    folders: frozenset[str] | None = None

    def __call__(self, workspace: Workspace) -> str:
        found = walk(workspace, self.path)
        if found is None:
            return f"{self.path} holds far too much"
        files, folders = found
        if files != set(self.files):
            return f"{self.path} has other files"
        if self.folders is not None and folders != self.folders:
            return f"{self.path} has other folders"
        faults = (Holds(f"{self.path}/{name}", data, loose=False)(workspace) for name, data in self.files.items())
        return next((fault for fault in faults if fault), "")


def walk(workspace: Workspace, top: str) -> tuple[set[str], set[str]] | None:
    """Return the paths of files and of folders below a folder; None if there are too many. Links count as files."""
    files: set[str] = set()
    folders: set[str] = set()
    waiting = [""]
    while waiting:
        base = waiting.pop()
        for entry in workspace.listing(f"{top}/{base}"):
            name = base + entry.name
            if entry.type == "dir":
                folders.add(name)
                waiting.append(f"{name}/")
            else:
                files.add(name)
        if len(files) + len(folders) > _MOST_ENTRIES:
            return None
    return files, folders


@dataclass(frozen=True)
class Missing:
    """Checks that nothing exists at a path."""

    path: str

    def __call__(self, workspace: Workspace) -> str:
        return "" if workspace.look(self.path) is None else f"{self.path} is still there"


@dataclass(frozen=True)
class Folder:
    """Checks that a path is a folder."""

    path: str

    def __call__(self, workspace: Workspace) -> str:
        entry = workspace.look(self.path)
        return "" if entry is not None and entry.type == "dir" else f"{self.path} is not a folder"


@dataclass(frozen=True)
class Modes:
    """Checks the permissions of files and folders."""

    modes: Mapping[str, int]
    """Permission bits by path, with set-user-id, set-group-id and sticky."""

    def __call__(self, workspace: Workspace) -> str:
        for path, mode in self.modes.items():
            entry = workspace.look(path)
            if entry is None or entry.type == "link":
                return f"{path} is gone"
            if entry.mode != mode:
                return f"{path} has other permissions"
        return ""


def unchanged(files: Mapping[str, bytes | str], *paths: str) -> tuple[Holds, ...]:
    """Make checks that files are unchanged."""
    kept = ((path, files[path]) for path in paths or files)
    return tuple(Holds(path, data.encode() if isinstance(data, str) else data, loose=False) for path, data in kept)
