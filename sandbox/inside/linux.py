"""Linux calls that isolate a process, through libc: namespaces, mounts, capabilities, Landlock, and a seccomp filter
with an allow list of system calls.

See namespaces(7), capabilities(7), landlock(7), seccomp(2). Every function raises OSError when the kernel refuses.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct
import threading
from collections.abc import Iterable, Sequence

libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4


def check(result: int, what: str) -> int:
    """Return the result of a call, or raise its error."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Enter new namespaces."""
    check(libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int = 0, data: str = "") -> None:
    """Call mount(2)."""
    arguments = (source.encode(), target.encode(), kind and kind.encode(), ctypes.c_ulong(flags), data.encode())
    check(libc.mount(*arguments), f"mount {source} on {target}")


def unmount(target: str) -> None:
    """Detach a mount immediately, even while it is in use."""
    check(libc.umount2(target.encode(), MNT_DETACH), f"unmount {target}")


def bind_read_only(source: str, target: str) -> None:
    """Bind ``source``, with mounts below it, to ``target``: read-only, without set-user-id and devices."""
    mount(source, target, None, MS_BIND | MS_REC)
    try:
        set_mount_attributes(target, MS_RDONLY | MS_NOSUID | MS_NODEV, recursive=True)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        for mounted in _mounts_below(os.path.realpath(target)):  # before Linux 5.12, or under a seccomp filter
            flags = MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | locked_flags(mounted)
            mount("none", mounted, None, flags)


def overlay_read_only(source: str, empty: str, target: str) -> bool:
    """Show a folder like :func:`bind_read_only`, but do not share locks and watches on its files.

    Returns:
        False if it failed: before Linux 5.11 in a user namespace, or if something is mounted below the folder.
    """
    real = os.path.realpath(source)
    if any(mounted != real for mounted in _mounts_below(real)):
        return False
    try:
        flags = MS_RDONLY | MS_NOSUID | MS_NODEV
        mount("overlay", target, "overlay", flags, f"lowerdir={source}:{empty}")
    except OSError:
        return False
    return True


def bind_device(source: str, target: str) -> None:
    """Bind a device, with fixed times and permissions."""
    mount(source, target, None, MS_BIND)
    try:
        set_mount_attributes(target, MS_RDONLY | MS_NOSUID | MS_NOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        mount("none", target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | locked_flags(target))


def set_mount_attributes(target: str, attributes: int, recursive: bool = False) -> None:
    """Call mount_setattr(2), whose low attributes equal flags of mount(2)."""
    data = struct.pack("QQQQ", attributes, 0, 0, 0)
    flags = 0x8000 if recursive else 0
    check(libc.syscall(442, -100, target.encode(), flags, data, ctypes.c_size_t(32)), f"mount_setattr {target}")


def _mounts_below(target: str) -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        targets = [line.split()[4].replace("\\040", " ") for line in file]
    return [p for p in targets if p == target or p.startswith(target.rstrip("/") + "/")]


def mount_with_users(fd: int, target: str, namespace: int) -> None:
    """Bind a folder read-only, without mounts below it, with its users mapped to those of a user namespace.

    See ID-mapped mounts in mount_setattr(2).
    """
    tree = check(libc.syscall(428, fd, b"", 0x1000 | os.O_CLOEXEC | 1), "open_tree")  # AT_EMPTY_PATH, OPEN_TREE_CLONE
    try:
        data = struct.pack("QQQQ", MS_RDONLY | MS_NOSUID | MS_NODEV | 0x100000, 0, 0, namespace)  # MOUNT_ATTR_IDMAP
        check(libc.syscall(442, tree, b"", 0x1000, data, ctypes.c_size_t(32)), "mount_setattr with users")
        check(libc.syscall(429, tree, b"", -100, target.encode(), 4), f"move_mount to {target}")
    finally:
        os.close(tree)


def locked_flags(target: str) -> int:
    """Return the flags that a user namespace may not remove from an inherited mount."""
    flags = os.statvfs(target).f_flag
    pairs = {os.ST_NOEXEC: MS_NOEXEC, os.ST_NODEV: MS_NODEV, os.ST_NOSUID: MS_NOSUID, os.ST_RDONLY: MS_RDONLY}
    return sum(ours for theirs, ours in pairs.items() if flags & theirs) | (
        flags & (os.ST_NOATIME | os.ST_NODIRATIME | os.ST_RELATIME)
    )


def open_without_magic(path: str, flags: int, mode: int = 0) -> int:
    """Call openat2(2), which follows links except the magic links of /proc."""
    if "\0" in path:  # C would open the path before it
        raise OSError(errno.EINVAL, "a path cannot contain a zero byte", path)
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode if flags & os.O_CREAT else 0, 0x02)  # RESOLVE_NO_MAGICLINKS
    fd = libc.syscall(437, -100, os.fsencode(path), how, ctypes.c_size_t(len(how)))
    if fd < 0 and ctypes.get_errno() in (errno.ENOSYS, errno.EPERM):  # an old kernel, or a container's filter
        return os.open(path, flags | os.O_CLOEXEC, mode)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return int(fd)


def enter_pid_namespace(fd: int) -> None:
    """Fork into a pid namespace from now on."""
    check(libc.setns(fd, CLONE_NEWPID), "setns")


def pivot_root(new_root: str) -> None:
    """Make ``new_root`` the root and detach the old one."""
    os.chdir(new_root)
    check(libc.syscall({"x86_64": 155, "aarch64": 41}[platform.machine()], b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def loopback_up() -> None:
    """Bring up ``lo`` in this network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sh14x", b"lo", 1 | 64)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(s, 0x8914, request)  # SIOCSIFFLAGS


def set_dumpable(value: bool) -> None:
    """Allow or forbid other processes of the same user to read this process's memory."""
    check(libc.prctl(_PR_SET_DUMPABLE, int(value), 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def out_of_the_way(fd: int) -> int:
    """Move a descriptor above those that a fork rearranges."""
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 128)
    os.close(fd)
    return high


def forget_arguments() -> None:
    """Replace the command line of this process and its forks in /proc, which has paths of the host, by a name."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/stat") as file:
        first, end = map(int, file.read().rpartition(")")[2].split()[45:47])
        if first:
            ctypes.memset(first, 0, end - first)
            ctypes.memmove(first, b"sandbox", min(8, end - first))


def go_first_when_memory_is_short() -> None:
    """Let the OOM killer prefer this process."""
    with contextlib.suppress(OSError):
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        try:
            os.write(fd, b"500")
        finally:
            os.close(fd)


def drop_bounding_set(kept: Iterable[int] = ()) -> None:
    """Drop capabilities from the bounding set, so that programs of this process and its children cannot gain them."""
    for capability in set(range(64)).difference(kept):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def act_as(user: int) -> None:
    """Set the effective user but keep capabilities, so that a new user namespace belongs to that user."""
    header, data = struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    check(libc.capget(header, data), "capget")
    os.seteuid(user)
    _, low, inherited, _, high, more = struct.unpack("6I", data.raw)
    check(libc.capset(header, struct.pack("6I", low, low, inherited, high, high, more)), "capset")


def drop_capabilities() -> None:
    """Drop all capabilities and the ways to gain any."""
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    forbid_new_privileges()
    keep_capabilities(())


def forbid_new_privileges() -> None:
    """Ignore set-user-id bits and capabilities of programs from now on."""
    check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def keep_capabilities(kept: Iterable[int]) -> None:
    """Drop all capabilities except those given."""
    mask = sum(1 << capability for capability in kept)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = struct.pack("Ii", 0x20080522, 0)
    check(libc.capset(header, struct.pack("6I", low, low, 0, high, high, 0)), "capset")


# -- Landlock --------------------------------------------------------------------------------------------------------

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_READ = 0b1101  # execute, read file, read directory
#: Access rights to files by version of Landlock's interface.
_ALL_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}


def landlock_version() -> int:
    """Return the version of the kernel's Landlock interface; 0 without Landlock."""
    return max(0, int(libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1)))


def landlock_ruleset(writable: Iterable[str]) -> int:
    """Create a ruleset: read and execute everything, write only to given files and folders."""
    version = landlock_version()
    rights = _ALL_RIGHTS.get(version, (1 << 16) - 1)
    attributes = struct.pack("QQ", rights, 0)[: 16 if version >= 4 else 8]
    fd = check(libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock_create_ruleset")
    for path, allowed in [("/", _READ & rights), *((p, rights) for p in writable)]:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not os.path.isdir(path):
            allowed &= 0b110 | 1 | 1 << 14 | 1 << 15  # rights that apply to files
        rule = struct.pack("=Qi", allowed & rights, parent)
        check(libc.syscall(_ADD, fd, 1, rule, 0), f"landlock_add_rule {path}")
        os.close(parent)
    return fd


#: Allowed system calls by purpose: name to number on x86_64 and aarch64; None if the architecture lacks the call.
CALLS: dict[str, dict[str, tuple[int | None, int | None]]] = {
    "files": {
        "read": (0, 63), "write": (1, 64), "open": (2, None), "close": (3, 57), "stat": (4, None), "fstat": (5, 80),
        "lstat": (6, None), "lseek": (8, 62), "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65),
        "writev": (20, 66), "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287),
        "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "openat": (257, 56),
        "openat2": (437, 437), "close_range": (436, 436), "creat": (85, None), "dup": (32, 23), "dup2": (33, None),
        "dup3": (292, 24), "fcntl": (72, 25), "flock": (73, 32), "fsync": (74, 82), "fdatasync": (75, 83),
        "sync_file_range": (277, 84), "truncate": (76, 45),
        "ftruncate": (77, 46), "fallocate": (285, 47), "getdents": (78, None), "getdents64": (217, 61),
        "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50), "rename": (82, None), "renameat": (264, 38),
        "renameat2": (316, 276), "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "link": (86, None),
        "linkat": (265, 37), "unlink": (87, None), "unlinkat": (263, 35), "symlink": (88, None),
        "symlinkat": (266, 36), "readlink": (89, None), "readlinkat": (267, 78), "chmod": (90, None),
        "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, None), "fchown": (93, 55), "lchown": (94, None),
        "fchownat": (260, 54), "umask": (95, 166), "newfstatat": (262, 79), "statx": (332, 291), "statfs": (137, 43),
        "fstatfs": (138, 44), "utime": (132, None), "utimes": (235, None), "utimensat": (280, 88),
        "futimesat": (261, None), "mknod": (133, None), "mknodat": (259, 33), "fadvise64": (221, 223),
        "readahead": (187, 213), "copy_file_range": (326, 285), "sendfile": (40, 71), "splice": (275, 76),
        "tee": (276, 77), "vmsplice": (278, 75), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
        "getxattr": (191, 8), "lgetxattr": (192, 9), "fgetxattr": (193, 10), "listxattr": (194, 11),
        "llistxattr": (195, 12), "flistxattr": (196, 13), "removexattr": (197, 14), "lremovexattr": (198, 15),
        "fremovexattr": (199, 16), "inotify_init": (253, None), "inotify_init1": (294, 26),
        "inotify_add_watch": (254, 27), "inotify_rm_watch": (255, 28), "ioctl": (16, 29),
        "fchmodat2": (452, 452),
    },
    "memory": {
        "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216), "madvise": (28, 233),
        "brk": (12, 214), "msync": (26, 227), "mincore": (27, 232), "mlock": (149, 228), "mlock2": (325, 284),
        "munlock": (150, 229), "mlockall": (151, 230), "munlockall": (152, 231), "pkey_mprotect": (329, 288),
        "pkey_alloc": (330, 289), "pkey_free": (331, 290), "membarrier": (324, 283), "get_mempolicy": (239, 236),
        "set_mempolicy": (238, 237), "mbind": (237, 235), "set_mempolicy_home_node": (450, 450),
        "memfd_create": (319, 279),
        "map_shadow_stack": (453, 453), "mseal": (462, 462),
    },
    "processes": {
        "clone": (56, 220), "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
        "exit": (60, 93), "exit_group": (231, 94), "wait4": (61, 260), "waitid": (247, 95), "getpid": (39, 172),
        "getppid": (110, 173), "gettid": (186, 178), "getpgid": (121, 155), "setpgid": (109, 154),
        "getpgrp": (111, None), "setsid": (112, 157), "getsid": (124, 156), "getuid": (102, 174),
        "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "setuid": (105, 146),
        "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143), "setresuid": (117, 147),
        "setresgid": (119, 149), "getresuid": (118, 148), "getresgid": (120, 150), "setfsuid": (122, 151),
        "setfsgid": (123, 152), "getgroups": (115, 158), "setgroups": (116, 159), "capget": (125, 90),
        "capset": (126, 91), "prctl": (157, 167), "arch_prctl": (158, None), "set_tid_address": (218, 96),
        "set_robust_list": (273, 99), "get_robust_list": (274, 100), "rseq": (334, 293), "futex": (202, 98),
        "futex_waitv": (449, 449), "futex_wake": (454, 454),
        "futex_wait": (455, 455), "futex_requeue": (456, 456),
        "getrlimit": (97, 163), "setrlimit": (160, 164), "prlimit64": (302, 261),
        "getrusage": (98, 165), "times": (100, 153), "sysinfo": (99, 179), "uname": (63, 160), "getcpu": (309, 168),
        "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "getpriority": (140, 141),
        "setpriority": (141, 140), "ioprio_get": (252, 31), "ioprio_set": (251, 30), "sched_yield": (24, 124),
        "sched_getaffinity": (204, 123), "sched_setaffinity": (203, 122), "sched_getparam": (143, 121),
        "sched_setparam": (142, 118), "sched_getscheduler": (145, 120), "sched_setscheduler": (144, 119),
        "sched_getattr": (315, 275), "sched_setattr": (314, 274), "sched_get_priority_max": (146, 125),
        "sched_get_priority_min": (147, 126), "sched_rr_get_interval": (148, 127), "restart_syscall": (219, 128),
        "seccomp": (317, 277), "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445),
        "landlock_restrict_self": (446, 446),
    },
    "signals": {
        "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigaction": (13, 134),
        "rt_sigprocmask": (14, 135), "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137),
        "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "rt_sigsuspend": (130, 133),
        "rt_sigreturn": (15, 139), "sigaltstack": (131, 132), "signalfd": (282, None), "signalfd4": (289, 74),
        "pause": (34, None), "alarm": (37, None), "getitimer": (36, 102), "setitimer": (38, 103),
    },
    "time": {
        "time": (201, None), "gettimeofday": (96, 169), "clock_gettime": (228, 113), "clock_getres": (229, 114),
        "clock_nanosleep": (230, 115), "nanosleep": (35, 101), "timer_create": (222, 107),
        "timer_settime": (223, 110), "timer_gettime": (224, 108), "timer_getoverrun": (225, 109),
        "timer_delete": (226, 111), "timerfd_create": (283, 85), "timerfd_settime": (286, 86),
        "timerfd_gettime": (287, 87),
    },
    "waiting": {
        "select": (23, None), "pselect6": (270, 72), "poll": (7, None), "ppoll": (271, 73),
        "epoll_create": (213, None), "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None),
        "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441), "eventfd": (284, None), "eventfd2": (290, 19),
        "pipe": (22, None), "pipe2": (293, 59),
    },
    "sockets": {
        "socket": (41, 198), "socketpair": (53, 199), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202),
        "accept4": (288, 242), "connect": (42, 203), "getsockname": (51, 204), "getpeername": (52, 205),
        "sendto": (44, 206), "recvfrom": (45, 207), "sendmsg": (46, 211), "recvmsg": (47, 212),
        "sendmmsg": (307, 269), "recvmmsg": (299, 243), "shutdown": (48, 210), "setsockopt": (54, 208),
        "getsockopt": (55, 209),
    },
    "other": {"getrandom": (318, 278)},
}  # fmt: skip

#: Additional calls in a machine: chroot, and System V shared memory, semaphores and queues of its own ipc namespace.
OF_MACHINES: dict[str, tuple[int | None, int | None]] = {
    "chroot": (161, 51), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197),
    "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186),
    "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
}  # fmt: skip

_LOAD, _EQUAL, _ABOVE, _NOT_BELOW, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO, _ASK = 0x7FFF0000, 0x80000000, 0x00050000, 0x7FC00000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_PR_SET_SECCOMP, _SECCOMP_PR_SET_DUMPABLE, _NEW_LISTENER = 22, 4, 8
#: Maximum netlink sockets of a machine. Each holds up to twice net.core.rmem_max and wmem_max: 16 MiB since Linux 6.17.
_MAX_NETLINK = 16

_SYNC, _SYNCFS, _CLONE3 = (162, 81), (306, 267), (435, 435)
_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag that clone takes
_FAMILIES = (1, 2, 10)  # unix, IPv4, IPv6
_AF_NETLINK, _NETLINK_ROUTE = 16, 0
_TERMINAL = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX, TIOCSETD (which would load a kernel module)
#: Calls that change the scheduling of a process, with the index of its pid. The namespace's first process is 1.
_SCHEDULING = {"sched_setaffinity": 0, "sched_setscheduler": 0, "sched_setparam": 0, "sched_setattr": 0}


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


_REFUSE = _op(_RETURN, _ERRNO | _EPERM)


def filter_program(memfd: bool = True, affinity: bool = True, machine: bool = False, netlink: bool = False) -> bytes:
    """Build the seccomp filter, classic BPF over ``struct seccomp_data``.

    ``clone3`` fails with ENOSYS, because a filter cannot read its flags; libc falls back to ``clone``. A process can
    set only its own limits. ``sync`` does nothing, because the scratch folder is in memory.

    Args:
        memfd: allow memfd files, and processes that hide their mappings (``PR_SET_DUMPABLE`` 0). Both need a control
            group that counts memory.
        affinity: allow processes to choose their processors, which needs a control group that shares them.
        netlink: allow sockets that list network interfaces and routes, which needs a :class:`NetlinkGuard`.
    """
    architecture = platform.machine()
    column = list(_ARCH).index(architecture)
    numbers = {name: pair[column] for group in CALLS.values() for name, pair in group.items()}
    if machine and memfd:  # only control groups count shared memory
        numbers |= {name: pair[column] for name, pair in OF_MACHINES.items()}
    elif machine:
        numbers["chroot"] = OF_MACHINES["chroot"][column]
    if not memfd:
        del numbers["memfd_create"]
    if not affinity:
        del numbers["sched_setaffinity"]
    program = [_op(_LOAD, 4), _op(_EQUAL, _ARCH[architecture], 1, 0), _op(_RETURN, _KILL), _op(_LOAD, 0)]
    if architecture == "x86_64":
        program += [_op(_NOT_BELOW, 0x40000000, 0, 1), _op(_RETURN, _KILL)]  # the x32 numbers
    for pair in (_SYNC, _SYNCFS):
        program += [_op(_EQUAL, pair[column], 0, 1), _op(_RETURN, _ERRNO)]
    program += [_op(_EQUAL, _CLONE3[column], 0, 1), _op(_RETURN, _ERRNO | _ENOSYS)]

    def one_of(*refused: int) -> list[bytes]:
        return [op for value in refused for op in (_op(_EQUAL, value, 0, 1), _REFUSE)]

    routes = [_op(_EQUAL, _AF_NETLINK, 0, 2), _op(_LOAD, 32), _op(_EQUAL, _NETLINK_ROUTE, 1, 0)] if netlink else []
    families = [_op(_EQUAL, f, len(_FAMILIES) + len(routes) - i, 0) for i, f in enumerate(_FAMILIES)] + routes
    hiding = [_op(_EQUAL, _SECCOMP_PR_SET_DUMPABLE, 0, 3), _op(_LOAD, 24), _op(_EQUAL, 0, 0, 1), _REFUSE]
    conditions: list[tuple[str, int, Sequence[bytes]]] = [
        ("clone", 0, [_op(_ANY_BIT, _NEW_NAMESPACES, 0, 1), _REFUSE]),
        ("socket", 0, [*families, _op(_RETURN, _ERRNO | _EAFNOSUPPORT)]),
        ("ioctl", 1, one_of(*_TERMINAL)),
        ("prlimit64", 0, [_op(_EQUAL, 0, 1, 0), _REFUSE]),
        ("setpriority", 0, one_of(2)),  # PRIO_USER
        ("setpriority", 1, one_of(1)),
        ("ioprio_set", 0, one_of(3)),
        ("ioprio_set", 1, one_of(1)),
        *((name, argument, one_of(1)) for name, argument in _SCHEDULING.items()),
        *([] if memfd else [("prctl", 0, hiding)]),
    ]
    # Each condition is a call, an argument, and operations on its low half; if none returns, the call is allowed.
    for name, argument, body in conditions:
        if (number := numbers.get(name)) is None:
            continue
        program += [_op(_EQUAL, number, 0, len(body) + 2), _op(_LOAD, 16 + 8 * argument), *body, _op(_LOAD, 0)]
    allowed = sorted(number for number in numbers.values() if number is not None)
    for first, last in _ranges(allowed):
        program += [_op(_NOT_BELOW, first, 0, 2), _op(_ABOVE, last, 1, 0), _op(_RETURN, _ALLOW)]
    program += [_op(_ABOVE, allowed[-1], 0, 1), _op(_RETURN, _ERRNO | _ENOSYS), _REFUSE]
    return b"".join(program)


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Group sorted numbers into (first, last) of consecutive runs."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def install_filter(program: bytes) -> None:
    """Install a seccomp filter for this process and its children. Needs no_new_privs, or root of a user namespace."""
    structure = _Program(len(program) // 8, program)
    check(libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(structure), 0, 0), "prctl(PR_SET_SECCOMP)")


class NetlinkGuard:
    """Opens netlink sockets for this process's children, few at a time: no control group counts the memory they hold.

    Linux asks a thread of this process about each (SECCOMP_RET_USER_NOTIF), which opens it and gives it to the child.
    If the thread ends, and before Linux 5.14, all are refused.

    Raises:
        OSError: Linux is older than 5.0, or another process is asked already.
    """

    def __init__(self) -> None:
        self._counts = out_of_the_way(os.open("/proc/self/net/protocols", os.O_RDONLY | os.O_CLOEXEC))
        number = CALLS["sockets"]["socket"][list(_ARCH).index(platform.machine())]
        assert number is not None
        ask = [_op(_LOAD, 0), _op(_EQUAL, number, 0, 3), _op(_LOAD, 16), _op(_EQUAL, _AF_NETLINK, 0, 1)]
        program = b"".join([*ask, _op(_RETURN, _ASK), _op(_RETURN, _ALLOW)])
        call = {"x86_64": 317, "aarch64": 277}[platform.machine()]
        installed = threading.Event()
        self.fd = -1
        threading.Thread(target=self._serve, args=(installed,), daemon=True).start()  # a thread without the filter
        try:
            structure = _Program(len(program) // 8, program)
            self.fd = out_of_the_way(check(libc.syscall(call, 1, _NEW_LISTENER, ctypes.byref(structure)), "seccomp"))
        finally:
            installed.set()

    def _serve(self, installed: threading.Event) -> None:
        installed.wait()
        if self.fd < 0:
            return
        try:
            while True:
                self._answer()
        finally:
            os.close(self.fd)  # from now on Linux refuses them

    def _answer(self) -> None:
        question = bytearray(80)
        try:
            fcntl.ioctl(self.fd, 0xC0502100, question)  # SECCOMP_IOCTL_NOTIF_RECV
            number, kind = struct.unpack_from("Q32xI", question)
            try:
                self._give(number, kind)
            except OSError as error:
                answer = struct.pack("QqiI", number, 0, -(error.errno or errno.EPERM), 0)
                fcntl.ioctl(self.fd, 0xC0182101, bytearray(answer))  # SECCOMP_IOCTL_NOTIF_SEND
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINTR):  # the child has ended; a signal arrived
                raise

    def _give(self, number: int, kind: int) -> None:
        fields = (line.split() for line in os.pread(self._counts, 1 << 16, 0).decode().splitlines())
        if next((int(words[2]) for words in fields if words[0] == "NETLINK"), _MAX_NETLINK) >= _MAX_NETLINK:
            raise OSError(errno.ENFILE, "too many netlink sockets")
        with socket.socket(_AF_NETLINK, kind & ~socket.SOCK_CLOEXEC, _NETLINK_ROUTE) as opened:
            flags = os.O_CLOEXEC if kind & socket.SOCK_CLOEXEC else 0
            give = struct.pack("QIIII", number, 2, opened.fileno(), 0, flags)  # SECCOMP_ADDFD_FLAG_SEND
            fcntl.ioctl(self.fd, 0x40182103, give)  # SECCOMP_IOCTL_NOTIF_ADDFD


def confine_code(rules: int | None, program: bytes) -> None:
    """Confine this process, which already has code's user, and its children."""
    drop_capabilities()
    set_dumpable(True)
    go_first_when_memory_is_short()
    if rules is not None:
        check(libc.syscall(_RESTRICT, rules, 0), "landlock_restrict_self")
    else:
        set_dumpable(False)  # without Landlock, protect it from other processes of the same user
    install_filter(program)
