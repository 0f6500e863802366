"""Mathematics: problems of data sets, with and without pictures, and generated arithmetic."""

from __future__ import annotations

from typing import Any

from rollenv.core.registry import ABILITIES, register
from rollenv.envs.data import register_rows

MATH = "rollenv.envs.math.env:MathEnv"
VISUAL = "rollenv.envs.math.visual:MathVisualEnv"
ARITHMETIC = "rollenv.envs.math.arithmetic:Arithmetic"

#: GEM's ids with GEM's arguments: name and data set.
_SETS = (
    ("math:ASDiv2K", "axon-rl/ASDIV-2k"),
    ("math:GSM8K", "axon-rl/GSM-8k"),
    ("math:Math12K", "axon-rl/MATH-12k"),
    ("math:Math8K-3to5", "axon-rl/MATH-lvl3to5-8k"),
    ("math:Orz57K", "axon-rl/ORZ-57k"),
    ("math:DeepScaleR40K", "axon-rl/DeepScaleR-40K"),
)
_LEVELS: dict[str, list[Any]] = {
    "terms": [(2, 2), (2, 3), (3, 5), (4, 8)],
    "operands": [(0, 9), (0, 9), (0, 99), (0, 999)],
    "operators": ["+-", "+-", "+-*", "+-*"],
}


def register_family() -> None:
    """Register ``math:*``."""
    for env_id, name in _SETS:
        register_rows(env_id, MATH, name, "train", question_key="problem", answer_key="answer")
    deep: dict[str, Any] = {"question_key": "question", "answer_key": "final_answer"}
    register_rows("math:DeepMath103K", MATH, "zwhe99/DeepMath-103K", "train", **deep)
    keys: dict[str, Any] = {"image_key": "images", "question_key": "problem", "answer_key": "answer"}
    register_rows("math:Geometry3K", VISUAL, "axon-rl/geometry3k", "train", **keys)
    keys |= {"image_key": "image", "answer_key": "solution"}
    register_rows("math:GEOQA8K", VISUAL, "leonardPKU/GEOQA_R1V_Train_8K", "train", **keys)
    for variant, terms, operands, operators in (("easy", (2, 3), (0, 9), "+-"), ("hard", (3, 5), (0, 99), "+-*")):
        register(
            f"math:Arithmetic-v0-{variant}",
            ARITHMETIC,
            abilities=ABILITIES,
            levels=_LEVELS,
            terms=terms,
            operands=operands,
            operators=operators,
        )
    register(
        "math:Arithmetic-v0-digit",
        ARITHMETIC,
        abilities=ABILITIES,
        levels={"terms": [2, (2, 3), (2, 4)]},
        terms=2,
        answers=(0, 9),
        action_format="bare",
    )
