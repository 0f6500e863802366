"""One owner for a folder: a lock that ends with the process that holds it, however it ends."""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path

from rollenv.errors import UsageError

if sys.platform != "win32":
    import fcntl


def lock_folder(folder: Path, owner: object) -> bool:
    """Keep other processes out of a folder until its owner is gone, or this process.

    Args:
        owner: the object that writes the folder; the lock ends with it.

    Returns:
        False where the file system has no locks.

    Raises:
        UsageError: another process, or another owner in this one, writes the folder.
    """
    if sys.platform == "win32":
        return False
    handle = os.open(folder, os.O_RDONLY)
    release = weakref.finalize(owner, os.close, handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        release()
        raise UsageError(f"another process is writing {folder}; wait for it, or name another folder") from None
    except OSError:
        return False
    return True
