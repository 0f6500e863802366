"""Layers of machines: the files that were written in one, unpacked into a folder of the host for each overlay.

The contents of layers are untrusted, so only their owner may access the folder of layers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from rollenv.sandbox.errors import InvalidArgument
from rollenv.sandbox.inside.files import OPAQUE, PAX_OPAQUE

#: Prefix of an incomplete folder's name, and the minimum age in seconds for its removal.
_UNFINISHED, _YOUNG = ".made-", 60.0
#: Folders with contents that can be recreated, and the seconds after which unused contents are removed.
_CACHES, _UNUSED = ("layers", "roots"), 30 * 86400.0


def store() -> Path:
    """Return the folder of layers and unpacked roots: ``$ROLLENV_CACHE/machines``, else below ``~/.cache/rollenv``."""
    root = _cache() / "machines"
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o700)  # a file in it may be set-user-id, and it comes from untrusted code
    return root


def _cache() -> Path:
    """Return the folder of rollenv's cache; where no home can be written, one of this user's in /tmp."""
    named = os.environ.get("ROLLENV_CACHE")
    folder = Path(os.path.expanduser(named or "~/.cache/rollenv"))
    there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    if named or (folder.is_absolute() and there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        return folder
    folder = Path(tempfile.gettempdir(), f"rollenv-cache-{os.geteuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if about.st_uid != os.geteuid() or about.st_mode & 0o077:
        raise InvalidArgument(f"{folder} is open to other users; set ROLLENV_CACHE to a folder of yours")
    return folder


@contextlib.contextmanager
def made(target: Path) -> Iterator[Path | None]:
    """Yield a new folder that becomes ``target`` after the block; None if that exists. Processes may race."""
    if target.exists():
        with contextlib.suppress(OSError):  # it may belong to another user
            os.utime(target)
        yield None
        return
    with temporary(target.parent) as folder:
        yield folder
        folder.chmod(0o755)
        with contextlib.suppress(OSError):  # another process was faster
            folder.rename(target)


@contextlib.contextmanager
def temporary(parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder that is removed afterwards. The next caller removes folders of killed processes."""
    parent = parent or store() / "layers"
    parent.mkdir(parents=True, exist_ok=True)
    # Remove incomplete folders of killed processes, and folders that have long been unused.
    for folder in parent.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_ctime > _YOUNG:
                with _lock_folder(folder):
                    remove(folder)
    for folder in parent.iterdir() if parent.name in _CACHES else ():
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _UNUSED:
                remove(folder.rename(folder.with_name(f"{_UNFINISHED}{folder.name}")))
    folder = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=parent))
    with _lock_folder(folder):
        try:
            yield folder
        finally:
            remove(folder)


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder during the block."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


#: An entry of an archive, the archive, and its name in the layer.
Entry = tuple[tarfile.TarInfo, tarfile.TarFile, str]
#: Decides whether a path of the machine is kept in a layer, by its entry and contents.
Keep = Callable[[str, tarfile.TarInfo, IO[bytes] | None], bool]


def whole(archive: tarfile.TarFile) -> Iterator[Entry]:
    """Iterate over all entries of an archive, under their own names."""
    for member in archive:
        yield member, archive, member.name


def layer_of(archive: IO[bytes], folder: Path, mount_points: Sequence[str], keep: Keep | None = None) -> None:
    """Unpack the files that a machine has written into a folder, which becomes a layer.

    Args:
        mount_points: mount points of the machine's overlays, the root's ("") first.
    """

    def entries() -> Iterator[Entry]:
        dropped: set[str] = set()
        with tarfile.open(fileobj=archive, mode="r:") as packed:
            for member in packed:
                index, _, name = member.name.partition("/")
                if not index.isdecimal() or int(index) >= len(mount_points):
                    continue
                path = f"{mount_points[int(index)]}/{name}"
                if name and keep is not None:
                    contents = packed.extractfile(member) if member.isreg() else None
                    if (member.islnk() and member.linkname in dropped) or not keep(path, member, contents):
                        dropped.add(member.name)
                        continue
                yield member, packed, member.name

    unpack(entries(), folder)


def unpack(entries: Iterator[Entry], folder: Path) -> None:
    """Unpack files, folders, links and removals; no name in the archive leads out of the folder.

    Owners and set-user-id bits are kept if this process has the permission.
    """
    times: list[tuple[Path, float]] = []
    parent: Path | None = None  # the parent folder that was checked last
    for member, archive, name in entries:
        parts = [part for part in PurePosixPath(name).parts if part not in ("/", ".")]
        if ".." in parts or not parts:
            continue
        target = folder.joinpath(*parts)
        if target.parent != parent:
            parent = None
            if not _is_real(folder, target.parent):
                continue
            parent = target.parent
        _unpack_one(member, archive, target, folder)
        if member.isdir():
            times.append((target, member.mtime))
    for target, mtime in reversed(times):
        with contextlib.suppress(OSError):
            os.utime(target, (mtime, mtime), follow_symlinks=False)


def _is_real(folder: Path, parent: Path) -> bool:
    """Return whether all parents are folders and not links; missing ones are created."""
    current = folder
    for part in parent.relative_to(folder).parts:
        current /= part
        if not os.path.lexists(current):
            current.mkdir()
        elif not stat.S_ISDIR(os.lstat(current).st_mode):
            return False
    return True


def _unpack_one(member: tarfile.TarInfo, archive: tarfile.TarFile, target: Path, folder: Path) -> None:
    """Write a member at its target, whose parents are real folders, in the place of what is there.

    A symbolic link may point anywhere: it is resolved inside the machine only, and nothing is written through it. A
    hard link is made here, so its source must be a file of this layer.
    """
    if os.path.lexists(target) and not (member.isdir() and target.is_dir() and not target.is_symlink()):
        shutil.rmtree(target) if target.is_dir() and not target.is_symlink() else target.unlink()
    if member.isdir():
        target.mkdir(exist_ok=True)
    elif member.issym():
        target.symlink_to(member.linkname)
    elif member.islnk():
        source = folder.joinpath(*(p for p in PurePosixPath(member.linkname).parts if p not in ("/", "..", ".")))
        if source.is_file() and not source.is_symlink() and _is_real(folder, source.parent):
            os.link(source, target)
        return
    elif member.isreg():
        _write_file(member, archive, target)
    elif member.isfifo():
        os.mkfifo(target)
    elif member.ischr() and (member.devmajor, member.devminor) == (0, 0):
        os.mknod(target, stat.S_IFCHR | 0o600, os.makedev(0, 0))  # overlayfs's whiteout: a removed path
        return
    else:
        return  # machines may not create devices
    if not member.issym():
        _set_attributes(member, target)
    with contextlib.suppress(PermissionError):
        os.chown(target, member.uid, member.gid, follow_symlinks=False)
    if not member.issym():
        target.chmod(member.mode & 0o7777)
    with contextlib.suppress(OSError):
        os.utime(target, (member.mtime, member.mtime), follow_symlinks=False)


def _write_file(member: tarfile.TarInfo, archive: tarfile.TarFile, target: Path) -> None:
    """Write a regular file, with the holes of a sparse one."""
    contents = archive.extractfile(member)
    assert contents is not None
    with open(target, "xb") as file:
        for start, length in member.sparse if member.issparse() else [(0, member.size)]:  # type: ignore[misc, union-attr]
            contents.seek(start)
            file.seek(start)
            while length > 0 and (piece := contents.read(min(length, 1 << 20))):
                file.write(piece)
                length -= len(piece)
        file.truncate(member.size)


def _set_attributes(member: tarfile.TarInfo, target: Path) -> None:
    """Set a user's extended attributes, and that of an opaque folder; not overlayfs's others, which redirect paths."""
    for key, value in member.pax_headers.items():
        name = key.removeprefix("SCHILY.xattr.")
        data = value.encode("utf-8", "surrogateescape")
        if key == PAX_OPAQUE and value == "y":
            os.setxattr(target, OPAQUE, b"y")
        elif name != key and name.startswith("user.") and not name.startswith("user.overlay."):
            with contextlib.suppress(OSError):
                os.setxattr(target, name, data, follow_symlinks=False)


def remove(folder: Path) -> None:
    """Remove a layer, whatever the permissions of its folders."""
    for path, _, _ in os.walk(folder):
        os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
