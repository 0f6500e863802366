"""``rollenv forge``"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rollenv.cli.common import console, error_console, print_result, print_table, progress
from rollenv.core.errors import UsageError

if TYPE_CHECKING:
    from rollenv.plugins.forge.forge import Forged, Watch


def command(
    what: list[str] = typer.Argument(
        metavar="SDIST|FOLDER|REQUIREMENT... | swebench ROWS",
        help="Packages that include their tests: sdists, unpacked folders, or requirements such as boltons==25.0.0, "
        "which pip downloads (and builds, outside the sandbox). Or a file of SWE-bench rows (jsonl, json or parquet).",
    ),
    out: Path = typer.Option(
        ..., "--out", "-o", help="Folder for the tasks; existing tasks are kept, and the run continues."
    ),
    count: int = typer.Option(100, "--count", "-n", min=1, help="Total number of tasks from all packages."),
    seed: int = typer.Option(0, "--seed", "-s", min=0, help="Seed for the choice and the order of the faults to try."),
    per_package: int | None = typer.Option(None, min=1, help="Maximum tasks per package. Default: an equal share."),
    timeout: float = typer.Option(300.0, min=1, help="Time limit in seconds for a run of a package's tests."),
    bundled: bool = typer.Option(
        False,
        "--bundled",
        help="Accept packages that pip or setuptools bundle. Agents could read the answer in that copy.",
    ),
    image: str = typer.Option(
        "",
        help="With swebench: Docker image of each row, such as sweb.eval.x86_64.{instance_id}; any column can be used.",
    ),
    workdir: str = typer.Option("/testbed", help="With swebench: folder of the repository in the image."),
) -> None:
    """Make repair tasks as Harbor folders: faults are put into packages and found by the packages' own tests.

    Each fault makes at least one test fail and leaves the others passing. The tests run in the local sandbox.

    The exit code is 1 if no task could be made from a package or row.
    """
    first, *rest = what
    if first == "swebench":
        _rows(rest, out, image, workdir)
        return
    if image:
        raise UsageError("--image is for `rollenv forge swebench ROWS`; forged tasks bring their own Dockerfile")
    from rollenv.plugins.forge.forge import forge

    with _progress(min(count, (per_package or count) * len(what))) as watch:
        results = forge(
            what, out, count=count, seed=seed, per_package=per_package, timeout=timeout, bundled=bundled, watch=watch
        )
    errors = {each.package: each.error for each in results if each.error}
    print_result({"folder": str(out), "tasks": sum(len(each.tasks) for each in results), "errors": errors})
    _print(results, out)
    if errors:
        raise typer.Exit(1)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Watch]:
    """Show a progress bar on a terminal, elsewhere occasional lines."""
    done = dict[str, int]()
    with progress("tasks", total) as show:

        def watch(result: Forged) -> None:
            done[result.package] = len(result.tasks)
            show(sum(done.values()), f"{result.package}, {result.tried.total()} faults tried")

        yield watch


def _print(results: list[Forged], out: Path) -> None:
    rows = []
    for result in results:
        if result.error:
            error_console.print(f"no task: {result.error}", markup=False, soft_wrap=True)
            continue
        why = ", ".join(f"{count} {name}" for name, count in result.tried.most_common() if name != "kept")
        numbers = (len(result.tasks), result.tried.total(), result.left_out)
        rows.append([result.package, *map(str, numbers), why])
    print_table(["package", "tasks", "faults tried", "tests left out", "why faults made no task"], rows)
    _print_count(sum(len(result.tasks) for result in results), out)


def _print_count(tasks: int, out: Path) -> None:
    console.print(f"{tasks} task{'s' * (tasks != 1)} in {out}", markup=False, soft_wrap=True)


def _rows(rest: list[str], out: Path, image: str, workdir: str) -> None:
    from rollenv.plugins.forge.swebench import import_swebench

    if len(rest) != 1 or not image:
        raise UsageError("SWE-bench rows are read with `rollenv forge swebench ROWS --out DIR --image TEMPLATE`")
    done = import_swebench(Path(rest[0]), out, image, workdir=workdir)
    for label, why in done.errors.items():
        error_console.print(f"{label}: {why}", markup=False, soft_wrap=True)
    _print_count(len(done.tasks), out)
    print_result({"folder": str(out), "tasks": len(done.tasks), "errors": done.errors})
    if done.errors:
        raise typer.Exit(1)
