"""GEM's environment over reasoning-gym, in GEM's order."""

from __future__ import annotations

import contextlib
import copy
import random
import warnings
from collections.abc import Iterator
from typing import Any

from rollenv.compat.gem.rows import Answered
from rollenv.compat.gem.utils import extract_last_boxed_answer
from rollenv.core import Env, ResetResult
from rollenv.envs.rg import env as rg
from rollenv.envs.rg.scoring import may_be_scored


class _Items(Iterator[dict[str, Any]]):
    """The items of the data set of a seed, from a place on."""

    def __init__(self, source: rg.Source, seed: int, place: int = 0):
        self.source, self.seed, self.place = source, seed, place

    def __next__(self) -> dict[str, Any]:
        if self.place >= self.source[1]:
            raise StopIteration
        item: dict[str, Any] = rg.make_item(self.source, self.seed, self.place)[1]
        self.place += 1
        return item


class ReasoningGymEnv(Answered, rg.ReasoningGymEnv):
    """GEM's ReasoningGymEnv: the items of the data set of ``seed`` in order, then those of another seed.

    ``ds`` is reasoning-gym's data set, ``ds_iter`` its items that are still to come, ``data`` the item that was asked
    and ``reward_fn`` what scores an answer. All of them may be replaced.
    """

    def __init__(self, name: str, size: int = 500, seed: int = 42, **_: Any):
        rg.ReasoningGymEnv.__init__(self, name, size, dataset_seed=seed, seed=seed)
        self.seed, self.idx = seed, 0
        self._own_item = True
        """Whether the item is the one at ``index`` of the data set of ``dataset_seed``."""
        self._begin(seed)

    def _begin(self, seed: int) -> None:
        """Use the data set of a seed from now on."""
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
        """The item that was asked."""
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
            self._next()
        self.idx += 1
        return self.item["question"], {}

    def _take(self, index: int) -> None:
        if self._given_ds is None:
            self._load(self._ds_seed, index)
        else:
            self.data = self._given_ds[index]

    def _next(self) -> None:
        item = next(self.ds_iter, None)
        if item is None:
            self._begin(self.seed + self.idx)
            item = next(self.ds_iter)
        if isinstance(self.ds_iter, _Items):
            self._load(self.ds_iter.seed, self.ds_iter.place - 1)
        else:
            self.data = item

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
        """The item, and the place in the data set unless an author put another one in its place."""
        state = {"idx": self.idx, "data": copy.deepcopy(self.item)}
        if self._own_item:
            state |= {"dataset_seed": self.dataset_seed, "index": self.index}
        if self._given_ds is None and isinstance(self.ds_iter, _Items):
            state |= {"ds_seed": self._ds_seed, "way": [self.ds_iter.seed, self.ds_iter.place]}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Go back to a state; GEM's own, of ``idx`` and ``data`` alone, will do."""
        if "dataset_seed" in state:
            self._load(state["dataset_seed"], state["index"])
        else:
            self.data = copy.deepcopy(state["data"])
        if "way" in state:
            self._begin(state["ds_seed"])
            self.ds_iter = _Items(self._source, *state["way"])
        self.idx = state["idx"]
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

    def _twin(self) -> Env:
        twin = super()._twin()
        assert isinstance(twin, ReasoningGymEnv)
        with contextlib.suppress(TypeError):  # a generator cannot be copied; both take from it
            twin.ds_iter = copy.copy(self.ds_iter)
        return twin
