"""``rollenv accept``"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rollenv.cli import completion
from rollenv.cli.common import console, id_of, key_values, print_result, print_table, progress
from rollenv.core.errors import UsageError
from rollenv.core.registry import is_elsewhere, spec

if TYPE_CHECKING:
    from rollenv.plugins.publishing.accept import Judged, Refusal


def command(
    package: str = typer.Argument(
        metavar="ID|PACKAGE",
        help="Id, module:Class or file.py:Class; or all ids of an installed package, a wheel or a package's folder.",
        autocompletion=completion.ids,
    ),
    arguments: list[str] = typer.Argument(None, metavar="[KEY=VALUE]...", help="Arguments of the environments."),
    episodes: int = typer.Option(24, "--episodes", "-n", min=8, help="Episodes of each check and each agent."),
    timeout: float = typer.Option(600.0, "--timeout", min=5.0, help="Time limit in seconds for one environment."),
) -> None:
    """Accept or refuse environments: checks, cheats, the expert against random play, network and size.

    The exit code is 0 if all are accepted, 1 if one is refused. Every refusal names the rule, what shows it and what to
    do. Packages are imported and run with your rights: judge what you would run.
    """
    from rollenv.plugins.publishing import accept

    with _target(package) as (names, folders, files, wheel), progress("judged") as show:
        found = []
        for judged in accept.judge(names, folders, episodes, timeout, key_values(arguments or ())):
            found.append(judged)
            show(len(found), f"the last: {judged.id}")
        if not any(file.suffix == ".py" for file in files):
            files = [Path(file) for file in {judged.file for judged in found if judged.file}]
        size = accept.size_of(files, wheel)
    refusals = [one for judged in found for one in judged.refusals] + accept.too_large(package, size)
    refused = [one.evidence for one in refusals if one.evidence.startswith(accept.REFUSES_ARGUMENTS)]
    if arguments and refused:
        raise UsageError(refused[0].removeprefix(accept.REFUSES_ARGUMENTS))
    result = {
        "package": package,
        "accepted": not refusals,
        "size": size,
        "environments": [judged.to_dict() for judged in found],
        "refusals": [refusal.to_dict() for refusal in refusals],
    }
    print_result(result)
    _show(package, found, refusals, size)
    if refusals:
        raise typer.Exit(1)


def _show(package: str, found: Sequence[Judged], refusals: Sequence[Refusal], size: dict[str, int | None]) -> None:
    from rollenv.plugins.publishing.accept import RULES

    rows = []
    for judged in found:
        success = {each.kind: f"{each.success:.0%}" for each in reversed(judged.players)}
        idle = max((p.success for p in judged.players if p.kind == "unearned"), default=None)
        best = "" if idle is None else f"{idle:.0%}"
        said = "refused" if judged.refusals else "accepted"
        numbers = (success.get("expert", ""), success.get("random", ""), best, f"{judged.seconds:.0f}")
        rows.append((judged.id, said, *numbers))
    print_table(["id", "verdict", "expert", "random", "no attempt", "seconds"], rows, ids=True)
    for refusal in refusals:
        about = {"seed": refusal.seed, "action": refusal.action, "reward": refusal.reward}
        shown = "".join(f", {name} {value!r}" for name, value in about.items() if value is not None)
        console.print("[bold red]✗[/] ", end="")
        console.print(f"{refusal.id}, {refusal.rule}: {refusal.evidence}{shown}", markup=False, soft_wrap=True)
        console.print(f"  {RULES[refusal.rule]['do']}", markup=False, soft_wrap=True)
    wheel = "" if size["wheel_bytes"] is None else f", a wheel of {size['wheel_bytes'] / 1000:.0f} kB"
    said = "refused" if refusals else "accepted"
    console.print(f"{package} is {said}; {size['lines']} lines{wheel}", markup=False, soft_wrap=True)


def from_anywhere(env_id: str) -> str:
    """Return an id that means the same in another working folder: files and folders get their whole path."""
    module, _, name = env_id.rpartition(":")
    if module.endswith(".py"):
        return f"{Path(module).expanduser().resolve()}:{name}"
    bridge, _, path = env_id.partition(":")
    return f"{bridge}:{os.path.realpath(path)}" if os.path.exists(path := os.path.expanduser(path)) else env_id


@contextlib.contextmanager
def _target(package: str) -> Iterator[tuple[list[str], list[str], list[Path], Path | None]]:
    """Yield ids or modules to judge, folders to import from, the files to count, and the wheel."""
    from rollenv.plugins.publishing import package_index
    from rollenv.plugins.publishing.publish import build_wheel

    folder = Path(package).expanduser()
    if folder.is_dir() or folder.suffix == ".whl":
        with tempfile.TemporaryDirectory(prefix="rollenv-accept-") as made:
            wheel = folder if folder.suffix == ".whl" else build_wheel(folder, Path(made))
            _, modules = package_index.read_wheel(wheel)
            site = Path(made, "site")
            try:
                with zipfile.ZipFile(wheel) as file:
                    file.extractall(site)
            except (OSError, zipfile.BadZipFile, RuntimeError) as error:
                raise UsageError(f"{wheel} cannot be unpacked: {error}") from error
            yield [f"{module}:" for module in sorted(modules)], [str(site)], [*site.rglob("*")], wheel
    elif ":" in (package := id_of(package)):
        if not is_elsewhere(package):
            spec(package)  # or a hint
        yield [from_anywhere(package)], [], [], None
    else:
        try:
            dist = importlib.metadata.distribution(package)
        except (importlib.metadata.PackageNotFoundError, ValueError):
            raise UsageError(
                f"{package!r} is no id, installed package, wheel or folder with a pyproject.toml; see `rollenv list`"
            ) from None
        points = [point.module.split(".")[0] for point in dist.entry_points if point.group == "rollenv.envs"]
        if not points:
            raise UsageError(f"{package} registers no environments: it has no entry point in the group rollenv.envs")
        files = [Path(str(dist.locate_file(file))) for file in dist.files or ()]
        yield [f"{module}:" for module in dict.fromkeys(points)], [], files, None
