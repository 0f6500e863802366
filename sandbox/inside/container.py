"""Becomes the kernel as process 1 of a container. The engine isolates; this adds seccomp, and Landlock if allowed.

The kernel and its helper run as the container's root, with the capabilities to change users and to signal; code runs as
another user without capabilities.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import socket
import sys
from collections.abc import Callable

from rollenv.sandbox.inside import kernel, linux, monitor, namespace_init, processes, protocol

#: The user that kills code's processes; code cannot signal it.
ENDER = 2
#: All writable folders.
WRITABLE = ("/box", "/tmp", "/dev/shm", "/home")
SCRATCH = "/box/home"
#: Files with the control group's count of kills for lack of memory (v2 and v1).
OOM = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Serve requests from standard input, with answers to standard output, and the kernel's own errors to stderr."""
    if os.getpid() != 1:
        sys.exit("this must be process 1 of a container: it ends every process that it can see")
    inward, outward = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(nowhere, fd)
    sys.path.remove("")  # code must not choose the kernel's imports
    limit, seconds, user, *names = sys.argv[1:]
    as_code = functools.partial(_as_code, int(user))
    loaded = []
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
            loaded.append(name)
    linux.set_dumpable(False)
    linux.forget_arguments()
    as_code(lambda: os.makedirs(SCRATCH, exist_ok=True))
    _reset_times()
    rules = _rules()

    def clean() -> None:
        as_code(_wipe)
        _reset_times()

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        os.dup2(nowhere, 2)  # code must not write what the host shows as the kernel's errors
        for fd in (inward, outward, ours.detach()):
            os.close(fd)
        linux.libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        end_all = functools.partial(_end_all, int(user))
        namespace_init.NamespaceInit(theirs, _harden(rules, int(user)), SCRATCH, end_all, clean).serve()
    theirs.close()
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    oom = next((os.open(path, os.O_RDONLY) for path in OOM if os.path.exists(path)), None)
    monitoring = monitor.ResourceMonitor(proc, False, oom, int(limit), counts=False)
    monitoring.own.add(pid)
    serving = kernel.Kernel(
        inward,
        outward,
        new_namespace=None,
        # Only to measure it: the folder is code's, and root may not read it without CAP_DAC_OVERRIDE.
        common=processes.Namespace(ours, 0, os.open("/box", os.O_PATH | os.O_DIRECTORY)),
        monitor=monitoring,
        idle_seconds=float(seconds),
    )
    ready = {"proc": True, "landlock": int(rules is not None), "loaded": loaded, "memory_group": oom is not None}
    serving.send(0, protocol.Ready({**ready, "scratch": SCRATCH}))
    serving.serve()


def _harden(rules: int | None, user: int) -> Callable[[], None]:
    # No memfd: its memory is freed some time after its owner was killed, and until then the OOM killer kills others.
    program = linux.filter_program(memfd=False)

    def harden() -> None:
        _become(user)
        linux.confine_code(rules, program)

    return harden


def _rules() -> int | None:
    try:
        if linux.landlock_version():
            return linux.out_of_the_way(linux.landlock_ruleset([*WRITABLE, "/dev"]))
        return None
    except OSError:  # the engine's own filter blocks Landlock
        return None


def _become(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _as_code(user: int, action: Callable[[], None]) -> None:
    """Run an action with code's permissions, and wait for it."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            _become(user)
            action()
        os._exit(0)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _end_all(user: int, number: int) -> None:
    """Signal all processes of code's user, as a user that they cannot signal."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.setresuid(ENDER, user, ENDER)
            os.kill(-1, number)
        os._exit(0)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _reset_times() -> None:
    """Reset the times of devices, which code may have set."""
    for entry in os.scandir("/dev"):
        if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False) or entry.is_symlink():
            continue
        with contextlib.suppress(OSError):
            os.utime(entry.path, (0, 0))


def _wipe() -> None:
    """Remove all written files, at any depth and with any permissions."""
    for folder in WRITABLE:
        with contextlib.suppress(PermissionError):  # /dev/shm belongs to root
            os.chmod(folder, 0o700)
        # Without recursion: contents of a folder move up before it is removed.
        moved, prefix = 0, os.urandom(8).hex()  # code cannot have used these names
        while entries := list(os.scandir(folder)):
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    os.remove(entry.path)
                    continue
                os.chmod(entry.path, 0o700)
                for inner in list(os.scandir(entry.path)):
                    if inner.is_dir(follow_symlinks=False):
                        os.chmod(inner.path, 0o700)  # only a writable folder can be moved
                    moved += 1
                    os.rename(inner.path, f"{folder}/{prefix} {moved}")
                os.rmdir(entry.path)
    os.mkdir(SCRATCH)
