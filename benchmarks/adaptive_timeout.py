"""Grading HumanEval and MBPP programs, one in twenty of which hangs: a fixed limit against the adaptive timeout."""

from __future__ import annotations

import argparse
import random
import time
from concurrent.futures import ThreadPoolExecutor

from common import header, save, table

import rollenv
from rollenv.envs.code.env import CodeEnv
from rollenv.sandbox import Pool
from rollenv.sandbox.pool import AdaptiveTimeout

HANGS = "```python\nwhile True:\n    pass\n```"


def grade(timeout: float | AdaptiveTimeout, tasks: int, samples: int, pool: Pool) -> tuple[float, int, int]:
    """(seconds, right verdicts, programs): every program of every task, always in the same random order."""
    rng = random.Random(0)
    named = [(name, i) for name in ("code:HumanEval", "code:MBPP") for i in range(tasks) for _ in range(samples)]
    work = [(name, i, rng.random() < 0.05) for name, i in named]
    rng.shuffle(work)

    def one(job: tuple[str, int, bool]) -> bool:
        name, i, hangs = job
        env = rollenv.make(name, timeout=timeout, sandbox=pool)
        assert isinstance(env, CodeEnv)
        env.reset(0, idx=i)
        reward = env.step(HANGS if hangs else env.oracle_action())[1]
        return (reward == 1.0) != hangs

    start = time.perf_counter()
    with ThreadPoolExecutor(2) as threads:
        right = sum(threads.map(one, work))
    return time.perf_counter() - start, right, len(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=80, help="of each data set")
    parser.add_argument("--samples", type=int, default=4, help="programs for each task")
    options = parser.parse_args()
    rules: dict[str, float | AdaptiveTimeout] = {
        "fixed, 10 s": 10.0,
        "adaptive, 2 to 10 s": AdaptiveTimeout(most=10.0),
    }
    rows, fixed = [], 0.0
    with Pool(2) as pool:
        for name, timeout in rules.items():
            seconds, right, n = grade(timeout, options.tasks, options.samples, pool)
            fixed = fixed or seconds
            rows.append((name, n, f"{right} of {n}", f"{seconds:.0f} s", f"{fixed / seconds:.2f} x"))
    head = ("timeout", "programs", "right verdicts", "wall clock", "gain")
    save("adaptive_timeout", header() + "\n" + table(head, rows))


if __name__ == "__main__":
    main()
