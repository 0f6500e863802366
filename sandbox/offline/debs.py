"""A folder of Debian packages, filled by the host's apt with what scripts will install."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from rollenv.sandbox.layers import store
from rollenv.sandbox.offline.wheels import commands

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
#: Seconds for apt, and until it is asked again for what it did not have.
_SECONDS, _AGAIN = 300.0, 24 * 3600.0


class Debs:
    """Packages for machines over the host's system, each with what it needs beyond what the host has.

    There is a file NAME.list for each, with the names of its .deb files in the order of installation.

    Args:
        folder: where they are; by default in the cache.
        fetch: whether missing ones are downloaded, by the host's apt with its lists and keys. Nothing of a package
            runs on the host.
    """

    def __init__(self, folder: Path | None = None, *, fetch: bool = True):
        self.fetch = fetch and shutil.which("apt-get") is not None
        self.folder = folder or store() / "debs" / (_installed() if self.fetch else "given")
        self.folder.mkdir(parents=True, exist_ok=True)

    def ensure(self, wanted: Sequence[str]) -> list[str]:
        """Fetch what is neither here nor on the host; return what could not be had, which is not tried again today."""
        lacking = [name for name in dict.fromkeys(wanted) if not self._is_here(name)]
        return [name for name in lacking if not (self.fetch and not self._failed(name) and self._download(name))]

    def _failed(self, name: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return time.time() - (self.folder / f"{name}.failed").stat().st_mtime < _AGAIN
        return False

    def _is_here(self, name: str) -> bool:
        return (self.folder / f"{name}.list").exists()

    def _download(self, name: str) -> bool:
        command = ["apt-get", "install", "--yes", "--no-install-recommends", "--no-upgrade"]
        options = [f"Dir::Cache::archives={self.folder}", "Debug::NoLocking=1", "APT::Sandbox::User=root"]
        command += [word for option in options for word in ("-o", option)]
        try:
            (self.folder / "partial").mkdir(exist_ok=True)
            needed = _run([*command, "--print-uris", "-qq", name])
            _run([*command, "--download-only", "-qq", name])
        except (OSError, subprocess.SubprocessError) as error:
            _log.debug("apt-get cannot fetch %s: %s", name, getattr(error, "stderr", error))
            (self.folder / f"{name}.failed").touch()
            return False
        files = re.findall(r"^'[^']*' (\S+\.deb) ", needed, re.MULTILINE)  # none for what the host has
        if not all((self.folder / file).is_file() for file in files):
            return False
        (self.folder / f"{name}.list").write_text("".join(f"{file}\n" for file in files))
        return True


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    return done.stdout


@functools.cache
def _installed() -> str:
    """The state of the host's packages: what a package needs besides depends on it."""
    try:
        return hashlib.sha256(Path("/var/lib/dpkg/status").read_bytes()).hexdigest()[:16]
    except OSError:
        return "none"


def packages(script: str) -> list[str]:
    """The packages that a shell script or Dockerfile installs with apt."""
    found: dict[str, None] = {}
    for words in commands(script):
        program = next((i for i, word in enumerate(words) if word.rpartition("/")[2] in ("apt", "apt-get")), len(words))
        if "install" not in words[program:]:
            continue
        for word in words[words.index("install", program) + 1 :]:
            name = re.split(r"[=:/]", word)[0]
            if _NAME.fullmatch(name) and not word.endswith(".deb"):
                found[name] = None
    return list(found)
