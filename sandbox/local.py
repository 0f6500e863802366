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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollenv.sandbox.errors import IsolationError, SandboxError
from rollenv.sandbox.types import Limits
from rollenv.sandbox.worker import Worker

_INSIDE = str(Path(__file__).with_name("inside"))
_START = f"import sys; sys.path.insert(0, {_INSIDE!r}); import jail; jail.main(int(sys.argv[1]))"


class JailChannel:
    """A socket to the kernel in a jail, which ends when the socket does."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket):
        self.process, self.connection = process, connection

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def receive(self) -> bytes:
        return self.connection.recv(1 << 20)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        try:
            self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)  # the kernel in the jail dies with this process
            self.process.wait()
        self.connection.close()


def start(limits: Limits, packages: Sequence[str] = ()) -> Worker:
    """Start a jail.

    Args:
        limits: of every run in it.
        packages: modules that every run finds already imported; those that are not installed are left out.

    Raises:
        IsolationError: if this machine does not allow one; the text says what is missing.
    """
    if sys.platform != "linux":
        raise IsolationError("the local sandbox needs Linux; use backend='docker' on this machine")
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-s", "-S", "-P", "-c", _START, str(theirs.fileno())]
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(
        command,
        pass_fds=[theirs.fileno()],
        env={"PYTHONHASHSEED": "0"},  # the order of a set is part of what a program prints
        cwd="/",
        stdin=nothing,
        stdout=nothing,
        start_new_session=True,
    )
    theirs.close()
    channel = JailChannel(process, ours)
    try:
        channel.send(json.dumps(_settings(limits, packages)).encode() + b"\n")
        return Worker(channel, limits)
    except (SandboxError, OSError) as error:
        channel.close()
        raise IsolationError(f"{error}. {_advice()}") from error


def _settings(limits: Limits, packages: Sequence[str]) -> dict[str, Any]:
    return {
        "read_only": [p for p in dict.fromkeys((sys.base_prefix, sys.prefix)) if not p.startswith("/usr/")],
        "path": list(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))),
        "preload": list(packages),
        "scratch_bytes": limits.disk_mb << 20,
        "scratch_files": limits.files,
    }


def _advice() -> str:
    """What to change on this machine so that a jail can be made."""
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
    who = "root" if os.geteuid() == 0 else "an ordinary user"
    return (
        f"The local sandbox (started by {who}) needs user namespaces and seccomp; a container must be started with "
        "both allowed (docker run --security-opt seccomp=unconfined). Or use backend='docker'"
    )
