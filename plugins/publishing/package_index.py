"""An index of environment packages: a static folder that pip can read, with what was checked beside each wheel.

``rollenv.json`` lists the packages; ``NAME/`` has the wheels, a page in pip's form (PEP 503) and a record of each, as
JSON: its hash, the cards of its environments and the result of every check. Any web server can serve the folder.
"""

from __future__ import annotations

import configparser
import html
import importlib.metadata
import json
import re
import shutil
import sys
import sysconfig
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from email.parser import Parser
from pathlib import Path
from typing import Any

from rollenv.core import cards
from rollenv.core.checker import run_checks
from rollenv.core.checker.digests import HelperProcess
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import Broken, UsageError, writes
from rollenv.core.folder_lock import lock_folder
from rollenv.core.registry import list_envs
from rollenv.serve.catalog import CATALOG, IndexedPackage, fetch, folder_name, read_catalog, sha256

#: What zipfile raises: a damaged file, a password, an unknown compression.
_NO_WHEEL = (OSError, zipfile.BadZipFile, zlib.error, RuntimeError)
#: The file that says what a wheel is and needs; those in folders of modules say nothing.
_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
#: Modules that Python imports at every start.
_AT_START = ("sitecustomize", "usercustomize")


def read_wheel(wheel: Path) -> tuple[IndexedPackage, set[str]]:
    """Return a wheel's package, yet without ids, and the names of its top-level modules.

    Raises:
        UsageError: it is no wheel, or registers no environments.
    """
    try:
        with zipfile.ZipFile(wheel) as file:
            names = file.namelist()
            about = next(filter(_METADATA.fullmatch, names))
            metadata = Parser().parsestr(file.read(about).decode())
            points = about.replace("METADATA", "entry_points.txt")
            groups = configparser.ConfigParser()
            groups.read_string(file.read(points).decode() if points in names else "")
        hashed = sha256(wheel.read_bytes())
        package = IndexedPackage(metadata["Name"], metadata["Version"], wheel.name, hashed, ())
    except (*_NO_WHEEL, StopIteration, ValueError, configparser.Error) as error:
        raise UsageError(f"{wheel} is no wheel: {type(error).__name__}: {error}") from error
    if not groups.has_section("rollenv.envs"):
        raise UsageError(f"{wheel.name} registers no environments: it has no entry point in the group rollenv.envs")
    modules = {name.split("/")[0].removesuffix(".py") for name in names if ".dist-info/" not in name}
    return package, modules


def check_contents(wheel: Path, package: IndexedPackage) -> None:
    """Refuse a wheel that does more than add modules of its own: files that Python runs at every start, files outside
    of the modules' folder, modules and commands of other packages, and needs at addresses.

    Raises:
        UsageError: the wheel has one of these.
    """
    about, _ = read_wheel(wheel)
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        folder = next(filter(_METADATA.fullmatch, names)).removesuffix("METADATA")
        metadata = Parser().parsestr(file.read(f"{folder}METADATA").decode())
        points = configparser.ConfigParser(delimiters=("=",))
        points.read_string(file.read(f"{folder}entry_points.txt").decode())
    theirs = importlib.metadata.packages_distributions()
    own = {folder_name(package.name)}
    modules = {name.split("/")[0].split(".")[0] for name in names}
    taken = {"rollenv", "__pycache__"} | {one for one in modules if {*map(folder_name, theirs.get(one, ()))} - own}
    scripts = [name for kind in ("console_scripts", "gui_scripts") if kind in points for name in points[kind]]
    here, *sites = (Path(sysconfig.get_path(kind)) for kind in ("scripts", "purelib", "platlib"))
    try:
        files = [*(importlib.metadata.files(package.name) or ())]
    except importlib.metadata.PackageNotFoundError:
        files = []
    mine = {str(file) for file in files} | {file.name for file in files}
    problems = {
        "is a wheel of another package": [about.name] if folder_name(about.name) not in own else [],
        "has files that Python runs at every start": [
            name for name in names if name.endswith((".pth", ".start")) or name.split("/")[0].split(".")[0] in _AT_START
        ],
        "puts files elsewhere than among the modules": [
            name for name in names if ".." in name or name[:1] in "/\\" or ".data/" in name.split("/", 1)[0] + "/"
        ],
        "has modules of other packages": sorted(modules & taken),
        "replaces files of others": [
            name for name in names if any((site / name).is_file() for site in sites) and name not in mine
        ],
        "replaces commands": [
            name
            for name in scripts
            if name != Path(name).name or (((here / name).exists() or shutil.which(name)) and name not in mine)
        ],
        "needs what is at an address": [need for need in metadata.get_all("Requires-Dist", []) if "@" in need],
    }
    if found := [f"{what}: {', '.join(which)[:200]}" for what, which in problems.items() if which]:
        raise UsageError(f"{package.wheel} {'; '.join(found)}. Nothing was installed; pip installs it if you trust it")


def check_wheel(wheel: Path, modules: Iterable[str], site: Path, episodes: int, timeout: float) -> dict[str, Any]:
    """Unpack a wheel into ``site`` and check its environments in a process of their own; return their cards by id.

    Raises:
        UsageError: it registers none, cannot be imported, or does not end in time.
    """
    try:
        with zipfile.ZipFile(wheel) as file:
            file.extractall(site)  # makes no links, and nothing outside of ``site``
    except _NO_WHEEL as error:
        raise UsageError(f"{wheel} cannot be unpacked: {type(error).__name__}: {error}") from error
    with HelperProcess(timeout) as process:
        try:
            found, problems = process.call(f"{__name__}:describe", str(site), [*modules], episodes)
        except Broken as error:
            raise UsageError(f"{wheel.name} cannot be checked: {error}") from error
    if not found:
        why = (problems or ["nothing failed"])[-1]
        raise UsageError(f"{wheel.name} registers no environments of its own modules ({', '.join(modules)}): {why}")
    return dict(found)


def describe(site: str, modules: Sequence[str], episodes: int) -> tuple[dict[str, Any], list[str]]:
    """Return cards and checks of the environments of modules in a folder, and why others were not loaded."""
    sys.path.insert(0, site)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        specs = [each for each in list_envs() if module_of(each) in modules]
    found = {}
    for spec in specs:
        card = cards.card(spec)
        found[spec.id] = {
            "about": card.about,
            "abilities": sorted(spec.abilities),
            "arguments": card.arguments,
            "prompt": card.prompt,
            "action": card.action,
            "checks": [asdict(finding) for finding in run_checks(spec, episodes=episodes)],
        }
    plain: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return plain, [str(each.message) for each in caught]


def module_of(env_spec: EnvSpec) -> str:
    """Return the top-level module of an environment's class."""
    point = env_spec.entry_point
    return (point if isinstance(point, str) else point.__module__).split(":")[0].split(".")[0]


def add(index: Path, wheel: Path, package: IndexedPackage, about: dict[str, Any]) -> None:
    """Put a wheel into an index, with its record.

    Raises:
        UsageError: the index has other contents under this name and version, or cannot be written, or another process
            writes it.
    """
    with writes(index):
        index.mkdir(parents=True, exist_ok=True)
        lock_folder(index, package)  # what another process adds meanwhile would be missing in what is written here
    packages = read_catalog(str(index)) if (index / CATALOG).exists() else []
    for other in packages:
        if other.folder == package.folder and other.version == package.version and other.sha256 != package.sha256:
            raise UsageError(f"{index} has another wheel of {package.name} {package.version}: raise the version")
    added = replace(package, ids=tuple(about))
    packages = [p for p in packages if (p.folder, p.version) != (package.folder, package.version)] + [added]
    with writes(index):
        folder = index / package.folder
        folder.mkdir(exist_ok=True)
        shutil.copyfile(wheel, folder / package.wheel)
        record = asdict(added) | {"environments": about}
        (folder / f"{package.wheel}.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        own = [p for p in packages if p.folder == package.folder]
        (folder / "index.html").write_text(_page((f"{p.wheel}#sha256={p.sha256}", p.wheel) for p in own), "utf-8")
        names = dict.fromkeys(p.folder for p in packages)
        (index / "index.html").write_text(_page((f"{name}/", name) for name in names), "utf-8")
        partial = index / f"{CATALOG}.partial"
        partial.write_text(json.dumps([asdict(p) for p in packages], indent=2) + "\n", encoding="utf-8")
        partial.replace(index / CATALOG)


def _page(links: Iterable[tuple[str, str]]) -> str:
    rows = "\n".join(f'<a href="{html.escape(to)}">{html.escape(text)}</a><br>' for to, text in links)
    return f"<!DOCTYPE html>\n<html><body>\n{rows}\n</body></html>\n"


def find(index: str, wanted: str) -> IndexedPackage:
    """Return the package of a name, or of ``NAME==VERSION``; of several versions, the one published last."""
    name, _, version = wanted.partition("==")
    packages = read_catalog(index)
    named = [p for p in packages if p.folder == folder_name(name) and version in ("", p.version)]
    if not named:
        has = ", ".join(f"{p.name}=={p.version}" for p in packages) or "nothing"
        raise UsageError(f"{index} has no {wanted}; it has {has}")
    return named[-1]


def fetch_wheel(index: str, package: IndexedPackage, into: Path, expected: str = "") -> Path:
    """Fetch a wheel, and check it against the hash of the index, or the one that you expect.

    Raises:
        UsageError: the wheel is another one.
    """
    data = fetch(index, f"{package.folder}/{package.wheel}")
    if sha256(data) != (expected or package.sha256) or (expected and expected != package.sha256):
        raise UsageError(
            f"{package.wheel} of {index} is not what was published: its SHA-256 is {sha256(data)}, not "
            f"{expected or package.sha256}. Nothing was installed"
        )
    wheel = into / package.wheel
    wheel.write_bytes(data)
    return wheel
