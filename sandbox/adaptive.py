"""Timeouts that follow how long correct programs took (RollPacker, NSDI 2026, section on adaptive timeouts)."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from rollenv.core import UsageError


class AdaptiveTimeout:
    """T = min(max(factor * anchor, least), most), where the anchor is the longest time of a correct program so far.

    Anchors are kept for each test case and shared by all threads. Until a case has seen a correct program, its timeout
    is ``most``.

    Args:
        factor: multiple of the anchor (the paper's lambda).
        least, most: bounds in seconds.
    """

    def __init__(self, factor: float = 1.5, least: float = 2.0, most: float = 30.0):
        if not (factor >= 1 and 0 < least <= most):
            raise UsageError(f"factor must be at least 1 and 0 < least <= most; got {factor}, {least} and {most}")
        self.factor, self.least, self.most = factor, least, most
        self._anchors: dict[Hashable, float] = {}
        self._lock = threading.Lock()

    def timeout(self, case: Hashable) -> float:
        """Seconds for the next program on this test case."""
        anchor = self._anchors.get(case)
        return self.most if anchor is None else min(max(self.factor * anchor, self.least), self.most)

    def record(self, case: Hashable, seconds: float, correct: bool) -> None:
        """Record the time of a program that ended by itself.

        Args:
            case: key of the test case.
            correct: whether its answer was right; others are ignored.
        """
        if correct:
            with self._lock:
                self._anchors[case] = max(seconds, self._anchors.get(case, 0.0))
