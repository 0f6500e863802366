"""Mathematics with a checkable answer: GSM8K, MATH and similar sets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rollenv.core import UsageError
from rollenv.envs.data.rows import Row
from rollenv.envs.data.task import RowEnv, Verdict, listed, no_answer
from rollenv.envs.math.compare import gold_answer
from rollenv.envs.math.grade import SECONDS, check_installed, grade
from rollenv.parsing import last_boxed


class MathEnv(RowEnv):
    r"""One problem, one answer in ``\boxed{}``; reward 1 if it equals the gold answer, else 0.

    Gold answers may be plain, end a solution after ``####`` (GSM8K) or stand in its last ``\boxed{}`` (MATH). Where a
    row has a list of them, each is right.

    Args:
        dataset_name, split, dataset, question_key, seed: arguments of :class:`~rollenv.envs.data.task.RowEnv`.
        answer_key: the column with the gold answer.
        use_format_error_reward: pay -0.1 instead of 0 for an action without a box.
        use_mp: GEM's choice between a process for each environment and a timer that fails outside the main thread.
            Accepted and ignored: grading here works in every thread, in processes that the environments share.
        instruct: say in the question that the answer belongs in a box.
        seconds: of processor time after which an answer counts as wrong.
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
        return gold_answers(self.row[self.gold_key])

    @property
    def gold(self) -> str:
        """The right answer, or the first of several.

        Raises:
            UsageError: there is none.
        """
        if not self.accepted:
            raise UsageError(f"{self}: row {self.idx} has no answer in its column {self.gold_key!r}")
        return self.accepted[0]

    def _no_gold(self, cell: Any) -> str:
        return super()._no_gold(cell) or (no_answer(gold_answers(cell)) if self._has_gold(cell) else "")

    def _question(self) -> str:
        question = str(self.row[self.question_key])
        return f"{question}\n\nGive the final answer in \\boxed{{}}." if self.instruct else question

    def _judge(self, action: str) -> Verdict:
        answer = last_boxed(action)
        if answer is None:
            return Verdict(0.0, "There is no answer in \\boxed{}.", valid=False)
        right = any(grade(gold, answer, self.seconds) for gold in self.accepted)
        return Verdict(float(right), "That is right." if right else "That is wrong.")

    def sample_random_action(self) -> str:
        return f"\\boxed{{{self.action_rng.randrange(1000)}}}"

    def oracle_action(self) -> str:
        return f"\\boxed{{{self.gold}}}"


def gold_answers(value: Any) -> tuple[str, ...]:
    """The gold answers in a cell: one, or a list of them."""
    return tuple(map(gold_answer, listed(value)))
