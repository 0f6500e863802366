"""A file system in memory: its functions, generated trees, and requests."""

from __future__ import annotations

import posixpath
import random
import re
from typing import Any

from rollenv.core.tools.backend import ToolError, tool
from rollenv.envs.tools.base import Call
from rollenv.envs.tools.generated import words
from rollenv.envs.tools.generated.generate import GeneratedToolEnv
from rollenv.envs.tools.generated.goals import Fact, Goal, GoalDraw, GoalKind, Path, World

#: Limits: files and folders, characters of a path and of a file.
_MOST_ENTRIES, _MOST_PATH, _MOST_TEXT = 1000, 200, 20_000


def _clean(path: str) -> str:
    if not path.startswith("/") or len(path) > _MOST_PATH or "\x00" in path:
        raise ToolError(f"a path begins with / and has at most {_MOST_PATH} characters; got {path[:60]!r}")
    return posixpath.normpath("/" + path.lstrip("/"))


class FileWorld(World):
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


def make_tree(rng: random.Random, size: int) -> FileWorld:
    """Generate a tree of ``size`` files and a folder for every four, all with different names."""
    folders = ["/"]
    for name in rng.sample(words.TOPICS, min(len(words.TOPICS), max(3, size // 4))):
        folders.append(posixpath.join(rng.choice(folders[-4:]), name))
    names = words.pairs(rng, words.COLOURS, words.THINGS, size)
    files: dict[str, Any] = {}
    for name in names:
        kind, make = rng.choice((("txt", _note), ("cfg", _settings)))
        files[posixpath.join(rng.choice(folders), f"{name.replace(' ', '_')}.{kind}")] = make(rng)
    return FileWorld({"folders": dict.fromkeys(folders, True), "files": files})


def _note(rng: random.Random) -> str:
    head = rng.choice(("# keep", "# draft", "# old"))
    about = f"about: {rng.choice(words.TOPICS)} {rng.choice(words.KINDS)}"
    return "\n".join([head, about, f"code: {words.code(rng)}", f"by: {words.name(rng)}"])


def _settings(rng: random.Random) -> str:
    head = rng.choice(("# locked", "# open", "# open"))
    lines = [f"{name} = {rng.randint(1000, 9999)}" for name in rng.sample(SETTINGS, 3)]
    return "\n".join([head, *lines])


_KEEP = "A file whose first line is # keep is never deleted."


def _file(draw: GoalDraw, kind: str = "", head: str = "", has_head: bool = True) -> str:
    """Draw the path of a file of a kind, with or without a first line."""
    files: dict[str, str] = dict(draw.state["files"])
    fits = [path for path, text in files.items() if path.endswith(kind) and text.startswith(head) == has_head]
    return draw.one(fits)


def _name(path: str) -> str:
    return posixpath.basename(path)


def _find(*paths: str) -> list[Call]:
    return [("find", {"name": _name(path)}) for path in paths]


def _folder(draw: GoalDraw, but: str = "") -> str:
    folders: list[str] = [one for one in draw.state["folders"] if one not in ("/", but)]
    return draw.rng.choice(folders)


def _read(path: str) -> list[Call]:
    return [("read_file", {"path": path})]


def _at(*paths: str) -> list[Path]:
    """Return the parts of the state that a request about these paths depends on."""
    return [("files", path) for path in paths]


def _move(draw: GoalDraw, breaks: bool) -> Goal | None:
    path = _file(draw)
    folder = _folder(draw, posixpath.dirname(path))
    target = posixpath.join(folder, _name(path))
    ask = draw.say(f"Move {_name(path)} to another folder", f"{_name(path)} is in the wrong folder; move it")
    fact = Fact(("where", "folder", "which"), f"To the folder {_name(folder)}.", f"{ask}.", "To which folder?")
    act = [("move", {"source": path, "target": target})]
    look = [_find(path, folder)]
    return Goal(f"{ask}: {_name(folder)}.", look, act, blocks=["move", "delete_file"], fact=fact, reads=_at(path))


def _rename(draw: GoalDraw, breaks: bool) -> Goal | None:
    path = _file(draw)
    new = f"{words.name(draw.rng).lower()}{posixpath.splitext(path)[1]}"
    ask = draw.say(f"Rename {_name(path)}", f"Give {_name(path)} another name")
    fact = Fact(("name", "what", "how"), f"Call it {new}", f"{ask}.", "What is the new name?")
    act = [("move", {"source": path, "target": posixpath.join(posixpath.dirname(path), new)})]
    blocks = ["move", "delete_file"]
    return Goal(f"{ask}; the new name is {new}", [_find(path)], act, blocks=blocks, fact=fact, reads=_at(path))


def _copy(draw: GoalDraw, breaks: bool) -> Goal | None:
    path = _file(draw)
    folder, new = _folder(draw), f"{words.name(draw.rng).lower()}{posixpath.splitext(path)[1]}"
    ask = draw.say(
        f"Copy {_name(path)} into the folder {_name(folder)}; call the copy {new}",
        f"I need a copy of {_name(path)} in the folder {_name(folder)}, with the name {new}",
    )
    act = [("copy_file", {"source": path, "target": posixpath.join(folder, new)})]
    return Goal(ask, [_find(path, folder)], act, blocks=["copy_file", "write_file"], reads=_at(path))


def _delete(draw: GoalDraw, breaks: bool) -> Goal | None:
    path = _file(draw, ".txt", "# keep", breaks)
    ask = draw.say(f"Delete {_name(path)}", f"{_name(path)} can go; delete it")
    act = [("delete_file", {"path": path})]
    return Goal(ask, [_find(path), _read(path)], act, blocks=["delete_file"], reads=_at(path))


def _delete_by_code(draw: GoalDraw, breaks: bool) -> Goal | None:
    path = _file(draw, ".txt", "# keep", breaks)
    code = _value(draw, path, "code: ")
    ask = draw.say(f"Delete the file with the code {code}", f"The file that has the code {code} is to be deleted")
    look = [[("search_text", {"text": code})], _read(path)]
    return Goal(ask, look, [("delete_file", {"path": path})], blocks=["delete_file"], reads=[("files",)])


def _value(draw: GoalDraw, path: str, before: str) -> str:
    return str(draw.state["files"][path]).partition(before)[2].partition("\n")[0]


def _append(draw: GoalDraw, breaks: bool) -> Goal | None:
    path = _file(draw, ".txt")
    line = f"seen: {words.name(draw.rng)} {draw.rng.randint(10, 99)}"
    ask = draw.say(f"Add a line at the end of {_name(path)}", f"{_name(path)} needs one more line at its end")
    fact = Fact(("line", "what", "text", "which"), f'The line is "{line}".', f"{ask}.", "What is the line?")
    act = [("append_line", {"path": path, "line": line})]
    blocks = ["append_line", "write_file", "replace_text"]
    return Goal(f'{ask}: "{line}".', [_find(path)], act, blocks=blocks, fact=fact, reads=_at(path))


def _set(draw: GoalDraw, breaks: bool) -> Goal | None:
    path = _file(draw, ".cfg", "# locked", breaks)
    name, old = draw.rng.choice(re.findall(r"(\w+) = (\d+)", draw.state["files"][path]))
    new = str(draw.rng.randint(1000, 9999))
    ask = draw.say(f"Change {name} in {_name(path)}", f"In {_name(path)}, {name} has to have another value")
    fact = Fact(("value", "what", "which", name), f"Set it to {new}.", f"{ask}.", "What is the new value?")
    act = [("replace_text", {"path": path, "old": f"{name} = {old}", "new": f"{name} = {new}"})]
    look = [_find(path), _read(path)]
    blocks = ["replace_text", "write_file"]
    return Goal(f"{ask}: set it to {new}.", look, act, blocks=blocks, fact=fact, reads=_at(path))


def _make_folder(draw: GoalDraw, breaks: bool) -> Goal | None:
    folder, new = _folder(draw), words.name(draw.rng).lower()
    ask = draw.say(
        f"Make a folder {new} in the folder {_name(folder)}", f"The folder {_name(folder)} needs a folder {new} in it"
    )
    act = [("make_folder", {"path": posixpath.join(folder, new)})]
    return Goal(ask, [_find(folder)], act, blocks=["make_folder"])


def _collect(draw: GoalDraw, breaks: bool) -> Goal | None:
    paths = [path for path in draw.state["files"] if path.endswith(".txt")]
    if len(paths) < 2:
        return None
    one, two = draw.rng.sample(paths, 2)
    folder, new = _folder(draw), f"{words.name(draw.rng).lower()}.txt"
    ask = draw.say(
        f"Write a file {new} in the folder {_name(folder)} with two lines: "
        f"the code that {_name(one)} gives, then that of {_name(two)}",
        f"Put the codes from {_name(one)} and {_name(two)}, in this order, one a line, "
        f"into a new file {new} in the folder {_name(folder)}",
    )
    text = "\n".join(_value(draw, path, "code: ") for path in (one, two))
    act = [("write_file", {"path": posixpath.join(folder, new), "text": text})]
    look = [_find(one, two, folder), [*_read(one), *_read(two)]]
    return Goal(ask, look, act, blocks=["write_file", "copy_file"], reads=_at(one, two))


def _ask_value(draw: GoalDraw, breaks: bool) -> Goal | None:
    path = _file(draw, ".cfg")
    name, value = draw.rng.choice(re.findall(r"(\w+) = (\d+)", draw.state["files"][path]))
    ask = draw.say(f"What is the value of {name} in {_name(path)}?", f"Tell me what {name} is set to in {_name(path)}.")
    return Goal(
        ask,
        [_find(path), _read(path)],
        done=f"It is {value}.",
        answers=[value],
        reads=_at(path),
        rivals=lambda state: re.findall(r" = (\d+)", "\n".join(state["files"].values())),
    )


def _ask_code(draw: GoalDraw, breaks: bool) -> Goal | None:
    path = _file(draw, ".txt")
    code = _value(draw, path, "code: ")
    ask = draw.say(f"Which code does {_name(path)} give?", f"What is the code in {_name(path)}?")
    return Goal(
        ask,
        [_find(path), _read(path)],
        done=f"The code is {code}.",
        answers=[code],
        reads=_at(path),
        rivals=lambda state: re.findall(r"code: (\w+)", "\n".join(state["files"].values())),
    )


def _ask_file(draw: GoalDraw, breaks: bool) -> Goal | None:
    path = _file(draw, ".txt")
    code = _value(draw, path, "code: ")
    ask = draw.say(f"Which file has the code {code}?", f"Find the file with the code {code} and tell me its name.")
    look = [[("search_text", {"text": code})]]
    return Goal(
        ask,
        look,
        done=f"It is {_name(path)}",
        answers=[_name(path)],
        reads=[("files",)],
        rivals=lambda state: map(_name, state["files"]),
    )


class FilesEnv(GeneratedToolEnv):
    """A file system: files are found, read, changed and put in order on request."""

    intro = "You look after a file system. No two files or folders have the same name."
    templates = (
        GoalKind(_move),
        GoalKind(_rename),
        GoalKind(_copy),
        GoalKind(_delete, _KEEP),
        GoalKind(_delete_by_code, _KEEP),
        GoalKind(_append),
        GoalKind(_set, "The text of a file whose first line is # locked is never changed."),
        GoalKind(_make_folder),
        GoalKind(_collect),
        GoalKind(_ask_value),
        GoalKind(_ask_code),
        GoalKind(_ask_file),
    )

    def world(self, rng: random.Random) -> FileWorld:
        return make_tree(rng, self.size)
