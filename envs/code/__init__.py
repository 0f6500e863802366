"""Programming tasks graded by tests: contests, HumanEval, MBPP, and one-line functions."""

from __future__ import annotations

from typing import Any

from rollenv.core.registry import ABILITIES, register
from rollenv.envs.data import register_rows

CODE = "rollenv.envs.code.env:CodeEnv"
ONE_LINE = "rollenv.envs.code.one_line:OneLine"

CONTEST: dict[str, Any] = {"oracle": False, "question_key": "problem", "test_key": "tests"}
HUMANEVAL: dict[str, Any] = {"question_key": "prompt", "test_key": "test", "solution_key": "canonical_solution"}
#: The question shows one test; all tests are run.
MBPP: dict[str, Any] = {"question_key": "text", "test_key": "test_list", "solution_key": "code", "shown_tests": 1}


def register_family() -> None:
    """Register ``code:*``."""
    for env_id, name, split, kwargs in (
        ("code:CodeContest", "axon-rl/CodeContest", "train", CONTEST),
        ("code:Taco8k", "axon-rl/TACO-8k", "train", CONTEST),
        ("code:PrimeIntellect15k", "axon-rl/PrimeIntellect-15k", "train", CONTEST),
        ("code:HumanEval", "openai/openai_humaneval", "test", HUMANEVAL),
        ("code:MBPP", "google-research-datasets/mbpp", "train", MBPP),
    ):
        register_rows(env_id, CODE, name, split, **kwargs)
    register("code:OneLine-v0", ONE_LINE, abilities=ABILITIES)
    register(
        "code:OneLine-v0-easy",
        ONE_LINE,
        abilities=ABILITIES,
        levels={"templates": [2, 4, 7, 12]},
        templates=4,
        sandbox="local",
        action_format="bare",
    )
