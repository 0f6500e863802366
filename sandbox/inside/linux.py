"""The Linux calls that isolate a process, through libc: namespaces, mounts, capabilities, Landlock.

See namespaces(7), capabilities(7), landlock(7); seccomp has its own file.
Every function raises OSError when the kernel refuses.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Iterable

libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4


def check(result: int, what: str) -> int:
    """The result of a call, or its error."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces that the flags name for new ones."""
    check(libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    arguments = (source.encode(), target.encode(), kind and kind.encode(), ctypes.c_ulong(flags), data.encode())
    check(libc.mount(*arguments), f"mount {source} on {target}")


def unmount(target: str) -> None:
    """Detach a mount immediately, even while it is in use."""
    check(libc.umount2(target.encode(), MNT_DETACH), f"unmount {target}")


def bind_read_only(source: str, target: str) -> None:
    """Show ``source``, and what is mounted below it, at ``target``: not to be written, no set-user-id, no devices."""
    mount(source, target, None, MS_BIND | MS_REC)
    try:
        set_mount_attributes(target, MS_RDONLY | MS_NOSUID | MS_NODEV, recursive=True)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        for place in _mounts_below(os.path.realpath(target)):  # before Linux 5.12, or under another filter
            flags = MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | locked_flags(place)
            mount("none", place, None, flags)


def overlay_read_only(source: str, empty: str, target: str) -> bool:
    """Show a folder like :func:`bind_read_only`, but with its own files: locks and watches on them are not shared.

    Returns:
        Whether it could be done: not before Linux 5.11 in a user namespace, nor where something is mounted below it.
    """
    place = os.path.realpath(source)
    if any(mounted != place for mounted in _mounts_below(place)):
        return False
    try:
        flags = MS_RDONLY | MS_NOSUID | MS_NODEV
        mount("overlay", target, "overlay", flags, f"lowerdir={source}:{empty}")
    except OSError:
        return False
    return True


def bind_device(source: str, target: str) -> None:
    """Show a device; its times and permissions cannot be changed there."""
    mount(source, target, None, MS_BIND)
    try:
        set_mount_attributes(target, MS_RDONLY | MS_NOSUID | MS_NOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        mount("none", target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | locked_flags(target))


def set_mount_attributes(target: str, attributes: int, recursive: bool = False) -> None:
    """mount_setattr(2): the low attributes have the values of their mount(2) flags."""
    data = struct.pack("QQQQ", attributes, 0, 0, 0)
    flags = 0x8000 if recursive else 0
    check(libc.syscall(442, -100, target.encode(), flags, data, ctypes.c_size_t(32)), f"mount_setattr {target}")


def _mounts_below(target: str) -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        places = [line.split()[4].replace("\\040", " ") for line in file]
    return [p for p in places if p == target or p.startswith(target.rstrip("/") + "/")]


def mount_with_users(fd: int, target: str, namespace: int) -> None:
    """Show a folder read only, without what is mounted below it, with the users of a user namespace: its 0 is theirs.

    See mount_setattr(2), ID-mapped mounts.
    """
    tree = check(libc.syscall(428, fd, b"", 0x1000 | os.O_CLOEXEC | 1), "open_tree")  # AT_EMPTY_PATH, OPEN_TREE_CLONE
    try:
        data = struct.pack("QQQQ", MS_RDONLY | MS_NOSUID | MS_NODEV | 0x100000, 0, 0, namespace)  # MOUNT_ATTR_IDMAP
        check(libc.syscall(442, tree, b"", 0x1000, data, ctypes.c_size_t(32)), "mount_setattr with users")
        check(libc.syscall(429, tree, b"", -100, target.encode(), 4), f"move_mount to {target}")
    finally:
        os.close(tree)


def locked_flags(target: str) -> int:
    """Flags that a user namespace may not take off an inherited mount."""
    flags = os.statvfs(target).f_flag
    kept = {os.ST_NOEXEC: MS_NOEXEC, os.ST_NODEV: MS_NODEV, os.ST_NOSUID: MS_NOSUID, os.ST_RDONLY: MS_RDONLY}
    return sum(ours for theirs, ours in kept.items() if flags & theirs) | (
        flags & (os.ST_NOATIME | os.ST_NODIRATIME | os.ST_RELATIME)
    )


def open_without_magic(path: str, flags: int, mode: int = 0) -> int:
    """openat2(2) that follows links but none of /proc's that lead to what a path does not name."""
    if "\0" in path:  # C would open what comes before it
        raise OSError(errno.EINVAL, "a path cannot contain a zero byte", path)
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode if flags & os.O_CREAT else 0, 0x02)  # RESOLVE_NO_MAGICLINKS
    fd = libc.syscall(437, -100, os.fsencode(path), how, ctypes.c_size_t(len(how)))
    if fd < 0 and ctypes.get_errno() in (errno.ENOSYS, errno.EPERM):  # an engine that does not know it
        return os.open(path, flags | os.O_CLOEXEC, mode)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return int(fd)


def enter_pid_namespace(fd: int) -> None:
    """Fork into that namespace from now on."""
    check(libc.setns(fd, CLONE_NEWPID), "setns")


def pivot_root(new_root: str) -> None:
    """Make ``new_root`` the root, and detach the old one."""
    os.chdir(new_root)
    check(libc.syscall({"x86_64": 155, "aarch64": 41}[platform.machine()], b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def loopback_up() -> None:
    """Bring up ``lo`` in this network namespace, so that programs may talk to themselves."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sh14x", b"lo", 1 | 64)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(s, 0x8914, request)  # SIOCSIFFLAGS


def set_dumpable(value: bool) -> None:
    """Let other processes of the same user read this process's memory, or not."""
    check(libc.prctl(_PR_SET_DUMPABLE, int(value), 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def out_of_the_way(fd: int) -> int:
    """A copy of a descriptor above those that a fork arranges; the original is closed."""
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 128)
    os.close(fd)
    return high


def forget_arguments() -> None:
    """Let /proc show a plain name for this process and its forks, instead of the paths that it was started with."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/stat") as file:
        first, end = map(int, file.read().rpartition(")")[2].split()[45:47])
        if first:
            ctypes.memset(first, 0, end - first)
            ctypes.memmove(first, b"sandbox", min(8, end - first))


def go_first_when_memory_is_short() -> None:
    """Rather than what forked this process, or anything else on the machine.."""
    with contextlib.suppress(OSError):
        _write_own("oom_score_adj", "500")


def _write_own(name: str, text: str) -> None:
    fd = os.open(f"/proc/self/{name}", os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def drop_bounding_set(kept: Iterable[int] = ()) -> None:
    """No program that this process or its children become will ever have other capabilities; what it has now stays."""
    for capability in set(range(64)).difference(kept):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def act_as(user: int) -> None:
    """Become a user in effect, with the capabilities of now: a user namespace made then counts as that user's."""
    header, data = struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    check(libc.capget(header, data), "capget")
    os.seteuid(user)
    _, low, inherited, _, high, more = struct.unpack("6I", data.raw)
    check(libc.capset(header, struct.pack("6I", low, low, inherited, high, high, more)), "capset")


def drop_capabilities() -> None:
    """Give up every capability, and the ways to get one back."""
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    keep_capabilities(())


def keep_capabilities(kept: Iterable[int]) -> None:
    """Give up every capability but these, which programs of root keep; none is ever gained."""
    check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    mask = sum(1 << capability for capability in kept)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = struct.pack("Ii", 0x20080522, 0)
    check(libc.capset(header, struct.pack("6I", low, low, 0, high, high, 0)), "capset")


# -- Landlock --------------------------------------------------------------------------------------------------------

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_READ = 0b1101  # execute, read file, read directory
#: Access rights to files by the version of Landlock's interface.
_ALL_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}


def landlock_version() -> int:
    """The version of the kernel's Landlock interface; 0 without Landlock."""
    return max(0, int(libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1)))


def landlock_ruleset(writable: Iterable[str]) -> int:
    """A file descriptor of rules: read and execute anything, write only below the folders named."""
    version = landlock_version()
    rights = _ALL_RIGHTS.get(version, (1 << 16) - 1)
    attributes = struct.pack("QQ", rights, 0)[: 16 if version >= 4 else 8]
    fd = check(libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock_create_ruleset")
    for path, allowed in [("/", _READ & rights), *((p, rights) for p in writable)]:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not os.path.isdir(path):
            allowed &= 0b110 | 1 | 1 << 14 | 1 << 15  # rights that a file can have
        rule = struct.pack("=Qi", allowed & rights, parent)
        check(libc.syscall(_ADD, fd, 1, rule, 0), f"landlock_add_rule {path}")
        os.close(parent)
    return fd


def landlock_restrict(ruleset: int) -> None:
    """Hold this process and its children to a ruleset. Needs no_new_privs."""
    check(libc.syscall(_RESTRICT, ruleset, 0), "landlock_restrict_self")
