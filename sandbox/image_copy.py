"""COPY and ADD: sources from a folder of the host or another image, and copying them to their destination."""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollenv.sandbox.errors import InvalidArgument, NotFound
from rollenv.sandbox.inside import protocol
from rollenv.sandbox.machine import Machine

_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\[\^?(?:\\.|[^\]\\])+\]|\\.|.", re.DOTALL)
_WILD = re.compile(r"[*?\[\\]")


@dataclass(frozen=True)
class Source:
    """A file, or the contents of a folder.

    Attributes:
        name: name of the file.
        folder: true for a folder; otherwise the archive has a single file.
        archive: a .tar with names below the folder.
        host: true if it comes from the host, whose users do not exist in the image.
    """

    name: str
    folder: bool
    archive: bytes
    host: bool = True


class BuildContext:
    """A build context: a folder without the files that ``.dockerignore`` and ``hidden`` exclude.

    Args:
        dockerfile: name of the Dockerfile; ``NAME.dockerignore`` has priority over ``.dockerignore``.
        ignored: additional lines after those of ``.dockerignore``.
    """

    def __init__(self, folder: Path, dockerfile: str, hidden: Sequence[str], ignored: Sequence[str] = ()):
        self.folder, self.root, self.hidden = folder, folder.resolve(), hidden
        files = [folder / f"{dockerfile}.dockerignore", folder / ".dockerignore"]
        text = next((each.read_text("utf-8", "replace") for each in files if each.is_file()), "")
        lines = [*text.removeprefix("\ufeff").splitlines(), *ignored]
        lines = [line.strip() for line in lines if not line.startswith("#")]
        self.rules = [
            (line.startswith("!"), re.compile(pattern(posixpath.normpath(line.lstrip("!").strip()).strip("/"))))
            for line in lines
            if line.strip("!")
        ]

    def found(self, name: str) -> list[Path]:
        """Find the files and folders that match a name or pattern; final links are followed inside the context."""
        paths = [self.folder / path for path in matches(name, lambda base: _listed(self.folder / base))]
        paths = [path for path in paths if path.exists() and self._has(path)]
        if not paths:
            raise InvalidArgument(f"there is no {name} in {self.folder}, or it is ignored")
        return paths

    def _has(self, path: Path) -> bool:
        real = path.resolve()
        if not real.is_relative_to(self.root) or self._left_out(path.relative_to(self.folder), ()):
            return False
        name = real.relative_to(self.root)
        return not self._left_out(name, self.rules) or (real.is_dir() and any(True for _ in self.inside(real)))

    def _left_out(self, name: Path, rules: Iterable[tuple[bool, re.Pattern[str]]]) -> bool:
        out = any(part in self.hidden for part in name.parts)
        above = [str(each) for each in (name, *name.parents)][:-1]
        for kept, rule in rules if not out else ():
            if any(map(rule.fullmatch, above)):
                out = not kept
        return out

    def inside(self, folder: Path) -> Iterator[tuple[str, Path]]:
        """Iterate over name and path of everything in a folder, sorted, with empty folders but without sockets."""
        real = folder.resolve()
        for path in sorted(real.rglob("*")):
            if not self._left_out(path.relative_to(self.root), self.rules) and not path.is_socket():
                yield str(path.relative_to(real)), path

    def source(self, path: Path) -> Source:
        """Archive a file or folder."""
        if path.is_dir():
            return Source(path.name, True, _archive(self.inside(path)))
        return Source(path.name, False, _archive([(path.name, path.resolve())]))

    def digests(self, path: Path) -> list[str]:
        """Return the parts of a cache key for a path: names, contents and permissions, without times."""
        if path.is_dir():
            return [f"{name} {digest(inner)}" for name, inner in self.inside(path)]
        return [f"{path.name} {digest(path.resolve())}"]


#: The contents of an empty folder.
NOTHING = Source("", True, bytes(tarfile.RECORDSIZE))


def text_source(name: str, text: str) -> Source:
    """Build the source of ``COPY <<NAME``."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo(name)
        member.size = len(text.encode())
        archive.addfile(member, io.BytesIO(text.encode()))
    return Source(name, False, data.getvalue())


def machine_sources(machine: Machine, name: str, most: int) -> list[Source]:
    """Return the files of a machine that match a name or pattern."""

    def listed(base: str) -> Iterable[str]:
        if machine.files.exists(f"/{base}/."):
            return [entry.name for entry in machine.files.list(f"/{base}")]
        return ()

    paths = [f"/{path}" for path in matches(name, listed) if machine.files.exists(f"/{path}")]
    if not paths:
        raise NotFound(f"there is no {name}")
    return [
        Source(
            posixpath.basename(path),
            machine.files.exists(f"{path}/."),
            machine.files._perform(protocol.PackPath(path=path, follow=True), most=most),
            host=False,
        )
        for path in paths
    ]


def put(machine: Machine, sources: Iterable[Source], target: str, into: bool, owner: str, mode: str) -> None:
    """Copy files to a path, as Docker does: into the folder if the path is one, else to the path itself.

    Args:
        owner: ``user:group`` as names or numbers; by default root.
        mode: permissions in octal; by default unchanged.
    """
    if mode and not re.fullmatch(r"[0-7]{3,4}", mode):
        raise InvalidArgument(f"--chmod={mode} is not supported; use octal permissions")
    numbers = _numbers(machine, owner)
    into = into or machine.files.exists(f"{target}/.")
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as out:
        for source in sources:
            below = target if source.folder or into else posixpath.dirname(target)
            for folder in _missing(machine, below):
                member = tarfile.TarInfo(folder.strip("/"))
                member.type, member.mode, (member.uid, member.gid) = tarfile.DIRTYPE, 0o755, numbers
                out.addfile(member)
            with tarfile.open(fileobj=io.BytesIO(source.archive)) as archive:
                for member in archive:
                    contents = archive.extractfile(member) if member.isreg() else None
                    single = target if not source.folder and not into else ""
                    member.name = (single or posixpath.join(below, member.name)).lstrip("/")
                    if member.islnk():
                        member.linkname = posixpath.join(below, member.linkname).lstrip("/")
                    if owner or source.host:
                        member.uid, member.gid = numbers
                    member.uname = member.gname = ""
                    if mode and not member.issym():
                        member.mode = int(mode, 8)
                    member.pax_headers = {}
                    out.addfile(member, contents)
    machine.unpack(data.getvalue(), "/")


def _missing(machine: Machine, folder: str) -> list[str]:
    """List a folder and its parents that do not exist, from the top."""
    missing = []
    while folder.strip("/") and not machine.files.exists(f"{folder}/."):
        missing.append(folder)
        folder = posixpath.dirname(folder)
    return missing[::-1]


def _numbers(machine: Machine, named: str) -> tuple[int, int]:
    """Resolve ``user:group`` to numbers."""
    if not named:
        return 0, 0
    user, _, group = named.partition(":")
    uid = machine.run(["id", "-u", user], user="0").stdout.strip() if not user.isdecimal() else user
    default = machine.run(["id", "-g", user], user="0").stdout.strip() if not user.isdecimal() else user
    if group and not group.isdecimal():
        line = machine.run(["getent", "group", group], user="0").stdout
        group = line.split(":")[2] if line.count(":") >= 2 else "?"
    if not uid.isdecimal() or not (group or default).isdecimal():
        raise InvalidArgument(f"--chown={named}: there is no such user or group")
    return int(uid), int(group or default)


# -- names -----------------------------------------------------------------------------------------------------------


def matches(name: str, listed: Callable[[str], Iterable[str]]) -> list[str]:
    """Return the paths that match a name, relative to the root and without ``..``; wildcards stop at slashes.

    Args:
        listed: returns the names in a folder, given its path from the root.
    """
    paths = [""]
    for part in posixpath.normpath(f"/{name}").strip("/").split("/"):
        if not _WILD.search(part):
            paths = [posixpath.join(base, part) for base in paths]
            continue
        fits = re.compile(pattern(part)).fullmatch
        paths = [posixpath.join(base, each) for base in paths for each in sorted(listed(base)) if fits(each)]
    return paths


def pattern(text: str) -> str:
    """Convert a pattern of Go's filepath.Match, with ``**`` for any folders, to a regular expression."""
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    out = []
    for token in _TOKEN.findall(text):
        if token.startswith("[") and len(token) > 1:
            out.append("[" + token[1:-1].replace("[", r"\[") + "]")
        else:
            out.append(known.get(token) or re.escape(token[-1]))
    return "(?s:" + "".join(out) + ")"


def _listed(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


# -- archives --------------------------------------------------------------------------------------------------------


def is_archive(path: Path) -> bool:
    """Return whether ADD unpacks a file: a .tar, compressed or not, that is not empty."""
    try:
        with tarfile.open(path) as archive:
            return archive.next() is not None
    except (tarfile.TarError, OSError, EOFError):
        return False


def plain(path: Path) -> bytes:
    """Decompress an archive; the machine checks its entries."""
    data = io.BytesIO()
    with tarfile.open(path) as archive, tarfile.open(fileobj=data, mode="w") as out:
        for member in archive:
            out.addfile(member, archive.extractfile(member) if member.isreg() else None)
    return data.getvalue()


def digest(path: Path) -> str:
    """Return a digest of a file's contents and permissions."""
    if path.is_symlink():
        return f"link {os.readlink(path)}"
    mode = f"{path.stat().st_mode:o}"
    if not path.is_file():
        return mode
    with path.open("rb") as file:
        return mode + hashlib.file_digest(file, "sha256").hexdigest()


def _archive(files: Iterable[tuple[str, Path]]) -> bytes:
    """Archive files under given names."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in files:
            member = archive.gettarinfo(path, name)
            if member.islnk():
                member.type, member.size = tarfile.REGTYPE, path.stat().st_size
            if member.isreg():
                with path.open("rb") as file:
                    archive.addfile(member, file)
            else:
                archive.addfile(member)
    return data.getvalue()
