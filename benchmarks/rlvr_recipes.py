"""The bundled recipes ``rlvr`` and ``rlvr_tools`` with the tiny model, as they are, from the warm-up to the end.

Runs that are already complete below ``--runs`` are not repeated.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from common import ROOT, header, save, table
from training_runs import Rows, evaluations, interval, seconds, train

RECIPES = {"rlvr": ("math:Arithmetic-v0-digit", "code"), "rlvr_tools": ("tool:Calculator-v0",)}


def success(row: dict[str, float], domain: str) -> str:
    """Format the success of one domain; the main environment has no name in the metrics."""
    prefix = f"eval/{domain}/"
    own = {f"eval/{key}": row.get(f"{prefix}{key}", row[f"eval/{key}"]) for key in ("success", "low", "high")}
    return interval(own)


def rows_of(recipe: str, seed: int, run: Rows) -> list[tuple[object, ...]]:
    """A row for each domain."""
    first, *_, last = evaluations(run)
    times = [f"{seconds(run, clock=clock) / 60:.1f}" for clock in ("time", "cpu")]
    return [(recipe, seed, name, success(first, name), success(last, name), *times) for name in RECIPES[recipe]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "rlvr_recipes")
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    rows = [
        row
        for recipe in RECIPES
        for seed in range(given.seeds)
        for row in rows_of(recipe, seed, train(recipe, given.runs / f"{recipe}-{seed}", seed, []))
    ]
    note = (
        "Success on unseen episodes by domain, with 95 % intervals (Wilson's), and the time of the whole run. Those "
        "of processors do not count sandboxes that still run. Code is tested on functions that training never asks "
        "for.\n\n"
    )
    head = ("recipe", "seed", "domain", "before RL (95 %)", "after RL (95 %)", "minutes", "of processors")
    save("rlvr_recipes", header() + "\n" + note + table(head, rows))


if __name__ == "__main__":
    main()
