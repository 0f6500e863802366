"""Arithmetic tasks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rollenv.core.errors import UsageError
from rollenv.envs.calculator import evaluate
from rollenv.envs.data.procedural import LARGEST, ProceduralEnv, span
from rollenv.envs.data.task import RowVerdict

OPERATORS = "+-*"

#: Maximum number of draws before the settings count as impossible.
_MOST_DRAWS = 1000

#: A whole number of reasonable length.
INTEGER = re.compile(r"[-+]?[0-9]{1,400}")


class Arithmetic(ProceduralEnv):
    """What is ``3 + 4 - 2``? Reward 1 for the right number.

    Args:
        terms: number of terms, or (fewest, most).
        operands: the numbers, or (lowest, highest).
        answers: lowest and highest answer; None for any. With (0, 9), every answer has one digit.
        max_turns: with more than one, the feedback on a wrong answer is too low or too high, and the agent may retry.
    """

    state_names: tuple[str, ...] = ("task", "hint")

    def __init__(
        self,
        terms: int | Sequence[int] = (2, 3),
        operands: int | Sequence[int] = (0, 9),
        operators: str = "+-",
        *,
        answers: Sequence[int] | None = None,
        max_turns: int = 1,
        split: str = "all",
        action_format: str = "boxed",
        format_reward: float = 0.0,
    ):
        super().__init__(split=split, action_format=action_format, max_turns=max_turns, format_reward=format_reward)
        self.terms, self.operands = span("terms", terms, 2), span("operands", operands, 0)
        if self.terms[1] > 50:
            raise UsageError(f"terms must be at most 50, got {terms!r}")
        if not operators or set(operators) - set(OPERATORS):
            raise UsageError(f"operators are some of {OPERATORS!r}, got {operators!r}")
        self.operators = operators
        self.answers = None if answers is None else span("answers", answers, -LARGEST)
        self.task = self.hint = ""

    def _draw(self) -> str:
        for _ in range(_MOST_DRAWS):
            parts = [str(self._between(self.operands))]
            for _ in range(self._between(self.terms) - 1):
                parts += [self.operators[self.randint(len(self.operators))], str(self._between(self.operands))]
            self.task, self.hint = " ".join(parts), ""
            if self.answers is None or self.answers[0] <= self.gold <= self.answers[1]:
                return self.task
        raise UsageError(f"{self}: of {_MOST_DRAWS} tasks, none had an answer from {self.answers}; widen answers")

    @property
    def gold(self) -> int:
        """The right answer."""
        return int(evaluate(self.task))

    def _question(self) -> str:
        # a bare example would be copied as the answer
        example = "" if self.action_format == "bare" else f", as in {self.format_answer(12)}"
        return f"What is {self.task}? Answer with just the number{example or '.'}"

    def _brief(self) -> str:
        return f"{self.task} ={self.hint}"

    def _judge(self, action: str) -> RowVerdict:
        text = (self._extract(action) or "").strip()
        if not INTEGER.fullmatch(text):
            return RowVerdict(0.0, "This is not a whole number in the required form.", valid=False)
        answer = int(text)
        if answer == self.gold:
            return RowVerdict(1.0, "That is right.")
        self.hint = f" not {answer}, which is too {'low' if answer < self.gold else 'high'}"
        return RowVerdict(0.0, f"It is{self.hint}.")

    def sample_random_action(self) -> str:
        return self.format_answer(self.action_rng.randrange(100))

    def oracle_action(self) -> str:
        return self.format_answer(self.gold)
