"""GEM's environments over data sets, by GEM's names and with GEM's arguments and attributes.

Each is a subclass of rollenv's own. What differs is what GEM's programs see: the question as it is in the data set,
``env.dataset`` in the order of play, ``first_obs`` and ``answer`` to read and to set, and a step that ends with
``(TERMINAL_STATE, reward, True, True, {"correct": ...})`` however often it is called.
"""

from __future__ import annotations

import copy
import inspect
import json
import operator
import random
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollenv.compat.gem.core import GemEnv
from rollenv.compat.gem.imports import BASE_IMPORTS
from rollenv.compat.gem.tables import as_dataset, chosen_split
from rollenv.compat.gem.utils import TERMINAL_STATE, extract_last_boxed_answer, extract_last_tagged_answer
from rollenv.core import Env, ResetResult, StepResult, UsageError
from rollenv.envs.adapters import rg
from rollenv.envs.data import code_env, math_env, math_visual_env, qa_env
from rollenv.envs.data.code_tests import StdioTests, Tests, count
from rollenv.envs.data.datasets import Row
from rollenv.envs.data.grading import grade
from rollenv.parsing import last_boxed, last_code_block
from rollenv.sandbox import RunResult, shared_pool

#: For rollenv's own classes, the name of GEM's here.
CLASSES = {
    "rollenv.envs.data.math_env:MathEnv": "MathEnv",
    "rollenv.envs.data.math_visual_env:MathVisualEnv": "MathVisualEnv",
    "rollenv.envs.data.qa_env:QaEnv": "QaEnv",
    "rollenv.envs.data.code_env:CodeEnv": "CodeEnv",
    "rollenv.envs.adapters.rg:ReasoningGymEnv": "ReasoningGymEnv",
}


class _Answered(GemEnv):
    """One question, and answers to it, each of which is judged for itself."""

    _asked = False

    def reset(self, seed: int | None = None, idx: int | None = None, **given: Any) -> ResetResult:
        """Start an episode with row ``idx``, with one that the seed draws, or with the next.

        Raises:
            UsageError: there is no such row.
        """
        index = (given.get("options") or {}).get("index") if idx is None else idx
        if seed is not None:
            self.seed_stream(seed)
        observation, info = self._ask(None if seed is None else operator.index(seed), index)
        self._begun = self._asked = True
        self._over = False
        return observation, info

    def _ask(self, seed: int | None, index: int | None) -> ResetResult:
        raise NotImplementedError

    def _checked(self, index: Any, n: int) -> int:
        if not isinstance(index, int | np.integer) or isinstance(index, bool) or not 0 <= index < n:
            raise UsageError(f"{self}: there are rows 0 to {n - 1}, not {index!r}")
        return int(index)

    def step(self, action: Any) -> StepResult:
        if not self._asked:
            self.reset()
        reward, info = self._mark(action if isinstance(action, str) else str(action))
        self._over = True
        return TERMINAL_STATE, reward, True, True, {**info, "success": reward >= rg.SOLVED}

    def _mark(self, action: str) -> tuple[float, dict[str, Any]]:
        """The reward of an answer, and what the info says of it."""
        raise NotImplementedError


class _Rows(_Answered):
    """Rows in GEM's order: shuffled by the seed, and again for every epoch."""

    dataset: Any
    """What is played, in order; another one may be put in its place."""
    seed: int
    idx: int
    """The row that the next reset takes."""
    epoch: int
    first_obs: Any
    _answer_name = "answer"

    def _begin(self, seed: int | None, dataset: Any, shuffle: bool = True) -> None:
        self.seed, self.idx, self.epoch = seed or 0, 0, 0
        self.dataset = dataset.shuffle(seed=self.seed) if shuffle else dataset
        self._current: Row = {}

    def _ask(self, seed: int | None, index: int | None) -> ResetResult:
        n = len(self.dataset)
        if index is not None:
            self.idx = self._checked(index, n)
        elif seed is not None:
            self.idx = random.Random(seed).randrange(n)
        elif self.idx >= n:
            self.epoch += 1
            self.dataset, self.idx = self.dataset.shuffle(seed=self.seed + self.epoch), 0
        self._take(self.dataset[self.idx])
        self.idx += 1
        return self.first_obs, {"idx": self.idx - 1}

    def _take(self, row: Row) -> None:
        self._current = row
        setattr(self, self._answer_name, row[self.gold_key])
        self.first_obs = self._first_observation()

    def _first_observation(self) -> Any:
        return self._current[self.question_key]

    @property
    def row(self) -> Row:
        """The row of the current episode."""
        return self._current

    @property
    def question(self) -> Any:
        """What was asked: :attr:`first_obs`."""
        return self.first_obs

    @question.setter
    def question(self, value: Any) -> None:
        self.first_obs = value

    def num_tasks(self) -> int:
        return len(self.dataset)

    def render(self) -> str:
        return str(self.first_obs) if self._asked else ""

    def state_key(self) -> str:
        return f"{self.epoch}/{self.idx}"

    def get_state(self) -> dict[str, Any]:
        """The question and what answers it, and the place in the data set."""
        names = ("first_obs", self._answer_name, "idx", "epoch")
        return copy.deepcopy({**{name: getattr(self, name) for name in names}, "row": dict(self._current)})

    def set_state(self, state: dict[str, Any]) -> None:
        """Go back to a state; GEM's own, of the question and answer alone, will do."""
        state = copy.deepcopy(state)
        row = state.pop("row", None)
        for name, value in state.items():
            setattr(self, name, value)
        self._current = row or {self.question_key: self.first_obs, self.gold_key: getattr(self, self._answer_name)}
        self._begun = self._asked = True
        self._over = False

    def spawn(self, same_state: bool = False, **kwargs: Any) -> Env:
        """Another over the same rows: in the same state, or at the start of an order of its own."""
        if same_state:
            return self._twin()
        if self.seed == kwargs.get("seed", 0):
            warnings.warn("the new environment has the same seed, so that it asks the same questions", stacklevel=2)
        child = type(self)(**{**self._arguments(), **kwargs})
        child.spec = self.spec
        return child

    def _arguments(self) -> dict[str, Any]:
        return {"dataset": self.dataset, "question_key": self.question_key, f"{self._answer_name}_key": self.gold_key}


def _known(cls: type, given: dict[str, Any]) -> dict[str, Any]:
    """Those of the arguments that rollenv's class takes by name alone. GEM's classes ignore all others."""
    parameters = inspect.signature(cls).parameters.values()
    names = {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    return {name: value for name, value in given.items() if name in names}


class MathEnv(_Rows, math_env.MathEnv):
    """GEM's MathEnv. ``eval=True`` keeps the order of the rows in the first epoch."""

    answer: Any

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
        math_env.MathEnv.__init__(
            self,
            dataset_name,
            split,
            chosen_split(dataset, split),
            question_key,
            answer_key,
            use_format_error_reward,
            seed,
            use_mp,
            instruct=False,
        )
        self.use_mp = use_mp
        self._begin(seed, as_dataset(self.rows), shuffle=not kwargs.get("eval", False))

    @property
    def accepted(self) -> tuple[str, ...]:
        """The answers that count as right."""
        return math_env.gold_answers(self.answer)

    def _mark(self, action: str) -> tuple[float, dict[str, Any]]:
        valid = last_boxed(action) is not None
        correct = bool(self.check_correct(action, self.answer))
        return float(correct) if valid or correct else self.format_reward, {"correct": correct, "valid": valid}

    @staticmethod
    def check_correct(model_answer: str, gt_answer: Any) -> bool:
        """Whether the answer in the last box is one of the right ones."""
        answer = last_boxed(model_answer)
        return answer is not None and any(grade(gold, answer) for gold in math_env.gold_answers(gt_answer))


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
    """The row with a question that says first how to answer it."""
    return _Prompt(question_key)(example)


@dataclass(frozen=True)
class _Prompt:
    """Makes of a row one whose question says first how to answer it."""

    question_key: str
    boxed: bool = False

    def __call__(self, example: dict[str, Any]) -> dict[str, Any]:
        form = "\\boxed{your answer}" if self.boxed else "<answer> your answer </answer>"
        how = f"Reason first, in the form\n<think> your reasoning </think>\nand then answer in the form\n{form}"
        example[self.question_key] = f"{how}\n\nQuestion: {example[self.question_key]}\n"
        return example


class QaEnv(_Rows, qa_env.QaEnv):
    """GEM's QaEnv. ``extractor`` finds the answer in an action, and may be replaced."""

    answer: Any

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
        prompt = _Prompt(question_key, extract_boxed)
        self._begin(seed, as_dataset(self.rows, prompt, load_from_cache_file=load_from_cache_file))

    @property
    def accepted(self) -> tuple[str, ...]:
        """The answers that count as right."""
        return qa_env.texts(self.answer)

    def _mark(self, action: str) -> tuple[float, dict[str, Any]]:
        answer = self.extractor(action)
        correct = answer is not None and bool(self.check_correct(answer, self.answer))
        return float(correct), {"correct": correct, "valid": answer is not None}

    @staticmethod
    def check_correct(model_answer: str, gt_answer: Any) -> bool:
        """Whether the answer is one of the right ones after SQuAD's normalisation."""
        short = len(model_answer) <= qa_env.MAX_CHARACTERS
        return short and bool(qa_env.exact_match(model_answer, qa_env.texts(gt_answer)))

    def spawn(self, same_state: bool = False, **kwargs: Any) -> Env:
        """Another over the same rows; their questions have the prompt already."""
        child = super().spawn(same_state, **kwargs)
        if not same_state and "dataset" not in kwargs:
            assert isinstance(child, QaEnv)
            child.dataset = self.dataset.shuffle(seed=child.seed)
        return child

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "extract_boxed": self.extract_boxed}


class _ImportsForgotten:
    """The shared pool; a program that fails over an undefined name runs again after the usual imports, as in GEM."""

    def run(self, code: str, *, stdin: str = "", timeout: float | None = None) -> RunResult:
        result = shared_pool().run(code, stdin=stdin, timeout=timeout)
        if result.exit_code != 0 and "is not defined" in result.stderr:
            return shared_pool().run(f"{BASE_IMPORTS}\n{code}", stdin=stdin, timeout=timeout)
        return result

    def close(self) -> None:
        """The pool is the process's."""


class CodeEnv(_Rows, code_env.CodeEnv):
    """GEM's CodeEnv. ``tests`` are those of the row; programs always run in isolated sandboxes."""

    tests: Any = None  # type: ignore[assignment]
    _answer_name = "tests"

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
        runners = {"sandbox": _ImportsForgotten(), "judge": code_env.Judges()}
        if sandbox_type not in ("none", "bwrap"):
            raise UsageError(f"sandbox_type {sandbox_type!r} is unknown; none and bwrap mean an isolated sandbox")
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
    def dataset(self) -> Any:  # type: ignore[override]
        """What is played, in order. Another one in its place is played from its first row."""
        return self._dataset

    @dataset.setter
    def dataset(self, value: Any) -> None:
        self._dataset, self.idx = value, 0

    @property
    def dataset_iter(self) -> Iterator[Any]:
        """The rows that are still to come in this epoch; set to ``iter(env.dataset)``, it starts the epoch anew."""
        return (self.dataset[i] for i in range(self.idx, len(self.dataset)))

    @dataset_iter.setter
    def dataset_iter(self, value: Iterator[Any]) -> None:
        self.idx = 0

    def _ask(self, seed: int | None, index: int | None) -> ResetResult:
        next_row = self.idx
        result = super()._ask(seed, index)
        if seed is not None and index is None:  # a draw is no step of the way through the rows
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
        """Whether the program passes all tests."""
        tests = self._tests()
        total = count(tests)
        short = len(model_code) <= code_env.MAX_CHARACTERS
        return short and self._run(self._program(model_code), tests, total) == total

    def _arguments(self) -> dict[str, Any]:
        names = ("dataset_name", "question_key", "max_workers", "max_tests", "verbose", "sandbox_type", "solution_key")
        arguments = {name: getattr(self, name) for name in (*names, "timeout", "shown_tests")}
        return {**arguments, "dataset": self.dataset, "test_key": self.gold_key}


class ReasoningGymEnv(_Answered, rg.ReasoningGymEnv):
    """GEM's ReasoningGymEnv: the items of the data set of ``seed`` in order, then those of another seed.

    ``ds`` is reasoning-gym's data set, ``data`` the item that was asked.
    """

    def __init__(self, name: str, size: int = 500, seed: int = 42, **_: Any):
        rg.ReasoningGymEnv.__init__(self, name, size, dataset_seed=seed, seed=seed)
        self.seed, self.idx, self._ds_seed = seed, 0, seed
        self._way = (seed, 0)

    @property
    def ds(self) -> Any:
        """reasoning-gym's data set."""
        return rg.data_set(self._source, self._ds_seed)

    @property
    def ds_iter(self) -> Iterator[Any]:
        """The items that are still to come."""
        seed, place = self._way
        return (rg.make_item(self._source, seed, i)[1] for i in range(place, self.size))

    @property
    def data(self) -> dict[str, Any]:
        """The item that was asked."""
        return self.item

    def reward_fn(self, answer: str | None, entry: dict[str, Any]) -> float:
        """reasoning-gym's score of an answer to an item, for answers that may be scored; the others count as none."""
        kind = str(entry["metadata"].get("source_dataset", self.name)) if self.name == "composite" else self.name
        scored = answer is not None and rg.may_be_scored(kind, answer, entry)
        return float(self.ds.score_answer(answer=answer if scored else None, entry=entry))

    def _ask(self, seed: int | None, index: int | None) -> ResetResult:
        if index is not None:
            self._load(self._ds_seed, self._checked(index, self.size))
        elif seed is not None:
            self._load(self._ds_seed, random.Random(seed).randrange(self.size))
            if (self.idx + 1) % self.size == 0:
                self._ds_seed = self.seed + self.idx
        else:
            self._next()
        self.idx += 1
        return self.item["question"], {}

    def _next(self) -> None:
        seed, place = self._way
        if place >= self.size:
            seed, place = self.seed + self.idx, 0
            self._ds_seed = seed
        self._load(seed, place)
        self._way = seed, place + 1

    def _mark(self, action: str) -> tuple[float, dict[str, Any]]:
        answer = _untrimmed(action)
        score, raised = rg.answer_score(self._source, self.dataset_seed, self.index, answer)
        info: dict[str, Any] = {"correct": score >= rg.SOLVED, "valid": answer is not None}
        return score, {**info, "scorer_error": raised} if raised else info

    def get_state(self) -> dict[str, Any]:
        """The item, and the place in the data set."""
        place = {"dataset_seed": self.dataset_seed, "index": self.index, "ds_seed": self._ds_seed}
        return {"idx": self.idx, "data": copy.deepcopy(self.item), **place, "way": list(self._way)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._load(state["dataset_seed"], state["index"])
        self.idx, self._ds_seed, self._way = state["idx"], state["ds_seed"], tuple(state["way"])
        self._begun = self._asked = True
        self._over = False

    def spawn(self, same_state: bool = False, **kwargs: Any) -> Env:
        """Another of the same data set: in the same state, or at its start."""
        if same_state:
            return self._twin()
        if self.seed == kwargs.get("seed", 42):
            warnings.warn("the new environment has the same seed, so that it asks the same questions", stacklevel=2)
        child = type(self)(**{"name": self.name, "size": self.size, **kwargs})
        child.spec = self.spec
        return child


def _untrimmed(action: str) -> str | None:
    """What stands in the last box, with the white space around it, which reasoning-gym's scorers count."""
    answer = last_boxed(action)
    if answer is None:
        return None
    boxes = re.findall(rf"box(?:ed)?\s*\{{(\s*{re.escape(answer)}\s*)\}}", action)
    return boxes[-1] if boxes else answer
