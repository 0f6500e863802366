"""Another Python for worker processes, with packages of its own."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

from rollenv.core import registry
from rollenv.core.cache import cached
from rollenv.core.errors import MissingExtra, UsageError
from rollenv.core.version import __version__

#: Seconds in which another Python has to tell its ids.
_ANSWER_SECONDS = 300.0
#: Not ``-P`` but its variable, and no f-string: an old Python says what it is.
_DESCRIBE = """
import sys
if sys.version_info < (3, 11):
    sys.exit("it is Python %d.%d, and rollenv needs 3.11 or newer" % sys.version_info[:2])
import dataclasses, pickle
from rollenv.core import registry, version
registry.list_envs()
added = [s for s in registry.added_specs().values() if isinstance(s.entry_point, str)]
specs = {s.id: dataclasses.replace(s, needs=(), additional_wrappers=()) for s in added}
print("\\nrollenv %s %s" % (version.__version__, pickle.dumps(specs).hex()))
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
            [program, "-c", _DESCRIBE],
            env=os.environ | {"PYTHONSAFEPATH": "1"},
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_ANSWER_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"the Python {given} did not say within {_ANSWER_SECONDS:g} s what it has; look at: {given} -c "
            "'from rollenv.core import registry; registry.list_envs()'"
        ) from error
    except OSError as error:
        raise UsageError(f"the Python {given} cannot be started: {error.strerror or error}") from error
    answer = re.search(r"^rollenv (\S+) ([0-9a-f]+)$", done.stdout, re.MULTILINE)  # its packages may print, too
    if done.returncode or not answer:
        *_, last = ["", *done.stderr.strip().splitlines()]
        raise UsageError(
            f"the Python {given} cannot import rollenv: {last or f'exit code {done.returncode}'}; install rollenv "
            f"{__version__} there, or name a file of requirements (.txt), which needs no installation"
        )
    if answer[1] != __version__:
        raise UsageError(f"the Python {given} has rollenv {answer[1]}, this is {__version__}: install the same there")
    registry.add_specs(pickle.loads(bytes.fromhex(answer[2])))
    for lost in re.findall(r"UserWarning: (.* were not loaded: .*)", done.stderr):
        warnings.warn(f"in the Python {given}, {lost}", stacklevel=2)
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
    place = str(file.parent.resolve())  # where paths in it lead from, wherever it is read
    seed = json.dumps([__version__, sys.version, str(package), own, place]).encode() + text

    def build(folder: Path) -> None:
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
        if uv is None:
            raise MissingExtra(f"{file} is installed by uv, which is not here: pip install uv")
        _run(file, uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(folder), "--allow-existing")
        python = str(folder / "bin/python")
        _run(file, uv, "pip", "install", "--quiet", "--python", python, "--requirements", str(file.resolve()), *own)
        (site,) = folder.glob("lib/python*/site-packages")
        about = {Path(str(dist.locate_file(f))).parent for f in dist.files or () if f.name == "METADATA"}
        for one in (package, *about):
            (site / one.name).symlink_to(one)

    return cached("python", hashlib.sha256(seed).hexdigest()[:16], build)


def _run(file: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise UsageError(f"the requirements {file} cannot be installed; uv says: {done.stderr.strip()[-2000:]}")
