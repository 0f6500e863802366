"""The visual recipe over several seeds: success on unseen boards before and after RL, and with the pictures taken away.

Runs that are already complete below ``--runs`` are not repeated, so the seeds can be trained one by one.
"""

from __future__ import annotations

import asyncio
import functools
import random
import time
from pathlib import Path

import numpy as np
from common import IMAGES, ROOT, header, save, table
from training_runs import STAGES, Picture, cost, draw, evaluations, interval, options, train_all

from rollenv.agents.base import Agent, RandomAgent
from rollenv.agents.engines.base import Sampling
from rollenv.agents.local import LocalAgent
from rollenv.core import pictures
from rollenv.rollout.evaluate import evaluate
from rollenv.trainers.config import load_config

#: The seed of the first board of the blind control; neither training nor its evaluations play it.
_SEED = 1_000_000

#: Distinct prompts of a measurement of speed.
_PROMPTS = 512


class Blind(LocalAgent):
    """Sees every picture grey."""

    def encode(self, text: str, images: tuple[pictures.Picture, ...] = ()) -> tuple[int, ...]:
        return super().encode(text, tuple(grey(image.width, image.height) for image in images))


@functools.cache
def grey(width: int, height: int) -> pictures.Picture:
    return pictures.picture(np.full((height, width, 3), 128, dtype=np.uint8))


def played(agent: Agent, boards: int = 300) -> str:
    config = load_config("visual_lake")
    found = evaluate(agent, config.env.id, config.eval.kwargs, n=boards, seed=_SEED)
    return f"{found.success:.3f} ({found.low:.3f} to {found.high:.3f})"


def speed(folder: Path) -> list[tuple[str, int, float]]:
    """Prompt tokens a second of the engine, for prompts with a picture each and for texts of the same length."""
    agent, rng = LocalAgent.load(folder), np.random.default_rng(0)
    shown = [pictures.picture(rng.integers(0, 255, (56, 56, 3), dtype=np.uint8)) for _ in range(_PROMPTS)]
    seeing = [agent.encode("The lake now:\n<image>\n", (image,)) for image in shown]
    texts = [tuple(map(int, rng.integers(10, 200, len(ids)))) for ids in seeing]

    async def answer(prompts: list[tuple[int, ...]]) -> None:
        await asyncio.gather(*(agent.engine.generate(p, Sampling(max_new_tokens=2), random.Random(0)) for p in prompts))

    rows = []
    for name, prompts in (("pictures", seeing), ("pictures processed before", seeing), ("texts", texts)):
        agent.engine.weights_changed()
        begin = time.perf_counter()
        asyncio.run(answer(prompts))
        rows.append((name, len(prompts[0]), sum(map(len, prompts)) / (time.perf_counter() - begin)))
    return rows


def main() -> None:
    given = options(__doc__, ROOT / "runs" / "benchmark-visual", ("Dr. GRPO",))
    curves = train_all("visual_lake", given)
    rows = []
    for name, runs in curves.items():
        for seed, run in enumerate(runs):
            before, *_, after = evaluations(run)
            folder = given.runs / f"{name}-{seed}"
            blind = played(Blind.load(folder))
            stages = [cost(run, stage) for stage in STAGES.values()]
            rows.append(
                (name, seed, interval(before), interval(after), played(LocalAgent.load(folder)), blind, *stages)
            )
    draw(curves, Picture(IMAGES / "visual_curve.svg", "success on unseen boards", 0.9, 0.0))
    head = ("algorithm", "seed", "before RL (95 %)", "after RL (95 %)", "300 more boards", "the same, blind", *STAGES)
    note = (
        "A tiny Qwen2-VL on 4 x 4 lakes that it sees as pictures, 300 boards, sampled at temperature 1; blind: the "
        f"same model and boards, with grey pictures. Random moves: {played(RandomAgent())}. Seconds on the clock (and "
        "of processor time); the warm-up is 1 where it was cached.\n\n"
    )
    first = given.runs / f"{given.algorithms[0]}-0"
    about = "\nPrompt tokens a second of the engine, with one answer token drawn and one more computed:\n\n"
    fast = about + table(("prompts", "tokens each", "tokens a second"), speed(first))
    save("visual", header() + "\n" + note + table(head, rows) + fast)


if __name__ == "__main__":
    main()
