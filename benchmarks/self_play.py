"""Self-play of a tiny model over several seeds, for many times the steps that it needs: Kuhn poker and tic-tac-toe.

    python benchmarks/self_play.py --seeds 5 --games kuhn tic_tac_toe

Runs that are already complete below ``--runs`` are not repeated, so the seeds can be trained one by one.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common import IMAGES, ROOT, header, save, table
from training_runs import Rows, train

_COLOURS = {"average": "#1f6feb", "last": "#d1570a"}


@dataclass(frozen=True)
class Game:
    """The measure of a recipe, and the value to reach."""

    title: str
    measures: dict[str, str]
    """Metric by name; the first one is to reach the goal."""
    goal: float
    about: str


GAMES = {
    "kuhn": Game(
        "Kuhn poker, exploitability",
        {"average": "eval/average_exploitability", "last": "eval/exploitability"},
        0.05,
        "Exploitability by OpenSpiel from the model's exact probabilities. The average policy is that of the later "
        "half of the evaluations (every 20 iterations), in each information state weighted by its own probability of "
        "getting there; the last policy is the model itself.",
    ),
    "tic_tac_toe": Game(
        "Tic-tac-toe, lost games",
        {"average": "eval/average_losses", "last": "eval/losses"},
        0,
        "Games that are lost with the likeliest moves, over all replies of the opponent, in both seats. The average "
        "policy has in each position the mean probabilities of the later half of the evaluations (every 20 "
        "iterations); the last policy is the model itself.",
    ),
}


def measured(run: Rows, metric: str) -> list[tuple[int, float]]:
    """Return the iterations of a run's evaluations with a metric."""
    return [(row["iteration"], row[metric]) for row in run if metric in row]


def row_of(seed: int, run: Rows, game: Game) -> list[object]:
    """Return a seed's row: where it begins, gets there and stays, how far it strays in between, where it ends."""
    first, *_ = curves = [measured(run, metric) for metric in game.measures.values()]
    above = [at for at, value in first if value > game.goal]
    there = next((at for at, value in first if value <= game.goal), None)
    end = [round(curve[-1][1], 4) for curve in curves]
    if there is None:
        return [seed, first[0][1], "never", "", "", "", *end]
    stays = next((at for at, _ in first if at > max(above, default=-1)), "no")
    worst = max(value for at, value in first if at >= there)
    return [seed, first[0][1], there, f"{first[-1][0] / max(there, 1):.1f}", worst, stays, *end]


def draw(runs: Sequence[Rows], game: Game, file: Path) -> None:
    """Draw a thin line for each seed and a thick one for their mean."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "rollenv", "font.size": 11})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.6))
    for name, metric in game.measures.items():
        curves = [measured(run, metric) for run in runs]
        for curve in curves:
            axes.plot(*zip(*curve, strict=True), color=_COLOURS[name], alpha=0.3, linewidth=1)
        mean = [(at[0][0], sum(value for _, value in at) / len(at)) for at in zip(*curves, strict=True)]
        label = f"{name} policy, {len(runs)} seed{'s' * (len(runs) > 1)}"
        axes.plot(*zip(*mean, strict=True), color=_COLOURS[name], linewidth=2.2, label=label)
    axes.axhline(game.goal, color="#888", linewidth=0.8, linestyle=":")
    axes.set(xlabel="iteration", ylabel=game.title, ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.2)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    file.write_text("\n".join(line.rstrip() for line in file.read_text().splitlines()) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "self_play")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--games", nargs="*", default=list(GAMES), choices=list(GAMES))
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in given.games:
        game = GAMES[name]
        runs = [train(name, given.runs / f"{name}-{seed}", seed, []) for seed in range(1, given.seeds + 1)]
        draw(runs, game, IMAGES / f"self_play_{name}_curve.svg")
        head = ["seed", "start", "gets there at", "times longer", "worst after", "for good from"]
        head += [f"{policy} at the end" for policy in game.measures]
        rows = [row_of(seed, run, game) for seed, run in enumerate(runs, 1)]
        told = f"{game.title}, to be at most {game.goal}. {game.about}\n"
        save(f"self_play_{name}", "\n".join([header(), told, table(head, rows)]))


if __name__ == "__main__":
    main()
