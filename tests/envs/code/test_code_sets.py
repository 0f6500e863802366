"""Tests in the forms in which data sets publish them: a right program is paid, a wrong one is not."""

import base64
import json
import pickle
import subprocess
import sys
import zlib

import pytest

from rollenv import UsageError
from rollenv.envs.code.env import CodeEnv
from rollenv.envs.code.tests import CallTests, StdioTests, parse_tests
from rollenv.sandbox import shared_pool

DOUBLE = "def double(xs):\n    return [2 * x for x in xs]"
COPY = "def double(xs):\n    return list(xs)"
PROMPT = 'from typing import List\n\n\ndef double(xs: List[float]) -> List[float]:\n    """Double each number."""\n'


def reward(row, program):
    env = CodeEnv(dataset=[{"problem": "?", **row}])
    env.reset(seed=0)
    return env.step(f"```python\n{program}\n```")[1]


# -- code with asserts -----------------------------------------------------------------------------------------------

CHECK = "def check(candidate):\n    assert candidate([1, 2]) == [2, 4]\n    assert candidate([]) == []\n"
ASSERTION = """import numpy as np

def is_floats(x) -> bool:
    if isinstance(x, float):
        return True
    return isinstance(x, (list, tuple)) and all(isinstance(i, float) for i in x)

def assertion(out, exp, atol):
    exact_match = out == exp
    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if not exact_match and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert exact_match, f"out: {out}, exp: {exp}"

"""
LOOP = """    inputs = [[[0.1 * i, i]] for i in range(300)]
    results = [[0.2 * i, 2 * i] for i in range(300)]
    for i, (inp, exp) in enumerate(zip(inputs, results)):
        assertion({}(*inp), exp, 0)
"""
REFERENCE = "def ref_func(xs):\n    return [x + x for x in xs]\n\ndef check(candidate):\n"
CODE = {
    "HumanEval": CHECK,
    "HumanEval+": ASSERTION + "def check(candidate):\n" + LOOP.format("candidate"),
    "HumanEval+ with a reference": (
        ASSERTION
        + REFERENCE
        + "    for inp in [[[1, 2]], [[0.5]]]:\n        assertion(candidate(*inp), ref_func(*inp), 0)"
    ),
    "metadata and a docstring": '"""Tests."""\nMETADATA = {"author": "x"}\n\n' + CHECK,
    "imports": "import math\nfrom math import *\n" + CHECK,
    "imports in arguments": "import math\n\ndef check(f):\n    assert f([math.inf, 1]) == [math.inf, 2]\n",
    "a helper": "N = [1, 2]\ndef same(a, b):\n    assert a == b\ndef check(f):\n    same(f(N), [2, 4])\n",
    "many comparisons by numpy": (
        "import numpy as np\ndef check(f):\n"
        "    for i in range(100):\n        assert np.allclose(f([i, 1]), np.array([i, 1]) * 2)\n"
    ),
    "unittest": (
        "import unittest\ndef check(f):\n    case = unittest.TestCase()\n"
        "    case.assertEqual(f([1, 2]), [2, 4])\n    case.assertEqual(f([3]), [6])\n"
    ),
    "its own call": CHECK + "\ncheck(double)\n",
    "its own call as a program": CHECK + "\nif __name__ == '__main__':\n    check(double)\n",
    "a check without parameter": "def check():\n    assert double([1]) == [2]\n",
    "plain asserts": "assert double([1, 2]) == [2, 4]\nassert double([]) == []\n",
    "plain asserts in a loop": "for n in range(3):\n    assert double([n]) == [n + n]\n",
    "a test function": "def test_double():\n    assert double([1]) == [2]\n\ntest_double()",
    "JSON of asserts": json.dumps(["assert double([1, 2]) == [2, 4]", "x = [1]\nassert double(x) == [2]"]),
}


@pytest.mark.combinations
@pytest.mark.parametrize("prompt", [PROMPT, "Double each number."], ids=["code", "words"])
@pytest.mark.parametrize("tests", CODE.values(), ids=CODE)
def test_code_that_tests_an_entry_point(tests, prompt):
    row = {"problem": prompt, "entry_point": "double", "tests": tests}
    assert (reward(row, DOUBLE), reward(row, COPY)) == (1.0, 0.0)


def test_code_without_an_entry_point_as_in_mbpp_plus():
    tests = ASSERTION + LOOP.format("double").replace("\n    ", "\n").strip()
    row = {"tests": tests, "test_imports": "import math"}
    assert (reward(row, DOUBLE), reward(row, COPY)) == (1.0, 0.0)
    question, _ = CodeEnv(dataset=[{"problem": "Double.", **row}]).reset(seed=0)
    assert "double" in question
    assert "0.2 * i" not in question


def test_a_method_as_the_entry_point():
    row = {"problem": "import math\n", "entry_point": "Solution().double", "tests": CHECK + ASSERTION}
    program = "class Solution:\n" + "\n".join(
        f"    {line}" for line in DOUBLE.replace("(xs)", "(self, xs)").split("\n")
    )
    assert (reward(row, program), reward(row, program.replace("2 *", "3 *"))) == (1.0, 0.0)


@pytest.mark.parametrize(
    "tests", ["", "import math\n", "def it():\n    assert double([1]) == [2]\n", "x = 1\nif x:\n    assert x"]
)
def test_code_that_asserts_nothing_is_refused(tests):
    """Every program would pass it."""
    with pytest.raises(UsageError):
        parse_tests(tests, "double")


@pytest.mark.parametrize(
    "tests", [CHECK, "hello", "{'inputs': ['1'], 'outputs': ['1']}", '[{"input": 1', "[" * 10**5, "eJw="]
)
def test_unreadable_text_is_refused(tests):
    with pytest.raises(UsageError):
        parse_tests(tests)


FUTURES = {
    "at the start": f"from __future__ import annotations\n\n{DOUBLE}",
    "after a docstring": f'"""Doubles."""\nfrom __future__ import annotations\nimport math\n{DOUBLE}',
    "several": (
        "# mine\nfrom __future__ import (\n    annotations,\n    division,\n)\n"
        f"from __future__ import generators; import os\n{DOUBLE}"
    ),
    "with names that come later": "from __future__ import annotations\n"
    + DOUBLE.replace("(xs)", "(xs: Later) -> Later"),
}


@pytest.mark.parametrize("program", FUTURES.values(), ids=FUTURES)
def test_an_answer_may_import_from_the_future(program):
    helper = "def half(x):\n    return x / 2\n\n\n"
    for prompt in (
        PROMPT,
        f'"""A module."""\nfrom __future__ import annotations\n{helper}{PROMPT}',
        helper,
        "Double them.",
    ):
        row = {"problem": prompt, "entry_point": "double", "tests": CHECK}
        assert (reward(row, program), reward(row, program.replace("2 *", "3 *"))) == (1.0, 0.0), prompt


# -- calls -----------------------------------------------------------------------------------------------------------

ADD = "class Solution:\n    def addTo(self, xs: List[int], n: int) -> List[int]:\n        return [x + n for x in xs]"
FUNCTIONAL = [
    {"input": given, "output": wanted, "testtype": "functional"}
    for given, wanted in (("[1, 2]\n3", "[4, 5]"), ("[]\n7", "[]"), ("[4]\n-1\n", "[3]"))
]
NAME = {"func_name": "addTo"}
PACKED = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(FUNCTIONAL)))).decode()
CALLS = {
    "LiveCodeBench, public": {"tests": json.dumps(FUNCTIONAL), "metadata": json.dumps(NAME)},
    "LiveCodeBench, private": {"tests": PACKED, "metadata": json.dumps(NAME)},
    "metadata in each test": {"tests": [{**one, "metadata": NAME} for one in FUNCTIONAL]},
    "fn_name in each test": {"tests": [{**one, "fn_name": "addTo"} for one in FUNCTIONAL]},
    "the entry point": {"tests": FUNCTIONAL, "entry_point": "addTo"},
    "APPS": {"tests": {"fn_name": "addTo", "inputs": [[[1, 2], 3]], "outputs": [[[4, 5]]]}},
    "APPS with the name in the metadata": {"tests": {"inputs": [[[1], 3]], "outputs": [[4]]}, "metadata": NAME},
    "PrimeIntellect": {
        "tests": [{"type": "function_call", "fn_name": "addTo", "input": [[1, 2], 3], "output": [[4, 5]]}]
    },
    "lines without a type": {"tests": [{"input": "[1]\n3", "output": "[4]", "fn_name": "addTo"}]},
}


@pytest.mark.parametrize("row", CALLS.values(), ids=CALLS)
def test_calls(row):
    assert (reward(row, ADD), reward(row, ADD.replace("x + n", "x - n"))) == (1.0, 0.0)


def test_arguments_of_one_line():
    """The only argument of LiveCodeBench may be a list; elsewhere, a list has all arguments."""
    given = {"input": "[1, 2]", "output": "3", "fn_name": "f"}
    assert parse_tests([given]) == CallTests("f", ([1, 2],), (3,))
    assert parse_tests([{**given, "testtype": "functional"}]) == CallTests("f", ([[1, 2]],), (3,))
    assert parse_tests([{**given, "input": '"a\\u2028"'}]) == CallTests("f", (["a\u2028"],), (3,))


def test_standard_input_stays_so_beside_a_name():
    """LiveCodeBench's contests have metadata without a name, but a name does not change the type that a test gives."""
    tests = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
    for metadata in (None, "{}", "no JSON", "[1]", json.dumps(NAME)):
        assert parse_tests(json.dumps(tests), metadata=metadata) == StdioTests(("1 2\n",), ("3\n",))


@pytest.mark.parametrize(
    "tests",
    [FUNCTIONAL, [{"type": "function_call", "input": [1], "output": [1]}], [*FUNCTIONAL, {"input": "", "output": ""}]],
)
def test_calls_of_no_known_function_are_refused(tests):
    with pytest.raises(UsageError):
        parse_tests(tests, metadata="{}" if len(tests) < 4 else NAME)


def test_packed_tests_cannot_run_code():
    packed = base64.b64encode(zlib.compress(pickle.dumps(print))).decode()
    with pytest.raises(UsageError):
        parse_tests(packed)


# -- arguments that a program changes in place -----------------------------------------------------------------------

SORT = "def tidy(xs):\n    xs.sort()"
UNIQUE = "def tidy(xs):\n    xs[:] = sorted(set(xs))\n    return len(xs)"
#: (tests, a program that passes, one that does not)
CHANGED = {
    "a list": ("xs = [3, 1]\ntidy(xs)\nassert xs == [1, 3], f'got {xs}'", SORT, "def tidy(xs):\n    sorted(xs)"),
    "in loops": (
        "for xs, want in (([2, 1], [1, 2]), ([3], [3])):\n    tidy(xs)\n    assert len(xs) == len(want)\n"
        "    for i in range(len(xs)):\n        assert xs[i] == want[i]",
        SORT,
        "def tidy(xs):\n    xs[:] = [0] * len(xs)",
    ),
    "a helper of the tests": (
        "def same(a, b):\n    assert a == b\nxs = [3, 1]\ntidy(xs)\nsame(xs, [1, 3])",
        SORT,
        "def tidy(xs):\n    return sorted(xs)",
    ),
    "a method": (
        "s, grid = Solution(), [[1, 2], [3, 4]]\ns.tidy(grid)\nassert grid == [[3, 4], [1, 2]]",
        "class Solution:\n    def tidy(self, g): g.reverse()",
        "class Solution:\n    def tidy(self, g): return g[::-1]",
    ),
    "the same rows": (
        "a, b = [1], [2]\ng = [a, b]\ntidy(g)\nassert g == [[2, 0], [1]] and b == [2, 0]\nassert g[1] is a",
        "def tidy(g):\n    g.reverse()\n    g[0].append(0)",
        "def tidy(g):\n    g[:] = [[2, 0], [1]]",
    ),
    "by its name": ("d = {}\ntidy(into=d)\nassert d == {'a': [1]}", "def tidy(into): into['a'] = [1]",
        "def tidy(into): into = {'a': [1]}"),
    "other containers": (
        "import collections as c\ns, b, q, d = {1}, bytearray(b'a'), c.deque([1]), c.defaultdict(list)\n"
        "tidy((s, b), q, d)\nassert (s, b, q, d) == ({1, 2}, b'ab', c.deque([0, 1]), {1: [2]})\nassert d[7] == []",
        "def tidy(sb, q, d):\n    sb[0].add(2)\n    sb[1].extend(b'b')\n    q.appendleft(0)\n    d[1].append(2)",
        "def tidy(sb, q, d):\n    sb[0].add(2)\n    sb[1].extend(b'b')\n    q.append(0)\n    d[1].append(2)",
    ),
    "a list in itself": (
        "xs = []\ntidy(xs)\nassert xs[0] is xs", "def tidy(xs): xs.append(xs)", "def tidy(xs): xs.append([xs])",
    ),
    "again and again": (
        "xs = []\nfor i in range(3):\n    tidy(xs)\nassert xs == [0, 1, 2]",
        "def tidy(xs): xs.append(len(xs))",
        "def tidy(xs): xs.append(0)"),
    "the result and the argument": (
        "xs = [2, 1, 1]\nn = tidy(xs)\nassert (n, xs[:n]) == (2, [1, 2])",
        UNIQUE,
        "def tidy(xs): return 2"),
    "the result, then the argument": (
        "want = [1, 2]\nxs = [2, 1, 1]\nn = tidy(xs)\nassert n == len(want) and xs[:n] == want\nassert 1 in xs",
        UNIQUE,
        "def tidy(xs):\n    xs.sort()\n    return 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("tests", "right", "wrong"), CHANGED.values(), ids=CHANGED)
def test_changes_that_a_test_looks_at(tests, right, wrong):
    assert (reward({"tests": [tests]}, right), reward({"tests": [tests]}, wrong)) == (1.0, 0.0)


@pytest.mark.parametrize(
    "test",
    [
        "assert tidy(xs) == sorted(xs)",
        "got = tidy(xs)\nassert got == sorted(xs)",
        "got = tidy(xs)\nassert sorted(xs) == got and 1 == 1",
        "got = tidy(xs)\nwant = sorted(xs)\nassert got == want",
        "got = tidy(xs)\nassert all(a == b for a, b in zip(got, sorted(xs))) and len(got) == len(xs)",
        "got = tidy(xs)\ndef same(a, b): assert a == b\nsame(got, sorted(xs))",
        "tidy(xs)\nassert tidy(xs) == sorted(xs)",
        "tidy(xs)\nassert len(tidy(xs)) - len(xs) == 0",
        "got = tidy(xs)\nassert abs(len(got) - len(xs)) < 1",
        "got = tidy(xs)\nassert (got == sorted(xs)) is True",
        "got = tidy(xs)\nassert len(got) == len(xs)\nassert xs == xs and got == sorted(xs)",
    ],
)
def test_a_function_that_clears_its_argument_is_not_right_about_it(test):
    """What a test computes of an argument after a call whose result it uses, it computes of what it gave."""
    row = {"tests": [f"xs = [2, 1]\n{test}"]}
    assert reward(row, "def tidy(xs): return sorted(xs)") == 1.0
    assert reward(row, "def tidy(xs):\n    xs.clear()\n    return []") == 0.0


@pytest.mark.parametrize("change", ["xs[:] = [ANY]", "xs[0] = ANY", "d['a'] = ANY", "xs.clear(); xs.append(L([1]))"])
def test_a_changed_argument_is_plain_data(change):
    code = (
        "from unittest.mock import ANY\nclass L(list):\n    def __eq__(self, other): return True\n"
        f"def tidy(xs, d):\n    {change}"
    )
    row = {"tests": ["xs, d = [2], {'a': 1}\ntidy(xs, d)\nassert xs == [7]\nassert d == {'a': 7}"]}
    assert reward(row, code) == 0.0
    assert reward(row, "def tidy(xs, d):\n    xs[0] = d['a'] = 7") == 1.0


# -- standard streams ------------------------------------------------------------------------------------------------

ATTRIBUTES = (
    "name mode encoding errors newlines line_buffering write_through closed buffer.name buffer.mode buffer.raw.mode"
    " buffer.raw.closefd"
)
#: Programs that use their streams in unusual ways, and print the sum of two numbers.
STREAMS = {
    "all attributes": (
        "import sys, operator\nfor stream in (sys.stdin, sys.stdout, sys.stderr):\n"
        f"    print(*operator.attrgetter(*{ATTRIBUTES.split()})(stream), stream.isatty(), stream.fileno(), stream)\n"
        "print(sys.__stdin__ is sys.stdin, sys.__stdout__ is sys.stdout, sys.__stderr__ is sys.stderr)"
    ),
    "both names of a stream": "import sys\nprint(int(input()) + int(sys.__stdin__.readline()))",
    "output kept until the end": (
        "import sys, io, atexit\nsys.stdout = io.StringIO()\n"
        "atexit.register(lambda: sys.__stdout__.write(sys.stdout.getvalue()))\nprint(int(input()) + int(input()))"
    ),
    "the former stream": (
        "import sys, io\nformer, sys.stdout = sys.stdout, io.StringIO()\nformer.write(str(int(input()) + int(input())))"
    ),
    "a file that stays open": "out = open(1, 'w')\nout.write(str(sum(map(int, open(0)))))",
    "a buffer of bytes": "import os\nout = os.fdopen(1, 'wb')\nout.write(b'%d' % sum(map(int, os.read(0, 9).split())))",
    "detached": "import sys, io\nsys.stdin = io.TextIOWrapper(sys.stdin.detach())\nprint(sum(map(int, sys.stdin)))",
    "closed": "import sys\nprint(sum(map(int, sys.stdin)))\nsys.stdin.close()\nsys.stdout.close()",
}


@pytest.mark.parametrize("program", STREAMS.values(), ids=STREAMS)
def test_streams_are_as_in_an_interpreter(program):
    usual = subprocess.run(
        [sys.executable, "-I", "-X", "utf8", "-c", program], input="1\n20\n", capture_output=True, text=True, check=True
    )
    result = shared_pool().run(program, stdin="1\n20\n")
    assert (result.stdout, result.exit_code) == (usual.stdout, 0)
