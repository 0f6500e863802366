"""Questions of your own, data:FILE; and the base of all tasks with an answer: rows, attempts, rewards."""

from __future__ import annotations

from typing import Any

from rollenv.core.registry import ABILITIES, register
from rollenv.envs.data.rows import KNOWN


def register_rows(env_id: str, entry_point: str, name: str, split: str, *, oracle: bool = True, **kwargs: Any) -> None:
    """Register an id for the rows of a known data set, whose answers are worked out."""
    register(
        env_id,
        entry_point,
        abilities=ABILITIES if oracle else ABILITIES - {"oracle"},
        needs=[KNOWN[name].need(split)],
        indexed=True,
        dataset_name=name,
        split=split,
        answer_tokens=1024,
        **kwargs,
    )
