"""Grading: whether gold answers are graded right, how many grades a second, and what hostile answers cost.

Data are read from ``$ROLLENV_DATA`` (gsm8k, math, humaneval, mbpp); what is absent is left out. Run on one core with
``taskset -c 1``. Nothing comes from the cache of earlier grades, unless a row says so.
"""

from __future__ import annotations

import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from common import header, save, table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/envs/math"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests/envs/code"))
from adversarial_answers import answers
from cheats import CHEATS
from test_code_cheats import TASKS, paid

import rollenv
from rollenv.envs.data.rows import is_local, load_rows
from rollenv.envs.math import grade as grading
from rollenv.envs.math.compare import compare, gold_answer

Pairs = list[tuple[str, str]]

#: Answers that ask for more than a computer has.
HOSTILE = (
    ("9**9**9", "9**9**9"),
    ("9^{9^{9}}", "9^{9^{9}}"),
    ("10000000!", "10000000!"),
    ("(x+1)^{50000}", "(x+1)^{50000}"),
    ("450 nested braces", "{" * 450 + "}" * 450),
    ("160 open fractions", "\\frac{" * 160),
    ("500 nested parentheses", "(" * 500 + ")" * 500),
    ("a megabyte of braces", "{" * 10**6),
    ("a megabyte of digits", "9" * 10**6),
)


def gsm8k() -> Pairs:
    """(gold, gold + 1)"""
    golds = [gold_answer(row["answer"]) for row in load_rows("gsm8k", "test")]
    return [(gold, str(int(gold.replace(",", "")) + 1)) for gold in golds]


def uncached(gold: str, answer: str) -> bool:
    easy = compare(gold, answer)
    return algebra(gold, answer) if easy is None else easy


def algebra(gold: str, answer: str) -> bool:
    return grading._POOL.grade(gold, answer, grading.SECONDS)


def accuracy() -> str:
    rows = []
    if is_local("axon-rl/GSM-8k", "test"):
        pairs = gsm8k()
        spelled = [(gold, f"\\${int(gold.replace(',', '')):,}.00") for gold, _ in pairs]
        rows.append(_accuracy("GSM8K test", "the gold answer as in $1,234.00", spelled, True))
        rows.append(_accuracy("GSM8K test", "the gold answer + 1", pairs, False))
    if is_local("axon-rl/math-eval", "math"):
        math = load_rows("math", "math")
        golds = [row["answer"] for row in math]
        solutions = [(row["answer"], gold_answer(row["solution"])) for row in math]
        others = zip(golds, golds[1:] + golds[:1], strict=True)
        rows.append(_accuracy("MATH-500", "the box of the solution", solutions, True))
        rows.append(_accuracy("MATH-500", "the same, by math-verify alone", solutions, True, algebra))
        rows.append(_accuracy("MATH-500", 'the gold answer and "+1"', [(g, f"{g}+1") for g in golds], False))
        rows.append(
            _accuracy("MATH-500", "the next problem's, if another", [p for p in others if not _equal(*p)], False)
        )
    head = ("data", "answer", "answers", "graded right", "decided without algebra", "grades/s", "slowest")
    return "## Accuracy\n\n" + table(head, rows)


def _equal(a: str, b: str) -> bool:
    return a.removeprefix("x=") == b.removeprefix("x=")


def _accuracy(
    data: str, what: str, pairs: Pairs, expected: bool, judge: Callable[[str, str], bool] = uncached
) -> Sequence[object]:
    times, right = [], 0
    for gold, answer in pairs:
        start = time.perf_counter()
        right += judge(gold, answer) is expected
        times.append(time.perf_counter() - start)
    easy = sum(judge is uncached and compare(*pair) is not None for pair in pairs) / len(pairs)
    speed = f"{len(pairs) / sum(times):,.0f}"
    return data, what, len(pairs), f"{right / len(pairs):.1%}", f"{easy:.0%}", speed, f"{1000 * max(times):.1f} ms"


def adversarial() -> str:
    """Answers written to be graded wrong, and programs written to be paid for nothing; the tests have the lists."""
    counts: dict[str, list[int]] = {}
    for right in (True, False):
        for kind, gold, answer in answers(right=right):
            row = counts.setdefault(kind, [0, 0, 0, 0])
            row[0 if right else 2] += 1
            row[1 if right else 3] += grading.grade(gold, answer) is not right
    rows = [(kind, *row) for kind, row in counts.items()]
    rows.append(("all", *(sum(row[i] for row in counts.values()) for i in range(4))))
    head = ("adversarial answers", "right", "refused", "wrong", "paid")
    cheated = [(task, len(CHEATS), len(paid(task, list(CHEATS)))) for task in TASKS]
    return f"## Cheats\n\n{table(head, rows)}\n{table(('programs, by id and kind of test', 'cheats', 'paid'), cheated)}"


def throughput() -> str:
    easy = [("18", "$18.00"), ("\\frac{3}{4}", "0.75"), ("10,080", "10080"), ("5", "7"), ("12", "12 apples")]
    match = [(f"x^2+{i}x+1", f"1+{i}x+x^2") for i in range(2, 202)]
    differ = [(f"x^2+{i}x+1", f"2+{i}x+x^2") for i in range(2, 202)]
    rows = []
    for name, work, pairs in (
        ("plain numbers, in this process", compare, easy * 4000),
        ("algebra, equal", uncached, match),
        ("algebra, different", uncached, differ),
        ("algebra, asked before", grading.grade, [match[0]] * 20_000),
    ):
        work(*pairs[0])
        start = time.perf_counter()
        for pair in pairs:
            work(*pair)
        rows.append((name, f"{len(pairs) / (time.perf_counter() - start):,.0f}"))
    grading._POOL.close()
    start = time.perf_counter()
    uncached("x+1", "1+x")
    rows.append(("the first grade that needs algebra (a process starts)", f"{time.perf_counter() - start:.2f} s"))
    return "## Throughput\n\n" + table(("grades", "a second"), rows)


def hostile() -> str:
    rows = []
    for name, answer in HOSTILE:
        times = []
        for gold in ("5", "\\sqrt{2}", "x^2+1"):
            start = time.perf_counter()
            assert not uncached(gold, answer)
            times.append(time.perf_counter() - start)
        start = time.perf_counter()
        assert uncached("2k+2", "2(k+1)")
        rows.append((name, *(f"{t:.3f} s" for t in times), f"{time.perf_counter() - start:.3f} s"))
    head = ("answer, always wrong", "against 5", "against \\sqrt{2}", "against x^2+1", "the next grade")
    return f"## Hostile answers (limit: {grading.SECONDS:g} s of processor time)\n\n" + table(head, rows)


def programs() -> str:
    rows = []
    for env_id in ("code:HumanEval", "eval:MBPP"):
        spec = rollenv.spec(env_id)
        if is_local(spec.kwargs["dataset_name"], spec.kwargs["split"]):
            rows.append(_programs(env_id, "the data's solution", lambda code: code))
            rows.append(_programs(env_id, "every function returns None", _broken))
    head = ("id", "program", "problems", "pass all tests", "median", "problems/s")
    return "## Programs (plain runner, one at a time)\n\n" + table(head, rows)


def _broken(code: str) -> str:
    return re.sub(r"(?m)^([ \t]*)def (\w+)[ \t]*\((.*)$", r"\1def \2(*_, **__): return None\n\1def _\2(\3", code)


def _programs(env_id: str, what: str, change: Callable[[str], str]) -> Sequence[object]:
    env = rollenv.make(env_id)
    times, passed = [], 0
    total = len(env.rows)  # type: ignore[attr-defined]
    for i in range(total):
        env.reset(options={"index": i})
        action = change(env.oracle_action())
        start = time.perf_counter()
        passed += env.step(action)[4]["success"]
        times.append(time.perf_counter() - start)
    return env_id, what, total, passed, f"{1000 * statistics.median(times):.0f} ms", f"{total / sum(times):.0f}"


def tasks() -> str:
    rows = []
    for env_id in ("math:Arithmetic-v0-easy", "math:Arithmetic-v0-hard", "code:OneLine-v0", "tool:Calculator-v0"):
        env, steps, episodes = rollenv.make(env_id), 0, 0
        start = time.perf_counter()
        while time.perf_counter() - start < 2:
            env.reset(episodes)
            over = False
            while not over:
                _, _, terminated, truncated, _ = env.step(env.oracle_action())
                over = terminated or truncated
                steps += 1
            episodes += 1
        spent = time.perf_counter() - start
        rows.append((env_id, f"{episodes / spent:,.0f}", f"{steps / spent:,.0f}"))
    return "## Procedural tasks, played by their oracles\n\n" + table(("id", "episodes/s", "steps/s"), rows)


def main() -> None:
    save("grading", "\n".join([header(), accuracy(), adversarial(), throughput(), hostile(), programs(), tasks()]))


if __name__ == "__main__":
    main()
