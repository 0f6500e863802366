"""A whole root file system in a jail: overlays of layers, with changes in memory, and code that is root in it.

``settings["machine"]`` has ``mounts``: path and lower folders (top first) of each overlay, the root's first; ``shown``:
read-only folders of the host and their paths; ``set_user_id``: whether set-user-ID programs work. Root in a machine has
no privileges outside. If the host's root starts it, the users 0 to 65535 are a range that owns nothing, and the layers
are mounted with these users (mount_setattr(2), MOUNT_ATTR_IDMAP). If an ordinary user starts it, root is that user
outside, and the other users, if any, are those of /etc/subuid.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from typing import Any

from rollenv.sandbox.inside import linux

Json = dict[str, Any]

#: The first user outside, the users in a range, and the number of ranges.
OUTSIDE, USERS, RANGES = 0x71000000, 1 << 16, 0xEFF
#: The host name of machines and sandboxes, and /etc/hosts with it.
HOSTNAME = "sandbox"
HOSTS = f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost ip6-localhost ip6-loopback\n"
#: Folders of the parts before the machine's root becomes the root.
LAYERS, SHOWN, ROOT, UPPER = "/layers", "/shown", "/machine", "/box"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
#: Docker's default capabilities without raw sockets: chown, dac_override, fowner, fsetid, kill, setgid, setuid,
#: setpcap, net_bind_service, sys_chroot, mknod, setfcap. Without sys_ptrace, so that root cannot access process 1.
CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 27, 31)


def users(pid: int) -> str:
    """Return the line of uid_map and gid_map for a process id."""
    return f"0 {OUTSIDE + USERS * (pid % RANGES)} {USERS}\n"


def open_folders(machine: Json) -> dict[str, int]:
    """Open all folders of the host that will be shown, before mounts cover them."""
    paths = [path for _, lower in machine["mounts"] for path in lower] + [path for path, _ in machine["shown"]]
    return {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in paths}


def show_folders(machine: Json, opened: dict[str, int], root: str, namespace: int | None) -> bool:
    """Mount the layers and shown folders read-only below ``root``; return whether their users are the machine's."""
    mapped = namespace is not None
    for i, (_, lower) in enumerate(machine["mounts"]):
        for j, path in enumerate(lower):
            target = f"{root}{LAYERS}/{i}.{j}"
            os.makedirs(target)
            mapped &= _show(opened[path], target, namespace)
    for i, (path, _) in enumerate(machine["shown"]):
        target = f"{root}{SHOWN}/{i}"
        os.makedirs(target)
        _show(opened[path], target, namespace)
    for folder in (ROOT, UPPER):
        os.makedirs(root + folder, exist_ok=True)
    for fd in opened.values():
        os.close(fd)
    return mapped


def _show(fd: int, target: str, namespace: int | None) -> bool:
    if namespace is not None:
        with contextlib.suppress(OSError):
            linux.mount_with_users(fd, target, namespace)
            return True
    linux.mount(f"/proc/self/fd/{fd}", target, None, linux.MS_BIND)
    flags = linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("none", target, None, flags | linux.locked_flags(target))
    return False


def namespace_of_users() -> int:
    """Open a user namespace with the range of users for a machine of this process."""
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go[1])
        linux.unshare(linux.CLONE_NEWUSER)
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    try:
        os.close(ready[1])
        if not os.read(ready[0], 1):
            raise OSError("no user namespace could be made for the layers")
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{pid}/{name}", "w") as file:
                file.write(users(os.getpid()))
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for fd in (ready[0], *go):
            os.close(fd)
        os.waitpid(pid, 0)


def build(settings: Json, mount_proc: Callable[[str], None]) -> int:
    """Assemble the machine in a new mount namespace and make it the root; return a descriptor of its written files."""
    machine = settings["machine"]
    options = f"size={settings['scratch_bytes']},nr_inodes={settings['scratch_files']},mode=755"
    linux.mount("machine", UPPER, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
    for i, (path, lower) in enumerate(machine["mounts"]):
        upper, work, target = f"{UPPER}/upper/{i}", f"{UPPER}/work/{i}", ROOT + path
        os.makedirs(upper)
        os.makedirs(work)
        # An overlay's root has the owner and permissions of the upper folder.
        info = os.stat(f"{LAYERS}/{i}.0")
        os.chmod(upper, stat.S_IMODE(info.st_mode))
        with contextlib.suppress(OSError):
            os.chown(upper, info.st_uid, info.st_gid)
        _in_root(target)
        os.chdir(LAYERS)  # mount options are limited to a page: short names leave room for hundreds of layers
        lowers = ":".join(f"{i}.{j}" for j in range(len(lower)))
        data = f"lowerdir={lowers},upperdir={upper},workdir={work},userxattr"
        linux.mount(
            "overlay", target, "overlay", linux.MS_NODEV | (0 if machine["set_user_id"] else linux.MS_NOSUID), data
        )
    for i, (_, path) in enumerate(machine["shown"]):
        _in_root(ROOT + path)
        linux.mount(f"{SHOWN}/{i}", ROOT + path, None, linux.MS_BIND)
    for folder in ("proc", "dev", "sys", "tmp"):
        if os.path.islink(f"{ROOT}/{folder}") or os.path.isfile(f"{ROOT}/{folder}"):
            os.remove(f"{ROOT}/{folder}")  # a file or link of the image; a mount needs a folder
        _in_root(f"{ROOT}/{folder}")
    os.chmod(f"{ROOT}/tmp", 0o1777)
    mount_proc(f"{ROOT}/proc")
    linux.mount("/sys", f"{ROOT}/sys", None, linux.MS_BIND)
    linux.mount("devices", f"{ROOT}/dev", "tmpfs", linux.MS_NOSUID, "size=64k,nr_inodes=1k,mode=755")
    for name in DEVICES:
        target = f"{ROOT}/dev/{name}"
        open(target, "w").close()
        linux.mount(f"/dev/{name}", target, None, linux.MS_BIND)
    for name in ("pts", "shm"):
        os.mkdir(f"{ROOT}/dev/{name}")
    for name, target in {
        "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx",
    }.items():  # fmt: skip
        os.symlink(target, f"{ROOT}/dev/{name}")
    options = f"size={settings['scratch_bytes'] // 4},nr_inodes={settings['scratch_files']},mode=1777"
    linux.mount("shm", f"{ROOT}/dev/shm", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
    modes = "newinstance,ptmxmode=0666,mode=0620,max=64"
    linux.mount("devpts", f"{ROOT}/dev/pts", "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, modes)
    written = linux.out_of_the_way(os.open(f"{UPPER}/upper", os.O_RDONLY | os.O_DIRECTORY))
    linux.pivot_root(ROOT)
    with contextlib.suppress(OSError):  # it may be a link, or of a user that the machine does not have
        _name_itself()
    return written


def _name_itself() -> None:
    """Give the machine's name an address in /etc/hosts, as container engines do."""
    fd = os.open("/etc/hosts", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    with open(fd, "rb+", buffering=0) as file:
        text = file.read(1 << 20) if stat.S_ISREG(os.fstat(fd).st_mode) else None
        if text is not None and HOSTNAME.encode() not in text.split():
            newline = "\n" if text and not text.endswith(b"\n") else ""
            lines = f"127.0.0.1 {HOSTNAME}\n" if b"localhost" in text.split() else HOSTS
            file.write(f"{newline}{lines}".encode())


def _in_root(path: str) -> None:
    """Create a folder if it does not exist, and refuse links, since a layer may have one that leads outside."""
    if os.path.realpath(path) != path:
        raise OSError(f"{path.removeprefix(ROOT)} in the machine is a link, and something has to be mounted there")
    if not os.path.isdir(path):
        os.makedirs(path)


def hardener(memfd: bool, affinity: bool, netlink: bool, set_user_id: bool) -> Callable[[], None]:
    """Return a function that limits a fork to :data:`CAPABILITIES` before it reads anything.

    The bounding set of this process has no others either, so no program can gain one.
    """
    program = linux.filter_program(memfd, affinity, machine=True, netlink=netlink)

    def harden() -> None:
        if not set_user_id:
            linux.forbid_new_privileges()
        linux.install_filter(program)
        linux.keep_capabilities(CAPABILITIES)
        linux.set_dumpable(True)
        linux.go_first_when_memory_is_short()

    return harden
