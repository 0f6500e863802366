"""The cache of tiny models, converted models and shops: made once, used by many processes."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rollenv.core.errors import UsageError
from rollenv.core.folder_lock import locked

#: Seconds after which an unfinished folder counts as abandoned: if nobody holds its lock, and where there are no locks.
_UNLOCKED, _ABANDONED = 60.0, 86_400.0

#: In the names of what this process fills. Forks share it, as they share the locks.
_OWN = f"-partial-{secrets.token_hex(4)}-"


def cache_folder() -> Path:
    """Return ``$ROLLENV_CACHE``, or ``~/.cache/rollenv``; where no home can be written, one of this user's in /tmp.

    Raises:
        UsageError: the one in /tmp is another user's.
    """
    named = os.environ.get("ROLLENV_CACHE")
    folder = Path(os.path.expanduser(named or "~/.cache/rollenv"))
    if named or can_be_made(folder):
        return folder
    folder = Path(tempfile.gettempdir(), f"rollenv-cache-{os.geteuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if about.st_uid != os.geteuid() or about.st_mode & 0o077:
        raise UsageError(f"{folder} is open to other users; set ROLLENV_CACHE to a folder of yours")
    return folder


def can_be_made(folder: Path) -> bool:
    """Return whether a folder is there to write in, or can be made; of a home that is not known (``~``) never."""
    there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    return folder.is_absolute() and there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def cached(kind: str, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache. It appears atomically: other processes never see it half filled.

    Args:
        kind: name of the parent folder in the cache.
        make: fills the new folder if there is none of that name.
    """
    folder = cache_folder() / kind / name
    if folder.exists():
        return folder
    partial = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder.parent)
        partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{name}{_OWN}"))
        with locked(partial):
            make(partial)
            partial.rename(folder)
    except Exception as error:
        # safetensors has an error of its own for a full disk
        if isinstance(error, UsageError) or not (isinstance(error, OSError) or "os error" in str(error)):
            raise
        if not folder.exists():  # else another process was faster
            raise UsageError(f"cannot write {folder}: {error}; set ROLLENV_CACHE to a folder with space") from error
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def _remove_abandoned(parent: Path) -> None:
    """Remove what processes left that were killed while they filled a folder."""
    for left in parent.glob("*-partial-*"):
        with contextlib.suppress(OSError, UsageError):  # it is gone, or the process that fills it lives
            age = time.time() - left.stat().st_mtime
            if age < _UNLOCKED or _OWN in left.name:
                continue
            with locked(left) as can_be_locked:
                if can_be_locked or age > _ABANDONED:
                    shutil.rmtree(left)
