"""Isolates third-party use of the process-wide random generators, per environment."""

from __future__ import annotations

import contextlib
import copy
import io
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

_LOCK = threading.RLock()


class PrivateGlobals:
    """A state of ``random`` and ``numpy.random`` that belongs to one environment.

    While :meth:`swapped_in` is open the process-wide generators are in this state; afterwards they are back in the one
    they had before, and the draws have advanced only this state. One thread at a time; others that draw from the
    process-wide generators meanwhile draw from this state, which cannot be helped.
    """

    def __init__(self, seed: int):
        self._random = random.Random(seed).getstate()
        self._numpy = np.random.RandomState(seed % 2**32).get_state()

    def __deepcopy__(self, memo: dict[int, Any]) -> PrivateGlobals:
        # both states are replaced and never changed, so a shallow copy shares nothing that matters
        return copy.copy(self)

    @contextlib.contextmanager
    def swapped_in(self, *, silent: bool = False) -> Iterator[None]:
        """Lend the state to the process-wide generators; ``silent`` drops what is printed meanwhile."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(_LOCK)
            if silent:
                stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            saved = random.getstate(), np.random.get_state()
            random.setstate(self._random)
            np.random.set_state(self._numpy)
            try:
                yield
            finally:
                self._random, self._numpy = random.getstate(), np.random.get_state()
                random.setstate(saved[0])
                np.random.set_state(saved[1])
