"""Packages that seem installed."""

from __future__ import annotations

from pathlib import Path


def declare(folder: Path, name: str, points: str) -> None:
    """Write what pip would of a package with these entry points; its modules lie in the same folder."""
    about = folder / f"{name}-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(points)
