"""Log-probabilities of a policy that has seen how another member of the group succeeded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rollenv.rollout.records.samples import Sample
from rollenv.trainers.experience import Experience, Ints


def with_siblings(data: Experience, context: int) -> tuple[Experience, list[int]]:
    """Put the tokens of a successful member's episode before each sample of the others (SDPO, arXiv 2601.20802).

    The tokens are those that were read and drawn, all samples of the episode one after another. Each member reads the
    next successful one of its group, in their order; a sample is left as it is where there is no other, or where both
    together are longer than the context.

    Args:
        context: the most tokens that the model reads.

    Returns:
        The batch with other inputs and no columns, and the numbers of the samples that got a sibling.
    """
    shown = replace(data, samples=list(data.samples), inputs=list(data.inputs), keys=list(data.keys), columns={})
    of_trajectory: dict[int, list[Ints]] = {}
    for sample in data.samples:
        of_trajectory.setdefault(sample.trajectory, []).append(sample.ids)
    taught = []
    for i, sample in enumerate(data.samples):
        sibling = _next_successful(data, sample.trajectory, of_trajectory)
        if sibling is None or len(before := np.concatenate(of_trajectory[sibling])) + len(sample) > context:
            continue
        shown.samples[i] = _after(before, sample)
        shown.inputs[i] = np.concatenate([before, data.inputs[i]])
        shown.keys[i] = shown.inputs[i].tobytes()
        taught.append(i)
    return shown, taught


def _next_successful(data: Experience, mine: int, drawn: dict[int, list[Ints]]) -> int | None:
    members = np.flatnonzero(data.groups == data.groups[mine]).tolist()
    others = [*(m for m in members if m > mine), *(m for m in members if m < mine)]
    return next((m for m in others if m in drawn and data.trajectories[m].success), None)


def _after(before: Ints, sample: Sample) -> Sample:
    """A sample with something that was read first."""
    n = len(before)

    def longer(values: np.ndarray, fill: float) -> np.ndarray:
        return np.concatenate([np.full(n, fill, dtype=values.dtype), values])

    return replace(
        sample,
        ids=np.concatenate([before, sample.ids]),
        mask=longer(sample.mask, False),
        logprobs=longer(sample.logprobs, 0),
        versions=longer(sample.versions, -1),
        turns=longer(sample.turns, -1),
        rewards=longer(sample.rewards, 0),
    )
