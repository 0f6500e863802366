"""Backends for the tests: the local one, and docker with an engine of our own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import engine
import pytest

from rollenv.sandbox import Sandbox


@pytest.fixture(scope="session")
def engine_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Makes folders for engines; the test is skipped where none can run."""
    pytest.importorskip("docker", reason="the docker SDK is not installed")
    if os.geteuid() != 0 or not shutil.which("dockerd"):
        pytest.skip("only root can start a Docker engine, and it has to be installed (Debian's docker.io)")
    return lambda: tmp_path_factory.mktemp("docker")


@pytest.fixture(scope="session")
def docker_url(engine_folder: Callable[[], Path]) -> Iterator[str]:
    """The URL of an engine of our own, with the image loaded."""
    folder = engine_folder()
    url, daemon = engine.start_engine(folder)
    yield url
    daemon.terminate()
    daemon.wait(30)
    engine.clear_away(folder)


@pytest.fixture(scope="session")
def debian_image(docker_url: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of an image of Debian, with its Python."""
    if not shutil.which("debootstrap"):
        pytest.skip("there is no debootstrap")
    folder = tmp_path_factory.mktemp("debian")
    command = ["debootstrap", "--variant=minbase", "--include=python3", "bookworm", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"debootstrap: {done.stdout[-300:]}")
    engine.import_folder(docker_url, folder, "rollenv-test-debian")
    shutil.rmtree(folder)
    return "rollenv-test-debian"


@pytest.fixture(scope="session")
def scratch_image(docker_url: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of an image with nothing in it but busybox, if this machine has a static one."""
    folder = tmp_path_factory.mktemp("scratch")
    (folder / "bin").mkdir()
    if busybox := shutil.which("busybox"):
        shutil.copy(busybox, folder / "bin" / "busybox")
        for name in ("sh", "cat", "echo", "sleep", "id", "ls", "env"):
            (folder / "bin" / name).symlink_to("busybox")
    engine.import_folder(docker_url, folder, "rollenv-test-scratch")
    return "rollenv-test-scratch"


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.slow)])
def backend(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Arguments of Sandbox.create and Pool for each backend."""
    if request.param == "local":
        return {"backend": "local"}
    return engine.settings(request.getfixturevalue("docker_url"))


@pytest.fixture(scope="module")
def boxes() -> Iterator[dict[str, Sandbox]]:
    """The sandboxes that the tests of a file share, one for each backend."""
    made: dict[str, Sandbox] = {}
    yield made
    for sandbox in made.values():
        sandbox.kill()


@pytest.fixture
def box(backend: dict[str, Any], boxes: dict[str, Sandbox], request: pytest.FixtureRequest) -> Sandbox:
    """The file's sandbox, with its ``LIMITS``; a new one where a test has ended it."""
    return kept(boxes, backend, request)


@pytest.fixture
def local(boxes: dict[str, Sandbox], request: pytest.FixtureRequest) -> Sandbox:
    """The file's local sandbox, for what no other backend promises."""
    return kept(boxes, {"backend": "local"}, request)


def kept(boxes: dict[str, Sandbox], backend: dict[str, Any], request: pytest.FixtureRequest) -> Sandbox:
    name = backend["backend"]
    if name not in boxes or not boxes[name].alive:
        boxes[name] = Sandbox.create(**backend, limits=request.module.LIMITS)
    return boxes[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run on docker in `make smoke` what the guides promise of it, the rest in `make integration`: it takes seconds."""
    for item in items:
        if item.path.parent == Path(__file__).parent and "[docker" in item.name:
            item.add_marker("integration")
            if item.path.name == "test_sandbox.py" and not item.get_closest_marker("combinations"):
                item.add_marker("smoke")
