"""Tasks from packages: faults are tried one after another until there are enough tasks."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from rollenv.core.errors import RollenvError, UsageError, writes
from rollenv.plugins.forge.baseline import Baseline, measure
from rollenv.plugins.forge.folders import write_task
from rollenv.plugins.forge.judge import judge
from rollenv.plugins.forge.mutants import Mutant, diff_digest, mutants_of, normal_form
from rollenv.plugins.forge.sources import BadPackage, Package, is_bundled, load
from rollenv.plugins.forge.suite import Suite
from rollenv.sandbox import BaseSandboxError

NAME = "forge.jsonl"


@dataclass(frozen=True)
class Tried:
    """A mutant with its verdict.

    Args:
        why: the verdict: ``kept``, ``duplicate``, ``equivalent``, ``invalid``, ``crowded``, ``told`` (another file of
            the project has the answer) or one of the judge's.
        function: first line of the function around it, as ``path:line``.
        task: folder of the task, if it was kept.
        digest: hash of the change, regardless of its position.
    """

    package: str
    version: str
    seed: int
    key: str
    why: str
    function: str = ""
    task: str = ""
    digest: str = ""
    seconds: float = 0.0


class Manifest:
    """The rows of ``forge.jsonl`` in a folder of tasks, which is created if it is missing.

    A truncated last line is dropped, and so are tasks without their folder, which will be made again.
    """

    def __init__(self, folder: Path):
        with writes(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.path = folder, folder / NAME
        self.rows = [row for row in self._read() if not row.task or (folder / row.task / "task.toml").is_file()]
        self.digests = {row.digest for row in self.rows if row.why == "kept"}

    def _read(self) -> Iterator[Tried]:
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            self.path.write_bytes(whole)
        names = {one.name for one in fields(Tried)}
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                row = json.loads(line)
                yield Tried(**{name: row[name] for name in names})
            except (ValueError, KeyError, TypeError) as error:
                raise RollenvError(f"{self.path}, line {number} is damaged: {error!r}; remove it to go on") from error

    def add(self, row: Tried) -> None:
        """Add a row, and append it to the file."""
        with writes(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        self.rows.append(row)
        if row.why == "kept":
            self.digests.add(row.digest)

    def of(self, package: str, version: str, seed: int) -> dict[str, Tried]:
        """Return the rows of a package, by key."""
        wanted = (package, version, seed)
        return {row.key: row for row in self.rows if (row.package, row.version, row.seed) == wanted}


#: Maximum number of tasks about one function, for variety.
_MOST_OF_FUNCTION = 3


@dataclass
class Forged:
    """The tasks from one package.

    Args:
        tasks: folders of its tasks, including earlier ones.
        tried: number of mutants by verdict.
        left_out: tests that did not pass every time.
        error: the reason why there are no tasks, if so.
    """

    package: str
    tasks: list[str] = field(default_factory=list)
    tried: Counter[str] = field(default_factory=Counter)
    left_out: int = 0
    error: str = ""


#: Called after each mutant, with the results for its package so far.
Watch = Callable[[Forged], None]


def forge(
    packages: Sequence[str],
    out: Path | str,
    *,
    count: int = 100,
    seed: int = 0,
    per_package: int | None = None,
    timeout: float = 300.0,
    bundled: bool = False,
    watch: Watch = lambda _: None,
) -> list[Forged]:
    """Make tasks from packages, or resume an earlier run in the folder. The same seed makes the same tasks.

    An unusable package does not end the run; its error is in the result.

    Args:
        packages: sdists, unpacked folders or requirements.
        count: total number of tasks.
        seed: determines the order of faults.
        per_package: maximum number of tasks per package; by default an equal share.
        timeout: time limit of a run of a package's tests, in seconds.
        bundled: accept packages that pip or setuptools bundle, whose copy reveals the answer to agents.
        watch: called after each mutant.

    Raises:
        UsageError: a number is not above 0, or there is no package.
        BadPackage: a package is given twice, or the only package is unusable.
    """
    if not packages or count < 1 or (per_package is not None and per_package < 1) or not timeout > 0:
        raise UsageError("forge needs at least one package; count, per_package and timeout must be above 0")
    manifest, done, results, seen = Manifest(Path(out)), 0, list[Forged](), set[str]()
    for number, what in enumerate(packages):
        share = -((done - count) // (len(packages) - number))  # a package's shortfall goes to the later ones
        wanted = min(share, per_package or share, count - done)
        try:
            package = load(what)
            if is_bundled(package.name) and not bundled:
                raise BadPackage(
                    f"{package.title}: pip or setuptools have a copy of it, where agents could read the answer; "
                    "--bundled (bundled=True) takes it all the same"
                )
            if package.title in seen:
                raise BadPackage(f"{what} is {package.title}, which was given before")
            seen.add(package.title)
            result = _forge_package(package, manifest, seed, wanted, timeout, watch)
        except UsageError:
            raise
        except (RollenvError, BaseSandboxError) as error:
            result = Forged(what, error=str(error))
        done += len(result.tasks)
        results.append(result)
    return results


def _forge_package(
    package: Package, manifest: Manifest, seed: int, wanted: int, timeout: float, watch: Watch
) -> Forged:
    tried = manifest.of(package.name, package.version, seed)
    result = Forged(package.title)
    for row in tried.values():
        _count(result, row)
    watch(result)
    if len(result.tasks) >= wanted:
        return result
    with Suite(package, timeout) as suite:
        baseline = measure(suite)
        result.left_out = len(baseline.left_out)
        trial = _Trial(package, suite, baseline, manifest, seed)
        reached = {at for at, tests in baseline.calls.items() if tests}
        for mutant in mutants_of(package.sources, reached, f"{seed} {package.title}"):
            if len(result.tasks) >= wanted:
                break
            if mutant.key not in tried:
                row = trial.attempt(mutant)
                manifest.add(row)
                _count(result, row)
                watch(result)
    if not result.tried:
        raise BadPackage(f"{package.title}: its tests call no function of {', '.join(package.libraries)}")
    return result


def _count(result: Forged, row: Tried) -> None:
    result.tried[row.why] += 1
    if row.task:
        result.tasks.append(row.task)


class _Trial:
    """Tries the mutants of a package, and writes the tasks."""

    def __init__(self, package: Package, suite: Suite, baseline: Baseline, manifest: Manifest, seed: int):
        self.package, self.suite, self.baseline, self.manifest, self.seed = package, suite, baseline, manifest, seed
        self.originals = {path: normal_form(text) or "" for path, text in package.sources.items()}
        rows = manifest.of(package.name, package.version, seed).values()
        self.crowd = Counter(row.function for row in rows if row.task and row.function)

    def attempt(self, mutant: Mutant) -> Tried:
        """Try one mutant and return its row."""
        start = time.monotonic()
        function = f"{mutant.path}:{mutant.function.start}" if mutant.function else ""
        row = Tried(self.package.name, self.package.version, self.seed, mutant.key, "crowded", function)
        if self.crowd[function] < _MOST_OF_FUNCTION or not function:
            row = self._judged(mutant, row)
        self.crowd[function] += bool(row.task)
        return replace(row, seconds=round(time.monotonic() - start, 3))

    def _judged(self, mutant: Mutant, row: Tried) -> Tried:
        before, after = self.originals[mutant.path], normal_form(mutant.source)
        if after is None or after == before:
            return replace(row, why="invalid" if after is None else "equivalent")
        row = replace(row, digest=diff_digest(before, after))
        if row.digest in self.manifest.digests:
            return replace(row, why="duplicate")
        if mutant.is_revealed_by(self.package.sources[mutant.path], self.package.files):
            return replace(row, why="told")
        verdict = judge(self.suite, self.baseline, mutant)
        if not verdict.kept:
            return replace(row, why=verdict.why)
        name = f"{self.package.name}-{row.digest[:10]}".lower()
        write_task(self.manifest.folder / name, self.package, self.baseline, mutant, verdict)
        return replace(row, why="kept", task=name)
