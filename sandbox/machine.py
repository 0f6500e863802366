"""Machines: sandboxes with a whole, writable root file system, with users, daemons and terminals."""

from __future__ import annotations

import functools
import os
import posixpath
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from rollenv.sandbox import local
from rollenv.sandbox.errors import InvalidArgument, IsolationError, NotFound, SandboxError
from rollenv.sandbox.images import Image
from rollenv.sandbox.inside import protocol
from rollenv.sandbox.inside.machine import CAPABILITIES, HOSTNAME
from rollenv.sandbox.layers import Entry, Keep, layer_of, unpack
from rollenv.sandbox.network import AllowList
from rollenv.sandbox.sandbox import BaseSandbox
from rollenv.sandbox.types import CommandResult, Limits
from rollenv.sandbox.worker import Json

#: Default limits of one command and of the whole machine, whose files are in memory.
LIMITS = Limits(seconds=120.0, memory_mb=3072, processes=512, disk_mb=2048, files=200_000, open_files=4096)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Timeout of packing all files, in seconds.
_PACKING = 600.0
#: Prints the confinement of the shell that runs it.
_PROBE = r"""
while read -r line; do echo "$line"; done < /proc/self/status
read -r inside outside count < /proc/self/uid_map; echo "outside $outside"
networks=-2; while read -r line; do networks=$((networks + 1)); done < /proc/net/dev; echo "networks $networks"
(echo 0 > /proc/sys/kernel/core_uses_pid) 2> /dev/null && echo "wrote settings"
exit 0
"""

_MASKED = (
    "a machine needs a /proc of its own, and a container that hides parts of its /proc does not allow one: start the "
    "container with docker run --security-opt systempaths=unconfined (Kubernetes: procMount: Unmasked)"
)


class Machine(BaseSandbox):
    """A sandbox whose programs may be root and install, change and remove anything in its system.

    It has only a loopback network, unless ``network`` lists hosts. Background processes run until the machine ends. Its
    root has no privileges outside. Commands, files, terminals and ports work as in a
    :class:`~rollenv.sandbox.Sandbox`; code runs with the machine's own interpreters, see :meth:`run`.
    """

    image: Image

    @classmethod
    def create(
        cls,
        image: Image | None = None,
        *,
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
        shown: Mapping[str, str | os.PathLike[str]] | None = None,
        network: Sequence[str] = (),
        tunnels: Mapping[int, str] | None = None,
        set_user_id: bool = True,
        timeout: float | None = None,
    ) -> Self:
        """Start a machine.

        Args:
            image: root file system; by default the host's programs, see :meth:`Image.host`.
            limits: limits of every command, and of the machine's memory, processes and files together.
            env: environment variables of all programs, in addition to the image's.
            shown: read-only folders of the host, as a mapping of paths in the machine to paths of the host.
            network: hosts that are reachable through a proxy; see :class:`~rollenv.sandbox.network.AllowList`. By
                default none.
            tunnels: addresses (``HOST:PORT``) that ports of the machine's loopback are forwarded to.
            set_user_id: whether programs such as ``sudo`` and ``su`` change the user, as in Docker.
            timeout: lifetime in seconds; by default unlimited.

        Raises:
            IsolationError: this host does not support machines, or the isolation is incomplete.
            NotFound: a folder of the image has been removed.
        """
        image = image or Image.host()
        folders = [[os.fspath(path), target] for target, path in (shown or {}).items()]
        for path, target in folders:
            if not os.path.isdir(path) or not target.startswith("/"):
                raise InvalidArgument(
                    f"shown={{{target!r}: {path!r}}}: it takes a folder of the host, for an absolute path"
                )
        if gone := [path for _, lower in image.mounts for path in lower if not os.path.isdir(path)]:
            raise NotFound(f"the image's layer {gone[0]} is not there any more: build or commit it again")
        mounts = [[target, list(lower)] for target, lower in image.mounts]
        settings = {"mounts": mounts, "shown": folders, "set_user_id": set_user_id}
        allowed = AllowList(network) if network else None
        worker = local.start(limits or LIMITS, machine=settings, network=allowed, tunnels=tunnels)
        worker.env = {"PATH": PATH, "LANG": "C.UTF-8", "HOSTNAME": HOSTNAME, **image.env, **worker.about["proxies"]}
        machine = cls(worker, "local", env)
        machine.image, machine._shell = image, image.shell
        try:
            machine._prove(set_user_id)
            machine.set_timeout(timeout)
        except BaseException:
            machine.kill()
            raise
        return machine

    def _prove(self, set_user_id: bool) -> None:
        """Verify the isolation from inside, using only a shell."""
        if not self._worker.about["proc"]:
            raise IsolationError(_MASKED)
        done = self.commands.run(["/bin/sh", "-c", _PROBE], cwd="/", user="0")
        reported = dict(words for line in done.stdout.splitlines() if len(words := line.split(maxsplit=1)) == 2)
        if not reported:
            why = done.error.value if done.error else f"its shell printed nothing and ended with {done.exit_code}"
            raise IsolationError(f"the machine did not start: {why}. {done.stderr.strip()[-300:]}")
        wrong = []
        if reported.get("Seccomp:") != "2":
            wrong.append("system calls are not filtered")
        if reported.get("NoNewPrivs:") != "1" and not set_user_id:
            wrong.append("programs can gain privileges")
        allowed = sum(1 << capability for capability in CAPABILITIES)
        if any(
            int(reported.get(f"Cap{name}:", "f" * 16), 16) & ~allowed for name in ("Eff", "Prm", "Inh", "Bnd", "Amb")
        ):
            wrong.append("root has forbidden capabilities, or could gain them")
        if os.geteuid() == 0 and reported.get("outside", "0") == "0":
            wrong.append("its root is the host's")
        if reported.get("networks") != "1":
            wrong.append("it has a network")
        if "wrote" in reported:
            wrong.append("the kernel's settings can be written")
        if wrong:
            raise IsolationError(f"the machine is not isolated: {'; '.join(wrong)}. {done.stderr.strip()[-300:]}")
        self._worker.about["isolation"] = {"own_users": bool(self._worker.about["own_users"])}

    def _cwd_and_user(self, cwd: str | None, user: str | None) -> Json:
        return {"cwd": cwd or self.image.workdir, "user": user or self.image.user}

    def run(self, command: str | Sequence[str], **settings: Any) -> CommandResult:
        """Run a command and wait for its end; see :meth:`Commands.run`.

        Args:
            command: a command line for the image's shell, or a program and its arguments.
            settings: ``cwd``, ``env``, ``user``, ``timeout``, ``stdin``, ``on_stdout``, ``on_stderr``.
        """
        return self.commands.run(command, **settings)

    def end_processes(self) -> None:
        """Kill all processes, including daemons, and wait for their end. Files stay."""
        self._worker.ask(protocol.EndAll())

    def upload(self, source: str | os.PathLike[str], target: str, *, mode: int | None = None) -> None:
        """Copy a file or folder of the host into the machine, owned by root.

        Args:
            source: a file, or a folder whose contents go into ``target``. Links are copied as links.
            target: absolute path of a folder, created if necessary. Files with the same names are replaced.
            mode: permissions of files; by default unchanged.

        Raises:
            SandboxError: the files could not be written.
        """
        root = Path(source)
        if not root.is_dir() and not root.is_file():
            raise InvalidArgument(f"there is no file or folder {source} to upload")

        def as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            if mode is not None and member.isreg():
                member.mode = mode
            return member

        with tempfile.TemporaryFile() as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for path in sorted(root.iterdir()) if root.is_dir() else [root]:
                    archive.add(path, path.name, filter=as_root)
            file.seek(0)
            self.unpack(file.read(), target)

    def unpack(self, archive: bytes, target: str) -> None:
        """Unpack a tar archive into a folder of the machine, as root."""
        self.files._perform(protocol.UnpackInto(path=_absolute(target)), archive)

    def download(self, source: str, target: str | os.PathLike[str], most: int = 1 << 30) -> None:
        """Copy a file or the contents of a folder to the host: files, folders, and links that stay inside.

        Args:
            target: folder of the host, created if necessary.
            most: maximum bytes of all files together.

        Raises:
            NotFound: there is no such file.
            SandboxError: the files are too large.
        """
        data = self.files._perform(protocol.PackPath(path=_absolute(source)), most=most)
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            with tarfile.open(fileobj=file) as archive:
                Path(target).mkdir(parents=True, exist_ok=True)
                unpack(_harmless(archive, most), Path(target))

    def pack(self, file: IO[bytes]) -> None:
        """Archive all changes of the machine's files, for :func:`layers.layer_of`.

        Running processes may change files meanwhile: call :meth:`pause` or :meth:`end_processes` before.

        Raises:
            SandboxError: the archive could not be completed.
        """
        limits = self._worker.limits
        most = (limits.disk_mb << 21) + (limits.files << 14)
        fields = self._worker.limits_of(_PACKING) | {"output_bytes": most, "processes": None, "file_bytes": None}
        request = protocol.PackMachine(**fields | {"memory_bytes": None}, path="the machine")

        def take(name: str, data: bytes) -> None:
            if name == "stdout":
                file.write(data)

        done = self._worker.run(request, wait=_PACKING, on_bytes=take)
        if done.exit_code != 0:
            why = done.error["value"] if done.error else f"exit code {done.exit_code}, signal {done.signal}"
            raise SandboxError(f"the machine's files could not be packed: {why}")

    def commit(self, folder: str | os.PathLike[str], *, keep: Keep | None = None) -> Image:
        """Create an image with all changes of the machine's files.

        Processes are paused meanwhile. Files more than 256 folders deep are left out.

        Args:
            folder: a new or empty folder, which must exist as long as the image is used.
            keep: decides which files are kept; by default all.
        """
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile() as file:
            paused = self._worker.paused
            if not paused:
                self.pause()
            try:
                self.pack(file)
            finally:
                if not paused:
                    self.resume()
            file.seek(0)
            layer_of(file, target, [mount for mount, _ in self.image.mounts], keep)
        return self.image.over(target)


@functools.cache
def why_not() -> str | None:
    """Return why machines cannot be started here and what to do; None if they can. Tried once per process."""
    try:
        Machine.create(limits=Limits(memory_mb=256, disk_mb=16)).kill()
    except (SandboxError, OSError) as error:
        return str(error)
    return None


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise InvalidArgument(f"a path in a machine must be absolute, got {path!r}")
    return path


def _harmless(archive: tarfile.TarFile, most: int) -> Iterator[Entry]:
    """Iterate over safe entries of an untrusted archive, changed to this process's user; skip others."""
    for member in archive:
        most -= member.size if member.isreg() else 0
        if most < 0 or member.issparse() or not (member.isreg() or member.isdir() or _stays_inside(member)):
            continue
        member.uid, member.gid = os.geteuid(), os.getegid()
        member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
        member.pax_headers = {}
        yield member, archive, member.name


def _stays_inside(member: tarfile.TarInfo) -> bool:
    """Return whether a link stays inside: it goes up no further than its depth, and then only down."""
    up = member.linkname.split("/")
    while up and up[0] == "..":
        up = up[1:]
    steps = member.linkname.count("/") + 1 - len(up)
    depth = len(posixpath.normpath(member.name).split("/")) - 1
    return member.issym() and not member.linkname.startswith("/") and ".." not in up and steps <= depth
