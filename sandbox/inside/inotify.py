"""Tells what happens in a folder, one line of JSON for each event, until it is ended. See inotify(7)."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import struct
import sys
from collections.abc import Iterator

from rollenv.sandbox.inside.linux import check, libc
from rollenv.sandbox.inside.protocol import WatchFolder
from rollenv.sandbox.inside.report import write_all

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
#: Folders that are watched at most.
_MAX_FOLDERS = 2000


def watch(request: WatchFolder) -> None:
    """ResourceMonitor a folder, and what is below it if the request says so. Returns when the folder is gone.

    Raises:
        OSError: if it is not a folder.
    """
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
                return  # it was removed meanwhile
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
