"""How much memory programs get that try to get more than their limit: the peak of everything in a control group.

Needs root and version 1 of the memory controller, to measure with; the sandboxes of the ordinary user have no group.
"""

# ruff: noqa: E501

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from common import ROOT, header, save, table

LIMIT_MB = 256
_HOLD = "\ntime.sleep(9)"
#: Kinds of memory with programs that fill them until they are stopped.
PROGRAMS = {
    "private memory of one process": "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "private memory of 20 processes": (
        "for _ in range(20):\n    if os.fork() == 0: break\nx = []\nwhile True:\n"
        "    try: x.append(bytearray(1 << 20))\n    except MemoryError: time.sleep(9)"
    ),
    "the same, not dumpable": (
        "ctypes.CDLL(None).prctl(4, 0)\nfor _ in range(20):\n    if os.fork() == 0: break\nx = []\nwhile True:\n"
        "    try: x.append(bytearray(1 << 20))\n    except MemoryError: time.sleep(9)"
    ),
    "memfd_create": (
        "fds = []\nwhile True:\n    fds.append(os.memfd_create('x'))\n"
        "    for _ in range(16): os.write(fds[-1], b'x' * (1 << 20))"
    ),
    "shared mappings, out of sight": (
        "while True:\n    if os.fork() == 0:\n        m = mmap.mmap(-1, 200 << 20)\n"
        "        for i in range(200): m[i << 20 : i + 1 << 20] = b'x' * (1 << 20)\n"
        "        m.madvise(mmap.MADV_DONTNEED); time.sleep(99)\n    time.sleep(0.05)"
    ),
    "System V segments": (
        "l = ctypes.CDLL(None); l.shmat.restype = ctypes.c_void_p\nwhile True:\n    i = l.shmget(0, 64 << 20, 0o1777)\n"
        "    if i < 0: break\n    ctypes.memset(l.shmat(i, 0, 0), 1, 64 << 20)"
    ),
    "files in memory": "i = 0\nwhile True:\n    open(f'/dev/shm/{i}', 'wb').write(b'x' * (8 << 20)); i += 1",
    "unix sockets": (
        "for _ in range(30):\n    if os.fork() == 0: break\ns = []\ntry:\n    while True:\n"
        "        a, b = socket.socketpair(); a.setblocking(False); s += [a, b]\n        try:\n"
        "            while True: a.send(b'x' * 4096)\n        except BlockingIOError: pass\nexcept OSError: time.sleep(9)"
    ),
    "pipes": (
        "for _ in range(30):\n    if os.fork() == 0: break\ns = []\ntry:\n    while True:\n"
        "        a, b = os.pipe(); os.set_blocking(b, False); s += [a, b]\n        try:\n"
        "            while True: os.write(b, b'x' * 4096)\n        except BlockingIOError: pass\nexcept OSError: time.sleep(9)"
    ),
}
_DAEMON = (
    "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: x = b'x' * (60 << 20); time.sleep(99)\n"
    "    os._exit(0)\ntime.sleep(0.3)"
)


def play(name: str) -> str:
    """Run one program in this process, and print its start and outcome."""
    from rollenv.sandbox import Limits, Pool, Sandbox

    limits = Limits(memory_mb=LIMIT_MB, seconds=3, processes=48, disk_mb=1024)
    if name == "daemons between requests":
        with Sandbox.create(limits=limits) as box:
            box.run_code("1")
            print("begin", flush=True)
            sys.stdin.readline()
            errors = [box.run_code(_DAEMON).error for _ in range(8)]
        return "stopped" if any(errors) else "not stopped"
    with Pool(1, limits=limits) as pool:
        pool.run("1")
        print("begin", flush=True)
        sys.stdin.readline()
        done = pool.run("import ctypes, mmap, os, socket, time\n" + PROGRAMS[name])
    return "stopped" if done.out_of_memory else "time limit" if done.timed_out else "refused or MemoryError"


def measure(name: str, group: Path, user: bool) -> tuple[float, str]:
    """(peak above what there was before, in MiB; how it ended)."""
    as_user = [sys.executable, str(ROOT / "tests/sandbox/as_user.py")] if user else []
    process = subprocess.Popen(
        [*as_user, sys.executable, __file__, "--play", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    (group / "memory.force_empty").write_text("0")
    before = int((group / "memory.usage_in_bytes").read_text())
    (group / "memory.max_usage_in_bytes").write_text("0")
    process.stdin.write("go\n")
    process.stdin.flush()
    said = process.stdout.read()
    process.wait()
    return (int((group / "memory.max_usage_in_bytes").read_text()) - before) / 2**20, said.strip()


def main() -> None:
    if "--play" in sys.argv:
        print(play(sys.argv[2]))
        return
    own = next(line.split(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line)
    group = Path("/sys/fs/cgroup/memory") / own.lstrip("/") / f"measure-{os.getpid()}"
    group.mkdir()
    rows: list[tuple[object, ...]] = []
    try:
        for name in [*PROGRAMS, "daemons between requests"]:
            row: list[object] = [name]
            for user in (False, True):
                peak, ended = measure(name, group, user)
                row += [f"{peak:.0f}", f"{peak / LIMIT_MB:.2f}", ended]
            rows.append(tuple(row))
            sys.stderr.write(json.dumps(row) + "\n")
    finally:
        for _ in range(50):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)
    head = ("what is filled", "root, MiB", "of the limit", "", "ordinary user, MiB", "of the limit", "")
    save("sandbox_memory", f"{header()}\n\nThe limit is {LIMIT_MB} MiB for each sandbox.\n\n{table(head, rows)}")


if __name__ == "__main__":
    main()
