"""Suites of tasks, how agents do on them, and whether one does better than another: what `rollenv bench` shows."""

from rollenv.bench.compare import Comparison, compare
from rollenv.bench.run import Benchmark, run
from rollenv.bench.suites import Part, Suite, suite, suites

__all__ = ["Benchmark", "Comparison", "Part", "Suite", "compare", "run", "suite", "suites"]
