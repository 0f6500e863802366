"""Tests of programs: formats of data sets, and the execution of programs against them."""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import itertools
import json
import marshal
import pickle
import re
import sys
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.envs.code.asserts import Plan, Wanted, plan, with_call_of_check, with_calls_of_tests
from rollenv.envs.code.judge_process import Raised, decode
from rollenv.envs.data.rows import read_json
from rollenv.sandbox.types import Runner


@dataclass(frozen=True, slots=True)
class StdioTests:
    """Pairs of standard input and expected standard output."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AssertTests:
    """Assert statements. They never run in the program's process."""

    asserts: tuple[str, ...]
    setup: str = ""
    context: str = ""
    """Code of the data set that the statements may use (HumanEval's prompt)."""
    entry_point: str = ""
    """The function under test, if the data set names it."""


@dataclass(frozen=True, slots=True)
class CallTests:
    """A function with arguments and expected results. These never enter the program's process."""

    function: str
    arguments: tuple[Sequence[Any], ...]
    expected: tuple[Any, ...]


Tests = StdioTests | AssertTests | CallTests


def _program(name: str) -> str:
    """Return a file of this folder as a program, precompiled for sandboxes with the same interpreter."""
    path = Path(__file__).with_name(name)
    source = path.read_text(encoding="utf-8") + "\nmain()\n"
    code = marshal.dumps(compile(source, name, "exec"))
    return f"import marshal, sys\nexec(marshal.loads({code!r}) if sys.version == {sys.version!r} else {source!r})\n"


_CANDIDATE, _JUDGE = _program("candidate_process.py"), _program("judge_process.py")
#: Relative tolerance of numbers that are not whole.
_DIGITS = Fraction(1, 10**9)
#: Maximum number of rounds of a judge; each round answers all predictable calls.
_ROUNDS = 40


def parse_tests(
    raw: Any,
    entry_point: str | None = None,
    setup: str = "",
    max_tests: int | None = 12,
    context: str = "",
    metadata: Any = None,
) -> Tests:
    """Parse the tests of a row.

    Args:
        raw: a dict of ``inputs`` and ``outputs`` (TACO, APPS, CodeContests), a list of dicts of ``input`` and
            ``output`` (PrimeIntellect, LiveCodeBench), either as JSON text, a list of assert statements (MBPP), or code
            with asserts (MBPP+), often in ``check(candidate)`` (HumanEval and HumanEval+, which name the entry point)
            or in functions ``test_*`` (KodCode). Inputs are arguments of a function, if a test, the metadata or the
            entry point names it and the test's ``testtype`` or ``type`` is not another; for LiveCodeBench's
            ``functional``, with an argument on each line.
        max_tests: maximum number; those with the longest inputs are kept. None keeps all; asserts are always kept.
        metadata: a dict that may have ``func_name``, or its JSON text (LiveCodeBench).

    Raises:
        UsageError: these tests cannot be read, or every program would pass them.
    """
    common = setup, context, entry_point or ""
    data = _read_text(raw) if isinstance(raw, str) else raw
    data = with_calls_of_tests(data) if isinstance(data, str) else data
    if isinstance(data, str) and (code := with_call_of_check(data, entry_point or "")):
        return AssertTests((code,), *common)
    if isinstance(data, Mapping) and data.get("inputs") and len(data["inputs"]) == len(data.get("outputs", ())):
        return _pick(data["inputs"], data["outputs"], _function_name(data, metadata) or entry_point, False, max_tests)
    if isinstance(data, list | tuple) and data:
        if all(isinstance(one, str) for one in data):
            return AssertTests(tuple(data), *common)
        if all(isinstance(one, Mapping) and {"input", "output"} <= one.keys() for one in data):
            name = _function_name(data[0], data[0].get("metadata"), metadata) or entry_point
            kinds = {one.get("testtype", one.get("type")) for one in data}
            if kinds & _FUNCTIONAL and not (name and kinds <= _FUNCTIONAL):
                raise UsageError("tests of a function need its name (fn_name or func_name), and no others beside them")
            if kinds - _FUNCTIONAL - {None}:
                name = None
            pairs = [one["input"] for one in data], [one["output"] for one in data]
            return _pick(*pairs, name, "functional" in kinds, max_tests)
    raise UsageError(f"these tests have an unknown format: {str(raw)[:200]}")


#: The types of LiveCodeBench's and PrimeIntellect's tests that are calls.
_FUNCTIONAL = {"functional", "function_call"}


def _read_text(text: str) -> Any:
    """Read JSON text, also in LiveCodeBench's packed form; other text is returned unchanged."""
    with contextlib.suppress(ValueError, RecursionError):
        return read_json(text)
    with contextlib.suppress(ValueError, RecursionError, EOFError, zlib.error, pickle.UnpicklingError):
        packed = io.BytesIO(zlib.decompress(base64.b64decode(text, validate=True)))
        return read_json(str(_OnlyText(packed).load()))
    return text


class _OnlyText(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is no text")


def _function_name(*sources: Any) -> str | None:
    """Return the name of the function in the first test or metadata that has one."""
    for source in map(_decode_text, sources):
        if isinstance(source, Mapping) and (name := source.get("fn_name") or source.get("func_name")):
            return str(name)
    return None


def _pick(
    inputs: Sequence[Any], outputs: Sequence[Any], function: str | None, lines: bool, max_tests: int | None
) -> Tests:
    order = range(len(inputs))
    if max_tests is not None and len(inputs) > max_tests:
        order = sorted(order, key=lambda i: _length(inputs[i]), reverse=True)[:max_tests]  # type: ignore[assignment]
    if not function:
        return StdioTests(tuple(_text(inputs[i]) for i in order), tuple(_text(outputs[i]) for i in order))
    arguments = tuple(_arguments(inputs[i], lines) for i in order)
    return CallTests(function, arguments, tuple(_decode_text(outputs[i]) for i in order))


def _arguments(given: Any, lines: bool) -> Sequence[Any]:
    """Return the arguments of a call: a list, or its JSON text; other text has an argument on each line."""
    value = _decode_text(given)
    if isinstance(given, str) and (lines or not isinstance(value, list)):
        return [_decode_text(line) for line in given.split("\n") if line.strip()]
    return value if isinstance(value, list | tuple) else [value]


def _length(value: Any) -> int:
    """Estimate the length of a value as text; see :func:`_text`."""
    try:
        return len(str(value))
    except ValueError:
        return len(pickle.dumps(value))


def _text(value: Any) -> str:
    """Return the text of a test, joining lines and converting integers of thousands of digits."""
    if isinstance(value, list | tuple):
        return "\n".join(map(_text, value))
    return str(Decimal(value) if type(value) is int else value)


def _decode_text(value: Any) -> Any:
    """Parse a value that some data sets store as JSON text; other text is returned unchanged."""
    try:
        return read_json(value) if isinstance(value, str) else value
    except ValueError:
        return value


def count(tests: Tests) -> int:
    """Return the maximum result of :func:`run_tests`."""
    if isinstance(tests, StdioTests):
        return len(tests.inputs)
    return len(tests.asserts) if isinstance(tests, AssertTests) else len(tests.arguments)


def run_tests(
    code: str,
    tests: Tests,
    runner: Runner,
    timeout: float,
    workers: int = 1,
    every: bool = True,
    judge: Runner | None = None,
) -> int:
    """Return the number of tests that a program passes. Its process gets only inputs; the output is compared outside.

    Args:
        timeout: seconds per test. Calls and asserts run one after another in one process; a test that takes longer or
            ends the process fails, and the others continue in a new process.
        judge: runs tests that are not calls with expected values, without the program; by default ``runner``, in
            separate processes.
    """
    if isinstance(tests, StdioTests):
        return _count_passed(code, tests, runner, timeout, workers, every)
    if isinstance(tests, CallTests):
        calls: list[Any] = [[{"function": tests.function, "arguments": _sent(given)}] for given in tests.arguments]
        answers = _answers(code, "", calls, runner, timeout, every, _usual_imports(code))
        return sum(_passes(text, wanted) for (text,), wanted in zip(answers, tests.expected, strict=True))
    planned = plan(tests.asserts, tests.setup, tests.context, tests.entry_point)
    plain = [one for one in planned.calls if one]
    calls = [[{"source": source} for source, _ in one] for one in plain]
    answers = _answers(code, planned.setup, calls, runner, timeout, every)
    simple = [
        all(_holds(text, wanted) for text, (_, wanted) in zip(texts, one, strict=True))
        for texts, one in zip(answers, plain, strict=True)
    ]
    others = [test for test, one in zip(tests.asserts, planned.calls, strict=True) if one is None]
    if not others or (not every and not all(simple)):
        return sum(simple)
    judging = (tests, planned, runner, judge or runner, timeout)
    judged = _run_judge(code, others, *judging)
    if judged is None and every and len(others) > 1:  # one of them may be the cause
        judged = [any(_run_judge(code, [one], *judging) or ()) for one in others]
    return sum(simple) + sum(judged or ())


# -- standard input and output ---------------------------------------------------------------------------------------

#: A number to compare by value. One with leading zeros, such as 007, is a word.
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)


def _count_passed(code: str, tests: StdioTests, runner: Runner, timeout: float, workers: int, every: bool) -> int:
    def passes(index: int) -> bool:
        result = runner.run(code, stdin=tests.inputs[index], timeout=timeout)
        ended_well = result.exit_code == 0 and not result.timed_out and not result.truncated
        return ended_well and same_output(result.stdout, tests.outputs[index])

    with ThreadPoolExecutor(min(workers, len(tests.inputs))) as pool:
        passed = 0
        for verdict in pool.map(passes, range(len(tests.inputs))):
            passed += verdict
            if not verdict and not every:
                pool.shutdown(wait=False, cancel_futures=True)
                break
        return passed


def same_output(got: str, wanted: str) -> bool:
    """Return whether a program's output matches the expected one.

    Trailing white space is ignored, and numbers are compared by value: ``2.50`` is ``2.5``, and a fraction may have
    more digits. In lines of numbers, the amount of white space is ignored; in others, indentation matters if it varies
    in the expected output, as in drawings. Additional empty lines are ignored if none are expected.
    """
    ours, theirs = _lines(got), _lines(wanted)
    if ours == theirs:
        return True
    indented = len({len(line) - len(line.lstrip()) for line in wanted.split("\n") if line.strip()}) > 1
    if len(ours) != len(theirs):
        ours = [line for line in ours if line]
    same = (_same_line(*pair, indented) for pair in zip(ours, theirs, strict=False))
    return len(ours) == len(theirs) and all(same)


def _lines(text: str) -> list[str]:
    """Split a text into lines, without white space at the ends of lines and of the text."""
    return [line.rstrip() for line in text.strip().split("\n")]


def _same_line(got: str, wanted: str, indented: bool) -> bool:
    if got == wanted:
        return True
    ours, theirs = got.split(), wanted.split()
    if len(ours) != len(theirs) or not all(map(_same_word, ours, theirs)):
        return False
    spaces = [re.findall(r"\s+", line if indented else line.strip()) for line in (got, wanted)]
    return spaces[0] == spaces[1] or all(map(_NUMBER.fullmatch, theirs))


def _same_word(got: str, wanted: str) -> bool:
    """Compare words, numbers by value.

    Fractions may differ after nine digits. Those with six decimals or more may have different numbers of decimals, if
    they agree in the last common decimal and in five digits.
    """
    if got == wanted or not (_NUMBER.fullmatch(got) and _NUMBER.fullmatch(wanted)):
        return got == wanted
    a, b = Decimal(got), Decimal(wanted)
    if a == b or not set(".eE") & set(wanted):
        return a == b
    size, off = abs(b), abs(a - b)
    decimals = -max(int(one.as_tuple().exponent) for one in (a, b))
    return off <= (size or 1) / 10**9 or (decimals >= 6 and off < min(Decimal(10) ** -decimals, size / 10**5))


# -- calls -----------------------------------------------------------------------------------------------------------


def _answers(
    code: str,
    setup: str,
    tests: Sequence[Sequence[Any]],
    runner: Runner,
    seconds: float,
    every: bool = True,
    imports: Mapping[str, Any] | None = None,
) -> list[list[str | None]]:
    """Return the program's answers to the calls of each test, as unchecked JSON text; None without a unique answer.

    A test that takes longer than ``seconds`` or ends the process has no answer; later tests run in another process,
    unless ``every`` is False.
    """
    answers: list[list[str | None]] = []
    end = time.monotonic() + seconds * (len(tests) + 1)
    while len(answers) < len(tests) and (left := end - time.monotonic()) > 0:
        rest = tests[len(answers) :]
        job = {"code": code, "setup": setup, "tests": rest, "seconds": seconds, "imports": imports}
        result = runner.run(_CANDIDATE, stdin=json.dumps(job) + "\n", timeout=left)
        found: dict[str, str | None] = {}
        for line in result.stdout.split("\n")[:-1]:  # text after the last newline was cut off
            number, _, text = line.partition(" ")
            found[number] = None if number in found else text
        numbers = map(str, itertools.count())
        for calls in rest:
            own = list(itertools.islice(numbers, len(calls)))
            answers.append([found.get(number) for number in own])
            if not found.keys() >= set(own):
                break
        if "ready" not in found or not every:
            break
    return answers + [[None] * len(calls) for calls in tests[len(answers) :]]


#: Modules whose names LeetCode's and LiveCodeBench's starter code uses without an import.
_USUAL = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json", "typing",
)  # fmt: skip


@functools.cache
def _usual_names() -> dict[str, tuple[str, str | None]]:
    names: dict[str, tuple[str, str | None]] = {}
    for module in _USUAL:
        scope: dict[str, Any] = {}
        exec(f"from {module} import *", scope)
        names |= {name: (module, name) for name in scope if not name.startswith("__")}
    return names | {module: (module, None) for module in _USUAL}


def _usual_imports(code: str) -> dict[str, tuple[str, str | None]]:
    """Return the module and the attribute (None: the module itself) of each usual name in a program."""
    return {word: _usual_names()[word] for word in re.findall(r"\w+", code) if word in _usual_names()}


def _sent(arguments: Any) -> str:
    """Encode arguments as JSON text, or pickled if they have integers of thousands of digits."""
    try:
        return f"json {json.dumps(arguments)}"
    except ValueError:
        return f"pickle {pickle.dumps(arguments).hex()}"


def _value(text: str | None, wanted: Any) -> Any:
    """Decode an answer."""
    if text is None or len(text) > 4096 + 64 * _size(wanted):
        raise Raised("ValueError", "no answer")
    try:
        return decode(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise Raised("ValueError", "unreadable") from error


def _size(value: Any) -> int:
    """Estimate the length of a value as text."""
    if isinstance(value, int):
        return value.bit_length()
    if isinstance(value, Mapping):
        return sum(_size(key) + _size(inner) for key, inner in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return sum(map(_size, value)) + 2
    return len(repr(value))


def _holds(text: str | None, wanted: Wanted) -> bool:
    try:
        return wanted.holds(_value(text, wanted.value))
    except (Raised, ArithmeticError, TypeError, ValueError):
        return False


def _passes(text: str | None, wanted: Any) -> bool:
    """Return whether an answer matches the expected value of a JSON test; TACO wraps some of these in a list."""
    try:
        got = _value(text, wanted)
        return _equal(got, wanted) or (isinstance(wanted, list) and len(wanted) == 1 and _equal(got, wanted[0]))
    except (Raised, ArithmeticError, TypeError, ValueError):
        return False


def _equal(got: Any, wanted: Any) -> bool:
    """Compare as JSON data: tuples are lists, keys are texts, and numbers have a tolerance."""
    if isinstance(got, bool) or isinstance(wanted, bool):
        return got is wanted
    if isinstance(wanted, int | float):
        return isinstance(got, int | float | Fraction | Decimal) and _is_close(got, wanted)
    if isinstance(wanted, list):
        if isinstance(got, set | frozenset):
            return len(got) == len(wanted) and _members(got) == _members(wanted)
        return isinstance(got, list | tuple) and len(got) == len(wanted) and all(map(_equal, got, wanted))
    if isinstance(wanted, Mapping):
        ours, theirs = _with_text_keys(wanted), _with_text_keys(got) if isinstance(got, dict) else {}
        return ours.keys() == theirs.keys() and all(_equal(theirs[key], ours[key]) for key in ours)
    return bool(type(got) is type(wanted) and got == wanted)


def _with_text_keys(value: Mapping[Any, Any]) -> dict[str, Any]:
    """Copy a mapping with its keys converted to text, as in JSON."""
    return {key if isinstance(key, str) else json.dumps(key, default=repr): inner for key, inner in value.items()}


def _members(values: Iterable[Any]) -> set[tuple[bool, Any]] | None:
    """Convert texts and numbers to members of a set in which True is not 1; None for other values."""
    values = list(values)
    plain = all(isinstance(one, str | int | float) for one in values)
    return {(isinstance(one, bool), one) for one in values} if plain else None


def _is_close(got: Any, wanted: float) -> bool:
    """Return whether numbers are equal; within a tolerance if one is not whole."""
    if got == wanted or (isinstance(got, int) and isinstance(wanted, int)):
        return bool(got == wanted)
    try:
        absolute, size = abs(Fraction(got) - Fraction(wanted)), abs(Fraction(wanted))
        return absolute <= _DIGITS * (size if isinstance(wanted, float) else min(size, 1))
    except (OverflowError, ValueError):
        return False


# -- a judge ---------------------------------------------------------------------------------------------------------


def _run_judge(
    code: str, asserts: Sequence[str], tests: AssertTests, planned: Plan, runner: Runner, judge: Runner, timeout: float
) -> list[bool] | None:
    """Return the verdicts of tests that a judge runs without the program; None if an answer is missing in the end.

    Each round runs the tests from the start with all answers so far, until no answer is missing. The program repeats
    all calls in each round, because they may depend on each other.
    """
    known: list[tuple[str, str]] = []
    end = time.monotonic() + 4 * timeout
    seed = zlib.crc32(code.encode("utf-8", "surrogatepass"))  # deterministic, but hard to predict in the program
    for _ in range(_ROUNDS):
        job = {
            "tests": asserts,
            "setup": [tests.context, tests.setup],
            "functions": planned.functions,
            "modules": planned.modules,
            "seed": seed,
            "known": known,
        }
        result = judge.run(_JUDGE, stdin=json.dumps(job) + "\n", timeout=timeout)
        try:
            report = json.loads(result.stdout)
        except ValueError:  # it ran out of time or memory
            break
        if report["unknown"] is None:
            return list(report["verdicts"])
        calls = [{"pickle": call, "keep": keep} for call, keep in report["calls"]]
        (answers,) = _answers(code, planned.setup, [calls], runner, timeout)
        texts = itertools.takewhile(lambda text: text is not None, answers)
        known = [(call, str(text)) for (call, _), text in zip(report["calls"], texts, strict=False)]
        if len(known) <= report["unknown"] or time.monotonic() > end:
            break
    return None
