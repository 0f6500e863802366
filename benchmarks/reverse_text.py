"""Reverse-text in prime-rl's shape with a small model: before, after SFT, after 20 steps of RL, on unseen texts.

    python benchmarks/reverse_text.py --seeds 3 --out benchmarks/results/reverse_text.md

The questions ask for a word's letters in reverse. The reward is the similarity of the answer and the reversed word:
twice their common letters in order, by both lengths, as prime-rl's. Everything runs by the command line.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import subprocess
import sys
import time
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

SYLLABLES = [a + b for a in "bcdfgklmnprstv" for b in "aeiou"]
TASK = "data:{}/words.jsonl"
COMMON = ["rollout.max_new_tokens=16", "eval.every=1000", "checkpoint_every=1000", "prompt.examples=0"]


def similarity(answer: str, row: dict[str, Any]) -> float:
    """Return the similarity of an answer and the right one, 0 to 1."""
    said = answer.strip()
    return SequenceMatcher(None, said, row["answer"]).ratio() if len(said) <= 4 * len(row["answer"]) else 0.0


def write_words(file: Path, unseen: int) -> None:
    """Write a file of questions, of which rollenv holds a share out."""
    rng = random.Random(0)
    words: set[str] = set()
    while len(words) < 5 * unseen:
        words.add("".join(rng.choice(SYLLABLES) for _ in range(rng.choice((2, 3)))))
    ask = "Reverse the letters: {}"
    rows = [{"question": ask.format(" ".join(word)), "answer": " ".join(word[::-1])} for word in sorted(words)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def rollenv(folder: Path, *words: str) -> None:
    """Run a command in a folder."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run([sys.executable, "-m", "rollenv", *words], cwd=folder, check=True, env=environment)


def evaluations(run: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's metrics with an evaluation."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "eval/trained_reward" in row or "eval/success" in row]


def one_seed(folder: Path, seed: int, unseen: int, sft: list[str], rl: list[str]) -> list[dict[str, Any]]:
    """Return the evaluations before, after SFT, and after RL."""
    task, own = TASK.format(folder), ["rewards.function=reverse_text:similarity", "env.kwargs.grader=text"]
    graded = ["eval.kwargs.grader=text", f"eval.episodes={unseen}", f"seed={seed}", "eval.temperature=0"]
    learned, played = folder / f"sft-{seed}", folder / f"rl-{seed}"
    if not (learned / "report.html").exists():
        rollenv(folder, "sft", task, "model=smollm2-135m", f"run_dir={learned}", *COMMON, *graded, *sft)
    if not (played / "report.html").exists():
        step = sorted((learned / "checkpoints").glob("step-*"))[-1]
        rollenv(folder, "train", task, f"model={step}", f"run_dir={played}", *COMMON, *own, *graded, *rl)
    begun, taught = evaluations(learned)[0], evaluations(played)
    return [begun, taught[0], taught[-1]]


def main() -> None:
    """Run all seeds and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("/tmp/reverse_text"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--unseen", type=int, default=300)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sft", nargs="*", default=["batches.episodes=320", "batches.epochs=1"])
    parser.add_argument("--rl", nargs="*", default=["iterations=20", "rollout.groups_per_batch=16"])
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    write_words(args.folder / "words.jsonl", args.unseen)
    began, lines = time.time(), []
    for seed in range(args.seeds):
        rows = one_seed(args.folder, seed, args.unseen, args.sft, args.rl)
        cells = [f"{row['eval/success']:.3f} ({row['eval/low']:.3f} to {row['eval/high']:.3f})" for row in rows]
        cells += [f"{row.get('eval/trained_reward', float('nan')):.3f}" for row in rows]
        lines.append(f"| {seed} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    head = "| seed | exact before | after SFT | after RL | similarity before | after SFT | after RL |"
    text = [
        f"{args.unseen} unseen words, greedy; SmolLM2-135M-Instruct. `python {' '.join(sys.argv)}`; "
        f"{os.cpu_count()} cores, {datetime.date.today()}, {time.time() - began:.0f} s beside other work.",
        *("", head, "|---|---|---|---|---|---|---|", *lines),
    ]
    if args.out:
        args.out.write_text("# Reverse text: SFT, then RL\n\n" + "\n".join(text) + "\n")


if __name__ == "__main__":
    main()
