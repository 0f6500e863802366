"""Sokoban levels: resets beside gem-llm 0.1.0, lengths of shortest solutions, and the solver on Boxoban's levels.

GEM runs in an environment of its own: ``python -m venv .bench/gem && .bench/gem/bin/pip install gem-llm==0.1.0``.
Resets are timed in turns of both projects, one process each at a time, with process CPU time. Boxoban's levels are read
from ``$ROLLENV_DATA/boxoban`` (folders ``unfiltered`` and ``medium``); without it that part is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from common import ROOT, header, save, table

import rollenv
from rollenv.envs.game.sokoban.levels import load_levels
from rollenv.envs.game.sokoban.solver import solve

IDS = ("game:Sokoban-v0-easy", "game:Sokoban-v0-hard", "game:Sokoban-v0-random")

#: Runs under either project's Python: resets for some seconds and prints how long each took.
RESETS = """
import json, sys, time
package, env_id, seconds, first = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
import nltk; nltk.download = lambda *a, **k: True
import gem as hub
"""
RESETS_OURS = RESETS.replace(
    "import nltk; nltk.download = lambda *a, **k: True\nimport gem as hub", "import rollenv as hub"
)
LOOP = """
env, times, seed = hub.make(env_id), [], first
while sum(times) < seconds or len(times) < 5:
    t = time.process_time(); env.reset(seed=seed); times.append(time.process_time() - t); seed += 1
print(json.dumps(times))
"""


def resets(seconds: float, rounds: int) -> str:
    pythons = {"gem": (ROOT / ".bench/gem/bin/python", RESETS + LOOP), "rollenv": (sys.executable, RESETS_OURS + LOOP)}
    rows = []
    for env_id in IDS:
        times: dict[str, list[float]] = {"gem": [], "rollenv": []}
        for turn in range(rounds):
            for package, (python, script) in pythons.items():
                arguments = [package, env_id, str(seconds), str(turn * 100_000)]
                done = subprocess.run([python, "-c", script, *arguments], capture_output=True, text=True, check=True)
                times[package] += json.loads(done.stdout.splitlines()[-1])
        gem, ours = times["gem"], times["rollenv"]
        ratio = statistics.mean(gem) / statistics.mean(ours)
        shown = [f"{1000 * f(x):.2f} ms" for x in (gem, ours) for f in (statistics.mean, max)]
        rows.append((env_id, *shown, f"{ratio:,.0f} x", f"{len(gem)} / {len(ours)}"))
    head = ("id", "gem-llm mean", "gem-llm max", "rollenv mean", "rollenv max", "ratio of means", "resets")
    return "## Time of a reset (CPU)\n\n" + table(head, rows)


def lengths() -> str:
    settings = (
        ("game:Sokoban-v0-tiny", {}, 500),
        ("ragen:Sokoban-v0", {}, 500),
        ("game:Sokoban-v0-easy", {}, 500),
        ("ragen:SokobanLarge-v0", {"max_turns": 100, "max_actions": 100}, 300),
        ("game:Sokoban-v0-hard", {}, 200),
        ("game:Sokoban-v0-easy", {"dim_room": (10, 10), "num_boxes": 4, "max_turns": 120}, 100),
    )
    rows = []
    for env_id, kwargs, n in settings:
        env = rollenv.make(env_id, **kwargs)
        spent, found = [], []
        for seed in range(n):
            start = time.perf_counter()
            env.reset(seed)
            spent.append(time.perf_counter() - start)
            found.append(len(solve(env.board, env.state) or ()))  # type: ignore[attr-defined]
        found.sort()
        shares = [f"{sum(x > limit for x in found) / n:.0%}" for limit in (5, 10)]
        rooms = f"{env.dim_room[0]}x{env.dim_room[1]}, {env.num_boxes} boxes"  # type: ignore[attr-defined]
        mean, worst = 1000 * statistics.mean(spent), 1000 * max(spent)
        row = (f"{statistics.mean(found):.1f} / {found[int(0.9 * n)]} / {found[-1]}", *shares)
        rows.append((env_id, rooms, n, f"{mean:.1f} ms (max {worst:.1f})", *row))
    head = ("id", "room", "levels", "generation", "moves mean / p90 / max", "> 5", "> 10")
    return "## Shortest solutions (8x8 with four boxes and larger: near-shortest)\n\n" + table(head, rows)


def boxoban(folder: Path) -> str:
    rows = []
    for name in ("unfiltered", "medium"):
        spent, solved, moves, levels = [], 0, [], load_levels(folder / name)[:200]
        for level in levels:
            start = time.perf_counter()
            plan = solve(level.board, level.start)
            spent.append(time.perf_counter() - start)
            solved += plan is not None
            moves += [len(plan)] if plan else []
        row = (
            f"{1000 * statistics.mean(spent):.0f} ms",
            f"{1000 * max(spent):.0f} ms",
            f"{statistics.mean(moves):.0f}",
        )
        rows.append((name, f"{solved} of {len(levels)}", *row))
    head = ("Boxoban 10x10, four boxes", "solved", "mean", "max", "mean moves")
    return "## The oracle on Boxoban\n\n" + table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="CPU seconds of resets in each turn")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    parts = [header(), resets(options.seconds, options.rounds), lengths()]
    if "ROLLENV_DATA" in os.environ:
        parts.append(boxoban(Path(os.environ["ROLLENV_DATA"]) / "boxoban"))
    save("sokoban_levels", "\n".join(parts))


if __name__ == "__main__":
    main()
