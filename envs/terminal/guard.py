"""The part of an agent's work that goes to the grading machine: everything that does not change the grading.

An agent is root of its machine and may have replaced any program. The grading machine is a fresh one: it has the
image's own programs, and of the agent's machine all files that are not listed here. One gap remains: code of
the agent that the tests themselves run (they import it, say) has the tests' rights while it runs.
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

#: Folders of a grader's own files.
_OURS = ("/tests", "/solution", "/logs/verifier", *OURS)
#: Folders of the system: what the image has there stays as it is.
_SYSTEM = re.compile(r"^/(usr|bin|sbin|lib\w*)(/|$)")
_PATHS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_STARTUP = re.compile(r"^(site|user)customize(\.|$)")
_SITE = re.compile(r"/(?:site|dist)-packages/([^/]+)")
#: Python's own modules: they come before installed ones, so nothing new belongs there.
_STANDARD = re.compile(r"/lib(64)?/python[\d.]*(\.zip)?(/|$)")
#: Settings of shells, the loader and installers.
_ETC = re.compile(
    r"^/etc/(ld\.so\.(preload|cache|conf)(\.d)?|profile(\.d)?|bash\.bashrc|bash_completion\.d|environment|zsh\w*|"
    r"inputrc|pip\.conf|xdg|uv|apt|dpkg|alternatives|wgetrc|curlrc|gitconfig|python[\d.]*|pam\.d|security|"
    r"nsswitch\.conf|ssl/openssl\.cnf|gss|npmrc|perl|login\.defs|default/su|sudo\.conf)(/|$)"
)
_HOME = re.compile(
    r"/(\.bashrc|\.bash_\w+|\.profile|\.zsh\w*|\.zprofile|\.pam_environment|\.inputrc|\.pydistutils\.cfg|\.pip|\.pypirc|"
    r"\.config/(pip|uv)|\.curlrc|\.wgetrc|\.netrc|\.jq|\.sqliterc|\.local/share/uv|\.cache/(uv|pip))(/|$)"
)
#: Files that map names to numbers.
_ACCOUNTS = frozenset({"/etc/passwd", "/etc/group"})
#: Folders on the way to programs, packages and settings of a home, and to the reward: links there would lead around
#: these rules.
_WAYS = re.compile(
    r"^/(root|home/[^/]+)/\.(local(/(bin|lib(/python[\d.]*)?|share(/uv)?))?|config(/(pip|uv))?|cache(/(pip|uv))?)$|"
    r"^/logs(/agent|/artifacts)?$"
)
_COMPILED = re.compile(r"/__pycache__(/|$)|\.pyc$")
_LIBRARY = re.compile(r"\.so(\.[\d.]+)?$")
#: Files that tell pytest what to do, and sections of others that do.
_PYTEST = frozenset({"conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"})
_SECTIONS = {"tox.ini": b"[pytest]", "setup.cfg": b"[tool:pytest]"}
#: Files of a project of uv's.
_PROJECT = frozenset({"pyproject.toml", "uv.lock", "uv.toml", ".python-version"})
_MOST = 1 << 20


class Guard:
    """Decides which files of an agent's machine are kept; see :meth:`Machine.commit`.

    Args:
        image: that the agent began with.
        runners: what the tests run and load.
        tests: names of their files, which they may copy to where the work is.
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
        """Paths that were not kept."""
        self._closed: set[str] = set()  # folders that were not

    def _prefixes(self) -> tuple[str, ...]:
        """Return the folders of Pythons outside of the system's, such as a virtual environment on the PATH."""
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
            member.pax_headers = {}  # a folder of the system does not hide what the image has in it
        return kept

    def _is_system(self, path: str) -> bool:
        parts = [path[len(prefix) + 1 :] for prefix in self.prefixes if path.startswith(f"{prefix}/")]
        return bool(_SYSTEM.match(path)) or any(part == "pyvenv.cfg" or part[:3] in ("bin", "lib") for part in parts)

    def _keeps(self, path: str, member: tarfile.TarInfo, contents: IO[bytes] | None) -> bool:
        if any(f"{path}/".startswith(f"{ours}/") for ours in _OURS):
            return False
        name = path.rpartition("/")[2]
        before = self.image.find(path)
        if tells_runners(name) or "__pycache__/sitecustomize" in path:
            return False
        if name in self.tests and not member.isreg() and not (before is not None and before.is_dir()):
            return False  # a folder or a link there would keep a copy of the tests away
        if not member.isdir() and (_WAYS.match(path) or name in ("site-packages", "dist-packages")):
            return False
        if before is not None and stat.S_ISDIR(os.lstat(before).st_mode) and not member.isdir():
            return path.count("/") > 2 and not self._is_system(path)  # /app, a home or a system's folder stays a folder
        if (site := _SITE.search(path)) and not self._package(site[1], name, contents):
            return False
        if self._is_system(path):
            return self._of_system(path, name, member, before is not None)
        if path in _ACCOUNTS and _renumbered(_read(contents), before):
            return False
        if _ETC.match(path) or (_HOME.search(path) and path.startswith(("/root/", "/home/"))):
            return False
        if "/.local/bin/" in path or path.rpartition("/")[0] in self.paths:
            return name not in self.programs and not self.runners.runs(name)
        if self._tells_pytest(path, name, contents):
            return False
        return before is not None or not self._hides(path, name, member)

    def _of_system(self, path: str, name: str, member: tarfile.TarInfo, was_there: bool) -> bool:
        """Keep new files there unless they hide something; the image's own stay."""
        if _COMPILED.search(path):
            return False  # Python believes it without looking at the source
        site = _SITE.search(path)
        if member.isdir():
            return "glibc-hwcaps" not in path
        if was_there:
            return bool(site)  # a package that was installed again
        if name == "pyvenv.cfg" or name.endswith("._pth") or (_STANDARD.search(path) and not site):
            return False
        if path.rpartition("/")[0] in self.paths:
            return name not in self.programs and not self.runners.runs(name)
        if _LIBRARY.search(name):
            return "glibc-hwcaps" not in path and not self.image.has_library(name)
        return True

    def _package(self, top: str, name: str, contents: IO[bytes] | None) -> bool:
        """Installed packages are kept, but none that test runners, the tests or Python's start load."""
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
        """Return whether a new file replaces a test runner, or a file that the runner looks for first."""
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
    """A file's text with lines as Python reads them; None if it is not a file, or too large to look through."""
    text = None if contents is None else contents.read(_MOST + 1)
    return None if text is None or len(text) > _MOST else text.replace(b"\r", b"\n")


def _settings(text: bytes | None) -> Any:
    """Return pytest's settings in a pyproject.toml; an unreadable file differs from every other."""
    try:
        tool = tomllib.loads("" if text is None else text.decode()).get("tool", {})
        return object() if text is None else tool.get("pytest")
    except (ValueError, AttributeError, RecursionError):
        return object()


def _renumbered(text: bytes | None, before: Path | None) -> bool:
    """Return whether the system's users or groups have new numbers: tests may run programs as them."""
    if text is None:
        return True
    old = before.read_bytes() if before and before.is_file() and not before.is_symlink() else b""
    new = _numbers(text)
    return any(
        new.get(name, numbers) != numbers
        for name, numbers in _numbers(old).items()
        if not (numbers[0].isdigit() and 1000 <= int(numbers[0]) < 60000)  # people's may be changed
    )


def _numbers(text: bytes) -> dict[bytes, list[bytes]]:
    """The numbers of accounts by name; of several lines with a name the first counts."""
    lines = [line.split(b":") for line in reversed(text.splitlines()) if line.count(b":") >= 3]
    return {fields[0]: fields[2 : 4 if len(fields) > 4 else 3] for fields in lines}


def tells_runners(name: str) -> bool:
    """Return whether a file of this name configures Python or pytest, in any folder."""
    return name in _PYTEST or _STARTUP.match(name) is not None


def tampered(machine: Machine) -> list[str]:
    """Return the agent's changes that a grader on its machine would run or load: programs, libraries, settings.

    Python's compiled modules are written in passing: give graders a ``PYTHONPYCACHEPREFIX`` where none can be.
    """
    guard, found = Guard(machine.image), []
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
