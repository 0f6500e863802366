"""A Python for images that have none: this process's own, with the libraries that it loads, in a volume of the engine.

It starts through its own loader, so it depends on nothing in the image.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import platform
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from rollenv.sandbox.errors import SandboxError

#: Where the volume is mounted, read-only.
FOLDER = "/.rollenv"
COMMAND = [f"{FOLDER}/ld", "--library-path", f"{FOLDER}/lib", f"{FOLDER}/bin/python3"]
#: Against the image's variables, which are for another Python and another loader.
ENV = {"PYTHONPATH": "", "PYTHONHOME": "", "LD_PRELOAD": ""}
_DONE = f"{FOLDER}/done"
#: Folders of Python's library that no sandbox needs.
_LEFT_OUT = ("site-packages", "dist-packages", "test", "idlelib", "ensurepip", "tkinter", "turtledemo", "lib2to3")
#: Maximum seconds to wait for another process that fills the volume.
_FILLING = 120.0


def volume(client: Any, image: str, labels: dict[str, str], sweep: Callable[[], object]) -> str:
    """Return the name of the volume with Python; the first caller fills it.

    Args:
        image: any image of the engine; a container of it is created and not started.
        labels: labels of that container, whose name is the lock: if its owner ends, ``sweep`` removes it.

    Raises:
        SandboxError: the image has no Python, and this machine's cannot run in it.
    """
    import docker.errors

    if sys.platform != "linux" or client.info().get("Architecture") != platform.machine():
        raise SandboxError(f"the image {image!r} needs a python3: it has none, and this machine's cannot run in it")
    name = f"rollenv-python-{_identity()}"
    until = time.monotonic() + _FILLING
    settings = client.create_host_config(binds=[f"{name}:{FOLDER}"], network_mode="none")
    while True:
        try:
            filler = client.create_container(image, ["/nothing"], name=name, labels=labels, host_config=settings)["Id"]
            break
        except docker.errors.APIError as error:
            if error.status_code != 409 or time.monotonic() > until:
                raise
            time.sleep(0.2)
            sweep()
    try:
        try:
            client.get_archive(filler, _DONE)[0].close()
        except docker.errors.NotFound:
            with tempfile.TemporaryFile() as file:
                _pack(file)
                file.seek(0)
                client.put_archive(filler, FOLDER, file)
    finally:
        with contextlib.suppress(docker.errors.APIError):
            client.remove_container(filler, force=True, v=True)  # with the image's own volumes
    return name


@functools.cache
def _identity() -> str:
    return hashlib.sha256(sys.version.encode() + Path(sys.executable).resolve().read_bytes()).hexdigest()[:16]


def _pack(file: IO[bytes]) -> None:
    """Write an archive of Python, its library, its shared libraries and their loader; ``done`` comes last."""
    program = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    modules = [path for path in library.rglob("*") if path.is_file() and not _left_out(path.relative_to(library))]
    extensions = [str(path) for path in modules if ".so" in path.suffixes]
    listed = subprocess.run(["ldd", str(program), *extensions], capture_output=True, text=True, check=False).stdout
    shared = {word for line in listed.splitlines() for word in line.split() if word.startswith("/") and word[-1] != ":"}
    loaders = [path for path in shared if Path(path).name.startswith("ld-")]
    if not loaders:
        raise SandboxError(f"this machine's Python ({program}) is not linked dynamically: use an image with python3")
    names = {"bin/python3": program, "ld": Path(loaders[0])}
    names |= {f"lib/{Path(path).name}": Path(path) for path in shared}
    names |= {f"lib/{library.name}/{path.relative_to(library)}": path for path in modules}

    def readable(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mode = 0o755
        return member

    with tarfile.open(fileobj=file, mode="w", dereference=True) as archive:
        for name, path in sorted(names.items()):
            archive.add(path, name, filter=readable)
        archive.addfile(tarfile.TarInfo("done"))


def _left_out(path: Path) -> bool:
    return path.parts[0] in _LEFT_OUT or path.parts[0].startswith("config-") or ".opt-" in path.name
