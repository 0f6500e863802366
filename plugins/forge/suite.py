"""A package's test suite in the sandbox, with and without a fault."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from xml.etree.ElementTree import ParseError

from rollenv.core.needs import extra
from rollenv.plugins.forge.inside import grade, run_tests
from rollenv.plugins.forge.sources import BadPackage, Package
from rollenv.sandbox import Limits, Sandbox
from rollenv.sandbox.errors import NotFound, SandboxDied, SandboxFileError
from rollenv.sandbox.offline import system_python

with extra("forge", "Forging tasks"):
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

#: Folders below the scratch folder of the sandbox: the project, the copy of a run, libraries, other files.
_TREE, _RUN, _SITE, _TOOLS = "tree", "run", "site", "tools"


@dataclass(frozen=True)
class Run:
    """The result of a run of the tests.

    Args:
        outcomes: one of :data:`~rollenv.plugins.forge.inside.grade.OUTCOMES` and the message of a failure, by node id.
        hung: whether it timed out.
        output: the end of its output.
    """

    outcomes: Mapping[str, tuple[str, str]]
    seconds: float
    hung: bool = False
    output: str = ""

    @property
    def passed(self) -> frozenset[str]:
        return frozenset(name for name, (outcome, _) in self.outcomes.items() if outcome == "passed")

    @property
    def failed(self) -> frozenset[str]:
        return frozenset(name for name, (outcome, _) in self.outcomes.items() if outcome in ("failed", "error"))

    @property
    def uncollected(self) -> frozenset[str]:
        """Test files that could not be imported."""
        return frozenset(name for name in self.outcomes if "::" not in name)


class Suite:
    """Runs a package's tests in a fresh copy of its files each time. A context manager.

    Only the standard library, pytest and the package's requirements can be imported, so that tests that pass here pass
    wherever these are installed.

    Args:
        seconds: time limit of a run.
        memory_mb: memory limit of a run, including files.
    """

    def __init__(self, package: Package, seconds: float, memory_mb: int = 2048):
        self.package, self.seconds = package, seconds
        self._limits = Limits(
            seconds=seconds, memory_mb=memory_mb, disk_mb=512, files=50_000, processes=256, open_files=1024
        )
        self._links = _libraries(package)
        self._sandbox = self._start()

    def _start(self) -> Sandbox:
        sandbox = Sandbox.create(limits=self._limits)
        try:
            files: dict[str, bytes | str] = {f"{_TREE}/{path}": data for path, data in self.package.files.items()}
            files[f"{_TOOLS}/run_tests.py"] = Path(run_tests.__file__).read_bytes()
            files[f"{_TOOLS}/links"] = "".join(f"{path}\n" for path in self._links)
            sandbox.files.write_many(files)
            link = f'test -e "$path" && ln -s "$path" {_SITE}/ || echo "$path"'
            linked = sandbox.commands.run(
                f"mkdir {_SITE} && while IFS= read -r path; do {link}; done < {_TOOLS}/links", timeout=60
            )
            if missing := linked.stdout.splitlines():
                raise BadPackage(
                    f"{missing[0]} is outside of {sys.prefix}, so sandboxes cannot see it: install it there"
                )
            self._home = sandbox.commands.run("pwd").stdout.strip()
        except BaseException:
            sandbox.kill()
            raise
        return sandbox

    def run(
        self,
        changed: Mapping[str, str] | None = None,
        *,
        files: Sequence[str] = (),
        select: Collection[str] | None = None,
        hash_seed: int = 0,
        seconds: float | None = None,
        trace: bool = False,
        python: str = "",
    ) -> Run:
        """Run tests.

        Args:
            changed: text of changed files by path.
            files: test files; by default all.
            select: node ids; by default all.
            hash_seed: determines the order of sets of strings.
            seconds: time limit; by default the suite's.
            trace: whether to record calls, see :meth:`calls`.
            python: interpreter; by default the current one.
        """
        settings: dict[str, Any] = {"root": f"{self._home}/{_RUN}", "paths": self.package.paths}
        settings |= {"libraries": [f"{self._home}/{_SITE}"], "files": list(files or self.package.tests)}
        settings |= {"junit": f"{self._home}/{_TOOLS}/junit.xml", "select": None if select is None else sorted(select)}
        settings["trace"] = f"{self._home}/{_TOOLS}/calls.json" if trace else None
        limit = min(seconds or self.seconds, self.seconds)
        try:
            return self._run(settings, changed or {}, hash_seed, limit, python or os.path.realpath(sys.executable))
        except (SandboxDied, SandboxFileError) as error:  # the tests killed the sandbox
            self._sandbox.kill()
            self._sandbox = self._start()
            return Run({}, limit, output=str(error))

    def _run(
        self, settings: dict[str, Any], changed: Mapping[str, str], hash_seed: int, limit: float, python: str
    ) -> Run:
        box = self._sandbox
        # If the host's Python is below /tmp, it is mounted there; -xdev keeps find out of it.
        clean = f"chmod -R u+rwX {_RUN} 2>/dev/null; find /tmp/ -mindepth 1 -xdev -delete 2>/dev/null; rm -rf {_RUN}"
        box.commands.run(f"{clean} {_TOOLS}/junit.xml && cp -r {_TREE} {_RUN}", timeout=60)
        files: dict[str, bytes | str] = {f"{_RUN}/{path}": text for path, text in changed.items()}
        box.files.write_many({**files, f"{_TOOLS}/settings.json": json.dumps(settings)})
        words = [python, *grade.PYTHON_FLAGS, f"{_TOOLS}/run_tests.py", f"{_TOOLS}/settings.json"]
        done = box.commands.run(words, env={"PYTHONHASHSEED": str(hash_seed), "TZ": "UTC"}, timeout=limit)
        hung = done.error is not None and done.error.name == "Timeout"
        output = (done.stdout + done.stderr)[-2000:]
        try:
            outcomes = grade.read_junit(box.files.read(f"{_TOOLS}/junit.xml"), settings["files"])
        except (NotFound, ParseError, UnicodeDecodeError):
            outcomes = {}
        return Run(outcomes, done.seconds, hung, output)

    def calls(self) -> dict[tuple[str, int], list[str]]:
        """Return the node ids of tests by the module and first line of functions they called, from the last trace."""
        rows = json.loads(self._sandbox.files.read(f"{_TOOLS}/calls.json"))
        return {(path, line): tests for path, line, tests in rows}

    def close(self) -> None:
        """Close the sandbox."""
        self._sandbox.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def python_of_machines() -> str:
    """Return the host's own Python, which grades on machines, if it has the current version; else the current one."""
    same = system_python() == f"{sys.version_info[0]}.{sys.version_info[1]}"
    own = "/usr/bin/python3"
    return own if same and os.path.exists(own) else os.path.realpath(sys.executable)


def _libraries(package: Package) -> list[str]:
    """Return files and folders of pytest and the package's requirements, recursively."""
    waiting, seen, found = ["pytest", *package.requires], set[str](), set[str]()
    while waiting:
        wanted = Requirement(waiting.pop())
        if wanted.name.lower() in seen or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        seen.add(wanted.name.lower())
        if canonicalize_name(wanted.name) == canonicalize_name(package.name):
            raise BadPackage(f"{package.title} is installed wherever its tests run, so that the answer would be there")
        try:
            distribution = metadata.distribution(wanted.name)
        except metadata.PackageNotFoundError:
            raise BadPackage(
                f"{package.title} needs {wanted}, which is not installed: pip install '{wanted}'"
            ) from None
        waiting += distribution.requires or []
        tops = {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}
        site = os.path.realpath(str(distribution.locate_file("")))
        found |= {path for top in tops if os.path.exists(path := os.path.join(site, top))}
    return sorted(found)
