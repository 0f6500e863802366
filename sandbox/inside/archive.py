"""The scratch folder as one file, and back. Both with code's own rights, so neither reaches more than code does."""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from collections.abc import Iterator

from rollenv.sandbox.inside import protocol

#: The folder that holds all that code may write, and those in it that are kept.
_SCRATCH, _PLACES = "/box", ("home", "tmp")
#: The descriptor that a machine's written files come by.
TERMINAL = 1002
#: Bytes of the longest path, and folders above the deepest file, that are packed.
_LONGEST, _DEEPEST = 3000, 256
#: What says that a folder of an overlay hides the folders below it, as an attribute and in an archive.
OPAQUE = "user.overlay.opaque"
PAX_OPAQUE = f"SCHILY.xattr.{OPAQUE}"


def pack(_: protocol.PackScratch) -> None:
    """Write files, folders and links to standard output. What cannot be read, is mounted or no file is left out."""
    os.chdir(_SCRATCH)
    with open(1, "wb", closefd=False) as out, tarfile.open(fileobj=out, mode="w|") as archive:
        for place in _PLACES:
            for folder, folders, names in os.walk(place):
                # The host's Python may be mounted below the temporary folder.
                folders[:] = [name for name in folders if not os.path.ismount(os.path.join(folder, name))]
                for name in (*folders, *names):
                    _add(archive, os.path.join(folder, name))


def _add(archive: tarfile.TarFile, path: str) -> None:
    with contextlib.suppress(FileNotFoundError, PermissionError):
        if os.path.islink(path) or os.path.isdir(path) or os.path.isfile(path):
            archive.add(path, recursive=False)


def unpack(_: protocol.UnpackScratch) -> None:
    """Read from standard input what :func:`pack` wrote."""
    os.chdir(_SCRATCH)
    with open(0, "rb", closefd=False) as data, tarfile.open(fileobj=data, mode="r|") as archive:
        for member in archive:
            parts = member.name.split("/")
            if parts[0] in _PLACES and ".." not in parts and len(parts) > 1:
                if hasattr(tarfile, "fully_trusted_filter"):
                    archive.extract(member, filter="fully_trusted")
                else:
                    archive.extract(member)
        while data.read(1 << 20):
            pass


def tar(request: protocol.PackPath) -> None:
    """Write a file, or the contents of a folder, to standard output. Devices, sockets and pipes are left out."""
    path = request.path
    if request.follow:
        path = os.path.realpath(path, strict=True)
    with (
        open(1, "wb", closefd=False) as out,
        tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        if not os.path.isdir(path):
            os.chdir(os.path.dirname(path))
            _add(archive, os.path.basename(path))
            return
        os.chdir(path)
        for path in _walk():
            _add(archive, path)


def untar(request: protocol.UnpackInto) -> None:
    """Unpack what comes on standard input, from the host, into a folder."""
    os.makedirs(request.path, exist_ok=True)
    os.chdir(request.path)
    with open(0, "rb", closefd=False) as data, tarfile.open(fileobj=data, mode="r|") as archive:
        for member in archive:
            archive.extract(member, filter="fully_trusted", numeric_owner=True)
        while data.read(1 << 20):
            pass


def _walk() -> Iterator[str]:
    """Everything below the working directory, a folder before what is in it, links not followed.

    What lies so deep that others could not read or remove it is left out.
    """
    folders = [""]
    while folders:
        folder = folders.pop()
        with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                path = os.path.join(folder, entry.name)
                if len(os.fsencode(path)) > _LONGEST or path.count("/") > _DEEPEST:
                    continue
                yield path
                if entry.is_dir(follow_symlinks=False):
                    folders.append(path)


def pack_machine(_: protocol.PackMachine) -> None:
    """Write what was written in a machine to standard output: ``0/...`` for its first overlay, and so on.

    What was removed is a device 0:0, and a folder that hides what is below it says so, as overlays have it. Holes of
    files stay holes: a file may be far longer than what it holds.
    """
    os.fchdir(TERMINAL)
    seen: dict[tuple[int, int], str] = {}
    with (
        open(1, "wb", closefd=False) as out,
        tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in _walk():
            _add_written(archive, path, seen)


def _add_written(archive: tarfile.TarFile, path: str, seen: dict[tuple[int, int], str]) -> None:
    info = os.lstat(path)
    if stat.S_ISSOCK(info.st_mode):
        return
    member = archive.gettarinfo(path, path)
    member.uname = member.gname = ""
    if member.isreg() and info.st_nlink > 1:
        first = seen.setdefault((info.st_dev, info.st_ino), path)
        if first != path:
            member.type, member.linkname, member.size = tarfile.LNKTYPE, first, 0
    if member.isdir() or member.isreg():
        member.pax_headers = _attributes(path)
    if not member.isreg():
        archive.addfile(member)
    elif info.st_blocks * 512 >= info.st_size:
        with open(path, "rb") as file:
            archive.addfile(member, file)
    else:
        _add_with_holes(archive, member, path)


def _attributes(path: str) -> dict[str, str]:
    """A file's own attributes (of the user's namespace), and whether a folder hides what is below it."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listxattr(path, follow_symlinks=False):
            if name == OPAQUE or (name.startswith("user.") and not name.startswith("user.overlay.")):
                value = os.getxattr(path, name, follow_symlinks=False)
                found[f"SCHILY.xattr.{name}"] = value.decode("utf-8", "surrogateescape")
    return found


def _add_with_holes(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    """In GNU's sparse format 0.1: a map of what is there, and only that."""
    with open(path, "rb") as file:
        parts, size = _parts(file.fileno(), member.size), member.size
        flat = ",".join(f"{number}" for part in parts for number in part)
        member.pax_headers = {**member.pax_headers, "GNU.sparse.map": flat or "0,0", "GNU.sparse.size": f"{size}"}
        member.size = sum(length for _, length in parts)
        archive.addfile(member)
        for start, length in parts:
            file.seek(start)
            tarfile.copyfileobj(file, archive.fileobj, length)  # type: ignore[attr-defined]
        left = -member.size % tarfile.BLOCKSIZE
        archive.fileobj.write(bytes(left))
        archive.offset += member.size + left


def _parts(fd: int, size: int) -> list[tuple[int, int]]:
    """(start, length) of what is no hole."""
    found, at = [], 0
    with contextlib.suppress(OSError):  # nothing comes after
        while at < size:
            start = os.lseek(fd, at, os.SEEK_DATA)
            at = min(os.lseek(fd, start, os.SEEK_HOLE), size)
            found.append((start, at - start))
    return found
