"""The functions of a file system that lives in memory, and trees to call them on."""

from __future__ import annotations

import posixpath
import random
from typing import Any

from rollenv.envs.tools.generated import words
from rollenv.envs.tools.generated.goals import World
from rollenv.tools.backend import ToolError, tool

#: Limits: files and folders, characters of a path and of a file.
_MOST_ENTRIES, _MOST_PATH, _MOST_TEXT = 1000, 200, 20_000


def _clean(path: str) -> str:
    if not path.startswith("/") or len(path) > _MOST_PATH or "\x00" in path:
        raise ToolError(f"a path begins with / and has at most {_MOST_PATH} characters; got {path[:60]!r}")
    return posixpath.normpath("/" + path.lstrip("/"))


class Tree(World):
    """Files with text in folders. A text ends without empty lines."""

    @property
    def files(self) -> dict[str, str]:
        """Texts by path."""
        return self.state["files"]  # type: ignore[no-any-return]

    @property
    def folders(self) -> dict[str, bool]:
        """All folders by path."""
        return self.state["folders"]  # type: ignore[no-any-return]

    def _file(self, path: str) -> str:
        path = _clean(path)
        if path not in self.files:
            raise ToolError(f"{path} is {'a folder' if path in self.folders else 'not there'}; a file is needed")
        return path

    def _new(self, path: str) -> str:
        path = _clean(path)
        if path in self.files or path in self.folders:
            raise ToolError(f"{path} is there already")
        if posixpath.dirname(path) not in self.folders:
            raise ToolError(f"there is no folder {posixpath.dirname(path)}; make it first")
        if len(self.files) + len(self.folders) >= _MOST_ENTRIES:
            raise ToolError(f"the disk is full: it holds {_MOST_ENTRIES} files and folders")
        return path

    def _write(self, path: str, text: str) -> None:
        if len(text) > _MOST_TEXT:
            raise ToolError(f"a file has at most {_MOST_TEXT} characters, not {len(text)}")
        self.files[path] = text.rstrip()

    @tool
    def list_folder(self, path: str) -> list[str]:
        """What is in a folder; folders end with a slash."""
        folder = _clean(path)
        if folder not in self.folders:
            raise ToolError(f"there is no folder {folder}")
        inside = [f"{one}/" for one in self.folders if one != "/" and posixpath.dirname(one) == folder]
        return sorted([*inside, *(one for one in self.files if posixpath.dirname(one) == folder)])

    @tool
    def read_file(self, path: str) -> str:
        """The text of a file."""
        return self.files[self._file(path)]

    @tool
    def find(self, name: str) -> list[str]:
        """Paths of files and folders whose own name contains a text; folders end with a slash."""
        entries = [*self.files, *(f"{one}/" for one in self.folders if one != "/")]
        return sorted(one for one in entries if name.lower() in posixpath.basename(one.rstrip("/")).lower())[:100]

    @tool
    def search_text(self, text: str) -> list[str]:
        """Lines that contain a text, each as path: line."""
        if not text.strip():
            raise ToolError("the text to search for is empty")
        lines = (f"{path}: {line}" for path in sorted(self.files) for line in self.files[path].split("\n"))
        return [line for line in lines if text.lower() in line.partition(": ")[2].lower()][:100]

    @tool
    def write_file(self, path: str, text: str) -> str:
        """Write a whole file: a new one, or over an old one.

        Args:
            path: of the file.
            text: all that it is to contain.
        """
        path = _clean(path)
        self._write(path if path in self.files else self._new(path), text)
        return f"{path} is written"

    @tool
    def append_line(self, path: str, line: str) -> str:
        """Add a line at the end of a file.

        Args:
            path: of the file.
            line: to add.
        """
        path = self._file(path)
        self._write(path, f"{self.files[path]}\n{line}" if self.files[path] else line)
        return f"{path} has one more line"

    @tool
    def replace_text(self, path: str, old: str, new: str) -> str:
        """Replace a text that occurs once in a file by another one.

        Args:
            path: of the file.
            old: a part of its text.
            new: what comes in its place.
        """
        path = self._file(path)
        if not old or self.files[path].count(old) != 1:
            raise ToolError(f"{old[:60]!r} does not occur exactly once in {path}")
        self._write(path, self.files[path].replace(old, new))
        return f"{path} is changed"

    @tool
    def move(self, source: str, target: str) -> str:
        """Move or rename a file; the target is its new path.

        Args:
            source: the path of the file.
            target: its new path, with its name.
        """
        source, target = self._file(source), self._new(target)
        self.files[target] = self.files.pop(source)
        return f"{source} is now {target}"

    @tool
    def copy_file(self, source: str, target: str) -> str:
        """Copy a file; the target is the path of the copy.

        Args:
            source: the path of the file.
            target: the path of the copy, with its name.
        """
        source, target = self._file(source), self._new(target)
        self.files[target] = self.files[source]
        return f"{source} is copied to {target}"

    @tool
    def delete_file(self, path: str) -> str:
        """Delete a file."""
        path = self._file(path)
        del self.files[path]
        return f"{path} is deleted"

    @tool
    def make_folder(self, path: str) -> str:
        """Make a folder; the one around it has to be there."""
        path = self._new(path)
        self.folders[path] = True
        return f"{path} is there"


SETTINGS = ("retries", "timeout", "workers", "limit", "margin", "volume")


def make_tree(rng: random.Random, size: int) -> Tree:
    """A tree of folders and files; no two have the same name.

    Args:
        size: files; there is a folder for every four.
    """
    folders = ["/"]
    for name in rng.sample(words.TOPICS, min(len(words.TOPICS), max(3, size // 4))):
        folders.append(posixpath.join(rng.choice(folders[-4:]), name))
    names = words.pairs(rng, words.COLOURS, words.THINGS, size)
    files: dict[str, Any] = {}
    for name in names:
        kind, make = rng.choice((("txt", _note), ("cfg", _settings)))
        files[posixpath.join(rng.choice(folders), f"{name.replace(' ', '_')}.{kind}")] = make(rng)
    return Tree({"folders": dict.fromkeys(folders, True), "files": files})


def _note(rng: random.Random) -> str:
    head = rng.choice(("# keep", "# draft", "# old"))
    about = f"about: {rng.choice(words.TOPICS)} {rng.choice(words.KINDS)}"
    return "\n".join([head, about, f"code: {words.code(rng)}", f"by: {words.name(rng)}"])


def _settings(rng: random.Random) -> str:
    head = rng.choice(("# locked", "# open", "# open"))
    lines = [f"{name} = {rng.randint(1000, 9999)}" for name in rng.sample(SETTINGS, 3)]
    return "\n".join([head, *lines])
