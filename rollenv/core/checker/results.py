"""Requirements on results of ``reset`` and ``step``."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollenv.core.errors import Broken, RollenvError
from rollenv.core.parts import part
from rollenv.core.pictures import MARK, pictures


def expect_step(result: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
    """Return the result of a step, or raise Broken if its parts have other types than the contract's."""
    if not (isinstance(result, tuple) and len(result) == 5):
        raise Broken("step() must return (observation, reward, terminated, truncated, info)")
    if not isinstance(result[0], str) or not isinstance(result[4], dict):
        kinds = [type(x).__name__ for x in result]
        raise Broken(f"step() returned types {kinds}; the observation must be a str and the info a dict")
    if not isinstance(result[1], float | int) or isinstance(result[1], bool) or not np.isfinite(result[1]):
        raise Broken(f"step() returned the reward {result[1]!r}; make it a finite float")
    if type(result[2]) is not bool or type(result[3]) is not bool:
        raise Broken(f"step() returned terminated {result[2]!r} and truncated {result[3]!r}; make them plain bools")
    return result


def expect_info(observation: str, info: dict[str, Any]) -> None:
    """Check that rollouts take a result and can send it, and an observation has a mark for each picture, or none.

    Raises:
        Broken: they do not, or it has another number of marks.
    """
    try:
        part("valid text")(observation, "the observation")
        part("valid info")(info)
    except RollenvError as error:
        raise Broken(f"every episode would fail: {error}") from error
    for name, value in info.items():
        try:
            part("decode")(part("encode")("it", value))
        except RollenvError as error:
            raise Broken(f"info[{name!r}] cannot be sent to another process: {error}"[:300]) from error
    suffix = str(info.get("suffix", ""))
    text = f"{info.get('prefix', '')}{observation}{'' if observation.endswith(suffix) else suffix}"
    marks, images = text.count(MARK), pictures(info)
    if marks not in (len(images), 0):
        raise Broken(
            f"an observation has {marks} marks {MARK} for {len(images)} pictures in info['images']; write one "
            "for each, or none to put all before the text"
        )
