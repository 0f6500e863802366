"""Gradients of complete groups while the last episodes of the batch are played (``batches.kind=early``).

In virtual time, the manager plays 128 tasks x 8 episodes of five turns beside a trainer on a device of its own, whose
work on a whole batch takes c times as long as playing it and is the same for all groups. For real, a tiny model learns
Sokoban, while every step of an environment in another process takes a log-normal time, the same for both ways of
taking batches. Both ways have the same gradient; how nearly is measured on a batch of 128 x 8, in random orders.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from asynchronous import SETTINGS, Slow
from common import header, save, table
from schedule import Latencies, TimedWorkers, Wait
from training_runs import read_rows

from rollenv.rollout.clock import Clock
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Group, Task
from rollenv.rollout.workers.base import WorkerEnv, Workers
from rollenv.trainers.config import load_config
from rollenv.trainers.early import EarlyUpdater
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.trainer import Trainer
from rollenv.trainers.updater import Updater

GROUPS, SIZE, TURNS = 128, 8, 5
RATIOS = (0.1, 0.3, 0.5, 1.0)
#: Gains that were computed for this project without the manager, all slots open.
EXPECTED = {"N(10, 5)": (1.10, 1.30, 1.33, 1.24), "log-normal": (1.10, 1.30, 1.49, 1.91)}
ONCE = ("batches.kind=collect", "optimizer.minibatch_sequences=100000")
EARLY = ("batches.kind=early",)
COLUMNS = (
    "playing, s",
    "training, s",
    "collect, s",
    "early, s",
    "wait, collect, s",
    "wait, early, s",
    "hidden",
    "gain",
)
#: Iterations of a run that is timed, of which the first is not counted.
_TIMED = 6


class LogNormal(Latencies):
    """Turns of a median of 10 s, with sigma 1."""

    def episode(self, turns: int = TURNS) -> list[float]:
        """See :class:`Latencies`."""
        drawn: list[float] = (10 * self.rng.lognormal(0, 1, turns)).tolist()
        return drawn


def played(latencies: Latencies, works: Sequence[float] = ()) -> tuple[float, list[tuple[float, float]]]:
    """Play a batch in virtual time beside trainers that need ``works`` seconds for it.

    Returns:
        Seconds until all is played; and for each trainer, seconds until it is done, too, and its seconds of training
        before the last episode ended.
    """
    tasks = [Task("timed", n, {"turns": TURNS}) for n in range(GROUPS)]

    async def run() -> tuple[float, list[tuple[float, float]]]:
        clock = asyncio.get_running_loop().time
        queues = [asyncio.Queue[Group]() for _ in works]

        async def train(ready: asyncio.Queue[Group], work: float) -> list[tuple[float, float]]:
            spans = []
            for _ in range(GROUPS):
                await ready.get()
                began = clock()
                await asyncio.sleep(work / GROUPS)
                spans.append((began, clock()))
            return spans

        def complete(group: Group) -> None:
            for ready in queues:
                ready.put_nowait(group)

        training = [asyncio.create_task(train(*each)) for each in zip(queues, works, strict=True)]
        await manager.batch_async(tasks, GROUPS, SIZE, complete=complete)
        ended = clock()
        trained = await asyncio.gather(*training)
        hidden = [sum(max(0.0, min(end, ended) - began) for began, end in spans) for spans in trained]
        return ended, [(spans[-1][1], early) for spans, early in zip(trained, hidden, strict=True)]

    with RolloutManager(
        Wait(), TimedWorkers(latencies), limits=EpisodeLimits(step=None), clock=Clock.VIRTUAL
    ) as manager:
        return manager.run(run())


def virtual(seeds: int) -> str:
    rows = []
    kinds = {"N(10, 5)": lambda seed: Latencies(seed, 0.0, 0.0), "log-normal": lambda seed: LogNormal(seed, 0.0, 0.0)}
    for name, make in kinds.items():
        playing = fmean(played(make(seed))[0] for seed in range(seeds))
        runs = [played(make(seed), [ratio * playing for ratio in RATIOS]) for seed in range(seeds)]
        for number, (ratio, expected) in enumerate(zip(RATIOS, EXPECTED[name], strict=True)):
            work = ratio * playing
            after = fmean(trainers[number][0] for _, trainers in runs)
            wait = fmean(trainers[number][0] - ended for ended, trainers in runs)
            hidden = fmean(trainers[number][1] for _, trainers in runs) / work
            seconds = [f"{x:.1f}" for x in (playing, work, playing + work, after, work, wait)]
            gain, bound = f"{(playing + work) / after:.2f}", f"{(1 + ratio) / max(1, ratio):.2f}"
            rows.append([name, ratio, *seconds, f"{100 * hidden:.0f} %", gain, f"{expected:.2f}", bound])
    return table(["turns", "c", *COLUMNS, "expected", "bound"], rows)


class Paired:
    """Workers whose environments take the same times in the same order in every run.

    Args:
        median: seconds of a turn.
        sigma: standard deviation of the logarithm.
    """

    interruptible = True

    def __init__(self, workers: Workers, median: float, sigma: float):
        self.workers, self.median, self.sigma, self.opened = workers, median, sigma, itertools.count()
        self.aclose, self.report = workers.aclose, workers.report

    async def open(self, task: Task, **how: Any) -> WorkerEnv:
        number = next(self.opened)
        env: Any = await self.workers.open(task, **how)
        slow = Slow(env, self)  # type: ignore[arg-type]
        slow.clock = random.Random(number)  # type: ignore[assignment]
        return slow  # type: ignore[return-value]


def trained(given: argparse.Namespace, settings: Sequence[str], delay: float, sigma: float) -> list[dict[str, Any]]:
    """The metrics of a short run after its first iteration."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run")
        timed = [f"iterations={_TIMED}", f"checkpoint_every={_TIMED}", f"eval.every={_TIMED}", "eval.episodes=8"]
        more = ["rollout.workers=1", "optimizer.epochs=1", "model.warm_up.steps=200", "model.warm_up.episodes=500"]
        config = load_config("sokoban", [*SETTINGS, *timed, *more, *given.set, *settings, f"run_dir={path}"])
        with Trainer(config, RunDir.create(config, "sokoban")) as trainer:
            trainer.manager.workers = Paired(trainer.manager.workers, delay, sigma)  # type: ignore[assignment]
            trainer.fit()
        return [row for row in read_rows(path / "metrics.jsonl") if row["iteration"] > 1]


def real(given: argparse.Namespace) -> str:
    rows = []
    for delay, sigma in itertools.product(given.delays, given.sigmas):
        found: dict[str, list[dict[str, Any]]] = {"collect": [], "early": []}
        for _ in range(given.rounds):  # alternating, as other work on the machine comes and goes
            found["collect"] += trained(given, ONCE, delay, sigma)
            found["early"] += trained(given, EARLY, delay, sigma)

        def middle(way: str, *stages: str, found: dict[str, list[dict[str, Any]]] = found) -> float:
            return median(sum(row[f"time/{stage}"] for stage in stages) for row in found[way])

        playing, training = middle("collect", "collect"), middle("collect", "update")
        once, early = middle("collect", "collect", "update"), middle("early", "collect", "update")
        wait, hidden = middle("early", "update"), middle("early", "early")
        seconds = [f"{x:.2f}" for x in (playing, training, once, early, training, wait)]
        share = f"{100 * hidden / (hidden + wait):.0f} %"
        rows.append([1000 * delay, sigma, f"{training / playing:.2f}", *seconds, share, f"{once / early:.2f}"])
    return table(["turn, ms", "sigma", "c", *COLUMNS], rows)


def equality(orders: int) -> str:
    """Distances of gradients in random orders from that of the whole batch, and of weights after a step."""
    rows = []
    for name in ("grpo", "rloo", "maxrl", "gigpo"):
        with tempfile.TemporaryDirectory() as folder:
            shared = [*SETTINGS, f"algorithm.name={name}", "optimizer.epochs=1", f"rollout.groups_per_batch={GROUPS}"]
            shared += [f"rollout.group_size={SIZE}", "model.warm_up.steps=200", "model.warm_up.episodes=500"]
            config = load_config("sokoban", [*shared, *EARLY, f"run_dir={folder}/run"])
            with Trainer(config, RunDir.create(config, "sokoban")) as trainer:
                groups = trainer.batches.next({})
                once = load_config("sokoban", [*shared, *ONCE])
                state = trainer.state
                expected, moved = _step(Updater(once, state, trainer.run), groups, [])
                found = []
                for seed in range(orders):
                    order = random.Random(seed).sample(range(GROUPS), GROUPS)
                    found.append(_step(EarlyUpdater(config, state, trainer.run), groups, order))
        away = max(float((gradient - expected).norm() / expected.norm()) for gradient, _ in found)
        after = max(float((weights - moved).norm() / moved.norm()) for _, weights in found)
        same = all(torch.equal(found[0][0], gradient) for gradient, _ in found)
        rows.append([name, f"{away:.1e}", f"{after:.1e}", "yes" if same else "no"])
    return table(["algorithm", "gradient, relative L2", "weights after AdamW", "bitwise equal in all orders"], rows)


def _step(updater: Updater, groups: list[Group], order: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch's gradient before clipping, and the weights after a step with it, which is then taken back."""
    policy: Any = updater.state.policy
    before = [w.detach().clone() for w in policy.weights.values()]
    real_step, found = policy.step, []

    def step(lr: float, *, hold: bool = False) -> float:
        found.append(torch.cat([w.grad.flatten().double() for w in policy.weights.values()]))
        norm: float = real_step(lr, hold=hold)
        return norm

    policy.step = step
    if isinstance(updater, EarlyUpdater):
        updater.begin()
        for number in order:
            updater.add(groups[number])
    updater.update(updater.compute_advantages(groups, {}))
    policy.step = real_step
    after = torch.cat([w.detach().flatten().double() for w in policy.weights.values()])
    policy.adam.state.clear()
    with torch.no_grad():
        for weight, old in zip(policy.weights.values(), before, strict=True):
            weight.copy_(old)
    return found[0], after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="batches in virtual time")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each way, alternating")
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--delays", type=float, nargs="*", default=[0.01, 0.03], help="median seconds of a turn")
    parser.add_argument("--sigmas", type=float, nargs="*", default=[1.0], help="of the logarithm of seconds")
    parser.add_argument("--set", nargs="*", default=[], help="more key=value settings")
    given = parser.parse_args()
    began = time.monotonic()
    parts = [
        "# Gradients while the tail still plays",
        header(),
        f"## Virtual time: {GROUPS} tasks x {SIZE} episodes, {TURNS} turns, a trainer on a device of its own, mean of "
        f"{given.seeds} batches",
        virtual(given.seeds),
        "c: seconds of training over seconds of playing. Turns take max(0, N(10, 5)) s, or log-normal with the median "
        "10 s\nand sigma 1. collect: play, then train; early: train on complete groups meanwhile. wait: from the end\n"
        "of the last episode to that of training; hidden: the share of training before it. expected: computed without\n"
        "the manager. bound: (1 + c) / max(1, c).",
        "## For real: Sokoban, 32 tasks x 8 episodes, environments in another process, one thread",
        real(given),
        f"Medians over {given.rounds} x {_TIMED - 1} iterations, the two ways in turn, with the same times of turns. "
        "Other\nwork runs on these cores: a tenth of a gain is noise.",
        f"## The gradient of a batch of {GROUPS} x {SIZE}, {given.orders} random orders",
        equality(given.orders),
        "The largest distance from one update of the whole batch.",
    ]
    save("early_gradients", "\n".join(f"{part.rstrip()}\n" for part in parts))
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
