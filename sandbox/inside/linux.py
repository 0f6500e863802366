"""The Linux calls that isolate a process, through libc: namespaces, mounts, capabilities, Landlock, seccomp.

See namespaces(7), capabilities(7), landlock(7), seccomp(2). Every function raises OSError when the kernel refuses.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable, Sequence

libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 22, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces that the flags name for new ones."""
    _check(libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    arguments = (source.encode(), target.encode(), kind and kind.encode(), ctypes.c_ulong(flags), data.encode())
    _check(libc.mount(*arguments), f"mount {source} on {target}")


def unmount(target: str) -> None:
    """Detach a mount at once, whoever uses it."""
    _check(libc.umount2(target.encode(), MNT_DETACH), f"unmount {target}")


def bind_read_only(source: str, target: str) -> None:
    """Show ``source`` at ``target`` without a way to write to it, set-user-id programs or devices."""
    mount(source, target, None, MS_BIND | MS_REC)
    mount("none", target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | _locked_flags(target))


def _locked_flags(target: str) -> int:
    """Flags that a user namespace may not take off an inherited mount."""
    flags = os.statvfs(target).f_flag
    return (MS_NOEXEC if flags & os.ST_NOEXEC else 0) | (flags & (os.ST_NOATIME | os.ST_NODIRATIME | os.ST_RELATIME))


def pivot_root(new_root: str) -> None:
    """Make ``new_root`` the root, and let go of the old one."""
    os.chdir(new_root)
    _check(libc.syscall({"x86_64": 155, "aarch64": 41}[platform.machine()], b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def loopback_up() -> None:
    """Bring up ``lo`` in this network namespace, so that programs may talk to themselves."""
    import fcntl
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sh14x", b"lo", 1 | 64)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(s, 0x8914, request)  # SIOCSIFFLAGS


def set_dumpable(value: bool) -> None:
    """Whether others of the same user may read this process's memory."""
    _check(libc.prctl(_PR_SET_DUMPABLE, int(value), 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def drop_bounding_set() -> None:
    """No program that this process or its children become will ever have a capability; what it has now stays."""
    for capability in range(64):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def drop_capabilities() -> None:
    """Give up every capability, and the ways to get one back."""
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header, nothing = struct.pack("Ii", 0x20080522, 0), bytes(24)
    _check(libc.capset(header, nothing), "capset")


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
    scopes = 3 if version >= 6 else 0  # no abstract sockets of, and no signals to, whatever is outside
    attributes = struct.pack("QQQ", rights, 0, scopes)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    fd = _check(libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock_create_ruleset")
    for path, allowed in [("/", _READ & rights), *((p, rights) for p in writable)]:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not os.path.isdir(path):
            allowed &= 0b110 | 1 | 1 << 14 | 1 << 15  # rights that a file can have
        rule = struct.pack("=Qi", allowed & rights, parent)
        _check(libc.syscall(_ADD, fd, 1, rule, 0), f"landlock_add_rule {path}")
        os.close(parent)
    return fd


def landlock_restrict(ruleset: int) -> None:
    """Hold this process and its children to a ruleset. Needs no_new_privs."""
    _check(libc.syscall(_RESTRICT, ruleset, 0), "landlock_restrict_self")


# -- seccomp ---------------------------------------------------------------------------------------------------------

_LOAD, _JUMP_EQUAL, _JUMP_ANY, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

#: Calls that reach beyond a sandbox or widen the kernel's surface, as numbers on x86_64 and aarch64 (None: not there).
DENIED_CALLS: dict[str, tuple[int | None, int | None]] = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "setns": (308, 268),
    "unshare": (272, 97), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "acct": (163, 89), "quotactl": (179, 60),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "personality": (135, 92),
    "sethostname": (170, 161), "setdomainname": (171, 162), "lookup_dcookie": (212, 18), "syslog": (103, 116),
    "fanotify_init": (300, 262), "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "memfd_secret": (447, 447), "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None),
    "vhangup": (153, 58), "nfsservctl": (180, 42), "migrate_pages": (256, 238), "move_pages": (279, 239),
}  # fmt: skip

_SOCKET, _CLONE, _CLONE3, _IOCTL = (41, 198), (56, 220), (435, 435), (16, 29)
_NEW_NAMESPACES = 0x7E020000 | 0x80  # every CLONE_NEW* flag, CLONE_NEWTIME too
_FAMILIES = (1, 2, 10)  # unix, IPv4, IPv6
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def seccomp_program() -> bytes:
    """A filter (classic BPF over ``struct seccomp_data``).

    It refuses :data:`DENIED_CALLS`, new namespaces, all socket families but unix, IPv4 and IPv6, and calls of another
    architecture. ``clone3`` does not exist under it, because a filter cannot read its flags; libc falls back to
    ``clone``.
    """
    machine = platform.machine()
    column = list(_ARCH).index(machine)
    refuse = [_op(_RETURN, _ERRNO | _EPERM)]
    program = [_op(_LOAD, 4), _op(_JUMP_EQUAL, _ARCH[machine], 1, 0), _op(_RETURN, _KILL), _op(_LOAD, 0)]
    if machine == "x86_64":
        program += [_op(0x35, 0x40000000, 0, 1), _op(_RETURN, _KILL)]  # the x32 numbers
    for numbers in DENIED_CALLS.values():
        if (number := numbers[column]) is not None:
            program += [_op(_JUMP_EQUAL, number, 0, 1), *refuse]
    program += [_op(_JUMP_EQUAL, _CLONE3[column], 0, 1), _op(_RETURN, _ERRNO | _ENOSYS)]
    program += _with_argument(_CLONE[column], 0, [_op(_JUMP_ANY, _NEW_NAMESPACES & ~0xFF, 0, 1), *refuse])
    families = [_op(_JUMP_EQUAL, f, len(_FAMILIES) - i, 0) for i, f in enumerate(_FAMILIES)]
    program += _with_argument(_SOCKET[column], 0, [*families, _op(_RETURN, _ERRNO | _EAFNOSUPPORT)])
    terminal = [op for code in _TERMINAL_INPUT for op in (_op(_JUMP_EQUAL, code, 0, 1), *refuse)]
    program += _with_argument(_IOCTL[column], 1, terminal)
    return b"".join([*program, _op(_RETURN, _ALLOW)])


def _with_argument(number: int, argument: int, body: Sequence[bytes]) -> list[bytes]:
    """Run ``body`` over an argument's low half if the call is ``number``; its number is loaded again after it."""
    return [_op(_JUMP_EQUAL, number, 0, len(body) + 2), _op(_LOAD, 16 + 8 * argument), *body, _op(_LOAD, 0)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def seccomp_filter(program: bytes) -> None:
    """Hold this process and its children to a filter. Needs no_new_privs."""
    structure = _Program(len(program) // 8, program)
    _check(libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(structure), 0, 0), "prctl(PR_SET_SECCOMP)")
