"""``rollenv publish``"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import typer

from rollenv.cli.common import console, print_result
from rollenv.core.errors import UsageError


def command(
    package: Path = typer.Argument(help="Folder of a package (see `rollenv new`), or its wheel."),
    to: Path = typer.Option(..., "--to", metavar="INDEX", help="Folder of the index; a new one is made."),
    episodes: int = typer.Option(10, "--episodes", "-n", min=1, help="Episodes of each check."),
    timeout: float = typer.Option(900.0, "--timeout", min=1.0, help="Time limit in seconds for all checks."),
) -> None:
    """Check a package's environments and put its wheel into an index, with cards and results.

    An index is a folder, which any web server can serve; pip reads it too (--extra-index-url).
    """
    from rollenv.plugins.publishing import package_index

    with tempfile.TemporaryDirectory(prefix="rollenv-publish-") as made:
        wheel = package if package.suffix == ".whl" else build_wheel(package, Path(made))
        about, modules = package_index.read_wheel(wheel)
        found = package_index.check_wheel(wheel, sorted(modules), Path(made, "site"), episodes, timeout)
        broken = [
            f"{env_id}, {check['name']}: {check['detail']}"
            for env_id, card in found.items()
            for check in card["checks"]
            if check["ok"] is False
        ]
        if broken:
            raise UsageError(
                f"{about.name} {about.version} breaks promises, so it is not published. {'; '.join(broken)}"
            )
        package_index.add(to, wheel, about, found)
    package_of = {"package": about.name, "version": about.version, "sha256": about.sha256}
    print_result({**package_of, "index": str(to), "ids": list(found)})
    console.print(f"published {about.name} {about.version} with {', '.join(found)}", markup=False, soft_wrap=True)
    console.print(f"install it with: rollenv install {about.name} --from {to}", markup=False, soft_wrap=True)


def build_wheel(folder: Path, into: Path) -> Path:
    """Build the wheel of a package's folder."""
    if not (folder / "pyproject.toml").is_file():
        raise UsageError(f"{folder} is no package: it has no pyproject.toml; `rollenv new NAME` writes one")
    options = ["--quiet", "--no-deps", "--wheel-dir", str(into), str(folder.resolve())]
    config = into / "build.cfg"  # setuptools would take files of earlier builds from FOLDER/build
    config.write_text(f"[build]\nbuild_base = {into / 'build'}\n", encoding="utf-8")
    for more in ([], ["--no-build-isolation"]):  # without an index, what builds it must be installed here
        command = [sys.executable, "-P", "-m", "pip", "wheel", *more, *options]
        environment = {"SOURCE_DATE_EPOCH": "315532800", **os.environ, "DIST_EXTRA_CONFIG": str(config)}  # 1980
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if not done.returncode:
            break
    wheels = sorted(into.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise UsageError(f"{folder} cannot be built: {(done.stderr.strip().splitlines() or ['no wheel'])[-1]}")
    return wheels[0]
