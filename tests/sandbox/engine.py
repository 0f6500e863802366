"""A real Docker engine for tests and benchmarks, with an image made of this machine's Python."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

IMAGE = "rollenv-test-python"
#: Programs that tests run in a container, besides Python.
PROGRAMS = ("sh", "bash", "cat", "echo", "sleep", "id", "ls", "env")


def _libraries(program: str) -> set[str]:
    out = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return {word for line in out.splitlines() for word in line.split() if word.startswith("/")}


#: Parts of Python's library that sandboxes do not need.
_UNWANTED = ("/site-packages", "/test", "/__pycache__", "/idlelib", "/ensurepip", "/config-")


def image_tar(programs: Sequence[str] = PROGRAMS, unwanted: Sequence[str] = _UNWANTED) -> bytes:
    """A root file system: this Python's standard library, a few programs, and the libraries that they load."""
    files: set[str] = set()
    python = str(Path(sys.executable).resolve())
    for program in [python, *filter(None, map(shutil.which, programs))]:
        files |= {str(Path(program).resolve()), *_libraries(program)}
    for extension in Path(sys.base_prefix).rglob("lib-dynload/*.so"):
        files |= _libraries(str(extension))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = Path(sys.base_prefix, "lib", version)
    files |= {str(p) for p in library.rglob("*") if p.is_file() and not any(u in str(p) for u in unwanted)}
    files |= {str(p) for p in Path(sys.base_prefix, "lib").glob("libpython*.so*")}
    names = {f"/bin/{name}": found for name in programs if (found := shutil.which(name))}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as tar:
        for name, path in sorted({**{f: f for f in files}, **names}.items()):
            tar.add(path, name)
        for folder in ("tmp", "box", "home", "proc", "dev", "etc"):
            member = tarfile.TarInfo(folder)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(member)
    return buffer.getvalue()


def start_engine(folder: Path, url: str | None = None) -> tuple[str, subprocess.Popen[bytes]]:
    """A Docker engine whose files are all below the folder: (its URL, its process)."""
    url = url or f"unix://{folder}/s"
    command = ["dockerd", "--iptables=false", "--bridge=none", "-H", url, "--data-root", f"{folder}/data"]
    command += ["--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid"]
    with open(folder / "log", "wb") as log:
        daemon = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _load_image(url, daemon, folder / "log")
    except BaseException:
        daemon.terminate()
        daemon.wait(30)
        raise
    return url, daemon


def clear_away(folder: Path) -> None:
    """End and unmount what outlived an engine: a bind mount does, and everything where it was killed."""
    subprocess.run(["pkill", "-KILL", "-f", str(folder)], check=False)
    time.sleep(0.5)
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(str(folder))), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=False)


@contextlib.contextmanager
def connected(url: str) -> Iterator[Any]:
    """Connect to an engine."""
    import docker

    with contextlib.closing(docker.APIClient(base_url=url, version="auto")) as client:
        yield client


def import_folder(url: str, folder: Path, name: str) -> None:
    """Make an image of a folder, as ``tar -c . | docker import -`` does."""
    tar = ["tar", "-C", str(folder), "-c", "."]
    with subprocess.Popen(tar, stdout=subprocess.PIPE) as packing, connected(url) as client:
        assert packing.stdout is not None
        client.import_image_from_data(packing.stdout.read(), repository=name)


def settings(url: str) -> dict[str, Any]:
    """Arguments of Sandbox.create and Pool for an engine."""
    return {"backend": "docker", "image": IMAGE, "base_url": url, "python": str(Path(sys.executable).resolve())}


def _load_image(url: str, daemon: subprocess.Popen[bytes], log: Path) -> None:
    import docker

    deadline = time.monotonic() + 60
    while b"API listen on" not in log.read_bytes():  # a client that asks too early leaves sockets open
        if daemon.poll() is not None or time.monotonic() > deadline:
            pytest.skip(f"the Docker engine does not start here: {log.read_text()[-300:]}")
        time.sleep(0.05)
    with contextlib.closing(docker.APIClient(base_url=url, version="auto")) as client:
        client.import_image_from_data(image_tar(), repository=IMAGE)
