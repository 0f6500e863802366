"""Draws a solved episode of a training run as a strip of pictures (docs/images/sokoban_episode.svg)."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from common import ROOT

CELL = 16
COLOURS = {
    "#": "#57606a",
    "_": "#f3ead7",
    "O": "#f3ead7",
    "X": "#b87333",
    "√": "#2da44e",
    "P": "#f3ead7",
    "S": "#f3ead7",
}


def cell(symbol: str, x: int, y: int) -> str:
    """One square of the room."""
    parts = [f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{COLOURS[symbol]}"/>']
    centre = f'cx="{x + CELL / 2}" cy="{y + CELL / 2}"'
    if symbol in "OS":
        parts.append(f'<circle shape-rendering="auto" {centre} r="3" fill="none" stroke="#d1242f" stroke-width="1.5"/>')
    if symbol in "PS":
        parts.append(f'<circle shape-rendering="auto" {centre} r="5" fill="#1f6feb"/>')
    return "".join(parts)


def frame(view: str, caption: str, left: int) -> str:
    """One state with what the agent did next below it."""
    rows = [line.split() for line in view.splitlines()]
    cells = [cell(s, left + j * CELL, i * CELL) for i, row in enumerate(rows) for j, s in enumerate(row)]
    x, y = left + len(rows[0]) * CELL / 2, len(rows) * CELL + 15
    style = 'text-anchor="middle" font-family="monospace" font-size="12" fill="#8b949e"'
    return "".join(cells) + f'<text x="{x}" y="{y}" {style}>{caption}</text>'


def draw(episode: dict[str, Any]) -> str:
    frames = [(t["view"], t["text"]) for t in episode["turns"]] + [(episode["final_view"], "solved")]
    size = len(frames[0][0].splitlines()) * CELL
    body = "\n".join(frame(view, caption, i * (size + 12)) for i, (view, caption) in enumerate(frames))
    width, height = len(frames) * (size + 12) - 12, size + 22
    attributes = f'viewBox="0 0 {width} {height}" shape-rendering="crispEdges"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {attributes}>\n{body}\n</svg>\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("--turns", type=int, default=8, help="the most turns to draw")
    options = parser.parse_args()
    episodes = [json.loads(line) for line in (options.run / "episodes.jsonl").read_text().splitlines()]
    last = episodes[-1]["iteration"]
    fitting = [e for e in episodes if e["iteration"] == last and e["success"] and len(e["turns"]) <= options.turns]
    longest = max(fitting, key=lambda e: len(e["turns"]))
    (ROOT / "docs/images/sokoban_episode.svg").write_text(draw(longest), encoding="utf-8")


if __name__ == "__main__":
    main()
