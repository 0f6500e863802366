"""GEM's small helpers, by their names and with their results."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
from gymnasium.utils import seeding

from rollenv.core import Env
from rollenv.parsing import last_boxed, last_code_block, last_tagged

TERMINAL_STATE = "<｜TERMINAL_STATE｜>"
INVALID_ACTION = "<｜INVALID_ACTION｜>"


class LanguageGameReward:
    """The rewards that GEM's games share."""

    success_reward = 1.0
    internal_step_reward = 0.0
    fail_reward = 0.0
    invalid_action_reward = 0.0
    format_error_reward = -0.1


def extract_last_boxed_answer(solution: str) -> str | None:
    """What stands in the last box."""
    return last_boxed(solution)


def last_boxed_only_string(string: str) -> str | None:
    """The last box itself."""
    inner = last_boxed(string)
    return None if inner is None else "\\boxed{" + inner + "}"


def remove_boxed(s: str | None) -> str | None:
    """What stands in a box that is the whole string."""
    return None if s is None else last_boxed(s)


def extract_code_from_model(model_response: str) -> str | None:
    """The last code fence of any language."""
    return last_code_block(model_response, languages=None)


def extract_last_tagged_answer(model_response: str) -> str | None:
    """What stands in the last ``<answer>`` element."""
    return last_tagged(model_response)


def np_random(seed: int | None = None) -> tuple[np.random.Generator, int]:
    """A generator and the seed it was started with."""
    return seeding.np_random(seed)


def set_seed(seed: int | None = None) -> None:
    """Seed the process-wide generators. rollenv's own environments never use them."""
    random.seed(seed)
    np.random.seed(seed)


def normalize_answer(s: str) -> str:
    """SQuAD's normal form."""
    from rollenv.envs.data.qa_env import normalize

    return normalize(s)


def em_check(prediction: str, golden_answers: str | Sequence[str]) -> bool:
    """Whether the prediction equals one of the answers after normalisation."""
    answers = [golden_answers] if isinstance(golden_answers, str) else golden_answers
    return normalize_answer(prediction) in map(normalize_answer, answers)


def run_python(
    code: str, sandbox_type: str = "none", stdin: str | None = None, timeout: float = 10
) -> tuple[bool, str, str]:
    """``(success, stdout, stderr)`` of a program, always in an isolated sandbox; the timeout holds."""
    from rollenv.sandbox import shared_pool

    result = shared_pool().run(code, stdin=stdin or "", timeout=timeout)
    errors = f"{result.stderr}\nExecution timed out after {timeout:g} seconds." if result.timed_out else result.stderr
    return result.exit_code == 0 and not result.timed_out, result.stdout, errors


def ppprint(x: object) -> None:
    """Print with a rule around it."""
    print(f"{'-' * 40}\n{x}\n{'-' * 40}")  # noqa: T201


def run_and_print_episode(
    env: Env, policy: Callable[[str], str], ignore_done: bool = False, max_steps: float = 1e9
) -> None:
    """Play an episode and print every turn."""
    observation, _ = env.reset()
    steps, done = 0, False
    while steps < max_steps and (ignore_done or not done):
        action = policy(observation)
        observation, reward, terminated, truncated, info = env.step(action)
        done, steps = terminated or truncated, steps + 1
        ppprint(f"action: {action}\nobservation: {observation}\nreward: {reward}, done: {done}\ninfo: {info}")
