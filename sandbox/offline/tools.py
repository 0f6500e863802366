"""Programs that come first on a machine's PATH while it is built and while tests are set up."""

from __future__ import annotations

import functools
import hashlib
import shutil
import zipfile
from collections.abc import Iterable
from pathlib import Path

from rollenv.sandbox.images import Image
from rollenv.sandbox.layers import made, store
from rollenv.sandbox.offline.debs import Debs, packages
from rollenv.sandbox.offline.wheels import ALWAYS, Wheels, requirements

#: Where the programs, the wheels and the packages of Debian appear.
PLACE, WHEELS, DEBS = "/opt/rollenv", "/opt/rollenv-wheels", "/opt/rollenv-debs"
#: Where the programs note what they could not do: a folder that everyone may write to.
NOTES = "/run/rollenv"
#: All of these places.
OURS = (PLACE, WHEELS, DEBS, NOTES)
#: Modules of the programs; Python is told to look there first.
FIRST_MODULES = f"{PLACE}/pytest"
_SOURCES = Path(__file__).with_name("programs")


class Offline:
    """Programs and wheels for machines without a network.

    ``apt-get`` finds packages that are installed and installs those that were fetched before, ``curl`` and ``wget``
    reach the machine itself and give uv's installer, ``pip`` and ``uv`` install wheels. What they cannot do fails as it
    would without a network, and is noted.

    Args:
        wheels: by default the cache's, which is filled on demand.
        debs: packages of Debian, likewise; by default nothing is fetched where no wheels are.
    """

    def __init__(self, wheels: Wheels | None = None, debs: Debs | None = None):
        self.wheels = wheels or Wheels()
        self.debs = debs or Debs(fetch=self.wheels.fetch)

    def prepare(self, scripts: Iterable[str]) -> list[str]:
        """Fetch the packages that scripts will install; return those that could not be had."""
        texts = list(scripts)
        wanted = [name for text in texts for name in requirements(text)]
        lacking = self.debs.ensure([name for text in texts for name in packages(text)])
        return [*self.wheels.ensure([*ALWAYS, *wanted]), *lacking]

    def shown(self) -> dict[str, str]:
        """Folders to show in the machine."""
        programs = _programs(self.wheels.find("uv"))
        return {PLACE: str(programs), WHEELS: str(self.wheels.folder), DEBS: str(self.debs.folder)}

    def uv(self) -> Image | None:
        """An image with uv in its root, as its makers publish one; None where there is no wheel of it."""
        real = _programs(self.wheels.find("uv")) / "real"
        target = store() / "layers" / f"uv-{real.parent.name}"
        with made(target) as folder:
            if folder is not None and real.is_dir():
                shutil.copytree(real, folder / "0")
        return Image.host().over(target) if real.is_dir() else None

    def env(self, path: str) -> dict[str, str]:
        """The environment in which the programs come first, on top of the machine's PATH."""
        return {
            "PATH": f"{PLACE}/bin:{path}",
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
    """The folder with the programs, and uv's own from its wheel."""
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
