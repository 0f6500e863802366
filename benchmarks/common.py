"""What every benchmark prints first, so that a number can be traced to how it came about."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"


def header() -> str:
    """The command, the processor cores this process may use, and the date."""
    script = Path(sys.argv[0]).resolve().relative_to(ROOT)
    command = " ".join(["python", str(script), *sys.argv[1:]])
    cores = len(os.sched_getaffinity(0))
    return (
        f"$ {command}\n{cores} CPU core{'s' * (cores > 1)}, Python {sys.version.split()[0]}, {datetime.date.today()}\n"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; floats with three significant digits."""
    cells = [[f"{c:.3g}" if isinstance(c, float) else str(c) for c in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]) + "\n"


def save(name: str, text: str) -> None:
    """Print a result and keep it in benchmarks/results/NAME.md."""
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
