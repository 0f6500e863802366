"""GEM's environment over reasoning-gym, in GEM's order."""

from __future__ import annotations

import copy
import random
import re
import warnings
from collections.abc import Iterator
from typing import Any

from rollenv.compat.gem.rows import Answered
from rollenv.core import Env, ResetResult
from rollenv.envs.adapters import rg
from rollenv.envs.adapters.rg_scoring import may_be_scored
from rollenv.parsing import last_boxed


class ReasoningGymEnv(Answered, rg.ReasoningGymEnv):
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
        scored = answer is not None and may_be_scored(kind, answer, entry)
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
