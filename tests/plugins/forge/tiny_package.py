"""A small package with tests, written by the tests that need one."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

LIBRARY = '''\
"""Lists of numbers."""


def largest(numbers, default=None):
    best = default
    for number in numbers:
        if best is None or number > best:
            best = number
    return best


def clipped(number, low, high):
    if low > high:
        raise ValueError("low is above high")
    return min(max(number, low), high)


class Counter:
    def __init__(self):
        self.counts = {}

    def add(self, word, times=1):
        self.counts[word] = self.counts.get(word, 0) + times

    def total(self):
        return sum(self.counts.values())


def never_tested(number):
    return number - 1
'''

TESTS = """\
import os

import pytest

from tinylib import Counter, clipped, largest


@pytest.mark.parametrize("numbers, want", [([1, 3, 2], 3), ([-2, -1], -1), ([], None)])
def test_largest(numbers, want):
    assert largest(numbers) == want


def test_clipped():
    assert [clipped(n, 0, 5) for n in (-1, 3, 9)] == [0, 3, 5]


def test_clipped_needs_order():
    with pytest.raises(ValueError):
        clipped(1, 5, 0)


class TestCounter:
    def test_total(self):
        counter = Counter()
        counter.add("a")
        counter.add("a", 2)
        assert counter.total() == 3

    def test_new(self):
        assert Counter().total() == 0


def test_that_fails_before_any_change():
    assert largest([1]) == 2


def test_that_is_green_once():
    assert os.environ["PYTHONHASHSEED"] == "0"


def test_that_needs_what_is_not_required():
    import libcst
"""

PKG_INFO = """\
Metadata-Version: 2.1
Name: tinylib
Version: 1.2
License: MIT
"""


def files() -> dict[str, str]:
    return {
        "PKG-INFO": PKG_INFO,
        "src/tinylib/__init__.py": LIBRARY,
        "tests/test_tinylib.py": TESTS,
        "build/lib/tinylib/__init__.py": LIBRARY,
        "docs/copy.txt": LIBRARY,
        "other/copy.txt": LIBRARY,
    }


def sdist(folder: Path, members: dict[str, str] | None = None, root: str = "tinylib-1.2") -> Path:
    """An sdist of the package, or of other files."""
    path = folder / f"{root}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in (files() if members is None else members).items():
            entry = tarfile.TarInfo(f"{root}/{name}")
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return path
