"""Isolation of the process-wide random generators, per environment."""

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
    """A private state of ``random`` and ``numpy.random`` for one environment.

    Within :meth:`swapped_in`, the process-wide generators have this state; afterwards they have their own again. One
    thread at a time; draws of other threads in the meantime come from this state, which cannot be prevented.
    """

    def __init__(self, seed: int):
        self._random = random.Random(seed).getstate()
        self._numpy = np.random.RandomState(seed % 2**32).get_state()

    def __deepcopy__(self, memo: dict[int, Any]) -> PrivateGlobals:
        # both states are replaced, never modified, so a shallow copy is enough
        return copy.copy(self)

    @contextlib.contextmanager
    def swapped_in(self, *, silent: bool = False) -> Iterator[None]:
        """Give the process-wide generators this state during the block; ``silent`` drops printed text."""
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
