"""Root file systems for machines: the host's system, an unpacked one, and layers over them."""

from __future__ import annotations

import contextlib
import functools
import glob
import grp
import hashlib
import os
import platform
import pwd
import shutil
import stat
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rollenv.sandbox.errors import InvalidArgument
from rollenv.sandbox.inside.machine import HOSTNAME, HOSTS
from rollenv.sandbox.layers import made, store, unpack, whole

#: Folders of the host's system that a machine sees, each through an overlay.
SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/var/lib/dpkg",
    "/var/lib/apt/extended_states",
)
#: Settings of programs to copy from the host's /etc, without accounts, keys, passwords and addresses.
ETC = (
    "alternatives", "bash.bashrc", "bash_completion.d", "ca-certificates", "ca-certificates.conf", "debconf.conf",
    "debian_version", "dpkg", "ethertypes", "fonts", "gai.conf", "inputrc", "issue", "kernel",
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "libaudit.conf", "localtime", "login.defs", "lsb-release", "magic",
    "mailcap", "mime.types", "nanorc", "os-release", "pam.conf", "pam.d", "perl", "profile", "profile.d",
    "protocols", "python3", "python3.11", "python3.12", "python3.13", "rpc", "security", "services", "shells",
    "skel", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "vim", "wgetrc", "xattr.conf",
)  # fmt: skip
_ACCOUNTS = {
    0: "root", 1: "daemon", 2: "bin", 3: "sys", 4: "sync", 5: "games", 6: "man", 7: "lp", 8: "mail", 9: "news",
    10: "uucp", 13: "proxy", 33: "www-data", 34: "backup", 38: "list", 39: "irc", 65534: "nobody",
}  # fmt: skip
_GROUPS = {
    0: "root", 1: "daemon", 2: "bin", 3: "sys", 4: "adm", 5: "tty", 6: "disk", 7: "lp", 8: "mail", 9: "news",
    10: "uucp", 12: "man", 13: "proxy", 15: "kmem", 20: "dialout", 21: "fax", 22: "voice", 24: "cdrom", 25: "floppy",
    26: "tape", 27: "sudo", 29: "audio", 30: "dip", 33: "www-data", 34: "backup", 37: "operator", 38: "list",
    39: "irc", 40: "src", 42: "shadow", 43: "utmp", 44: "video", 45: "sasl", 46: "plugdev", 50: "staff", 60: "games",
    100: "users", 65534: "nogroup",
}  # fmt: skip
_FOLDERS = {
    "boot": 0o755, "dev": 0o755, "etc": 0o755, "home": 0o755, "media": 0o755, "mnt": 0o755, "opt": 0o755,
    "proc": 0o555, "root": 0o700, "run": 0o755, "srv": 0o755, "sys": 0o555, "tmp": 0o1777, "usr": 0o755,
    "var/backups": 0o755, "var/cache/apt/archives/partial": 0o755, "var/lib/apt/lists/partial": 0o755,
    "var/lib/dpkg": 0o755, "var/lib/misc": 0o755, "var/local": 0o755, "var/log/apt": 0o755, "var/mail": 0o775,
    "var/opt": 0o755, "var/spool": 0o755, "var/tmp": 0o1777,
}  # fmt: skip
_FILES = {
    "hosts": HOSTS, "hostname": f"{HOSTNAME}\n",
    "resolv.conf": "", "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n", "fstab": "",
    "subuid": "", "subgid": "", "environment": "", "machine-id": "0" * 32 + "\n",
}  # fmt: skip
#: Version in the key of the copied files, besides their contents.
_VERSION = "6"
#: Owners of files that differ from their packages; dpkg fails if one has no account.
_OVERRIDES = Path("/var/lib/dpkg/statoverride")


@functools.cache
def skeleton() -> Path:
    """Create a root without the system's folders, once for each state of the host's settings."""
    digest = hashlib.sha256(f"{_VERSION} {platform.machine()} {os.geteuid()}".encode())
    for name in ETC:
        for path in _below(f"/etc/{name}"):
            info = os.lstat(path)
            digest.update(os.fsencode(f"{path} {info.st_mode} {info.st_size} {info.st_mtime_ns}"))
    digest.update(_overrides().encode())
    target = store() / f"host-{digest.hexdigest()[:24]}"
    with made(target) as folder:
        if folder is not None:
            _write(folder / "root")
            (folder / "work/app").mkdir(parents=True)
            for name in ("root", "work", "work/app"):
                (folder / name).chmod(0o755)
            # Folders of /usr for new programs, for machines whose root does not own the host's.
            names = ["bin", "sbin", "libexec", "include", "share", "lib", "local"]
            names += [path[5:] for path in glob.glob("/usr/lib/*-linux-gnu") + glob.glob("/usr/lib/python3*")]
            names += ["lib/python3/dist-packages"]
            names += [path[5:] for path, _, _ in os.walk("/usr/local")]
            for name in names:
                if os.path.isdir(f"/usr/{name}") and not os.path.islink(f"/usr/{name}"):
                    (folder / "usr" / name).mkdir(parents=True, exist_ok=True)
    return target


def mounts(work: bool) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the overlays of a machine over the host; see :class:`images.Image`."""
    own = skeleton()
    shown = [path for path in SYSTEM if os.path.isdir(path) and not os.path.islink(path)]
    covers = {"/usr": (str(own / "usr"),)} if os.geteuid() != 0 else {}
    rest = (str(own / "work"),) if work else ()
    return (("", (*rest, str(own / "root"))), *((path, (*covers.get(path, ()), path)) for path in shown))


def _below(path: str) -> Iterator[str]:
    if not os.path.lexists(path):
        return
    yield path
    if os.path.isdir(path) and not os.path.islink(path):
        for name in sorted(os.listdir(path)):
            yield from _below(f"{path}/{name}")


def _write(root: Path) -> None:
    for name, mode in _FOLDERS.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name).chmod(mode)
    for path in SYSTEM:
        if os.path.islink(path):
            (root / path[1:]).symlink_to(os.readlink(path))
        elif os.path.isdir(path):
            (root / path[1:]).mkdir(parents=True, exist_ok=True)
    for name, target in {"var/run": "/run", "var/lock": "/run/lock"}.items():
        (root / name).symlink_to(target)
    (root / "run/lock").mkdir(mode=0o1777)
    for name in ETC:
        _copy(f"/etc/{name}", root / "etc" / name)
    # The usual users and groups, and those of :data:`_OVERRIDES`.
    users, groups = dict(_ACCOUNTS), dict(_GROUPS)
    for line in _overrides().splitlines():
        user, group, *_ = [*line.split(maxsplit=2), "", ""]
        with contextlib.suppress(KeyError):
            users.setdefault(pwd.getpwnam(user).pw_uid, user)
        with contextlib.suppress(KeyError):
            groups.setdefault(grp.getgrnam(group).gr_gid, group)
    homes, nowhere = {0: "/root:/bin/bash"}, "/nonexistent:/usr/sbin/nologin"
    accounts = {
        "passwd": "".join(
            f"{name}:x:{n}:{min(n, 65534)}:{name}:{homes.get(n, nowhere)}\n" for n, name in users.items()
        ),
        "group": "".join(f"{name}:x:{n}:\n" for n, name in groups.items()),
        "shadow": "".join(f"{name}:*:19000:0:99999:7:::\n" for name in users.values()),
        "gshadow": "".join(f"{name}:*::\n" for name in groups.values()),
    }
    for name, text in (_FILES | accounts).items():
        (root / "etc" / name).write_text(text)
        (root / "etc" / name).chmod(0o640 if "shadow" in name else 0o644)
    skeleton = root / "etc/skel"
    for name in (".bashrc", ".profile"):
        if (skeleton / name).is_file():
            shutil.copyfile(skeleton / name, root / "root" / name)


def _overrides() -> str:
    try:
        return _OVERRIDES.read_text()
    except OSError:
        return ""


def _copy(source: str, target: Path) -> None:
    """Copy a world-readable file or folder; links stay links."""
    info = os.lstat(source) if os.path.lexists(source) else None
    if info is None or target.exists() or target.is_symlink():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISLNK(info.st_mode):
        target.symlink_to(os.readlink(source))
    elif stat.S_ISDIR(info.st_mode):
        target.mkdir(exist_ok=True)
        for name in os.listdir(source):
            _copy(f"{source}/{name}", target / name)
    elif stat.S_ISREG(info.st_mode) and info.st_mode & stat.S_IROTH:
        shutil.copyfile(source, target)
        target.chmod(stat.S_IMODE(info.st_mode))


@dataclass(frozen=True)
class Image:
    """A root file system and how programs start in it.

    Attributes:
        mounts: mount point of each overlay ("" for the root, which is first) and its lower folders, top first.
        env: environment variables.
        workdir: working directory of programs.
        user: user of programs.
        shell: program and options that run a command line.
    """

    mounts: tuple[tuple[str, tuple[str, ...]], ...]
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    workdir: str = "/"
    user: str = "root"
    shell: tuple[str, ...] = ("/bin/sh", "-c")

    @classmethod
    def host(cls, work: bool = True) -> Image:
        """The host's programs and libraries, with new accounts, settings, homes and logs.

        Programs can read the host's /usr (with /bin, /lib ...), the list of its packages and the settings in
        :data:`ETC`, and nothing else.

        Args:
            work: add an empty folder ``/app``, which Docker's images do not have.
        """
        return cls(mounts(work))

    @classmethod
    def folder(cls, path: str | os.PathLike[str]) -> Image:
        """An unpacked root file system, such as one of debootstrap."""
        root = Path(path).absolute()
        if not any((root / name).is_dir() for name in ("usr", "bin")):
            raise InvalidArgument(f"{root} is not a root file system: it has neither usr nor bin")
        return cls((("", (str(root),)),))

    @classmethod
    def archive(cls, path: str | os.PathLike[str]) -> Image:
        """A root file system in an archive, such as one of ``docker export``, unpacked once into the cache."""
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        target = store() / "roots" / digest
        try:
            with made(target) as folder, tarfile.open(path) as archive:
                if folder is not None:
                    unpack(whole(archive), folder)
        except tarfile.TarError as error:
            raise InvalidArgument(f"{path} is not an archive of a root file system: {error}") from error
        return cls.folder(target)

    def over(self, layer: Path) -> Image:
        """Return the image with a layer on top."""
        mounts = []
        for i, (mount_point, lower) in enumerate(self.mounts):
            top = layer / str(i)
            mounts.append((mount_point, (str(top), *lower) if top.is_dir() else lower))
        return replace(self, mounts=tuple(mounts))

    def find(self, path: str) -> Path | None:
        """Return the host's file for a path of the image, or None. Links are not followed, not even to folders."""
        mounts = [mount for mount in self.mounts if f"{path}/".startswith(f"{mount[0]}/")]
        mount_point, lower = max(mounts, key=lambda mount: len(mount[0]), default=("", ()))
        for layer in lower:
            found = Path(layer, path[len(mount_point) :].strip("/"))
            if os.path.lexists(found):
                info = os.lstat(found)
                removed = stat.S_ISCHR(info.st_mode) and info.st_rdev == 0
                return None if removed else found
        return None

    def names(self, folder: str) -> set[str]:
        """Return the names in a folder of the image; links such as /bin are followed."""
        for _ in range(8):
            found = self.find(folder)
            if found is None or not found.is_symlink():
                break
            folder = os.path.normpath(os.path.join("/", os.path.dirname(folder), os.readlink(found)))
        return {
            name
            for mount_point, lower in self.mounts
            if f"{folder}/".startswith(f"{mount_point}/")
            for layer in lower
            for name in _listed(os.path.join(layer, folder[len(mount_point) :].strip("/")))
        }

    def has_library(self, name: str) -> bool:
        """Return whether a shared library is in a folder of the loader."""
        return name in _libraries(self)


@functools.lru_cache(maxsize=64)
def _libraries(image: Image) -> frozenset[str]:
    folders = ["/lib", "/usr/lib", "/usr/local/lib", "/lib64", "/usr/lib64"]
    folders += [f"/usr/lib/{name}" for name in image.names("/usr/lib") if name.endswith("-linux-gnu")]
    return frozenset(name for folder in folders for name in image.names(folder) if ".so" in name)


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
