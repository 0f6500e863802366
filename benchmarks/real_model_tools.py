"""A real model learns to call tools with its own template: before, after a short SFT, after RL, on unseen orders.

    python benchmarks/real_model_tools.py FILE.gguf --seeds 3

The orders of ``tools:Tiny-v0`` need three answers: ``find`` by a name, a call with the id that it returned, and
"Done.". A model that never calls ``find`` gets no reward to learn from, so it sees some of the expert's episodes first.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from common import IMAGES, ROOT, header, save, table
from training_runs import Picture, Rows, cost, draw, evaluations, interval

from rollenv.trainers.run_dir import read_rows

#: Adapters, products in bfloat16, and the chat with the functions in the template.
COMMON = (
    *("env.kwargs.calls=native", "model.lora.rank=16", "model.precision=bfloat16", "player.precision=bfloat16"),
    *("prompt.kind=conversation", "prompt.tools=template", "rollout.max_new_tokens=40", "eval.episodes=100"),
    *("optimizer.warmup_iterations=0", "report.tokens=0"),
)
SFT = ("batches.episodes=100", "batches.size=6", "iterations=4", "eval.every=4", "optimizer.lr=6e-4")
RL = (
    *("iterations=10", "rollout.groups_per_batch=4", "rollout.group_size=8", "eval.every=5", "algorithm.name=grpo"),
    *("optimizer.lr=2e-4",),
)


def run(folder: Path, command: str, *settings: str) -> Rows:
    """The metrics of a run, which is made if it is not there."""
    if not (folder / "report.html").exists():
        words = (command, "tools:Tiny-v0", f"run_dir={folder}", *COMMON, *settings)
        subprocess.run([sys.executable, "-m", "rollenv", *words], check=True)
    return list(read_rows(folder / "metrics.jsonl"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a model's folder or GGUF file")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "real_model_tools")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    rows, curves = [], []
    for seed in range(given.seeds):
        taught = given.runs / f"sft-{seed}"
        sft = run(taught, "sft", f"model.path={given.model}", f"seed={seed}", *SFT)
        rl = run(given.runs / f"rl-{seed}", "train", f"model.path={taught}", f"seed={seed}", *RL)
        before, after = evaluations(sft)[0], evaluations(rl)
        rows.append((seed, *map(interval, (before, after[0], after[-1])), cost(sft), cost(rl)))
        curves.append(rl)
    file = IMAGES / "real_model_tools_curve.svg"
    draw({"GRPO, LoRA": curves}, Picture(file, "success on unseen orders", 1.0, 0.0, ("iteration",)))
    head = ("seed", "before (95 %)", "after SFT", "after RL", "SFT, s (of processors)", "RL, s (of processors)")
    about = f"{Path(given.model).name}, 100 unseen orders, sampled at temperature 1. "
    about += f"SFT: {' '.join(SFT)}. RL: {' '.join(RL)}"
    save("real_model_tools", f"{header()}\n{about}\n\n{table(head, rows)}")


if __name__ == "__main__":
    main()
