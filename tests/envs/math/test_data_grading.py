"""Mathematical answers: what is equal, what is not, and what a hostile answer may cost."""

import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from adversarial_answers import answers
from hypothesis import given
from hypothesis import strategies as st
from waiting import eventually

from rollenv import MissingExtra
from rollenv.envs.data.rows import load_rows
from rollenv.envs.math import grade as grading
from rollenv.envs.math.compare import compare, gold_answer
from rollenv.envs.math.grade import GraderPool, grade


@pytest.mark.parametrize(
    ("raw", "gold"),
    [
        ("She has 3 * 4 = <<3*4=12>>12 eggs.\n#### 12", "12"),
        ("#### 1,200", "1,200"),
        ("So the answer is $\\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"),
        ("First \\boxed{1}, then \\boxed{2}.", "2"),
        (" 7 ", "7"),
        (3.5, "3.5"),
        (12, "12"),
    ],
)
def test_gold_answers(raw, gold):
    assert gold_answer(raw) == gold


EQUAL = [
    ("5", "5.0"),
    ("5", "x = 5"),
    ("5", " 5. "),
    ("18", "$18.00"),
    ("18", "\\$18"),
    ("18", "18 dollars"),
    ("18", "18\\text{ dollars}"),
    ("15\\mbox{ cm}^2", "15"),
    ("5.4 \\text{ cents}", "5.4"),
    ("2,125", "2125"),
    ("11,\\! 111,\\! 111,\\! 100", "11111111100"),
    ("10,\\!080", "10{,}080"),
    ("\\frac43", "4/3"),
    ("\\frac9{19}", "\\dfrac{9}{19}"),
    ("1\\frac{4}{5}", "9/5"),
    ("137 \\frac{1}{2}", "137.5"),
    ("0.5", "1/2"),
    ("\\frac{1}{3}", "0.333333"),
    ("-2", "−2"),
    ("0", "-0"),
    ("50\\%", "0.5"),
    ("50", "50%"),
    ("50\\%", "50 percent"),
    ("90^\\circ", "90"),
    ("\\text{Evelyn}", "evelyn"),
    ("\\text{(C)}", "C"),
    ("\\text{(C)}", "(c) 12"),
    ("52_8", "52_{8}"),
    ("3, 5, 7", "3,5,7"),
    ("(3,4)", "\\left( 3, 4 \\right)"),
    ("11\\sqrt2", "11\\sqrt{2}"),
    ("x \\in [-2,7]", "[-2, 7]"),
]
ALGEBRA_EQUAL = [
    ("3, 5, 7", "7, 3, 5"),
    ("1 \\pm \\sqrt{19}", "1 - \\sqrt{19}, 1 + \\sqrt{19}"),
    ("(a+5)(b+2)", "ab + 2a + 5b + 10"),
    ("2k+2", "2(k+1)"),
    ("6", "3!"),
    ("\\sqrt{51}", "51^{1/2}"),
    ("2\\sqrt{5}", "\\sqrt{20}"),
    ("\\begin{pmatrix} 1/5 \\\\ -18/5 \\end{pmatrix}", "\\begin{pmatrix} 0.2 \\\\ -3.6 \\end{pmatrix}"),
]
DIFFERENT = [
    ("5", "6"),
    ("5", "-5"),
    ("5", ""),
    ("", ""),
    ("5", "five"),
    ("5", "I do not know"),
    ("3", "3 million"),
    ("2", "2 or 3"),
    ("5", "5 x"),
    ("11", "1 1"),
    ("50\\%", "0.5\\%"),
    ("\\frac{1}{3}", "0.33"),
    ("1000000", "1000000.5"),
    ("52_8", "52_9"),
    ("\\text{even}", "odd"),
    ("\\text{(C)}", "(D)"),
    ("\\text{(C)}", "Cat"),
    ("2125", "2,1,25"),
    ("1", "\\frac{1}{0}"),
]
ALGEBRA_DIFFERENT = [
    ("3, 5, 7", "3, 5"),
    ("(3,4]", "(3,4)"),
    ("(1,2)", "(2,1)"),
    ("x^2+1", "x^2+2"),
    ("\\sqrt{2}", "1.4"),
    ("7", "2 +"),
    ("7", "{" * 100),
    ("\\pi", "3.14"),
]


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_equal_without_algebra(gold, answer):
    assert compare(gold, answer) is True


@pytest.mark.slow
@pytest.mark.parametrize(("gold", "answer"), ALGEBRA_EQUAL)
def test_equal_by_algebra(gold, answer):
    assert compare(gold, answer) is None
    assert grade(gold, answer)


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize(("gold", "answer"), DIFFERENT + ALGEBRA_DIFFERENT)
def test_different(gold, answer):
    assert not grade(gold, answer)


@given(st.fractions(max_denominator=1000), st.fractions(max_denominator=1000))
def test_plain_numbers_are_compared_as_numbers(a, b):
    assert compare(str(a), f"\\frac{{{b.numerator}}}{{{b.denominator}}}") is (a == b)


@given(st.integers(-(10**12), 10**12))
def test_ways_to_write_an_integer(n):
    for text in (f"{n:,}", f"${n}$", f"{n}.00", f" {n} ", f"\\text{{}}{n}" if n < 0 else f"+{n}", f"{n} apples"):
        assert compare(str(n), text) is True, text
        assert compare(str(n + 1), text) is False, text


@given(st.text(max_size=80) | st.text("\\{}frac()^_-+0123456789.,$% x", max_size=120))
def test_any_text_can_be_compared(text):
    assert compare("5", text) in (True, False, None)
    assert compare("\\text{even}", text) in (True, False, None)
    assert compare(text, "5") in (True, False, None)


def test_long_and_repetitive_texts_are_compared_in_time():
    """A pattern that backtracks would not come back."""
    for unit in (" ", "a ", "1 ", "1,", "\\frac", "{", "\\text{", "1 a", "\\!", ".", "1 a a"):
        for length in (1000, 10**6):
            for gold in ("5", "\\text{x y}", "x^2"):
                assert compare(gold, (unit * length)[:length]) in (False, None)


@pytest.mark.integration
def test_no_wrong_answer_of_the_adversarial_ones_is_paid():
    wrong = answers(right=False)
    assert len(wrong) > 800
    assert [(gold, answer) for _, gold, answer in wrong if grade(gold, answer)] == []


@pytest.mark.integration
def test_hardly_a_right_answer_of_the_adversarial_ones_is_refused():
    right = answers(right=True)
    assert len(right) > 300
    refused = [(gold, answer) for _, gold, answer in right if not grade(gold, answer)]
    assert len(refused) <= len(right) / 100, refused


# -- whole data sets -------------------------------------------------------------------------------------------------


def test_gsm8k_grades_itself(data):
    data("gsm8k/test.jsonl")
    rows = load_rows("gsm8k", "test")
    golds = [gold_answer(row["answer"]) for row in rows]
    numbers = [int(gold.replace(",", "")) for gold in golds]
    for gold, number in zip(golds, numbers, strict=True):
        for same in (gold, str(number), f"\\${number:,}.00", f"{number} apples", f"\\frac{{{2 * number}}}{{2}}"):
            assert compare(gold, same) is True, (gold, same)
        for other in (number + 1, -number or 1, f"{number}.5", f"{number}0" if number else 10):
            assert compare(gold, str(other)) is False, (gold, other)


def test_math500_grades_itself(data):
    data("math/math500_test.jsonl")
    rows = load_rows("math", "math")
    assert [r["answer"] for r in rows if not grade(r["answer"], gold_answer(r["solution"]))] == []


@pytest.mark.integration
def test_math500_refuses_changed_answers(data):
    data("math/math500_test.jsonl")
    for row in load_rows("math", "math"):
        assert not grade(row["answer"], f"{row['answer']}+1")


@pytest.mark.integration
def test_math500_refuses_the_answers_of_other_problems(data):
    data("math/math500_test.jsonl")
    golds = [row["answer"] for row in load_rows("math", "math")]
    taken = [(a, b) for a, b in zip(golds, golds[1:] + golds[:1], strict=True) if grade(a, b)]
    assert taken == [("5", "x=5"), ("7", "7"), ("3", "3")], "these are indeed equal"


# -- the processes ---------------------------------------------------------------------------------------------------

#: The first would take hours in one call that no Python code can interrupt.
HOSTILE = [
    "9^{9^{9}}",
    "9^{9^{9^{9}}}",
    "(x+1)^{50000}",
    "10000000!",
    "{" * 450 + "}" * 450,
    "\\frac{" * 160,
    "(" * 500 + ")" * 500,
]


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("answer", HOSTILE)
def test_hostile_answers_are_wrong_and_the_next_one_is_graded(answer):
    assert grade("\\sqrt{2}", answer, seconds=0.5) is False
    assert grade("2k+2", "2(k+1)") is True


def test_an_answer_of_a_megabyte_never_reaches_a_grader():
    pool = grading._POOL
    before = list(pool._all)
    assert not grade("\\sqrt{2}", "{" * 10**6)
    assert not grade("5", "9" * 10**6)
    assert pool._all == before


@pytest.mark.slow
def test_any_thread_may_grade():
    pairs = [("2k+2", f"2(k+{i})") for i in range(3)] + [("x+y", f"y+{i}x") for i in range(3)]

    def work(who):
        rng = random.Random(who)
        order = list(range(len(pairs)))
        rng.shuffle(order)
        mine = {
            i: grade(*pairs[i], seconds=2 + who / 1000) for i in order
        }  # its own limit: nothing comes from the cache
        return [mine[i] for i in range(len(pairs))]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(8))) == [[False, True, False] * 2] * 8


@pytest.mark.integration
def test_one_grader_more_than_asked_for_is_never_started():
    pool = GraderPool(2)
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda i: pool.grade("x+1", f"1+x+{i}", 2.0), range(6)))
    assert 1 <= len(pool._all) <= 2
    pool.close()
    assert pool.grade("x+1", "1+x", 2.0), "a closed pool starts again when asked"
    pool.close()


@pytest.mark.slow
def test_a_forked_child_grades_with_processes_of_its_own():
    assert grade("x+y+1", "1+y+x")
    parents = {grader._process.pid for grader in grading._POOL._all}
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        right = grade("x+y+2", "2+y+x") and not grade("x+y+2", "3+y+x")
        own = parents.isdisjoint(grader._process.pid for grader in grading._POOL._all)
        grading._POOL.close()
        os.write(write, b"1" if right and own else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"1"
    os.close(read)
    os.close(write)
    assert grade("x+y+3", "3+y+x"), "the parent's still answer"


@pytest.mark.integration
@pytest.mark.parametrize("answer", [pytest.param("1+x", marks=pytest.mark.slow), "9^{9^{9}}"])
def test_graders_end_when_this_process_is_killed(answer):
    code = (
        "import threading\n"
        "from rollenv.envs.math.grade import _POOL, grade\n"
        "grade('x+1', 'x+2')\n"
        f"threading.Thread(target=grade, args=('5', {answer!r}, 1.0), daemon=True).start()\n"
        "print(_POOL._all[0]._process.pid, flush=True)\n"
        "import time; time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    session = int(parent.stdout.readline())
    assert members(session)
    time.sleep(0.2)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert eventually(lambda: not members(session))


def members(session):
    """The living processes of a session."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                with open(f"/proc/{entry}/stat") as stat:
                    fields = stat.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry))
    return found


def test_without_math_verify_only_what_needs_it_fails(monkeypatch):
    monkeypatch.setattr(grading.importlib.util, "find_spec", lambda name: None)
    assert grade("5", "5.0")
    with pytest.raises(MissingExtra, match=r"rollenv\[envs\]"):
        grade("x+1", "1+x+0")
