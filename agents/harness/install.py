"""Installation of harnesses into the cache."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from rollenv.agents.harness.records import Harness, filled
from rollenv.core.cache import cache_folder, cached
from rollenv.core.errors import MissingExtra, UsageError, writes
from rollenv.sandbox.machine import PATH

#: Date of npm's registry for installations, so that a harness's dependencies do not change.
_BEFORE = "2026-11-25"
_SECONDS = 1200.0
#: The names of architectures in npm and Rust.
ARCHITECTURES = {"x86_64": ("x64", "x86_64"), "aarch64": ("arm64", "aarch64"), "arm64": ("arm64", "aarch64")}


def architecture() -> dict[str, str]:
    """Return the values of ``{arch}`` and ``{machine}``."""
    if platform.machine() not in ARCHITECTURES:
        raise UsageError(f"no harness runs on a {platform.machine()}: there are {', '.join(ARCHITECTURES)}")
    arch, machine = ARCHITECTURES[platform.machine()]
    return {"arch": arch, "machine": machine}


def install(harness: Harness) -> Path:
    """Return the folder of a harness, ``CACHE/harness/NAME-VERSION``; it is installed on first use."""
    name = f"{harness.folder}-{harness.version}"
    folder = cache_folder() / "harness" / name
    if folder.is_dir():
        return folder
    console = Console(stderr=True)
    with _locked(folder), console.status(f"installing {harness.name} {harness.version} into {folder.parent}"):
        for partial in folder.parent.glob(f"{name}-partial-*"):  # left by a killed process, which held this lock
            shutil.rmtree(partial, ignore_errors=True)
        return cached("harness", name, lambda partial: _fill(harness, partial))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a harness's installation."""
    with writes(folder, "set ROLLENV_CACHE to a folder with space"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(f"{folder}.lock", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _fill(harness: Harness, folder: Path) -> None:
    folder.chmod(0o755)  # readable for any user of a task
    if harness.npm:
        npm = shutil.which("npm")
        if npm is None:
            raise MissingExtra(f"{harness.name} is installed with npm, which is not here: install Node.js 20 or later")
        packages = filled(harness.npm, architecture())
        words = ["install", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        patience = ["--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000"]
        _run(harness, [npm, *words, *patience, f"--before={_BEFORE}", *packages])
    if harness.pip:
        python = shutil.which("python3", path=PATH)
        output = subprocess.run([python, "-V"], capture_output=True, text=True).stdout if python else ""
        match = re.match(r"Python (\d+\.\d+)", output)
        if python is None or match is None:
            raise MissingExtra(f"harnesses written in Python need a python3 in {PATH}: install your system's")
        version = match[1]
        if tuple(map(int, version.split("."))) < tuple(map(int, harness.python.split("."))):
            raise MissingExtra(
                f"{harness.name} needs Python {harness.python} in the machine, and this host's python3 is {version}"
            )
        words = ["install", "--quiet", "--disable-pip-version-check", "--no-input", "--only-binary=:all:"]
        words += ["--python-version", version, "--target", str(folder / f"python{version}")]
        _run(harness, [sys.executable, "-P", "-m", "pip", *words, "--no-compile", *harness.pip])
        subprocess.run([python, "-m", "compileall", "-qq", "-j0", str(folder)])  # it is read-only in machines


def _run(harness: Harness, command: Sequence[str]) -> None:
    problem = f"{harness.name} {harness.version} could not be installed"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise MissingExtra(f"{problem} within {_SECONDS:g} s; is the registry reachable?") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        why = " ".join(lines[:3])[:500] or f"it ended with {done.returncode}"
        raise MissingExtra(f"{problem}; is the registry reachable? {Path(command[0]).name} says: {why}")
