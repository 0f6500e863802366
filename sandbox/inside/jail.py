"""Builds a jail around itself and becomes the kernel in it; :mod:`rollenv.sandbox.local` starts it.

The jail has its own user, pid, mount, network, ipc, uts and cgroup namespaces. Its file system is a read-only view of
the system and of Python. Code runs in further namespaces (see :mod:`namespace_init`), each with a scratch folder in
memory with limited size and number of files, without capabilities, under Landlock and seccomp. If root started the
jail, code also has a user of its own, different from the kernel's and unique to the sandbox.

If root starts the jail, it builds the file system first (because root can read Python wherever it is installed), then
enters a user namespace in which nobody is root outside. An ordinary user enters the namespace first.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import importlib
import json
import os
import pwd
import shlex
import signal
import socket
import stat
import sys
from collections.abc import Callable
from typing import Any

from rollenv.sandbox.inside import kernel, linux, machine, monitor, namespace_init, processes, protocol

#: Users inside: of the kernel (only if root started the jail) and of code.
KERNEL_USER, CODE_USER = 0, 1000
#: The first of their users outside if root starts jails: users that own nothing, two for each jail.
OUTSIDE = 0x70000000

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache", "/etc/alternatives")
DEVICES = ("null", "zero", "full", "random", "urandom")
FILES = {
    "etc/passwd": "root:x:0:0:root:/:/usr/sbin/nologin\nuser:x:1000:1000:user:/home/user:/bin/sh\n",
    "etc/group": "root:x:0:\nuser:x:1000:\n",
    "etc/hosts": machine.HOSTS,
    "etc/resolv.conf": "",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
#: Shown as /proc/meminfo.
MEMINFO = "/etc/meminfo"
SCRATCH, ASIDE = "/box", "/aside"
#: Folders in the scratch folder, and their mount points.
WRITABLE = {"home": "home/user", "tmp": "tmp", "shm": "dev/shm"}
HOME = f"/{WRITABLE['home']}"

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
#: Limits of resources that Linux counts per user, for this jail's users together.
_USER_LIMITS = {"max_user_namespaces": 0, "max_inotify_instances": 32, "max_inotify_watches": 4096}


def main(channel: int) -> None:
    """Read the settings (one line of JSON) from the channel, and serve it from inside the jail."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(channel, 1)
        if not byte:
            os._exit(0)
        line += byte
    settings = json.loads(line)
    os.umask(0o022)  # regardless of the caller's: code must be able to read the jail's files
    try:
        privileged = _can_map_users()
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        if privileged:
            linux.unshare(linux.CLONE_NEWNS)
            own_files = _build_root(settings, machine.namespace_of_users() if "machine" in settings else None)
            _enter_namespaces_as_root(proc, machine.users(os.getpid()) if "machine" in settings else _two_users())
        else:
            if "machine" in settings:
                _enter_namespaces_as_user(KERNEL_USER, _mapper())
            else:
                _enter_namespaces_as_user(CODE_USER)
            own_files = _build_root(settings)
        socket.sethostname(machine.HOSTNAME)
        linux.loopback_up()
        if settings.get("listens"):
            # Send sockets that listen in this network to the process outside, which accepts from them.
            with contextlib.ExitStack() as inside, socket.socket(fileno=os.dup(channel)) as outside:
                listening = [socket.create_server(("127.0.0.1", port), backlog=64) for port in settings["listens"]]
                for each in listening:
                    inside.enter_context(each)
                socket.send_fds(outside, [b"1"], [each.fileno() for each in listening])
    except OSError as error:
        _refuse(channel, error)
    child = os.fork()
    if child == 0:
        linux.libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        try:
            _serve(channel, settings | {"own_files": own_files}, privileged, proc)
        except OSError as error:
            _refuse(channel, error)
        os._exit(0)
    nothing = os.open("/dev/null", os.O_RDWR)
    os.dup2(nothing, 2)
    os.closerange(3, 1 << 12)
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _can_map_users() -> bool:
    """Return whether this is root of the host, or of a container with enough users."""
    if os.geteuid() != 0:
        return False
    with open("/proc/self/uid_map") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    return any(first <= OUTSIDE and first + count >= OUTSIDE + (1 << 24) for first, _, count in ranges)


def _refuse(channel: int, error: OSError) -> None:
    """Report what is missing, and exit."""
    with contextlib.suppress(OSError):
        os.write(channel, protocol.encode(0, protocol.SandboxStartRefused(str(error))))
    os._exit(1)


# -- namespaces ------------------------------------------------------------------------------------------------------


def _two_users() -> str:
    first = OUTSIDE + 2 * os.getpid()  # unique among running jails
    return f"{KERNEL_USER} {first} 1\n{CODE_USER} {first + 1} 1\n"


def _enter_namespaces_as_root(proc: int, users: str) -> None:
    """Enter new namespaces; a helper process outside, forked before, maps the users."""
    go, ready = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(ready)
        os.read(go, 1)
        for name in ("uid_map", "gid_map"):
            _write(f"{os.getppid()}/{name}", users, proc)
        os._exit(0)
    os.close(go)
    linux.act_as(int(users.split()[1]))  # so that inotify instances inside do not count as root's
    linux.unshare(_NAMESPACES)
    os.write(ready, b"x")
    os.close(ready)
    if os.waitpid(helper, 0)[1] != 0:
        raise OSError("the users of the jail could not be mapped")
    os.setgroups([])
    os.setresgid(KERNEL_USER, KERNEL_USER, KERNEL_USER)
    os.setresuid(KERNEL_USER, KERNEL_USER, KERNEL_USER)


def _enter_namespaces_as_user(inside: int, map_many: Callable[[], bool] | None = None) -> None:
    uid, gid = os.geteuid(), os.getegid()
    linux.unshare(_NAMESPACES)
    if map_many is None or not map_many():
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{inside} {uid} 1\n")
        _write("/proc/self/gid_map", f"{inside} {gid} 1\n")


def _mapper() -> Callable[[], bool] | None:
    """Return a function that maps root and this user's range of /etc/subuid into a user namespace; None without one.

    newuidmap and newgidmap (Debian's uidmap) must run outside of the namespace, in a helper process forked before.
    """
    programs = [(f"/usr/bin/new{kind}map", os.geteuid() if kind == "uid" else os.getegid()) for kind in ("uid", "gid")]
    ranges = [_subordinate(f"/etc/sub{kind}") for kind in ("uid", "gid")]
    if not all(ranges) or not all(os.access(program, os.X_OK) for program, _ in programs):
        return None
    go, ready = os.pipe()
    pid, helper = os.getpid(), os.fork()
    if helper == 0:
        os.close(ready)
        if not os.read(go, 1):
            os._exit(1)
        for (program, own), (first, count) in zip(programs, ranges, strict=True):
            if os.spawnv(os.P_WAIT, program, [program, str(pid), "0", str(own), "1", "1", first, count]) != 0:
                os._exit(1)
        os._exit(0)
    os.close(go)

    def map_many() -> bool:
        with open(ready, "wb", buffering=0) as pipe:
            pipe.write(b"x")
        return os.waitpid(helper, 0)[1] == 0

    return map_many


def _subordinate(path: str) -> list[str]:
    """Return this user's first range of subordinate users or groups."""
    names = {str(os.geteuid())}
    with contextlib.suppress(KeyError):
        names.add(pwd.getpwuid(os.geteuid()).pw_name)
    with contextlib.suppress(OSError), open(path) as lines:
        for line in lines:
            name, first, count = [*line.strip().split(":"), "", ""][:3]
            if name in names and first.isdecimal() and count.isdecimal():
                return [first, str(min(int(count), machine.USERS - 1))]
    return []


def _write(path: str, text: str, folder: int | None = None) -> None:
    fd = os.open(path, os.O_WRONLY, dir_fd=folder)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


# -- the file system -------------------------------------------------------------------------------------------------


def _build_root(settings: dict[str, Any], users: int | None = None) -> bool:
    """Build a root in memory with a read-only view of the system, and enter it.

    Returns:
        Whether locks and watches on its files are the jail's own.
    """
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    folders = machine.open_folders(settings["machine"]) if "machine" in settings else {}
    root = "/tmp"
    paths = [*SYSTEM, *settings["read_only"]]
    opened = {
        path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in paths if os.path.exists(path)
    }  # before a mount covers /tmp
    links = {path: os.readlink(path) for path in paths if os.path.islink(path)}
    linux.mount("root", root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=1m,nr_inodes=2k,mode=755")
    os.mkdir(f"{root}/empty")
    own = [
        _show(fd, links.get(path), root + (f"{ASIDE}{path}" if _covering(path) else path), f"{root}/empty")
        for path, fd in opened.items()
    ]
    for fd in opened.values():
        os.close(fd)
    for name, text in (FILES | _memory(settings["memory_bytes"])).items():
        os.makedirs(os.path.dirname(f"{root}/{name}"), exist_ok=True)
        with open(f"{root}/{name}", "w") as file:
            file.write(text)
    programs, python = settings["python"]
    os.makedirs(f"{root}{programs}", exist_ok=True)
    for name in ("python", "python3"):  # no links, through which Python does not find its virtual environment
        with open(f"{root}{programs}/{name}", "w") as file:
            file.write(f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n')
            os.fchmod(file.fileno(), 0o755)
    for folder in ("proc", "dev", SCRATCH[1:]):
        os.makedirs(f"{root}/{folder}", exist_ok=True)
    # A new /proc may be mounted only while the old one is visible; it will cover it.
    linux.mount("/proc", f"{root}/proc", None, linux.MS_BIND | linux.MS_REC)
    linux.mount("devices", f"{root}/dev", "tmpfs", linux.MS_NOSUID, "size=64k,mode=755")
    os.mkdir(f"{root}/dev/pts", 0o755)  # for terminals
    for device in machine.DEVICES if "machine" in settings else DEVICES:
        _make_device(device, f"{root}/dev/{device}")
    for name, target in {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        os.symlink(target, f"{root}/dev/{name}")
    for shown in WRITABLE.values():
        os.makedirs(f"{root}/{shown}", exist_ok=True)
    linux.mount("none", f"{root}/dev", None, linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | linux.MS_NOSUID)
    if "machine" in settings:
        own = [machine.show_folders(settings["machine"], folders, root, users)]
    linux.pivot_root(root)
    return all(own)


def _memory(limit: int) -> dict[str, str]:
    """Return files that tell programs the memory limit, as control groups (both versions) and /proc do.

    They are constant, so that a run does not see what others used.
    """
    total = min(limit, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) >> 10
    numbers = dict.fromkeys(("MemTotal", "MemFree", "MemAvailable"), total)
    numbers |= dict.fromkeys(("Buffers", "Cached", "Active", "Inactive", "SwapTotal", "SwapFree", "Shmem", "Slab"), 0)
    first, second = "sys/fs/cgroup/memory/memory", "sys/fs/cgroup/memory"
    return {
        MEMINFO[1:]: "".join(f"{name + ':':<16}{number:>8} kB\n" for name, number in numbers.items()),
        f"{second}.max": f"{limit}\n",
        f"{second}.high": "max\n",
        f"{first}.limit_in_bytes": f"{limit}\n",
        f"{first}.soft_limit_in_bytes": f"{(1 << 63) - 4096}\n",
    }


def _make_device(name: str, target: str) -> None:
    """Create a device file of the jail's own; else bind the host's, whose locks and watches are shared."""
    try:
        os.mknod(target, stat.S_IFCHR, os.stat(f"/dev/{name}").st_rdev)
        os.chmod(target, 0o666)
        os.utime(target, (0, 0))  # equal in all sandboxes
        os.close(os.open(target, os.O_RDWR))
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.remove(target)
        open(target, "w").close()
        linux.bind_device(f"/dev/{name}", target)


def _covering(path: str) -> str | None:
    """Return the folder of the scratch folder that covers a path, if any."""
    return next((inner for inner, shown in WRITABLE.items() if path.startswith(f"/{shown}/")), None)


def _show(fd: int, link: str | None, target: str, empty: str) -> bool:
    """Show a file, folder or link of the system; return whether locks and watches on it are the jail's own."""
    if os.path.lexists(target):
        return True
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if link is not None:
        os.symlink(link, target)
        return True
    source = f"/proc/self/fd/{fd}"
    if os.path.isdir(source):
        os.makedirs(target)
        if linux.overlay_read_only(source, empty, target):
            return True
    else:
        open(target, "w").close()
    linux.bind_read_only(source, target)
    return not os.path.isdir(source)


def _mount_scratch(settings: dict[str, Any]) -> None:
    options = f"size={settings['scratch_bytes']},nr_inodes={settings['scratch_files']},mode=755"
    linux.mount("scratch", SCRATCH, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
    for name in WRITABLE:
        os.mkdir(f"{SCRATCH}/{name}", 0o700)
        if "machine" not in settings:  # a machine may have no user but root
            os.chown(f"{SCRATCH}/{name}", CODE_USER, CODE_USER)
    for path in settings["read_only"]:
        if (folder := _covering(path)) and os.path.isdir(ASIDE + path):
            target = f"{SCRATCH}/{folder}/{path.removeprefix('/' + WRITABLE[folder] + '/')}"
            os.makedirs(target)
            linux.mount(ASIDE + path, target, None, linux.MS_BIND | linux.MS_REC)
    for name, shown in WRITABLE.items():  # no links, so that code sees the usual paths
        linux.mount(f"{SCRATCH}/{name}", f"/{shown}", None, linux.MS_BIND | linux.MS_REC)


# -- inside ----------------------------------------------------------------------------------------------------------


def _serve(channel: int, settings: dict[str, Any], privileged: bool, host_proc: int) -> None:
    """Finish the jail as process 1, import the packages, fork the zygote, and serve."""
    # The jail's own /proc and limits of the kernel's namespaces, while /proc/sys can still be written.
    namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    proc = _mount_proc()
    for name, value in _USER_LIMITS.items():
        with contextlib.suppress(OSError):
            _write(f"/proc/sys/user/{name}", str(value))
    with contextlib.suppress(OSError):  # so that closed connections leave nothing for the next run
        _write("/proc/sys/net/ipv4/tcp_max_tw_buckets", "0")
    _seal(settings)
    # The packages, once for all runs. Only after this does stderr go nowhere: an import may say why it failed.
    sys.path += settings["path"]
    loaded = _preload(settings["preload"])
    os.dup2(os.open("/dev/null", os.O_RDWR), 2)
    zygote, ours = _fork_zygote(settings, privileged, namespace)
    # The kernel measures by the jail's /proc or, where the host forbids one, by the host's.
    shown = host_proc
    if proc:
        shown = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        os.close(host_proc)
    oom = settings["oom"]
    monitoring = monitor.ResourceMonitor(shown, not proc, oom, settings["memory_bytes"])
    monitoring.own.add(zygote)
    monitoring.share, monitoring.shares = settings["share"], settings["shares"]
    serving = kernel.Kernel(
        channel,
        channel,
        new_namespace=lambda: _new_namespace(ours),
        common=None,
        monitor=monitoring,
        idle_seconds=settings["seconds"],
    )
    serving.only_namespace = "machine" in settings
    ready = {"proc": proc, "landlock": linux.landlock_version(), "loaded": loaded, "memory_group": oom is not None}
    ready |= {"own_users": privileged, "own_files": settings["own_files"]}
    serving.send(0, protocol.Ready({**ready, "scratch": HOME}))
    serving.serve()


def _seal(settings: dict[str, Any]) -> None:
    """Let nothing of the root be changed any more, and the kernel not be inspected or regain privileges."""
    linux.mount(
        "none", "/", None, linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
    )
    linux.set_dumpable(False)
    linux.forget_arguments()
    linux.drop_bounding_set(machine.CAPABILITIES if "machine" in settings else ())
    os.chdir("/")
    if any(map(_covering, settings["read_only"])):
        _mount_scratch(settings)  # Python itself is below a mount point of the scratch folder


def _fork_zygote(settings: dict[str, Any], privileged: bool, namespace: int) -> tuple[int, socket.socket]:
    """Fork the zygote, which keeps nothing of the kernel's but its socket, before any request is read.

    Returns:
        (its process id, the kernel's end of the socket).
    """
    program = linux.filter_program(memfd=settings["oom"] is not None, affinity=settings["share"] is not None)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        for group in settings["groups"]:
            os.write(group, b"0")
        for fd in range(3, 1 << 10):
            if fd not in (theirs.fileno(), namespace):
                with contextlib.suppress(OSError):
                    os.close(fd)
        linux.unshare(linux.CLONE_NEWCGROUP)  # its own groups are the roots, without their names outside
        build = functools.partial(_code_namespace, settings, privileged, program)
        namespace_init.zygote(theirs, namespace, build, _own_network if settings["oom"] is not None else None)
    theirs.close()
    for fd in (namespace, *settings["groups"]):
        os.close(fd)
    return pid, ours


def _code_namespace(settings: dict[str, Any], privileged: bool, program: bytes) -> namespace_init.Prepared:
    """Build the file system of code in this namespace, and what each fork gives up before it reads anything."""
    if "machine" in settings:
        written, netlink = machine.build(settings, _mount_code_proc), False
        with contextlib.suppress(OSError):
            linux.NetlinkGuard()
            netlink = True
        memory, share = settings["oom"] is not None, settings["share"] is not None
        hardener = machine.hardener(memory, share, netlink, settings["machine"]["set_user_id"])
        return namespace_init.Prepared(hardener, "/", written, True)
    _mount_code_proc("/proc")
    _mount_scratch(settings)
    scratch = linux.out_of_the_way(os.open(SCRATCH, os.O_RDONLY | os.O_DIRECTORY))
    rules = None
    if linux.landlock_version():
        writable = [SCRATCH, *(f"/{shown}" for shown in WRITABLE.values()), *(f"/dev/{name}" for name in DEVICES)]
        rules = linux.out_of_the_way(linux.landlock_ruleset(writable))

    def harden() -> None:
        """Drop all privileges of a fork before it reads anything."""
        if privileged:
            os.setgroups([])
            os.setresgid(CODE_USER, CODE_USER, CODE_USER)
            os.setresuid(CODE_USER, CODE_USER, CODE_USER)
        linux.confine_code(rules, program)

    return namespace_init.Prepared(harden, HOME, scratch)


def _own_network() -> None:
    """Enter a new network, because closed connections, used ports and counters stay in the old one.

    Without a control group for memory, all runs share the kernel's network, where it counts the memory of sockets.
    """
    linux.unshare(linux.CLONE_NEWNET)
    linux.loopback_up()


def _mount_proc(target: str = "/proc") -> bool:
    """Mount a /proc of this pid namespace; return false if the host hides parts of its /proc and so forbids it."""
    try:
        linux.mount("proc", target, "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    except OSError:
        linux.mount("none", target, "tmpfs", linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV)
        return False
    return True


def _mount_code_proc(target: str) -> None:
    """Mount a /proc for code, with the memory limit as the memory."""
    if _mount_proc(target):
        linux.mount(MEMINFO, f"{target}/meminfo", None, linux.MS_BIND)


def _new_namespace(zygote: socket.socket) -> processes.Namespace:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        socket.send_fds(zygote, [b"namespace"], [theirs.fileno()])
    if not (reply := zygote.recv(4096)):
        raise EOFError("the process that creates namespaces has ended, and the sandbox with it")
    answer = json.loads(reply)
    if "error" in answer:
        ours.close()
        raise OSError(errno.EAGAIN, answer["error"])
    try:
        reply, descriptors, _, _ = socket.recv_fds(ours, 4096, 1)
    except OSError:
        reply, descriptors = b"", []
    if not descriptors:
        raise OSError(errno.EAGAIN, reply.decode() or "no more namespaces can be created")
    return processes.Namespace(ours, answer["pid"], descriptors[0])


def _preload(names: list[str]) -> list[str]:
    """Import modules for all runs; missing ones are left out."""
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"  # threads do not survive a fork
    loaded = []
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
            loaded.append(name)
    ctypes.set_errno(0)
    return loaded
