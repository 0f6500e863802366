"""Sampling of tasks by their predicted success rate."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollenv.core.errors import UsageError
from rollenv.rollout.types import Group, Task
from rollenv.trainers.sources.base import count, own_part, read_state, task_seed
from rollenv.trainers.sources.task_lists import Items, check_size

#: Prior counts of successes and of failures: a uniform prior.
_PRIOR = 1.0


class SuccessAware(Iterator[Task]):
    r"""Samples items whose predicted success ``p`` is near one half, where groups are most informative.

    A success is a Bernoulli variable with variance ``p (1 - p)``; where that is 0, all rewards of a group are equal and
    give no advantage. The prediction is the mean of a Beta posterior: with ``s`` and ``f`` recorded successes and
    failures, ``p = (1 + s) / (2 + s + f)``. Records decay with ``half_life``, so that tasks that were too hard (or
    solved) are tried again when the policy has changed. With probability ``explore`` the choice is uniform, otherwise
    proportional to ``p_i (1 - p_i)``.

    Args:
        half_life: number of recorded groups, of all items, after which a record counts half; None for no decay.
        apart: number of choices in which an item is not repeated (at most half the number of items), so that the tasks
            of a batch differ.
    """

    def __init__(
        self, items: Items, *, seed: int = 0, explore: float = 0.1, half_life: float | None = 2000.0, apart: int = 32
    ):
        if not 0 <= explore <= 1 or not (half_life is None or half_life > 0) or apart < 0:
            raise UsageError(
                "explore is from 0 to 1, half_life above 0 or None, apart at least 0; "
                f"got explore={explore}, half_life={half_life}, apart={apart}"
            )
        self.items, self.seed, self.explore, self.half_life = items, seed, explore, half_life
        self.drawn = self.recorded = 0
        self._recent: deque[int] = deque(maxlen=min(apart, len(items) // 2))
        # (items,) each: decayed successes and failures at the item's last record, and the time of that record
        self._won, self._lost, self._when = (np.zeros(len(items)) for _ in range(3))

    def __next__(self) -> Task:
        number, self.drawn = self.drawn, self.drawn + 1
        rng = np.random.Generator(np.random.PCG64(task_seed(self.seed, "choice", number)))
        uniform, point = rng.random(2)
        p = self.predicted()
        weights = np.ones(len(p)) if uniform < self.explore else p * (1 - p)
        weights[list(self._recent)] = 0.0
        edges = np.cumsum(weights)
        item = int(np.searchsorted(edges, point * edges[-1], side="right"))
        item = min(item, int(np.flatnonzero(weights)[-1]))
        self._recent.append(item)
        return self.items.task(item, task_seed(self.seed, number))

    def predicted(self) -> NDArray[np.float64]:
        """(items,) the predicted success of each item."""
        kept = self._record_weight(self._when)
        won, lost = _PRIOR + kept * self._won, _PRIOR + kept * self._lost
        return np.asarray(won / (won + lost))

    def _record_weight(self, when: Any) -> Any:
        """Return the current weight of records made at a time."""
        return 1.0 if self.half_life is None else 0.5 ** ((self.recorded - when) / self.half_life)

    def record(self, task: Task, group: Group) -> None:
        item = own_part(task, self, range(len(self.items)).__contains__)
        won = sum(bool(t.success) for t in group.complete)
        kept = self._record_weight(self._when[item])
        self._won[item] = kept * self._won[item] + won
        self._lost[item] = kept * self._lost[item] + len(group.complete) - won
        self._when[item] = self.recorded
        self.recorded += 1

    def state_dict(self) -> dict[str, Any]:
        tried = np.flatnonzero(self._won + self._lost)
        return {
            "drawn": self.drawn,
            "recorded": self.recorded,
            "size": len(self.items),
            "recent": list(self._recent),
            "items": tried.tolist(),
            "won": self._won[tried].tolist(),
            "lost": self._lost[tried].tolist(),
            "when": self._when[tried].tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        def read(saved: Mapping[str, Any]) -> tuple[int, int, list[int], list[NDArray[np.float64]]]:
            check_size(saved["size"], len(self.items))
            recent, tried = ([count(i) for i in saved[name]] for name in ("recent", "items"))
            columns = [np.zeros(len(self.items)) for _ in range(3)]
            for column, name in zip(columns, ("won", "lost", "when"), strict=True):
                column[tried] = np.asarray(saved[name], dtype=np.float64)
            if max([*recent, *tried], default=0) >= len(self.items):
                raise ValueError("it names items that do not exist")
            return count(saved["drawn"]), count(saved["recorded"]), recent, columns

        self.drawn, self.recorded, recent, columns = read_state(self, state, read)
        self._recent = deque(recent, maxlen=self._recent.maxlen)
        self._won, self._lost, self._when = columns

    def metrics(self) -> dict[str, float]:
        p = self.predicted()
        return {
            "drawn": self.drawn,
            "seen": float(np.mean(self._won + self._lost > 0)),
            "predicted_success": float(p.mean()),
            "predicted_variance": float((p * (1 - p)).mean()),
        }
