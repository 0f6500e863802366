"""Another Python for worker processes, with packages of its own."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

from rollenv.core import registry
from rollenv.core.cache import cached
from rollenv.core.errors import MissingExtra, UsageError
from rollenv.core.version import __version__

_DESCRIBE = """
import dataclasses, pickle
from rollenv.core import registry, version
registry.list_envs()
added = [s for s in registry.added_specs().values() if isinstance(s.entry_point, str)]
specs = {s.id: dataclasses.replace(s, needs=(), additional_wrappers=()) for s in added}
print(f"\\nrollenv {version.__version__} {pickle.dumps(specs).hex()}")
"""


@functools.cache
def interpreter(given: str) -> str:
    """Return the program of another Python, once it is checked, and register the ids that only its packages have.

    Args:
        given: a Python, a virtual environment, or a file of requirements (``.txt``), of which uv builds one in the
            cache once.

    Raises:
        UsageError: it cannot be started, has no rollenv or another version, or the requirements cannot be installed.
        MissingExtra: uv is not installed.
    """
    path = Path(given).expanduser()
    if path.suffix == ".txt":
        path = _built(path) / "bin/python"
    elif path.is_dir():
        path = path / "bin/python"
    program = str(path if path.parent != Path() else shutil.which(given) or path)
    try:
        done = subprocess.run(
            [program, "-P", "-c", _DESCRIBE], capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        raise UsageError(f"the Python {given} cannot be started: {error.strerror or error}") from error
    answer = done.stdout.rpartition("\n")[0].rpartition("\n")[2].split()
    if done.returncode or answer[:1] != ["rollenv"]:
        *_, last = ["", *done.stderr.strip().splitlines()]
        raise UsageError(
            f"the Python {given} cannot import rollenv: {last or f'exit code {done.returncode}'}; install rollenv "
            f"{__version__} there, or name a file of requirements (.txt), which needs no installation"
        )
    if answer[1] != __version__:
        raise UsageError(f"the Python {given} has rollenv {answer[1]}, this is {__version__}: install the same there")
    registry.add_specs(pickle.loads(bytes.fromhex(answer[2])))
    return os.path.abspath(program)


def _built(file: Path) -> Path:
    """Return the virtual environment with a file's requirements and this rollenv."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise UsageError(f"the requirements {file} cannot be read: {error.strerror}") from error
    package = Path(__file__).parents[2]
    dist = importlib.metadata.distribution("rollenv")
    own = [one for one in dist.requires or () if "extra ==" not in one]
    seed = json.dumps([__version__, sys.version, str(package), own]).encode() + text

    def build(folder: Path) -> None:
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
        if uv is None:
            raise MissingExtra(f"{file} is installed by uv, which is not here: pip install uv")
        _run(file, uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(folder), "--allow-existing")
        python = str(folder / "bin/python")
        _run(file, uv, "pip", "install", "--quiet", "--python", python, "--requirements", str(file), *own)
        (site,) = folder.glob("lib/python*/site-packages")
        about = {Path(str(dist.locate_file(f))).parent for f in dist.files or () if f.name == "METADATA"}
        for one in (package, *about):
            (site / one.name).symlink_to(one)

    return cached("python", hashlib.sha256(seed).hexdigest()[:16], build)


def _run(file: Path, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise UsageError(f"the requirements {file} cannot be installed; uv says: {done.stderr.strip()[-2000:]}")
