"""One-line functions: programming tasks for small models."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence

from rollenv.core.errors import UsageError
from rollenv.core.tools.sandboxed import chosen
from rollenv.envs import calculator
from rollenv.envs.code.tests import CallTests, run_tests
from rollenv.envs.data.procedural import ProceduralEnv, span
from rollenv.envs.data.task import RowVerdict
from rollenv.sandbox import Runner, shared_pool

#: Results of functions, in words and in Python, easy ones first; A and B are replaced by numbers.
TEMPLATES = (
    ("x plus A", "x + A"),
    ("x minus A", "x - A"),
    ("A minus x", "A - x"),
    ("A times x", "A * x"),
    ("x plus y", "x + y"),
    ("x minus y", "x - y"),
    ("x times y", "x * y"),
    ("A times x, plus B", "A * x + B"),
    ("A times x, minus y", "A * x - y"),
    ("A times the sum of x and y", "A * (x + y)"),
    ("x times y, plus A", "x * y + A"),
    ("the square of x, plus A", "x * x + A"),
    ("x divided by A, rounded down", "x // A"),
    ("the remainder of x divided by A", "x % A"),
    ("the remainder of x plus y divided by A", "(x + y) % A"),
    ("whether x is greater than A", "x > A"),
    ("whether x is divisible by A", "x % A == 0"),
    ("whether x plus y is less than A", "x + y < A"),
)

_SHOWN = 2


class OneLine(ProceduralEnv):
    """Write the line that a function returns; reward 1 if it passes all tests, and -0.1 for what is not a program.

    Args:
        constants: the numbers in it, or (lowest, highest).
        arguments: range of the arguments in tests, (lowest, highest).
        tests: number of tests; the first two are shown.
        templates: number of :data:`TEMPLATES` to draw from; None for all.
        sandbox: ``ast`` evaluates an expression of numbers, arguments, ``+ - * // %`` and comparisons without running
            code; ``local`` and ``docker`` run any function in this process's shared pool of such sandboxes; or a
            :class:`~rollenv.sandbox.types.Runner`.
        image: image of the containers; see :func:`~rollenv.sandbox.backends.chosen`.
        partial: make the reward the share of tests that pass.
        max_turns: with more than one, the agent sees a failed test after a wrong answer and may try again.

    An answer may be the expression, the line with ``return``, or the whole function.
    """

    state_names = ("template", "numbers", "calls", "hint")

    def __init__(
        self,
        constants: int | Sequence[int] = (2, 9),
        arguments: Sequence[int] = (-20, 20),
        tests: int = 8,
        templates: int | None = None,
        *,
        sandbox: str | Runner = "ast",
        image: str | None = None,
        partial: bool = False,
        max_turns: int = 1,
        split: str = "all",
        action_format: str = "code",
        format_reward: float = -0.1,
    ):
        super().__init__(split=split, action_format=action_format, max_turns=max_turns, format_reward=format_reward)
        self._chosen = chosen(sandbox if isinstance(sandbox, str) and sandbox != "ast" else "local", image)
        self.templates = len(TEMPLATES) if templates is None else templates
        if not 1 <= self.templates <= len(TEMPLATES):
            raise UsageError(f"templates are 1 to {len(TEMPLATES)}, got {templates}")
        if not _SHOWN < tests <= 100:
            raise UsageError(f"tests are {_SHOWN + 1} to 100, got {tests}")
        self.constants = span("constants", constants, 1)
        self.arguments = span("arguments", arguments, -1000)
        self.count, self.partial = tests, partial
        self.sandbox = sandbox
        self.template, self.hint = 0, ""
        self.numbers: tuple[int, int] = (0, 0)
        self.calls: tuple[tuple[int, ...], ...] = ()

    def _draw(self) -> str:
        self.template, self.hint = self.randint(self.templates), ""
        self.numbers = self._between(self.constants), self._between(self.constants)
        arity = len(self.parameters)
        self.calls = tuple(tuple(self._between(self.arguments) for _ in range(arity)) for _ in range(self.count))
        return self._filled(0)

    def _filled(self, side: int) -> str:
        a, b = self.numbers
        return TEMPLATES[self.template][side].replace("A", str(a)).replace("B", str(b))

    @property
    def parameters(self) -> tuple[str, ...]:
        """The function's parameters."""
        return ("x", "y") if "y" in TEMPLATES[self.template][1] else ("x",)

    def _expected(self) -> list[calculator.Number]:
        tree = calculator.parse(self._filled(1))
        return [calculator.evaluate_tree(tree, dict(zip(self.parameters, call, strict=True))) for call in self.calls]

    def _question(self) -> str:
        head = f"def f({', '.join(self.parameters)}):"
        form = "an expression such as 2 * x + 1" if self.action_format == "bare" else head + " return ..."
        shown = "\n".join(f"{_call(c)} == {r}" for c, r in zip(self.calls, self._expected()[:_SHOWN], strict=False))
        return (
            f"Write a function of one line that returns {self._filled(0)}.\n{shown}\n"
            f"Answer in the form\n{self.format_answer(form)}"
        )

    def _brief(self) -> str:
        return f"f({', '.join(self.parameters)}) is {self._filled(0)}{self.hint}"

    def _judge(self, action: str) -> RowVerdict:
        text = self._extract(action)
        if text is None:
            return RowVerdict(0.0, "There is no program in the required form.", valid=False)
        passed = self._judge_by_tree(text) if self.sandbox == "ast" else self._judge_by_runner(text)
        if isinstance(passed, str):
            return RowVerdict(0.0, f"This is not such a program: {passed}.", valid=False)
        if passed == self.count:
            return RowVerdict(1.0, "All tests pass.")
        feedback = "Not all tests pass" + (f":{self.hint}." if self.hint else ".")
        return RowVerdict(passed / self.count if self.partial else 0.0, feedback)

    def _judge_by_runner(self, text: str) -> int | str:
        if len(text) > calculator.MAX_CHARACTERS:
            return "it is too long"
        if not text.lstrip().startswith(("def ", "import ", "from ")):
            text = f"def f({', '.join(self.parameters)}):\n    return {text.strip().removeprefix('return ')}"
        runner = shared_pool(**self._chosen) if isinstance(self.sandbox, str) else self.sandbox
        tests = CallTests("f", self.calls, tuple(self._expected()))
        return run_tests(text, tests, runner, timeout=5.0, every=self.partial)

    def _judge_by_tree(self, text: str) -> int | str:
        """Return the number of passed tests, or the program's error. Sets the hint to a failed test."""
        try:
            tree, names = read_function(text, self.parameters)
        except ValueError as error:
            return str(error)
        passed, hint = 0, ""
        for call, expected in zip(self.calls, self._expected(), strict=True):
            got = _value(tree, dict(zip(names, call, strict=True)))
            passed += got == expected
            if got != expected and not hint:
                hint = f" {_call(call)} is {expected}, not {got}"
        self.hint = hint
        return passed

    def sample_random_action(self) -> str:
        _, expression = self.action_rng.choice(TEMPLATES[: self.templates])
        number = str(self.action_rng.randint(*self.constants))
        return self._answer(expression.replace("y", "x").replace("A", number).replace("B", number))

    def oracle_action(self) -> str:
        return self._answer(self._filled(1))

    def _answer(self, expression: str) -> str:
        if self.action_format == "bare":
            return expression
        return self.format_answer(f"def f({', '.join(self.parameters)}): return {expression}")


def _call(arguments: Sequence[int]) -> str:
    return f"f({', '.join(map(str, arguments))})"


def _value(tree: ast.expr, names: dict[str, int]) -> calculator.Number | str:
    try:
        return calculator.evaluate_tree(tree, names)
    except ValueError as error:
        return f"an error ({error})"


@functools.lru_cache(maxsize=4096)
def read_function(text: str, parameters: tuple[str, ...]) -> tuple[ast.expr, tuple[str, ...]]:
    """Parse a one-line program: an expression, or a function that returns one.

    Args:
        parameters: names that the expression may use; a function has as many parameters.

    Raises:
        ValueError: it is not such a program; the message is for the agent.
    """
    text = text.strip()
    if len(text) > calculator.MAX_CHARACTERS:
        raise ValueError("it is too long")
    if not text.startswith("def "):
        return calculator.parse(text.removeprefix("return ")), parameters
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError("it is not Python") from None
    match body:
        case [ast.FunctionDef(body=[*docstring, ast.Return(value=ast.expr() as value)]) as function]:
            names = tuple(argument.arg for argument in function.args.args)
            if len(names) != len(parameters):
                raise ValueError(f"the function takes {len(parameters)} arguments")
            if all(isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) for one in docstring):
                return value, names
    raise ValueError("it is not one function with one line that returns something")
