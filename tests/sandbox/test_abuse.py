"""Nothing gets out, nothing slows a neighbour, and the next run on that sandbox is clean; on both backends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import abuse
import pytest

from rollenv.sandbox import Limits, Pool

LIMITS = Limits(seconds=1.5, memory_mb=256, processes=48, disk_mb=32, files=3000)
CLEAN = """
import os, json, sys
left = {d: os.listdir(d) for d in (os.getcwd(), "/tmp", "/dev/shm")}
others = [p for p in os.listdir("/proc") if p.isdigit() and int(p) not in (1, os.getpid())]
print(json.dumps([left, others, json.loads("[1]"), os.getcwd()]))
open("mine", "w").close()
"""


class Outside:
    """What a program could reach if it got out; notices if it did."""

    def __init__(self, folder: Path):
        folder.chmod(0o777)
        self.canary, self.secret = folder / "canary", folder / "secret"
        self.canary.mkdir()
        self.canary.chmod(0o777)
        self.secret.write_text("secret")
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.setblocking(False)
        self.abstract = socket.socket(socket.AF_UNIX)
        self.name = f"rollenv-abuse-{os.getpid()}"
        self.abstract.bind("\0" + self.name)
        self.abstract.listen(5)
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])

    def fill_in(self, program: str) -> str:
        values = {"port": self.server.getsockname()[1], "secret": self.secret, "canary": self.canary}
        values |= {"pid": self.process.pid, "abstract": "\\0" + self.name}
        for name, value in values.items():
            program = program.replace("{" + name + "}", str(value))
        return program

    def unharmed(self) -> bool:
        with pytest.raises(BlockingIOError):
            self.server.accept()
        return self.process.poll() is None and not list(self.canary.iterdir()) and self.secret.read_text() == "secret"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.server.close()
        self.abstract.close()


@pytest.fixture(scope="module")
def outside(tmp_path_factory) -> Iterator[Outside]:
    made = Outside(tmp_path_factory.mktemp("outside"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[str, Pool]]:
    made: dict[str, Pool] = {}
    yield made
    for pool in made.values():
        pool.close()


@pytest.fixture
def pool(backend: dict[str, Any], pools: dict[str, Pool]) -> Pool:
    """One sandbox, so that what one run leaves the next one finds."""
    name = backend["backend"]
    if name not in pools:
        pools[name] = Pool(1, limits=LIMITS, **backend)
    return pools[name]


def assert_clean(pool: Pool) -> None:
    done = pool.run(CLEAN)
    assert done.exit_code == 0, done
    left, others, parsed, _ = eval(done.stdout)
    assert not any(left.values()), left
    assert not others
    assert parsed == [1]


@pytest.mark.slow
@pytest.mark.parametrize("name", abuse.DENIED)
def test_denied(name, pool, outside):
    done = pool.run(abuse.TRY + outside.fill_in(abuse.DENIED[name]))
    assert "ESCAPED" not in done.stdout, done.stdout
    assert done.stdout, f"the attempt itself did not run: {done.stderr}"
    assert outside.unharmed()
    assert_clean(pool)


@pytest.mark.slow
@pytest.mark.parametrize("name", abuse.CONTAINED)
def test_contained(name, pool, outside):
    replaced = pool.health()["replaced"]
    start = time.monotonic()
    done = pool.run(abuse.CONTAINED[name])
    assert time.monotonic() - start < LIMITS.seconds + 3
    assert len(done.stdout) <= LIMITS.output_bytes
    assert_clean(pool)
    assert pool.health()["replaced"] == replaced, "the same sandbox goes on"
    assert outside.unharmed()
