"""Sokoban trained while it plays: staleness, losses and environments that take their time.

Every turn of an environment takes a log-normal time, as one behind a network or in a container does. Each run is
trained on the same number of samples with the same settings: only the way of taking batches and the loss differ.
Runs that are already complete below ``--runs`` are not repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from common import IMAGES, ROOT, header, save, table
from training_runs import Rows, evaluations, read_rows

from rollenv.rollout.types import Task
from rollenv.rollout.workers.base import EnvResult, WorkerEnv, Workers
from rollenv.trainers.config import load_config
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.trainer import Trainer

#: A hill to climb: a short warm-up, few samples a step.
SETTINGS = (
    "threads=1",
    "iterations=60",
    "checkpoint_every=60",
    "model.size.hidden=64",
    "model.size.layers=2",
    "model.size.intermediate=128",
    "model.warm_up.noise=0.6",
    "model.warm_up.wandering=0.0",
    "model.warm_up.steps=500",
    "model.warm_up.episodes=8000",
    "rollout.groups_per_batch=32",
    "optimizer.lr=3e-4",
    "eval.temperature=1.0",
    "eval.episodes=200",
    "eval.every=10",
)

LOSSES = {
    "plain": (),
    "TIS": ("correction.name=tis", "correction.cap=2.0"),
    "IcePop": ("correction.name=icepop",),
    "decoupled": ("correction.name=tis", "correction.cap=1e6"),
    "A-3PO": ("optimizer.old_logprobs=interpolated", "correction.name=tis", "correction.cap=1e6"),
}

#: Batches of a run whose speed is measured, the first quarter of them unmeasured.
_TIMED = 12
#: Slowdowns of the environments in these runs, compared with the long runs.
_SLOWER = (1, 5)

_COLOURS = ("#57606a", "#1f6feb", "#d1570a", "#2da44e", "#8250df")


@dataclass(slots=True)
class Delayed:
    """Workers whose environments answer later than they could.

    Args:
        workers: where they are.
        median: seconds of a turn.
        sigma: standard deviation of the logarithm.
    """

    workers: Workers
    median: float
    sigma: float
    interruptible: bool = True

    async def open(self, task: Task, **how: Any) -> WorkerEnv:
        env: Any = await self.workers.open(task, **how)
        return Slow(env, self)  # type: ignore[return-value]

    async def aclose(self) -> None:
        await self.workers.aclose()

    def report(self) -> list[dict[str, Any]]:
        return self.workers.report()


class Slow:
    """One of their environments."""

    def __init__(self, env: WorkerEnv, how: Delayed):
        self.env, self.how, self.clock = env, how, random.SystemRandom()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    async def step(self, action: str) -> EnvResult:
        seen = await self.env.step(action)
        if self.how.median:
            await asyncio.sleep(self.how.median * self.clock.lognormvariate(0, self.how.sigma))
        return seen


def train(folder: Path, given: argparse.Namespace, settings: Sequence[str], median: float) -> Rows:
    """The metrics of one run, which is trained if need be."""
    config = load_config("sokoban", [*SETTINGS, *given.set, *settings, f"run_dir={folder}"])
    if not (folder / "done").exists():
        run = RunDir.create(config, "sokoban")
        with Trainer(config, run) as trainer:
            trainer.manager.workers = Delayed(trainer.manager.workers, median, given.sigma)
            began = time.perf_counter()
            trainer.fit()
            seconds = time.perf_counter() - began
        (folder / "done").write_text(json.dumps({"seconds": seconds}))
    return list(read_rows(folder / "metrics.jsonl"))


def playing_time(rows: Rows) -> list[float]:
    """Seconds of training up to each row, without evaluations."""
    steps = [sum(row.get(f"time/{stage}", 0.0) for stage in ("collect", "update", "publish")) for row in rows]
    return list(itertools.accumulate(steps))


#: Median seconds of a batch, by milliseconds of a turn of an environment and the way of taking batches.
Speeds = dict[tuple[float, str], float]


def speeds(given: argparse.Namespace) -> Speeds:
    """Measure the time of a batch, alternating between the ways."""
    ways = {"collect": ["batches.kind=collect"]}
    ways |= {str(s): ["batches.kind=stream", f"batches.max_staleness={s}"] for s in given.staleness}
    taken: dict[tuple[float, str], list[float]] = {}
    short = [*given.set, f"iterations={_TIMED}", f"checkpoint_every={_TIMED}", f"eval.every={_TIMED}"]
    for number, times, (way, settings) in itertools.product(range(given.rounds), _SLOWER, ways.items()):
        with tempfile.TemporaryDirectory() as folder:
            changed = argparse.Namespace(**vars(given) | {"set": short})
            rows = train(Path(folder, "run"), changed, [*settings, f"seed={number}"], times * given.median)
        begun, ended = playing_time(rows)[_TIMED // 4], playing_time(rows)[-1]
        taken.setdefault((1000 * times * given.median, way), []).append((ended - begun) / (_TIMED - _TIMED // 4))
    return {key: median(each) for key, each in taken.items()}


def named(mode: str) -> str:
    return "synchronous" if mode == "collect" else f"at most {mode}"


def area(rows: Rows) -> float:
    """Mean success over the evaluations after the first: how early it was learned."""
    return mean(row["eval/success"] for row in evaluations(rows)[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "benchmark-asynchronous")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--staleness", type=int, nargs="*", default=[0, 1, 2, 4])
    parser.add_argument("--losses", nargs="*", default=list(LOSSES), choices=list(LOSSES))
    parser.add_argument("--median", type=float, default=0.01, help="seconds of a turn of an environment")
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3, help="of the measurement of speed")
    parser.add_argument("--set", nargs="*", default=[], help="more key=value settings")
    given = parser.parse_args()
    runs: dict[tuple[str, str], list[Rows]] = {}
    for seed in range(given.seeds):
        kinds = [("collect", "plain", ["batches.kind=collect"])]
        kinds += [
            (str(s), loss, ["batches.kind=stream", f"batches.max_staleness={s}", *LOSSES[loss]])
            for s in given.staleness
            for loss in given.losses
        ]
        for mode, loss, settings in kinds:
            folder = given.runs / f"{mode}-{loss}-{seed}"
            rows = train(folder, given, [*settings, f"seed={seed}"], given.median)
            runs.setdefault((mode, loss), []).append(rows)
            print(f"{folder.name}: {evaluations(rows)[-1]['eval/success']:.3f} in {playing_time(rows)[-1]:.0f} s")
    speed = speeds(given)
    report(runs, given, speed)
    draw(runs, {mode: taken for (delay, mode), taken in speed.items() if delay == 1000 * given.median})


def report(runs: dict[tuple[str, str], list[Rows]], given: argparse.Namespace, speed: Speeds) -> None:
    body = []
    for (mode, loss), of_seeds in runs.items():
        oldest = max(row.get("staleness/max", 0) for rows in of_seeds for row in rows)
        age = mean(row.get("staleness/mean", 0.0) for rows in of_seeds for row in rows[1:])
        ends = [evaluations(rows)[-1]["eval/success"] for rows in of_seeds]
        body.append(
            (
                named(mode),
                loss,
                f"{mean(evaluations(rows)[0]['eval/success'] for rows in of_seeds):.3f}",
                f"{mean(ends):.3f} ({min(ends):.3f} to {max(ends):.3f})",
                f"{mean(area(rows) for rows in of_seeds):.3f}",
                f"{age:.2f}",
                int(oldest),
            )
        )
    head = (
        "staleness",
        "loss",
        "before",
        "after (seeds)",
        "on the way",
        "mean age",
        "oldest",
    )
    note = (
        f"Success on unseen levels over {given.seeds} seeds, trained on the same number of samples. A turn of an "
        f"environment takes a log-normal time, median {1000 * given.median:g} ms and sigma {given.sigma:g}. On the "
        "way: the mean over all evaluations but the first. Ages are in updates, per response token.\n\n"
    )
    fast = (
        "\nSeconds of a batch (collecting, updates and new weights) are medians of "
        f"{given.rounds} runs of {_TIMED} batches; the ways took turns.\n\n"
    )
    timed = [
        (f"{delay:g}", named(mode), f"{taken:.2f}", f"{speed[delay, 'collect'] / taken:.2f}")
        for (delay, mode), taken in speed.items()
    ]
    columns = ("ms a turn", "staleness", "s a batch", "speed-up")
    save("asynchronous", header() + "\n" + note + table(head, body) + fast + table(columns, timed))


def draw(runs: dict[tuple[str, str], list[Rows]], speed: dict[str, float]) -> None:
    """Success against samples and against time, for the plain loss.

    Args:
        runs: of all seeds, by mode and loss.
        speed: seconds of a batch, by mode.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "rollenv", "font.size": 11})
    from matplotlib import pyplot

    figure, (by_samples, by_time) = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for (mode, loss), colour in zip(
        [key for key in runs if key[1] == "plain"], itertools.cycle(_COLOURS), strict=False
    ):
        of_seeds = runs[mode, loss]
        measured = [[row["eval/success"] for row in evaluations(run)] for run in of_seeds]
        success = [mean(at) for at in zip(*measured, strict=True)]
        places = [row["iteration"] for row in evaluations(of_seeds[0])]
        label = "synchronous" if mode == "collect" else f"staleness ≤ {mode}"
        by_samples.plot(places, success, color=colour, label=label)
        by_time.plot([speed[mode] * place for place in places], success, color=colour, label=label)
    by_samples.set(xlabel="batches", ylabel="success on unseen levels")
    by_time.set(xlabel="seconds of training")
    for axes in (by_samples, by_time):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.2)
    by_time.legend(frameon=False, loc="best")
    figure.tight_layout()
    file = IMAGES / "asynchronous_curve.svg"
    figure.savefig(file, metadata={"Date": None})
    file.write_text("\n".join(line.rstrip() for line in file.read_text().splitlines()) + "\n")


if __name__ == "__main__":
    main()
