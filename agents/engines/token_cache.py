"""A least-recently-used cache with a bound in bytes."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

#: Bytes of an entry in addition to its key and value.
_ENTRY = 200


class Remembered(Generic[K, V]):
    """Cached results of a function; the least recently used are dropped.

    Args:
        max_bytes: approximate maximum size of keys and values.
    """

    def __init__(self, function: Callable[[K], V], max_bytes: int = 1 << 26):
        self.function, self.max_bytes = function, max_bytes
        self.bytes = 0
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __call__(self, key: K) -> V:
        """Return the function's value."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = self._values[key] = self.function(key)
        self.bytes += _ENTRY + size(key) + size(value)
        while self.bytes > self.max_bytes:
            old_key, old_value = self._values.popitem(last=False)
            self.bytes -= _ENTRY + size(old_key) + size(old_value)
        return value


def size(value: Any) -> int:
    """Return the bytes of a number, a text, a tuple of numbers, or a dictionary of arrays or tensors."""
    if isinstance(value, dict):
        return sum(each.nbytes for each in value.values())
    return sys.getsizeof(value) + (28 * len(value) if isinstance(value, tuple) else 0)
