"""A file system, generated."""

from __future__ import annotations

from rollenv.envs.tools.generated.variants import HARDSHIPS, SIZES, register_suite


def register_tools() -> None:
    """Register ``tools:Files-v0`` and its variants."""
    register_suite("Files", "rollenv.envs.tools.files.env:FilesEnv", {**SIZES, **HARDSHIPS})
