"""A replacement for a machine's network: prefetched wheels and packages, and wrappers of downloaders."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rollenv.sandbox.images import Image
from rollenv.sandbox.layers import made, store

_log = logging.getLogger(__name__)

#: Packages that tests commonly need.
ALWAYS = ("pip", "setuptools", "wheel", "uv", "pytest")
_REQUIREMENT = re.compile(
    r"^[A-Za-z0-9][\w.-]*(\[[\w,-]+\])?((===|[=<>!~]=|[<>])[\w.*+!-]+(,\s*([=<>!~]=|[<>])[\w.*]+)*)?$"
)
#: Options with a value that is not a requirement, and options with one that is.
_VALUES = frozenset(
    {"-r", "--requirement", "-c", "--constraint", "-e", "--editable", "-p", "--python", "-i", "--index-url"}
)
_VALUES_TOO = frozenset(
    {"--extra-index-url", "-f", "--find-links", "-t", "--target", "--prefix", "--root", "-d", "--group"}
)
_WITH = frozenset({"--with", "-w", "--from"})
#: Options with a list of requirements, and installations of a project folder.
_LISTS = re.compile(r"\s(?:-r|--requirements?)[\s=]*([^\s;&|]+)")
_PROJECTS = re.compile(
    r"\bpip[\d.]* install\b[^\n;&|]*\s['\"]?\.{1,2}/?[\w./]*(\[|['\"]?(\s|$))|\buv sync\b", re.MULTILINE
)
_SECONDS = 300.0


class Wheels:
    """Wheels for one version of Python.

    Args:
        python: version of Python, such as ``3.11``; by default that of the host's system.
        fetch: download missing wheels with the host's pip and its settings. Source distributions are not downloaded,
            so no code of a package runs.
    """

    def __init__(self, folder: Path | None = None, *, python: str | None = None, fetch: bool = True):
        self.python, self.fetch = python or system_python(), fetch
        self.folder = folder or store() / f"wheels-{self.python}"
        self.folder.mkdir(parents=True, exist_ok=True)

    def ensure(self, wanted: Sequence[str]) -> list[str]:
        """Fetch missing wheels; return the requirements that could not be fetched."""
        lacking: list[str] = []
        names = [*wanted, *self._elsewhere()] if self.fetch else list(wanted)
        while names := [each for each in dict.fromkeys(names) if each not in lacking and not self._mark(each).exists()]:
            if not self.fetch:
                return names
            # If a joint download fails, download one by one, so that one bad name does not block the others.
            if not self._download(names):
                lacking += [each for each in names if not self._download([each])]
            names = self._elsewhere()
        return [each for each in lacking if each in wanted]

    def _elsewhere(self) -> list[str]:
        """Return the requirements of the wheels on other systems and Pythons, because uv locks all of them."""
        needs: dict[str, None] = {}
        for wheel in self.folder.glob("*.whl"):
            with contextlib.suppress(OSError, zipfile.BadZipFile, StopIteration), zipfile.ZipFile(wheel) as archive:
                name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
                for line in archive.read(name).decode("utf-8", "replace").partition("\n\n")[0].splitlines():
                    need, _, marker = line.removeprefix("Requires-Dist:").partition(";")
                    if line.startswith("Requires-Dist:") and marker and "extra" not in marker:
                        needs[re.sub(r"[()\s]", "", need)] = None
        return list(needs)

    def _download(self, wanted: list[str]) -> bool:
        command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--no-input", "--only-binary=:all:", "--python-version", self.python]
        command += ["--dest", str(self.folder), *wanted]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        if done.returncode:
            _log.debug("pip download %s: %s", wanted, done.stderr.strip()[-500:])
            return False
        for each in wanted:
            self._mark(each).touch()
        return True

    def _mark(self, wanted: str) -> Path:
        return self.folder / f".has-{hashlib.sha256(wanted.encode()).hexdigest()[:16]}"

    def find(self, name: str) -> Path | None:
        """Return the newest wheel of a package."""
        wheels = self.folder.glob(f"{name.replace('-', '_')}-*.whl")
        return max(wheels, key=lambda path: path.stat().st_mtime, default=None)


@functools.cache
def system_python() -> str:
    """Return the version of the host's /usr/bin/python3, or this Python's if there is none."""
    try:
        version = subprocess.run(["/usr/bin/python3", "-V"], capture_output=True, text=True).stdout
    except OSError:
        version = ""
    match = re.match(r"Python (\d+\.\d+)", version)
    return match[1] if match else f"{sys.version_info[0]}.{sys.version_info[1]}"


def requirements(script: str) -> list[str]:
    """List the packages that a shell script or Dockerfile installs with pip, uv or uvx."""
    return list(dict.fromkeys(name for words in commands(script) for name in _of_command(words)))


def with_files(script: str, folders: Iterable[Path]) -> Iterator[str]:
    """Yield a shell script or Dockerfile, and as commands the requirement files and projects that it installs."""
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
    """Split a shell script or Dockerfile into the words of its commands, approximately."""
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
            return _requirements_in(after[after.index("install") + 1 :])
        if name == "uvx":
            return _requirements_in(after, first_only=True)
        if name == "uv" and after:
            if after[:2] in (["pip", "install"], ["tool", "install"]):
                return _requirements_in(after[2:])
            if after[0] == "add":
                return _requirements_in(after[1:])
            return _requirements_in(after[1:], first_only=True)[:-1] if after[0] == "run" else []
    return []


def _requirements_in(words: list[str], first_only: bool = False) -> list[str]:
    """List the requirements among arguments; with ``first_only``, those of options and the program's own."""
    found: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        option, _, value = word.partition("=")
        if option in _WITH:
            listed = value or (words[at + 1] if at + 1 < len(words) else "")
            found += [part for part in listed.split(",") if _REQUIREMENT.match(part)]
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


_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
#: Timeout of apt, and seconds until a failed package is retried.
_DEBS_SECONDS, _AGAIN = 300.0, 24 * 3600.0


class Debs:
    """Debian packages for machines over the host's system, with the dependencies that the host lacks.

    For each package, a file NAME.list has the names of its .deb files in the order of installation.

    Args:
        folder: folder of the packages; by default in the cache.
        fetch: download missing packages with the host's apt and its lists and keys. No code of a package runs on the
            host.
    """

    def __init__(self, folder: Path | None = None, *, fetch: bool = True):
        self.fetch = fetch and shutil.which("apt-get") is not None
        self.folder = folder or store() / "debs" / (_digest_of_packages() if self.fetch else "given")
        self.folder.mkdir(parents=True, exist_ok=True)

    def ensure(self, wanted: Sequence[str]) -> list[str]:
        """Fetch packages that are neither here nor on the host; return the failed ones, which are retried tomorrow."""
        lacking = [name for name in dict.fromkeys(wanted) if not (self.folder / f"{name}.list").exists()]
        return [name for name in lacking if not (self.fetch and not self._failed(name) and self._download(name))]

    def _failed(self, name: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return 0 <= time.time() - (self.folder / f"{name}.failed").stat().st_mtime < _AGAIN
        return False

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
        files = re.findall(r"^'[^']*' (\S+\.deb) ", needed, re.MULTILINE)  # none for packages of the host
        if not all((self.folder / file).is_file() for file in files):
            return False
        (self.folder / f"{name}.list").write_text("".join(f"{file}\n" for file in files))
        return True


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEBS_SECONDS, check=True)
    return done.stdout


@functools.cache
def _digest_of_packages() -> str:
    """Return a digest of the host's packages, on which missing dependencies depend."""
    try:
        return hashlib.sha256(Path("/var/lib/dpkg/status").read_bytes()).hexdigest()[:16]
    except OSError:
        return "none"


def packages(script: str) -> list[str]:
    """List the packages that a shell script or Dockerfile installs with apt."""
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


#: Folders in the machine for the programs, the wheels and Debian's packages.
PROGRAMS, WHEELS, DEBS = "/opt/rollenv", "/opt/rollenv-wheels", "/opt/rollenv-debs"
#: World-writable folder in the machine for the programs' notes about failures.
NOTES = "/run/rollenv"
#: All of these folders.
OURS = (PROGRAMS, WHEELS, DEBS, NOTES)
#: Folder of modules, first on Python's path.
FIRST_MODULES = f"{PROGRAMS}/pytest"
_SOURCES = Path(__file__).with_name("programs")


class Offline:
    """Programs and wheels for machines without a network.

    ``apt-get`` installs prefetched packages, ``curl`` and ``wget`` reach only the machine itself and provide uv's
    installer, ``pip`` and ``uv`` install wheels. Anything else fails as without a network, and is noted.

    Args:
        wheels: by default those of the cache, which is filled on demand.
        debs: Debian's packages, likewise; by default fetched only if wheels are.
    """

    def __init__(self, wheels: Wheels | None = None, debs: Debs | None = None):
        self.wheels = wheels or Wheels()
        self.debs = debs or Debs(fetch=self.wheels.fetch)

    def prepare(self, scripts: Iterable[str]) -> list[str]:
        """Fetch the packages that scripts will install; return those that could not be fetched."""
        texts = list(scripts)
        wanted = [name for text in texts for name in requirements(text)]
        lacking = self.debs.ensure([name for text in texts for name in packages(text)])
        return [*self.wheels.ensure([*ALWAYS, *wanted]), *lacking]

    def shown(self) -> dict[str, str]:
        """Return the folders to show in the machine."""
        programs = _programs(self.wheels.find("uv"))
        return {PROGRAMS: str(programs), WHEELS: str(self.wheels.folder), DEBS: str(self.debs.folder)}

    def uv(self) -> Image | None:
        """Return an image with uv in its root, like the published one; None without a wheel of uv."""
        real = _programs(self.wheels.find("uv")) / "real"
        target = store() / "layers" / f"uv-{real.parent.name}"
        with made(target) as folder:
            if folder is not None and real.is_dir():
                shutil.copytree(real, folder / "0")
        return Image.host().over(target) if real.is_dir() else None

    def env(self, path: str) -> dict[str, str]:
        """Return the environment variables for the programs, which come before the machine's PATH."""
        return {
            "PATH": f"{PROGRAMS}/bin:{path}",
            "DEBIAN_FRONTEND": "noninteractive",
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": WHEELS,
            "PIP_BREAK_SYSTEM_PACKAGES": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
            "UV_NO_CONFIG": "1",
            "UV_OFFLINE": "1",
            "UV_NO_INDEX": "1",
            "UV_FIND_LINKS": WHEELS,
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_LINK_MODE": "copy",
            "UV_BREAK_SYSTEM_PACKAGES": "1",
        }


@functools.cache
def _programs(uv: Path | None) -> Path:
    """Create the folder with the programs, and with uv from its wheel."""
    digest = hashlib.sha256(f"{uv}".encode())
    for source in sorted(_SOURCES.rglob("*")):
        if source.is_file():
            digest.update(source.name.encode() + source.read_bytes())
    target = store() / f"tools-{digest.hexdigest()[:16]}"
    with made(target) as folder:
        if folder is not None:
            shutil.copytree(_SOURCES, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            for program in (folder / "bin").iterdir():
                program.chmod(0o755)
            for alias, name in {"apt": "apt-get", "wget": "curl", "pip3": "pip", "uvx": "uv"}.items():
                (folder / "bin" / alias).symlink_to(name)
            (folder / "bin/add-apt-repository").symlink_to("/bin/true")
            if uv is not None:
                _unpack_uv(uv, folder / "real")
    return target


def _unpack_uv(wheel: Path, folder: Path) -> None:
    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if "/scripts/" in name or name.startswith("uv/bin/"):
                target = folder / name.rpartition("/")[2]
                target.write_bytes(archive.read(name))
                target.chmod(0o755)
