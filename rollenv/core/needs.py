"""Needs beyond a plain install: checks, and hints on how to meet them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from rollenv.core.errors import MissingData, MissingExtra


@dataclass(frozen=True)
class Package:
    """A Python package.

    Args:
        name: name for pip.
        extra: the extra of rollenv that installs it, if any.
        module: name for imports, if it is not the pip name with underscores.
        command: install command, if it is neither the extra nor ``pip install NAME``.
    """

    name: str
    extra: str = ""
    module: str = ""
    command: str = ""

    @property
    def here(self) -> bool:
        module = self.module or self.name.replace("-", "_")
        if module in sys.modules:  # None there blocks an import
            return sys.modules[module] is not None
        try:
            return importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):
            return False

    @property
    def hint(self) -> str:
        """The command or step that meets the need."""
        return self.command or (install_hint(self.extra) if self.extra else f"pip install {self.name}")

    def __str__(self) -> str:
        return self.name


def data_root() -> str:
    """Return the folder of data sets, ``$ROLLENV_DATA``; empty if the variable is not set."""
    return os.path.expanduser(os.environ.get("ROLLENV_DATA", ""))


@dataclass(frozen=True)
class DataFiles:
    """Files below ``$ROLLENV_DATA``.

    Args:
        files: patterns of file names; one match is enough.
    """

    folder: str
    files: tuple[str, ...] = ("*",)
    source: str = ""

    @property
    def here(self) -> bool:
        root = data_root()
        return bool(root) and any(any(Path(str(root), self.folder).glob(pattern)) for pattern in self.files)

    def found(self) -> Path:
        """The folder that holds the files.

        Raises:
            MissingData: they are not there; the message says where to get them.
        """
        root = data_root()
        if not self.here:
            where = f"$ROLLENV_DATA ({root}) has no {self.folder}" if root else "$ROLLENV_DATA does not name a folder"
            raise MissingData(f"the files of {self.folder} are not here: {where}; {self.hint}")
        return Path(root) / self.folder

    @property
    def hint(self) -> str:
        """The command or step that meets the need."""
        wanted = self.files[0] if self.files != ("*",) else "its files"
        return f"put {wanted} into $ROLLENV_DATA/{self.folder}" + (f" ({self.source})" if self.source else "")

    def __str__(self) -> str:
        return f"data: {self.folder}"


@dataclass(frozen=True)
class Ability:
    """A capability of the host.

    Args:
        why_not: ``"module:function"`` of a cached function that returns the reason why the capability is missing and
            what to do, or None if it is available.
    """

    name: str
    why_not: str

    @property
    def here(self) -> bool:
        return not self.hint

    @property
    def hint(self) -> str:
        """The command or step that meets the need."""
        module, _, function = self.why_not.partition(":")
        return getattr(importlib.import_module(module), function)() or ""

    def __str__(self) -> str:
        return self.name


#: A text describes a need that cannot be checked, such as a server.
Need = Package | DataFiles | Ability | str

#: Machines of the local sandbox.
MACHINES = Ability("machines of the local sandbox", "rollenv.sandbox.machine:why_not")


def install_hint(extra: str) -> str:
    """Return the command that installs an extra; it also works for a rollenv installed from a clone."""
    return f"pip install 'rollenv[{extra}]'"


@contextlib.contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Explain import errors of optional packages in the block.

    Args:
        name: the extra that installs them.
        what: the feature that needs them, as the beginning of a sentence ("Reading Parquet").

    Raises:
        MissingExtra: a package is not installed or fails to import; the message has the command that installs it.
    """
    try:
        yield
    except MissingExtra:
        raise
    except ImportError as error:
        raise MissingExtra(f"{what} needs the {name} extra: {install_hint(name)} ({error})") from error


def require_extra(module: str, name: str, what: str) -> ModuleType:
    """Import a module of an optional package; see :func:`extra`.

    Args:
        what: the feature that needs it, as the beginning of a sentence ("Reading Parquet").
    """
    with extra(name, what):
        return importlib.import_module(module)


@contextlib.contextmanager
def peer(package: str, tested: str, install: str = "", who: str = "this bridge") -> Iterator[None]:
    """Explain import errors of a framework in the block, and warn about untested versions.

    Args:
        package: name for pip.
        tested: prefix of the tested versions, such as ``"1.16"``.
        install: install command, if it is not ``pip install PACKAGE``.
        who: the feature that needs it, as the beginning of a sentence.

    Raises:
        MissingExtra: if an import fails; one line says what to install.
    """
    wanted = install or f"pip install '{package}=={tested}.*'"
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtra(f"{who} needs {package}: {wanted}") from None
    as_tested = f"{version}.".startswith(f"{tested}.")
    if not as_tested:
        text = f"{who} was tested with {package} {tested}, and {version} is installed: if it fails, {wanted}"
        warnings.warn(text, stacklevel=3)
    try:
        yield
    except ImportError as error:
        hint = "" if as_tested else f"; {who} was tested with {tested}: {wanted}"
        raise MissingExtra(f"{package} {version} cannot be imported as {who} needs it ({error}){hint}") from error
