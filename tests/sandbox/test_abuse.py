"""Nothing gets out, nothing slows a neighbour, and the next run on that sandbox is clean; on both backends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import abuse
import pytest
from engine import settings

from rollenv.sandbox import Limits, Pool, RunResult

pytestmark = pytest.mark.slow
LIMITS = Limits(seconds=1.0, memory_mb=256, processes=48, disk_mb=32, files=3000)


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
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100_000)"])

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
def shared() -> Iterator[dict[str, Pool]]:
    made: dict[str, Pool] = {}
    yield made
    for pool in made.values():
        pool.close()


@pytest.fixture(params=["local", "docker", "docker-debian", "docker-scratch"])
def backend(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Arguments of Pool for each backend, with the tests' own image and with ordinary ones."""
    kind, _, image = request.param.partition("-")
    if kind == "local":
        return {"backend": "local"}
    url = request.getfixturevalue("docker_url")
    if not image:
        return settings(url)
    return {"backend": "docker", "image": request.getfixturevalue(f"{image}_image"), "base_url": url}


@pytest.fixture
def pool(backend: dict[str, Any], shared: dict[str, Pool], request: pytest.FixtureRequest) -> Iterator[Pool]:
    """A fresh sandbox for each program, alone, so that what one run leaves the next one finds.

    Containers take seconds, so programs that are refused outright share one.
    """
    if backend["backend"] == "docker" and request.node.originalname == "test_denied":
        if backend["image"] not in shared:
            shared[backend["image"]] = Pool(1, limits=LIMITS, **backend)
        yield shared[backend["image"]]
        return
    with Pool(1, limits=LIMITS, **backend) as made:
        yield made


@pytest.fixture(scope="module")
def untouched() -> dict[str, Any]:
    """What a first run finds, by backend."""
    return {}


def seek(pool: Pool, mark: str) -> tuple[list[str], dict[str, Any]]:
    """Run the program that looks for its predecessor: where it found the mark, and what it found else."""
    halves = (mark[:8].encode(), mark[8:].encode())
    done = pool.run(abuse.SEEK.replace("HALVES", repr(halves)), timeout=20)
    assert done.exit_code == 0, done
    found, record = json.loads(done.stdout)
    return found, record


def marked(program: str, mark: str) -> str:
    """The program with a mark in its code, in its memory and in its output."""
    return f"# {mark}\nmark = {mark!r}; print(mark, flush=True)\n{program}"


@pytest.fixture
def play(
    pool: Pool, backend: dict[str, Any], untouched: dict[str, Any], outside: Outside
) -> Callable[[str], RunResult]:
    """Run a program, then the one that looks for it: it has to find what a first run finds, in the same sandbox."""
    name = str(backend)
    if name not in untouched:
        untouched[name] = seek(pool, uuid.uuid4().hex)[1]

    def run(program: str) -> RunResult:
        mark, start = uuid.uuid4().hex, time.monotonic()
        done = pool.run(marked(program, mark), stdin=mark)
        assert time.monotonic() - start < LIMITS.seconds + 30  # the limit is kept, even on a busy machine
        found, record = seek(pool, mark)
        assert not found
        assert record == untouched[name]
        assert outside.unharmed()
        health = pool.health()
        assert (health["replaced"], health["died"]) == (0, 0), "the same sandbox goes on"
        return done

    return run


@pytest.mark.integration
@pytest.mark.parametrize("name", abuse.DENIED)
def test_denied(name, play, outside):
    done = play(abuse.TRY + outside.fill_in(abuse.DENIED[name]))
    assert "ESCAPED" not in done.stdout, done.stdout
    assert len(done.stdout) > 34, f"the attempt itself did not run: {done.stderr}"


@pytest.mark.integration
@pytest.mark.parametrize("name", abuse.CONTAINED)
def test_contained(name, play):
    assert len(play(abuse.CONTAINED[name]).stdout) <= LIMITS.output_bytes


def test_the_program_that_looks_for_its_predecessor_finds_one_that_is_there(backend):
    """Else it would prove nothing: here it is told to look for what it holds itself."""
    mark = uuid.uuid4().hex
    with Pool(1, **backend) as pool:
        program = abuse.SEEK.replace("HALVES", repr((mark[:8].encode(), mark[8:].encode())))
        done = pool.run(f"mark = {mark!r}\nopen('left', 'w').write(mark)\n" + program)
        found, record = json.loads(done.stdout)
    assert any(place.startswith("memory") for place in found)
    assert "an object" in found
    assert "file left" in found
    assert any(path.endswith("left") for path in record["files"])
