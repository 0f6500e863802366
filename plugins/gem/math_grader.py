"""GEM's reward functions for mathematics, with rollenv's grading: `(info, reward)` of a response and a right answer."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from rollenv.core.parsing import last_boxed, last_tagged
from rollenv.plugins.gem.utils import extract_last_boxed_answer

logger = logging.getLogger(__name__)

#: A fraction of integers on one line.
_OVER = re.compile(r"^(-?)(\d+)/(\d+)$")

Reward = tuple[dict[str, bool], float]
Gold = str | float | int | Sequence[str | float | int]


class TimeoutException(Exception):
    """GEM's exception for a timeout."""


extract_boxed_answer = extract_last_boxed_answer


def extract_answer(passage: str) -> str | None:
    """Return the content of the last box."""
    return extract_last_boxed_answer(passage)


def mathd_normalize_answer(answer: str | None) -> str | None:
    """Normalize an answer for the first comparison."""
    from rollenv.envs.math.compare import normal

    return None if answer is None else _OVER.sub(r"\1\\frac{\2}{\3}", normal(answer.strip())[0])


def normalize_final_answer(final_answer: str) -> str:
    """The same as :func:`mathd_normalize_answer`."""
    return mathd_normalize_answer(final_answer) or ""


def grade(model_answer: str, gt_answer: str, fast: bool = True) -> bool:
    """Return whether an answer is correct; ``fast`` has no effect."""
    from rollenv.envs.math.compare import gold_answer
    from rollenv.envs.math.grade import grade as graded

    return graded(gold_answer(gt_answer), str(model_answer))


def grade_answer_mathd(given_answer: str, ground_truth: str) -> bool:
    """Return whether two normalized answers are equal."""
    return mathd_normalize_answer(given_answer) == mathd_normalize_answer(ground_truth)


def grade_answer_sympy(given_answer: str, ground_truth: str) -> bool:
    """Return whether an answer is right; see :func:`grade`."""
    return grade(given_answer, ground_truth)


is_latex_equal = is_value_equal = grade_answer_sympy


def are_equal_under_sympy(ground_truth_normalized: str, given_normalized: str) -> bool:
    """Return whether an answer is right; see :func:`grade`."""
    return grade(given_normalized, ground_truth_normalized)


def _graded(answer: str | None, gold: Gold, correct: float, incorrect: float) -> Reward:
    golds = [gold] if isinstance(gold, str | float | int) else list(gold)
    right = answer is not None and any(grade(answer, str(one)) for one in golds)
    return {"formatted": True}, correct if right else incorrect


def boxed_reward_fn(
    model_response: str, gt_answer: Gold, fast: bool = False, correct_reward: float = 1.0, incorrect_reward: float = 0.0
) -> Reward:
    """Rewards a correct answer in the last box. ``formatted`` is true if there is a box."""
    answer = last_boxed(model_response)
    if answer is None:
        return {"formatted": False}, incorrect_reward
    return _graded(answer, gt_answer, correct_reward, incorrect_reward)


def r1_distill_qwen_math_reward_fn(
    model_response: str, gt_answer: Gold, fast: bool = False, correct_reward: float = 1.0, incorrect_reward: float = 0.0
) -> Reward:
    """Rewards a correct box after the single ``</think>`` of a response."""
    _, *after = model_response.split("</think>")
    if len(after) != 1:
        return {"formatted": False}, 0.0
    return boxed_reward_fn(after[0], gt_answer, fast, correct_reward, incorrect_reward)


def _tagged(response: str, gold: Gold, opening: str, correct: float, incorrect: float) -> Reward:
    answer = last_tagged(response) if opening in response else None
    if answer is None:
        return {"formatted": False}, incorrect
    return _graded(last_boxed(answer) if "\\boxed" in answer else answer, gold, correct, incorrect)


def answer_tag_reward_fn(
    model_response: str, gt_answer: Gold, fast: bool = False, correct_reward: float = 1.0, incorrect_reward: float = 0.0
) -> Reward:
    """Rewards a correct answer in ``<answer>`` directly after ``</think>`` and a space."""
    return _tagged(model_response, gt_answer, "</think> <answer>", correct_reward, incorrect_reward)


def answer_tag_reward_fn_for_orz(
    model_response: str, gt_answer: Gold, fast: bool = False, correct_reward: float = 1.0, incorrect_reward: float = 0.0
) -> Reward:
    """Rewards a correct answer in ``<answer>``."""
    return _tagged(model_response, gt_answer, "<answer>", correct_reward, incorrect_reward)


def run_with_timeout_signal(
    func: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout_seconds: float = 5,
) -> Any:
    """Return the result of a function, or None if it raises or takes longer; in a thread, so it works in every
    thread."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="with-timeout")
    try:
        return pool.submit(func, *args, **(kwargs or {})).result(timeout_seconds)
    except (Exception, FutureTimeout):
        return None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
