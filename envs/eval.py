"""Test sets for evaluation: mathematics, questions, code."""

from __future__ import annotations

from typing import Any

from rollenv.envs.code import CODE, CONTEST, MBPP
from rollenv.envs.data import register_rows

MATH, QA = "rollenv.envs.math.env:MathEnv", "rollenv.envs.qa.env:QaEnv"

#: GEM's ids with GEM's data sets and splits.
_MATH = {"MATH500": "math", "AMC": "amc", "OlympiadBench": "olympiad_bench", "Minerva": "minerva", "AIME24": "aime24"}
_SEARCH = {
    "2Wiki": "2wiki",
    "PopQA": "popqa",
    "TriviaQA": "tq",
    "HotpotQA": "hotpotqa",
    "Bamboogle": "bamboogle",
    "NaturalQuestions": "nq",
    "Musique": "musique",
}


def register_family() -> None:
    """Register ``eval:*``."""
    for name, split in _MATH.items():
        register_rows(f"eval:{name}", MATH, "axon-rl/math-eval", split, question_key="problem", answer_key="answer")
    keys: dict[str, Any] = {"question_key": "question", "answer_key": "answer"}
    for name, split in _SEARCH.items():
        register_rows(f"eval:{name}", QA, "axon-rl/search-eval", split, **keys)
    register_rows("eval:QaOpen", QA, "google-research-datasets/nq_open", "validation", **keys)
    register_rows("eval:CodeContest", CODE, "axon-rl/CodeContest", "test", **CONTEST)
    register_rows("eval:MBPP", CODE, "google-research-datasets/mbpp", "test", **MBPP)
