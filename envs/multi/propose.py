"""One player writes arithmetic tasks, which others solve: :class:`Propose`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.errors import UsageError
from rollenv.envs.calculator import evaluate
from rollenv.envs.data.procedural import LARGEST, span
from rollenv.envs.math.arithmetic import INTEGER, OPERATORS

#: The longest proposal that is read.
_LONGEST = 500


class Propose(Env):
    """Seat 0 writes an arithmetic task that begins with a given number, and every other seat solves it by itself.

    A solver's reward is 1 for the right number. With a share p of right answers the proposer gets 1 - 2 |p - 1/2|
    (``pay="middling"``, R-Zero, arXiv 2508.05004), or 1 - p, but 0 for a task that nobody solves (``pay="hard"``,
    Absolute Zero, arXiv 2505.03335). A text that is no such task has the reward -1 and ends the episode. The given
    number keeps proposals from being the same ones.

    Args:
        solvers: number of seats that solve.
        terms: fewest and most numbers of a task.
        operands: lowest and highest number.
        answers: lowest and highest answer of a task; None for any.
    """

    forfeit_returns = (-1.0, 0.0)

    def __init__(
        self,
        solvers: int = 4,
        terms: Sequence[int] = (2, 4),
        operands: Sequence[int] = (0, 9),
        operators: str = "+-",
        *,
        answers: Sequence[int] | None = None,
        pay: Literal["middling", "hard"] = "middling",
    ):
        if not 1 <= solvers <= 64:
            raise UsageError(f"solvers must be 1 to 64, got {solvers!r}")
        if pay not in ("middling", "hard"):
            raise UsageError(f"pay is middling or hard, got {pay!r}")
        if not operators or set(operators) - set(OPERATORS):
            raise UsageError(f"operators are some of {OPERATORS!r}, got {operators!r}")
        self.players, self.solvers, self.pay, self.operators = solvers + 1, solvers, pay, operators
        self.terms, self.operands = span("terms", terms, 2), span("operands", operands, 0)
        self.answers = None if answers is None else span("answers", answers, -LARGEST)
        self.first, self.example, self.task = 0, "", ""
        self.right: list[bool] = []

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        low, high = self.operands
        self.task, self.right = "", []
        self.first = low + self.randint(high - low + 1)
        self.example = self._draw()
        roles = ["proposer"] + ["solver"] * self.solvers
        return self._asked(), {"player": 0, "roles": roles, "suffix": self._brief()}

    def _draw(self) -> str:
        """Draw a task that begins with the given number."""
        (low, high), (few, many) = self.operands, self.terms
        for _ in range(1000):
            parts = [str(self.first)]
            for _ in range(few + self.randint(many - few + 1) - 1):
                parts += [self.operators[self.randint(len(self.operators))], str(low + self.randint(high - low + 1))]
            if self._allows(text := " ".join(parts)):
                return text
        raise UsageError(
            f"{self}: no task begins with {self.first} and has an answer from {self.answers}; widen answers"
        )

    def _asked(self) -> str:
        if self.task:
            return f"What is {self.task}? Answer with just the number."
        (low, high), (few, many) = self.operands, self.terms
        within = "" if self.answers is None else f" Its answer is from {self.answers[0]} to {self.answers[1]}."
        return (
            f"Write an arithmetic task that others solve about half of the time. It begins with {self.first} and has "
            f"{few} to {many} numbers from {low} to {high}, with {' '.join(self.operators)} between them, as in "
            f"{low} {self.operators[0]} {high}.{within} Write the task alone."
        )

    def _brief(self) -> str:
        return f"{self.task} =" if self.task else f"{self.first} ..."

    def _allows(self, text: str) -> bool:
        numbers = re.findall(r"\d+", text)
        few, many = self.terms
        right_form = re.fullmatch(rf"\d{{1,12}}( [{re.escape(self.operators)}] \d{{1,12}})*", text)
        if not right_form or not few <= len(numbers) <= many or int(numbers[0]) != self.first:
            return False
        if not all(self.operands[0] <= int(number) <= self.operands[1] for number in numbers):
            return False
        return self.answers is None or self.answers[0] <= evaluate(text) <= self.answers[1]

    def _step(self, action: str) -> StepResult:
        if not self.task:
            task = " ".join(re.sub(rf"([{re.escape(self.operators)}])", r" \1 ", action[:_LONGEST]).split())
            if not self._allows(task):
                told = ["This is no such task."] + ["There is no task."] * self.solvers
                return self._ended([-1.0] + [0.0] * self.solvers, told, 0, valid=False)
            self.task = task
        else:
            answer = action.strip()
            self.right.append(bool(INTEGER.fullmatch(answer)) and int(answer) == evaluate(self.task))
        mover, following = len(self.right), len(self.right) + 1
        if following < self.players:
            info = {"player": following, "suffix": self._brief(), "rewards": [0.0] * self.players}
            return self._asked(), 0.0, False, False, info
        share = sum(self.right) / self.solvers
        paid = 1 - abs(2 * share - 1)
        if self.pay == "hard":
            paid = 1 - share if share else 0.0
        told = [
            f"{sum(self.right)} of {self.solvers} solved it.",
            *("Right." if one else "Wrong." for one in self.right),
        ]
        return self._ended([paid, *map(float, self.right)], told, mover, valid=True)

    def _ended(self, rewards: list[float], told: list[str], mover: int, *, valid: bool) -> StepResult:
        won = [0 < sum(self.right) < self.solvers, *self.right] if valid else [False] * self.players
        info = {"rewards": rewards, "observations": told, "success": won, "valid": valid}
        return told[mover], rewards[mover], True, False, info

    def render(self) -> str:
        return f"{self._brief()} {' '.join('right' if one else 'wrong' for one in self.right)}".strip()

    def state_key(self) -> str:
        return self.render()

    def sample_random_action(self) -> str:
        if self.task:
            return str(self.action_rng.randint(-9, 99))
        drawn = f"{self.first} {self.action_rng.choice(self.operators)} {self.action_rng.randint(*self.operands)}"
        return drawn if self._allows(drawn) else self.example

    def oracle_action(self) -> str:
        return str(evaluate(self.task)) if self.task else self.example

    def _get_state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("first", "example", "task", "right")}

    def _set_state(self, state: dict[str, Any]) -> None:
        self.first, self.example, self.task = state["first"], state["example"], state["task"]
        self.right = list(state["right"])
