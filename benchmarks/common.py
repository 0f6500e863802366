"""What every benchmark prints first, so that a number can be traced to how it came about."""

from __future__ import annotations

import datetime
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
#: Output folder of results and pictures: build/bench, so that a small run spoils no result, or $ROLLENV_BENCH_OUT, of
#: which "repository" are the places of the results that the documentation quotes.
_OUT = os.environ.get("ROLLENV_BENCH_OUT") or str(ROOT / "build" / "bench")
RESULTS = Path(_OUT) if _OUT != "repository" else Path(__file__).parent / "results"
IMAGES = Path(_OUT) if _OUT != "repository" else ROOT / "docs" / "images"
IMAGES.mkdir(parents=True, exist_ok=True)


def header() -> str:
    """The command, the processor cores this process may use, and the date."""
    script = Path(sys.argv[0]).resolve().relative_to(ROOT)
    command = " ".join(["python", str(script), *sys.argv[1:]])
    cores = len(os.sched_getaffinity(0))
    torch = sys.modules.get("torch")
    gpu = f"{torch.cuda.get_device_name()}, " if torch and torch.cuda.is_available() else ""
    return (
        f"$ {command}\n{gpu}{cores} CPU core{'s' * (cores > 1)}, "
        f"Python {sys.version.split()[0]}, {datetime.date.today()}\n"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; floats with three significant digits."""
    cells = [[f"{c:.3g}" if isinstance(c, float) else str(c) for c in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]) + "\n"


def save(name: str, text: str) -> None:
    """Print a result and keep it in ``RESULTS`` as NAME.md, and its tables as NAME.json beside it."""
    print(text)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    (RESULTS / f"{name}.json").write_text(json.dumps(plain(text), indent=1) + "\n", encoding="utf-8")
    print(f"written to {RESULTS / name}.md")


def plain(text: str) -> dict[str, Any]:
    """A result as data: the command, the machine and the date, and every table with the text before it."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("$ "))
    command, machine = lines[start : start + 2]
    tables: list[dict[str, Any]] = []
    told = [line for line in lines[:start] if line.strip()]
    for line in lines[start + 2 :]:
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("|"):
            told += [line] if line.strip() else []
        elif line.lstrip("|").startswith("-"):
            continue
        elif told or not tables or len(cells) != len(tables[-1]["head"]):
            tables.append({"about": "\n".join(told), "head": cells, "rows": []})
            told = []
        else:
            tables[-1]["rows"].append([_value(cell) for cell in cells])
    return {"command": command.removeprefix("$ "), "machine": machine, "tables": tables, "notes": "\n".join(told)}


def _value(cell: str) -> str | float:
    try:
        return float(cell)
    except ValueError:
        return cell
