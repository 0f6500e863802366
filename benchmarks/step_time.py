"""A GRPO step of rollenv and one of TRL: the same model, game and settings, one thread each, one after the other.

``--trl PYTHON`` names an interpreter that has TRL (``pip install trl==1.16.0 jmespath``).
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from common import ROOT, header, save, table

import rollenv
from rollenv.core.env import Env
from rollenv.trainers.config import parse_config
from rollenv.trainers.run_dir import RunDir, read_rows
from rollenv.trainers.trainer import Trainer

HIGH, TURNS = 15, 4
CALL = re.compile(r'"number":\s*(-?\d+)')


class Guess(Env):
    """TRL's side is ``step_time_trl.Guess``; here the call is in the text."""

    def reset(self, seed: int | None = None, *, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.secret, self.turns, self.found = int(self.np_random.integers(HIGH + 1)), 0, False
        return f"Find the secret number from 0 to {HIGH}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        call = CALL.search(action) if "<tool_call>" in action else None
        if call is None or self.turns == TURNS:  # as with TRL, calls beyond the last are not answered
            return "", 1.0 / self.turns if self.found else 0.0, True, False, {"success": self.found}
        self.turns += 1
        number = int(call[1])
        self.found = self.found or number == self.secret
        said = "correct" if number == self.secret else "higher" if number < self.secret else "lower"
        return said, 0.0, False, False, {"use_tool": True, "success": self.found}


def ours(folder: Path, steps: int, prompts: int, group: int, run: Path) -> list[dict[str, float]]:
    """Seconds and tokens of each step."""
    config = parse_config(
        {
            "seed": 0,
            "iterations": steps,
            "checkpoint_every": steps,
            "threads": 1,
            "env": {"id": "bench:Guess"},
            "model": {"path": str(folder), "sync": "in_place"},
            "prompt": {"kind": "conversation", "system": (folder / "system.txt").read_text()},
            "rollout": {"groups_per_batch": prompts, "group_size": group, "max_new_tokens": 48},
            "optimizer": {"lr": 1e-7, "minibatch_sequences": 10_000},
            "eval": {"episodes": 1, "every": steps},
        }
    )
    Trainer(config, RunDir.create(config.model_copy(update={"run_dir": str(run)}), "guess")).fit()
    rows = [row for row in read_rows(run / "metrics.jsonl") if "time/collect" in row]
    return [
        {
            "seconds": row["time/collect"] + row["time/update"],
            "collect": row["time/collect"],
            "update": row["time/update"],
            "tokens": row["response_tokens"],
        }
        for row in rows
    ]


def theirs(python: str, folder: Path, steps: int, prompts: int, group: int) -> dict[str, Any]:
    """Return the output of ``step_time_trl.py``."""
    script = ROOT / "benchmarks" / "step_time_trl.py"
    command = [
        python,
        str(script),
        str(folder),
        "--steps",
        str(steps),
        "--prompts",
        str(prompts),
        "--group",
        str(group),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise SystemExit(f"TRL failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(lines[0].removeprefix("RESULT "))
    return result


def per_token(steps: list[dict[str, float]]) -> float:
    """Median of milliseconds a generated token, without the first step."""
    return statistics.median(1000 * s["seconds"] / s["tokens"] for s in steps[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trl", default=str(ROOT / ".bench" / "trl" / "bin" / "python"))
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--prompts", type=int, nargs="*", default=[2, 8], help="groups of 8 episodes in a step")
    given = parser.parse_args()
    rollenv.register("bench:Guess", Guess)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        for prompts, group in [(number, 8) for number in given.prompts]:
            peer = theirs(given.trl, folder, given.steps, prompts, group)
            own = ours(folder, given.steps, prompts, group, Path(scratch) / f"run-{prompts}")
            rows += lines(prompts * group, peer, own)
    note = (
        "A guessing game of up to 5 turns as one chat with tool calls, a warmed-up random Qwen2 with 4 layers of width "
        "128, at most 48 tokens a turn, one thread. Medians over all steps but the first; generated tokens are the "
        "policy's own.\n\n"
    )
    head = ("episodes a step", "trainer", "s a step", "generated tokens", "ms a generated token", "TRL by rollenv")
    save("step_time", header() + "\n" + note + table(head, rows))


def lines(episodes: int, peer: dict[str, Any], own: list[dict[str, float]]) -> list[tuple[Any, ...]]:
    """A row for each trainer."""
    out = []
    for name, steps in (("TRL 1.16", peer["steps"]), ("rollenv", own)):
        seconds = statistics.median(s["seconds"] for s in steps[1:])
        tokens = statistics.median(s["tokens"] for s in steps[1:])
        times = f"{per_token(peer['steps']) / per_token(steps):.1f}"
        out.append((episodes, name, f"{seconds:.2f}", f"{tokens:.0f}", f"{per_token(steps):.2f}", times))
    return out


if __name__ == "__main__":
    main()
