"""A Python package from an index: its library, tests and requirements.

Files are only read here; the code runs in the sandbox (:mod:`rollenv.plugins.forge.suite`). One exception:
``pip download`` runs the build script of a requirement; pass archives to avoid that.
"""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.needs import extra

with extra("forge", "Forging tasks"):
    from packaging.requirements import InvalidRequirement, Requirement

#: Folders that are not needed, or that may contain another copy of the library.
_SKIPPED = {"__pycache__", "build", "dist", "doc", "docs", "node_modules", "site-packages"}
_TEST_FOLDERS = {"test", "tests", "testing"}
_NO_LIBRARY = {"benchmark", "benchmarks", "bin", "example", "examples", "scripts", "tools", "tasks", *_TEST_FOLDERS}
_NO_MODULE = {"conftest.py", "fabfile.py", "noxfile.py", "setup.py", "tasks.py", "versioneer.py"}
#: Suffixes of files that are or contain another copy of a module.
_COPIES = {".bak", ".diff", ".egg", ".old", ".orig", ".patch", ".pyc", ".pyo", ".rej", ".save", ".swp", ".whl"}
#: Packages that pip and setuptools bundle, so that every machine with Python has the answer.
_BUNDLED = frozenset(
    """
    autocommand backportstarfile cachecontrol certifi chardet colorama dependencygroups distlib distro idna
    importlibmetadata importlibresources inflect jaracocollections jaracocontext jaracofunctools jaracotext
    moreitertools msgpack orderedset packaging pep517 pip pkgresources platformdirs pygments pyparsing pyprojecthooks
    requests resolvelib rich setuptools six tenacity tomli tomliw truststore typeguard typingextensions urllib3
    webencodings wheel zipp
    """.split()  # noqa: SIM905
)
#: Maximum number of files in an archive.
_MOST_FILES = 20_000
#: Maximum size of a project, and of a file in it, in bytes.
_MOST, _MOST_FILE = 64 << 20, 8 << 20


class BadPackage(RollenvError):
    """No task can be forged from a package."""


@dataclass(frozen=True)
class Package:
    """A project's files and metadata.

    Args:
        requires: requirements in its metadata, in pip's format, without extras.
        files: contents by path in the project.
        paths: import folders, relative to the project.
        libraries: the library's folders and modules, relative to the project.
    """

    name: str
    version: str
    licence: str
    requires: tuple[str, ...]
    files: dict[str, bytes]
    paths: tuple[str, ...]
    libraries: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"

    def of_library(self, path: str) -> bool:
        """Return whether a file belongs to the library and is not a test."""
        return any(path == one or path.startswith(f"{one}/") for one in self.libraries) and not is_test(path)

    @property
    def sources(self) -> dict[str, str]:
        """Return the library's modules that are valid text."""
        found = {}
        for path, data in self.files.items():
            if path.endswith(".py") and self.of_library(path):
                try:
                    found[path] = data.decode("utf-8")
                except UnicodeDecodeError:
                    continue
        return found


def load(what: str) -> Package:
    """Load a package.

    Args:
        what: an archive, an unpacked folder, or a requirement such as ``boltons==25.0.0``.

    Raises:
        BadPackage: it has no library or no tests, or cannot be downloaded or unpacked.
    """
    path = Path(what)
    if path.is_dir():
        return _read(path)
    with tempfile.TemporaryDirectory() as folder:
        if not path.is_file():
            if os.sep in what or what.endswith((".tar.gz", ".tgz", ".zip")):
                raise UsageError(f"there is no {what}: give an sdist, its unpacked folder, or a requirement")
            path = _download(what, Path(folder, "download"))
        return _read(_unpack(path, Path(folder, "unpacked", path.name.partition(".tar")[0].removesuffix(".zip"))))


def _download(requirement: str, folder: Path) -> Path:
    words = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-binary", ":all:", "--no-deps"]
    done = subprocess.run([*words, "--dest", str(folder), "--", requirement], capture_output=True, text=True)
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    if done.returncode or not found:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise BadPackage(f"pip could not fetch the source of {requirement}: {last}")
    return found[0]


def _unpack(archive: Path, folder: Path) -> Path:
    """Unpack an archive, and return the project's folder."""
    folder.mkdir(parents=True)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as file:
                _check_size(archive, (one.file_size for one in file.infolist()))
                file.extractall(folder)  # drops ".." and roots
        else:
            with tarfile.open(archive) as tar:
                _check_size(archive, (one.size for one in tar))
                tar.extractall(folder, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError, ValueError) as error:
        raise BadPackage(f"{archive} cannot be unpacked: {error}") from error
    inner = list(folder.iterdir())
    return inner[0] if len(inner) == 1 and inner[0].is_dir() else folder


def _check_size(archive: Path, sizes: Iterable[int]) -> None:
    size = 0
    for number, each in enumerate(sizes, 1):
        size += each
        if number > _MOST_FILES:
            raise BadPackage(f"{archive} has more than {_MOST_FILES} files")
    if size > _MOST:
        raise BadPackage(f"{archive} unpacks to {size >> 20} MiB; the forge takes at most {_MOST >> 20} MiB")


def _read(root: Path) -> Package:
    files = dict(_files(root))
    name, version, licence, requires = _metadata(root, files)
    both = [(base, found) for base in ("src/", "") if (found := _libraries(files, base, name))]
    own = [(base, found) for base, found in both if any(_plain(_stem(one)) == _plain(name) for one in found)]
    base, libraries = next(iter(own + both), ("", ()))
    if not libraries:
        raise BadPackage(f"{name} {version}: no library found in {root.name}, neither at its root nor in src/")
    tests = tuple(path for path in files if is_test(path) and _is_test_file(path))
    if not tests:
        raise BadPackage(f"{name} {version} carries no tests; forge needs an sdist with test_*.py files")
    paths = tuple(dict.fromkeys([base.rstrip("/") or ".", "."]))
    return Package(name, version, licence, requires, files, paths, libraries, tests)


def _files(root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield regular files, without links, which may lead anywhere."""
    total = 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            n for n in folders if n not in _SKIPPED and not n.endswith(".egg-info") and n[0] != "." and n.isprintable()
        )
        for path in (Path(folder, name) for name in sorted(names)):
            if path.is_symlink() or not path.is_file() or path.suffix in _COPIES or path.name.endswith("~"):
                continue
            if not path.name.isprintable():  # names that are not valid text, say
                continue
            if path.stat().st_size <= _MOST_FILE:
                data = path.read_bytes()
                total += len(data)
                if total > _MOST:
                    raise BadPackage(f"{root} holds more than {_MOST >> 20} MiB")
                yield path.relative_to(root).as_posix(), data


def is_bundled(name: str) -> bool:
    """Return whether pip or setuptools bundle a package."""
    return _plain(name) in _BUNDLED


def is_test(path: str) -> bool:
    """Return whether a file is a test, in a test folder or beside the library, or a conftest."""
    parts = PurePosixPath(path).parts
    alone = parts[-1] == "conftest.py" or (len(parts) == 1 and _is_test_file(path))
    return alone or bool(_TEST_FOLDERS & set(parts[:-1]))


def _is_test_file(path: str) -> bool:
    parts = PurePosixPath(path).parts
    outside = parts[0] in _NO_LIBRARY - _TEST_FOLDERS
    return not outside and bool(re.fullmatch(r"test_.*\.py|.*_test\.py|tests\.py", parts[-1]))


def _libraries(files: dict[str, bytes], base: str, name: str) -> tuple[str, ...]:
    inside = [path.removeprefix(base) for path in files if path.startswith(base)]
    folders = {p.split("/")[0] for p in inside if p.count("/") == 1 and p.endswith("/__init__.py")} - _NO_LIBRARY
    modules = {p for p in inside if "/" not in p and p.endswith(".py")} - _NO_MODULE
    modules = {p for p in modules if not _is_test_file(p)}
    own = {p for p in modules if _plain(p.removesuffix(".py")) == _plain(name)}
    chosen = folders | own or modules or _in_namespaces(inside)
    return tuple(base + one for one in sorted(chosen))


def _in_namespaces(paths: list[str]) -> set[str]:
    """Return packages in namespace folders, whose name many projects share, such as ``zope/interface``."""
    found = {
        path.removesuffix("/__init__.py") for path in paths if path.count("/") == 2 and path.endswith("/__init__.py")
    }
    return {path for path in found if not {*path.split("/")} & _NO_LIBRARY and path.split("/")[0] not in ("src", "lib")}


def _stem(library: str) -> str:
    return library.removeprefix("src/").removesuffix(".py")


def _plain(name: str) -> str:
    return re.sub(r"[-_./]+", "", name).lower()


def _metadata(root: Path, files: dict[str, bytes]) -> tuple[str, str, str, tuple[str, ...]]:
    """Return name, version, licence and requirements."""
    if "PKG-INFO" not in files:
        name, _, version = root.name.rpartition("-")
        return (name, version, "", ()) if name and version[:1].isdigit() else (root.name, "0", "", ())
    about = email.message_from_bytes(files["PKG-INFO"])
    try:
        every = [Requirement(str(one)) for one in about.get_all("Requires-Dist", [])]
    except InvalidRequirement as error:
        raise BadPackage(f"{root.name}: its metadata requires what cannot be read: {error}") from error
    requires = tuple(str(one) for one in every if "extra ==" not in str(one.marker))
    named = [one.split("::")[-1].strip() for one in about.get_all("Classifier", []) if one.startswith("License")]
    licence = about.get("License-Expression") or next(iter(named), "") or (about.get("License") or "").split("\n")[0]
    name, version = (re.sub(r"[^\w.+-]+", "-", str(about[key])).strip(".-") for key in ("Name", "Version"))
    return name, version, " ".join(str(licence).split())[:80], requires
