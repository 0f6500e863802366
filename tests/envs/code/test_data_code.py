"""Programs and their tests: the forms, the verdicts, and cheats that do not work."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

import rollenv
from rollenv import UsageError
from rollenv.core.checker import check_env
from rollenv.core.errors import NoSuchAbility
from rollenv.envs.code.env import CodeEnv
from rollenv.envs.code.tests import AssertTests, CallTests, StdioTests, count, parse_tests, run_tests
from rollenv.sandbox import shared_pool

DOUBLE = "print(2 * int(input()))"
ROWS = [
    {"problem": "Print twice the number.", "tests": {"inputs": ["1\n", "20\n"], "outputs": ["2\n", "40"]}},
    {"problem": "Add.", "tests": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"], "solution": "add = int.__add__"},
    {"problem": "Sort.", "tests": json.dumps([{"input": "[[2, 1]]", "output": "[1, 2]", "fn_name": "sort"}])},
]


def fenced(code):
    return f"Here it is.\n```python\n{code}\n```\n"


def test_an_adaptive_time_limit_can_be_asked_for_by_name():
    assert step(DOUBLE, 0, timeout="adaptive")[1] == 1.0
    with pytest.raises(UsageError, match="adaptive"):
        CodeEnv(dataset=ROWS, timeout="adaptiv")


def step(code, idx, **kwargs):
    env = CodeEnv(dataset=ROWS, **kwargs)
    env.reset(idx=idx)
    return env.step(fenced(code))


@pytest.mark.parametrize(
    ("raw", "kwargs", "tests"),
    [
        ({"inputs": ["1"], "outputs": ["2"]}, {}, StdioTests(("1",), ("2",))),
        ('{"inputs": ["1"], "outputs": ["2"]}', {}, StdioTests(("1",), ("2",))),
        ({"inputs": [["1", "2"]], "outputs": [["3"]]}, {}, StdioTests(("1\n2",), ("3",))),
        ([{"input": "1", "output": "2"}], {}, StdioTests(("1",), ("2",))),
        ({"inputs": [[1, 2]], "outputs": [3], "fn_name": "f"}, {}, CallTests("f", ([1, 2],), (3,))),
        ([{"input": "[1]", "output": "2", "fn_name": "f"}], {}, CallTests("f", ([1],), (2,))),
        (["assert f() == 1"], {}, AssertTests(("assert f() == 1",))),
        (["assert f()"], {"setup": "import math"}, AssertTests(("assert f()",), "import math")),
        ("def check(c): ...", {"entry_point": "f"}, AssertTests(("def check(c): ...\ncheck(f)",), entry_point="f")),
    ],
)
def test_forms_of_tests(raw, kwargs, tests):
    assert parse_tests(raw, **kwargs) == tests


def test_the_longest_inputs_are_kept():
    raw = {"inputs": ["1" * n for n in range(20)], "outputs": list(range(20))}
    tests = parse_tests(raw)
    assert count(tests) == 12
    assert sorted(map(len, tests.inputs)) == list(range(8, 20))
    assert all(int(out) == len(given) for given, out in zip(tests.inputs, tests.outputs, strict=True))
    assert count(parse_tests(raw, max_tests=None)) == 20


@pytest.mark.parametrize(
    "raw", [[], [1], 3, {}, {"inputs": [], "outputs": []}, {"inputs": ["1"], "outputs": []}, "[]", [{"input": "1"}]]
)
def test_no_tests_or_tests_in_no_known_form_are_refused(raw):
    """Rather than passed by every program."""
    with pytest.raises(UsageError, match="known form"):
        parse_tests(raw)


@pytest.mark.parametrize(
    ("idx", "code", "reward"),
    [
        (0, DOUBLE, 1.0),
        (0, "print(2)", 0.0),
        (0, f"{DOUBLE}\nraise SystemExit(1)", 0.0),
        (0, f"print()\n{DOUBLE}; print('  ')", 1.0),
        (1, "def add(a, b):\n    return a + b", 1.0),
        (1, "def add(a, b):\n    return 3", 0.0),
        (1, "def sub(a, b):\n    return a + b", 0.0),
        (1, "def add(a, b", 0.0),
        (2, "def sort(a):\n    return sorted(a)", 1.0),
        (2, "class Solution:\n    def sort(self, a):\n        return tuple(sorted(a))", 1.0),
        (2, "def sort(a):\n    return a", 0.0),
    ],
)
def test_rewards(idx, code, reward):
    result = step(code, idx)
    assert result[1:4] == (reward, True, False)
    assert result[4]["success"] is bool(reward)
    assert result[4]["valid"] is True


def test_no_code_block():
    env = CodeEnv(dataset=ROWS)
    env.reset(idx=0)
    result = env.step(DOUBLE)
    assert result[1:4] == (-0.1, True, False)
    assert result[4]["valid"] is False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("idx", "code", "share"),
    [
        (0, "print(2)", 0.5),
        (1, "def add(a, b):\n    return 0", 0.5),
        (1, "def add(a, b):\n    if a: return 3\n    while True: pass", 0.5),
        (0, DOUBLE, 1.0),
    ],
)
def test_partial_rewards(idx, code, share):
    assert step(code, idx, partial=True, timeout=1.5)[1] == share


def test_tests_stop_at_the_first_failure_unless_all_are_wanted():
    class Counting:
        def __init__(self):
            self.runs = 0

        def run(self, code, *, stdin="", timeout=None):
            self.runs += 1
            return shared_pool().run(code, stdin=stdin, timeout=timeout)

        def close(self):
            pass

    tests = StdioTests(tuple("123456"), tuple("100000"))
    counting = Counting()
    assert run_tests("print(1)", tests, counting, 5.0, workers=1, every=False) == 1
    assert counting.runs < 6
    counting = Counting()
    assert run_tests("print(1)", tests, counting, 5.0, workers=3, every=True) == 1
    assert counting.runs == 6


def test_another_runner_can_be_given():
    class Deaf:
        def run(self, code, *, stdin="", timeout=None):
            raise AssertionError("used")

        def close(self):
            pass

    with pytest.raises(AssertionError, match="used"):
        step(DOUBLE, 0, sandbox=Deaf(), max_workers=1)
    with pytest.raises(UsageError, match=r"chroot.*local, docker"):
        CodeEnv(dataset=ROWS, sandbox_type="chroot")


@pytest.mark.integration
def test_promises_on_rows_in_memory():
    abilities = sorted(rollenv.ABILITIES - {"spawn", "oracle"})
    check_env(lambda: rollenv.make("code:Taco8k", dataset=ROWS), abilities=abilities, episodes=3)


def test_a_set_without_solutions_has_no_oracle():
    assert "oracle" not in rollenv.spec("code:Taco8k").abilities
    env = CodeEnv(dataset=ROWS)
    env.reset(idx=0)
    with pytest.raises(NoSuchAbility, match="solution_key"):
        env.oracle_action()


# -- whole data sets -------------------------------------------------------------------------------------------------


def outcomes(env_id, answer, threads=2, **kwargs):
    """The rows whose answer passes; ``answer(env)`` is asked after a reset to the row."""

    def play(i):
        env = rollenv.make(env_id, **kwargs)
        env.reset(idx=i)
        return env.step(answer(env))[4]["success"]

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(play, range(len(rollenv.make(env_id, **kwargs).rows))))


def oracle(env):
    return env.oracle_action()


def returns_none(env):
    """The oracle's program, whose every function now returns None."""
    return re.sub(r"(?m)^([ \t]*)def (\w+)[ \t]*\((.*)$", r"\1def \2(*_, **__): return None\n\1def _\2(\3", oracle(env))


@pytest.mark.integration
def test_humaneval_solutions_pass_and_broken_ones_fail(data):
    data("humaneval/HumanEval.jsonl.gz")
    assert outcomes("code:HumanEval", oracle) == [True] * 164
    assert outcomes("code:HumanEval", returns_none) == [False] * 164


@pytest.mark.integration
def test_mbpp_solutions_pass_and_broken_ones_fail(data):
    data("mbpp/mbpp.jsonl")
    assert outcomes("eval:MBPP", oracle, timeout=60.0) == [True] * 500  # some compute for seconds, more on a busy core
    assert outcomes("eval:MBPP", returns_none) == [False] * 500


@pytest.mark.slow
def test_some_of_humaneval_and_mbpp(data):
    data("humaneval/HumanEval.jsonl.gz")
    data("mbpp/mbpp.jsonl")
    for env_id, tasks in (("code:HumanEval", (0, 32, 38, 50)), ("code:MBPP", (0, 5)), ("eval:MBPP", (356,))):
        env = rollenv.make(env_id)
        for i in tasks:
            env.reset(idx=i)
            assert env.step(oracle(env))[1] == 1.0, (env_id, i)
            env.reset(idx=i)
            assert env.step(returns_none(env))[1] == 0.0, (env_id, i)


def test_humaneval_takes_a_whole_function_or_its_body(data):
    data("humaneval/HumanEval.jsonl.gz")
    env = rollenv.make("code:HumanEval")
    env.reset(idx=0)
    body = env.row["canonical_solution"]
    assert env.step(fenced(body))[1] == 1.0
    env.reset(idx=0)
    whole = f"def has_close_elements(numbers: List[float], threshold: float) -> bool:\n{body}"
    assert env.step(fenced(whole))[1] == 1.0, "the prompt's imports are there"
