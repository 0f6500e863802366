"""Programming tasks graded by tests: contests, HumanEval, MBPP."""

from __future__ import annotations

import atexit
import functools
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from rollenv.core import UsageError
from rollenv.envs.code.tests import AssertTests, StdioTests, Tests, count, parse_tests, run_tests
from rollenv.envs.data.rows import Row
from rollenv.envs.data.task import RowEnv, Verdict
from rollenv.parsing import last_code_block
from rollenv.sandbox import Pool, Runner, RunResult, shared_pool
from rollenv.sandbox.pool import AdaptiveTimeout

#: No longer program is run.
MAX_CHARACTERS = 200_000
#: A program that may read and print integers of any length.
_WITH_LONG_INTEGERS = (
    "__import__('sys').set_int_max_str_digits(0); exec(compile({!r}, '<code>', 'exec', dont_inherit=True))"
)


class _Timed:
    """A runner that remembers how long its longest run took."""

    def __init__(self, runner: Runner):
        self.runner, self.longest = runner, 0.0

    def run(self, code: str, *, stdin: str = "", timeout: float | None = None) -> RunResult:
        result = self.runner.run(code, stdin=stdin, timeout=timeout)
        self.longest = max(self.longest, result.seconds)
        return result

    def close(self) -> None:
        """The runner is another's to close."""


class Judges:
    """This process's pool for judges, started when first needed. No program of an agent ever runs in it."""

    def run(self, code: str, *, stdin: str = "", timeout: float | None = None) -> RunResult:
        return _judge_pool(os.getpid()).run(code, stdin=stdin, timeout=timeout)

    def close(self) -> None:
        """The pool ends with the process."""


@functools.cache
def _judge_pool(process: int) -> Pool:
    pool = Pool(1)
    atexit.register(pool.close)
    return pool


#: The rule of ``timeout="adaptive"``, shared by all environments of this process.
_ADAPTIVE = AdaptiveTimeout()


class CodeEnv(RowEnv):
    """One task, one program in a fenced code block; reward 1 if it passes all tests, else 0, and -0.1 without a block.

    Programs run in this process's shared pool of isolated sandboxes, or in a :class:`~rollenv.sandbox.types.Runner` of
    yours.

    A program's process gets only inputs and arguments. Its output is compared outside, as plain data of
    built-in types, and tests that are more than calls and values run in a second sandbox without the program. So there
    is nothing in its process to read or to patch that would help it.

    Args:
        dataset_name, split, dataset, question_key, seed: arguments of :class:`~rollenv.envs.data.task.RowEnv`.
        test_key: the column with the tests; :func:`~rollenv.envs.code.tests.parse_tests` names the forms.
        max_workers: tests of one program that run at a time (those that read standard input).
        max_tests: run those with the longest inputs.
        sandbox: ``local`` (the shared pool) or what runs the programs; the caller closes what it passes.
        sandbox_type: GEM's name for it; its ``none`` and ``bwrap`` mean the shared pool too.
        partial: pay the share of tests that pass.
        solution_key: the column with a program that passes, for :meth:`oracle_action`.
        timeout: seconds for one test; ``adaptive`` for 1.5 times what the slowest right program of the task took, 2
            to 30 seconds, learned by all environments of this process; or a rule of yours.
        shown_tests: how many asserts the question shows, so that the function's name is known. All of them are held
            against a program, so a program that memorised the shown ones gets no reward.
        judge: runs tests that are more than calls and values; by default a separate pool beside the shared one, or
            the ``sandbox`` that you pass.
    """

    cuts_thoughts = False

    def __init__(
        self,
        dataset_name: str | None = "",
        split: str | None = None,
        dataset: Iterable[Row] | None = None,
        question_key: str = "problem",
        test_key: str = "tests",
        seed: int | None = None,
        max_workers: int = 5,
        max_tests: int | None = 12,
        sandbox_type: str | None = None,
        *,
        sandbox: str | Runner = "local",
        partial: bool = False,
        solution_key: str | None = None,
        timeout: float | Literal["adaptive"] | AdaptiveTimeout = 10.0,
        shown_tests: int = 1,
        judge: Runner | None = None,
    ):
        sandbox = sandbox_type or sandbox
        if isinstance(sandbox, str) and sandbox not in ("local", "none", "bwrap"):
            raise UsageError(f"sandbox {sandbox!r} is unknown; use 'local' or pass a Runner")
        if isinstance(timeout, str):
            if timeout != "adaptive":
                raise UsageError(f"timeout is a number of seconds or 'adaptive', not {timeout!r}")
            timeout = _ADAPTIVE
        fixed = None if isinstance(timeout, AdaptiveTimeout) else timeout
        if max_workers < 1 or (fixed is not None and fixed <= 0) or (max_tests is not None and max_tests < 1):
            raise UsageError("max_workers and max_tests are at least 1 and timeout is above 0")
        super().__init__(dataset_name, split, dataset, question_key, test_key, seed, format_reward=-0.1)
        self._runner = None if isinstance(sandbox, str) else sandbox
        self._judge_runner = judge
        self.max_workers, self.max_tests, self.timeout = max_workers, max_tests, timeout
        self.partial, self.solution_key, self.shown_tests = partial, solution_key, shown_tests
        self._set = (dataset_name, split)
        self._parsed: tuple[int, Tests] | None = None

    @property
    def tests(self) -> Tests:
        """The tests of the current task."""
        return self._tests()

    def _tests(self) -> Tests:
        if self._parsed is None or self._parsed[0] != self.idx:
            self._parsed = self.idx, self._parse(self.row[self.gold_key])
        return self._parsed[1]

    def _no_gold(self, cell: Any) -> str:
        if not isinstance(cell, str | list | tuple | Mapping):
            return f"holds {'NaN' if cell != cell else type(cell).__name__}, not tests"
        return "" if (cell.strip() if isinstance(cell, str) else cell) else "is empty"

    def _parse(self, tests: Any) -> Tests:
        row = self.row
        setup = "\n".join([*(row.get("test_imports") or ()), row.get("test_setup_code") or ""]).strip()
        entry_point = row.get("entry_point")
        context = str(row[self.question_key]) if entry_point else ""
        return parse_tests(tests, entry_point, setup, self.max_tests, context)

    def _question(self) -> str:
        question, tests = str(self.row[self.question_key]).strip(), self._tests()
        block = "Answer with one ```python code block"
        if isinstance(tests, StdioTests):
            return f"{question}\n\n{block}: a program that reads standard input and writes standard output."
        if self.row.get("entry_point"):
            return f"Complete this function.\n\n```python\n{question}\n```\n\n{block} that holds the whole function."
        if isinstance(tests, AssertTests):
            shown = "\n".join(tests.asserts[: self.shown_tests])
            return f"{question}\nThe program has to pass tests such as these:\n{shown}\n\n{block}."
        return f"{question}\n\n{block} that defines {tests.function}."

    def _judge(self, action: str) -> Verdict:
        code = last_code_block(action)
        if code is None:
            return Verdict(0.0, "There is no ```python code block.", valid=False)
        tests = self._tests()
        total = count(tests)
        passed = 0
        if len(code) <= MAX_CHARACTERS:
            passed = self._run(self._program(code), tests, total)
        score = passed / total if self.partial else float(passed == total)
        return Verdict(score, "All tests pass." if passed == total else "Not all tests pass.")

    def _run(self, program: str, tests: Tests, total: int) -> int:
        """Return the number of passed tests; the rule for timeouts learns from programs that pass all of them."""
        runner, case, rule = _Timed(self._runner or shared_pool()), (*self._set, self.idx), self.timeout
        seconds = rule.timeout(case) if isinstance(rule, AdaptiveTimeout) else rule
        judge = self._judge_runner or self._runner or Judges()
        if isinstance(tests, StdioTests):
            program = _WITH_LONG_INTEGERS.format(program)
        passed = run_tests(program, tests, runner, seconds, self.max_workers, self.partial, judge)
        if isinstance(rule, AdaptiveTimeout):
            rule.record(case, runner.longest, passed == total)
        return passed

    def _program(self, code: str) -> str:
        """The program, with the imports and helpers of a prompt that it completes (HumanEval)."""
        if not self.row.get("entry_point"):
            return code
        prompt = str(self.row[self.question_key])
        start = self._definition(prompt)
        return prompt + code if self._definition(code) is None or start is None else f"{prompt[:start]}\n{code}"

    def _definition(self, code: str) -> int | None:
        """Return the start of the definition of the function that is asked for."""
        found = re.search(rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{self.row['entry_point']}\b", code, re.MULTILINE)
        return found.start() if found else None

    def sample_random_action(self) -> str:
        return f"```python\nprint({self.action_rng.randrange(10)})\n```"

    def oracle_action(self) -> str:
        """The data set's own solution.

        Raises:
            UsageError: it has none.
        """
        if not self.solution_key or not self.row.get(self.solution_key):
            raise UsageError(f"{self}: the data set has no solutions; pass solution_key=")
        solution: Any = self.row[self.solution_key]
        if self.row.get("entry_point") and self._definition(solution) is None:
            solution = str(self.row[self.question_key]) + solution
        return f"```python\n{solution}\n```"
