"""Updates beside TRL's, on the same turns of 16 and 64 played episodes: processor seconds of one pass over a batch.

Both sides get the same model, tokens and advantages, compute in float32 and take one step of AdamW from one pass; the
rounds take turns. ``make peers`` installs TRL.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import ROOT, header, save, table
from real_model_speed import UPDATE, with_trl

#: Two with the tiny model, whose prompts are a board and a whole chat, and one with SmolLM2-135M (half an hour).
RECIPES = ("sokoban", "tools", "smollm2_arithmetic")
SIZES = {16: (2, 8), 64: (8, 8)}
ONE_STEP = ["optimizer.epochs=1", "optimizer.minibatch_sequences=1000000", "optimizer.lr=1e-8"]


def prepare(folder: Path, recipe: str) -> None:
    """Write the model of a recipe, and the groups of each size with an advantage for every turn."""
    from rollenv.rollout.manager import RolloutManager
    from rollenv.trainers.config import load_config
    from rollenv.trainers.ranks import ALONE
    from rollenv.trainers.training_state import begin

    parts = begin(load_config(recipe), {}, lambda *_: None, ALONE)
    parts.base_agent.save(folder / "model")
    rng = random.Random(0)
    with RolloutManager(parts.player) as manager:
        for size, (groups, copies) in SIZES.items():
            batch = manager.batch(parts.source, groups, copies)
            turns = [turn for group in batch for episode in group for turn in episode.turns]
            samples = [(list(t.prompt_ids), list(t.response_ids), list(t.logprobs), rng.gauss(0, 1)) for t in turns]
            (folder / f"groups{size}.pickle").write_bytes(pickle.dumps(batch))
            (folder / f"samples{size}.json").write_text(json.dumps(samples))


def ours(folder: Path, recipe: str, size: int) -> Callable[[], object]:
    import numpy as np

    from rollenv.agents.engines.cpu_threads import CpuThreads
    from rollenv.trainers.config import load_config
    from rollenv.trainers.ranks import ALONE
    from rollenv.trainers.run_dir import RunDir
    from rollenv.trainers.training_state import begin
    from rollenv.trainers.updater import Updater

    CpuThreads(1)  # as the commands do
    config = load_config(recipe, [f"model={folder / 'model'}", *ONE_STEP])
    updater = Updater(config, begin(config, {}, lambda *_: None, ALONE), RunDir(folder / "run"))
    groups = pickle.loads((folder / f"groups{size}.pickle").read_bytes())
    advantages = np.array([sample[3] for sample in json.loads((folder / f"samples{size}.json").read_text())])

    def update() -> None:
        data = updater.compute_advantages(groups, {})
        data.columns["advantages"] = advantages[data.sequence]
        updater.update(data)

    return update


def trl(folder: Path, _recipe: str, size: int) -> Callable[[], object]:
    return with_trl(folder, {UPDATE: json.loads((folder / f"samples{size}.json").read_text())})[UPDATE]


#: The environment of each way, whose Python runs it, and what it does.
WAYS = {"TRL": ("trl", trl), "rollenv": ("", ours)}


def measure(way: str, folder: Path, recipe: str, repeats: int) -> None:
    """Print the processor seconds of each update, by the number of episodes."""
    import torch

    torch.set_num_threads(1)
    found: dict[int, list[float]] = {}
    for size in SIZES:
        update = WAYS[way][1](folder, recipe, size)
        update()
        for _ in range(repeats):
            began = time.process_time()
            update()
            found.setdefault(size, []).append(time.process_time() - began)
    print("RESULT " + json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", nargs="*", choices=RECIPES, default=RECIPES)
    parser.add_argument("--rounds", type=int, default=2, help="processes of each way")
    parser.add_argument("--repeats", type=int, default=5, help="measurements in each process")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way is not None:
        if given.way:
            measure(given.way, given.folder, given.recipes[0], given.repeats)
        else:
            prepare(given.folder, given.recipes[0])
        return
    rows = []
    for recipe in given.recipes:
        with tempfile.TemporaryDirectory() as folder:
            run("", recipe, folder, given.repeats)
            seconds: dict[tuple[str, str], list[float]] = {}
            for _ in range(given.rounds):
                for way in WAYS:
                    for size, found in run(way, recipe, folder, given.repeats).items():
                        seconds.setdefault((size, way), []).extend(found)
            for size in map(str, SIZES):
                samples = json.loads((Path(folder) / f"samples{size}.json").read_text())
                tokens = sum(len(prompt) + len(response) for prompt, response, *_ in samples)
                theirs, own = (statistics.median(seconds[size, way]) for way in WAYS)
                times = f"{theirs / own:.1f}"
                rows.append((recipe, size, len(samples), f"{tokens:,}", f"{theirs:.3f}", f"{own:.3f}", times))
    head = ("recipe", "episodes", "turns", "tokens", "TRL, s", "rollenv, s", "times")
    note = "Medians of the processor seconds of one thread for one pass and one step; a turn is a sample of TRL's.\n\n"
    save("updates_beside_trl", header() + "\n" + note + table(head, rows))


def run(way: str, recipe: str, folder: str, repeats: int) -> dict[str, Any]:
    """The result of a way, in a process of its own."""
    environment = WAYS[way][0] if way else ""
    python = str(ROOT / ".bench" / environment / "bin" / "python") if environment else sys.executable
    command = [python, __file__, "--way", way, "--folder", folder, "--recipes", recipe, "--repeats", str(repeats)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(f"{way or 'preparing'} failed:\n{done.stderr[-3000:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    result: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT ")) if lines else {}
    return result


if __name__ == "__main__":
    main()
