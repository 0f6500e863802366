"""Exclusive locks on folders, released when the process ends, even if it is killed."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollenv.core.errors import UsageError

if sys.platform != "win32":
    import fcntl


@dataclass
class _Lock:
    """A lock that this process holds, and its number of owners."""

    handle: int
    owners: int = 0


#: Locks by device and inode of the folder.
_held: dict[tuple[int, int], _Lock] = {}


def lock_folder(folder: Path, owner: object) -> bool:
    """Keep other processes out of a folder until all its owners in this process are deleted, or the process ends.

    Returns:
        False if the file system has no locks.

    Raises:
        UsageError: another process holds the lock.
    """
    if key := _hold(folder):
        weakref.finalize(owner, _release, key)
    return key is not None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Keep other processes out of a folder while the block runs; results and errors as of :func:`lock_folder`."""
    key = _hold(folder)
    try:
        yield key is not None
    finally:
        if key:
            _release(key)


def _hold(folder: Path) -> tuple[int, int] | None:
    """Add an owner to the lock of a folder, and return its key; None without locks."""
    if sys.platform == "win32":
        return None
    status = folder.stat()
    key = status.st_dev, status.st_ino
    if key not in _held:
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise UsageError(f"another process is writing {folder}; wait for it, or name another folder") from None
        except OSError:
            os.close(handle)
            return None
        _held[key] = _Lock(handle)
    _held[key].owners += 1
    return key


def _release(key: tuple[int, int]) -> None:
    lock = _held[key]
    lock.owners -= 1
    if not lock.owners:
        os.close(_held.pop(key).handle)
