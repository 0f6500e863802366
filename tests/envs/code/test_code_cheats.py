"""Programs that cheat are not paid, on any id that programs are graded by; programs that solve the task are."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from cheats import CHEATS

import rollenv
from rollenv.envs.code.tests import AssertTests, CallTests, StdioTests, run_tests
from rollenv.sandbox import shared_pool

SOLUTION = """
def solve(x):
    return {3: 7919, 4: 'quagga', 6: 7919}.get(x) if isinstance(x, int) else [3, 1, 4]
if __name__ == '__main__':
    print('quagga')
"""
CHECK = "def check(candidate):\n    assert candidate(3) == 7919\n    assert candidate(4) == 'quagga'\n"
LOOPS = """
def check(candidate):
    import random
    for _ in range(3):
        assert abs(candidate(random.choice([3, 6])) - 7919) < 1e-6
    assert sorted(candidate([5])) == sorted([3, 1, 4]) and helper(candidate(4)) == 'aggauq'
"""
PROMPT = "def helper(text):\n    return text[::-1]\n\ndef solve(x):\n    '''Solve it.'''\n"
JSON_CALLS = {"inputs": [[3], [4], [[5]]], "outputs": [7919, "quagga", [3, 1, 4]], "fn_name": "solve"}
ASSERTS = ["assert solve(3) == 7919", "assert solve(4) == 'quagga'", "assert solve([5]) == [3, 1, 4]"]
TASKS = {
    "code:HumanEval calls": {"prompt": PROMPT, "test": CHECK, "entry_point": "solve"},
    "code:HumanEval judged": {"prompt": PROMPT, "test": LOOPS, "entry_point": "solve"},
    "code:MBPP": {"text": "Solve.", "test_list": ASSERTS},
    "eval:MBPP judged": {"text": "Solve.", "test_list": ["assert sorted(solve([5])) == [1, 3, 4]", *ASSERTS]},
    "code:Taco8k calls": {"problem": "Solve.", "tests": JSON_CALLS},
    "code:PrimeIntellect15k calls": {
        "problem": "Solve.",
        "tests": [{"input": "[4]", "output": '"quagga"', "fn_name": "solve"}],
    },
    "code:CodeContest": {"problem": "Solve.", "tests": {"inputs": ["4\n", "5\n"], "outputs": ["quagga\n", "quagga\n"]}},
    "eval:CodeContest": {"problem": "Solve.", "tests": [{"input": "4", "output": "quagga"}]},
}


#: One task of each kind of test.
KINDS = ("code:HumanEval judged", "code:MBPP", "code:Taco8k calls", "code:CodeContest")


def play(task, code, timeout=5.0):
    env = rollenv.make(task.split()[0], dataset=[TASKS[task]], timeout=timeout)
    env.reset(seed=0)
    return env.step(f"```python\n{code}\n```")[1]


@pytest.mark.combinations
@pytest.mark.parametrize("task", TASKS)
def test_what_solves_the_task_is_paid(task):
    assert play(task, SOLUTION) == 1.0


def paid(task, cheats):
    """The cheats that are paid."""
    with ThreadPoolExecutor(3) as threads:
        rewards = threads.map(lambda name: play(task, CHEATS[name], timeout=1.0), cheats)
        return [name for name, reward in zip(cheats, rewards, strict=True) if reward > 0]


@pytest.mark.integration
@pytest.mark.parametrize("task", KINDS)
def test_no_cheat_is_paid(task):
    assert len(CHEATS) >= 80
    assert paid(task, list(CHEATS)) == []


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_no_cheat_of_a_few_is_paid_on_any_id(task):
    assert (
        paid(task, ["equal: mock.ANY", "patch: encode", "spy: frames", "report: forged 0 7919", "report: exit"]) == []
    )


def test_a_spy_would_find_what_it_seeks():
    """The spies do see what is in their process: with the answers in it they are paid."""
    spy = CHEATS["spy: own job"]
    told = "import __main__\n__main__.told = 'aggauq'[::-1]\n"
    assert play("code:MBPP", told + spy) == 1.0


def test_two_answers_to_one_call_are_none():
    """A program that forks, or forges a second report, has no two guesses."""
    twice = (
        "import os\ndef solve(x):\n    for fd in range(1, 64):\n        try: os.write(fd, b'0 false\\n')\n"
        "        except OSError: pass\n    return True"
    )
    pool = shared_pool()
    assert run_tests("def solve(x): return True", AssertTests(("assert solve(1) is True",)), pool, 5.0) == 1
    assert run_tests(twice, AssertTests(("assert solve(1) is True",)), pool, 5.0) == 0
    forks = "import os\ndef solve(x): return os.fork() == 0"
    assert run_tests(forks, AssertTests(("assert solve(1) is True",)), pool, 5.0) == 0


def test_the_hosts_helpers_judge_and_not_the_programs():
    """A program that defines the tests' helper anew is judged by the data set's."""
    code = SOLUTION.replace("'quagga'", "'x'") + "\nhelper = lambda text: 'aggauq'\n"
    assert play("code:HumanEval judged", code) == 0.0


def test_arguments_are_copies():
    """A function that changes its argument changes neither what is compared nor the next call."""
    tests = AssertTests(("x = [2, 1]\nassert solve(x) == sorted(x)", "assert solve([2, 1]) == [1, 2]"))
    assert run_tests("def solve(a):\n    a.clear()\n    return a", tests, shared_pool(), 5.0) == 0
    assert run_tests("def solve(a):\n    a.sort()\n    return a", tests, shared_pool(), 5.0) == 2


FORMS = [
    ("(1, 2)", "solve() == (1, 2)", True),
    ("[1, 2]", "solve() == (1, 2)", False),
    ("(1, 2)", "solve() == [1, 2]", False),
    ("(1, [2, {'a': (3,)}])", "solve() == (1, [2, {'a': (3,)}])", True),
    ("{1, 2}", "solve() == {2, 1}", True),
    ("frozenset({1})", "solve() == {1}", True),
    ("{}.keys()", "solve() == set()", True),
    ("{'a': 1}.items()", "sorted(solve()) == [('a', 1)]", True),
    ("1", "solve() == True", True),
    ("True", "solve() == 1", True),
    ("1", "solve() is True", False),
    ("True", "solve() is True", True),
    ("2.0", "solve() == 2", True),
    ("10 ** 400", f"solve() == {10**400}", True),
    ("-0.0", "solve() == 0", True),
    ("float('nan')", "solve() == 1.0", False),
    ("float('inf')", "solve() == 1e999", True),
    ("None", "solve() is None", True),
    ("None", "solve() == None", True),
    ("0", "solve() is None", False),
    ("b'a\\x00'", "solve() == b'a\\x00'", True),
    ("2 + 3j", "solve() == 2 + 3j", True),
    ("'\\ud800é'", "solve() == '\\ud800é'", True),
    ("(x for x in 'ab')", "list(solve()) == ['a', 'b']", True),
    ("(x for x in 'ab')", "solve() == ['a', 'b']", False),
    ("map(int, '12')", "tuple(solve()) == (1, 2)", True),
    ("iter([3, 1])", "sorted(solve()) == [1, 3]", True),
    ("range(3)", "list(solve()) == [0, 1, 2]", True),
    ("range(3)", "solve() == [0, 1, 2]", False),
    ("collections.Counter('aab')", "solve() == {'a': 2, 'b': 1}", True),
    ("collections.OrderedDict(a=1)", "solve() == {'a': 1}", True),
    ("collections.defaultdict(int, a=1)", "solve() == {'a': 1}", True),
    ("collections.namedtuple('P', 'x y')(1, 2)", "solve() == (1, 2)", True),
    ("collections.deque([1])", "solve() == [1]", False),
    ("collections.deque([1])", "list(solve()) == [1]", True),
    ("fractions.Fraction(1, 2)", "solve() == 0.5", True),
    ("decimal.Decimal('0.25')", "solve() == 0.25", True),
    ("decimal.Decimal('0.1')", "solve() == 0.1", False),
    ("[1]", "solve()", True),
    ("[]", "solve()", False),
    ("[]", "not solve()", True),
    ("0.1 + 0.2", "abs(solve() - 0.3) < 1e-9", True),
    ("0.1 + 0.2", "math.isclose(solve(), 0.3)", True),
    ("0.4", "math.isclose(solve(), 0.3)", False),
    ("[2, 1]", "set(solve()) == {1, 2}", True),
    ("2.0004", "round(solve(), 2) == 2.0", True),
    ("3", "5 == solve() + 2", True),
    ("3", "solve() != 4", True),
    ("3", "solve() in (3, 4)", True),
    ("'b'", "'a' < solve() < 'c'", True),
    ("[[1, 2], [3]]", "[sum(x) for x in solve()] == [3, 3]", True),
    ("1 / 0", "solve() != 1", False),
]


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize(("returned", "test", "passes"), FORMS)
def test_forms_of_values_and_of_asserts(returned, test, passes):
    code = f"import collections, decimal, fractions\ndef solve(): return {returned}"
    assert run_tests(code, AssertTests((f"assert {test}",)), shared_pool(), 5.0) == passes


def test_exceptions_that_tests_expect():
    test = "try:\n    solve(-1)\n    raise AssertionError\nexcept ValueError as error:\n    assert 'neg' in str(error)"
    code = "def solve(x):\n    if x < 0: raise {}('negative')"
    assert run_tests(code.format("ValueError"), AssertTests((test,)), shared_pool(), 5.0) == 1
    assert run_tests(code.format("KeyError"), AssertTests((test,)), shared_pool(), 5.0) == 0


def test_a_raised_stop_does_not_end_a_loop_of_the_tests():
    """``all(map(solve, ...))`` would be true of nothing."""
    tests = AssertTests(("assert all(map(solve, [1, 2]))", "assert [*map(solve, [1])] == []"))
    for kind in ("StopIteration", "StopAsyncIteration", "GeneratorExit"):
        assert run_tests(f"def solve(x): raise {kind}", tests, shared_pool(), 5.0) == 0


def test_calls_that_depend_on_answers():
    test = "x = 0\nfor _ in range(3):\n    x = solve(x)\nassert x == 3"
    assert run_tests("def solve(x): return x + 1", AssertTests((test,)), shared_pool(), 5.0) == 1
    assert run_tests("def solve(x): return x + 2", AssertTests((test,)), shared_pool(), 5.0) == 0


def test_arguments_of_the_programs_own_types():
    setup = "root = Node(1)\nroot.left = Node(2)"
    code = "class Node:\n    def __init__(self, x): self.x, self.left = x, None\ndef solve(n): return n.left.x"
    assert run_tests(code, AssertTests(("assert solve(root) == 2",), setup), shared_pool(), 5.0) == 1
    assert run_tests(code, AssertTests(("assert solve(root) == 3",), setup), shared_pool(), 5.0) == 0


def test_lines_of_output_end_where_lines_end():
    lines = ["1\x0b2", "1\x1c2", "1\u20282", "1 2", "12", "1  \r\n2\n"]
    tests = StdioTests(tuple(map(str, range(6))), ("1\n2\n",) * 6)
    assert run_tests(f"print({lines[:5]}[int(input()) % 5])", tests, shared_pool(), 5.0) == 0
    assert run_tests(f"print({lines}[int(input())])", tests, shared_pool(), 5.0) == 1


@pytest.mark.integration
def test_a_value_far_larger_than_what_is_wanted_is_not_read():
    huge = "def solve(): return list(range(300_000))"
    assert run_tests(huge, CallTests("solve", ([],), (1,)), shared_pool(), 5.0) == 0
    assert run_tests(huge, CallTests("solve", ([],), (list(range(300_000)),)), shared_pool(), 10.0) == 1
