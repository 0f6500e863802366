"""The docker backend: a locked-down container whose process 1 is the kernel; and machines from Docker's images."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import secrets
import socket
import struct
import tarfile
import tempfile
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollenv.sandbox import carried_python
from rollenv.sandbox.errors import MissingPackage, SandboxError
from rollenv.sandbox.images import Image
from rollenv.sandbox.layers import made, store, unpack, whole
from rollenv.sandbox.local import start_time
from rollenv.sandbox.types import Limits
from rollenv.sandbox.worker import SandboxWorker

DEFAULT_IMAGE = "python:3.11-slim"
#: Label of rollenv's containers: "host:pid:start time of that process".
LABEL = "rollenv.sandbox.owner"
_INSIDE = Path(__file__).with_name("inside")
#: Imports the same modules as :mod:`rollenv.sandbox.local`, from their sources.
_START = """
import base64, importlib.abc, importlib.util, json, sys, types, zlib
sources = json.loads(zlib.decompress(base64.b85decode({packed!r})))
class Sources(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    def find_spec(self, name, path, target=None):
        package = name in ("rollenv", "rollenv.sandbox", "rollenv.sandbox.inside")
        return importlib.util.spec_from_loader(name, self, is_package=package) if package or name in sources else None
    def get_source(self, name):
        return sources.get(name, "")
    def is_package(self, name):
        return name not in sources
    def exec_module(self, module):
        exec(compile(self.get_source(module.__name__), module.__name__, "exec"), module.__dict__)
sys.meta_path.insert(0, Sources())
from rollenv.sandbox.inside import container
del sys.meta_path[0]
container.main()
"""
#: Modules that only jails need.
_LOCAL = ("__init__", "jail", "machine")
#: MiB for the kernel and its helper processes.
_KERNEL_MB = 24
_ADVICE = (
    "Start the daemon (systemctl start docker), name it with DOCKER_HOST, and let this user use it (the group docker); "
    "or use the sandbox 'local'"
)
_ENV = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
#: Images without a Python, with the address of their engine.
_without_python: set[tuple[str | None, str]] = set()


class ProgramMissing(SandboxError):
    """The image lacks the program that a container was to start."""


class ContainerChannel:
    """The attached standard streams of a container, which ends with its standard input."""

    def __init__(self, connection: socket.socket, opened: contextlib.ExitStack):
        self.connection, self._opened = connection, opened
        self._buffer = b""
        self.errors = b""

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def receive(self) -> bytes:
        """Return standard output; docker's header of eight bytes has the stream and the length of each piece."""
        while True:
            while len(self._buffer) >= 8 and len(self._buffer) >= 8 + (
                size := struct.unpack(">I", self._buffer[4:8])[0]
            ):
                stream, piece = self._buffer[0], self._buffer[8 : 8 + size]
                self._buffer = self._buffer[8 + size :]
                if stream == 1:
                    return piece
                self.errors = (self.errors + piece)[-10_000:]
            data = self.connection.recv(1 << 20)
            if not data:
                return b""
            self._buffer += data

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self._opened.close()


@contextlib.contextmanager
def _sdk(what: str) -> Iterator[None]:
    """Explain a failed import of Docker's SDK in the block. ``what``: what needs it, as a sentence begins."""
    try:
        yield
    except ImportError as error:
        raise MissingPackage(f"{what} needs the docker extra: pip install 'rollenv[docker]' ({error})") from error


def connected(base_url: str | None = None) -> Any:
    """Connect to the daemon."""
    import docker

    to = {"base_url": base_url} if base_url else docker.utils.kwargs_from_env()
    return docker.APIClient(**to, version="auto")


def start(
    limits: Limits,
    packages: Sequence[str] = (),
    *,
    image: str = DEFAULT_IMAGE,
    python: str | None = None,
    runtime: str | None = None,
    base_url: str | None = None,
) -> SandboxWorker:
    """Start a container.

    Args:
        image: its name in the engine; it is never pulled.
        python: the image's Python, 3.9 or later; by default ``python3``, or this machine's, mounted, if it has none.
        runtime: runtime of the daemon, such as ``runsc`` (gVisor).
        base_url: address of the daemon; by default from the environment.

    Raises:
        SandboxError: there is no daemon or image, or the container does not start.
    """
    with _sdk("The docker sandbox"):
        import docker  # noqa: F401
    if python is not None or (base_url, image) not in _without_python:
        try:
            return _start(limits, packages, image, [python or "python3"], runtime, base_url, False)
        except ProgramMissing:
            if python is not None:
                raise
            _without_python.add((base_url, image))
    return _start(limits, packages, image, carried_python.COMMAND, runtime, base_url, True)


def _start(
    limits: Limits,
    packages: Sequence[str],
    image: str,
    python: list[str],
    runtime: str | None,
    base_url: str | None,
    carried: bool,
) -> SandboxWorker:
    """Start a container with a Python, the image's or a carried one."""
    import docker.errors

    with contextlib.ExitStack() as opened:
        try:
            client = opened.enter_context(contextlib.closing(connected(base_url)))
            sweep(client)
            user, own = _user(client)
            arguments = map(str, (limits.memory_mb << 20, limits.seconds, user))
            labels = {LABEL: _owner(os.getpid())}
            volume = carried_python.volume(client, image, labels, lambda: sweep(client)) if carried else None
            own_places = list((client.inspect_image(image).get("Config") or {}).get("Volumes") or {})
            container = client.create_container(
                image,
                ["-s", "-c", _program(), *arguments, *packages],
                entrypoint=python,
                name=f"rollenv-{uuid.uuid4().hex}",  # names of the engine's own can collide
                user="0:0",
                stdin_open=True,
                detach=False,  # standard input closes with the client that is attached to it
                environment=_ENV | (carried_python.ENV if carried else {}),
                labels=labels,
                healthcheck={"test": ["NONE"]},
                network_disabled=True,
                host_config=client.create_host_config(**_host(limits, runtime, user, own_places, volume)),
            )["Id"]
        except (docker.errors.DockerException, OSError) as error:
            raise _no_container(image, error) from error
        opened.callback(_remove, client, container)
        try:
            raw = client.attach_socket(container, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
            opened.callback(raw.close)
            connection = getattr(raw, "_sock", raw)
            opened.callback(connection.close)  # raw only wraps it, and docker does not close it
            channel = ContainerChannel(connection, opened.pop_all())
            opened.callback(channel.close)
            client.start(container)
            connection.settimeout(None)
            worker = SandboxWorker(channel, limits)
            memory_group = bool(client.info().get("MemoryLimit"))
        except docker.errors.APIError as error:
            absent = any(reason in str(error) for reason in ("executable file not found", "no such file or directory"))
            if absent and f'"{python[0]}"' in str(error) and not carried:
                raise ProgramMissing(f"the image {image!r} has no {python[0]}, which runs the sandbox") from error
            raise SandboxError(f"the container of {image!r} did not start: {error}") from error
        except Exception as error:
            raise SandboxError(f"the container of {image!r} did not start: {error}") from error
        opened.pop_all()  # from here on the worker closes the channel
    worker.about |= {"own_share": True, "own_users": own, "own_files": True, "memory_group": memory_group}
    return worker


@functools.cache
def require_image(image: str) -> None:
    """Raise a SandboxError if the engine does not answer or has no such image; what was there is not asked again."""
    with _sdk("The docker sandbox"):
        import docker.errors
    try:
        with contextlib.closing(connected()) as client:
            client.inspect_image(image)
    except (docker.errors.DockerException, OSError) as error:
        raise _no_container(image, error) from error


def _no_container(image: str, error: Exception) -> SandboxError:
    import docker.errors

    if isinstance(error, docker.errors.NotFound | docker.errors.NullResource):
        return SandboxError(f"Docker has no image {image!r} here: docker pull or build it, or name another with image=")
    if isinstance(error, docker.errors.APIError):
        return SandboxError(f"Docker refused a container of {image!r}: {error.explanation or error}")
    return SandboxError(f"Docker does not answer: {error}. {_ADVICE}")


def _remove(client: Any, container: str) -> None:
    with contextlib.suppress(Exception):  # a container that remains is swept later by its label
        client.remove_container(container, force=True, v=True)


def _user(client: Any) -> tuple[int, bool]:
    """Choose a user for a container; return its number and whether it is unique, so that process limits are."""
    options = client.info().get("SecurityOptions") or []
    if any("name=userns" in each or "name=rootless" in each for each in options):  # these have only 65,536 users
        return 20_000 + secrets.randbelow(40_000), False
    return (1 << 20) + secrets.randbelow(1 << 30), True


def _program() -> str:
    """Return the program of the container as one argument of at most 128 KiB, so that it needs no file."""
    sources = {
        f"rollenv.sandbox.inside.{path.stem}": path.read_text(encoding="utf-8")
        for path in _INSIDE.glob("*.py")
        if path.stem not in _LOCAL
    }
    return _START.format(packed=base64.b85encode(zlib.compress(json.dumps(sources).encode(), 9)))


def _host(limits: Limits, runtime: str | None, user: int, volumes: list[str], python: str | None) -> dict[str, Any]:
    """Return the confinement. ``volumes``: the image's own, which would be writable and outlive a run."""
    memory = limits.memory_mb + _KERNEL_MB
    folder = f"rw,exec,nosuid,nodev,uid={user},gid={user},mode=700,size={limits.disk_mb}m,nr_inodes={limits.files}"
    return {
        "network_mode": "none",
        "read_only": True,
        "binds": [f"{python}:{carried_python.FOLDER}:ro"] if python else [],
        "cap_drop": ["ALL"],
        "cap_add": ["SETUID", "SETGID", "KILL"],  # for the kernel to switch users; code has none
        "security_opt": ["no-new-privileges"],
        "pids_limit": limits.processes + 16,
        "mem_limit": f"{memory}m",
        "memswap_limit": f"{memory}m",
        "cpu_shares": 512,
        "shm_size": f"{limits.disk_mb}m",
        "auto_remove": True,
        "ipc_mode": "private",
        "tmpfs": {**dict.fromkeys(volumes, "ro,size=4k"), "/box": folder, "/tmp": folder, "/home": folder},
        "runtime": runtime,
    }


def sweep(client: Any) -> int:
    """Remove containers whose owners on this machine have ended; return their number."""
    removed = 0
    for container in client.containers(all=True, filters={"label": LABEL}):
        host, pid, _ = container["Labels"][LABEL].split(":")
        if host == socket.gethostname() and _owner(int(pid)) != container["Labels"][LABEL]:
            with contextlib.suppress(Exception):  # a concurrent sweep may have removed it
                client.remove_container(container["Id"], force=True)
                removed += 1
    return removed


def _owner(pid: int) -> str:
    return f"{socket.gethostname()}:{pid}:{start_time(pid)}"


def docker_image(name: str, *, base_url: str | None = None) -> Image | None:
    """Convert an image of a Docker engine, with its environment, folder, user and shell; None if it is absent.

    Its files are exported once, into the cache. It does not run in the engine, and nothing is pulled.
    """
    with _sdk("Images of Docker"):
        import docker.errors
    try:
        with contextlib.closing(connected(base_url)) as client:
            try:
                about = client.inspect_image(name)
            except docker.errors.ImageNotFound:
                return None
            target = store() / "roots" / about["Id"].removeprefix("sha256:")
            with made(target) as folder:
                if folder is not None:
                    container = client.create_container(about["Id"], ["/nothing"], network_disabled=True)["Id"]
                    try:
                        with tempfile.TemporaryFile() as file:
                            for piece in client.export(container):
                                file.write(piece)
                            file.seek(0)
                            with tarfile.open(fileobj=file) as archive:
                                unpack(whole(archive), folder)
                    finally:
                        client.remove_container(container, force=True, v=True)
    except (docker.errors.DockerException, tarfile.TarError, OSError) as error:
        raise SandboxError(f"the image {name!r} could not be taken from Docker: {error}") from error
    image = Image.folder(target)
    config = about.get("Config") or {}
    env = dict(each.split("=", 1) for each in config.get("Env") or [] if "=" in each)
    return replace(
        image,
        env=env,
        workdir=config.get("WorkingDir") or "/",
        user=config.get("User") or "root",
        shell=tuple(config.get("Shell") or image.shell),
    )
