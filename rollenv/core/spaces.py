"""The space of all texts, with what Gymnasium's wrappers and the shared memory of its vectors need of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces.utils import flatten, flatten_space, unflatten
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory
from gymnasium.wrappers.utils import create_zero_array

#: Maximum size of an observation in shared memory, in bytes of UTF-8.
MAX_SHARED = 65_536
_LENGTH = 4


class TextSpace(gymnasium.spaces.Space[str]):
    """All strings. ``gymnasium.spaces.Text`` needs a finite alphabet and length, which natural language lacks."""

    def __init__(self, seed: int | None = None):
        super().__init__(shape=None, dtype=None, seed=seed)

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Sample up to 20 printable ASCII characters."""
        return "".join(map(chr, self.np_random.integers(32, 127, size=int(self.np_random.integers(0, 21)))))

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace)

    def __hash__(self) -> int:
        return hash(TextSpace)

    def __repr__(self) -> str:
        return "TextSpace()"


@create_zero_array.register(TextSpace)
def _zero(space: TextSpace) -> str:  # type: ignore[misc]
    return ""


@flatten_space.register(TextSpace)
def _flat_space(space: TextSpace) -> TextSpace:
    return space


@flatten.register(TextSpace)
@unflatten.register(TextSpace)
def _flat(space: TextSpace, x: str) -> str:  # type: ignore[misc]
    return x


class _Shared(Sequence[str]):
    """A live view of the texts in shared memory, which Gymnasium reads once; a copy is a tuple."""

    def __init__(self, memory: Any, n: int):
        self._memory, self._n = memory, n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return tuple(self)[i]
        if not -self._n <= i < self._n:
            raise IndexError(i)
        cell = _cell(self._memory, i % self._n)
        length = int.from_bytes(cell[:_LENGTH].tobytes(), "little")
        return cell[_LENGTH : _LENGTH + length].tobytes().decode("utf-8", "surrogatepass")

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)


def _cell(memory: Any, i: int) -> Any:
    """Return the bytes of one text: its length, then the text."""
    return np.frombuffer(memory.get_obj(), dtype=np.uint8).reshape(-1, _LENGTH + MAX_SHARED)[i]


@create_shared_memory.register(TextSpace)
def _create(space: TextSpace, n: int = 1, ctx: Any = None) -> Any:
    import multiprocessing

    return (ctx or multiprocessing).Array("B", n * (_LENGTH + MAX_SHARED))


@read_from_shared_memory.register(TextSpace)
def _read(space: TextSpace, shared_memory: Any, n: int = 1) -> _Shared:
    return _Shared(shared_memory, n)


@write_to_shared_memory.register(TextSpace)
def _write(space: TextSpace, index: int, value: str, shared_memory: Any) -> None:
    text = value.encode("utf-8", "surrogatepass")
    if len(text) > MAX_SHARED:
        raise ValueError(
            f"an observation of {len(text)} bytes does not fit into shared memory ({MAX_SHARED}); "
            "make the vector with shared_memory=False"
        )
    cell = _cell(shared_memory, index)
    cell[:_LENGTH] = np.frombuffer(len(text).to_bytes(_LENGTH, "little"), dtype=np.uint8)
    cell[_LENGTH : _LENGTH + len(text)] = np.frombuffer(text, dtype=np.uint8)
