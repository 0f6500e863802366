"""Conversion of SWE-bench rows, and similar data sets, to Harbor folders for existing images.

Columns are those on the Hugging Face Hub: instance_id, repo, base_commit, problem_statement, patch, test_patch,
FAIL_TO_PASS and PASS_TO_PASS (lists, or JSON of lists). Only tests with pytest's node ids can be graded; rows of
repositories with their own test command (Django, SymPy) are reported as errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.envs.data.rows import load_rows
from rollenv.plugins.forge.folders import task_toml, write_folder
from rollenv.plugins.forge.inside import grade, grade_repository

_TEXTS = ("instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch")
_TESTS = ("FAIL_TO_PASS", "PASS_TO_PASS")
#: Time limits of the tests and of the agent, in seconds.
_TEST_SECONDS, _AGENT_SECONDS = 1800, 3600

_TEST_SH = """\
#!/bin/bash
# Grades the repository: see grade_repository.py beside this file.
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
[ -f /opt/miniconda3/bin/activate ] && source /opt/miniconda3/bin/activate testbed
python="$(command -v python || command -v python3)"
own=/opt/miniconda3/bin/python  # the repository's Python may be too old for the grader
[ -x "$own" ] || own="$python"
exec "$own" -P -B "$here/grade_repository.py" WORKDIR "$python"
"""

_SOLVE_SH = """\
#!/bin/bash
set -e
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
git -c safe.directory=WORKDIR -C WORKDIR apply --whitespace=nowarn "$here/fix.patch"
"""


@dataclass
class Imported:
    """The tasks from rows.

    Args:
        tasks: folders, including earlier ones.
        errors: label and reason of each failed row.
    """

    tasks: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)


class _BadRow(Exception):
    """A row cannot be converted, for the reason in the text."""


def import_swebench(
    rows: Path | Iterable[Mapping[str, Any]], out: Path | str, image: str, *, workdir: str = "/testbed"
) -> Imported:
    """Write a Harbor folder for every row. Existing folders are kept; a bad row does not stop the others.

    Args:
        rows: a file (``.jsonl``, ``.json`` or ``.parquet``), or the rows.
        image: name of a row's image, with columns in braces, such as ``sweb.eval.x86_64.{instance_id}``.
        workdir: the repository's folder in the image.

    Raises:
        UsageError: the file cannot be read, or the working directory is not absolute.
    """
    if not re.fullmatch(r"(/[\w.-]+)+", workdir):
        raise UsageError(f"the working directory must be an absolute path of plain names, not {workdir!r}")
    done, folder, seen = Imported(), Path(out), set[str]()
    for label, row in _labelled(rows):
        try:
            if isinstance(row, str):
                raise _BadRow(row)
            name = _checked(row)
            if name in seen:
                raise _BadRow(f"a row before it has the instance_id {name}")
            files = _encoded(_files(row, _image(image, row), workdir))
        except _BadRow as error:
            done.errors[label] = str(error)
            continue
        seen.add(name)
        if not (folder / name / "task.toml").is_file():
            write_folder(folder / name, files)
        done.tasks.append(name)
    return done


def _labelled(rows: Path | Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any] | str]]:
    """Yield each row's position with the row or an error text."""
    if not isinstance(rows, Path):
        yield from ((f"row {number}", _object(row)) for number, row in enumerate(rows, 1))
        return
    if not rows.is_file():
        raise UsageError(f"there is no file {rows}; SWE-bench rows come as .jsonl, .json or .parquet")
    if rows.suffix == ".parquet":
        yield from ((f"{rows}, row {number}", row) for number, row in enumerate(load_rows(str(rows)), 1))
        return
    text = rows.read_text(encoding="utf-8-sig", errors="replace")
    if rows.suffix == ".json":
        yield from ((f"{rows}, row {number}", _object(row)) for number, row in enumerate(_array(rows, text), 1))
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"{rows}, line {number}", _parsed(line)


def _array(path: Path, text: str) -> list[Any]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    if not isinstance(rows, list):
        raise UsageError(f"{path} is not a list of rows")
    return rows


def _parsed(line: str) -> Mapping[str, Any] | str:
    try:
        return _object(json.loads(line))
    except (ValueError, RecursionError) as error:
        return f"this is not JSON: {error}"


def _object(row: Any) -> Mapping[str, Any] | str:
    return row if isinstance(row, Mapping) else f"a row is an object of columns, not {str(row)[:60]}"


def _checked(row: Mapping[str, Any]) -> str:
    """Check the columns of a row, and return its name."""
    missing = [name for name in (*_TEXTS, *_TESTS) if row.get(name) is None]
    if missing:
        raise _BadRow(f"it has no {', '.join(missing)}")
    for name in _TEXTS:
        if not isinstance(row[name], str) or not row[name].strip():
            raise _BadRow(f"{name} must be a text that is not empty, not {row[name]!r:.60}")
    if not re.fullmatch(r"\w[\w.-]*", row["instance_id"]) or len(row["instance_id"].encode("utf-8", "replace")) > 200:
        raise _BadRow(f"the instance_id {row['instance_id']!r:.60} cannot name a folder")
    for name in ("patch", "test_patch"):
        if not re.search(r"^diff --git |^--- ", row[name], re.MULTILINE):
            raise _BadRow(f"{name} is not a diff; it begins with {row[name]!r:.60}")
    if not re.fullmatch(r"[\w./-]+", row["base_commit"]) or row["base_commit"].startswith("-"):
        raise _BadRow(f"the base_commit {row['base_commit']!r:.60} is not a commit")
    return str(row["instance_id"])


def _tests(row: Mapping[str, Any], name: str) -> list[str]:
    value = row[name]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise _BadRow(f"{name} is neither a list nor one in JSON: {value!r:.60}") from None
    if not isinstance(value, list | tuple) or not all(isinstance(test, str) for test in value):
        raise _BadRow(f"{name} must be a list of texts, not {value!r:.60}")
    if odd := [test for test in value if not re.match(r"(?!/|-)(?!.*\.\./)[^:]+\.py::.", test, re.DOTALL)]:
        raise _BadRow(f"{name} holds {odd[0]!r:.80}, which is not a node id of pytest (FILE.py::TEST)")
    return list(value)


def _image(template: str, row: Mapping[str, Any]) -> str:
    try:
        image = template.format_map(row)
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        raise _BadRow(f"the image {template!r} cannot be filled from its columns: {error!r}") from None
    if not re.fullmatch(r"[\w][\w./:@-]*", image):
        raise _BadRow(f"{image!r} cannot name an image")
    return image


def _files(row: Mapping[str, Any], image: str, workdir: str) -> dict[str, bytes | str]:
    tests = {name: _tests(row, name) for name in _TESTS}
    if not tests["FAIL_TO_PASS"]:
        raise _BadRow("FAIL_TO_PASS is empty, so that doing nothing would count")
    about = {"repo": row["repo"], "base_commit": row["base_commit"], "version": str(row.get("version") or "")}
    about |= {"category": "software-engineering", "source": "swe-bench"}
    tables: dict[str, dict[str, Any]] = {
        "agent": {"timeout_sec": float(_AGENT_SECONDS)},
        "verifier": {"timeout_sec": float(_TEST_SECONDS + 120)},
        "environment": {"docker_image": image, "network_mode": "no-network", "workdir": workdir},
    }
    task = {"base_commit": row["base_commit"], "seconds": _TEST_SECONDS, **tests}
    task["fixed"] = grade_repository.changed_files(row["patch"])
    files: dict[str, bytes | str] = {
        "instruction.md": f"The repository {row['repo']} is in `{workdir}`.\n\n{row['problem_statement'].strip()}\n",
        "task.toml": task_toml(f"swebench/{row['instance_id']}", about, tables),
        "environment/Dockerfile": f"FROM {image}\nWORKDIR {workdir}\n",
        "solution/solve.sh": _SOLVE_SH.replace("WORKDIR", workdir),
        "solution/fix.patch": _ended(row["patch"]),
        "tests/test.sh": _TEST_SH.replace("WORKDIR", workdir),
        "tests/test.patch": _ended(row["test_patch"]),
        "tests/task.json": json.dumps(task, indent=1) + "\n",
    }
    for module in (grade, grade_repository):
        path = Path(str(module.__file__))
        files[f"tests/{path.name}"] = path.read_bytes()
    return files


def _encoded(files: Mapping[str, bytes | str]) -> dict[str, bytes | str]:
    try:
        return {path: data.encode() if isinstance(data, str) else data for path, data in files.items()}
    except UnicodeEncodeError as error:
        raise _BadRow(f"a column holds half of a character: {error.object[error.start :][:20]!r}") from None


def _ended(patch: str) -> str:
    return patch if patch.endswith("\n") else patch + "\n"
