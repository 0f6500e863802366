"""Operations on files. Each is a process like those that run code, with code's rights: a path means the same to both.

Contents come on standard input and leave on standard output; nothing here waits for a pipe, a device or a socket.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import shutil
import socket
import stat
from collections.abc import Callable
from typing import Any

from rollenv.sandbox.inside import archive, inotify, protocol
from rollenv.sandbox.inside.linux import open_without_magic
from rollenv.sandbox.inside.report import write_all

Json = dict[str, Any]
_PIECE = 1 << 20


def perform(request: protocol.FileOperation) -> None:
    """Do what the request says.

    Raises:
        OSError: if it fails; the number says why.
    """
    _OPERATIONS[type(request)](request)


def _read(request: protocol.ReadFile) -> None:
    fd = open_without_magic(request.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    _require_regular(fd, request.path)
    if os.fstat(fd).st_size > request.max_bytes:
        raise OSError(errno.EFBIG, f"the file has more than {request.max_bytes} bytes", request.path)
    while piece := os.read(fd, _PIECE):
        write_all(1, piece)


def _write(request: protocol.WriteFile) -> None:
    _put(request.path, None)


def _write_many(request: protocol.WriteFiles) -> None:
    """Several files, with their contents one after another."""
    for path, size in request.parts:
        _put(path, size)


def _put(path: str, size: int | None) -> None:
    """Write standard input to a file: so many bytes of it, or all."""
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
            os.ftruncate(fd, 0)  # half a file is useless, and the space may be needed
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
    """Of a file system of the machine's kernel, whose files are not data; None if it is not mounted there."""
    with contextlib.suppress(OSError):
        device = os.stat(path).st_dev
        return device if device != os.stat("/").st_dev else None
    return None


def _list(request: protocol.ListFolder) -> None:
    base = request.path
    for name in sorted(os.listdir(base)):
        with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
            _describe(os.path.join(base, name))


def _info(request: protocol.DescribePath) -> None:
    _describe(request.path)


def _describe(path: str) -> None:
    """A description of a path; a link is not followed."""
    info = os.lstat(path)
    kind = "dir" if stat.S_ISDIR(info.st_mode) else "link" if stat.S_ISLNK(info.st_mode) else "file"
    line: Json = {"name": _shown(os.path.basename(path.rstrip("/"))), "type": kind, "size": info.st_size}
    line |= {"mode": info.st_mode & 0o7777, "modified": info.st_mtime, "owner": info.st_uid, "group": info.st_gid}
    if kind == "link":
        with contextlib.suppress(OSError):
            line["target"] = _shown(os.readlink(path))
    write_all(1, json.dumps(line).encode() + b"\n")


def _shown(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "surrogateescape")


def _make_dir(request: protocol.MakeFolder) -> None:
    os.makedirs(request.path, exist_ok=True)


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
        shutil.move(request.path, request.to)  # from one mount to another, such as from /tmp to the home


def _exists(request: protocol.CheckPath) -> None:
    os.lstat(request.path)


def _connect(request: protocol.Connect) -> None:
    """Carry bytes until the server ends the connection.

    Raises:
        OSError: if nothing listens on the port.
    """
    with socket.socket() as server:
        server.connect(("127.0.0.1", request.port))  # nothing that has to be imported, which a machine cannot
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


_OPERATIONS: dict[type, Callable[[Any], None]] = {
    protocol.ReadFile: _read,
    protocol.WriteFile: _write,
    protocol.WriteFiles: _write_many,
    protocol.ListFolder: _list,
    protocol.DescribePath: _info,
    protocol.WatchFolder: inotify.watch,
    protocol.MakeFolder: _make_dir,
    protocol.RemovePath: _remove,
    protocol.RenamePath: _rename,
    protocol.CheckPath: _exists,
    protocol.PackScratch: archive.pack,
    protocol.UnpackScratch: archive.unpack,
    protocol.PackMachine: archive.pack_machine,
    protocol.PackPath: archive.tar,
    protocol.UnpackInto: archive.untar,
    protocol.Connect: _connect,
}
