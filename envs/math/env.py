"""Mathematics with a checkable answer: GSM8K, MATH and similar sets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rollenv.core.errors import Unsolvable
from rollenv.core.parsing import last_boxed
from rollenv.envs.data.rows import Row
from rollenv.envs.data.task import RowEnv, RowVerdict, listed, no_answer
from rollenv.envs.math.compare import gold_answer
from rollenv.envs.math.grade import SECONDS, check_installed, grade


class MathEnv(RowEnv):
    r"""One problem, one answer in ``\boxed{}``; reward 1 if it equals the gold answer, else 0.

    Gold answers may be plain, follow ``####`` at the end of a solution (GSM8K) or be in its last ``\boxed{}`` (MATH).
    If a row has a list of answers, each is right.

    Args:
        use_format_error_reward: reward an action without a box with -0.1 instead of 0.
        use_mp: GEM's choice between a process per environment and a timer that works only in the main thread. Ignored:
            grading works in every thread, in processes that the environments share.
        seconds: limit of the processor time for grading; beyond it an answer is wrong.
    """

    def __init__(
        self,
        dataset_name: str | None = "",
        split: str | None = None,
        dataset: Iterable[Row] | None = None,
        question_key: str = "problem",
        answer_key: str = "answer",
        use_format_error_reward: bool = False,
        seed: int | None = None,
        use_mp: bool = True,
        *,
        instruct: bool = True,
        seconds: float = SECONDS,
    ):
        check_installed()
        format_reward = -0.1 if use_format_error_reward else 0.0
        super().__init__(dataset_name, split, dataset, question_key, answer_key, seed, format_reward)
        self.instruct, self.seconds = instruct, seconds

    @property
    def accepted(self) -> tuple[str, ...]:
        """The answers that count as correct."""
        return tuple(filter(str.strip, gold_answers(self.row[self.gold_key])))

    def _no_gold(self, cell: Any) -> str:
        return super()._no_gold(cell) or (no_answer(gold_answers(cell)) if self._has_gold(cell) else "")

    def _question(self) -> str:
        question = str(self.row[self.question_key])
        return f"{question}\n\nGive the final answer in \\boxed{{}}." if self.instruct else question

    def _judge(self, action: str) -> RowVerdict:
        answer = last_boxed(action)
        if answer is None:
            return RowVerdict(0.0, "There is no answer in \\boxed{}.", valid=False)
        right = any(grade(gold, answer, self.seconds) for gold in self.accepted)
        return RowVerdict(float(right), "That is right." if right else "That is wrong.")

    def sample_random_action(self) -> str:
        return f"\\boxed{{{self.action_rng.randrange(1000)}}}"

    def oracle_action(self) -> str:
        if not self.accepted:
            raise Unsolvable(f"{self}: row {self.idx} has no answer in its column {self.gold_key!r}")
        return f"\\boxed{{{self.accepted[0]}}}"


def gold_answers(value: Any) -> tuple[str, ...]:
    """Return the gold answers in a cell, which has one or a list of them."""
    return tuple(map(gold_answer, listed(value)))
