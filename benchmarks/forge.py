"""Repair tasks forged from packages of the index: how many, how fast, and whether every one is sound.

Each package's sdist is fetched with `pip download` and forged with `rollenv forge`. Then every task is graded by its
own grader in a fresh sandbox, with nothing done and with its solution. A task is a duplicate if another one has the
same change (whatever its place), or the same faulty library.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from statistics import median

from common import header, save, table

from rollenv.plugins.forge.check import Rewards, check
from rollenv.plugins.forge.forge import Forged, forge

#: Tasks of each package: fewer where the tests take long.
PACKAGES = {
    "boltons==26.2.0": 10,
    "itsdangerous==2.2.0": 60,
    "parse==1.22.4": 90,
    "semver==3.1.1": 18,
    "tomlkit==0.15.2": 6,
    "toolz==1.0.0": 18,
}


def fetch(name: str, folder: Path) -> str:
    """The sdist of a package; one that was fetched before is not fetched again."""
    target = folder / name
    if not target.is_dir():
        words = [sys.executable, "-m", "pip", "download", "-q", "--no-binary", ":all:", "--no-deps", "-d"]
        subprocess.run([*words, str(target), name], check=True)
    return str(sorted(target.iterdir())[-1])


def library_digest(task: Path) -> str:
    """Return a digest of all files that an agent sees."""
    digest = hashlib.sha256()
    for path in sorted((task / "environment" / "app").rglob("*.py")):
        digest.update(f"{path.relative_to(task)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def rows_of(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "forge.jsonl").read_text().splitlines()]


def checked(out: Path, task: str) -> Rewards:
    """A task's rewards, measured once."""
    kept = out.parent / "checks" / f"{task}.json"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(check(out / task)))
    return Rewards(*json.loads(kept.read_text()))


def about(result: Forged, out: Path, wrong: list[str]) -> tuple[object, ...]:
    """A row of the table: a package's tasks, checked."""
    tasks = result.tasks
    rows = [row for row in rows_of(out) if f"{row['package']} {row['version']}" == result.package]
    metadata = [tomllib.loads((out / task / "task.toml").read_text())["metadata"] for task in tasks]
    rewards = [checked(out, task) for task in tasks]
    wrong += [task for task, reward in zip(tasks, rewards, strict=True) if not reward.sound]
    return (
        result.package,
        len(tasks),
        f"{sum(r.solution == 1 for r in rewards)}",
        f"{sum(r.nothing == 0 for r in rewards)}",
        len({each["operator"] for each in metadata}),
        f"{median(each['fail_to_pass'] for each in metadata):.0f}",
        f"{median(each['pass_to_pass'] for each in metadata):.0f}",
        len(rows),
        median(float(str(row["seconds"])) for row in rows if row["task"]),
        sum(float(str(row["seconds"])) for row in rows) / len(tasks),
    )


HEAD = (
    "package", "tasks", "solution 1", "nothing 0", "operators", "red tests (median)", "green tests (median)",
    "faults tried", "s of a kept fault (median)", "s per task, all faults",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", nargs="+", default=list(PACKAGES))
    parser.add_argument("--count", type=int, help="tasks of each package; by default more where tests are fast")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keeps sdists and tasks, and goes on with what is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        report(folder, options)


def report(folder: Path, options: argparse.Namespace) -> None:
    out, wrong = folder / "tasks", list[str]()
    results = list[Forged]()
    for name in options.packages:
        count = options.count or PACKAGES.get(name, 30)
        results += forge([fetch(name, folder / "sdists")], out, count=count, seed=options.seed)
    failed = [f"no task: {result.error}\n" for result in results if result.error]
    if not any(result.tasks for result in results):
        raise SystemExit("".join(failed))
    rows = [about(result, out, wrong) for result in results if result.tasks]
    failed += [f"not sound: {', '.join(wrong)}\n"] if wrong else []
    text = summary(results, out, wrong) + table(HEAD, rows) + "\nWhat became of the faults\n\n"
    tried = sum((result.tried for result in results), Counter[str]())
    text += table(("verdict", "faults"), tried.most_common())
    save("forge", header() + text + "".join(f"\n{line}" for line in failed))


def summary(results: list[Forged], out: Path, wrong: list[str]) -> str:
    tasks = [task for result in results for task in result.tasks]
    rows = rows_of(out)
    kept = [row for row in rows if row["task"]]
    changes, libraries = {row["digest"] for row in kept}, {library_digest(out / task) for task in tasks}
    spent = [float(str(row["seconds"])) for row in kept]
    every = sum(float(str(row["seconds"])) for row in rows)
    return (
        f"\n{len(tasks)} tasks of {sum(bool(result.tasks) for result in results)} packages; "
        f"{len(tasks) - len(wrong)} of them give 1 to their solution and 0 to nothing. "
        f"{len(tasks) - len(changes)} share their change with another, and {len(tasks) - len(libraries)} the whole "
        f"library. A kept fault took {median(spent):.1f} s (median), a task {every / len(tasks):.1f} s with the faults "
        f"that made none: wall-clock time, with a load average of {os.getloadavg()[1]:.1f} at the end. With --folder, "
        "what an earlier run made and checked there is counted as it is.\n\n"
    )


if __name__ == "__main__":
    main()
