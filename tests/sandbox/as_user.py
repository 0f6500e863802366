"""``python as_user.py COMMAND...`` runs a command as an ordinary user, who can reach Python and this repository.

Both may lie in folders of root that others may not enter; such folders are covered, in a mount namespace of the
command's own, by empty ones that show only what is needed.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from rollenv.sandbox.inside import linux

NOBODY = 65534


def closed_ancestor(path: Path) -> Path | None:
    """The topmost folder on the way that others may not enter."""
    return next((p for p in [*reversed(path.parents), path] if not p.stat().st_mode & stat.S_IXOTH), None)


def main() -> None:
    needed = {Path(p).resolve() for p in (sys.base_prefix, sys.prefix, Path(__file__).parents[2])}
    blocked = {path: closed for path in needed if (closed := closed_ancestor(path))}
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    opened = {path: os.open(path, os.O_PATH) for path in blocked}
    for closed in set(blocked.values()):
        linux.mount("cover", str(closed), "tmpfs", 0, "mode=755")
    for path in blocked:
        path.mkdir(parents=True, exist_ok=True)
        linux.mount(f"/proc/self/fd/{opened[path]}", str(path), None, linux.MS_BIND | linux.MS_REC)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
