"""Train and test tasks that never overlap, for generated tasks."""

from __future__ import annotations

import zlib

from rollenv.errors import UsageError

SPLITS = ("all", "train", "test")


def check_split(split: str) -> None:
    """Raise a UsageError for a split that does not exist."""
    if split not in SPLITS:
        raise UsageError(f"split {split!r} is unknown; choose from {', '.join(SPLITS)}")


def in_split(name: str, split: str, share: int) -> bool:
    """Return whether a task belongs to a split.

    Args:
        name: of the task; equal tasks have equal names.
        split: one of :data:`SPLITS`; ``all`` is the other two together.
        share: one task in so many is a test task.
    """
    return split == "all" or (zlib.crc32(name.encode()) % share == 0) == (split == "test")
