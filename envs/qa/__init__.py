"""Questions with short answers."""

from __future__ import annotations

from rollenv.envs.data import register_rows

QA = "rollenv.envs.qa.env:QaEnv"


def register_family() -> None:
    """Register ``qa:*``."""
    for env_id, name in (("qa:NaturalQuestions", "axon-rl/NaturalQuestions"), ("qa:HotpotQA", "axon-rl/HotpotQA")):
        register_rows(env_id, QA, name, "train", question_key="problem", answer_key="answer")
