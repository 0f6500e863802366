"""The judge of mutants: for a task, some tests must fail, the others pass, and a second run must agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rollenv.plugins.forge.baseline import Baseline, files_of
from rollenv.plugins.forge.mutants import Mutant
from rollenv.plugins.forge.suite import Run, Suite

#: Maximum share of the green tests that a fault may break.
_MOST_RED = 0.5


@dataclass(frozen=True)
class Verdict:
    """The verdict on a mutant.

    Args:
        why: ``kept``, or the reason against it: ``survived``, ``hangs``, ``uncollected``, ``ruin`` or ``flaky``.
        fail_to_pass, pass_to_pass: sorted node ids; empty if it is not kept.
    """

    why: str
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    messages: Mapping[str, str] = field(default_factory=dict)

    @property
    def kept(self) -> bool:
        return self.why == "kept"


def judge(suite: Suite, baseline: Baseline, mutant: Mutant) -> Verdict:
    """Run the tests that reach the fault, and, if one fails, all tests with another hash seed."""
    changed, limit = {mutant.path: mutant.source}, 10 + 3 * baseline.seconds
    tests = baseline.green
    if mutant.function is not None:
        tests = baseline.calls.get((mutant.path, mutant.function.start), frozenset())
    if not tests:
        return Verdict("survived")
    first = suite.run(changed, files=files_of(tests), select=tests, hash_seed=1, seconds=limit)
    if why := _useless(first):
        return Verdict(why)
    confirmed = first.failed & tests
    if not confirmed or len(confirmed) > _MOST_RED * len(baseline.green):
        return Verdict("ruin" if confirmed else "survived")
    every = suite.run(changed, files=baseline.files, seconds=limit)
    if why := _useless(every):
        return Verdict(why)
    red = baseline.green - every.passed
    if more := red - tests:  # tests that call the function during collection, say
        confirmed |= suite.run(changed, files=files_of(more), select=more, hash_seed=1, seconds=limit).failed & more
    if red != confirmed or not red <= every.failed:
        return Verdict("flaky")
    if len(red) > _MOST_RED * len(baseline.green):
        return Verdict("ruin")
    messages = {name: every.outcomes[name][1] for name in sorted(red)}
    return Verdict("kept", tuple(sorted(red)), tuple(sorted(baseline.green - red)), messages)


def _useless(run: Run) -> str:
    if run.hung:
        return "hangs"
    return "uncollected" if run.uncollected or not run.outcomes else ""
