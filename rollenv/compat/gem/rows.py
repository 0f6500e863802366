"""The common base of GEM's environments over data sets: questions that may be answered again, rows in GEM's order."""

from __future__ import annotations

import copy
import operator
import random
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from rollenv.compat.gem.constants import TERMINAL_STATE
from rollenv.compat.gem.core import GemEnv, Refused
from rollenv.core import Env, ResetResult, StepResult
from rollenv.envs.data.rows import Row
from rollenv.envs.data.task import RowEnv


class Answered(GemEnv):
    """One question, and answers to it, each of which is judged for itself."""

    _asked = False

    def reset(self, seed: int | None = None, idx: int | None = None, **given: Any) -> ResetResult:
        """Start an episode with row ``idx``, with one that the seed draws, or with the next.

        Raises:
            Refused: there is no such row.
        """
        index = (given.get("options") or {}).get("index") if idx is None else idx
        if seed is not None:
            self.seed_stream(seed)
        observation, info = self._ask(None if seed is None else operator.index(seed), index)
        self._begun = self._asked = True
        self._over = False
        return observation, info

    def _ask(self, seed: int | None, index: int | None) -> ResetResult:
        raise NotImplementedError(f"{type(self).__name__} has no _ask()")

    def _checked(self, index: Any, n: int) -> int:
        if not isinstance(index, int | np.integer) or isinstance(index, bool) or not 0 <= index < n:
            raise Refused(f"{self}: there are rows 0 to {n - 1}, not {index!r}")
        return int(index)

    def step(self, action: Any) -> StepResult:
        if not self._asked and not self._has_answer():
            self.reset()
        reward, info = self._mark(action if isinstance(action, str) else str(action))
        self._over = True
        return TERMINAL_STATE, reward, True, True, {**info, "success": info["correct"]}

    def _has_answer(self) -> bool:
        """Return whether there is something to judge by, which a program may have set without :meth:`reset`."""
        raise NotImplementedError(f"{type(self).__name__} has no _has_answer()")

    def _mark(self, action: str) -> tuple[float, dict[str, Any]]:
        """The reward of an answer, and what the info says of it."""
        raise NotImplementedError(f"{type(self).__name__} has no _mark()")


class Rows(Answered):
    """Rows in GEM's order: shuffled by the seed, and again for every epoch."""

    dataset: Any
    """What is played, in order; another one may be put in its place."""
    seed: int
    idx: int
    """The row that the next reset takes."""
    epoch: int
    first_obs: Any
    rows: Sequence[Row]
    question_key: str
    gold_key: str
    _answer_name = "answer"
    shared_by_copies = RowEnv.shared_by_copies | {"dataset", "_dataset"}

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

    def _has_answer(self) -> bool:
        return getattr(self, self._answer_name, None) is not None

    def _take(self, row: Row) -> None:
        self._current = row
        answer = row[self.gold_key]
        setattr(self, self._answer_name, list(answer) if isinstance(answer, tuple) else answer)
        self.first_obs = self._first_observation()

    def _first_observation(self) -> Any:
        return self._current[self.question_key]

    @property
    def row(self) -> Row:
        """The row of the current episode."""
        return self._current

    @property
    def question(self) -> Any:
        """The question: :attr:`first_obs`."""
        return self.first_obs

    @question.setter
    def question(self, value: Any) -> None:
        self.first_obs = value

    def num_tasks(self) -> int:
        return len(self.dataset)

    def render(self) -> str:
        return str(getattr(self, "first_obs", ""))

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
        """Another over the same rows: in the same state, or at the start of its own order."""
        if same_state:
            return self._twin()
        if self.seed == kwargs.get("seed", 0):
            warnings.warn("the new environment has the same seed, so that it asks the same questions", stacklevel=2)
        child = type(self)(**{**self._arguments(), **kwargs})
        child.spec = self.spec
        return child

    def _arguments(self) -> dict[str, Any]:
        return {"dataset": self.dataset, "question_key": self.question_key, f"{self._answer_name}_key": self.gold_key}
