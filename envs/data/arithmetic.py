"""Sums to work out: in one's head, or with a calculator to call."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from rollenv.core import EpisodeOver, ResetResult, StepResult, UsageError
from rollenv.envs.data.answer_env import Verdict
from rollenv.envs.data.procedural import ProceduralEnv, span
from rollenv.parsing import last_boxed, last_tagged
from rollenv.tools.calculator import MAX_CHARACTERS, evaluate

OPERATORS = "+-*"

_INTEGER = re.compile(r"[-+]?[0-9]{1,400}")


class Arithmetic(ProceduralEnv):
    """What is ``3 + 4 - 2``? Reward 1 for the right number.

    Args:
        terms: how many numbers, or (fewest, most).
        operands: the numbers, from lowest to highest.
        operators: those to draw from.
        max_turns: with more than one, a wrong answer is told to be too low or too high and may be tried again.
        split, action_format, format_reward: see :class:`~rollenv.envs.data.procedural.ProceduralEnv`.
    """

    state_names: tuple[str, ...] = ("task", "hint")

    def __init__(
        self,
        terms: int | Sequence[int] = (2, 3),
        operands: int | Sequence[int] = (0, 9),
        operators: str = "+-",
        *,
        max_turns: int = 1,
        split: str = "all",
        action_format: str = "boxed",
        format_reward: float = 0.0,
    ):
        super().__init__(split=split, action_format=action_format, max_turns=max_turns, format_reward=format_reward)
        self.terms, self.operands = span("terms", terms, 2), span("operands", operands, 0)
        if self.terms[1] > 50:
            raise UsageError(f"terms are at most 50, got {terms!r}")
        if not operators or set(operators) - set(OPERATORS):
            raise UsageError(f"operators are some of {OPERATORS!r}, got {operators!r}")
        self.operators = operators
        self.task = self.hint = ""

    def _draw(self) -> str:
        parts = [str(self._between(self.operands))]
        for _ in range(self._between(self.terms) - 1):
            parts += [self.operators[self.randint(len(self.operators))], str(self._between(self.operands))]
        self.task, self.hint = " ".join(parts), ""
        return self.task

    @property
    def gold(self) -> int:
        """The right answer."""
        return int(evaluate(self.task))

    def _question(self) -> str:
        example = self.format_answer(12)
        return f"What is {self.task}? Answer with the number alone, as in {example}"

    def _brief(self) -> str:
        return f"{self.task} ={self.hint}"

    def _judge(self, action: str) -> Verdict:
        text = (self._extract(action) or "").strip()
        if not _INTEGER.fullmatch(text):
            return Verdict(0.0, "This is not a whole number in the form that was asked for.", valid=False)
        answer = int(text)
        if answer == self.gold:
            return Verdict(1.0, "That is right.")
        self.hint = f" not {answer}, which is too {'low' if answer < self.gold else 'high'}"
        return Verdict(0.0, f"It is{self.hint}.")

    def sample_random_action(self) -> str:
        return self.format_answer(self.action_rng.randrange(100))

    def oracle_action(self) -> str:
        return self.format_answer(self.gold)


#: The calculator as a function-calling model is told about it.
CALCULATOR: dict[str, Any] = {
    "name": "calculator",
    "description": "Works out an expression of numbers, + - * / // % ** and parentheses.",
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    },
}


class CalculatorTask(Arithmetic):
    r"""The same with numbers too large for the head, and a calculator to call before the one answer in ``\boxed{}``.

    A call is ``<tool_call>{"name": "calculator", "arguments": {"expression": "12*34"}}</tool_call>``; the next
    observation holds the result in ``<tool_response>``, or says what was wrong with the call. ``info`` counts
    ``tool_use_counter`` and ``tool_success_counter``.

    Args:
        terms, operands, operators, split: see :class:`Arithmetic`.
        max_turns: calls and the answer together.
        format_reward: for an action that is neither, and for a call that is malformed.
    """

    state_names = ("task", "hint", "calls", "results")

    def __init__(
        self,
        terms: int | Sequence[int] = (2, 3),
        operands: int | Sequence[int] = (100, 99_999),
        operators: str = OPERATORS,
        *,
        max_turns: int = 4,
        split: str = "all",
        format_reward: float = -0.1,
    ):
        super().__init__(terms, operands, operators, max_turns=max_turns, split=split, format_reward=format_reward)
        self.calls = self.results = 0

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        self.calls = self.results = 0
        observation, info = super()._reset(options)
        return observation, info | self._counters() | {"tools": [CALCULATOR]}

    def _step(self, action: str) -> StepResult:
        observation, reward, terminated, truncated, info = super()._step(action)
        return observation, reward, terminated, truncated, info | self._counters()

    def _counters(self) -> dict[str, int]:
        return {"tool_use_counter": self.calls, "tool_success_counter": self.results}

    def _question(self) -> str:
        call = _tool_call("12 * 34")
        return (
            f"What is {self.task}? You may call a calculator, one call in a turn, as in {call}\n"
            f"Then give the number alone, as in \\boxed{{408}}. You have {self.max_turns} turns, the answer included."
        )

    def _judge(self, action: str) -> Verdict:
        call = last_tagged(action, "tool_call")
        if call is not None:
            return self._call(call)
        answer = last_boxed(action)
        if answer is None:
            return Verdict(0.0, "This is neither a <tool_call> nor an answer in \\boxed{}.", valid=False)
        right = bool(_INTEGER.fullmatch(answer)) and int(answer) == self.gold
        return Verdict(float(right), "That is right." if right else "That is wrong.", final=True)

    def _call(self, call: str) -> Verdict:
        self.calls += 1
        try:
            expression = _expression(call)
        except ValueError as error:
            return Verdict(0.0, f"The call was not understood: {error}.", valid=False)
        try:
            said = str(evaluate(expression))
            self.results += 1
        except ValueError as error:
            said = f"error: {error}"
        self.hint += f"\n{expression} = {said}"
        return Verdict(0.0, f"<tool_response>\n{said}\n</tool_response>")

    def render(self) -> str:
        return f"{super().render()}, {self.calls} calls, {self.results} results"

    def sample_random_action(self) -> str:
        number = self.action_rng.randrange(1000)
        return _tool_call(f"{number} + 1") if self.action_rng.random() < 0.5 else self.format_answer(number)

    def oracle_action(self) -> str:
        """A call of the calculator with the whole sum, then its result."""
        if self._over:
            raise EpisodeOver(f"{self}: the episode is over; there is no next action")
        return _tool_call(self.task) if self.turn == 0 and self.max_turns > 1 else self.format_answer(self.gold)


def _tool_call(expression: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'calculator', 'arguments': {'expression': expression}})}</tool_call>"


def _expression(call: str) -> str:
    """What a call asks to work out.

    Raises:
        ValueError: the call is malformed, in words for whoever wrote it.
    """
    if len(call) > 2 * MAX_CHARACTERS:
        raise ValueError("it is too long")
    try:
        parsed = json.loads(call)
    except (ValueError, RecursionError):
        raise ValueError('it is not JSON of the form {"name": ..., "arguments": {...}}') from None
    if not isinstance(parsed, dict) or parsed.get("name") != "calculator":
        raise ValueError('the only tool is "calculator", so "name" has to be that')
    arguments = parsed.get("arguments")
    if not isinstance(arguments, dict) or not isinstance(arguments.get("expression"), str):
        raise ValueError('"arguments" has to be {"expression": "..."}')
    return str(arguments["expression"])
