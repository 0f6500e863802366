"""Grades an agent's work on a repository by SWE-bench's rule: all FAIL_TO_PASS and PASS_TO_PASS tests pass.

This file is in the task's ``tests`` folder, beside ``task.json``, ``test.patch`` and ``grade.py``. The test files of
the patch, and the files above them that configure pytest, are restored from the base commit, new ones are removed, and
the patch is applied. The tests run with the repository's own Python.

Known gaps: the agent's code runs in the process of the tests, and an agent that is root can change git, Python and
pytest. A separate verifier container prevents the second.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree.ElementTree import ParseError

try:
    from rollenv.plugins.forge.inside.grade import Broken, read_junit, report
except ImportError:  # in a task, grade.py is beside this file
    from grade import Broken, read_junit, report  # type: ignore[import-not-found,no-redef]

#: Files above a test that only configure tests; and shared ones, which are restored unless the fix changes them.
_CONFIGURATION = ("conftest.py", "pytest.ini", ".pytest.ini", "sitecustomize.py", "usercustomize.py")
_SHARED = ("setup.cfg", "tox.ini", "pyproject.toml")


def _git(repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-c", f"safe.directory={repository}", "-c", "core.hooksPath=/dev/null", "-C", str(repository)]
    return subprocess.run([*command, *words], capture_output=True, text=True, errors="replace")


def prepare(repository: Path, commit: str, patch: Path, tests: Iterable[str], fixed: Iterable[str]) -> None:
    """Put the tests into the agent's repository.

    Args:
        fixed: files that the known fix changes.

    Raises:
        Broken: the commit does not exist, or the patch does not apply.
    """
    known = _git(repository, "ls-tree", "-r", "--name-only", "-z", commit)
    if known.returncode:
        raise Broken(f"{repository} has no commit {commit}: {known.stderr.strip()}")
    existing = set(known.stdout.split("\0"))
    folders = {folder for test in tests for folder in PurePosixPath(test).parents}
    settings = {str(folder / name) for folder in folders for name in _CONFIGURATION} | {*_SHARED} - {*fixed}
    for path in sorted({*changed_files(patch.read_text(encoding="utf-8"))} | settings):
        with contextlib.suppress(OSError):
            (repository / path).unlink()
        if path in existing:
            _git(repository, "checkout", "-f", commit, "--", path)
    applied = _git(repository, "apply", "--whitespace=nowarn", str(patch))
    if applied.returncode:
        raise Broken(f"the tests' patch does not apply to {repository}: {applied.stderr.strip()[:500]}")


def changed_files(patch: str) -> list[str]:
    """Return the files of a patch, relative to the repository."""
    found = re.findall(r"^(?:---|\+\+\+) [ab]/(.+?)\t?$", patch, re.MULTILINE)
    return sorted({path for path in found if ".." not in PurePosixPath(path).parts})


def run(repository: Path, files: list[str], python: str, seconds: float) -> dict[str, tuple[str, str]]:
    """Run test files.

    Returns:
        Outcome and message by node id; empty if the run timed out.

    Raises:
        Broken: the interpreter has no pytest.
    """
    if subprocess.run([python, "-c", "import pytest"], cwd="/", capture_output=True).returncode:
        raise Broken(f"{python} has no pytest")
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder, "junit.xml")
        words = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={junit}", *files]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "PYTEST", "PYTHON"))}
        child = subprocess.Popen(words, cwd=repository, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            return {}
        finally:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        try:
            return read_junit(junit.read_text(encoding="utf-8"), files)
        except (OSError, ParseError, UnicodeError):
            return {}


def passes(test: str, passed: set[str]) -> bool:
    """Return whether a test passed.

    Node ids in rows made from logs are cut at a space in the parameters: all tests with such a prefix must pass.
    """
    if "[" in test and not test.endswith("]"):
        return any(name.startswith(test) for name in passed)
    return test in passed


def grade(here: Path, repository: Path, python: str) -> dict[str, float]:
    """Return the reward and the shares of FAIL_TO_PASS and PASS_TO_PASS that pass.

    Args:
        here: the task's ``tests`` folder.
        repository: the agent's repository.

    Raises:
        Broken: the tests cannot be run here.
    """
    task: dict[str, Any] = json.loads((here / "task.json").read_text(encoding="utf-8"))
    files = sorted({test.partition("::")[0] for name in ("FAIL_TO_PASS", "PASS_TO_PASS") for test in task[name]})
    prepare(repository, task["base_commit"], here / "test.patch", files, task["fixed"])
    outcomes = run(repository, files, python, task["seconds"])
    passed = {name for name, (outcome, _) in outcomes.items() if outcome == "passed"}
    scores = {}
    for name in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        failing = [test for test in task[name] if not passes(test, passed)]
        scores[name.lower()] = 1 - len(failing) / max(len(task[name]), 1)
        for test in failing[:20]:
            print(f"{name} does not pass: {test}")
    return {"reward": float(all(score == 1 for score in scores.values())), **scores}


def main(repository: str, python: str, logs: str = "/logs/verifier") -> int:
    """Grade the agent's repository with :func:`report`."""
    here = Path(__file__).resolve().parent
    return report(lambda: grade(here, Path(repository), python), Path(logs))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
