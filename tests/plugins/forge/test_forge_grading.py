"""A forged task's grader: what counts, and what is tried to fool it."""

from __future__ import annotations

import json

import pytest

from rollenv.core.errors import RollenvError
from rollenv.plugins.forge.check import TaskSandbox

LIBRARY = "app/src/tinylib/__init__.py"
PASS_ALL = """
import _pytest.python
_pytest.python.Function.runtest = lambda self: None
"""
FORGED_JUNIT = """
import os, sys, json
if len(sys.argv) > 1 and sys.argv[1].endswith("settings.json"):
    settings = json.load(open(sys.argv[1]))
    open(settings["junit"], "w").write("<testsuites/>")
    os._exit(0)
"""
PIPE = FORGED_JUNIT.replace('open(settings["junit"], "w").write("<testsuites/>")', 'os.mkfifo(settings["junit"])')
PLUGIN = "def pytest_runtest_call(item):\n    item.obj = lambda *a, **k: None\n"

#: Files that an agent leaves beside the library.
LEFT_BEHIND = {
    **dict.fromkeys(("app/conftest.py", "app/tests/conftest.py", "app/src/tinylib/conftest.py"), PLUGIN),
    "app/tests/test_tinylib.py": "def test_total(): pass\n",
    "app/pytest.ini": "[pytest]\naddopts = --collect-only\n",
    "app/pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-k nothing'\n",
    **dict.fromkeys(("app/sitecustomize.py", "app/src/usercustomize.py", "app/src/x.pth"), PASS_ALL),
    **dict.fromkeys(("app/pytest.py", "app/src/pytest.py", "app/src/_pytest/__init__.py"), "raise SystemExit(0)\n"),
    **dict.fromkeys(("app/grade.py", "app/run_tests.py", "app/task.json", "app/test.sh"), ""),
    "logs/reward.txt": "1\n",
    "logs/reward.json": '{"reward": 1}\n',
}
#: What it adds to the library.
IN_LIBRARY = [
    PASS_ALL,
    FORGED_JUNIT,
    PIPE,
    "import os\nos._exit(0)\n",
    "import os\nos._exit(3)\n",
    "raise ImportError\n",
]


@pytest.mark.integration
def test_what_lies_around_does_not_count_and_a_right_repair_does(task):
    with TaskSandbox(task) as place:
        place.sandbox.files.write_many(LEFT_BEHIND)
        assert place.grade() == 0
        place.sandbox.files.write_many(LEFT_BEHIND)
        place.solve()
        assert place.grade() == 1


@pytest.mark.integration
def test_a_library_that_turns_on_its_tests_scores_nothing(task):
    with TaskSandbox(task) as place:
        own = place.sandbox.files.read(LIBRARY)
        for code in IN_LIBRARY:
            place.sandbox.files.write(LIBRARY, own + code)
            assert place.grade() == 0, code


@pytest.mark.integration
def test_links_are_not_followed(task):
    with TaskSandbox(task) as place:
        place.solve()
        place.sandbox.commands.run("mv app/src/tinylib elsewhere && ln -s ../../elsewhere app/src/tinylib")
        assert place.grade() == 0
        place.sandbox.commands.run("rm app/src/tinylib && mkdir app/src/tinylib && mkfifo app/src/tinylib/__init__.py")
        assert place.grade() == 0


@pytest.mark.integration
def test_a_repair_in_another_way_counts(task):
    """New modules of the library are part of it."""
    with TaskSandbox(task) as place:
        place.solve()
        place.sandbox.commands.run("mv app/src/tinylib/__init__.py app/src/tinylib/_own.py")
        place.sandbox.files.write(LIBRARY, "from tinylib._own import *\n")
        assert place.grade() == 1


@pytest.mark.integration
def test_a_machine_that_was_changed_is_noticed(task, tmp_path):
    """Where pytest itself lets everything pass, the library as it was given passes as well, and it must not."""
    with TaskSandbox(task) as place:
        place.sandbox.files.write("fake/pytest.py", _FAKE)
        place.libraries = [f"{place.root}/fake"]
        assert place.grade() == 0


_FAKE = """
import re, sys

def main(arguments, plugins):
    files = [a for a in arguments if a.endswith(".py")]
    cases = []
    for file in files:
        module = file.removesuffix(".py").replace("/", ".")
        for line in open(file):
            if found := re.match(r"(\\s*)def (test_\\w+)", line):
                owner = module + (".TestCounter" if found[1] else "")
                cases.append(f'<testcase classname="{owner}" name="{found[2]}"/>')
                cases += [f'<testcase classname="{owner}" name="{found[2]}[numbers{n}-{w}]"/>' for n, w in
                          ((0, 3), (1, -1), (2, None))]
    junit = arguments[arguments.index("--junit-xml") + 1]
    open(junit, "w").write("<testsuites>" + "".join(cases) + "</testsuites>")
    return 0
"""


@pytest.mark.integration
def test_without_pytest_there_is_no_reward(task):
    with TaskSandbox(task) as place:
        place.sandbox.files.write("fake/pytest.py", "raise ImportError('it is gone')\n")
        place.libraries = [f"{place.root}/fake"]
        with pytest.raises(RollenvError, match="pytest"):
            place.grade()
        assert not place.sandbox.files.exists("logs/reward.json")


@pytest.mark.integration
def test_the_reward_has_its_parts(task):
    with TaskSandbox(task) as place:
        place.grade()
        scores = json.loads(place.sandbox.files.read("logs/reward.json"))
        assert (scores["reward"], scores["fail_to_pass"], scores["pass_to_pass"]) == (0, 0, 1)
        assert float(place.sandbox.files.read("logs/reward.txt")) == 0
