"""The users of a machine, from its /etc/passwd and /etc/group, which untrusted code may have written."""

from __future__ import annotations

import errno
import os

_MOST = 1 << 20
#: Root's account, which needs no /etc/passwd.
_ROOT = ["root", "x", "0", "0", "", "/", "/bin/sh"]


def become(user: str) -> None:
    """Switch to a user in Docker's notation (``name``, ``number``, ``name:group`` or ``number:number``).

    HOME, USER and LOGNAME are set if the environment lacks them.
    """
    name, _, group = user.partition(":")
    entry = _find("/etc/passwd", name) or (_ROOT if name == "root" else None)
    if entry is None and not name.isdecimal():
        raise OSError(errno.ESRCH, f"there is no user {name!r} in the machine")
    uid, gid = (int(entry[2]), int(entry[3])) if entry else (int(name), 0)
    if group:
        line = _find("/etc/group", group)
        if line is None and not group.isdecimal():
            raise OSError(errno.ESRCH, f"there is no group {group!r} in the machine")
        gid = int(line[2]) if line else int(group)
    for variable, value in {
        "HOME": entry[5] if entry else "/", "USER": entry[0] if entry else name, "LOGNAME": entry[0] if entry else name,
    }.items():  # fmt: skip
        os.environ.setdefault(variable, value)
    if (uid, gid) != (os.getuid(), os.getgid()):
        groups = [int(fields[2]) for fields in _lines("/etc/group") if entry and entry[0] in fields[3].split(",")]
        os.setgroups(sorted({gid, *groups}))
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def _find(path: str, name: str) -> list[str] | None:
    """Return the fields of the first line with a name or number; digits are always a number."""
    matching = [fields for fields in _lines(path) if name == fields[2 if name.isdecimal() else 0]]
    return matching[0] if matching else None


def _lines(path: str) -> list[list[str]]:
    """Return the fields of well-formed lines."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        text = os.read(fd, _MOST).decode("utf-8", "replace")
    except OSError:
        return []
    finally:
        os.close(fd)
    lines = [line.split(":") for line in text.splitlines()]
    needed = 7 if path.endswith("passwd") else 4
    return [f for f in lines if len(f) >= needed and f[2].isdecimal() and (needed == 4 or f[3].isdecimal())]
