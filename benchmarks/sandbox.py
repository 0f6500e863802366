"""Latency and rate of isolated runs, beside unprotected Python, docker exec and a Jupyter kernel, in one run.

Jupyter runs in an environment of its own: ``python -m venv .bench/jupyter`` and there ``pip install ipykernel``.
Docker is measured where ``dockerd`` can be started (root), with an image made of this machine's Python.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import ROOT, header, save, table

from rollenv.sandbox import Limits, Pool, Sandbox

sys.path.insert(0, str(ROOT / "tests" / "sandbox"))

JUPYTER_PYTHON = ROOT / ".bench/jupyter/bin/python"
#: Prints the seconds of each of N stateful calls to a Jupyter kernel.
JUPYTER = """
import sys, time
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel()
client.execute_interactive("x = 1", output_hook=lambda m: None)
for _ in range(int(sys.argv[1])):
    t = time.perf_counter()
    client.execute_interactive("x + 1", output_hook=lambda m: None)
    print(time.perf_counter() - t)
client.stop_channels(); manager.shutdown_kernel(now=True)
"""


def timed(action: Callable[[], Any], n: int, pause: float = 0.0) -> list[float]:
    """Seconds of each of ``n`` calls, after one that does not count."""
    action()
    times = []
    for _ in range(n):
        time.sleep(pause)
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return sorted(times)


def python(*arguments: str) -> Callable[[], Any]:
    return lambda: subprocess.run([sys.executable, *arguments], capture_output=True, check=True)


@contextlib.contextmanager
def docker_engine() -> Iterator[dict[str, Any] | None]:
    """Arguments for the docker backend, or None where there is no engine."""
    import engine  # of the sandbox's tests

    if os.geteuid() != 0 or subprocess.run(["which", "dockerd"], capture_output=True).returncode:
        yield None
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        url, daemon = engine.start_engine(Path(folder))
        try:
            yield engine.settings(url)
        finally:
            daemon.terminate()
            daemon.wait(30)


def docker_exec(settings: dict[str, Any], n: int) -> list[float]:
    """`docker exec python -c` in a container that already runs."""
    base = ["docker", "-H", settings["base_url"]]
    sleep = [*base, "run", "-d", "--rm", "--network", "none", settings["image"], "/bin/sleep", "600"]
    container = subprocess.run(sleep, capture_output=True, text=True, check=True).stdout.strip()
    command = [*base, "exec", container, settings["python"], "-I", "-S", "-c", "print(1+1)"]
    times = timed(lambda: subprocess.run(command, capture_output=True, check=True), n)
    subprocess.run([*base, "kill", container], capture_output=True, check=True)
    return times


def jupyter(n: int) -> list[float]:
    script = [str(JUPYTER_PYTHON), "-c", JUPYTER, str(n)]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    return sorted(float(line) for line in done.stdout.split())


def rate(pool: Pool, n: int, threads: int) -> float:
    """Runs per second with that many threads asking."""
    with ThreadPoolExecutor(threads) as executor:
        start = time.perf_counter()
        list(executor.map(lambda _: pool.run("print(1+1)"), range(n)))
        return n / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=200)
    n = parser.parse_args().n
    rows: list[tuple[object, ...]] = []

    def row(name: str, times: list[float], note: str = "") -> float:
        middle = times[len(times) // 2]
        rows.append((name, f"{1000 * middle:.2f} ms", f"{1000 * times[int(0.95 * len(times))]:.2f} ms", note))
        return middle

    with Pool(packages=["numpy"]) as pool, docker_engine() as engine:
        bare = row("python -I -S -c 'print(1+1)', no protection", timed(python("-I", "-S", "-c", "print(1+1)"), n))
        row("python -c 'print(1+1)', no protection", timed(python("-c", "print(1+1)"), n))
        fresh = timed(lambda: pool.run("print(1+1)"), n, pause=0.01)
        row("rollenv local, a fresh run", fresh, f"{fresh[n // 2] / bare:.2f} of python -I -S")
        back = timed(lambda: pool.run("print(1+1)"), n)
        row("rollenv local, runs back to back", back, f"{back[n // 2] / bare:.2f} of python -I -S")
        cold = row("python -c 'import numpy'", timed(python("-c", "import numpy"), n // 4))
        warm = timed(lambda: pool.run("import numpy"), n, pause=0.01)
        row("rollenv local, import numpy in a fresh run", warm, f"{warm[n // 2] / cold:.3f} of the cold import")
        with Sandbox.create() as box:
            stateful = timed(lambda: box.run_code("1 + 1"), n)
        beside = ""
        if JUPYTER_PYTHON.exists():
            kernel = row("Jupyter kernel, a stateful call", jupyter(n))
            beside = f"{stateful[n // 2] / kernel:.2f} of the Jupyter kernel"
        else:
            print(f"no row for Jupyter: {JUPYTER_PYTHON} is missing; the first lines of this file say how to make it")
        row("rollenv local, a stateful call", stateful, beside)
        if engine:
            execs = row("docker exec python -I -S -c", docker_exec(engine, n // 4))
            rows[2] = (*rows[2][:3], f"{rows[2][3]}; {fresh[n // 2] / execs:.3f} of docker exec")
            with Pool(1, limits=Limits(), **engine) as contained:
                row("rollenv docker, a fresh run", timed(lambda: contained.run("print(1+1)"), n, pause=0.01))
        rates = [(t, f"{rate(pool, 10 * n, t):.0f}") for t in (1, 2, 16)]
    head = ("what", "p50", "p95", "")
    shared = f"The cores are shared with other work: load average {os.getloadavg()[0]:.1f} at the end.\n"
    figures = table(("threads asking", "fresh isolated runs per second"), rates)
    text = f"{header()}\n{shared}\n{table(head, rows)}\n{figures}"
    save("sandbox", text)


if __name__ == "__main__":
    main()
