"""Runs pytest in a project's folder and writes a JUnit file: ``python -P -s -S run_tests.py SETTINGS``.

With these flags Python reads no ``.pth`` files and no ``sitecustomize``. The project's configuration of pytest and
third-party plugins are ignored too.

The settings are a JSON file: ``root``, the project's folder; ``paths`` and ``libraries``, the import folders below it
and elsewhere; ``files``, the test files; ``junit``, the output. Optional: ``select``, node ids to run, and ``trace``, a
file for the calls of each test.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Select:
    """A pytest plugin that selects tests by node id."""

    def __init__(self, wanted: list[str]):
        self.wanted = set(wanted)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if item.nodeid in self.wanted]


class Trace:
    """A pytest plugin that records the functions below a folder that each test calls, without tracing lines."""

    def __init__(self, root: str):
        self.root = root.rstrip("/") + "/"
        self.calls: dict[tuple[str, int], set[str]] = {}
        self.test = ""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.test = nodeid
        threading.settrace(self._called)
        sys.settrace(self._called)  # again for every test, because a test may set its own

    def pytest_runtest_logfinish(self) -> None:
        sys.settrace(None)

    def _called(self, frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if code.co_filename.startswith(self.root):
            self.calls.setdefault((code.co_filename, code.co_firstlineno), set()).add(self.test)

    def rows(self) -> Iterator[list[Any]]:
        """Yield the file below the root, first line and tests of each function."""
        for (file, line), tests in self.calls.items():
            yield [file[len(self.root) :], line, sorted(tests)]


def main(path: str) -> int:
    """Run the tests and return pytest's exit code; 3, without output, if there is no pytest."""
    settings = json.loads(Path(path).read_text(encoding="utf-8"))
    root = settings["root"] = os.path.realpath(settings["root"])  # node ids are relative to it
    os.chdir(root)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.path[:0] = [os.path.normpath(os.path.join(root, folder)) for folder in settings["paths"]]
    sys.path += settings["libraries"]
    try:
        import pytest
    except ImportError as error:
        print(f"pytest cannot be imported from {settings['libraries']}: {error}", file=sys.stderr)
        return 3
    trace = Trace(root) if settings.get("trace") else None
    plugins: list[Any] = [trace] if trace else []
    if settings.get("select") is not None:
        plugins.append(Select(settings["select"]))
    code = int(pytest.main(_arguments(settings), plugins=plugins))
    if trace:
        Path(settings["trace"]).write_text(json.dumps(list(trace.rows())), encoding="utf-8")
    return code


def _arguments(settings: dict[str, Any]) -> list[str]:
    config = Path(settings["junit"]).with_suffix(".ini")
    config.write_text("[pytest]\njunit_family = xunit1\n", encoding="utf-8")
    words = ["-q", "-p", "no:cacheprovider", "--tb=short", "--continue-on-collection-errors", "-c", str(config)]
    words += ["--rootdir", settings["root"], "--confcutdir", settings["root"], "--junit-xml", settings["junit"]]
    return [*words, *settings["files"]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
