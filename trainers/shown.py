"""Episodes of a few groups of an update, with what the update computed for each of their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollenv.trainers.experience import Experience, Floats, Ints

#: Names of the numbers that an update keeps of each token.
NUMBERS = ("logprobs", "entropy", "clipped", "correction/weight")

#: Positions in the columns, and numbers of the tokens there: those of :data:`NUMBERS` that there are, and "steps",
#: the optimizer steps before.
Numbers = tuple[Ints, dict[str, Floats]]


def shown_tokens(data: Experience, groups: int) -> NDArray[np.bool_]:
    """Return the (R,) mask of the tokens of some groups, evenly spaced over the batch."""
    if not groups:
        return np.zeros(len(data), dtype=bool)
    labels = np.unique(data.groups)
    count = min(groups, len(labels))
    return np.isin(data.prompt, labels[[i * len(labels) // count for i in range(count)]])


def shown_episodes(
    data: Experience, groups: int, parts: Sequence[Numbers], useful: NDArray[np.bool_], version: int, no_gradient: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each shown trajectory and its numbers by turn, of which JSON can be made.

    Args:
        parts: what was computed; of a token that several steps read, the first counts.
        useful: (M,) mask of the samples with a gradient.
        version: of the weights before the update.
        no_gradient: why samples with an advantage were not trained on, if they were not.
    """
    columns = {name: np.full(len(data), np.nan) for name in (*NUMBERS, "steps")}
    for rows, numbers in sorted(parts, key=lambda part: -part[1]["steps"].max(initial=0)):
        for name, values in numbers.items():
            columns[name][rows] = values
    trained = ~np.isnan(columns["logprobs"])
    if "proximal" in data.columns:
        columns["logprobs"], columns["steps"] = data.columns["proximal"], np.zeros(len(data))
    cut = np.where(columns["correction/weight"] == 0, 2, np.where(columns["clipped"] > 0, 1, 0))
    begins = np.cumsum(data.lengths) - data.lengths
    shown = shown_tokens(data, groups)
    for number in np.unique(data.trajectory[shown]).tolist():
        dropped = next((why for why, them in data.dropped.items() if them[number]), "")
        turns: list[dict[str, Any]] = []
        for turn in range(begins[number], begins[number] + data.lengths[number]):
            at = slice(*np.searchsorted(data.turn, [turn, turn + 1]).tolist())
            if at.start == at.stop:
                turns.append({})
                continue
            why = ""
            if dropped:
                why = f"dropped: {dropped}"
            elif not useful[data.sequence[at.start]]:
                why = "no advantage"
            elif not trained[at.start]:
                why = no_gradient
            known = {name: _plain(columns[name][at]) for name in ("logprobs", "entropy", "steps")}
            turns.append({**known, "advantages": _plain(data.columns["advantages"][at]), "why": why})
            if cut[at].any():
                turns[-1]["cut"] = cut[at].tolist()
        yield number, {"group": int(data.groups[number]), "version": version, "turns": turns}


def _plain(values: Floats) -> Any:
    """Return a list of numbers, or one number where all are equal; null for those that are missing."""
    numbers = [round(value, 6) if np.isfinite(value) else None for value in values.tolist()]
    return numbers[0] if numbers.count(numbers[0]) == len(numbers) else numbers
