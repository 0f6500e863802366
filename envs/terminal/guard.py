"""The filter of an agent's files for the grading machine: everything that cannot change the grading is copied.

An agent is root on its machine and may have replaced any program. The grading machine is fresh: it has the image's own
programs, and all files of the agent's machine except those listed here. One gap remains: the agent's code that the
tests run (by an import, say) has the permissions of the tests.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from rollenv.envs.terminal.runners import Runners, top_level
from rollenv.sandbox import Image, Machine
from rollenv.sandbox.offline import OURS

#: Folders with the grader's own files.
_OURS = ("/tests", "/solution", "/logs/verifier", *OURS)
#: System folders, where the image's files are never replaced.
_SYSTEM = re.compile(r"^/(usr|bin|sbin|lib\w*)(/|$)")
_PATHS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_STARTUP = re.compile(r"^(site|user)customize(\.|$)")
_SITE = re.compile(r"/(?:site|dist)-packages/([^/]+)")
#: Python's standard library, which precedes installed packages, so that no new files are accepted.
_STANDARD = re.compile(r"/lib(64)?/python[\d.]*(\.zip)?(/|$)")
#: Configuration of shells, the loader and installers.
_ETC = re.compile(
    r"^/etc/(ld\.so\.(preload|cache|conf)(\.d)?|profile(\.d)?|bash\.bashrc|bash_completion\.d|environment|zsh\w*|"
    r"inputrc|pip\.conf|xdg|uv|apt|dpkg|alternatives|wgetrc|curlrc|gitconfig|python[\d.]*|pam\.d|security|"
    r"nsswitch\.conf|ssl/openssl\.cnf|gss|npmrc|perl|login\.defs|default/su|sudo\.conf)(/|$)"
)
_HOME = re.compile(
    r"/(\.bashrc|\.bash_\w+|\.profile|\.zsh\w*|\.zprofile|\.pam_environment|\.inputrc|\.pydistutils\.cfg|\.pip|\.pypirc|"
    r"\.config/(pip|uv)|\.curlrc|\.wgetrc|\.netrc|\.jq|\.sqliterc|\.local/share/uv|\.cache/(uv|pip))(/|$)"
)
#: Files that map names to ids.
_ACCOUNTS = frozenset({"/etc/passwd", "/etc/group"})
#: Folders above programs, packages and settings of a home, and above the reward: links there would bypass these rules.
_WAYS = re.compile(
    r"^/(root|home/[^/]+)/\.(local(/(bin|lib(/python[\d.]*)?|share(/uv)?))?|config(/(pip|uv))?|cache(/(pip|uv))?)$|"
    r"^/logs(/agent|/artifacts)?$"
)
_COMPILED = re.compile(r"/__pycache__(/|$)|\.pyc$")
_LIBRARY = re.compile(r"\.so(\.[\d.]+)?$")
#: Files that configure pytest, and sections of shared files that do.
_PYTEST = frozenset({"conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"})
_SECTIONS = {"tox.ini": b"[pytest]", "setup.cfg": b"[tool:pytest]"}
#: Files of a uv project.
_PROJECT = frozenset({"pyproject.toml", "uv.lock", "uv.toml", ".python-version"})
_MOST = 1 << 20


class FileGuard:
    """The filter for :meth:`Machine.commit`.

    Args:
        tests: names of the tests' files, which they may copy beside the agent's work.
    """

    def __init__(self, image: Image, runners: Runners | None = None, tests: Iterable[str] = ()):
        self.image, self.runners = image, runners or Runners()
        self.tests = {name for name in tests if "." in name}
        found = [*_PATHS, *filter(None, image.env.get("PATH", "").split(":"))]
        self.paths = dict.fromkeys(os.path.normpath(path) for path in found)
        self.programs = {name for folder in self.paths for name in image.names(folder)}
        self.prefixes = self._prefixes()
        self.packages = {top_level(name) for folder in self._sites() for name in image.names(folder)}
        self.searched = {os.path.normpath(path) for path in image.env.get("PYTHONPATH", "").split(":") if path}
        self.left_out: list[str] = []
        """Paths that were dropped."""
        self._closed: set[str] = set()  # folders that were dropped

    def _prefixes(self) -> tuple[str, ...]:
        """Return the prefixes of Pythons outside the system folders, such as a virtual environment on the PATH."""
        found = [path.rpartition("/")[0] for path in self.paths if not _SYSTEM.match(path)]
        found.append(f"{self.image.workdir.rstrip('/')}/.venv")
        return tuple(each for each in found if each and "python3" in self.image.names(f"{each}/bin"))

    def _sites(self) -> Iterator[str]:
        for prefix in ("/usr", "/usr/local", *self.prefixes):
            for name in self.image.names(f"{prefix}/lib"):
                if name.startswith("python"):
                    yield from (f"{prefix}/lib/{name}/{kind}-packages" for kind in ("site", "dist"))

    def __call__(self, path: str, member: tarfile.TarInfo, contents: IO[bytes] | None) -> bool:
        kept = path.rpartition("/")[0] not in self._closed and self._keeps(path, member, contents)
        if not kept:
            self.left_out.append(path)
            self._closed.add(path)
        elif self._is_system(path) and member.isdir() and self.image.find(path) is not None:
            member.pax_headers = {}  # a system folder must not hide the image's files in it
        return kept

    def _is_system(self, path: str) -> bool:
        parts = [path[len(prefix) + 1 :] for prefix in self.prefixes if path.startswith(f"{prefix}/")]
        return bool(_SYSTEM.match(path)) or any(part == "pyvenv.cfg" or part[:3] in ("bin", "lib") for part in parts)

    def _keeps(self, path: str, member: tarfile.TarInfo, contents: IO[bytes] | None) -> bool:
        # The first rule that returns for a path decides, and some rules return "keep" too: a stricter rule for the same
        # path must stand above them. So first comes what is refused wherever it is: the grader's folders, files that
        # Python or pytest load from any folder, and members whose kind would divert what is copied later (links on the
        # ways to programs, a folder in place of a test, a file in place of a folder). Then packages, since the system
        # folders below, which accept new files, hold most of them. Then settings of the system and of homes, and
        # programs on the PATH. The project's own files come last, because what no rule names is kept.
        if any(f"{path}/".startswith(f"{ours}/") for ours in _OURS):
            return False
        name = path.rpartition("/")[2]
        before = self.image.find(path)
        if tells_runners(name) or "__pycache__/sitecustomize" in path:
            return False
        if name in self.tests and not member.isreg() and not (before is not None and before.is_dir()):
            return False  # a folder or link there would prevent a copy of the tests
        if not member.isdir() and (_WAYS.match(path) or name in ("site-packages", "dist-packages")):
            return False
        if before is not None and stat.S_ISDIR(os.lstat(before).st_mode) and not member.isdir():
            return path.count("/") > 2 and not self._is_system(path)  # /app, homes and system folders stay folders
        if (site := _SITE.search(path)) and not self._package(site[1], name, contents):
            return False
        if self._is_system(path):
            return self._of_system(path, name, member, before is not None)
        if path in _ACCOUNTS and _renumbers_accounts(_read(contents), before):
            return False
        if _ETC.match(path) or (_HOME.search(path) and path.startswith(("/root/", "/home/"))):
            return False
        if "/.local/bin/" in path or path.rpartition("/")[0] in self.paths:
            return name not in self.programs and not self.runners.runs(name)
        if self._tells_pytest(path, name, contents):
            return False
        return before is not None or not self._hides(path, name, member)

    def _of_system(self, path: str, name: str, member: tarfile.TarInfo, was_there: bool) -> bool:
        """Return whether to keep a file in a system folder: a new one that hides nothing."""
        if _COMPILED.search(path):
            return False  # Python would trust it without checking the source
        site = _SITE.search(path)
        if member.isdir():
            return "glibc-hwcaps" not in path
        if was_there:
            return bool(site)  # a reinstalled package
        if name == "pyvenv.cfg" or name.endswith("._pth") or (_STANDARD.search(path) and not site):
            return False
        if path.rpartition("/")[0] in self.paths:
            return name not in self.programs and not self.runners.runs(name)
        if _LIBRARY.search(name):
            return "glibc-hwcaps" not in path and not self.image.has_library(name)
        return True

    def _package(self, top: str, name: str, contents: IO[bytes] | None) -> bool:
        """Return whether to keep an installed package: not if test runners, tests or Python's startup load it."""
        if self.runners.loads(top, top_level(top) in self.packages):
            return False
        if name.endswith(".pth") or name == "entry_points.txt":
            text = _read(contents)
            return text is not None and not re.search(rb"^\s*import\b|pytest11", text, re.MULTILINE)
        return not name.endswith(".egg-link")

    def _tells_pytest(self, path: str, name: str, contents: IO[bytes] | None) -> bool:
        if name == "pyproject.toml":
            before = self.image.find(path)
            old = before.read_bytes() if before and before.is_file() and not before.is_symlink() else b""
            return bool(_settings(_read(contents)) != _settings(old))
        section, text = _SECTIONS.get(name), _read(contents)
        return section is not None and (text is None or section in text)

    def _hides(self, path: str, name: str, member: tarfile.TarInfo) -> bool:
        """Return whether a new file shadows a test runner or one of its files."""
        folder, stem = path.rpartition("/")[0], name.partition(".")[0]
        if stem in ("pytest", "_pytest", "pluggy", "iniconfig"):
            return True
        made = self.runners.environments | (_PROJECT if self.runners.project else frozenset())
        if name in made and f"{self.image.workdir.rstrip('/')}/".startswith(f"{folder}/"):
            return True
        if not member.isdir() and not name.endswith((".py", ".pyc", ".so")):
            return False
        working = path.count("/") == 2 or folder == self.image.workdir
        if self.runners.modules and working and stem in sys.stdlib_module_names:
            return True
        if folder not in self.searched and not (working and (self.runners.modules or self.runners.inline)):
            return False
        return self.runners.loads(stem, stem.lower() in self.packages)


def _read(contents: IO[bytes] | None) -> bytes | None:
    """Return a file's text with normalised line ends; None if it is not a file, or too large."""
    text = None if contents is None else contents.read(_MOST + 1)
    return None if text is None or len(text) > _MOST else text.replace(b"\r", b"\n")


def _settings(text: bytes | None) -> Any:
    """Return pytest's settings in a pyproject.toml; an unreadable file is unequal to any other."""
    try:
        tool = tomllib.loads("" if text is None else text.decode()).get("tool", {})
        return object() if text is None else tool.get("pytest")
    except (ValueError, AttributeError, RecursionError):
        return object()


def _renumbers_accounts(text: bytes | None, before: Path | None) -> bool:
    """Return whether system users or groups have new ids, as tests may run programs as them."""
    if text is None:
        return True
    old = before.read_bytes() if before and before.is_file() and not before.is_symlink() else b""
    new = _numbers(text)
    return any(
        new.get(name, numbers) != numbers
        for name, numbers in _numbers(old).items()
        if not (numbers[0].isdigit() and 1000 <= int(numbers[0]) < 60000)  # accounts of people may change
    )


def _numbers(text: bytes) -> dict[bytes, list[bytes]]:
    """Return the ids of accounts by name; the first line with a name counts."""
    lines = [line.split(b":") for line in reversed(text.splitlines()) if line.count(b":") >= 3]
    return {fields[0]: fields[2 : 4 if len(fields) > 4 else 3] for fields in lines}


def tells_runners(name: str) -> bool:
    """Return whether a file with this name configures Python or pytest, in any folder."""
    return name in _PYTEST or _STARTUP.match(name) is not None


def tampered(machine: Machine) -> list[str]:
    """Return the agent's changes that a grader on its machine would run or load: programs, libraries, settings.

    Compiled Python modules are ignored: set ``PYTHONPYCACHEPREFIX`` for graders to a folder without any.
    """
    guard, found = FileGuard(machine.image), []
    with tempfile.TemporaryFile() as file:
        machine.pack(file)
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:") as packed:
            for member in packed:
                index, _, name = member.name.partition("/")
                path = f"{machine.image.mounts[int(index)][0]}/{name}"
                contents = packed.extractfile(member) if member.isreg() else None
                ours = (_SYSTEM.match(path) or _ETC.match(path)) and not _COMPILED.search(path)
                if name and ours and not guard(path, member, contents):
                    found.append(path)
    return found
