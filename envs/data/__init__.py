"""Environments made of data: math, questions, code, and procedural tasks of the same kinds."""

from __future__ import annotations

from typing import Any

from rollenv.envs.data.datasets import KNOWN
from rollenv.registry import ABILITIES, register

_MATH = "rollenv.envs.data.math_env:MathEnv"
_VISUAL = "rollenv.envs.data.math_visual_env:MathVisualEnv"
_QA = "rollenv.envs.data.qa_env:QaEnv"
_CODE = "rollenv.envs.data.code_env:CodeEnv"

#: GEM's ids with GEM's arguments: name, data set, split.
_MATH_SETS = (
    ("math:ASDiv2K", "axon-rl/ASDIV-2k", "train"),
    ("math:GSM8K", "axon-rl/GSM-8k", "train"),
    ("math:Math12K", "axon-rl/MATH-12k", "train"),
    ("math:Math8K-3to5", "axon-rl/MATH-lvl3to5-8k", "train"),
    ("math:Orz57K", "axon-rl/ORZ-57k", "train"),
    ("math:DeepScaleR40K", "axon-rl/DeepScaleR-40K", "train"),
    ("eval:MATH500", "axon-rl/math-eval", "math"),
    ("eval:AMC", "axon-rl/math-eval", "amc"),
    ("eval:OlympiadBench", "axon-rl/math-eval", "olympiad_bench"),
    ("eval:Minerva", "axon-rl/math-eval", "minerva"),
    ("eval:AIME24", "axon-rl/math-eval", "aime24"),
)
_QA_SETS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("qa:NaturalQuestions", "axon-rl/NaturalQuestions", "train", {"question_key": "problem"}),
    ("qa:HotpotQA", "axon-rl/HotpotQA", "train", {"question_key": "problem"}),
    ("eval:QaOpen", "google-research-datasets/nq_open", "validation", {}),
    ("eval:2Wiki", "axon-rl/search-eval", "2wiki", {}),
    ("eval:PopQA", "axon-rl/search-eval", "popqa", {}),
    ("eval:TriviaQA", "axon-rl/search-eval", "tq", {}),
    ("eval:HotpotQA", "axon-rl/search-eval", "hotpotqa", {}),
    ("eval:Bamboogle", "axon-rl/search-eval", "bamboogle", {}),
    ("eval:NaturalQuestions", "axon-rl/search-eval", "nq", {}),
    ("eval:Musique", "axon-rl/search-eval", "musique", {}),
    *(
        (f"logic:RuleTaker-d{depth}", f"axon-rl/RuleTaker-d{depth}-70k", "train", {"extract_boxed": True})
        for depth in (0, 1, 2, 3, 5)
    ),
)
_HUMANEVAL = {"question_key": "prompt", "test_key": "test", "solution_key": "canonical_solution"}
#: The question shows one test; the program is held to all of them.
_MBPP = {"question_key": "text", "test_key": "test_list", "solution_key": "code", "shown_tests": 1}
_CODE_SETS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("code:CodeContest", "axon-rl/CodeContest", "train", {}),
    ("code:Taco8k", "axon-rl/TACO-8k", "train", {}),
    ("code:PrimeIntellect15k", "axon-rl/PrimeIntellect-15k", "train", {}),
    ("eval:CodeContest", "axon-rl/CodeContest", "test", {}),
    ("code:HumanEval", "openai/openai_humaneval", "test", _HUMANEVAL),
    ("code:MBPP", "google-research-datasets/mbpp", "train", _MBPP),
    ("eval:MBPP", "google-research-datasets/mbpp", "test", _MBPP),
)


def register_data() -> None:
    """Register every id of this folder."""
    for env_id, name, split in _MATH_SETS:
        _register(env_id, _MATH, name, split, {"question_key": "problem", "answer_key": "answer"})
    keys = {"image_key": "images", "question_key": "problem", "answer_key": "answer"}
    _register("math:Geometry3K", _VISUAL, "axon-rl/geometry3k", "train", keys)
    for env_id, name, split, kwargs in _QA_SETS:
        _register(env_id, _QA, name, split, {"question_key": "question", "answer_key": "answer", **kwargs})
    for env_id, name, split, kwargs in _CODE_SETS:
        _register(env_id, _CODE, name, split, {"question_key": "problem", "test_key": "tests", **kwargs})
    _procedural()


def _register(env_id: str, entry_point: str, name: str, split: str, kwargs: dict[str, Any]) -> None:
    has_answers = entry_point != _CODE or "solution_key" in kwargs
    abilities = ABILITIES if has_answers else ABILITIES - {"oracle"}
    needs = (f"data: {KNOWN[name].folder}",)
    register(
        env_id, entry_point, abilities=abilities, needs=needs, indexed=True, dataset_name=name, split=split, **kwargs
    )


def _procedural() -> None:
    arithmetic = "rollenv.envs.data.arithmetic:Arithmetic"
    register("math:Arithmetic-v0-easy", arithmetic, abilities=ABILITIES, terms=(2, 3), operands=(0, 9), operators="+-")
    register(
        "math:Arithmetic-v0-hard", arithmetic, abilities=ABILITIES, terms=(3, 5), operands=(0, 99), operators="+-*"
    )
    register("code:OneLine-v0", "rollenv.envs.data.one_line:OneLine", abilities=ABILITIES)
    register("tool:Calculator-v0", "rollenv.envs.data.arithmetic:CalculatorTask", abilities=ABILITIES)
