"""Root file systems for machines: the host's own system, an unpacked one, and layers over them."""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rollenv.core import UsageError
from rollenv.sandbox import host_image
from rollenv.sandbox.layers import made, store, unpack, whole


@dataclass(frozen=True)
class Image:
    """A root file system and how programs start in it.

    Attributes:
        mounts: for each overlay where it is mounted ("" for the root, which comes first), and the folders that it lies
            over, from top to bottom.
        env: environment variables.
        workdir: where programs start.
        user: who they are.
        shell: what runs a command line.
    """

    mounts: tuple[tuple[str, tuple[str, ...]], ...]
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    workdir: str = "/"
    user: str = "root"
    shell: tuple[str, ...] = ("/bin/sh", "-c")

    @classmethod
    def host(cls, work: bool = True) -> Image:
        """The host's own programs and libraries, and a fresh rest: accounts, settings, homes, logs.

        Programs see of the host: /usr (with /bin, /lib ...), the list of its packages, and the settings in
        :data:`host_image.ETC`. Nothing else of it can be read or written.

        Args:
            work: with an empty folder ``/app`` to work in, which Docker's images do not have.
        """
        return cls(host_image.mounts(work))

    @classmethod
    def folder(cls, path: str | os.PathLike[str]) -> Image:
        """An unpacked root file system, such as debootstrap makes.

        Raises:
            UsageError: if there is none.
        """
        root = Path(path).absolute()
        if not any((root / name).is_dir() for name in ("usr", "bin")):
            raise UsageError(f"{root} is no root file system: it has neither usr nor bin")
        return cls((("", (str(root),)),))

    @classmethod
    def archive(cls, path: str | os.PathLike[str]) -> Image:
        """A root file system in an archive, such as ``docker export`` writes. It is unpacked once, into the cache.

        Raises:
            UsageError: if it cannot be read.
        """
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        target = store() / "roots" / digest
        try:
            with made(target) as folder, tarfile.open(path) as archive:
                if folder is not None:
                    unpack(whole(archive), folder)
        except tarfile.TarError as error:
            raise UsageError(f"{path} is no archive of a root file system: {error}") from error
        return cls.folder(target)

    def over(self, layer: Path) -> Image:
        """The image with a layer on top."""
        mounts = []
        for i, (place, lower) in enumerate(self.mounts):
            top = layer / str(i)
            mounts.append((place, (str(top), *lower) if top.is_dir() else lower))
        return replace(self, mounts=tuple(mounts))

    def find(self, path: str) -> Path | None:
        """The host's file behind a path of the image, or None. Links are not followed, so give no path through one."""
        for place, lower in sorted(self.mounts, key=lambda mount: -len(mount[0])):
            if f"{path}/".startswith(f"{place}/"):
                return _in_layers(lower, path[len(place) :].strip("/"))
        return None

    def names(self, folder: str) -> set[str]:
        """The names in a folder of the image; it may be reached through links such as /bin."""
        folder = self._real(folder)
        return {
            name
            for place, lower in self.mounts
            if f"{folder}/".startswith(f"{place}/")
            for layer in lower
            for name in _listed(os.path.join(layer, folder[len(place) :].strip("/")))
        }

    def has_library(self, name: str) -> bool:
        """Return whether a shared library of this name is where the loader looks."""
        return name in _libraries(self)

    def _real(self, path: str) -> str:
        for _ in range(8):
            found = self.find(path)
            if found is None or not found.is_symlink():
                break
            path = os.path.normpath(os.path.join("/", os.path.dirname(path), os.readlink(found)))
        return path


@functools.lru_cache(maxsize=64)
def _libraries(image: Image) -> frozenset[str]:
    folders = ["/lib", "/usr/lib", "/usr/local/lib", "/lib64", "/usr/lib64"]
    folders += [f"/usr/lib/{name}" for name in image.names("/usr/lib") if name.endswith("-linux-gnu")]
    return frozenset(name for folder in folders for name in image.names(folder) if ".so" in name)


def _in_layers(lower: tuple[str, ...], name: str) -> Path | None:
    """The topmost file of a name in folders that lie over each other; None if a layer has removed it."""
    for layer in lower:
        path = Path(layer, name)
        if not os.path.lexists(path):
            continue
        info = os.lstat(path)
        return None if stat.S_ISCHR(info.st_mode) and info.st_rdev == 0 else path
    return None


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
