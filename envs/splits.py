"""Disjoint train and test splits of generated tasks."""

from __future__ import annotations

import zlib

from rollenv.core.errors import UsageError

SPLITS = ("all", "train", "test")


def check_split(split: str) -> None:
    """Raise a UsageError for an unknown split."""
    if split not in SPLITS:
        raise UsageError(f"split {split!r} is unknown; choose from {', '.join(SPLITS)}")


def in_split(name: str, split: str, share: int) -> bool:
    """Return whether a task belongs to a split. ``share``: one in this many tasks is a test task."""
    return split == "all" or (zlib.crc32(name.encode()) % share == 0) == (split == "test")
