"""Patterns: helpers."""

from __future__ import annotations

import logging
import random

import gem
import numpy as np
from common import pattern, raises
from datasets import Dataset
from gem.core import ActType, ObsType
from gem.envs.game_env.crosswords import CrosswordsEnv
from gem.envs.game_env.crosswords.crosswords import CrosswordsEnv as Same
from gem.envs.game_env.sokoban import SokobanEnv
from gem.envs.game_env.sokoban.sokoban import SokobanEnv as SameToo
from gem.envs.math_env import MathEnv
from gem.utils.constants import BASE_IMPORTS, TERMINAL_STATE, LanguageGameReward
from gem.utils.math_grader import (
    answer_tag_reward_fn,
    answer_tag_reward_fn_for_orz,
    boxed_reward_fn,
    extract_boxed_answer,
    grade,
    r1_distill_qwen_math_reward_fn,
    run_with_timeout_signal,
)
from gem.utils.parsing import (
    extract_code_from_model,
    extract_last_boxed_answer,
    extract_last_tagged_answer,
    last_boxed_only_string,
    remove_boxed,
)
from gem.utils.qa_em import em_check, normalize_answer
from gem.utils.seeding import RNG, np_random, set_seed
from gem.vector.vector_env import ArrayType
from gem.wrappers.episode_tracking_wrapper import EpisodeTrackingWrapper
from gem.wrappers.observation_wrapper import WrapperObsType


@pattern
def submodules_and_constants():
    assert gem.core.Env is gem.Env and gem.envs.registration.make is gem.make
    assert gem.utils.seeding.set_seed and gem.vector.vector_env.VectorEnv
    assert CrosswordsEnv is Same and SokobanEnv is SameToo
    assert len(TERMINAL_STATE) == len("<|TERMINAL_STATE|>") and "TERMINAL_STATE" in TERMINAL_STATE
    assert (LanguageGameReward.success_reward, LanguageGameReward.format_error_reward) == (1.0, -0.1)
    assert isinstance(BASE_IMPORTS, str)

    def step(action: ActType) -> tuple[ObsType, WrapperObsType | None, ArrayType | None]: ...

    assert step


@pattern
def rewards_for_mathematics():
    assert boxed_reward_fn("so \\boxed{42}", "42") == ({"formatted": True}, 1.0)
    assert boxed_reward_fn("so 42", "42") == ({"formatted": False}, 0.0)
    assert boxed_reward_fn("\\boxed{41}", 42, correct_reward=2, incorrect_reward=-1) == ({"formatted": True}, -1)
    assert boxed_reward_fn("\\boxed{2}", ["1", "2"], fast=True)[1] == 1.0
    assert r1_distill_qwen_math_reward_fn("<think>x</think> \\boxed{7}", "7")[1] == 1.0
    assert r1_distill_qwen_math_reward_fn("\\boxed{7}", "7") == ({"formatted": False}, 0.0)
    assert answer_tag_reward_fn("<think> </think> <answer> 5 </answer>", "5")[1] == 1.0
    assert answer_tag_reward_fn("<answer>5</answer>", "5") == ({"formatted": False}, 0.0)
    assert answer_tag_reward_fn_for_orz("<answer>\\boxed{5}</answer>", 5)[1] == 1.0
    assert grade("\\frac{1}{2}", "0.5") and not grade("1", "2") and extract_boxed_answer("\\boxed{x}") == "x"


@pattern
def a_function_with_a_time_limit():
    logging.disable(logging.CRITICAL)
    try:
        assert run_with_timeout_signal(lambda a, b=1: a + b, args=(1,), kwargs={"b": 2}, timeout_seconds=2) == 3
        assert run_with_timeout_signal(lambda: 1 / 0) is None
    finally:
        logging.disable(logging.NOTSET)


@pattern
def finding_answers():
    assert extract_last_boxed_answer("\\boxed{1} \\boxed{\\frac{1}{2}}") == "\\frac{1}{2}"
    assert last_boxed_only_string("a \\boxed{b}") == "\\boxed{b}" and last_boxed_only_string("none") is None
    assert remove_boxed("\\boxed{b}") == "b" and remove_boxed("b") is None and remove_boxed(None) is None
    assert extract_code_from_model("```python\nx = 1\n```") == "x = 1" and extract_code_from_model("none") is None
    assert extract_last_tagged_answer("<answer>a</answer><answer> b </answer>") == "b"
    assert normalize_answer("The  Cat!") == "cat" and em_check("the cat", ["Dog", "Cat."]) and not em_check("a", "b")


@pattern
def seeds_and_generators():
    set_seed(3)
    drawn = random.random(), np.random.rand()
    set_seed(3)
    assert (random.random(), np.random.rand()) == drawn
    generator, seed = np_random(5)
    assert isinstance(generator, RNG) and seed == 5 and generator.random() == np_random(5)[0].random()
    raises(Exception, np_random, -1)


@pattern
def rows_by_number_through_wrappers():
    rows = Dataset.from_list([{"problem": f"{i} + 1?", "answer": str(i + 1)} for i in range(4)])
    env = MathEnv(dataset=rows, use_mp=False)
    env.reset(idx=3)
    wrapped = EpisodeTrackingWrapper(env)
    wrapped.reset(seed=1)
    assert wrapped.step(f"\\boxed{{{env.answer}}}")[1] == 1.0
