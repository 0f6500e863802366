"""The local backend: a jail made of Linux namespaces on this machine (see :mod:`rollenv.sandbox.inside.jail`).

Control groups limit its memory, processes and share of the processors, if this process may create them: in version 2 if
a parent group is delegated (as systemd does for users), in version 1 if this process is root. See cgroups(7). Groups of
ended owners are removed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollenv.sandbox.errors import IsolationError, SandboxError
from rollenv.sandbox.filesystem import Files
from rollenv.sandbox.network import AllowList, NetworkGateway, Tunnel
from rollenv.sandbox.types import Limits
from rollenv.sandbox.worker import SandboxWorker

#: Prefix of groups' names, before the owner's pid and start time.
_PREFIX = "rollenv-"
#: Number of a sandbox's own processes.
_OWN_PROCESSES = 16
#: A sandbox's share of busy processors by file: the default, and a reduced one for long-running work.
_SHARE = {"cpu.weight": "100", "cpu.shares": "1024"}
_LOW_SHARE = {"cpu.weight": "33", "cpu.shares": "341"}
_numbers = itertools.count(1)


class ControlGroups:
    """The control groups of one sandbox.

    Attributes:
        folders: folders of the groups by controller; empty if none can be created.
        oom: file that counts kills for lack of memory; None if memory is not controlled.
        share: file with the share of the processors, or None.
    """

    def __init__(self, limits: Limits):
        self.folders: dict[str, Path] = {}
        self.oom: Path | None = None
        name = f"{_PREFIX}{os.getpid()}-{start_time(os.getpid())}-{next(_numbers)}"
        for controller, parent in _parents().items():
            with contextlib.suppress(OSError):
                _sweep(parent)
                folder = parent / name
                folder.mkdir(exist_ok=True)
                try:
                    _limit(controller, folder, limits)
                except OSError:
                    if folder not in self.folders.values():
                        folder.rmdir()
                    raise
                self.folders[controller] = folder
        if memory := self.folders.get("memory"):
            events = memory / "memory.events"
            self.oom = events if events.exists() else memory / "memory.oom_control"
        cpu = self.folders.get("cpu")
        self.share = next((cpu / name for name in _SHARE if (cpu / name).exists()), None) if cpu else None

    def joining(self) -> list[int]:
        """Open descriptors; a process joins the groups by writing ``0`` to each."""
        return [os.open(folder / "cgroup.procs", os.O_WRONLY) for folder in dict.fromkeys(self.folders.values())]

    def shares(self) -> list[str]:
        """Return the contents of the share's file for normal and for long-running work."""
        return [values[self.share.name] for values in (_SHARE, _LOW_SHARE)] if self.share else []

    def close(self) -> None:
        """Remove the groups. Their processes have been killed, but may take a moment to end."""
        for folder in dict.fromkeys(self.folders.values()):
            for _ in range(200):
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.01)
        self.folders = {}


def _limit(controller: str, folder: Path, limits: Limits) -> None:
    """Set a controller's limits; the memory limit is required. Versions 1 and 2 differ only in file names."""
    memory = str(limits.memory_mb << 20)
    sockets = str(limits.memory_mb << 16)  # version 1 counts TCP and UDP buffers separately, and only under a limit
    settings = {
        "memory": {"memory.max": memory, "memory.limit_in_bytes": memory, "memory.kmem.tcp.limit_in_bytes": sockets},
        "pids": {"pids.max": str(limits.processes + _OWN_PROCESSES)},
        "cpu": _SHARE,
    }[controller]
    supported = {name: value for name, value in settings.items() if (folder / name).exists()}
    if not supported:
        raise FileNotFoundError(f"{folder} does not control {controller}")
    for name, value in supported.items():
        (folder / name).write_text(value)
    if controller == "memory":
        with contextlib.suppress(OSError):  # there may be no swap
            (folder / "memory.swap.max").write_text("0")
        with contextlib.suppress(OSError):
            (folder / "memory.memsw.limit_in_bytes").write_text(memory)


def _parents() -> dict[str, Path]:
    """Map each controller to the folder where a group can be created."""
    mounts: list[tuple[str, Path, str]] = []
    groups: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            kind, _, options = after.split()[:3]
            if kind in ("cgroup", "cgroup2"):
                mounts.append((kind, Path(before.split()[4]), f",{options},"))
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            groups |= dict.fromkeys(controllers.split(","), path)
    parents: dict[str, Path] = {}
    for controller in ("memory", "pids", "cpu"):
        for kind, mount_point, options in mounts:
            if kind == "cgroup" and f",{controller}," in options and controller in groups:
                parents[controller] = _ours(mount_point, groups[controller])
            elif kind == "cgroup2" and (parent := _delegating(mount_point, groups.get("", "/"), controller)):
                parents.setdefault(controller, parent)
    return {controller: folder for controller, folder in parents.items() if os.access(folder, os.W_OK)}


def _ours(mount_point: Path, path: str) -> Path:
    """Return the folder of a group below a mount; in a container the mount may be the group itself."""
    folder = mount_point / path.lstrip("/")
    return folder if folder.is_dir() and ".." not in folder.parts else mount_point


def _delegating(mount_point: Path, path: str, controller: str) -> Path | None:
    """Return the nearest parent group with delegation of a controller to which processes can be moved."""
    folder = _ours(mount_point, path)
    while folder.is_relative_to(mount_point):
        with contextlib.suppress(OSError):
            enabled = (folder / "cgroup.subtree_control").read_text().split()
            if controller in enabled and os.access(folder / "cgroup.procs", os.W_OK):
                return folder
        if folder == mount_point:
            return None
        folder = folder.parent
    return None


def _sweep(parent: Path) -> None:
    """Remove groups whose owners have ended."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            pid, started, _ = folder.name.removeprefix(_PREFIX).split("-")
            if start_time(int(pid)) != started:
                folder.rmdir()


def start_time(pid: int) -> str:
    """Return the start time of a process in the kernel's ticks, or ``gone``."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "gone"


#: Seconds that a jail may take to send its listening sockets.
_HANDING = 30.0
#: Folders of the sandbox's own, below which Python cannot be mounted.
_COVERED = ("/box/", "/aside/", "/empty/", "/proc/", "/sys/", "/dev/", "/etc/")
#: Folder of ``python`` and ``python3`` for commands in a sandbox, with the packages of cells.
#: It is where Python itself cannot be.
_PROGRAMS = "/etc/bin"
#: Imports only the part of this package that runs inside.
_START = """
import sys, types
for name, path in ("rollenv", []), ("rollenv.sandbox", [FOLDER]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = path
from rollenv.sandbox.inside import jail
jail.main(int(sys.argv[1]))
""".replace("FOLDER", repr(str(Path(__file__).parent)))


class JailChannel:
    """A socket to the kernel in a jail, which ends with the socket."""

    errors = b""  # :func:`start` reads them

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket, groups: ControlGroups):
        self.process, self.connection, self.groups = process, connection, groups
        self._outbound: list[NetworkGateway | Tunnel] = []
        self.gateway: NetworkGateway | None = None
        self._early = b""

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def receive(self) -> bytes:
        early, self._early = self._early, b""
        return early or self.connection.recv(1 << 20)

    def serve_outbound(self, network: AllowList | None, tunnels: Mapping[int, str]) -> dict[str, str]:
        """Serve the jail's listening sockets, its first message, and return the environment variables of the proxy.

        If the jail sends an error instead, nothing is served.
        """
        self.connection.settimeout(_HANDING)
        self._early, descriptors, _, _ = socket.recv_fds(self.connection, 1, len(tunnels) + 1)
        self.connection.settimeout(None)
        if not descriptors:
            return {}
        self._early = b""
        listening = [socket.socket(fileno=fd) for fd in descriptors]
        if network is not None:
            self.gateway = NetworkGateway(listening.pop(0), network)
            self._outbound.append(self.gateway)
        self._outbound += [Tunnel(own, to) for own, to in zip(listening, tunnels.values(), strict=True)]
        return self.gateway.env if self.gateway else {}

    def close(self) -> None:
        for server in self._outbound:
            server.close()
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        try:
            self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)  # the kernel in the jail dies with this process
            self.process.wait()
        self.connection.close()
        self.groups.close()


def start(
    limits: Limits,
    packages: Sequence[str] = (),
    machine: dict[str, Any] | None = None,
    network: AllowList | None = None,
    tunnels: Mapping[int, str] | None = None,
) -> SandboxWorker:
    """Start a jail.

    Args:
        tunnels: addresses (``HOST:PORT``) that ports of a machine's loopback are forwarded to.

    Raises:
        IsolationError: this machine does not support jails; the text has the reason.
    """
    if sys.platform != "linux":
        raise IsolationError("the local sandbox needs Linux; use backend='docker' on this machine")
    groups = ControlGroups(limits)
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as descriptors:
        joining = [descriptors.enter_context(os.fdopen(fd, "wb", 0)).fileno() for fd in groups.joining()]
        oom = descriptors.enter_context(open(groups.oom, "rb", 0)).fileno() if groups.oom else None
        share = descriptors.enter_context(open(groups.share, "wb", 0)).fileno() if groups.share else None
        process = _launch([fd for fd in (theirs.fileno(), *joining, oom, share) if fd is not None])
    assert process.stderr is not None
    theirs.close()
    channel = JailChannel(process, ours, groups)
    try:
        named = (sys.base_prefix, sys.prefix)  # these may be links
        prefixes = dict.fromkeys([*map(os.path.realpath, named), *named])
        for path in prefixes:
            if path.startswith(_COVERED) and not path.startswith("/dev/shm/"):
                raise IsolationError(f"Python is in {path}, which a sandbox cannot show: move it to another top folder")
        settings: dict[str, Any] = {
            "read_only": [p for p in prefixes if not p.startswith("/usr/") and p != "/usr"],
            "path": list(dict.fromkeys(os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib"))),
            "python": [_PROGRAMS, _python()],
            "preload": list(packages),
            "scratch_bytes": limits.disk_mb << 20,
            "scratch_files": limits.files,
            "memory_bytes": limits.memory_mb << 20,
            "seconds": limits.seconds,
            "groups": joining,
            "oom": oom,
            "share": share,
            "shares": groups.shares(),
        }
        settings |= {"machine": machine} if machine else {}
        settings |= {"listens": [*([0] if network else []), *(tunnels or {})]}
        channel.send(json.dumps(settings).encode() + b"\n")
        proxies = channel.serve_outbound(network, tunnels or {}) if settings["listens"] else {}
        worker = SandboxWorker(channel, limits)
        if channel.gateway is not None:
            channel.gateway.files = Files(worker)
    except (SandboxError, OSError) as error:
        channel.close()
        with process.stderr as stream:
            output = stream.read().decode(errors="replace").strip()
        output = f"Output: {output[-500:]}. " if output else ""
        raise IsolationError(f"{error}. {output}{_advice()}") from error
    process.stderr.close()
    if machine is None:
        worker.env["PATH"] = f"{_PROGRAMS}:{worker.env['PATH']}"
    worker.about["proxies"] = proxies
    worker.about["own_share"] = "cpu" in groups.folders
    return worker


def _python() -> str:
    """Return the path of Python, with the packages of this one, in a folder that a sandbox shows."""
    path = f"{sys.prefix}/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    return path if os.path.exists(path) else sys.executable


def _launch(descriptors: list[int]) -> subprocess.Popen[bytes]:
    """Start the jail's first process. It inherits only the descriptors; its standard error is kept for errors."""
    return subprocess.Popen(
        [sys.executable, "-s", "-S", "-P", "-c", _START, str(descriptors[0])],
        pass_fds=descriptors,
        env={"PYTHONHASHSEED": "0"},  # makes the order of sets in outputs reproducible
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _advice() -> str:
    """Return what to change on this machine so that jails work."""
    switches = {
        "/proc/sys/kernel/unprivileged_userns_clone": ("0", "sysctl kernel.unprivileged_userns_clone=1"),
        "/proc/sys/user/max_user_namespaces": ("0", "sysctl user.max_user_namespaces=10000"),
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
            "1",
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    }
    for path, (bad, command) in switches.items():
        with contextlib.suppress(OSError):
            if Path(path).read_text().strip() == bad:
                return f"User namespaces are switched off here: {command}"
    who = _who()
    return (
        f"The local sandbox (started by {who}) needs user namespaces and seccomp; a container must be started with "
        "both allowed (docker run --security-opt seccomp=unconfined). Or use backend='docker'"
    )


def _who() -> str:
    if os.geteuid() != 0:
        return "an ordinary user"
    with contextlib.suppress(OSError):
        if Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
            return "the root of a user namespace, an ordinary user outside"
    return "root"
