"""Two models that learn a seat each, and one that writes tasks for itself, by the command line.

    python benchmarks/seats.py --seeds 3 --out benchmarks/results/seats.md

Two learners: Kuhn poker, adapters of a tiny model in seat 0 and others in seat 1. Values are exact, of OpenSpiel: what
seat 0 gains on average in each pairing. Proposer and solvers: the recipe propose, whose answers are evaluated on tasks
that are drawn, not written.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from open_spiel.python import policy
from open_spiel.python.algorithms import expected_game_score

import rollenv
from rollenv.agents.local import LocalAgent
from rollenv.plugins.players import meters

RIVALS = """
iterations = 250
checkpoint_every = 250
threads = 1
[env]
id = "spiel:kuhn_poker"
kwargs = { action_format = "number" }
[model]
size = { hidden = 32, layers = 1, heads = 2, intermediate = 64, context = 16, vocabulary = 257 }
lora = { rank = 8 }
[model.warm_up]
noise = 1.0
episodes = 1000
steps = 200
lr = 3e-3
[prompt]
template = "{state}"
chat = false
[rollout]
groups_per_batch = 32
group_size = 8
max_new_tokens = 1
[seats]
others = "rival"
rotate = false
[algorithm]
name = "role_baseline"
[loss]
name = "reinforce"
entropy = 0.1
[optimizer]
lr = 1e-3
final_lr = 1.0
minibatch_sequences = 4096
[eval]
episodes = 10
every = 250
"""


def train(folder: Path, recipe: str, seed: int) -> Path:
    """Train, or go on with an earlier call's run, and return the run's folder."""
    run = folder / f"{Path(recipe).stem}-{seed}"
    command = [sys.executable, "-m", "rollenv", "train", recipe, f"run_dir={run}", f"seed={seed}"]
    if run.exists():
        command = [sys.executable, "-m", "rollenv", "train", recipe, f"run_dir={run}", "--resume"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return run


def tabular(folder: Path, env: Any, places: Any) -> Any:
    """Return a model's probabilities of moves as OpenSpiel's table."""
    table = policy.TabularPolicy(env.game)
    for key, moves in meters.policy_of(LocalAgent.load(folder), env, places)[0].items():
        row = table.policy_for_key(key)
        row[:] = 0
        for move, chance in moves.items():
            row[move] = chance
    return table


def pairings(run: Path) -> list[float]:
    """Return what seat 0 gains: each model in its seat, the first in both, the second in both, each in the other's."""
    env: Any = rollenv.make("spiel:kuhn_poker", action_format="number").unwrapped
    places = meters.information_states(env.game)
    folders = (run / "checkpoints" / "step-000250", run / "rival" / "checkpoints" / "step-000250")
    first, second = (tabular(folder, env, places) for folder in folders)
    start = env.game.new_initial_state()
    pairs = ((first, second), (first, first), (second, second), (second, first))
    return [float(expected_game_score.policy_value(start, list(pair))[0]) for pair in pairs]


def solved(run: Path) -> tuple[float, float]:
    """Return the success on drawn tasks before and after."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = [row["eval/drawn/success"] for row in rows if "eval/drawn/success" in row]
    return found[0], found[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs/benchmark-seats"), help="a folder, kept")
    args = parser.parse_args()
    lines = [
        "# Seats: two learners, and a proposer with its solvers",
        "",
        f"$ python benchmarks/seats.py --seeds {args.seeds}",
        f"{os.cpu_count()} CPU cores, Python {sys.version.split()[0]}, {datetime.date.today()}",
        "",
        "## Kuhn poker, one learner in each seat: what seat 0 gains, exactly",
        "",
        "| seed | own seats | seat 0's model in both | seat 1's model in both | each in the other's |",
        "|---|---|---|---|---|",
    ]
    args.runs.mkdir(parents=True, exist_ok=True)
    recipe = args.runs / "rivals.toml"
    recipe.write_text(RIVALS)
    for seed in range(args.seeds):
        gains = pairings(train(args.runs, str(recipe), seed))
        lines.append(f"| {seed} | {' | '.join(f'{gain:+.3f}' for gain in gains)} |")
    lines += [
        "",
        "Seat 1 loses what seat 0 gains. Seat 0's model plays worse in seat 1 than seat 1's own, against the same",
        "seat 0, where the second column is above the first.",
        "",
        "## Tasks that the model writes for itself: right answers to 300 drawn tasks",
        "",
        "| seed | before | after 60 iterations |",
        "|---|---|---|",
    ]
    for seed in range(args.seeds):
        before, after = solved(train(args.runs, "propose", seed))
        lines.append(f"| {seed} | {before:.1%} | {after:.1%} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
