"""Forged tasks as folders in Harbor's format (schema 1.4)."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rollenv.plugins.forge.baseline import Baseline, files_of
from rollenv.plugins.forge.inside import grade, run_tests
from rollenv.plugins.forge.judge import Verdict
from rollenv.plugins.forge.mutants import Mutant
from rollenv.plugins.forge.sources import Package

#: Maximum number of messages in an instruction, of tests with each, of lines of a message, and of characters of a line.
_SHOWN, _NAMED, _LINES, _WIDTH = 6, 6, 6, 200


def instruction(package: Package, failing: Sequence[str], messages: Mapping[str, str]) -> str:
    """Write the instruction of a task: the failures that a library's tests report, with messages by node id."""
    many = f"{len(failing)} of its tests fail" if len(failing) > 1 else "one of its tests fails"
    where = " and ".join(f"`{one}`" for one in package.libraries)
    files = sorted({test.partition("::")[0] for test in failing})
    parts = [
        f"# {package.title}: wrong behaviour, {many}",
        f"The source of the Python library {package.title} is in `/app` ({where}). It has a bug: {many}. "
        "The tests are right. Find the cause in the library and repair it.",
        "## What fails",
        *_failures(failing, messages),
    ]
    parts.append(
        "## What counts\n\n"
        "Every failing test must pass, and every test that passes now must still pass. To run the tests: "
        f"`cd /app && python3 -m pytest {' '.join(files[:3])}`. Your work is graded with unchanged copies of the "
        f"tests, so changes of tests and of their configuration do not count; only what is in {where} does."
    )
    return "\n\n".join(parts) + "\n"


def _failures(failing: Sequence[str], messages: Mapping[str, str]) -> list[str]:
    """Write a paragraph for each message, with the tests that have it."""
    groups: dict[str, list[str]] = {}
    for test in failing:
        lines = [line[:_WIDTH].rstrip() for line in tidy(messages.get(test, "")).splitlines() if line.strip()]
        groups.setdefault("\n".join(lines[:_LINES]), []).append(test)
    shown = [_failure(tests, message) for message, tests in list(groups.items())[:_SHOWN]]
    if more := sum(len(tests) for tests in list(groups.values())[_SHOWN:]):
        shown.append(f"{more} more {'tests fail' if more > 1 else 'test fails'} in other ways.")
    return shown


def _failure(tests: Sequence[str], message: str) -> str:
    names = [f"- {_code(test)}" for test in tests[:_NAMED]]
    if len(tests) > _NAMED:
        names.append(f"- and {len(tests) - _NAMED} more with the same message")
    block = "\n".join(f"    {line}" for line in message.splitlines())
    return "\n".join(names) + (f"\n\n{block}" if block else "")


def _code(test: str) -> str:
    fence = "``" if "`" in test else "`"
    return f"{fence}{' '.join(test.split())[:_WIDTH]}{fence}"


def tidy(message: str) -> str:
    """Remove from a message what differs between runs or machines."""
    message = re.sub(r"(/box/home|/home/user)/run\b", "/app", message)
    message = re.sub(r"(/box)?/tmp/pytest-of-\w+/pytest-\d+", "/tmp", message)
    message = re.sub(r"(/box)?/tmp/tmp\w{8}\b", "/tmp/tmp", message)
    message = re.sub(r"\n?\[(\+\d+ more lines?|truncated); full report in element text\]", "", message)
    message = re.sub(r"(\[\d+ chars\])[0-9a-f]+>", r"\1...>", message)  # an address shortened by unittest
    message = re.sub(r"\n *Use -v to get more diff", "", message)
    message = re.sub(r"/\S*/(site-packages|lib/python3\.\d+)/", "", message)
    return re.sub(r"\b0x[0-9a-f]{6,}", "0x...", message)


#: Time limit of the agent, and minimum time limit of the verifier, in seconds.
_AGENT_SECONDS, _VERIFIER_SECONDS = 1800, 120

_TEST_SH = """\
#!/bin/bash
# Grades /app: see grade.py beside this file. Python gets a clean environment.
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
clean=(env -i "PATH=$PATH" HOME=/tmp LANG=C.UTF-8)
for python in python3 python /usr/local/bin/python3 /usr/bin/python3; do
  if "${clean[@]}" "$python" -I -c 'import pytest' 2>/dev/null; then
    exec "${clean[@]}" "$python" -I -S -B "$here/grade.py"
  fi
done
libraries="$(mktemp -d)" && chmod 755 "$libraries"
needed=(REQUIRES)
if uv pip install --quiet --target "$libraries" "${needed[@]}" ||
  python3 -m pip install --quiet --target "$libraries" "${needed[@]}"; then
  exec "${clean[@]}" python3 -I -S -B "$here/grade.py" "$libraries"
fi
echo "pytest is not installed, and neither uv nor pip could install it: not graded" >&2
exit 3
"""

_SOLVE_SH = """\
#!/bin/bash
# Puts the library's own source back.
set -e
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cp "$here/original.py" /app/PATH
"""

_DOCKERFILE = """\
FROM python:VERSION-slim
WORKDIR /app
ENV PYTHONPATH=PATHS PYTHONDONTWRITEBYTECODE=1
RUN python3 -c "import pytest" 2>/dev/null || python3 -m pip install --no-cache-dir NEEDED
COPY app/ /app/
"""


def write_task(
    folder: Path, package: Package, baseline: Baseline, mutant: Mutant, verdict: Verdict, org: str = "forge"
) -> None:
    """Write the folder of a task atomically.

    Args:
        folder: folder to create or replace.
        verdict: the tests that the fault makes fail.
        org: first part of the task's name.
    """
    given = {**package.files, mutant.path: mutant.source.encode()}
    original = package.files[mutant.path]
    given = {path: data for path, data in given.items() if data != original}  # another copy would reveal the answer
    files: dict[str, bytes | str] = {f"environment/app/{path}": data for path, data in given.items()}
    for path, data in given.items():
        files[f"tests/given/{path}" if package.of_library(path) else f"tests/project/{path}"] = data
    pytest, needs = f"pytest=={metadata.version('pytest')}", list(package.requires)
    files["instruction.md"] = instruction(package, verdict.fail_to_pass, verdict.messages)
    files["task.toml"] = task_toml(f"{org}/{folder.name}", *_tables(package, baseline, mutant, verdict))
    paths = ":".join("/app" if path == "." else f"/app/{path}" for path in package.paths)
    text = _DOCKERFILE.replace("VERSION", f"{sys.version_info[0]}.{sys.version_info[1]}").replace("PATHS", paths)
    files["environment/Dockerfile"] = text.replace("NEEDED", " ".join(map(_quoted, [pytest, *needs])))
    files["tests/test.sh"] = _TEST_SH.replace("REQUIRES", " ".join(map(_quoted, [pytest, *needs])))
    files["tests/task.json"] = json.dumps(_grading(package, baseline, verdict), indent=1) + "\n"
    for module in (grade, run_tests):
        program = Path(str(module.__file__))
        files[f"tests/{program.name}"] = program.read_bytes()
    files["solution/solve.sh"] = _SOLVE_SH.replace("PATH", _quoted(mutant.path))
    files["solution/original.py"] = original
    write_folder(folder, files)


def write_folder(folder: Path, files: Mapping[str, bytes | str]) -> None:
    """Write a folder atomically.

    Args:
        folder: folder to create or replace.
        files: contents by relative path; scripts (``.sh``) become executable.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unfinished-") as unfinished:
        for path, data in files.items():
            target = Path(unfinished, folder.name, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data.encode() if isinstance(data, str) else data)
            if target.suffix == ".sh":
                target.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(Path(unfinished, folder.name), folder)


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[\w./=+-]+", word) else "'" + word.replace("'", "'\\''") + "'"


def _grading(package: Package, baseline: Baseline, verdict: Verdict) -> dict[str, Any]:
    return {
        "packages": package.libraries,
        "paths": package.paths,
        "files": baseline.files,
        "control_files": files_of(set(verdict.fail_to_pass)),
        "seconds": _suite_seconds(baseline),
        "FAIL_TO_PASS": verdict.fail_to_pass,
        "PASS_TO_PASS": verdict.pass_to_pass,
    }


def _suite_seconds(baseline: Baseline) -> int:
    """Return the time limit of the tests; generous, since the grader's machine may be slow."""
    return max(60, round(10 * baseline.seconds))


def _tables(
    package: Package, baseline: Baseline, mutant: Mutant, verdict: Verdict
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    about: dict[str, Any] = {
        "package": package.name,
        "version": package.version,
        "licence": package.licence,
        "file": mutant.path,
    }
    about |= {"operator": mutant.operator, "line": mutant.line, "category": "software-engineering"}
    about |= {"fail_to_pass": len(verdict.fail_to_pass), "pass_to_pass": len(verdict.pass_to_pass)}
    seconds = max(_VERIFIER_SECONDS, 2 * _suite_seconds(baseline) + 60)
    return about, {
        "agent": {"timeout_sec": float(_AGENT_SECONDS)},
        "verifier": {"timeout_sec": float(seconds)},
        "environment": {"build_timeout_sec": 600.0, "network_mode": "no-network", "cpus": 1, "memory_mb": 2048},
    }


def task_toml(name: str, about: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the text of ``task.toml``; the name has the form ``org/name``."""
    lines = ['schema_version = "1.4"']
    for table, values in {"task": {"name": name}, "metadata": about, **tables}.items():
        lines += ["", f"[{table}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    # TOML is the same as JSON for strings, numbers, booleans and lists of them, except for one character
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
