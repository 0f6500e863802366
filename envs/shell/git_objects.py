"""A writer of git repositories, and a reader for ones on untrusted machines, both without git.

Formats: gitformat-pack(5), gitrepository-layout(5). Hooks and configuration of the repository are ignored.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rollenv.envs.shell.packing import zlibbed
from rollenv.envs.shell.workspace import Workspace

_HASH = re.compile(r"[0-9a-f]{40}")
_KINDS = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
#: Maximum size of an unpacked object in bytes, and length of a chain of deltas.
_MOST_BYTES, _MOST_DELTAS = 4 << 20, 60
_CONFIG = """[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
[user]
\tname = Agent
\temail = agent@example.org
[commit]
\tgpgsign = false
"""


@dataclass(frozen=True)
class Commit:
    """A commit to be written."""

    files: Mapping[str, str]
    message: str
    author: str
    when: datetime.datetime
    parents: tuple[str, ...] = ()


class Repository:
    """Objects, branches and tags for files below ``.git``."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.refs: dict[str, str] = {}

    def _add(self, kind: str, data: bytes) -> str:
        whole = f"{kind} {len(data)}\0".encode() + data
        name = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
        self.objects[name] = zlibbed(whole)
        return name

    def tree(self, files: Mapping[str, str]) -> str:
        """Add the tree with these files, path to contents, and return its name."""
        below: dict[str, dict[str, str]] = {}
        entries: list[tuple[str, bytes]] = []
        for path, text in files.items():
            first, slash, rest = path.partition("/")
            if slash:
                below.setdefault(first, {})[rest] = text
            else:
                blob = bytes.fromhex(self._add("blob", text.encode()))
                entries.append((first, b"100644 " + first.encode() + b"\0" + blob))
        for name, inner in below.items():
            entries.append((f"{name}/", b"40000 " + name.encode() + b"\0" + bytes.fromhex(self.tree(inner))))
        return self._add("tree", b"".join(entry for _, entry in sorted(entries)))

    def commit(self, commit: Commit) -> str:
        """Add a commit, and return its name."""
        mail = f"{commit.author.lower().replace(' ', '.')}@example.org"
        stamp = f"{commit.author} <{mail}> {int(commit.when.timestamp())} +0000"
        lines = [f"tree {self.tree(commit.files)}", *(f"parent {parent}" for parent in commit.parents)]
        lines += [f"author {stamp}", f"committer {stamp}", "", commit.message, ""]
        return self._add("commit", "\n".join(lines).encode())

    def written(self) -> dict[str, bytes | str]:
        """Return the files of ``.git``, with main checked out; ``git reset --hard`` creates index and files."""
        files: dict[str, bytes | str] = {".git/HEAD": "ref: refs/heads/main\n", ".git/config": _CONFIG}
        files |= {f".git/{ref}": f"{name}\n" for ref, name in self.refs.items()}
        return files | {f".git/objects/{name[:2]}/{name[2:]}": data for name, data in self.objects.items()}


class GitReader:
    """A reader of the repository in a machine's working folder. Damaged objects count as missing."""

    def __init__(self, workspace: Workspace):
        self._workspace = workspace
        self._packs: list[tuple[bytes, bytes]] | None = None

    def ref(self, name: str) -> str | None:
        """Resolve a reference such as ``refs/heads/main`` or ``HEAD`` to the name of an object."""
        for _ in range(5):
            text = (self._workspace.read(f".git/{name}", 4096) or b"").decode("utf-8", "replace").strip()
            if not text.startswith("ref: "):
                return text if _HASH.fullmatch(text) else self._packed_ref(name)
            name = text[5:]
            if not re.fullmatch(r"[\w/.-]+", name) or ".." in name:
                return None
        return None

    def branch(self) -> str | None:
        """Return the name of the branch that is checked out."""
        text = (self._workspace.read(".git/HEAD", 4096) or b"").decode("utf-8", "replace").strip()
        return text.removeprefix("ref: refs/heads/") if text.startswith("ref: refs/heads/") else None

    def _packed_ref(self, name: str) -> str | None:
        text = (self._workspace.read(".git/packed-refs") or b"").decode("utf-8", "replace")
        found = (line.split(" ") for line in text.splitlines() if not line.startswith(("#", "^")))
        return next((parts[0] for parts in found if parts[1:] == [name] and _HASH.fullmatch(parts[0])), None)

    def object(self, name: str) -> tuple[str, bytes] | None:
        """Return an object's kind and contents."""
        if not _HASH.fullmatch(name):
            return None
        loose = self._workspace.read(f".git/objects/{name[:2]}/{name[2:]}")
        found = _loose(loose) if loose is not None else self._find_packed(name)
        if found is None:
            return None
        kind, data = found
        whole = f"{kind} {len(data)}\0".encode() + data
        return found if hashlib.sha1(whole, usedforsecurity=False).hexdigest() == name else None

    def commit(self, name: str) -> tuple[str, dict[str, list[str]], str] | None:
        """Return a commit's name, headers and message; a tag is resolved to its commit."""
        for _ in range(3):
            found = self.object(name)
            if found is None or found[0] not in ("commit", "tag"):
                return None
            head, _, message = found[1].decode("utf-8", "replace").partition("\n\n")
            headers: dict[str, list[str]] = {}
            for line in head.splitlines():
                key, _, value = line.partition(" ")
                headers.setdefault(key, []).append(value)
            if found[0] == "commit":
                return name, headers, message
            name = headers.get("object", [""])[0]
        return None

    # -- packs ---------------------------------------------------------------------------------------------------------

    def _find_packed(self, name: str) -> tuple[str, bytes] | None:
        if self._packs is None:
            folder = ".git/objects/pack"
            stems = [one.name[:-4] for one in self._workspace.listing(folder) if one.name.endswith(".idx")][:20]
            both = [
                [self._workspace.read(f"{folder}/{stem}.{end}") or b"" for end in ("idx", "pack")] for stem in stems
            ]
            self._packs = [(index, pack) for index, pack in both]
        try:
            for index, pack in self._packs:
                at = _offset(index, bytes.fromhex(name))
                if at is not None:
                    return self._unpack_at(index, pack, at, 0)
        except (struct.error, IndexError, KeyError, zlib.error, ValueError):
            pass  # a damaged pack
        return None

    def _unpack_at(self, index: bytes, pack: bytes, at: int, depth: int) -> tuple[str, bytes] | None:
        """Return the object at an offset of a pack."""
        if depth > _MOST_DELTAS:
            return None
        start, byte = at, pack[at]
        kind = byte >> 4 & 7
        at += 1
        while byte & 0x80:
            byte = pack[at]
            at += 1
        if kind in _KINDS:
            return _KINDS[kind], _inflate(pack[at:])
        if kind == 6:
            back, at = _read_distance(pack, at)
            base = self._unpack_at(index, pack, start - back, depth + 1) if 0 < back <= start else None
        else:
            base, at = self.object(pack[at : at + 20].hex()), at + 20
        return None if base is None else (base[0], _apply_delta(base[1], _inflate(pack[at:])))


def _loose(data: bytes) -> tuple[str, bytes] | None:
    try:
        head, _, body = _inflate(data).partition(b"\0")
    except (zlib.error, ValueError):
        return None
    return head.partition(b" ")[0].decode("ascii", "replace"), body


def _inflate(data: bytes) -> bytes:
    """Decompress data up to a limit, since a few bytes may expand to gigabytes."""
    machine = zlib.decompressobj()
    found = machine.decompress(data, _MOST_BYTES)
    if not machine.eof:
        raise ValueError("an object of git is cut short or too large")
    return found


def _offset(index: bytes, name: bytes) -> int | None:
    """Return the offset of an object in a pack, from its index (version 2)."""
    if index[:8] != b"\xfftOc\0\0\0\2":
        return None
    fan = struct.unpack_from(">256I", index, 8)
    low, high = (fan[name[0] - 1] if name[0] else 0), fan[name[0]]
    names, total = 8 + 1024, fan[255]
    for number in range(low, min(high, low + 100_000)):
        if index[names + 20 * number : names + 20 * number + 20] == name:
            (offset,) = struct.unpack_from(">I", index, names + 24 * total + 4 * number)
            return None if offset & 0x80000000 else int(offset)
    return None


def _read_distance(pack: bytes, at: int) -> tuple[int, int]:
    """Return the distance to the base of a delta, and the start of the delta."""
    back = pack[at] & 0x7F
    while pack[at] & 0x80:
        at += 1
        back = (back + 1 << 7) | pack[at] & 0x7F
    return back, at + 1


def _size(delta: bytes, at: int) -> tuple[int, int]:
    size = shift = 0
    while True:
        byte = delta[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return size, at


def _apply_delta(base: bytes, delta: bytes) -> bytes:
    """Apply a delta."""
    _, at = _size(delta, 0)
    wanted, at = _size(delta, at)
    found = bytearray()
    while at < len(delta) and len(found) <= _MOST_BYTES:
        byte, at = delta[at], at + 1
        if byte & 0x80:
            parts = [0] * 7
            for bit in range(7):
                if byte >> bit & 1:
                    parts[bit], at = delta[at], at + 1
            start = int.from_bytes(bytes(parts[:4]), "little")
            found += base[start : start + (int.from_bytes(bytes(parts[4:]), "little") or 0x10000)]
        else:
            found += delta[at : at + byte]
            at += byte
    if len(found) != wanted:
        raise ValueError("a delta of git is damaged")
    return bytes(found)


@dataclass(frozen=True)
class Tip:
    """Checks that a branch or tag exists, and its commit; None matches anything."""

    ref: str
    tree: str | None = None
    """Name of its tree."""
    parents: tuple[str, ...] | None = None
    commit: str | None = None
    """Name of the commit."""

    def __call__(self, workspace: Workspace) -> str:
        reader = GitReader(workspace)
        found = reader.commit(reader.ref(self.ref) or "")
        if found is None:
            return f"there is no {self.ref}"
        name, headers, _ = found
        if self.commit not in (None, name):
            return f"{self.ref} leads to another commit"
        if self.tree is not None and headers.get("tree") != [self.tree]:
            return f"{self.ref} holds other files"
        wrong = self.parents is not None and headers.get("parent", []) != list(self.parents)
        return f"the commit of {self.ref} has other parents" if wrong else ""


@dataclass(frozen=True)
class LastSubject:
    """Checks the first line of the message of a branch's last commit."""

    ref: str
    subject: str

    def __call__(self, workspace: Workspace) -> str:
        reader = GitReader(workspace)
        found = reader.commit(reader.ref(self.ref) or "")
        right = found is not None and found[2].partition("\n")[0].strip() == self.subject
        return "" if right else f"the last commit of {self.ref} has another subject"


@dataclass(frozen=True)
class CheckedOut:
    """Checks that a branch is checked out."""

    branch: str

    def __call__(self, workspace: Workspace) -> str:
        current = GitReader(workspace).branch()
        return "" if current == self.branch else f"{current} is checked out"


@dataclass(frozen=True)
class NoRef:
    """Checks that a branch or tag does not exist."""

    ref: str

    def __call__(self, workspace: Workspace) -> str:
        return f"{self.ref} still exists" if GitReader(workspace).ref(self.ref) else ""


@dataclass(frozen=True)
class CommitName:
    """Checks that a file contains the name of a commit, abbreviated to no less than seven digits."""

    path: str
    name: str

    def __call__(self, workspace: Workspace) -> str:
        text = (workspace.read(self.path, 4096) or b"").decode("utf-8", "replace").strip().lower()
        right = re.fullmatch(r"[0-9a-f]{7,40}", text) and self.name.startswith(text)
        return "" if right else f"{self.path} does not name the commit"


def line_of_commits(repository: Repository, commits: Sequence[Commit]) -> list[str]:
    """Add commits (without parents, oldest first), each on top of the one before, and return their names."""
    names: list[str] = []
    for one in commits:
        names.append(repository.commit(replace(one, parents=tuple(names[-1:]))))
    return names
