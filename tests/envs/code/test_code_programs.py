"""Programs as people write them, and tests as data sets write them: which pass."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.envs.code.env import CodeEnv
from rollenv.envs.code.tests import AssertTests, CallTests, StdioTests, parse_tests, run_tests, same_output
from rollenv.sandbox import shared_pool

PROGRAMS = [json.loads(line) for line in Path(__file__).with_name("programs.jsonl").read_text().splitlines()]


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program["what"])
def test_programs_as_people_write_them(program):
    tests = AssertTests(tuple(program["asserts"]), program["setup"])
    assert run_tests(program["code"], tests, shared_pool(), 5.0) == program["passes"]


#: (what is returned, what is wanted of a call, whether it is that)
VALUES = [
    ("10**5000", 10**5000, True),
    ("[10**5000]", [10**5000 + 1], False),
    ("{1, 2}", [1, 1], False),
    ("{1, 2}", [2, 1], True),
    ("{True}", [1], False),
    ("True", 1, False),
    ("1", True, False),
    ("(1, 2)", [1, 2], True),
    ("{'a': 1.0}", {"a": 1}, True),
    ("5", [5], True),
    ("[5]", [5], True),
    ("'x'", "x", True),
    ("None", None, True),
    ("None", 0, False),
    ("object()", 1, False),
    ("1 / 0", "<raised>", False),
    ("0.31", 0.3, False),
    ("10 ** 400", 1.5, False),
    ("__import__('sys').set_int_max_str_digits(0) or 10 ** 6000", 1, False),
    ("999999999.5", 10**9, False),
    ("1e17", 10**17 + 1, False),
    ("3.0000000000000004", 3, True),
    ("0.1 + 0.2", 0.3, True),
    ("float('nan')", 0.0, False),
    ("float('inf')", 10**400, False),
    ("__import__('decimal').Decimal('2.5')", 2.5, True),
    ("__import__('decimal').Decimal('sNaN')", 2.5, False),
    ("__import__('decimal').Decimal('1e999999999')", 2, False),
    ("__import__('fractions').Fraction(5, 2)", 2.5, True),
    ("__import__('collections').Counter('aa')", {"a": 2}, True),
    ("__import__('collections').deque([1])", [1], False),
]


@pytest.mark.parametrize("same", [True, False])
def test_values_of_calls(same):
    """Each value is a call of one program."""
    values = [(returned, wanted) for returned, wanted, passes in VALUES if passes == same]
    code = f"def solve(i): return [{', '.join(f'lambda: {returned}' for returned, _ in values)}][i]()"
    tests = CallTests("solve", tuple([i] for i in range(len(values))), tuple(wanted for _, wanted in values))
    assert run_tests(code, tests, shared_pool(), 5.0) == (len(values) if same else 0)


def test_an_integer_of_any_size_may_be_wanted_of_an_assert():
    tests = AssertTests((f"assert solve() == {hex(10**6000)}",))
    assert run_tests("def solve(): return 10**6000", tests, shared_pool(), 5.0) == 1


#: Objects of a program that answer everything as one would like: no test believes them.
LIARS = """
class Liar:
    def __init__(self, *a): pass
    def yes(self, *a): return True
    __eq__ = __ne__ = __bool__ = __lt__ = __contains__ = yes
    __hash__ = None
    def __getattr__(self, name): return self
    def __call__(self, *a): return self
    def __iter__(self): return iter([self] * 3)
    def __len__(self): return 3
def solve(*a): return Liar()
Solve = Liar
"""
UNBELIEVED = [
    "assert solve(3) == 7919 or solve(4) != 5",
    "assert solve(3)",
    "assert not solve(3)",
    "assert solve(3).isupper()",
    "assert sorted(solve([3])) == [3] and solve([3])[0] == 3",
    "assert 5 in solve(3)",
    "assert len(solve(3)) == 3",
    "assert solve(3)(4) == 7",
    "assert solve(3) in (1, 2)",
    "assert Solve(3) == 7919",
    "assert Solve(3) != 7919",
    "assert Solve(3).get() == 7919",
    "assert Solve(3).flag",
    "assert not Solve(3).flag",
    "x = Solve(3)\nassert x.size == 4",
]


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("test", UNBELIEVED)
def test_an_object_of_the_program_is_not_believed(test):
    assert run_tests(LIARS, AssertTests((test,)), shared_pool(), 5.0) == 0


def test_a_program_that_counts_its_calls_has_one_guess():
    """Its calls are made anew in each round; what is judged are the answers of one process."""
    code = "n = 0\ndef solve(x):\n    global n\n    n += 1\n    return n"
    tests = AssertTests(("x = solve(0)\nassert x == 1\nassert solve(x) == 2\nassert solve(solve(x)) == 4",))
    assert run_tests(code, tests, shared_pool(), 5.0) == 1
    assert run_tests(code.replace("n += 1", "n += 2"), tests, shared_pool(), 5.0) == 0


# -- printed output --------------------------------------------------------------------------------------------------

NUMBERS = st.integers(-(10**20), 10**20) | st.decimals(-(10**6), 10**6, places=3)


@given(st.lists(NUMBERS, min_size=1, max_size=5), st.sampled_from([" ", "  ", "\t"]), st.data())
def test_numbers_count_by_their_values(values, space, data):
    wanted = " ".join(map(str, values))
    written = [f"{value}{'0' if '.' in str(value) else '.0'}" for value in values]
    assert same_output(f" {space.join(written)} \r\n", wanted)
    at = data.draw(st.integers(0, len(values) - 1))
    values[at] += data.draw(st.sampled_from([1, -1]))
    assert not same_output(" ".join(map(str, values)), wanted)
    assert not same_output(f"{wanted} 0", wanted)


@given(st.floats(0.1, 10**5), st.integers(6, 12))
def test_fractions_may_have_more_digits_or_fewer(value, digits):
    rounded = f"{value:.{digits}f}"
    assert same_output(f"Case 1: {value!r}", f"Case 1: {rounded}")
    assert same_output(rounded, f"{value:.15f}")
    assert not same_output(f"{value * 1.0001!r}", rounded)
    assert not same_output(f"Case 2: {value!r}", f"Case 1: {rounded}")


#: (printed, wanted, whether it is that)
OUTPUTS = [
    ("1e-07", "0.0000001", True),
    ("-0.0", "0.0", True),
    ("5.551115123125783e-17", "0.0", True),
    ("1" + "0" * 6000 + ".0", "1" + "0" * 6000, True),
    ("1\n\n2", "1\n2", True),
    (" 1  2\n10 20", "1 2\n10 20", True),
    ("2e-07", "0.0000001", False),
    ("0", "0.0000001", False),
    ("0.33", "0.333333", False),
    ("39682.0", "39681.99", False),
    ("3.0000001", "3", False),
    ("50000000000000001", "50000000000000000", False),
    ("7", "007", False),
    ("11", "0011", False),
    ("1_000", "1000", False),
    ("1\n2", "1\n\n2", False),
    ("1\n2", "1 2", False),
    ("a  b", "a b", False),
    ("*\n***\n*****", "  *\n ***\n*****", False),
    ("yes", "YES", False),
    ("1e9999999", "1", False),
]


@pytest.mark.parametrize(("printed", "wanted", "same"), OUTPUTS, ids=[f"{one[0][:20]!r}" for one in OUTPUTS])
def test_printed_output(printed, wanted, same):
    assert same_output(printed, wanted) == same


# -- limits and forms ------------------------------------------------------------------------------------------------

HANGS = {
    "a loop": "while True: pass",
    "a loop that swallows everything": (
        "while True:\n            try:\n                while True: pass\n            except BaseException: pass"
    ),
    "a computation": "9 ** 9 ** 9",
    "the process": "__import__('os')._exit(0)",
}


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("hang", HANGS.values(), ids=HANGS)
def test_a_call_that_hangs_costs_its_own_test(hang):
    code = f"def f(x):\n    if x == 3:\n        {hang}\n    return x"
    calls = CallTests("f", tuple([x] for x in range(8)), tuple(range(8)))
    asserts = AssertTests(
        ("assert f(3) == 3", "assert f(4) == 4", "for i in (3, 5): assert f(i) == i", "x = f(6)\nassert x == 6")
    )
    assert run_tests(code, calls, shared_pool(), 1.0) == 7
    assert run_tests(code, asserts, shared_pool(), 1.0) == 2


@pytest.mark.slow
def test_the_limit_is_for_each_call():
    code = "import time\ndef f(x):\n    time.sleep(0.4)\n    return x"
    assert run_tests(code, CallTests("f", ([1],) * 6, (1,) * 6), shared_pool(), 1.5) == 6


@pytest.mark.parametrize(
    "body",
    [
        "def f(self, a: List[int]) -> Optional[int]: return max(Counter(a).values())",
        "def f(self, a): return heappop(a) + floor(inf > 1) - bisect.bisect([0], -1) - 1 + 2",
        "def f(self, a): return pow(len(a), 1, 5) - 1",
    ],
)
def test_starters_have_the_usual_imports(body):
    tests = CallTests("f", ([[0, 0, 5]],), (2,))
    assert run_tests(f"class Solution:\n    {body}", tests, shared_pool(), 5.0) == 1


def test_a_usual_import_is_no_solution():
    assert run_tests("from typing import *", CallTests("gcd", ([4, 6],), (2,)), shared_pool(), 5.0) == 0
    assert run_tests("# gcd", CallTests("gcd", ([4, 6],), (2,)), shared_pool(), 5.0) == 0


LONG = 10**5000 + 7


def test_integers_of_thousands_of_digits():
    digits = "1" + "0" * 4999 + "7"
    for raw in ([[LONG]], [f"[{digits}]"]):
        tests = parse_tests({"fn_name": "f", "inputs": raw * 3, "outputs": [digits] * 3}, max_tests=2)
        assert run_tests("def f(x): return int(str(x))", tests, shared_pool(), 5.0) == 2
    for code, text in (("print(int(input()))", LONG), ("print(10**5000 + 7)", "")):
        env = CodeEnv(dataset=[{"problem": "?", "tests": {"inputs": [text], "outputs": [[LONG]]}}])
        env.reset(seed=0)
        assert env.step(f"```python\nfrom __future__ import annotations\n{code}\n```")[1] == 1.0
    asserts = [f"assert f({digits}) == {digits}", f"assert f('{digits}') == '{digits}'", f"assert f({digits}) > 1"]
    assert run_tests("def f(x): return x", AssertTests(tuple(asserts)), shared_pool(), 5.0) == 3
    assert (
        run_tests(f"def f(x): return {{{10**4000 + 1}: 1}}", CallTests("f", ([1],), ({"1": 1},)), shared_pool(), 5.0)
        == 0
    )


def test_standard_input_is_a_file():
    assert run_tests("print(open('/dev/stdin').read())", StdioTests(("5",), ("5",)), shared_pool(), 5.0) == 1
