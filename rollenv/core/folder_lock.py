"""Exclusive locks on folders, released when the process ends, even if it is killed."""

from __future__ import annotations

import os
import sys
import weakref
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
    if sys.platform == "win32":
        return False
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
            return False
        _held[key] = _Lock(handle)
    _held[key].owners += 1
    weakref.finalize(owner, _release, key)
    return True


def _release(key: tuple[int, int]) -> None:
    lock = _held[key]
    lock.owners -= 1
    if not lock.owners:
        os.close(_held.pop(key).handle)
