"""Suites of tasks, results of agents on them, and comparisons of agents (`rollenv bench`)."""

import rollenv.rollout  # noqa: F401  whole before its modules, else threads that import both deadlock
from rollenv.bench.compare import Comparison, compare
from rollenv.bench.run import Benchmark, run
from rollenv.bench.suites import Part, Suite, suite, suites

__all__ = ["Benchmark", "Comparison", "Part", "Suite", "compare", "run", "suite", "suites"]
