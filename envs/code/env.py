"""Programming tasks graded by tests: contests, HumanEval, MBPP."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from rollenv.core.errors import NoSuchAbility, Unsolvable, UsageError
from rollenv.core.parsing import last_code_block
from rollenv.core.tools.sandboxed import chosen
from rollenv.envs.code.asserts import parse_code, plan
from rollenv.envs.code.tests import AssertTests, StdioTests, Tests, count, parse_tests, run_tests
from rollenv.envs.data.rows import Row
from rollenv.envs.data.task import RowEnv, RowVerdict, listed
from rollenv.sandbox import Runner, RunResult, shared_pool
from rollenv.sandbox.pool import AdaptiveTimeout

#: Maximum length of a program.
MAX_CHARACTERS = 200_000
#: Wrapper that lets a program parse and print integers of any length.
_WITH_LONG_INTEGERS = (
    "__import__('sys').set_int_max_str_digits(0); exec(compile({!r}, '<code>', 'exec', dont_inherit=True))"
)


class _Timed:
    """A runner that records the duration of its longest run."""

    def __init__(self, runner: Runner):
        self.runner, self.longest = runner, 0.0

    def run(self, code: str, *, stdin: str = "", timeout: float | None = None) -> RunResult:
        result = self.runner.run(code, stdin=stdin, timeout=timeout)
        self.longest = max(self.longest, result.seconds)
        return result

    def close(self) -> None:
        """Do nothing: the inner runner is owned by others."""


class SharedRunner:
    """One of this process's pools, started on first use. Programs of agents never run in that for ``judges``.

    Args:
        settings: arguments of :func:`~rollenv.sandbox.shared_pool`.
    """

    def __init__(self, **settings: Any):
        self.settings = settings

    def run(self, code: str, *, stdin: str = "", timeout: float | None = None) -> RunResult:
        return shared_pool(**self.settings).run(code, stdin=stdin, timeout=timeout)

    def close(self) -> None:
        """Do nothing: the pool ends with the process."""


def judges(**settings: Any) -> SharedRunner:
    """Return the runner of judges; ``settings``: see :func:`~rollenv.sandbox.backends.chosen`."""
    return SharedRunner(purpose="judges", size=1, **settings)


#: The rule for ``timeout="adaptive"``, shared by all environments of this process.
_ADAPTIVE = AdaptiveTimeout()


class CodeEnv(RowEnv):
    """One task, one program in a fenced code block; reward 1 if it passes all tests, else 0, and -0.1 without a block.

    Programs run in this process's shared pool of isolated sandboxes, or in a given
    :class:`~rollenv.sandbox.types.Runner`.

    A program's process receives only inputs and arguments. Its output is compared outside, as plain data of built-in
    types, and tests that are not calls with expected values run in a second sandbox without the program. So a program
    has nothing to read or patch that would help it.

    Args:
        test_key: column of the tests; for their formats, see :func:`~rollenv.envs.code.tests.parse_tests`.
        max_workers: number of tests of one program that run at a time (those with standard input).
        max_tests: maximum number of tests; those with the longest inputs are run.
        sandbox: ``local`` or ``docker``, for this process's shared pool of such sandboxes, or a runner, which the
            caller closes.
        image: image of the containers; see :func:`~rollenv.sandbox.backends.chosen`.
        sandbox_type: GEM's name for ``sandbox``; its ``none`` and ``bwrap`` mean the default.
        partial: make the reward the share of tests that pass.
        solution_key: column of a correct program, for :meth:`oracle_action`.
        timeout: seconds per test; ``adaptive`` for 1.5 times the time of the task's slowest correct program, 2 to 30
            seconds, learned across all environments of this process; or an :class:`AdaptiveTimeout`.
        shown_tests: number of asserts in the question, so that the function's name is known. All asserts are run, so
            memorising the shown ones is not enough.
        judge: runs tests that are not calls with expected values; by default a separate pool, or the runner that was
            passed as ``sandbox``.
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
        sandbox: str | Runner | None = None,
        image: str | None = None,
        partial: bool = False,
        solution_key: str | None = None,
        timeout: float | Literal["adaptive"] | AdaptiveTimeout = 10.0,
        shown_tests: int = 1,
        judge: Runner | None = None,
    ):
        sandbox = sandbox_type or sandbox
        where = chosen(sandbox if isinstance(sandbox, str | None) else "local", image)
        if isinstance(timeout, str):
            if timeout != "adaptive":
                raise UsageError(f"timeout is a number of seconds or 'adaptive', not {timeout!r}")
            timeout = _ADAPTIVE
        fixed = None if isinstance(timeout, AdaptiveTimeout) else timeout
        if max_workers < 1 or (fixed is not None and fixed <= 0) or (max_tests is not None and max_tests < 1):
            raise UsageError("max_workers and max_tests are at least 1 and timeout is above 0")
        super().__init__(dataset_name, split, dataset, question_key, test_key, seed, format_reward=-0.1)
        self._runner = SharedRunner(**where) if isinstance(sandbox, str | None) else sandbox
        self._judge_runner = judge or (judges(**where) if isinstance(sandbox, str | None) else sandbox)
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
        empty = not cell or (isinstance(cell, str) and not cell.strip())
        return "is empty" if empty else ""

    def _parse(self, tests: Any) -> Tests:
        row = self.row
        setup = "\n".join([*listed(row.get("test_imports") or ()), row.get("test_setup_code") or ""]).strip()
        entry_point = row.get("entry_point")
        context = str(row[self.question_key]) if entry_point else ""
        return parse_tests(tests, entry_point, setup, self.max_tests, context, row.get("metadata"))

    def _question(self) -> str:
        question, tests = str(self.row[self.question_key]).strip(), self._tests()
        block = "Answer with one ```python code block"
        if isinstance(tests, StdioTests):
            return f"{question}\n\n{block}: a program that reads standard input and writes standard output."
        if self.row.get("entry_point"):
            return f"Complete this function.\n\n```python\n{question}\n```\n\n{block} that holds the whole function."
        if isinstance(tests, AssertTests) and tests.asserts == (self.row[self.gold_key],):  # code, which would show all
            names = ", ".join(plan(tests.asserts, tests.setup, tests.context).functions)
            return f"{question}\n\n{block} that defines {names}."
        if isinstance(tests, AssertTests):
            shown = "\n".join(tests.asserts[: self.shown_tests])
            return f"{question}\nThe program has to pass tests such as these:\n{shown}\n\n{block}."
        return f"{question}\n\n{block} that defines {tests.function}."

    def _judge(self, action: str) -> RowVerdict:
        code = last_code_block(action)
        if code is None:
            return RowVerdict(0.0, "There is no ```python code block.", valid=False)
        tests = self._tests()
        total = count(tests)
        passed = 0
        if len(code) <= MAX_CHARACTERS:
            passed = self._run(self._program(code), tests, total)
        score = passed / total if self.partial else float(passed == total)
        return RowVerdict(score, "All tests pass." if passed == total else "Not all tests pass.")

    def _run(self, program: str, tests: Tests, total: int) -> int:
        """Return the number of passed tests; the adaptive timeout learns from programs that pass all."""
        runner, case, rule = _Timed(self._runner), (*self._set, self.idx), self.timeout
        seconds = rule.timeout(case) if isinstance(rule, AdaptiveTimeout) else rule
        if isinstance(tests, StdioTests):
            program = _WITH_LONG_INTEGERS.format(program)
        passed = run_tests(program, tests, runner, seconds, self.max_workers, self.partial, self._judge_runner)
        if isinstance(rule, AdaptiveTimeout):
            rule.record(case, runner.longest, passed == total)
        return passed

    def _program(self, code: str) -> str:
        """Return the program, after the imports and helpers of a prompt that it completes (HumanEval)."""
        if not self.row.get("entry_point"):
            return code
        prompt = str(self.row[self.question_key])
        start = self._definition(prompt)
        if start is not None and self._definition(code) is None:  # the body
            return prompt + code
        helpers = prompt[:start]
        return _with_futures_first(f"{helpers}\n{code}") if parse_code(helpers).body else code

    def _definition(self, code: str) -> int | None:
        """Return the start of the definition of the wanted function."""
        found = re.search(
            rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{re.escape(self.row['entry_point'])}\b", code, re.MULTILINE
        )
        return found.start() if found else None

    def sample_random_action(self) -> str:
        return f"```python\nprint({self.action_rng.randrange(10)})\n```"

    def oracle_action(self) -> str:
        """Return the data set's solution."""
        if not self.solution_key:
            raise NoSuchAbility(f"{self} has no oracle: its data set has no solutions; pass solution_key=")
        if not self.row.get(self.solution_key):
            raise Unsolvable(f"{self}: row {self.idx} has no solution in its column {self.solution_key!r}")
        solution: Any = self.row[self.solution_key]
        if self.row.get("entry_point") and self._definition(solution) is None:
            solution = str(self.row[self.question_key]) + solution
        return f"```python\n{solution}\n```"


def _with_futures_first(program: str) -> str:
    """Move imports from ``__future__``, which must come first, before the prompt's part of a program."""
    found = [s for s in parse_code(program).body if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
    for text in [ast.get_source_segment(program, statement) or "" for statement in found]:
        program = program.replace(text, "pass", 1)
    names = ", ".join(dict.fromkeys(alias.name for statement in found for alias in statement.names))
    return f"from __future__ import {names}\n{program}" if found else program
