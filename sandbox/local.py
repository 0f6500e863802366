"""The local backend: a jail made of Linux namespaces on this machine (see :mod:`rollenv.sandbox.inside.jail`)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollenv.sandbox.cgroups import ControlGroups
from rollenv.sandbox.errors import IsolationError, SandboxError
from rollenv.sandbox.network import AllowList, Gateway, Tunnel
from rollenv.sandbox.types import Limits
from rollenv.sandbox.worker import Worker

#: Seconds for a jail to hand out what it listens with.
_HANDING = 30.0
#: Folders that are the sandbox's own, so that a Python below them cannot be mounted.
_COVERED = ("/box/", "/aside/", "/empty/", "/proc/", "/sys/", "/dev/", "/etc/")
#: Imports the part of this package that runs inside, without the weight of the rest.
_START = """
import sys, types
for name, path in ("rollenv", []), ("rollenv.sandbox", [FOLDER]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = path
from rollenv.sandbox.inside import jail
jail.main(int(sys.argv[1]))
""".replace("FOLDER", repr(str(Path(__file__).parent)))


class JailChannel:
    """A socket to the kernel in a jail, which ends when the socket does."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket, groups: ControlGroups):
        self.process, self.connection, self.groups = process, connection, groups
        self._ways_out: list[Gateway | Tunnel] = []
        self._early = b""

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def receive(self) -> bytes:
        early, self._early = self._early, b""
        return early or self.connection.recv(1 << 20)

    def open_ways_out(self, network: AllowList | None, tunnels: Mapping[int, str]) -> dict[str, str]:
        """Serve what the jail listens with, which it sends before anything else; environment variables of the proxy.

        Nothing is served where it sends something else: why it refuses to start.

        Args:
            network: what the proxy lets through; None for no proxy.
            tunnels: ports, and the addresses that they lead to.
        """
        self.connection.settimeout(_HANDING)
        self._early, descriptors, _, _ = socket.recv_fds(self.connection, 1, len(tunnels) + 1)
        self.connection.settimeout(None)
        if not descriptors:
            return {}
        self._early = b""
        listening = [socket.socket(fileno=fd) for fd in descriptors]
        gateway = Gateway(listening.pop(0), network) if network is not None else None
        self._ways_out += [gateway] if gateway else []
        self._ways_out += [Tunnel(own, to) for own, to in zip(listening, tunnels.values(), strict=True)]
        return gateway.env if gateway else {}

    def close(self) -> None:
        for way in self._ways_out:
            way.close()
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
) -> Worker:
    """Start a jail.

    Args:
        limits: of every run in it.
        packages: modules that every run finds already imported.
        machine: a root file system, see :mod:`rollenv.sandbox.inside.machine`.
        network: what a machine can reach.
        tunnels: ports of a machine's loopback that lead to addresses (``HOST:PORT``) of this one.

    Raises:
        IsolationError: if this machine does not allow one; the text says what is missing.
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
    theirs.close()
    channel = JailChannel(process, ours, groups)
    try:
        settings = _settings(limits, packages) | {"groups": joining, "oom": oom}
        settings |= {"share": share, "shares": groups.shares()} | ({"machine": machine} if machine else {})
        settings |= {"listens": [*([0] if network else []), *(tunnels or {})]}
        channel.send(json.dumps(settings).encode() + b"\n")
        proxies = channel.open_ways_out(network, tunnels or {}) if settings["listens"] else {}
        worker = Worker(channel, limits)
    except (SandboxError, OSError) as error:
        channel.close()
        raise IsolationError(f"{error}. {_last_words(process)}{_advice()}") from error
    assert process.stderr is not None
    process.stderr.close()
    worker.about["proxies"] = proxies
    worker.about["own_share"] = "cpu" in groups.folders
    return worker


def _launch(descriptors: list[int]) -> subprocess.Popen[bytes]:
    """The jail's first process. What it says before it serves is kept for the error; it has nothing else of ours."""
    return subprocess.Popen(
        [sys.executable, "-s", "-S", "-P", "-c", _START, str(descriptors[0])],
        pass_fds=descriptors,
        env={"PYTHONHASHSEED": "0"},  # the order of a set is part of what a program prints
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _last_words(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    with process.stderr as stream:
        said = stream.read().decode(errors="replace").strip()
    return f"It said: {said[-500:]}. " if said else ""


def _settings(limits: Limits, packages: Sequence[str]) -> dict[str, Any]:
    named = (sys.base_prefix, sys.prefix)  # of which one may be a link to what has to be shown
    prefixes = dict.fromkeys([*map(os.path.realpath, named), *named])
    for path in prefixes:
        if path.startswith(_COVERED) and not path.startswith("/dev/shm/"):
            raise IsolationError(f"Python is in {path}, which a sandbox cannot show: move it to another top folder")
    return {
        "read_only": [p for p in prefixes if not p.startswith("/usr/") and p != "/usr"],
        "path": list(dict.fromkeys(os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib"))),
        "preload": list(packages),
        "scratch_bytes": limits.disk_mb << 20,
        "scratch_files": limits.files,
        "memory_bytes": limits.memory_mb << 20,
        "seconds": limits.seconds,
    }


def _advice() -> str:
    """Return what to change on this machine so that a jail can be made."""
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
            return "the root of a user namespace, who is an ordinary user outside"
    return "root"
