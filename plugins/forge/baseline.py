"""The results of a package's tests without a fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollenv.plugins.forge.sources import BadPackage, Package
from rollenv.plugins.forge.suite import Run, Suite, python_of_machines

#: Minimum share of passing tests for a package to be usable.
_GREEN = 0.5


@dataclass(frozen=True)
class Baseline:
    """A package's tests without a fault.

    Args:
        green: node ids that passed in every run, each with another hash seed.
        left_out: other node ids: flaky tests, and those with needs that are not met here or where tasks are graded.
        calls: node ids of the green tests that call a function, by its module and first line.
        seconds: duration of the slowest run without a trace.
    """

    green: frozenset[str]
    left_out: frozenset[str]
    calls: Mapping[tuple[str, int], frozenset[str]]
    seconds: float

    @property
    def files(self) -> tuple[str, ...]:
        """Test files with green tests."""
        return files_of(self.green)


def files_of(tests: frozenset[str] | set[str]) -> tuple[str, ...]:
    """Return the test files of node ids."""
    return tuple(sorted({test.partition("::")[0] for test in tests}))


def measure(suite: Suite) -> Baseline:
    """Run a package's tests twice, and once more with a trace of calls.

    The second run uses the host's own Python, which grades the tasks and may lack modules of this one (tkinter, say).

    Raises:
        BadPackage: the tests time out, or most of them fail.
    """
    runs = [suite.run(hash_seed=0), suite.run(hash_seed=1, python=python_of_machines())]
    for run in runs:
        _check(suite.package, run)
    green = runs[0].passed & runs[1].passed
    traced = suite.run(trace=True, seconds=suite.seconds)
    if traced.hung:
        raise BadPackage(f"{suite.package.title}: its tests do not end within {suite.seconds:g} s if they are watched")
    calls = {at: frozenset(tests) & green for at, tests in suite.calls().items() if suite.package.of_library(at[0])}
    every = {name for run in runs for name in run.outcomes}
    return Baseline(green, frozenset(every - green), calls, max(run.seconds for run in runs))


def _check(package: Package, run: Run) -> None:
    if run.hung:
        raise BadPackage(f"{package.title}: its tests do not end within {run.seconds:.0f} s; give a larger timeout")
    if not run.outcomes:
        last = (run.output.strip().splitlines() or ["nothing"])[-1]
        raise BadPackage(f"{package.title}: its tests do not run here; pytest said: {last}")
    counted = [outcome for outcome, _ in run.outcomes.values() if outcome != "skipped"]
    if counted.count("passed") < max(1, _GREEN * len(counted)):
        name, (_, why) = next((n, o) for n, o in run.outcomes.items() if o[0] != "passed")
        first = (why.strip().splitlines() or ["it says nothing"])[0]
        raise BadPackage(
            f"{package.title}: only {counted.count('passed')} of {len(counted)} tests are green before any change, "
            f"so no task can be made of it; {name}: {first}"
        )
