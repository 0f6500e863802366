"""An episode of several turns as one training sample against one sample a turn: the calculator, in conversations.

Each run is the ``rlvr_tools`` recipe, shortened; runs that are already complete below ``--runs`` are not repeated.
"""

from __future__ import annotations

import statistics

from common import ROOT, header, save, table
from training_runs import Rows, evaluations, interval, options, seconds, train

SHORT = ["iterations=8", "rollout.groups_per_batch=8"]
SHORT += ["eval.every=8", "eval.episodes=200"]


def mean(run: Rows, key: str) -> float:
    """Return the mean of a metric over all iterations."""
    return statistics.fmean(row[key] for row in run if key in row)


def main() -> None:
    given = options(__doc__, ROOT / "runs" / "samples")
    given.runs.mkdir(parents=True, exist_ok=True)
    rows, ends = [], []
    for kind in ("trajectory", "turn"):
        settings = [*SHORT, f"rollout.samples={kind}", *given.set]
        runs = [train("rlvr_tools", given.runs / f"{kind}-{s}", s, settings) for s in range(given.seeds)]
        for seed, run in enumerate(runs):
            first, *_, last = evaluations(run)
            told = (mean(run, "trained_samples"), mean(run, "optimizer_steps"), seconds(run, "update", "cpu"))
            rows.append((kind, seed, interval(first), interval(last), *told))
        after = [evaluations(run)[-1]["eval/success"] for run in runs]
        ends.append(f"- one sample a {kind}: {statistics.fmean(after):.3f} in the mean of {len(after)} seeds.")
    note = (
        'The shortened `rlvr_tools` recipe (GRPO, a calculator in the loop, `prompt.kind = "conversation"`) with '
        "`rollout.samples` as told; both begin with the same weights and play the same tasks. Success with its 95 % "
        "interval (Wilson's). `minibatch_sequences` counts samples, so that one sample a turn takes more steps; an "
        "iteration's samples and steps are means.\n\n"
    )
    head = ("one sample a", "seed", "before RL (95 %)", "after RL (95 %)", "samples", "steps", "CPU s of updates")
    save("samples", header() + "\n" + note + table(head, rows) + "\n" + "\n".join(ends) + "\n")


if __name__ == "__main__":
    main()
