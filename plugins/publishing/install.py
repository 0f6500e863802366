"""``rollenv install``"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import typer

from rollenv.cli.common import console, print_result
from rollenv.core.errors import RollenvError


def command(
    name: str = typer.Argument(metavar="NAME[==VERSION]", help="Package of the index."),
    index: str = typer.Option(..., "--from", metavar="INDEX", help="Folder or URL of the index."),
    sha256: str = typer.Option("", help="Hash that the wheel must have, from where you trust it."),
) -> None:
    """Install a package of environments from an index of `rollenv publish`.

    The wheel must have the hash that the index names, and only modules of its own. pip installs it, and what it needs.
    """
    from rollenv.plugins.publishing import package_index

    package = package_index.find(index, name)
    with tempfile.TemporaryDirectory(prefix="rollenv-install-") as folder:
        wheel = package_index.fetch_wheel(index, package, Path(folder), sha256)
        package_index.check_contents(wheel, package)
        done = subprocess.run([sys.executable, "-P", "-m", "pip", "install", "--quiet", str(wheel)])
    if done.returncode:
        hint = ". Into PIP_TARGET, where pip sees no rollenv, add PIP_NO_DEPS=1" if "PIP_TARGET" in os.environ else ""
        raise RollenvError(f"pip could not install {package.wheel}; its output says why{hint}")
    print_result({"package": package.name, "version": package.version, "ids": list(package.ids)})
    said = f"installed {package.name} {package.version}: {', '.join(package.ids)}"
    console.print(said, markup=False, soft_wrap=True)
