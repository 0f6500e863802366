"""Questions with short answers, compared by SQuAD's rules (arXiv 1606.05250, section 4), extended for numbers.

SQuAD's script removes punctuation of ASCII only. TriviaQA's (arXiv 1705.03551) removes ``‘``, ``’``, ``´`` and `````
too; here, typographic quotes and dashes are those of ASCII.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from rollenv.core.errors import Unsolvable, UsageError
from rollenv.core.parsing import last_boxed, last_tagged
from rollenv.envs.data.rows import Row
from rollenv.envs.data.task import RowEnv, RowVerdict, listed
from rollenv.envs.data.text_answers import MAX_CHARACTERS, exact_match, f1, says_something

METRICS = ("em", "f1")


class QaEnv(RowEnv):
    """One question, one answer.

    Accepted answers that are missing, or without a letter or digit, are ignored; a question without others is never
    rewarded.

    Args:
        extract_boxed: the answer is in ``\\boxed{}`` instead of ``<answer>`` tags.
        use_format_error_reward: reward an action without an answer with -0.1 instead of 0.
        metric: the reward: ``em`` (1 for an exact match, else 0) or ``f1`` (the share of words; success is 1).
    """

    def __init__(
        self,
        dataset_name: str | None = "",
        split: str | None = None,
        dataset: Iterable[Row] | None = None,
        question_key: str = "question",
        answer_key: str = "answer",
        seed: int | None = None,
        extract_boxed: bool = False,
        *,
        use_format_error_reward: bool = False,
        metric: str = "em",
        instruct: bool = True,
    ):
        if metric not in METRICS:
            raise UsageError(f"metric {metric!r} is unknown; choose from {', '.join(METRICS)}")
        format_reward = -0.1 if use_format_error_reward else 0.0
        super().__init__(dataset_name, split, dataset, question_key, answer_key, seed, format_reward)
        self.extract_boxed, self.metric, self.instruct = extract_boxed, metric, instruct
        self._template = "\\boxed{%s}" if extract_boxed else "<answer>%s</answer>"

    @property
    def accepted(self) -> tuple[str, ...]:
        """The accepted answers."""
        return texts(self.row[self.gold_key])

    def _question(self) -> str:
        question = str(self.row[self.question_key])
        if not self.instruct:
            return question
        return f"{question}\n\nThink first. Then give a short answer in the form {self._template % '...'}"

    def _judge(self, action: str) -> RowVerdict:
        answer = last_boxed(action) if self.extract_boxed else last_tagged(action)
        if answer is None:
            return RowVerdict(0.0, f"There is no answer in the form {self._template % '...'}", valid=False)
        measure = exact_match if self.metric == "em" else f1
        score = measure(answer, self.accepted) if len(answer) <= MAX_CHARACTERS else 0.0
        return RowVerdict(score, "That is right." if score >= 1 else "That is wrong.")

    def sample_random_action(self) -> str:
        return self._template % self.action_rng.choice(("yes", "no", "True", "False"))

    def oracle_action(self) -> str:
        """Return the first accepted answer."""
        if not self.accepted:
            raise Unsolvable(f"{self}: row {self.idx} has no accepted answer")
        return self._template % self.accepted[0]


def texts(value: Any) -> tuple[str, ...]:
    """Return the accepted answers in a cell, which has one or a list of them."""
    values = listed(value)
    for one in values:
        if not isinstance(one, str | int | float | Decimal):
            raise UsageError(f"an answer must be a text, a number or a list of them, not {type(one).__name__}")
    return tuple(text for one in values if says_something(text := str(one)))
