"""Verifiable rewards with the tiny model over several seeds: sums with answers of one and of several tokens, and code.

Each case is the ``rlvr`` recipe on one domain; runs that are already complete below ``--runs`` are not repeated.
"""

from __future__ import annotations

import statistics

from common import ROOT, header, save, table
from training_runs import Rows, evaluations, interval, options, seconds, train

#: Settings for one domain alone, and the shortest settings that show a difference.
ALONE = ["tasks.kind=seeds", "eval.parts=[]", "rewards.domains=[]", "rollout.workers=inline", "threads=1"]
SHORT = ["model.size.hidden=48", "model.warm_up.episodes=1000", "model.warm_up.lr=5e-3", "iterations=40"]
SHORT += ["rollout.groups_per_batch=32", "rollout.group_size=16", "optimizer.minibatch_sequences=16"]
SHORT += ["eval.every=20", "eval.episodes=300"]

CASES = {
    "sums, one token": [
        *("env.id=math:Arithmetic-v0-digit", "rollout.max_new_tokens=1"),
        *("model.warm_up.steps=250", "model.warm_up.batch_size=24"),
    ],
    "sums, several tokens": [
        "env.id=math:Arithmetic-v0-easy",
        *(
            f"{section}.kwargs={{terms = 2, operands = [0, 9], operators = '+', action_format = 'bare'}}"
            for section in ("env", "eval")
        ),
        *("rollout.max_new_tokens=4", "model.warm_up.steps=250", "model.warm_up.batch_size=64"),
    ],
    "code of one line, run in the sandbox": [
        *("env.id=code:OneLine-v0-easy", "env.kwargs.split=train", "eval.kwargs.split=test"),
        *("model.warm_up.steps=400", "model.warm_up.batch_size=64"),
        *("rollout.groups_per_batch=8", "optimizer.minibatch_sequences=64", "iterations=12"),
        *("eval.every=6", "eval.episodes=100"),
    ],
}


#: Result of an earlier version of this page, and its cause.
COLLAPSE = """
Why code once fell to 0 on two of three seeds: an optimizer step took 8 sequences at a learning rate of 2e-3, so that a
batch of 64 made up to 7 steps. In the first iteration of seed 1 they moved the policy by a KL of 0.33 and carried 20 %
of the tokens out of the clip range; the settings above make one step of a batch, which clips nothing. Three answers in
four fail, and pushing those down by large steps lifts whatever is left: after eight iterations the episodes held bytes
that no program has. Then nothing was rewarded, groups were all equal, and no gradient led back. It was neither the
entropy, which stayed between 0.5 and 0.9 nats, nor the length (5 tokens, then 7). Either change alone mended it on that
seed, in 16 iterations: 64 sequences a step at 2e-3 (0.08 to 0.38), or 8 sequences at 5e-4 (0.08 to 0.36; both with
`sandbox = "ast"`, which pays the same without running anything). The longer warm-up gives seeds 1 and 2 more to begin
with.
"""


def curve(run: Rows) -> str:
    """Success at every evaluation."""
    return " ".join(f"{row['eval/success']:.2f}" for row in evaluations(run))


def main() -> None:
    given = options(__doc__, ROOT / "runs" / "rlvr")
    given.runs.mkdir(parents=True, exist_ok=True)
    rows, spreads = [], []
    for name, settings in CASES.items():
        folder = name.replace(",", "").replace(" ", "-")
        runs = [
            train("rlvr", given.runs / f"{folder}-{seed}", seed, [*ALONE, *SHORT, *settings, *given.set])
            for seed in range(given.seeds)
        ]
        for seed, run in enumerate(runs):
            first, *_, last = evaluations(run)
            rows.append((name, seed, interval(first), interval(last), curve(run), f"{seconds(run, clock='cpu'):.0f}"))
        before, after = ([evaluations(run)[at]["eval/success"] for run in runs] for at in (0, -1))
        spreads.append(
            f"- {name}: {statistics.mean(before):.2f} to {statistics.mean(after):.2f}; the seeds lie "
            f"{max(after) - min(after):.2f} apart at the end and lay {max(before) - min(before):.2f} apart before."
        )
    note = (
        "The `rlvr` recipe on one domain, GRPO, sampled at temperature 1; success with its 95 % interval (Wilson's). "
        "Code is tested on functions that training never asks for; of the sums there are few, and training meets "
        "those of the test under other seeds. Seconds are of processors; those of sandboxes that still run do not "
        "count.\n\n"
    )
    head = ("case", "seed", "before RL (95 %)", "after RL (95 %)", "curve", "CPU s")
    save("rlvr", header() + "\n" + note + table(head, rows) + "\n" + "\n".join(spreads) + "\n" + COLLAPSE)


if __name__ == "__main__":
    main()
