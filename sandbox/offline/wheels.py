"""A folder of wheels, filled by the host's pip with what scripts will ask for."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rollenv.sandbox.layers import store

_log = logging.getLogger(__name__)

#: What tests are commonly set up with.
ALWAYS = ("pip", "setuptools", "wheel", "uv", "pytest")
_REQUIREMENT = re.compile(
    r"^[A-Za-z0-9][\w.-]*(\[[\w,-]+\])?((===|[=<>!~]=|[<>])[\w.*+!-]+(,\s*([=<>!~]=|[<>])[\w.*]+)*)?$"
)
#: Options whose value is no requirement, and those whose value is one.
_VALUES = frozenset(
    {"-r", "--requirement", "-c", "--constraint", "-e", "--editable", "-p", "--python", "-i", "--index-url"}
)
_VALUES_TOO = frozenset(
    {"--extra-index-url", "-f", "--find-links", "-t", "--target", "--prefix", "--root", "-d", "--group"}
)
_WITH = frozenset({"--with", "-w", "--from"})
#: A list of requirements, and an installation of a folder.
_LISTS = re.compile(r"\s(?:-r|--requirements?)[\s=]*([^\s;&|]+)")
_PROJECTS = re.compile(
    r"\bpip[\d.]* install\b[^\n;&|]*\s['\"]?\.{1,2}/?[\w./]*(\[|['\"]?(\s|$))|\buv sync\b", re.MULTILINE
)
_SECONDS = 300.0


class Wheels:
    """Wheels for one version of Python.

    Args:
        folder: where they are; by default in the cache.
        python: version, such as ``3.11``; by default that of the host's system.
        fetch: whether missing ones are downloaded, by the host's pip with its settings. Only wheels are: nothing of a
            package runs.
    """

    def __init__(self, folder: Path | None = None, *, python: str | None = None, fetch: bool = True):
        self.python, self.fetch = python or system_python(), fetch
        self.folder = folder or store() / f"wheels-{self.python}"
        self.folder.mkdir(parents=True, exist_ok=True)

    def ensure(self, wanted: Sequence[str]) -> list[str]:
        """Fetch what is not there; return what could not be had."""
        lacking: list[str] = []
        names = [*wanted, *self._elsewhere()] if self.fetch else list(wanted)
        while names := [each for each in dict.fromkeys(names) if each not in lacking and not self._mark(each).exists()]:
            if not self.fetch:
                return names
            # One by one where it fails together, lest one bad name keeps the others out.
            if self._download(names):
                lacking += [each for each in names if self._download([each])]
            names = self._elsewhere()
        return [each for each in lacking if each in wanted]

    def _elsewhere(self) -> list[str]:
        """Return the requirements of the wheels on other systems and Pythons: uv locks for all of them."""
        found: dict[str, None] = {}
        for wheel in self.folder.glob("*.whl"):
            with contextlib.suppress(OSError, zipfile.BadZipFile, StopIteration), zipfile.ZipFile(wheel) as archive:
                name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
                for line in archive.read(name).decode("utf-8", "replace").partition("\n\n")[0].splitlines():
                    need, _, marker = line.removeprefix("Requires-Dist:").partition(";")
                    if line.startswith("Requires-Dist:") and marker and "extra" not in marker:
                        found[re.sub(r"[()\s]", "", need)] = None
        return list(found)

    def _download(self, wanted: list[str]) -> str:
        """Download; what went wrong, if anything did."""
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
        command += ["--only-binary=:all:", "--python-version", self.python, "--dest", str(self.folder), *wanted]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            return "it took too long"
        if done.returncode:
            _log.debug("pip download %s: %s", wanted, done.stderr.strip()[-500:])
            return done.stderr.strip()[-500:] or "pip failed"
        for each in wanted:
            self._mark(each).touch()
        return ""

    def _mark(self, wanted: str) -> Path:
        return self.folder / f".has-{hashlib.sha256(wanted.encode()).hexdigest()[:16]}"

    def find(self, name: str) -> Path | None:
        """The newest wheel of a package."""
        found = self.folder.glob(f"{name.replace('-', '_')}-*.whl")
        return max(found, key=lambda path: path.stat().st_mtime, default=None)


@functools.cache
def system_python() -> str:
    """The version of the host's /usr/bin/python3; this Python's where there is none."""
    try:
        said = subprocess.run(["/usr/bin/python3", "-V"], capture_output=True, text=True).stdout
    except OSError:
        said = ""
    match = re.match(r"Python (\d+\.\d+)", said)
    return match[1] if match else f"{sys.version_info[0]}.{sys.version_info[1]}"


def requirements(script: str) -> list[str]:
    """The packages that a shell script or Dockerfile installs with pip, uv or uvx."""
    return list(dict.fromkeys(name for words in commands(script) for name in _of_command(words)))


def with_files(script: str, folders: Iterable[Path]) -> Iterator[str]:
    """A script, and what the files say that it installs from: lists of requirements, and projects.

    Args:
        script: of the shell, or a Dockerfile.
        folders: where such files may be.
    """
    yield script
    names = {Path(name.strip("\"'")).name for name in _LISTS.findall(script)}
    names |= {"pyproject.toml"} if _PROJECTS.search(script) else set()
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.name in names):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            text = path.read_text()
            if path.name == "pyproject.toml":
                project = tomllib.loads(text)
                needed = project.get("build-system", {}).get("requires", [])
                text = "\n".join([*needed, *project.get("project", {}).get("dependencies", [])])
            for line in text.splitlines():
                yield "pip install " + re.sub(r"\s*([=<>!~,]+)\s*", r"\1", line.partition(";")[0])


def commands(script: str) -> Iterator[list[str]]:
    """The words of each command of a shell script or Dockerfile, roughly."""
    for line in re.sub(r"\\\n", " ", script).splitlines():
        for command in re.split(r"&&|\|\||[;|]", line):
            try:
                yield shlex.split(command, comments=True)
            except ValueError:
                yield command.split()


def _of_command(words: list[str]) -> list[str]:
    for i, word in enumerate(words):
        name, after = word.rpartition("/")[2], words[i + 1 :]
        if re.fullmatch(r"pip[\d.]*", name) and "install" in after[:4]:
            return _listed(after[after.index("install") + 1 :])
        if name == "uvx":
            return _listed(after, first_only=True)
        if name == "uv" and after:
            return _of_uv(after)
    return []


def _of_uv(words: list[str]) -> list[str]:
    if words[:2] in (["pip", "install"], ["tool", "install"]):
        return _listed(words[2:])
    if words[0] == "add":
        return _listed(words[1:])
    return _listed(words[1:], first_only=True)[:-1] if words[0] == "run" else []


def _listed(words: list[str], first_only: bool = False) -> list[str]:
    """The requirements among arguments; of a program that is run, those of its options and its own name."""
    found: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        option, _, value = word.partition("=")
        if option in _WITH:
            given = value or (words[at + 1] if at + 1 < len(words) else "")
            found += [part for part in given.split(",") if _REQUIREMENT.match(part)]
            at += 1 if value else 2
        elif word in _VALUES | _VALUES_TOO:
            at += 2
        elif word.startswith("-"):
            at += 1
        else:
            if _REQUIREMENT.match(word) and "/" not in word:
                found.append(word)
            if first_only:
                return found if found and found[-1] == word else [*found, "pytest"]
            at += 1
    return [*found, "pytest"] if first_only else found
