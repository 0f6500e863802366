"""The common base of GEM's environments over data sets: questions that may be answered again, rows in GEM's order.

And reasoning-gym's data sets as GEM has them.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import importlib.util
import operator
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.errors import UsageError
from rollenv.envs.data.rows import HubRows, Row
from rollenv.envs.data.rows import Rows as DataRows
from rollenv.envs.data.task import RowEnv
from rollenv.envs.rg import env as rg
from rollenv.envs.rg.scoring import may_be_scored
from rollenv.plugins.gem.core import GemEnv, Refused
from rollenv.plugins.gem.utils import TERMINAL_STATE, extract_last_boxed_answer

_RowFunction = Callable[[dict[str, Any]], Any]


class NoSplit(UsageError, KeyError):
    """A data set lacks a split."""

    __str__ = Exception.__str__  # KeyError's puts the text in quotes


class Table(Sequence[Any]):
    """Rows with the methods of a ``datasets.Dataset`` that GEM's programs use, where that library is not installed or
    cannot hold the rows. Nothing is changed in place; orders follow the seed as they do there.
    """

    def __init__(self, rows: Iterable[Row]):
        self._rows = tuple(rows)

    @property
    def column_names(self) -> list[str]:
        return list(self._rows[0]) if self._rows else []

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: Any) -> Any:
        """Return a row by number, a column by name, or columns of the rows of a slice or list."""
        if isinstance(key, str):
            return [row[key] for row in self._rows]
        if isinstance(key, slice | list | tuple | range | np.ndarray):
            chosen = self._rows[key] if isinstance(key, slice) else [self._rows[i] for i in key]
            return {name: [row[name] for row in chosen] for name in self.column_names}
        return dict(self._rows[key])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(dict, self._rows)

    def select(self, indices: Iterable[int], **_: Any) -> Table:
        return Table(self._rows[i] for i in indices)

    def shuffle(self, seed: int | None = None, **_: Any) -> Table:
        return self.select(np.random.default_rng(seed).permutation(len(self)))

    def map(self, function: _RowFunction, **_: Any) -> Table:
        return Table({**row, **(function(row) or {})} for row in self)

    def filter(self, function: _RowFunction, **_: Any) -> Table:
        return Table(row for row in self if function(row))

    def to_list(self) -> list[dict[str, Any]]:
        return list(self)


def chosen_split(dataset: Any, split: str | None) -> Any:
    """Return the split, if the data set is a dict of splits.

    Raises:
        UsageError: it has several splits, and none was asked for.
        NoSplit: it has others.
    """
    if not isinstance(dataset, Mapping):
        return dataset
    if split is None and len(dataset) == 1:
        return next(iter(dataset.values()))
    if split not in dataset:
        kind = UsageError if split is None else NoSplit
        raise kind(f"the data set has the splits {', '.join(dataset)}; pass split= one of them, not {split!r}")
    return dataset[split]


def as_dataset(rows: DataRows, change: _RowFunction | None = None, **map_arguments: Any) -> Any:
    """Return the rows as a ``datasets.Dataset``, or as a :class:`Table` if that is impossible.

    Args:
        change: makes of a row the one that is shown. Equal changes of the same rows are made once.
        map_arguments: for the method ``map`` of a table on disk.
    """
    if not isinstance(rows, HubRows):
        return _built(_ById(rows), change)
    return rows.table.map(change, **map_arguments) if change else rows.table


class _ById:
    """A hashable key of unhashable rows, by identity."""

    def __init__(self, rows: DataRows):
        self.rows = rows

    def __hash__(self) -> int:
        return id(self.rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and self.rows is other.rows


@functools.lru_cache(maxsize=16)
def _built(key: _ById, change: _RowFunction | None) -> Any:
    """Prepare rows once: environments of a process share rows from a file, and the prepared ones."""
    rows = [change(dict(row)) if change else dict(row) for row in key.rows]
    if importlib.util.find_spec("datasets") is None:
        return Table(rows)
    library, arrow = importlib.import_module("datasets"), importlib.import_module("pyarrow")
    try:
        return library.Dataset.from_list(rows)
    except (arrow.ArrowException, TypeError, ValueError, OverflowError):  # columns of several types
        return Table(rows)


class Answered(GemEnv):
    """One question with answers that are graded independently."""

    seed: int
    _default_seed = 0
    _is_posed = False

    def reset(self, seed: int | None = None, idx: int | None = None, **given: Any) -> ResetResult:
        """Start an episode with row ``idx``, with one that the seed draws, or with the next.

        Raises:
            Refused: there is no such row.
        """
        index = (given.get("options") or {}).get("index") if idx is None else idx
        if seed is not None:
            self.seed_stream(seed)
        observation, info = self._ask(None if seed is None else operator.index(seed), index)
        self._rollenv_begun = self._is_posed = True
        self._rollenv_over = False
        return observation, info

    def _ask(self, seed: int | None, index: int | None) -> ResetResult:
        raise NotImplementedError(f"{type(self).__name__} has no _ask()")

    def _checked(self, index: Any, n: int) -> int:
        if not isinstance(index, int | np.integer) or isinstance(index, bool) or not 0 <= index < n:
            raise Refused(f"{self}: the index must be from 0 to {n - 1}, not {index!r}")
        return int(index)

    def step(self, action: Any) -> StepResult:
        if not self._is_posed and not self._has_answer():
            self.reset()
        reward, info = self._mark(action if isinstance(action, str) else str(action))
        self._rollenv_over = True
        return TERMINAL_STATE, reward, True, True, {**info, "success": info["correct"]}

    def spawn(self, same_state: bool = False, **kwargs: Any) -> Env:
        """Return a new environment over the same rows: in the same state, or at the start of its own order."""
        if same_state:
            return self._rollenv_twin()
        if self.seed == kwargs.get("seed", self._default_seed):
            warnings.warn("the new environment has the same seed, so that it asks the same questions", stacklevel=2)
        child = type(self)(**{**self._arguments(), **kwargs})
        child.spec = self.own_spec
        return child

    def _arguments(self) -> dict[str, Any]:
        """The constructor's arguments, without the seed."""
        raise NotImplementedError(f"{type(self).__name__} has no _arguments()")

    def _has_answer(self) -> bool:
        """Return whether there is a reference answer, which a program may have set without :meth:`reset`."""
        raise NotImplementedError(f"{type(self).__name__} has no _has_answer()")

    def _mark(self, action: str) -> tuple[float, dict[str, Any]]:
        """Return the reward of an answer and entries for the info."""
        raise NotImplementedError(f"{type(self).__name__} has no _mark()")


class Rows(Answered):
    """Rows in GEM's order: shuffled by the seed, and again for every epoch."""

    dataset: Any
    """The data set, in its order; it may be replaced."""
    idx: int
    """Index of the next reset's row."""
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
        """The question, its answer, and the index in the data set."""
        names = ("first_obs", self._answer_name, "idx", "epoch")
        return copy.deepcopy({**{name: getattr(self, name) for name in names}, "row": dict(self._current)})

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state; GEM's format, with question and answer only, is accepted."""
        state = copy.deepcopy(state)
        row = state.pop("row", None)
        for name, value in state.items():
            setattr(self, name, value)
        self._current = row or {self.question_key: self.first_obs, self.gold_key: getattr(self, self._answer_name)}
        self._rollenv_begun = self._is_posed = True
        self._rollenv_over = False

    def _arguments(self) -> dict[str, Any]:
        return {"dataset": self.dataset, "question_key": self.question_key, f"{self._answer_name}_key": self.gold_key}


class _Items(Iterator[dict[str, Any]]):
    """Iterate over the items of a seed's data set, from an index on."""

    def __init__(self, source: rg.Source, seed: int, index: int = 0):
        self.source, self.seed, self.index = source, seed, index

    def __next__(self) -> dict[str, Any]:
        if self.index >= self.source[1]:
            raise StopIteration
        item: dict[str, Any] = rg.make_item(self.source, self.seed, self.index)[1]
        self.index += 1
        return item


class ReasoningGymEnv(Answered, rg.ReasoningGymEnv):
    """GEM's ReasoningGymEnv: the items of the data set of ``seed`` in order, then those of another seed.

    ``ds`` is reasoning-gym's data set, ``ds_iter`` its items that are still to come, ``data`` the item that was asked
    and ``reward_fn`` what scores an answer. All of them may be replaced.
    """

    _default_seed = 42

    def __init__(self, name: str, size: int = 500, seed: int = 42, **_: Any):
        rg.ReasoningGymEnv.__init__(self, name, size, dataset_seed=seed, seed=seed)
        self.seed, self.idx = seed, 0
        self._own_item = True
        """True if the item is at ``index`` of the data set of ``dataset_seed``."""
        self._begin(seed)

    def _begin(self, seed: int) -> None:
        """Switch to the data set of a seed."""
        self._ds_seed = seed
        self._given_ds: Any = None
        self.ds_iter: Iterator[dict[str, Any]] = _Items(self._source, seed)

    @property
    def ds(self) -> Any:
        """reasoning-gym's data set."""
        return rg.data_set(self._source, self._ds_seed) if self._given_ds is None else self._given_ds

    @ds.setter
    def ds(self, value: Any) -> None:
        self._given_ds = value

    @property
    def data(self) -> dict[str, Any]:
        """The current item."""
        return self.item

    @data.setter
    def data(self, value: dict[str, Any]) -> None:
        self.item, self._own_item = value, False

    def _load(self, dataset_seed: int, index: int) -> None:
        super()._load(dataset_seed, index)
        self._own_item = True

    def _has_answer(self) -> bool:
        return bool(self.item)

    def reward_fn(self, answer: str | None, entry: dict[str, Any]) -> float:
        """reasoning-gym's score of an answer to an item, for answers that may be scored; the others count as none."""
        kind = str(entry.get("metadata", {}).get("source_dataset", self.name))
        scored = answer is not None and may_be_scored(kind, answer, entry)
        return float(self.ds.score_answer(answer=answer if scored else None, entry=entry))

    def _ask(self, seed: int | None, index: int | None) -> ResetResult:
        if index is not None:
            self._take(self._checked(index, len(self.ds)))
        elif seed is not None:
            self._take(random.Random(seed).randrange(len(self.ds)))
            if (self.idx + 1) % self.size == 0:
                self._ds_seed, self._given_ds = self.seed + self.idx, None
        else:
            item = next(self.ds_iter, None)
            if item is None:
                self._begin(self.seed + self.idx)
                item = next(self.ds_iter)
            if isinstance(self.ds_iter, _Items):
                self._load(self.ds_iter.seed, self.ds_iter.index - 1)
            else:
                self.data = item
        self.idx += 1
        return self.item["question"], {}

    def _take(self, index: int) -> None:
        if self._given_ds is None:
            self._load(self._ds_seed, index)
        else:
            self.data = self._given_ds[index]

    def _mark(self, action: str) -> tuple[float, dict[str, Any]]:
        answer, raised = extract_last_boxed_answer(action), ""
        replaced = "reward_fn" in vars(self) or type(self).reward_fn is not ReasoningGymEnv.reward_fn
        if self._own_item and not replaced:
            score, raised = rg.answer_score(self._source, self.dataset_seed, self.index, answer)
        else:
            score = self.reward_fn(answer=answer, entry=self.item)
        info: dict[str, Any] = {"correct": bool(score >= rg.SOLVED), "valid": answer is not None}
        return score, {**info, "scorer_error": raised} if raised else info

    def oracle_action(self) -> str:
        return super().oracle_action() if self._own_item else rg.boxed(str(self.item["answer"]))

    def get_state(self) -> dict[str, Any]:
        """The item, and its index in the data set unless an author has replaced it."""
        state = {"idx": self.idx, "data": copy.deepcopy(self.item)}
        if self._own_item:
            state |= {"dataset_seed": self.dataset_seed, "index": self.index}
        if self._given_ds is None and isinstance(self.ds_iter, _Items):
            state |= {"ds_seed": self._ds_seed, "way": [self.ds_iter.seed, self.ds_iter.index]}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state; GEM's format, with ``idx`` and ``data`` only, is accepted."""
        if "dataset_seed" in state:
            self._load(state["dataset_seed"], state["index"])
        else:
            self.data = copy.deepcopy(state["data"])
        if "way" in state:
            self._begin(state["ds_seed"])
            self.ds_iter = _Items(self._source, *state["way"])
        self.idx = state["idx"]
        self._rollenv_begun = self._is_posed = True
        self._rollenv_over = False

    def _arguments(self) -> dict[str, Any]:
        return {"name": self.name, "size": self.size}

    def _rollenv_twin(self) -> Env:
        twin = super()._rollenv_twin()
        assert isinstance(twin, ReasoningGymEnv)
        with contextlib.suppress(TypeError):  # a generator cannot be copied; both take from it
            twin.ds_iter = copy.copy(self.ds_iter)
        return twin
