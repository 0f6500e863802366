"""GEM's environments over data sets, by GEM's names and with GEM's arguments and attributes.

Each is a subclass of rollenv's own. What differs is what GEM's programs see: the question as it is in the data set,
``env.dataset`` in the order of play, ``first_obs`` and ``answer`` to read and to set, and a step that ends with
``(TERMINAL_STATE, reward, True, True, {"correct": ...})`` however often it is called.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rollenv.core.env import Env, ResetResult
from rollenv.core.errors import UsageError
from rollenv.core.parsing import last_boxed, last_code_block
from rollenv.envs.code import env as code_env
from rollenv.envs.code.tests import StdioTests, Tests, count
from rollenv.envs.data.rows import Row
from rollenv.envs.data.text_answers import MAX_CHARACTERS, exact_match
from rollenv.envs.math import env as math_env
from rollenv.envs.math import visual as math_visual_env
from rollenv.envs.math.grade import grade
from rollenv.envs.qa import env as qa_env
from rollenv.plugins.gem import _Module
from rollenv.plugins.gem.math_grader import boxed_reward_fn
from rollenv.plugins.gem.rows import ReasoningGymEnv as ReasoningGymEnv
from rollenv.plugins.gem.rows import Rows, as_dataset, chosen_split
from rollenv.plugins.gem.utils import BASE_IMPORTS, extract_last_boxed_answer, extract_last_tagged_answer
from rollenv.sandbox import RunResult, shared_pool

logger = logging.getLogger(__name__)

#: Function from a response and a correct answer to `(info, reward)`.
verify_fn = functools.partial(boxed_reward_fn, fast=False, correct_reward=1, incorrect_reward=0)

#: GEM's names of rollenv's own classes.
CLASSES = {
    "rollenv.envs.math.env:MathEnv": "MathEnv",
    "rollenv.envs.math.visual:MathVisualEnv": "MathVisualEnv",
    "rollenv.envs.qa.env:QaEnv": "QaEnv",
    "rollenv.envs.code.env:CodeEnv": "CodeEnv",
    "rollenv.envs.rg.env:ReasoningGymEnv": "ReasoningGymEnv",
}


def _known(cls: type, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that are keyword-only in rollenv's class. GEM's classes ignore all others."""
    parameters = inspect.signature(cls).parameters.values()
    names = {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    return {name: value for name, value in given.items() if name in names}


#: GEM's names of the column with correct answers.
_GOLD_KEY: Any = property(lambda env: env.gold_key, lambda env, key: setattr(env, "gold_key", key))


def _checked(answer: Any) -> Any:
    """A correct answer, or a list of them."""
    if answer is None or isinstance(answer, dict | tuple):
        raise UsageError(f"a correct answer must be a text, a number or a list of them, not {type(answer).__name__}")
    return answer


class MathEnv(Rows, math_env.MathEnv):
    """GEM's MathEnv. ``eval=True`` keeps the order of the rows in the first epoch."""

    answer: Any
    answer_key = _GOLD_KEY

    def __init__(
        self,
        dataset_name: str | None = "",
        split: str | None = None,
        dataset: Any = None,
        question_key: str = "problem",
        answer_key: str = "answer",
        use_format_error_reward: bool = False,
        seed: int | None = 0,
        use_mp: bool = True,
        **kwargs: Any,
    ):
        chosen, graded = chosen_split(dataset, split), (use_format_error_reward, seed, use_mp)
        math_env.MathEnv.__init__(self, dataset_name, split, chosen, question_key, answer_key, *graded, instruct=False)
        self.use_mp = use_mp
        self._begin(seed, as_dataset(self.rows), shuffle=not kwargs.get("eval", False))

    @property
    def accepted(self) -> tuple[str, ...]:
        """The answers that count as correct."""
        return math_env.gold_answers(self.answer)

    def _mark(self, action: str) -> tuple[float, dict[str, Any]]:
        valid = last_boxed(action) is not None
        correct = bool(self.check_correct(action, self.answer))
        return float(correct) if valid or correct else self.format_reward, {"correct": correct, "valid": valid}

    @staticmethod
    def check_correct(model_answer: str, gt_answer: Any) -> bool:
        """Return whether the answer in the last box is correct."""
        answer, golds = last_boxed(model_answer), math_env.gold_answers(_checked(gt_answer))
        return answer is not None and any(grade(gold, answer) for gold in golds)


class MathVisualEnv(MathEnv, math_visual_env.MathVisualEnv):
    """GEM's MathVisualEnv, whose observation is a dict of ``problem`` and ``images`` (Pillow's)."""

    def __init__(
        self,
        dataset_name: str | None = "",
        split: str | None = None,
        dataset: Any = None,
        image_key: str = "images",
        question_key: str = "problem",
        answer_key: str = "answer",
        seed: int | None = 0,
        use_mp: bool = True,
        **kwargs: Any,
    ):
        math_visual_env.MathVisualEnv.__init__(
            self,
            dataset_name,
            split,
            chosen_split(dataset, split),
            image_key,
            question_key,
            answer_key,
            seed,
            use_mp,
            instruct=False,
            use_format_error_reward=kwargs.get("use_format_error_reward", False),
        )
        self.use_mp = use_mp
        self._begin(seed, as_dataset(self.rows), shuffle=not kwargs.get("eval", False))

    def _first_observation(self) -> Any:
        return {"problem": self._current[self.question_key], "images": self.images}

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "image_key": self.image_key}


def apply_prompt(example: dict[str, Any], question_key: str = "question") -> dict[str, Any]:
    """Prepend instructions on the answer format to a row's question."""
    return _Prompt(question_key)(example)


@dataclass(frozen=True)
class _Prompt:
    """Prepends instructions on the answer format to a row's question."""

    question_key: str
    boxed: bool = False

    def __call__(self, example: dict[str, Any]) -> dict[str, Any]:
        form = "\\boxed{your answer}" if self.boxed else "<answer> your answer </answer>"
        how = f"Reason first, in the form\n<think> your reasoning </think>\nand then answer in the form\n{form}"
        example[self.question_key] = f"{how}\n\nQuestion: {example[self.question_key]}\n"
        return example


def _authors_prompt(question_key: str) -> Callable[[dict[str, Any]], Any] | None:
    """Return the function that an author put in place of ``gem.envs.qa_env.apply_prompt``."""
    module = sys.modules.get("gem.envs.qa_env")
    function = vars(module).get("apply_prompt") if isinstance(module, _Module) else None
    return None if function in (None, apply_prompt) else functools.partial(function, question_key=question_key)


class QaEnv(Rows, qa_env.QaEnv):
    """GEM's QaEnv. ``extractor`` finds the answer in an action, and may be replaced."""

    answer: Any
    answer_key = _GOLD_KEY

    def __init__(
        self,
        dataset_name: str | None = "",
        split: str | None = None,
        dataset: Any = None,
        question_key: str = "question",
        answer_key: str = "answer",
        seed: int | None = 0,
        extract_boxed: bool = False,
        load_from_cache_file: bool = True,
        **_: Any,
    ):
        chosen = chosen_split(dataset, split)
        qa_env.QaEnv.__init__(self, dataset_name, split, chosen, question_key, answer_key, seed, extract_boxed)
        self.extractor = extract_last_boxed_answer if extract_boxed else extract_last_tagged_answer
        prompt = _authors_prompt(question_key) or _Prompt(question_key, extract_boxed)
        self._begin(seed, as_dataset(self.rows, prompt, load_from_cache_file=load_from_cache_file))

    @property
    def accepted(self) -> tuple[str, ...]:
        """The answers that count as correct."""
        return qa_env.texts(self.answer)

    def _mark(self, action: str) -> tuple[float, dict[str, Any]]:
        answer = self.extractor(action)
        correct = answer is not None and bool(self.check_correct(answer, self.answer))
        return float(correct), {"correct": correct, "valid": answer is not None}

    @staticmethod
    def check_correct(model_answer: str, gt_answer: Any) -> bool:
        """Return whether the answer is correct after SQuAD's normalisation."""
        golds = qa_env.texts(_checked(gt_answer))
        short = len(model_answer) <= MAX_CHARACTERS
        return short and bool(exact_match(model_answer, golds))

    def spawn(self, same_state: bool = False, **kwargs: Any) -> Env:
        """Return a new environment over the same rows, whose questions already have the prompt."""
        child = super().spawn(same_state, **kwargs)
        if not same_state and "dataset" not in kwargs:
            assert isinstance(child, QaEnv)
            child.dataset = self.dataset.shuffle(seed=child.seed)
        return child

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "extract_boxed": self.extract_boxed}


class _ImportsForgotten:
    """The shared pool. A program that lacks a common import runs again with it, the same as in GEM."""

    def run(self, code: str, *, stdin: str = "", timeout: float | None = None) -> RunResult:
        result = shared_pool().run(code, stdin=stdin, timeout=timeout)
        if result.exit_code != 0 and "is not defined" in result.stderr:
            return shared_pool().run(f"{BASE_IMPORTS}\n{code}", stdin=stdin, timeout=timeout)
        return result

    def close(self) -> None:
        """Do nothing: the process shares the pool."""


class _Taken:
    """Rows of an author's iterator. Copies of an environment share them, each at its own index."""

    def __init__(self, rows: Iterator[Any]):
        self._rows, self._taken = rows, list[Any]()

    def at(self, index: int) -> Any:
        """Return the row at an index, counted from 0; None past the end."""
        while len(self._taken) <= index:
            self._taken.append(next(self._rows, None))
        return self._taken[index]


class CodeEnv(Rows, code_env.CodeEnv):
    """GEM's CodeEnv. ``tests`` are those of the row; programs always run in isolated sandboxes."""

    tests: Any = None
    test_key = _GOLD_KEY
    _answer_name = "tests"
    _given: _Taken | None = None
    """The rest of the epoch that an author put in place of ``dataset_iter``; copies share it."""
    shared_by_copies = Rows.shared_by_copies | {"_given", "thread_pool_executer"}

    def __init__(
        self,
        dataset_name: str | None = "",
        split: str | None = None,
        dataset: Any = None,
        question_key: str = "problem",
        test_key: str = "tests",
        seed: int | None = 0,
        max_workers: int = 5,
        max_tests: int | None = 12,
        verbose: bool = False,
        sandbox_type: str = "none",
        **kwargs: Any,
    ):
        runners = {"sandbox": _ImportsForgotten(), "judge": code_env.judges()}
        if sandbox_type not in ("none", "bwrap"):
            raise UsageError(f"sandbox_type {sandbox_type!r} is unknown; use 'none' or 'bwrap', which both isolate")
        code_env.CodeEnv.__init__(
            self,
            dataset_name,
            split,
            chosen_split(dataset, split),
            question_key,
            test_key,
            seed,
            max_workers,
            max_tests,
            **{**runners, **_known(code_env.CodeEnv, kwargs)},
        )
        self.dataset_name, self.verbose, self.sandbox_type = dataset_name, verbose, sandbox_type
        self._begin(seed, as_dataset(self.rows))

    @property
    def dataset(self) -> Any:
        """The rows that are played, in order. Another data set in its place is played from its first row."""
        return self._dataset

    @dataset.setter
    def dataset(self, value: Any) -> None:
        self._dataset, self.idx, self._given = value, 0, None

    @property
    def dataset_iter(self) -> Iterator[Any]:
        """The rows that are still to come in this epoch; what is taken here is not asked.

        Another iterator in its place gives the rest of the epoch.
        """
        while self._given is not None or self.idx < len(self.dataset):
            row = self.dataset[self.idx] if self._given is None else self._given.at(self.idx)
            if row is None:
                return
            self.idx += 1
            yield row

    @dataset_iter.setter
    def dataset_iter(self, value: Iterator[Any]) -> None:
        self.idx, self._given = 0, _Taken(value)

    @functools.cached_property
    def thread_pool_executer(self) -> ThreadPoolExecutor:
        """Threads for an author's own use."""
        return ThreadPoolExecutor(self.max_workers)

    def _ask(self, seed: int | None, index: int | None) -> ResetResult:
        if self._given is not None and seed is None and index is None:
            row = next(self.dataset_iter, None)
            if row is not None:
                self._take(row)
                return self.first_obs, {"idx": self.idx - 1}
            self._given, self.idx = None, len(self.dataset)  # the epoch has ended
        next_row = self.idx
        result = super()._ask(seed, index)
        if seed is not None and index is None:  # a draw does not move on in the rows
            self.idx = next_row
        return result

    def _take(self, row: Row) -> None:
        if isinstance(row[self.gold_key], str) and not row.get("entry_point"):
            row = {**row, self.gold_key: json.loads(row[self.gold_key])}
        super()._take(row)

    def _first_observation(self) -> Any:
        return super()._first_observation() if isinstance(self._tests(), StdioTests) else self._question()

    def _tests(self) -> Tests:
        return self._parse(self.tests)

    def _mark(self, action: str) -> tuple[float, dict[str, Any]]:
        code = last_code_block(action)
        code = last_code_block(action, languages=None) if code is None else code
        if code is None:
            return self.format_reward, {"correct": False, "valid": False}
        correct = self._check_correct(code)
        return float(correct), {"correct": correct, "valid": True}

    def _check_correct(self, model_code: str) -> bool:
        """Return whether the program passes all tests."""
        tests = self._tests()
        total = count(tests)
        short = len(model_code) <= code_env.MAX_CHARACTERS
        return short and self._run(self._program(model_code), tests, total) == total

    def _arguments(self) -> dict[str, Any]:
        names = ("dataset_name", "question_key", "max_workers", "max_tests", "verbose", "sandbox_type", "solution_key")
        arguments = {name: getattr(self, name) for name in (*names, "timeout", "shown_tests")}
        return {**arguments, "dataset": self.dataset, "test_key": self.gold_key}
