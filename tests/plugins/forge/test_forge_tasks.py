"""From a package to folders: what is in them, and that the same command makes the same."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tomllib

import pytest
from tiny_package import LIBRARY, TESTS, files, sdist

from rollenv.core.errors import RollenvError, UsageError
from rollenv.plugins.forge.baseline import measure
from rollenv.plugins.forge.check import check
from rollenv.plugins.forge.folders import tidy
from rollenv.plugins.forge.forge import Manifest, forge
from rollenv.plugins.forge.operators import OPERATORS
from rollenv.plugins.forge.sources import load
from rollenv.plugins.forge.suite import Suite, python_of_machines

BAD_TESTS = {
    "test_tinylib.py::test_that_fails_before_any_change",
    "test_tinylib.py::test_that_is_green_once",
    "test_tinylib.py::test_that_needs_what_is_not_required",
}


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.smoke
@pytest.mark.integration
def test_a_task_is_sound(forged):
    folder, result = forged
    assert len(result.tasks) == 2
    assert check(folder / "tasks" / result.tasks[1]) == (0.0, 1.0)


@pytest.mark.integration
def test_a_task_says_what_is_wrong_and_not_why(task):
    grading = json.loads((task / "tests/task.json").read_text())
    metadata = tomllib.loads((task / "task.toml").read_text())["metadata"]
    text = (task / "instruction.md").read_text()
    assert any(f"`{test}`" in text for test in grading["FAIL_TO_PASS"])
    assert metadata["operator"] in OPERATORS
    assert metadata["operator"] not in text + task.name
    assert (metadata["package"], metadata["version"], metadata["licence"]) == ("tinylib", "1.2", "MIT")
    assert "/box" not in text


@pytest.mark.integration
def test_what_only_this_python_has_is_left_out(tmp_path):
    """Tasks are graded by the host's own."""
    if os.path.realpath(python_of_machines()) == os.path.realpath(sys.executable):
        pytest.skip("this Python is the host's own, or the only one of its version")
    test = f"import sys\n\ndef test_here():\n    assert sys.prefix == {sys.base_prefix!r}\n"
    members = files() | {"tests/test_here.py": test}
    with Suite(load(str(sdist(tmp_path, members))), 60) as suite:
        baseline = measure(suite)
    assert "tests/test_here.py::test_here" in baseline.left_out
    assert baseline.green


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("<object at 0x7f4fe09005e0> is None", "<object at 0x...> is None"),
        ("<bound method A.b of <mod[47 chars]7f0>> != 0", "<bound method A.b of <mod[47 chars]...>> != 0"),
        ("no file /box/home/run/a.txt", "no file /app/a.txt"),
        ("no file /box/tmp/pytest-of-user/pytest-3/test0/a", "no file /tmp/test0/a"),
        ("assert 1 == 2\n  \n  Use -v to get more diff", "assert 1 == 2\n  "),
    ],
)
def test_what_differs_between_runs_and_machines_is_not_shown(message, shown):
    assert tidy(message) == shown


@pytest.mark.integration
def test_red_and_flaky_tests_do_not_count(forged):
    folder, result = forged
    assert result.left_out == len(BAD_TESTS)
    for name in result.tasks:
        grading = json.loads((folder / "tasks" / name / "tests/task.json").read_text())
        assert grading["FAIL_TO_PASS"]
        assert grading["PASS_TO_PASS"]
        counted = grading["FAIL_TO_PASS"] + grading["PASS_TO_PASS"]
        assert len(counted) == len(set(counted)) == 7
        assert not BAD_TESTS & {test.removeprefix("tests/") for test in counted}


def test_the_answer_is_nowhere_in_the_environment(task):
    found = contents(task / "environment")
    assert LIBRARY.encode() not in found.values()
    assert not [path for path in found if path.suffix == ".pyc" or ".git" in path.parts]
    changed = (task / "environment/app/src/tinylib/__init__.py").read_text()
    assert changed != LIBRARY
    assert (task / "solution/original.py").read_text() == LIBRARY


def test_a_folder_is_harbors(task):
    about = tomllib.loads((task / "task.toml").read_text())
    assert about["schema_version"] == "1.4"
    assert about["task"]["name"] == f"forge/{task.name}"
    assert about["environment"]["network_mode"] == "no-network"
    assert about["verifier"]["timeout_sec"] > json.loads((task / "tests/task.json").read_text())["seconds"]
    for script in ("tests/test.sh", "solution/solve.sh"):
        assert (task / script).stat().st_mode & 0o111
    docker = (task / "environment/Dockerfile").read_text()
    assert docker.startswith("FROM python:3.")
    assert "COPY app/ /app/" in docker


def test_what_is_there_is_kept_and_not_made_again(forged):
    folder, result = forged
    before = contents(folder / "tasks")
    (again,) = forge([str(sdist(folder))], folder / "tasks", count=2)
    assert again.tasks == result.tasks
    assert again.tried == result.tried
    assert contents(folder / "tasks") == before


@pytest.mark.integration
def test_the_same_seed_makes_the_same_tasks_in_one_run_or_two(forged, tmp_path):
    folder, result = forged
    package = str(sdist(tmp_path))
    forge([package], tmp_path / "tasks", count=1)
    first = contents(tmp_path / "tasks" / result.tasks[0])
    with open(tmp_path / "tasks/forge.jsonl", "a") as file:
        file.write('{"package": "tin')  # a run that was killed
    shutil.rmtree(tmp_path / "tasks" / result.tasks[0])  # a task that somebody removed
    (second,) = forge([package], tmp_path / "tasks", count=3)
    assert second.tasks[:2] == result.tasks
    for name in result.tasks:
        assert contents(tmp_path / "tasks" / name) == contents(folder / "tasks" / name)
    assert contents(tmp_path / "tasks" / result.tasks[0]) == first


@pytest.mark.integration
def test_what_hangs_makes_no_task_and_another_version_no_duplicate(tmp_path):
    library = "def countdown(n):\n    while n > 0:\n        n -= 1\n    return n\n"
    tests = "from one import countdown\n\ndef test_it():\n    assert countdown(3) == 0\n\ndef test_no():\n    pass\n"
    members = {"one/__init__.py": library, "tests/test_one.py": tests}
    packages = [str(sdist(tmp_path, members, f"one-{version}")) for version in (1, 2)]
    first, second = forge(packages, tmp_path / "tasks", count=100, timeout=3)
    assert not first.error + second.error
    assert first.tried["hangs"] >= 1
    assert first.tried["kept"] == len(first.tasks) > 0
    assert second.tried["duplicate"] >= 1
    tasks = first.tasks + second.tasks
    sources = {(tmp_path / "tasks" / task / "environment/app/one/__init__.py").read_bytes() for task in tasks}
    assert len(sources) == len(tasks)


@pytest.mark.combinations
@pytest.mark.parametrize(
    ("tests", "told"),
    [
        ("def test_it():\n    assert 0, 'red as it is'\n", "only 0 of 1 tests are green.*red as it is"),
        ("import gone\n", "only 0 of 1 tests are green.*gone"),
        ("def helper():\n    pass\n", "do not run here"),
    ],
)
def test_a_package_whose_tests_are_red_is_reported_and_the_others_go_on(tmp_path, tests, told):
    package = sdist(tmp_path, {"one/__init__.py": "def f(): return 1\n", "tests/test_one.py": tests}, "one-1")
    (result,) = forge([str(package)], tmp_path / "tasks", count=1)
    assert not result.tasks
    assert re.search(told, result.error, re.DOTALL), result.error


def test_a_requirement_that_is_not_here_is_reported(tmp_path):
    info = "Name: one\nVersion: 1\nRequires-Dist: surely-not-installed>=2\nRequires-Dist: other; extra == 'x'\n"
    package = sdist(tmp_path, {"PKG-INFO": info, "one/__init__.py": "", "tests/test_one.py": TESTS}, "one-1")
    (result,) = forge([str(package)], tmp_path / "tasks", count=1)
    assert "pip install 'surely-not-installed>=2'" in result.error


def test_a_package_that_is_given_twice_is_reported(forged):
    folder, result = forged
    first, second = forge([str(sdist(folder))] * 2, folder / "tasks", count=2)
    assert first.tasks == result.tasks
    assert "given before" in second.error


def test_a_damaged_manifest_is_reported(tmp_path):
    (tmp_path / "forge.jsonl").write_text('{"package": 1}\n')
    with pytest.raises(RollenvError, match="line 1"):
        Manifest(tmp_path)


@pytest.mark.parametrize("wrong", [{"count": 0}, {"per_package": 0}, {"timeout": 0}])
def test_numbers_must_make_sense(tmp_path, wrong):
    with pytest.raises(UsageError, match="above 0"):
        forge(["x"], tmp_path, **wrong)
