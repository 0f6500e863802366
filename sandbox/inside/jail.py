"""Builds a jail around itself and becomes the kernel in it: ``python -s -S -P -c "... import jail; jail.main(fd)"``.

The jail has its own user, pid, mount, network, ipc, uts and cgroup namespaces. Its file system is a read-only view of
the system and of Python, and one scratch folder in memory with limits on size and number of files. Code runs in forks
without capabilities, under Landlock and seccomp; started by root, also under another user than the kernel's.

Started by root, the file system is built first (as root, who can reach Python wherever it is installed), then all of it
moves into a user namespace in which nobody is root outside. An ordinary user is in the namespace from the beginning.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import socket
import sys
from typing import Any

if __package__:
    from rollenv.sandbox.inside import kernel, linux
else:  # started by path, without the weight of the package
    import kernel  # type: ignore[import-not-found,no-redef]
    import linux  # type: ignore[import-not-found,no-redef]

#: The users inside: the kernel's (only if root started the jail) and the code's.
KERNEL_USER, CODE_USER = 0, 1000
#: What they are outside when root starts the jail: users that own nothing.
OUTSIDE = {KERNEL_USER: 0x70000000, CODE_USER: 0x70000001}

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache", "/etc/alternatives")
DEVICES = ("null", "zero", "full", "random", "urandom")
FILES = {
    "etc/passwd": "root:x:0:0:root:/:/usr/sbin/nologin\nuser:x:1000:1000:user:/home/user:/bin/sh\n",
    "etc/group": "root:x:0:\nuser:x:1000:\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "etc/resolv.conf": "",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
SCRATCH = "/box"
#: Folders in the scratch, and where else they appear.
PLACES = {"home": "home/user", "tmp": "tmp", "shm": "dev/shm"}

_NAMESPACES = (
    linux.CLONE_NEWUSER
    | linux.CLONE_NEWNS
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWNET
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUTS
    | linux.CLONE_NEWCGROUP
)
_PR_SET_PDEATHSIG = 1


def main(channel: int) -> None:
    """Read the settings (one line of JSON) from the channel, and serve it from inside the jail."""
    settings = json.loads(_read_line(channel))
    try:
        privileged = os.geteuid() == 0
        if privileged:
            linux.unshare(linux.CLONE_NEWNS)
            proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
            _build_root(settings)
            _enter_namespaces_as_root(proc)
            os.close(proc)
        else:
            _enter_namespaces_as_user()
            _build_root(settings)
        socket.sethostname("sandbox")
        linux.loopback_up()
    except OSError as error:
        _refuse(channel, error)
    child = os.fork()
    if child == 0:
        linux.libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        try:
            _serve(channel, settings, privileged)
        except OSError as error:
            _refuse(channel, error)
        os._exit(0)
    os.close(channel)
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _read_line(fd: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte:
            os._exit(0)
        line += byte
    return line


def _refuse(channel: int, error: OSError) -> None:
    """Say what is missing, and end."""
    data = json.dumps({"id": 0, "refused": str(error)}).encode()
    with contextlib.suppress(OSError):
        os.write(channel, len(data).to_bytes(4, "big") + data)
    os._exit(1)


# -- namespaces ------------------------------------------------------------------------------------------------------


def _enter_namespaces_as_root(proc: int) -> None:
    """Only a process outside may say who the users inside are: a helper, forked before."""
    go, ready = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(ready)
        os.read(go, 1)
        for name in ("uid_map", "gid_map"):
            lines = "".join(f"{inside} {outside} 1\n" for inside, outside in OUTSIDE.items())
            _write(f"{os.getppid()}/{name}", lines, proc)
        os._exit(0)
    os.close(go)
    linux.unshare(_NAMESPACES)
    os.write(ready, b"x")
    os.close(ready)
    if os.waitpid(helper, 0)[1] != 0:
        raise OSError("the users of the jail could not be mapped")
    os.setgroups([])
    os.setresgid(KERNEL_USER, KERNEL_USER, KERNEL_USER)
    os.setresuid(KERNEL_USER, KERNEL_USER, KERNEL_USER)


def _enter_namespaces_as_user() -> None:
    uid, gid = os.geteuid(), os.getegid()
    linux.unshare(_NAMESPACES)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{CODE_USER} {uid} 1\n")
    _write("/proc/self/gid_map", f"{CODE_USER} {gid} 1\n")


def _write(path: str, text: str, folder: int | None = None) -> None:
    fd = os.open(path, os.O_WRONLY, dir_fd=folder)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


# -- the file system -------------------------------------------------------------------------------------------------


def _build_root(settings: dict[str, Any]) -> None:
    """A root in memory that shows the system read-only, and the move into it."""
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    root = "/tmp"
    linux.mount("root", root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=1m,nr_inodes=2k,mode=755")
    for path in (*SYSTEM, *settings["read_only"]):
        _show(path, root)
    for name, text in FILES.items():
        os.makedirs(os.path.dirname(f"{root}/{name}"), exist_ok=True)
        with open(f"{root}/{name}", "w") as file:
            file.write(text)
    for folder in ("proc", "dev", "home", SCRATCH[1:]):
        os.makedirs(f"{root}/{folder}", exist_ok=True)
    # A new /proc may only be mounted where the old one can be seen; it will cover it.
    linux.mount("/proc", f"{root}/proc", None, linux.MS_BIND | linux.MS_REC)
    for device in DEVICES:
        open(f"{root}/dev/{device}", "w").close()
        linux.mount(f"/dev/{device}", f"{root}/dev/{device}", None, linux.MS_BIND)
    for name, target in {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        os.symlink(target, f"{root}/dev/{name}")
    for inner, shown in PLACES.items():
        os.symlink(f"{SCRATCH}/{inner}", f"{root}/{shown}")
    linux.pivot_root(root)


def _show(path: str, root: str) -> None:
    """Bind a file or folder of the system at the same place below ``root``; a link is copied as a link."""
    target = root + path
    if not os.path.lexists(path) or os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.makedirs(target)
    else:
        open(target, "w").close()
    linux.bind_read_only(path, target)


def _mount_scratch(settings: dict[str, Any], owner: int) -> None:
    options = f"size={settings['scratch_bytes']},nr_inodes={settings['scratch_files']},mode=755"
    linux.mount("scratch", SCRATCH, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
    for name in PLACES:
        os.mkdir(f"{SCRATCH}/{name}", 0o700)
        os.chown(f"{SCRATCH}/{name}", owner, owner)


# -- inside ----------------------------------------------------------------------------------------------------------


def _serve(channel: int, settings: dict[str, Any], privileged: bool) -> None:
    """As process 1: finish the jail, load what runs should find loaded, and serve."""
    try:
        linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC, "hidepid=2")
        proc = True
    except OSError:  # the machine hides parts of its own /proc, so a full one may not be shown inside either
        proc = False
        linux.mount("none", "/proc", "tmpfs", linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV)
    _mount_scratch(settings, CODE_USER)
    linux.mount(
        "none", "/", None, linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
    )
    linux.set_dumpable(False)
    linux.drop_bounding_set()
    rules = _rules()
    program = linux.seccomp_program()
    os.chdir("/")
    sys.path[:] = [*sys.path[1:], *settings["path"]]  # this folder, which came first, is not there inside
    loaded = _preload(settings["preload"])

    def harden() -> None:
        if privileged:
            os.setgroups([])
            os.setresgid(CODE_USER, CODE_USER, CODE_USER)
            os.setresuid(CODE_USER, CODE_USER, CODE_USER)
        linux.drop_capabilities()
        linux.set_dumpable(True)
        if rules is not None:
            linux.landlock_restrict(rules)
        linux.seccomp_filter(program)

    untouched = _marks()

    def wipe() -> None:
        nonlocal rules, untouched
        if _marks() == untouched:
            return
        linux.unmount(SCRATCH)
        _mount_scratch(settings, CODE_USER)
        untouched = _marks()
        if rules is not None:  # the rules name the folder that is gone
            os.close(rules)
            rules = _rules()

    hello = {"id": 0, "ready": {"proc": proc, "landlock": linux.landlock_version(), "loaded": loaded}}
    scratch = f"{SCRATCH}/home"
    serving = kernel.Kernel(channel, channel, harden=harden, wipe=wipe, scratch=scratch, proc=proc)
    serving.send(hello)
    serving.serve()


def _marks() -> list[int]:
    """When the scratch folders were last changed in any way; only the kernel of the machine sets these times."""
    return [os.stat(f"{SCRATCH}/{name}").st_ctime_ns for name in PLACES]


def _rules() -> int | None:
    if not linux.landlock_version():
        return None
    return kernel.out_of_the_way(linux.landlock_ruleset([SCRATCH, *(f"/dev/{device}" for device in DEVICES)]))


def _preload(names: list[str]) -> list[str]:
    """Import modules once, so that every run finds them imported; missing ones are left out."""
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"  # threads do not survive a fork
    loaded = []
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
            loaded.append(name)
    ctypes.set_errno(0)
    return loaded
