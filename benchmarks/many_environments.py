"""Ten thousand environments of mixed families in one process: memory for each, time to make, reset, step and close."""

from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path

from common import header, save, table

import rollenv


def resident() -> int:
    """Bytes of memory that this process occupies."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=10_000)
    parser.add_argument("--namespaces", nargs="*", default=["game", "ragen", "roll", "gym", "multi", "tool"])
    options = parser.parse_args()
    specs = [s for s in rollenv.list_envs() if s.namespace in options.namespaces and not s.needs]
    for spec in specs:  # what is loaded once and shared does not count
        env = spec.make(seed=0)
        env.reset()
        env.step("x")
        env.close()
    gc.collect()
    rows, before, envs = [], resident(), []

    def stage(name: str, start: float) -> None:
        seconds = time.perf_counter() - start
        used = (resident() - before) / len(envs) / 1024 if envs else 0.0
        rows.append((name, f"{seconds:.2f} s", f"{1e6 * seconds / options.n:.0f} us", f"{used:.1f} KiB"))

    start = time.perf_counter()
    envs = [specs[i % len(specs)].make() for i in range(options.n)]
    stage("make", start)
    start = time.perf_counter()
    for i, env in enumerate(envs):
        env.reset(i)
    stage("reset", start)
    start = time.perf_counter()
    for env in envs:
        env.step(env.sample_random_action())
    stage("a step", start)
    start = time.perf_counter()
    for env in envs:
        env.close()
    stage("close", start)
    head = ("stage", "all", "each", "memory for each afterwards")
    about = f"{options.n} environments of {len(specs)} ids ({', '.join(options.namespaces)})\n\n"
    save("many_environments", header() + "\n" + about + table(head, rows))


if __name__ == "__main__":
    main()
