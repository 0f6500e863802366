"""The stages of `make train` beside a plain PyTorch loop: what a step of the warm-up and an update's sample cost.

A slow warm-up once stood unseen for weeks, as its minutes were read as a busy machine. So each stage is divided by ten
lines of PyTorch that put as many rows through the same model in the same process, in processor seconds of one thread.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from common import header, save, table

#: Steps that are not counted: the first ones prepare kernels.
_SKIPPED = 10


def plain(model: Any, rows: int, length: int, steps: int) -> float:
    """Return the processor seconds of a step on rows of random tokens: forward, cross-entropy, backward, AdamW."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), 0.0, fused=True)
    for step in range(_SKIPPED + steps):
        if step == _SKIPPED:
            began = time.process_time()
        ids = torch.randint(10, model.config.vocab_size, (rows, length))
        logits = model(input_ids=ids, logits_to_keep=1, use_cache=False).logits[:, -1]
        torch.nn.functional.cross_entropy(logits, ids[:, 0]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return (time.process_time() - began) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="steps of the warm-up")
    parser.add_argument("--groups", type=int, default=128, help="groups of eight episodes in the batch")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ROLLENV_CACHE"] = folder  # nothing is warmed up before
        rows = stages(Path(folder), given.steps, given.groups)
    head = ("stage", "unit", "rollenv, ms", "plain PyTorch, ms", "ratio")
    note = (
        "Processor time of one thread. Plain PyTorch: a forward pass, cross-entropy at the last token, backward and "
        "AdamW on as many rows of the mean length, padded to it. A warm-up's step also draws and encodes its rows; an "
        "update computes every common prefix once, which plain PyTorch does not.\n\n"
    )
    save("main_job", header() + "\n" + note + table(head, rows))


def stages(folder: Path, steps: int, groups: int) -> list[tuple[object, ...]]:
    import torch

    from rollenv.agents.engines.cpu_threads import CpuThreads
    from rollenv.rollout.manager import RolloutManager
    from rollenv.trainers.config import load_config
    from rollenv.trainers.ranks import ALONE
    from rollenv.trainers.run_dir import RunDir
    from rollenv.trainers.training_state import begin
    from rollenv.trainers.updater import Updater

    CpuThreads(1)  # as the command does
    torch.set_num_threads(1)
    config = load_config("sokoban", [f"model.warm_up.steps={steps}", "model.warm_up.episodes=2000"])
    ticks: list[float] = []

    def tick(stage: str, *_: object) -> None:
        if stage == "imitation":
            ticks.append(time.process_time())

    parts = begin(config, {}, tick, ALONE)
    step = (ticks[-1] - ticks[_SKIPPED]) / (len(ticks) - 1 - _SKIPPED)
    with RolloutManager(parts.player) as manager:
        batch = manager.batch(parts.source, groups, config.rollout.group_size)
    turns = [turn for group in batch for episode in group for turn in episode.turns]
    length = round(sum(len(turn.prompt_ids) for turn in turns) / len(turns))
    model = parts.base_agent.model
    imitated = plain(model, config.model.warm_up.batch_size, length, steps)

    updater = Updater(config, parts, RunDir(folder / "run"))
    spent = []
    for _ in range(3):
        data = updater.compute_advantages(batch, {})
        began = time.process_time()
        samples = updater.update(data)["trained_samples"] * config.optimizer.epochs
        spent.append((time.process_time() - began) / samples)
    several = config.optimizer.minibatch_sequences
    alone = plain(model, several, length, max(2, len(turns) // several)) / several
    return [
        ("warm-up", f"a step of {config.model.warm_up.batch_size} prompts", *compared(step, imitated)),
        ("update", f"a sample of {length} tokens", *compared(min(spent), alone)),
    ]


def compared(ours: float, others: float) -> tuple[float, float, float]:
    return 1e3 * ours, 1e3 * others, ours / others


if __name__ == "__main__":
    main()
