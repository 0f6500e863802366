"""20,000 mixed runs, 16 at a time: what they leave behind, how memory goes, and what a bad neighbour costs."""

from __future__ import annotations

import argparse
import os
import random
import statistics
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import header, save, table

from rollenv.sandbox import Limits, Pool

#: Program, and what its result has to be.
PROGRAMS = {
    "good": ("print(sum(range(1000)))", lambda r: r.stdout == "499500\n"),
    "writes files": ("open('f', 'w').write('x' * 10000); print('ok')", lambda r: r.stdout == "ok\n"),
    "raises": ("1 / 0", lambda r: r.exit_code == 1 and "ZeroDivisionError" in r.stderr),
    "crashes": ("import ctypes; ctypes.string_at(0)", lambda r: r.exit_code == -11),
    "exits": ("import os; os._exit(7)", lambda r: r.exit_code == 7),
    "hangs": ("while True: pass", lambda r: r.timed_out),
    "floods": ("while True: print('x' * 10000)", lambda r: r.truncated),
    "leaves a process": (
        "import subprocess; subprocess.Popen(['sleep', '99'], start_new_session=True); print('ok')",
        lambda r: r.stdout == "ok\n",
    ),
}
WEIGHTS = {"good": 60, "writes files": 10, "raises": 10, "crashes": 5, "exits": 5, "hangs": 2, "floods": 3}


def resources() -> dict[str, int]:
    """Count the resources of this machine and process that could leak."""
    return {
        "processes on the machine": sum(p.name.isdigit() for p in Path("/proc").iterdir()),
        "open files of this process": len(os.listdir("/proc/self/fd")),
        "threads of this process": threading.active_count(),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "control groups": sum(1 for _ in Path("/sys/fs/cgroup").rglob("cgroup.procs")),
        "temporary files": len(os.listdir("/tmp")),
        "memory of this process, MiB": int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20,
    }


def jail_memory(pool: Pool) -> float:
    """MiB that the pool's kernels occupy, on average."""
    found = []
    for place in pool._slots:
        if place.worker is not None:
            launcher = place.worker.channel.process.pid  # type: ignore[attr-defined]
            kernel = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()[0]
            lines = Path(f"/proc/{kernel}/smaps_rollup").read_text().splitlines()
            found.append(next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1024)
    return statistics.mean(found)


def stress(n: int, threads: int) -> str:
    rng = random.Random(0)
    names = rng.choices([*WEIGHTS, "leaves a process"], [*WEIGHTS.values(), 5], k=n)
    wrong: Counter[str] = Counter()
    before = resources()
    with Pool(2, limits=Limits(seconds=0.5, output_bytes=1 << 18)) as pool, ThreadPoolExecutor(threads) as executor:
        for name in PROGRAMS:
            pool.run(PROGRAMS[name][0])
        memory = [jail_memory(pool)]

        def run(name: str) -> None:
            code, expected = PROGRAMS[name]
            wrong[name] += not expected(pool.run(code))

        start = time.perf_counter()
        for part in range(4):
            list(executor.map(run, names[part * n // 4 : (part + 1) * n // 4]))
            memory.append(jail_memory(pool))
        seconds, health = time.perf_counter() - start, pool.health()
    time.sleep(1)
    after = resources()
    counts = Counter(names)
    kinds = table(("program", "runs", "wrong results"), [(k, counts[k], wrong[k]) for k in PROGRAMS])
    left = table(("what", "before", "after"), [(k, before[k], after[k]) for k in before])
    quarters = ", ".join(f"{m:.1f}" for m in memory)
    return (
        f"{n} runs from {threads} threads in {seconds:.0f} s; "
        f"{health['replaced']} sandboxes replaced, {health['died']} died\n\n"
        f"{kinds}\n{left}\nPrivate memory of a kernel at the start and after each quarter, MiB: {quarters}\n"
    )


def neighbours(n: int) -> str:
    """Latency of good runs in one sandbox while another one does its worst."""
    bad = {
        "nothing": "",
        "endless loop": "while True: pass",
        "46 sessions that spin": (
            "import os\nfor _ in range(46):\n    if os.fork() == 0:\n        os.setsid()\n        while True: pass\n"
            "while True: pass"
        ),
        "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "memory bomb": "x = []\nwhile True:\n    try: x.append(bytearray(1 << 20))\n    except MemoryError: x = []",
        "output flood": "while True: print('x' * 10000)",
        "disk bomb": "while True:\n    try: open('f', 'wb').write(b'x' * (60 << 20))\n    except OSError: pass",
    }
    rows, alone = [], 0.0
    with Pool(1) as good, Pool(1, limits=Limits(seconds=3, processes=64, memory_mb=256)) as other:
        for name, code in bad.items():
            over = threading.Event()

            def misbehave(code: str = code, over: threading.Event = over) -> None:
                while code and not over.is_set():
                    other.run(code)

            thread = threading.Thread(target=misbehave)
            thread.start()
            time.sleep(0.3)
            times = []
            for _ in range(n):
                start = time.perf_counter()
                good.run("print(1 + 1)")
                times.append(time.perf_counter() - start)
                time.sleep(0.005)
            over.set()
            thread.join()
            middle, slow = statistics.median(times), sorted(times)[int(0.99 * n)]
            alone = alone or slow
            rows.append((name, f"{1000 * middle:.2f} ms", f"{1000 * slow:.2f} ms", f"{slow / alone:.2f}"))
    return "## A neighbour\n\n" + table(("the neighbour runs", "p50 of a good run", "p99", "p99 / alone"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=16)
    options = parser.parse_args()
    save("sandbox_stress", f"{header()}\n{stress(options.n, options.threads)}\n{neighbours(300)}")


if __name__ == "__main__":
    main()
