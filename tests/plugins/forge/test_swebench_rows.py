"""Rows of SWE-bench as folders, and their grader on a repository."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib

import pytest
from tiny_package import LIBRARY

from rollenv.core.errors import UsageError
from rollenv.plugins.forge.inside import grade_repository
from rollenv.plugins.forge.swebench import import_swebench

IMAGE = "sweb.eval.x86_64.{instance_id}:latest"
OLD = 'raise ValueError("low is above high")'
TESTS = "import tinylib\n\n\ndef test_total():\n    assert tinylib.Counter().total() == 0\n"
NEW_TEST = """

def test_message():
    try:
        tinylib.clipped(1, 2, 0)
    except ValueError as error:
        assert "swapped" in str(error)
"""


def git(folder, *words):
    who = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def change(folder, path, text):
    """The diff that this makes, which is taken back."""
    (folder / path).write_text(text)
    diff = git(folder, "diff")
    git(folder, "checkout", "--", path)
    return diff


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "tinylib.py").write_text(LIBRARY)
    (folder / "test_tinylib.py").write_text(TESTS)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "all")
    return folder


@pytest.fixture
def row(repository):
    return {
        "instance_id": "tiny__lib-1",
        "repo": "tiny/lib",
        "base_commit": git(repository, "rev-parse", "HEAD").strip(),
        "problem_statement": "The message does not say what is swapped.",
        "patch": change(repository, "tinylib.py", LIBRARY.replace(OLD, 'raise ValueError("swapped")')),
        "test_patch": change(repository, "test_tinylib.py", TESTS + NEW_TEST),
        "FAIL_TO_PASS": json.dumps(["test_tinylib.py::test_message"]),
        "PASS_TO_PASS": ["test_tinylib.py::test_total"],
        "version": "1.2",
        "hints_text": None,
    }


def test_a_row_becomes_a_folder(row, tmp_path):
    done = import_swebench([row], tmp_path / "out", IMAGE)
    assert (done.tasks, done.errors) == (["tiny__lib-1"], {})
    folder = tmp_path / "out/tiny__lib-1"
    about = tomllib.loads((folder / "task.toml").read_text())
    assert about["environment"]["docker_image"] == "sweb.eval.x86_64.tiny__lib-1:latest"
    assert (folder / "environment/Dockerfile").read_text().startswith("FROM sweb.eval.x86_64.tiny__lib-1:latest\n")
    assert row["problem_statement"] in (folder / "instruction.md").read_text()
    assert row["patch"] not in "".join(path.read_text() for path in (folder / "environment").iterdir())
    assert (folder / "solution/fix.patch").read_text() == row["patch"]


@pytest.mark.integration
def test_only_the_fix_is_rewarded(row, repository, tmp_path):
    import_swebench([row], tmp_path / "out", IMAGE)
    folder = tmp_path / "out/tiny__lib-1"
    (repository / "conftest.py").write_text("def pytest_runtest_call(item):\n    item.obj = lambda: None\n")
    (repository / "test_tinylib.py").write_text("def test_total(): pass\n\ndef test_message(): pass\n")
    (repository / "tox.ini").write_text("[pytest]\naddopts = --collect-only\n")
    assert grade_repository.grade(folder / "tests", repository, sys.executable)["reward"] == 0
    git(repository, "apply", str(folder / "solution/fix.patch"))
    scores = grade_repository.grade(folder / "tests", repository, sys.executable)
    assert scores == {"reward": 1, "fail_to_pass": 1, "pass_to_pass": 1}


def test_a_repository_that_cannot_be_graded_has_no_reward(row, repository, tmp_path):
    import_swebench([{**row, "base_commit": "0" * 40}], tmp_path / "out", IMAGE)
    tests = tmp_path / "out/tiny__lib-1/tests"
    with pytest.raises(grade_repository.Broken, match="commit"):
        grade_repository.grade(tests, repository, sys.executable)
    import_swebench(
        [{**row, "instance_id": "b", "test_patch": row["test_patch"].replace("Counter", "Gone")}],
        tmp_path / "out",
        IMAGE,
    )
    with pytest.raises(grade_repository.Broken, match="apply"):
        grade_repository.grade(tmp_path / "out/b/tests", repository, sys.executable)


def test_names_that_logs_have_cut_are_matched_by_their_beginning():
    passed = {"a.py::t[x y]", "a.py::u[1]"}
    assert grade_repository.passes("a.py::t[x", passed)
    assert grade_repository.passes("a.py::u[1]", passed)
    assert not grade_repository.passes("a.py::u", passed)
    assert not grade_repository.passes("a.py::v[x", passed)


@pytest.mark.combinations
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"patch": None}, "it has no patch"),
        ({"problem_statement": " "}, "problem_statement must be a text"),
        ({"instance_id": "../up"}, "cannot name a folder"),
        ({"instance_id": 3}, "instance_id must be a text"),
        ({"base_commit": "--upload-pack=x"}, "is not a commit"),
        ({"test_patch": "print(1)"}, "test_patch is not a diff"),
        ({"FAIL_TO_PASS": "test_a"}, "neither a list nor one in JSON"),
        ({"FAIL_TO_PASS": []}, "doing nothing would count"),
        ({"FAIL_TO_PASS": ["test_a (app.tests.Case)"]}, "not a node id of pytest"),
        ({"PASS_TO_PASS": ["/tests/a.py::b"]}, "not a node id of pytest"),
        ({"PASS_TO_PASS": [1]}, "must be a list of texts"),
        ({"PASS_TO_PASS": "[" * 100_000}, "neither a list nor one in JSON"),
        ({"problem_statement": "x\ud800"}, "half of a character"),
        ({"version": "\udc80"}, "half of a character"),
        ({"instance_id": "a" * 300}, "cannot name a folder"),
        ({"PASS_TO_PASS": {"a": 1}}, "must be a list of texts"),
    ],
)
def test_a_bad_row_is_reported_and_the_others_are_kept(row, tmp_path, wrong, told):
    done = import_swebench([{**row, **wrong}, row, row], tmp_path, IMAGE)
    assert done.tasks == ["tiny__lib-1"]
    assert told in done.errors["row 1"]
    assert "a row before it" in done.errors["row 3"]


@pytest.mark.parametrize("template", ["{gone}", "{instance_id", "{}", "two words", "-x"])
def test_a_bad_template_is_reported(row, tmp_path, template):
    done = import_swebench([row], tmp_path, template)
    assert not done.tasks
    assert repr(template)[1:-1] in done.errors["row 1"]


def test_files_of_every_kind_give_the_same(row, tmp_path):
    lines = tmp_path / "rows.jsonl"
    lines.write_text(json.dumps(row) + "\n\n{broken\n[1]\n" + json.dumps({**row, "instance_id": "b"}) + "\n")
    array = tmp_path / "rows.json"
    array.write_text(json.dumps([row, {**row, "instance_id": "b"}]))
    done = import_swebench(lines, tmp_path / "one", IMAGE)
    assert done.tasks == import_swebench(array, tmp_path / "two", IMAGE).tasks == ["tiny__lib-1", "b"]
    assert [place.rpartition(", ")[2] for place in done.errors] == ["line 3", "line 4"]
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").Table.from_pylist([row, {**row, "instance_id": "b"}])
    parquet.write_table(table, tmp_path / "rows.parquet")
    assert import_swebench(tmp_path / "rows.parquet", tmp_path / "three", IMAGE).tasks == done.tasks


def test_folders_that_are_there_are_kept(row, tmp_path):
    import_swebench([row], tmp_path, IMAGE)
    (tmp_path / "tiny__lib-1/instruction.md").write_text("edited")
    assert import_swebench([row], tmp_path, IMAGE).tasks == ["tiny__lib-1"]
    assert (tmp_path / "tiny__lib-1/instruction.md").read_text() == "edited"


@pytest.mark.parametrize("odd", [None, "x", 3])
def test_what_is_no_row_is_reported_and_the_others_are_kept(row, tmp_path, odd):
    done = import_swebench([odd, row], tmp_path, IMAGE)
    assert done.tasks == ["tiny__lib-1"]
    assert "a row is an object of columns" in done.errors["row 1"]


def test_a_file_that_cannot_be_read_is_reported(tmp_path):
    (tmp_path / "rows.json").write_text("{}")
    for path in (tmp_path / "gone.jsonl", tmp_path / "rows.json"):
        with pytest.raises(UsageError, match=path.name):
            import_swebench(path, tmp_path, IMAGE)
    with pytest.raises(UsageError, match="working directory"):
        import_swebench([], tmp_path, IMAGE, workdir="here")
