"""Machines beside containers: start, a command, a snapshot and its restoring, and many episodes at once.

    python benchmarks/machines.py            beside `docker run` where an engine can be started (needs root)
    python benchmarks/machines.py --small

The same command runs in both: the host's own programs in a machine, an image with the host's Python in Docker.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import common

sys.path.insert(0, str(common.ROOT / "tests" / "sandbox"))

from rollenv.sandbox import Limits, Machine
from rollenv.sandbox.layers import remove

LIMITS = Limits(seconds=60, memory_mb=512, processes=128, disk_mb=256, files=20_000)
WORK = "i=0; while [ $i -lt 200 ]; do cat /bin/echo > /tmp/$i; i=$((i + 1)); done"


def main() -> None:
    small = "--small" in sys.argv
    rounds, episodes = (3, 8) if small else (15, 64)
    rows: list[tuple[object, ...]] = []
    with contextlib.ExitStack() as stack:
        docker = stack.enter_context(engine()) if os.geteuid() == 0 and shutil.which("dockerd") else None
        for name, ours, theirs in measures(docker):
            mine, other = alternate(rounds, ours, theirs)
            ratio: object = other / mine if other is not None else ""
            rows.append((name, 1000 * mine, 1000 * other if other is not None else "no engine", ratio))
    text = common.header() + "\nMedian milliseconds, measured in turns; a snapshot has 200 files of 40 kB.\n\n"
    text += common.table(("", "machine", "docker", "docker / machine"), rows)
    text += f"\n{many(episodes)}\n"
    common.save("machines", text)


Timed = Callable[[], float]


def alternate(rounds: int, ours: Timed, theirs: Timed | None) -> tuple[float, float | None]:
    """Medians of both, measured one after the other."""
    mine, other = [], []
    for _ in range(rounds):
        mine.append(ours())
        if theirs is not None:
            other.append(theirs())
    return statistics.median(mine), statistics.median(other) if other else None


def timed(act: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def measures(docker: Docker | None) -> Iterator[tuple[str, Timed, Timed | None]]:
    def first_command() -> float:
        begun = time.perf_counter()
        with Machine.create(limits=LIMITS) as machine:
            machine.run(["sh", "-c", ":"])
            return time.perf_counter() - begun

    yield "start to the end of the first command", first_command, docker and docker.first_command
    machine = Machine.create(limits=LIMITS)
    machine.run(WORK)
    yield "one more command", lambda: timed(lambda: machine.run(["sh", "-c", ":"])), docker and docker.command
    folder = Path(tempfile.mkdtemp(prefix="rollenv-bench-"))
    count = iter(range(10**6))

    def snapshot() -> float:
        return timed(lambda: machine.commit(folder / str(next(count))))

    yield "snapshot", snapshot, docker and docker.snapshot
    image = machine.commit(folder / "last")

    def restore() -> float:
        start = time.perf_counter()
        with Machine.create(image, limits=LIMITS) as copy:
            assert len(copy.run("ls /tmp").stdout.split()) == 200
            return time.perf_counter() - start

    yield "restore, to the end of a command", restore, docker and docker.restore
    machine.kill()
    remove(folder)


class Docker:
    """The same with an engine's own command line."""

    def __init__(self, url: str, image: str):
        self.url, self.image = url, image
        self.box = self("run", "-d", image, "sleep", "100000").strip()
        self("exec", self.box, "sh", "-c", WORK)
        self.copy = ""

    def __call__(self, *words: str) -> str:
        return subprocess.run(["docker", "-H", self.url, *words], check=True, capture_output=True, text=True).stdout

    def first_command(self) -> float:
        return timed(lambda: self("run", "--rm", "--network", "none", self.image, "sh", "-c", ":"))

    def command(self) -> float:
        return timed(lambda: self("exec", self.box, "sh", "-c", ":"))

    def snapshot(self) -> float:
        begun = time.perf_counter()
        self.copy = self("commit", self.box).strip()
        return time.perf_counter() - begun

    def restore(self) -> float:
        return timed(lambda: self("run", "--rm", "--network", "none", self.copy, "ls", "/tmp"))


@contextlib.contextmanager
def engine() -> Iterator[Docker]:
    """An engine of our own, with an image of this Python; the tests use the same."""
    import engine as engines

    folder = Path(tempfile.mkdtemp(prefix="rollenv-docker-"))
    url, daemon = engines.start_engine(folder)
    try:
        docker = Docker(url, engines.settings(url)["image"])
        yield docker
        docker("rm", "-f", docker.box)
    finally:
        daemon.terminate()
        daemon.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def many(episodes: int) -> str:
    """So many machines at once, each with work to do; what is left afterwards."""
    before, mounts = children(), len(Path("/proc/self/mounts").read_text().splitlines())
    done: list[float] = []
    failed: list[str] = []

    def episode(number: int) -> None:
        begun = time.perf_counter()
        try:
            with Machine.create(limits=LIMITS) as machine:
                for turn in range(5):
                    said = machine.run(f"echo {number} >> /app/x; sleep 0.1; wc -l < /app/x").stdout
                    assert said == f"{turn + 1}\n", said
            done.append(time.perf_counter() - begun)
        except Exception as error:
            failed.append(repr(error))

    begun = time.perf_counter()
    threads = [threading.Thread(target=episode, args=(i,)) for i in range(episodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - begun
    left = children() - before
    more = len(Path("/proc/self/mounts").read_text().splitlines()) - mounts
    return (
        f"{episodes} machines at once, 5 commands each: {len(done)} whole in {wall:.1f} s, {len(failed)} failed; "
        f"processes left {len(left)}, mounts left {more}.{' ' + failed[0] if failed else ''}"
    )


def children() -> set[str]:
    """Processes below this one."""
    said = subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True).stdout
    return {pid for pid in said.split() if Path(f"/proc/{pid}").exists()}


if __name__ == "__main__":
    main()
