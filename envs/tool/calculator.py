"""Arithmetic tasks with a calculator tool."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rollenv.core.env import ResetResult, StepResult
from rollenv.core.errors import EpisodeOver, UsageError
from rollenv.core.parsing import last_boxed
from rollenv.core.tools.calls import find_calls
from rollenv.envs.calculator import MAX_CHARACTERS, evaluate
from rollenv.envs.data.task import RowVerdict
from rollenv.envs.math.arithmetic import INTEGER, OPERATORS, Arithmetic

#: The calculator's schema for function-calling models.
CALCULATOR: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluates an expression of numbers, + - * / // % ** and parentheses.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}


class CalculatorTask(Arithmetic):
    r"""Arithmetic with large numbers, and a calculator to call before the one answer in ``\boxed{}``.

    A call is ``<tool_call>{"name": "calculator", "arguments": {"expression": "12*34"}}</tool_call>``; the next
    observation has the result or the error in ``<tool_response>``. ``info`` has ``tool_use_counter`` and
    ``tool_success_counter``.

    Args:
        calls: ``native`` leaves the form of calls to the model's own template; a call is then read in every form.
        format_reward: reward for an action that is neither, and for a malformed call.
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
        calls: str = "hermes",
        format_reward: float = -0.1,
    ):
        super().__init__(terms, operands, operators, max_turns=max_turns, split=split, format_reward=format_reward)
        if calls not in ("hermes", "native"):
            raise UsageError(f"calls is 'hermes' or 'native', not {calls!r}")
        self.form = calls
        self.calls = self.results = 0
        self._result = ""

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        self.calls = self.results = 0
        observation, info = super()._reset(options)
        return observation, info | self._counters() | {"tools": [CALCULATOR]}

    def _step(self, action: str) -> StepResult:
        self._result = ""
        observation, reward, terminated, truncated, info = super()._step(action)
        if self._result:
            info |= {"use_tool": True, "tool_responses": [self._result]}
        return observation, reward, terminated, truncated, info | self._counters()

    def _counters(self) -> dict[str, int]:
        return {"tool_use_counter": self.calls, "tool_success_counter": self.results}

    def _question(self) -> str:
        how = f", as in {_tool_call('12 * 34')}\n" if self.form == "hermes" else ". "
        return (
            f"What is {self.task}? You may call a calculator, one call per turn{how}"
            f"Then give just the number in \\boxed{{}}. You have {self.max_turns} turns, including the answer."
        )

    def _judge(self, action: str) -> RowVerdict:
        found, _ = find_calls(action, schemas=[CALCULATOR])
        if found:
            self.calls += 1
            call = found[-1]
            expression = call.arguments.get("expression")
            if call.problem or call.name != "calculator" or not isinstance(expression, str):
                why = call.problem or 'the only tool is "calculator", with {"expression": "..."} as arguments'
                return RowVerdict(0.0, f"The call was not understood: {why}.", valid=False)
            try:
                result = str(evaluate(expression))
                self.results += 1
            except ValueError as error:
                result = f"error: {error}"
            self.hint += f"\n{expression[:MAX_CHARACTERS]} = {result}"
            self._result = result
            return RowVerdict(0.0, f"<tool_response>\n{result}\n</tool_response>")
        answer = last_boxed(action)
        if answer is None:
            return RowVerdict(0.0, "This is neither a <tool_call> nor an answer in \\boxed{}.", valid=False)
        right = bool(INTEGER.fullmatch(answer)) and int(answer) == self.gold
        return RowVerdict(float(right), "That is right." if right else "That is wrong.", final=True)

    def render(self) -> str:
        return f"{super().render()}, {self.calls} calls, {self.results} results"

    def sample_random_action(self) -> str:
        number = self.action_rng.randrange(1000)
        if self.action_rng.random() < 0.5:
            return _tool_call(f"{number} + 1")
        return self.format_answer(number)

    def oracle_action(self) -> str:
        """Return a call of the calculator with the whole expression, then its result."""
        if self._rollenv_over:
            raise EpisodeOver(f"{self}: the episode is over; there is no next action")
        if self.turn == 0 and self.max_turns > 1:
            return _tool_call(self.task)
        return self.format_answer(self.gold)


def _tool_call(expression: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'calculator', 'arguments': {'expression': expression}})}</tool_call>"
