"""Logical deduction: RuleTaker's questions (arXiv 2002.05867) by the depth of their proofs."""

from __future__ import annotations

from rollenv.envs.data import register_rows

QA = "rollenv.envs.qa.env:QaEnv"


def register_family() -> None:
    """Register ``logic:*``."""
    for depth in (0, 1, 2, 3, 5):
        register_rows(
            f"logic:RuleTaker-d{depth}",
            QA,
            f"axon-rl/RuleTaker-d{depth}-70k",
            "train",
            question_key="question",
            answer_key="answer",
            extract_boxed=True,
        )
