"""Tests of programs: the forms that data sets write them in, and running a program against them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rollenv.core import UsageError
from rollenv.sandbox.types import Runner


@dataclass(frozen=True, slots=True)
class StdioTests:
    """Programs that read standard input and write standard output."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AssertTests:
    """Statements that fail if the program is wrong."""

    asserts: tuple[str, ...]
    setup: str = ""


@dataclass(frozen=True, slots=True)
class CallTests:
    """A function, arguments and what it returns for them. The expected values never enter the program's process."""

    function: str
    arguments: tuple[Sequence[Any], ...]
    expected: tuple[Any, ...]


class _Unreadable:
    """Stands for a value that equals nothing expected."""


Tests = StdioTests | AssertTests | CallTests

#: Runs in the program's process. What the program prints is dropped; a verdict is a line that starts with a mark which
#: the program cannot foresee, so that ending early, or printing what looks like a verdict, passes nothing.
_HARNESS = """
import json, os, sys
job = json.loads(sys.stdin.readline())
out = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
def say(mark, verdict, out=out, dumps=json.dumps):
    out.write(mark + dumps(verdict, default=list) + "\\n")
    out.flush()
def run(mark, code, asserts, function, arguments, say=say):
    scope = {"__name__": "solution"}
    exec(compile(code, "solution.py", "exec"), scope)
    for test in asserts:
        try:
            exec(compile(test, "test.py", "exec"), scope)
        except BaseException:
            say(mark, False)
        else:
            say(mark, True)
    if function:
        call = scope[function] if function in scope else getattr(scope["Solution"](), function)
        for given in arguments:
            try:
                say(mark, call(*given))
            except BaseException:
                say(mark, "<raised>")
run(*[job.pop(key) for key in ("mark", "code", "asserts", "function", "arguments")])
"""


def parse_tests(raw: Any, entry_point: str | None = None, setup: str = "", max_tests: int | None = 12) -> Tests:
    """The tests of a row.

    Args:
        raw: a dict of ``inputs`` and ``outputs`` (TACO, APPS, CodeContests; with ``fn_name`` for calls), a list of
            dicts of ``input`` and ``output`` (PrimeIntellect, LiveCodeBench), either as JSON text, a list of assert
            statements (MBPP), or a text that defines ``check(candidate)`` (HumanEval, which names the entry point).
        entry_point: the function under test.
        setup: statements that run between the program and its asserts.
        max_tests: keep those with the longest inputs; None keeps all. Asserts are all kept.

    Raises:
        UsageError: they are in no known form, or there are none.
    """
    if isinstance(raw, str) and entry_point:
        return AssertTests((f"{raw}\ncheck({entry_point})",), setup)
    if isinstance(raw, str):
        raw = json.loads(raw)
    if isinstance(raw, Mapping) and raw.get("inputs") and len(raw["inputs"]) == len(raw.get("outputs", ())):
        return _pick(raw["inputs"], raw["outputs"], raw.get("fn_name"), max_tests)
    if isinstance(raw, list | tuple) and raw:
        if all(isinstance(one, str) for one in raw):
            return AssertTests(tuple(raw), setup)
        if all(isinstance(one, Mapping) and {"input", "output"} <= one.keys() for one in raw):
            name = raw[0].get("fn_name")
            return _pick([t["input"] for t in raw], [t["output"] for t in raw], name, max_tests)
    raise UsageError(f"these tests are in no known form: {str(raw)[:200]}")


def _pick(inputs: Sequence[Any], outputs: Sequence[Any], function: str | None, max_tests: int | None) -> Tests:
    order = range(len(inputs))
    if max_tests is not None and len(inputs) > max_tests:
        order = sorted(order, key=lambda i: len(str(inputs[i])), reverse=True)[:max_tests]  # type: ignore[assignment]
    if not function:
        return StdioTests(tuple(_text(inputs[i]) for i in order), tuple(_text(outputs[i]) for i in order))
    arguments = tuple(_decoded(inputs[i]) for i in order)
    return CallTests(function, arguments, tuple(_decoded(outputs[i]) for i in order))


def _text(value: Any) -> str:
    """Some data sets split the text into lines."""
    return "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _decoded(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def count(tests: Tests) -> int:
    """How many verdicts :func:`run_tests` gives at most."""
    if isinstance(tests, StdioTests):
        return len(tests.inputs)
    return len(tests.asserts) if isinstance(tests, AssertTests) else len(tests.arguments)


def run_tests(code: str, tests: Tests, runner: Runner, timeout: float, workers: int = 1, every: bool = True) -> int:
    """How many tests a program passes.

    Args:
        code: the program.
        tests: what to hold it to.
        runner: runs it.
        timeout: seconds for a run; asserts and calls share one run.
        workers: runs at a time.
        every: False stops at the first test that fails.
    """
    if isinstance(tests, StdioTests):
        return _count_passed(code, tests, runner, timeout, workers, every)
    if isinstance(tests, AssertTests):
        code = f"{code}\n\n{tests.setup}" if tests.setup else code
        verdicts = _harness(code, runner, timeout, asserts=tests.asserts)
        return sum(verdict is True for verdict in verdicts[: len(tests.asserts)])
    verdicts = _harness(code, runner, timeout, function=tests.function, arguments=tests.arguments)
    return sum(_same(got, wanted) for got, wanted in zip(verdicts, tests.expected, strict=False))


def _count_passed(code: str, tests: StdioTests, runner: Runner, timeout: float, workers: int, every: bool) -> int:
    def passes(index: int) -> bool:
        result = runner.run(code, stdin=tests.inputs[index], timeout=timeout)
        ended_well = result.exit_code == 0 and not result.timed_out and not result.truncated
        return ended_well and _same_output(result.stdout, tests.outputs[index])

    with ThreadPoolExecutor(min(workers, len(tests.inputs))) as pool:
        passed = 0
        for verdict in pool.map(passes, range(len(tests.inputs))):
            passed += verdict
            if not verdict and not every:
                pool.shutdown(wait=False, cancel_futures=True)
                break
        return passed


def _same_output(got: str, wanted: str) -> bool:
    if got.strip() == wanted.strip():
        return True
    return [line.rstrip() for line in got.strip().splitlines()] == [
        line.rstrip() for line in wanted.strip().splitlines()
    ]


def _harness(
    code: str,
    runner: Runner,
    timeout: float,
    asserts: Sequence[str] = (),
    function: str | None = None,
    arguments: Sequence[Any] = (),
) -> list[Any]:
    """The verdicts that were reached: fewer than tests if the program ended or hung before."""
    mark = os.urandom(16).hex()
    job = {"mark": mark, "code": code, "asserts": asserts, "function": function, "arguments": arguments}
    result = runner.run(_HARNESS, stdin=json.dumps(job) + "\n", timeout=timeout)
    lines = result.stdout.split("\n")[:-1]  # what stands after the last line's end was cut off
    return [_verdict(line[len(mark) :]) for line in lines if line.startswith(mark)]


def _verdict(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _Unreadable


def _same(got: Any, wanted: Any) -> bool:
    """Equal, where numbers may differ in their last digits; TACO wraps some expected values in a list."""
    return _equal(got, wanted) or (isinstance(wanted, list) and len(wanted) == 1 and _equal(got, wanted[0]))


def _equal(got: Any, wanted: Any) -> bool:
    if isinstance(got, bool) or isinstance(wanted, bool):
        return got is wanted
    if isinstance(got, float) or isinstance(wanted, float):
        return got == wanted or _is_close(got, wanted)
    if isinstance(got, list) and isinstance(wanted, list):
        return len(got) == len(wanted) and all(map(_equal, got, wanted))
    if isinstance(got, dict) and isinstance(wanted, dict):
        return got.keys() == wanted.keys() and all(_equal(got[key], wanted[key]) for key in wanted)
    return bool(got == wanted)


def _is_close(a: Any, b: Any) -> bool:
    try:
        return math.isclose(a, b, rel_tol=1e-9)
    except (TypeError, OverflowError):
        return False
