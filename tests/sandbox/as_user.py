"""``python as_user.py [--many] COMMAND...`` runs a command as an ordinary user, who reaches Python and this repository.

With ``--many`` the system has given the user a range of users, in files of the command's own.

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
    command = sys.argv[1:]
    if command[0] == "--many":
        command = command[1:]
        linux.mount("ranges", "/mnt", "tmpfs", 0, "mode=755")
        Path("/mnt/ranges").write_text(f"{NOBODY}:1879048192:65536\n")
        for name in ("/etc/subuid", "/etc/subgid"):
            linux.mount("/mnt/ranges", name, None, linux.MS_BIND)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
