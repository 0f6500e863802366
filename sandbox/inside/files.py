"""File operations. Each is a process with code's permissions, so that paths mean the same to both.

Contents are read from standard input and written to standard output. Pipes, devices and sockets are never opened in a
way that blocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import shutil
import socket
import stat
import struct
import sys
import tarfile
from collections.abc import Callable, Iterator
from typing import Any

from rollenv.sandbox.inside import protocol
from rollenv.sandbox.inside.linux import check, libc, open_without_magic
from rollenv.sandbox.inside.protocol import WatchFolder, write_all

#: The folder of all writable files, and its folders that a snapshot has.
_SCRATCH, _FOLDERS = "/box", ("home", "tmp")
#: The descriptor of a machine's written files.
TERMINAL = 1002
#: Maximum bytes and depth of paths in an archive.
_LONGEST, _DEEPEST = 3000, 256
#: Extended attribute of an opaque folder of an overlay, on disk and in an archive.
OPAQUE = "user.overlay.opaque"
PAX_OPAQUE = f"SCHILY.xattr.{OPAQUE}"


def pack(_: protocol.PackScratch) -> None:
    """Archive files, folders and links to standard output, without unreadable, mounted and special ones."""
    os.chdir(_SCRATCH)
    with open(1, "wb", closefd=False) as out, tarfile.open(fileobj=out, mode="w|") as archive:
        for top in _FOLDERS:
            for folder, folders, names in os.walk(top):
                # The host's Python may be mounted below the temporary folder.
                folders[:] = [name for name in folders if not os.path.ismount(os.path.join(folder, name))]
                for name in (*folders, *names):
                    _add(archive, os.path.join(folder, name))


def _add(archive: tarfile.TarFile, path: str) -> None:
    with contextlib.suppress(FileNotFoundError, PermissionError):
        if os.path.islink(path) or os.path.isdir(path) or os.path.isfile(path):
            archive.add(path, recursive=False)


def unpack(_: protocol.UnpackScratch) -> None:
    """Unpack an archive of :func:`pack` from standard input."""
    os.chdir(_SCRATCH)
    with open(0, "rb", closefd=False) as data, tarfile.open(fileobj=data, mode="r|") as archive:
        for member in archive:
            parts = member.name.split("/")
            if parts[0] in _FOLDERS and ".." not in parts and len(parts) > 1:
                if hasattr(tarfile, "fully_trusted_filter"):
                    archive.extract(member, filter="fully_trusted")
                else:
                    archive.extract(member)
        while data.read(1 << 20):
            pass


def tar(request: protocol.PackPath) -> None:
    """Archive a file, or the contents of a folder, to standard output, without devices, sockets and pipes."""
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
    """Unpack an archive of the host from standard input into a folder."""
    os.makedirs(request.path, exist_ok=True)
    os.chdir(request.path)
    with open(0, "rb", closefd=False) as data, tarfile.open(fileobj=data, mode="r|") as archive:
        for member in archive:
            archive.extract(member, filter="fully_trusted", numeric_owner=True)
        while data.read(1 << 20):
            pass


def _walk() -> Iterator[str]:
    """Iterate over everything below the working directory, folders before their contents, without following links.

    Paths that are too deep for others to read or remove are left out.
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
    """Archive the written files of a machine to standard output: ``0/...`` for its first overlay, and so on.

    Removed files are devices 0:0 and opaque folders have an attribute, as in overlays. Holes of sparse files are kept,
    because a file may be far longer than its data.
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
        member.pax_headers = {}
        with contextlib.suppress(OSError):  # user attributes, and that of opaque folders
            for name in os.listxattr(path, follow_symlinks=False):
                if name == OPAQUE or (name.startswith("user.") and not name.startswith("user.overlay.")):
                    value = os.getxattr(path, name, follow_symlinks=False)
                    member.pax_headers[f"SCHILY.xattr.{name}"] = value.decode("utf-8", "surrogateescape")
    if not member.isreg():
        archive.addfile(member)
    elif info.st_blocks * 512 >= info.st_size:
        with open(path, "rb") as file:
            archive.addfile(member, file)
    else:
        # GNU's sparse format 0.1: a map of the data, followed by the data.
        with open(path, "rb") as file:
            fd, size, at = file.fileno(), member.size, 0
            parts: list[tuple[int, int]] = []
            with contextlib.suppress(OSError):  # no more data
                while at < size:
                    start = os.lseek(fd, at, os.SEEK_DATA)
                    at = min(os.lseek(fd, start, os.SEEK_HOLE), size)
                    parts.append((start, at - start))
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


_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE, _SELF = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200, 0xC00
_OVERFLOW, _IGNORED, _IS_FOLDER, _ONLY_FOLDER, _NO_LINK = 0x4000, 0x8000, 0x40000000, 0x1000000, 0x2000000
_KINDS = {
    _CREATE: "create",
    _MODIFY: "write",
    _DELETE: "remove",
    _MOVED_FROM: "rename",
    _MOVED_TO: "create",
    _ATTRIB: "chmod",
}
_ALL = sum(_KINDS) | _SELF | _ONLY_FOLDER
#: Maximum watched folders.
_MAX_FOLDERS = 2000


def watch(request: WatchFolder) -> None:
    """Watch a folder, and its subfolders if requested, until it is removed."""
    fd = check(libc.inotify_init1(os.O_CLOEXEC), "inotify_init1")
    watching = _Watcher(fd, request.path, request.recursive)
    watching.add("", _ALL)
    write_all(1, b'{"type": "ready", "name": ""}\n')
    while watching.folders:
        for number, mask, name in _events(os.read(fd, 1 << 16)):
            watching.handle(number, mask, name)


def _events(data: bytes) -> Iterator[tuple[int, int, str]]:
    while len(data) >= 16:
        number, mask, _, size = struct.unpack_from("iIII", data)
        yield number, mask, os.fsdecode(data[16 : 16 + size].rstrip(b"\0"))
        data = data[16 + size :]


class _Watcher:
    def __init__(self, fd: int, path: str, recursive: bool):
        self.fd, self.path, self.recursive = fd, path, recursive
        self.folders: dict[int, str] = {}  # by number, relative to the path

    def add(self, folder: str, flags: int) -> None:
        number = libc.inotify_add_watch(self.fd, os.fsencode(os.path.join(self.path, folder)), ctypes.c_uint32(flags))
        if number < 0:
            if folder:
                return  # the folder was removed meanwhile
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), self.path)
        self.folders[number] = folder
        if self.recursive and len(self.folders) < _MAX_FOLDERS:
            with contextlib.suppress(OSError):
                for entry in os.scandir(os.path.join(self.path, folder)):
                    if entry.is_dir(follow_symlinks=False):
                        self.add(os.path.join(folder, entry.name), _ALL | _NO_LINK)

    def handle(self, number: int, mask: int, name: str) -> None:
        if mask & _OVERFLOW:
            self._report("overflow", "")
        if mask & _IGNORED:
            self.folders.pop(number, None)
        if number not in self.folders or not name:
            return
        path = os.path.join(self.folders[number], name)
        if mask & _IS_FOLDER and mask & (_CREATE | _MOVED_TO) and self.recursive and len(self.folders) < _MAX_FOLDERS:
            self.add(path, _ALL | _NO_LINK)
        for bit, kind in _KINDS.items():
            if mask & bit:
                self._report(kind, path)

    @staticmethod
    def _report(kind: str, name: str) -> None:
        name = os.fsencode(name).decode("utf-8", "backslashreplace")
        try:
            write_all(1, json.dumps({"type": kind, "name": name}).encode() + b"\n")
        except BrokenPipeError:
            sys.exit()


Json = dict[str, Any]
_PIECE = 1 << 20


def perform(request: protocol.FileOperation) -> None:
    """Carry out a request."""
    _OPERATIONS[type(request)](request)


def _read(request: protocol.ReadFile) -> None:
    fd = open_without_magic(request.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    _require_regular(fd, request.path)
    if os.fstat(fd).st_size > request.max_bytes:
        raise OSError(errno.EFBIG, f"the file has more than {request.max_bytes} bytes", request.path)
    while piece := os.read(fd, _PIECE):
        write_all(1, piece)


def _write_many(request: protocol.WriteFiles) -> None:
    """Write several files with concatenated contents."""
    for path, size in request.parts:
        _write_input(path, size)


def _write_input(path: str, size: int | None) -> None:
    """Write ``size`` bytes of standard input, or all, to a file."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY
    fd = open_without_magic(path, flags, 0o644)
    try:
        _require_regular(fd, path)
        os.ftruncate(fd, 0)
        left = size
        while left != 0 and (piece := os.read(0, _PIECE if left is None else min(left, _PIECE))):
            write_all(fd, piece)
            left = None if left is None else left - len(piece)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)  # an incomplete file is useless
        raise
    finally:
        os.close(fd)


def _require_regular(fd: int, path: str) -> None:
    info = os.fstat(fd)
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(info.st_mode) or info.st_dev == _device("/proc") or info.st_dev == _device("/sys"):
        raise OSError(errno.EINVAL, "not a regular file", path)


def _device(path: str) -> int | None:
    """Return the device of a virtual file system such as /proc; None if it is not mounted."""
    with contextlib.suppress(OSError):
        device = os.stat(path).st_dev
        return device if device != os.stat("/").st_dev else None
    return None


def _list(request: protocol.ListFolder) -> None:
    base = request.path
    for name in sorted(os.listdir(base)):
        with contextlib.suppress(FileNotFoundError):  # the file was removed meanwhile
            _describe(os.path.join(base, name))


def _describe(path: str) -> None:
    """Write the description of a path; a link is not followed."""
    info = os.lstat(path)
    kind = {stat.S_IFDIR: "dir", stat.S_IFLNK: "link"}.get(stat.S_IFMT(info.st_mode), "file")
    line: Json = {"name": _shown(os.path.basename(path.rstrip("/"))), "type": kind, "size": info.st_size}
    line |= {"mode": info.st_mode & 0o7777, "modified": info.st_mtime, "owner": info.st_uid, "group": info.st_gid}
    if kind == "link":
        with contextlib.suppress(OSError):
            line["target"] = _shown(os.readlink(path))
    write_all(1, json.dumps(line).encode() + b"\n")


def _shown(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "surrogateescape")


def _remove(request: protocol.RemovePath) -> None:
    path = request.path
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.remove(path)


def _rename(request: protocol.RenamePath) -> None:
    try:
        os.rename(request.path, request.to)
    except OSError as error:
        if error.errno != errno.EXDEV or os.path.isdir(request.to):
            raise
        shutil.move(request.path, request.to)  # between mounts, such as from /tmp to the home folder


def _connect(request: protocol.Connect) -> None:
    """Relay bytes until the server ends the connection."""
    with socket.socket(socket.AF_INET6 if ":" in request.host else socket.AF_INET) as server:
        server.connect((request.host, request.port))  # an address: resolving names would need imports
        sources: list[Any] = [0, server]
        while server in sources:
            for source in select.select(sources, [], [])[0]:
                if source is server:
                    data = server.recv(1 << 16)
                    if not data:
                        return
                    write_all(1, data)
                elif data := os.read(0, 1 << 16):
                    server.sendall(data)
                else:
                    sources.remove(0)
                    server.shutdown(socket.SHUT_WR)


_OPERATIONS: dict[type, Callable[[Any], object]] = {
    protocol.ReadFile: _read,
    protocol.WriteFile: lambda request: _write_input(request.path, None),
    protocol.WriteFiles: _write_many,
    protocol.ListFolder: _list,
    protocol.DescribePath: lambda request: _describe(request.path),
    protocol.WatchFolder: watch,
    protocol.MakeFolder: lambda request: os.makedirs(request.path, exist_ok=True),
    protocol.RemovePath: _remove,
    protocol.RenamePath: _rename,
    protocol.CheckPath: lambda request: os.lstat(request.path),
    protocol.PackScratch: pack,
    protocol.UnpackScratch: unpack,
    protocol.PackMachine: pack_machine,
    protocol.PackPath: tar,
    protocol.UnpackInto: untar,
    protocol.Connect: _connect,
}
