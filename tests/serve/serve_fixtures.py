"""Servers for the tests: one for each file, some for several files, and as many more as a test needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from serving import Served, tokens_in


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """A server that the tests of a file share; each file has its own, so that none sees sessions that another left."""
    served = Served()
    yield served
    served.stop()


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Served]:
    """A server for files that neither count its sessions nor end its workers."""
    served = Served()
    yield served
    served.stop()


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, dict[str, str]]]:
    """A server that all files share and that needs tokens; two players and two owners of sandboxes, by name."""
    scopes = {"ann": "environments", "eve": "environments", "bob": "sandboxes", "joe": "sandboxes"}
    file, tokens = tokens_in(tmp_path_factory.mktemp("tokens"), **scopes)
    served = Served("--tokens", file)
    yield served, tokens
    served.stop()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Starts servers with arguments of their own, which end with the test."""
    started: list[Served] = []

    def start(*args: str, **kwargs: object) -> Served:
        started.append(Served(*args, **kwargs))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for served in started:
        served.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A server of one's own takes a second or two to start, so a quick run omits it."""
    for item in items:
        if "serve" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
