"""Fixtures shared by all tests."""

from __future__ import annotations

import functools
import gc
import io
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from listening import Answers, listening

ROOT = Path(__file__).parent.parent
pytest_plugins = ["serve_fixtures"]


def pytest_configure(config: pytest.Config) -> None:
    """Set up a process that runs tests.

    A shell's background job ignores Ctrl-C, and so would what the tests start and interrupt. Processes that run tests
    side by side share the cores: threads of one would wait for those of another. Properties are tried on few examples,
    in `make integration` on many; slow machines fail none of them. Beside busy programs Ray's workers would wait long.
    What collection makes lives to the end: looking for garbage in it takes longer than all else of collection.
    """
    gc.disable()
    os.environ.setdefault("RAY_worker_niceness", "0")
    for name, examples in (("few", 30), ("many", 100)):
        patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "database": None}
        settings.register_profile(name, max_examples=examples, **patient)  # type: ignore[arg-type]
    settings.load_profile("many" if thorough(config) else "few")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    beside = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if beside > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // beside)))


def thorough(config: pytest.Config) -> bool:
    """Return True in the integration run."""
    return str(config.getoption("markexpr")) == "integration"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Move browser and smoke tests, and all but the first case of ``combinations``, to the integration run.

    Properties run in both, see above.
    """
    begun: set[str] = set()
    for item in items:
        if thorough(config) and getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.integration)
        if "browser" in getattr(item, "fixturenames", ()) or item.get_closest_marker("smoke"):
            item.add_marker(pytest.mark.integration)
        if item.get_closest_marker("combinations"):
            test = item.nodeid.split("[")[0]
            if test in begun:
                item.add_marker(pytest.mark.integration)
            begun.add(test)
        if item.get_closest_marker("integration"):
            item.add_marker(pytest.mark.slow)
    early = {item.path for item in items if item.get_closest_marker("early")}
    items.sort(key=lambda item: item.path not in early)


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing is read from, or left in, the cache of whoever runs the tests."""
    os.environ["ROLLENV_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def _certificates_once() -> Iterator[None]:
    """Clients share what they read of the public internet's certificates, which takes longer than most tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="session")
def data() -> Callable[[str], Path]:
    """``data("boxoban/medium")`` is that folder or file of $ROLLENV_DATA; the test is skipped where it is absent."""

    def find(name: str) -> Path:
        root = os.environ.get("ROLLENV_DATA")
        if not root:
            pytest.skip("ROLLENV_DATA does not name a folder of data sets")
        path = Path(root) / name
        if not path.exists():
            pytest.skip(f"$ROLLENV_DATA has no {name}")
        return path

    return find


@pytest.fixture
def rollenv_process(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in an empty folder, as a process of its own."""

    def run(*args: str, timeout: float = 120, **kwargs: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from rollenv.cli.main import main; main()", *args]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=timeout, **kwargs)  # type: ignore[call-overload,no-any-return]

    return run


@pytest.fixture
def rollenv_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in an empty folder, in this process, which has imported what it needs."""

    def run(*args: str, input: str = "") -> subprocess.CompletedProcess[str]:
        from rollenv.cli.main import main

        capfd.readouterr()
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("default")  # none is an error for users
            patch.chdir(tmp_path)
            patch.setattr(sys, "argv", ["rollenv", *args])
            patch.setattr(sys, "stdin", io.StringIO(input))
            with pytest.raises(SystemExit) as ended:
                main()
        return subprocess.CompletedProcess(args, ended.value.code or 0, *capfd.readouterr())

    return run


@pytest.fixture
def spec_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Register a class of these tests; another process finds it through PYTHONPATH."""
    import rollenv
    from rollenv.core import registry

    rollenv.list_envs()
    monkeypatch.setattr(registry, "ENV_REGISTRY", dict(registry.ENV_REGISTRY))

    def add(cls: type, **kwargs: object) -> Any:
        rollenv.register(
            f"test:{cls.__name__}-v0", f"{cls.__module__}:{cls.__name__}", abilities=registry.ABILITIES, **kwargs
        )
        return rollenv.spec(f"test:{cls.__name__}-v0")

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return add


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, for a module's tests."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Debian's chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def show(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page; at the end, no page may have had an error, or asked for anything but itself and its shards."""
    tabs = []

    def open_page(file: Path, width: int = 1200, scheme: str = "light") -> Any:
        tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        tab.problems, tab.loaded = [], []
        tab.on("pageerror", lambda error: tab.problems.append(str(error)))
        tab.on("console", lambda message: tab.problems.append(message.text))
        tab.on("dialog", lambda dialog: tab.problems.append("a dialog"))
        tab.on("request", lambda request: tab.loaded.append(request.url))
        tab.goto(file.as_uri())
        tab.wait_for_selector("h1")
        tabs.append(tab)
        return tab

    yield open_page
    for tab in tabs:
        assert tab.problems == []
        here = tab.loaded[0].rpartition("/")[0]
        assert all(url.startswith((here, "data:image/png;base64,")) for url in tab.loaded)
        tab.close()


class Retrieval(Answers):
    """GEM's protocol: MessagePack in, MessagePack out; a query of "broken" gets half an answer."""

    def do_POST(self):
        import msgpack

        asked = msgpack.unpackb(self.rfile.read(int(self.headers["Content-Length"])))
        rows = [{"document": {"contents": f'"T{i}"\n{asked["query"]}'}} for i in range(5)]
        data = msgpack.packb({"result": rows})
        self.send_response(500 if asked["query"] == "error" else 200)
        self.end_headers()
        self.wfile.write(data[:5] if asked["query"] == "broken" else data)


@pytest.fixture(scope="session")
def retrieval_url():
    """A search server; ``broken`` and ``error`` are answered badly."""
    with listening(Retrieval) as address:
        yield f"http://{address}/retrieve"


@pytest.fixture
def guessing_endpoint():
    """A chat endpoint that plays GuessTheNumber, one step up or down at a time."""
    sys.path.append(str(ROOT / "tests" / "agents"))
    from chat_server import ChatServer, Exchange, completion

    async def behave(exchange: Exchange) -> None:
        seen = re.findall(r"(lower|higher) than (\d+)", exchange.body["messages"][-1]["content"])
        guess = int(seen[-1][1]) + (1 if seen[-1][0] == "higher" else -1) if seen else 5
        await exchange.json(completion(f"\\boxed{{{guess}}}"))

    with ChatServer(behave) as server:
        yield server
