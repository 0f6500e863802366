"""GEM's constants and small helpers, by their names and with their results."""

from __future__ import annotations

import contextlib
import random
import re
import string as characters
import subprocess
from collections.abc import Callable, Sequence
from pprint import pformat, pprint
from typing import Any

import numpy as np
from gymnasium.utils import seeding

from rollenv.core.parsing import last_boxed, last_code_block, last_tagged

#: Modules and names of the standard library, and numpy where it is installed. ``datetime`` is the module and ``time``
#: the function, as in GEM; what would hide a built-in function is left out.
BASE_IMPORTS = """\
from typing import *
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from string import *
from copy import deepcopy
from decimal import Decimal
from fractions import Fraction
from math import (
    acos, asin, atan, atan2, ceil, comb, cos, degrees, dist, e, exp, fabs, factorial, floor, fsum, gcd, hypot, inf,
    isclose, isqrt, lcm, log, log2, log10, nan, perm, pi, prod, radians, sin, sqrt, tan, trunc,
)
from operator import add, and_, iand, itemgetter, attrgetter, mul, or_, sub, xor
from os.path import commonprefix
from random import choice, randint, randrange, sample, shuffle
from re import search as re_search
from statistics import mean, median
import bisect, collections, copy, datetime, decimal, fractions, functools, heapq, io, itertools, json, math, operator
import os, queue, random, re, statistics, string, sys
from time import time
try:
    import numpy as np, numpy
except ImportError:
    pass
"""


#: The release of GEM whose names these are.
__version__ = "0.1.0"

TERMINAL_STATE = "<｜TERMINAL_STATE｜>"
INVALID_ACTION = "<｜INVALID_ACTION｜>"


class LanguageGameReward:
    """The rewards that GEM's games share."""

    success_reward: float = 1.0
    internal_step_reward: float = 0.0
    fail_reward: float = 0.0
    invalid_action_reward: float = 0.0
    format_error_reward: float = -0.1


def extract_last_boxed_answer(solution: str) -> str | None:
    """The content of the last box, with the white space around it."""
    box = _last_box(solution)
    return None if box is None else box[1]


def last_boxed_only_string(string: str) -> str | None:
    """The last box itself."""
    box = _last_box(string)
    return None if box is None else box[0]


def _last_box(text: str) -> re.Match[str] | None:
    answer = last_boxed(text)
    if answer is None:
        return None
    inner = rf"\s*{re.escape(answer)}\s*" if answer else r"\s*"
    return max(re.finditer(rf"\\f?box(?:ed)?\s*\{{({inner})\}}", text), key=re.Match.start, default=None)


def remove_boxed(s: str | None) -> str | None:
    """The content of a box that is the whole string; None if it is not a box."""
    whole = isinstance(s, str) and s.startswith("\\boxed{") and s.endswith("}")
    return s[7:-1] if whole and s is not None else None


def extract_code_from_model(model_response: str) -> str | None:
    """The last code fence of any language."""
    code = last_code_block(model_response, languages=None)
    return None if code is None else code.strip()


def extract_last_tagged_answer(model_response: str) -> str | None:
    """The content of the last ``<answer>`` element."""
    return last_tagged(model_response)


RNG = RandomNumberGenerator = np.random.Generator


def np_random(seed: int | None = None) -> tuple[np.random.Generator, int]:
    """A generator and the seed it was started with."""
    return seeding.np_random(seed)


def set_seed(seed: int | None = None) -> None:
    """Seed the process-wide generators. rollenv's own environments never use them."""
    random.seed(seed)
    np.random.seed(seed)


def normalize_answer(s: str) -> str:
    """SQuAD's normal form, which is empty for a text of articles and punctuation alone."""
    words = s.lower().translate(str.maketrans("", "", characters.punctuation))
    return " ".join(re.sub(r"\b(?:a|an|the)\b", " ", words).split())


def em_check(prediction: str, golden_answers: str | Sequence[str]) -> bool:
    """Return whether the prediction equals one of the answers after normalisation."""
    answers = [golden_answers] if isinstance(golden_answers, str) else golden_answers
    return normalize_answer(prediction) in map(normalize_answer, answers)


DEFAULT_TIMEOUT = 10
CLI_ARG_SIZE_LIMIT = 3072
ERROR_MSG_PREFIX = "Failed to execute program: "

_RISKY = re.compile(
    r"\b(?:import|from)\s+(?:subprocess|multiprocessing|threading|socket|psutil|resource|ctypes)\b"
    r"|\bos\.(?:system|popen|spawn\w*|fork\w*|exec\w*|_exit|kill\w*)\b|\bsys\.exit\b"
)


def check_forbidden_imports(code: str) -> bool:
    """Return whether code names what GEM forbids. Here it may run: the sandbox holds it."""
    return bool(_RISKY.search(code))


def subprocess_run(
    code: str,
    cmd_list: Sequence[str] = (),
    sandbox_type: str = "none",
    stdin: str | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> tuple[bool, str, str]:
    """``(success, stdout, stderr)`` of a program, always in an isolated sandbox, where the timeout holds.

    ``cmd_list`` and ``sandbox_type`` are accepted: nothing else is run.

    Raises:
        TimeoutExpired: it took longer.
    """
    from rollenv.sandbox import shared_pool

    if code == "...":  # a model's way to leave the program out
        return False, "", "SyntaxError: there is no program"
    result = shared_pool().run(code, stdin=stdin or "", timeout=timeout)
    if result.timed_out:
        raise subprocess.TimeoutExpired(["python", "-c", code], timeout, result.stdout, result.stderr)
    return result.exit_code == 0, result.stdout, result.stderr.strip()


def run_python(
    code: str, sandbox_type: str = "none", stdin: str | None = None, timeout: float = DEFAULT_TIMEOUT
) -> tuple[bool, str, str]:
    """The same; a program that lacks a name is run once more after the usual imports, and one that takes too long has
    failed."""
    try:
        result = subprocess_run(code, (), sandbox_type, stdin, timeout)
        if not result[0] and "is not defined" in result[2]:
            result = subprocess_run(f"{BASE_IMPORTS}\n{code}", (), sandbox_type, stdin, timeout)
    except subprocess.TimeoutExpired:
        return False, "", f"\nExecution timed out after {timeout:g} seconds."
    return result


def ppprint(x: object) -> None:
    """Print a thing, or each of a list or tuple with its number."""
    for i, item in enumerate(x if isinstance(x, list | tuple) else ()):
        print(f"----- {i + 1}/{len(x)}:\n{pformat(item)}\n")  # type: ignore[arg-type]  # noqa: T201
    if not isinstance(x, list | tuple):
        pprint(x)  # noqa: T203


def _print_turn(number: int, **parts: object) -> None:
    print(f"{'=' * 30}\nStep {number}")  # noqa: T201
    for name, value in parts.items():
        print(f"{'-' * 10} {name} {'-' * 10}")  # noqa: T201
        ppprint(value)


def _turns(observation: Any, policy: Callable[[Any], Any], ignore_done: bool, max_steps: float) -> Any:
    """The actions of an episode, which end with it; every outcome is sent in and printed."""
    step, done = 0, False
    while step == 0 or (step < max_steps and (ignore_done or not done)):
        step += 1
        action = policy(observation)
        following, reward, terminated, truncated, _ = yield action
        _print_turn(step, observation=observation, action=action, reward=reward, over=(terminated, truncated))
        observation, done = following, _done(terminated, truncated)


def _done(terminated: Any, truncated: Any) -> bool:
    """True if an episode is over, or those of all environments of a vector."""
    return bool(np.all(np.logical_or(terminated, truncated)))


def run_and_print_episode(
    env: Any, policy: Callable[[Any], Any], ignore_done: bool = False, max_steps: float = 1e9
) -> None:
    """Play an episode of an environment or a vector and print every turn."""
    turns, outcome = _turns(env.reset()[0], policy, ignore_done, max_steps), None
    with contextlib.suppress(StopIteration):
        while True:
            outcome = env.step(turns.send(outcome))


def run_and_print_episode_with_selective_step(
    env: Any, policy: Callable[[Any], Any], ignore_done: bool = False, max_steps: float = 1e9
) -> None:
    """The same with a vector of which a random part is stepped each time."""
    observation, _ = env.reset()
    step, done = 0, False
    while step == 0 or (step < max_steps and (ignore_done or not done)):
        step += 1
        actions = dict(enumerate(policy(observation)))
        chosen = [i for i in actions if np.random.rand() > 0.5] or [int(np.random.randint(len(actions)))]
        following, reward, terminated, truncated, _ = env.step({i: actions[i] for i in chosen})
        _print_turn(step, action=[actions[i] for i in chosen], next_observation=following, reward=reward)
        for i, text in zip(chosen, following, strict=True):
            observation[i] = text
        done = _done(terminated, truncated)


async def run_and_print_episode_async(
    env: Any, policy: Callable[[Any], Any], ignore_done: bool = False, max_steps: float = 1e9
) -> None:
    """The same with an environment whose ``reset`` and ``step`` are awaited."""
    turns, outcome = _turns((await env.reset())[0], policy, ignore_done, max_steps), None
    with contextlib.suppress(StopIteration):
        while True:
            outcome = await env.step(turns.send(outcome))
