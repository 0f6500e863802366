"""Backends by name. Before first use of one, a program in a sandbox tries what must be impossible there."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollenv.sandbox import docker, local
from rollenv.sandbox.errors import InvalidArgument, IsolationError
from rollenv.sandbox.inside.protocol import GetMemory, OpenContext, RunCell, RunProgram, Signal
from rollenv.sandbox.types import Limits, Output
from rollenv.sandbox.worker import SandboxWorker

#: All isolation properties with their meaning.
PROPERTIES = {
    "no_network": "no interface but its own loopback, and no way to a server on this machine",
    "hidden_files": "files of this machine, other than the system's and Python's, cannot be seen",
    "read_only_system": "nothing outside the scratch folder can be written",
    "own_processes": "no process outside can be seen or signalled",
    "no_capabilities": "no capabilities, and no way to gain any",
    "seccomp": "dangerous system calls are filtered",
    "no_namespaces": "no new user namespaces, in which more would be allowed",
    "no_tracing": "no process outside the own session can be traced or its memory read",
    "memory_limit": "memory is limited, for all processes and files together: private, shared, or held by a descriptor",
    "process_limit": "the number of processes is limited",
    "disk_limit": "the scratch folder is limited",
    "contexts_apart": "contexts of one sandbox cannot read or change each other's memory",
    "landlock": "Landlock protects files as a second layer",
    "memory_group": "a control group counts memory, including Linux's own memory for sockets",
    "own_files": "locks and watches on visible files are its own, though the files are the system's",
    "own_share": "a control group gives it one share of the processors, however many processes and sessions it starts",
    "own_users": "its users are not shared, so Linux's limits per user are its own",
}

_NOT_EVERYWHERE = ("landlock", "memory_group", "own_files", "own_share", "own_users")
PROMISED = {
    "local": tuple(name for name in PROPERTIES if name not in _NOT_EVERYWHERE),
    "docker": tuple(name for name in PROPERTIES if name not in (*_NOT_EVERYWHERE, "no_namespaces")),
}

_PROGRAM = """
import ctypes, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
values = json.loads(VALUES)

def fails(attempt):
    try:
        attempt()
    except (OSError, MemoryError):
        return True
    return False

def interfaces():
    if not os.path.exists("/proc/net/dev"):
        return set()
    return {line.partition(":")[0].strip() for line in open("/proc/net/dev") if ":" in line}

def connect():
    socket.create_connection(("127.0.0.1", values["port"]), timeout=2).close()

def send_out():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect(("192.0.2.1", 53))

def abstract():
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(values["abstract"])

def write(path):
    def attempt():
        with open(path, "w"):
            pass
        os.remove(path)
    return attempt

def call(name, *arguments):
    def attempt():
        if getattr(libc, name)(*arguments) < 0:
            raise OSError(ctypes.get_errno(), name)
    return attempt

def fill_memory():
    bytearray(values["memory"] + (64 << 20))

def disk_is_bounded():
    info = os.statvfs(".")
    return 0 < info.f_blocks * info.f_frsize <= values["disk"] + (1 << 20) and 0 < info.f_files < 1 << 24

def fork_many():
    children = []
    try:
        for _ in range(values["processes"] + 8):
            pid = os.fork()
            if pid == 0:
                os.close(gate[1])
                os.read(gate[0], 1)
                os._exit(0)
            children.append(pid)
    finally:
        os.close(gate[1])
        for pid in children:
            os.waitpid(pid, 0)

gate = os.pipe()
status = dict(line.split(":", 1) for line in open("/proc/self/status")) if os.path.exists("/proc/self/status") else {}
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc.capget(header, data)
answers = {
    "no_network": interfaces() <= {"lo"} and all(map(fails, (connect, send_out, abstract))),
    "hidden_files": not os.path.exists(values["secret"]),
    "read_only_system": all(fails(write(f"{d}/rollenv-probe")) for d in ("/", "/usr", "/etc", "/usr/bin", sys.prefix)),
    "own_processes": values["pid"] < 64 or fails(lambda: os.kill(values["pid"], 0)),
    "no_capabilities": not any(data[i] for i in (0, 1, 3, 4)) and libc.prctl(39, 0, 0, 0, 0) == 1,
    "seccomp": libc.prctl(21, 0, 0, 0, 0) == 2 or "2" in status.get("Seccomp", ""),
    "no_namespaces": fails(call("unshare", 0x10000000)),
    "no_tracing": fails(call("ptrace", 16, 1, 0, 0)) and fails(lambda: open("/proc/1/mem", "rb")),
    "memory_limit": fails(fill_memory),
    "disk_limit": disk_is_bounded(),
    "landlock": bool(values["landlock"]),
    "process_limit": fails(fork_many),
}
print(json.dumps(answers))
"""


def prove(worker: SandboxWorker) -> dict[str, bool]:
    """Run the isolation probes in a worker, against an existing server, file and process."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        name = f"\0rollenv-probe-{os.getpid()}-{id(worker)}"
        abstract.bind(name)
        abstract.listen(1)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rollenv-probe-"))
        os.chmod(folder, 0o755)
        secret = Path(folder, "secret")
        secret.write_text("secret")
        values = {
            "port": server.getsockname()[1],
            "abstract": name,
            "secret": str(secret),
            "pid": os.getpid(),
            "memory": worker.limits.memory_mb << 20,
            "disk": worker.limits.disk_mb << 20,
            "processes": worker.limits.processes,
            "landlock": worker.about.get("landlock", 0),
        }
        code = _PROGRAM.replace("VALUES", repr(json.dumps(values)))
        output = Output()
        done = worker.run(RunProgram(**worker.limits_of(30), code=code), wait=60, on_bytes=output.take)
    try:
        answers = json.loads(output.text("stdout"))
    except ValueError:
        reason = output.text("stderr")[-500:] or done
        raise IsolationError(f"the probes of isolation could not be run: {reason}") from None
    answers["memory_limit"] &= worker.about["memory_group"] or _counts_memory(worker)
    # One context tries to open the memory of another; a descriptor would be enough.
    output = Output()
    limits = worker.limits_of(10) | {"timeout": 0}
    for key, code in {
        "probe-1": "import os\nprint(os.getpid(), flush=True)",
        "probe-2": "try: open('/proc/PID/mem', 'rb'); print('open')\nexcept OSError: print('closed')",
    }.items():
        worker.run(OpenContext(**limits, key=key))
        printed = output.text("stdout").strip()
        worker.run(RunCell(key, code.replace("PID", printed), 10), on_bytes=output.take)
    for key in ("probe-1", "probe-2"):
        worker.ask(Signal(key, 9))
    answers["contexts_apart"] = output.text("stdout").split()[1:] == ["closed"]
    answers |= {name: worker.about[name] for name in _NOT_EVERYWHERE[1:]}
    return {name: bool(answers.get(name)) for name in PROPERTIES}


_HOLD = """
import mmap, os, time
size = 8 << 20
if os.fork() == 0:
    private = b"x" * size
    time.sleep(20)
shared = mmap.mmap(-1, size)
shared.write(b"x" * size)
shared.madvise(mmap.MADV_DONTNEED)
open("file", "wb").write(b"x" * size)
if os.fork():
    time.sleep(0.05)
    print("ready", flush=True)
time.sleep(20)
"""


def _counts_memory(worker: SandboxWorker) -> bool:
    """Return whether the sandbox's kernel counts three kinds of memory that are easily missed."""
    samples: list[int] = []

    def on_bytes(*_: object) -> None:
        if not samples:
            samples.append(worker.ask(GetMemory())["used"])
            worker.ask(Signal("probe", 9))

    worker.run(RunProgram(**worker.limits_of(20), code=_HOLD, key="probe"), wait=60, on_bytes=on_bytes)
    return bool(samples) and samples[0] >= 3 * (8 << 20)


BACKENDS = ("local", "docker")
#: Variable with the default backend: ``local``, ``docker`` or ``docker:IMAGE``.
DEFAULT = "ROLLENV_SANDBOX"


def chosen(sandbox: str | None = None, image: str | None = None) -> dict[str, Any]:
    """Return the arguments of ``Sandbox.create``, ``Pool`` and ``shared_pool`` for those of an environment or server.

    Args:
        sandbox: ``local`` or ``docker``; by default, and for GEM's ``none`` and ``bwrap``, what ``$ROLLENV_SANDBOX``
            names, else ``local``.
        image: the containers' image; for ``docker`` only.

    Raises:
        InvalidArgument: there is no such backend, or it takes no image.
        SandboxError: there is no Docker daemon, or it has no such image.
    """
    backend, named = sandbox, ""
    if sandbox in (None, "none", "bwrap"):
        backend, _, named = (os.environ.get(DEFAULT) or "local").partition(":")
    if backend not in BACKENDS:
        raise InvalidArgument(f"there is no sandbox {backend!r}; choose from {', '.join(BACKENDS)}")
    if backend == "local":
        if image is not None or named:
            raise InvalidArgument(
                f"image={image or named!r} is for sandbox='docker'; others show this machine's files or none"
            )
        return {}
    image = named or docker.DEFAULT_IMAGE if image is None else image
    docker.require_image(image)
    return {"backend": backend, "image": image}


_proved: dict[str, dict[str, bool]] = {}
_proving = threading.Lock()


def start(
    backend: str, limits: Limits, packages: Sequence[str] = (), *, require: Sequence[str] = (), **settings: Any
) -> SandboxWorker:
    """Start a worker and verify its isolation. The first worker of each kind in a process is probed.

    Args:
        require: isolation properties that must hold; by default the backend's promised ones.

    Raises:
        IsolationError: a promised or required property does not hold.
    """
    if backend not in BACKENDS:
        raise InvalidArgument(f"there is no sandbox backend {backend!r}; choose from {', '.join(BACKENDS)}")
    if unknown := [name for name in require if name not in PROPERTIES]:
        raise InvalidArgument(f"there is no isolation property {unknown[0]!r}; choose from {', '.join(PROPERTIES)}")
    if backend == "local" and settings:
        raise InvalidArgument(f"the local sandbox takes no setting {next(iter(settings))!r}")
    worker = docker.start(limits, packages, **settings) if backend == "docker" else local.start(limits, packages)
    if missing := [name for name in packages if name not in worker.about["loaded"]]:
        worker.close()
        raise InvalidArgument(
            f"Python in the {backend} sandbox cannot import {', '.join(missing)}, listed in packages="
        )
    kind = f"{backend} {sorted(settings.items())}"
    try:
        with _proving:
            if kind not in _proved:
                _proved[kind] = prove(worker)
    except BaseException:
        worker.close()
        raise
    worker.about["isolation"] = _proved[kind]
    missing = [name for name in require or PROMISED[backend] if not _proved[kind].get(name)]
    if missing:
        worker.close()
        lacking = "; ".join(f"{name} ({PROPERTIES[name]})" for name in missing)
        raise IsolationError(f"the {backend} sandbox cannot provide what was requested on this machine: {lacking}")
    return worker
