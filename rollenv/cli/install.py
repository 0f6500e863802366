"""``rollenv install``"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import typer

from rollenv.cli.common import console
from rollenv.core.errors import RollenvError

_PIP = (sys.executable, "-m", "pip", "install", "--quiet")


def command(
    name: str = typer.Argument(metavar="NAME[==VERSION]", help="Package of the index."),
    index: str = typer.Option(..., "--from", metavar="INDEX", help="Folder or URL of the index."),
    sha256: str = typer.Option("", help="Hash that the wheel must have, from where you trust it."),
) -> None:
    """Install a package of environments from an index of `rollenv publish`.

    The wheel must have the hash that the index names. pip installs it, and what it needs besides rollenv.
    """
    from rollenv import package_index

    package = package_index.find(index, name)
    with tempfile.TemporaryDirectory(prefix="rollenv-install-") as folder:
        wheel = package_index.fetch_wheel(index, package, Path(folder), sha256)
        # rollenv itself is here, but not for a pip that installs into another folder (PIP_TARGET)
        done = subprocess.run([*_PIP, "--no-deps", str(wheel)])
        if needs := package_index.needs(wheel):
            done = subprocess.run([*_PIP, *needs]) if done.returncode == 0 else done
    if done.returncode:
        raise RollenvError(f"pip could not install {package.wheel}; its output says why")
    console.print(f"installed {package.name} {package.version}: {', '.join(package.ids)}", markup=False, soft_wrap=True)
