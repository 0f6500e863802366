"""Conversion of trajectories to training data: samples of token ids, packed without padding.

Token ids come only from the sampler. Turns of a trajectory form one sample as long as each prompt begins with all
earlier tokens; otherwise (a rebuilt prompt, a chat template that rewrote the history) a new sample starts. So every
sampled token is trained on exactly once, with exactly the context in which it was sampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rollenv.agents.engines.base import read_routes
from rollenv.core.errors import UsageError
from rollenv.rollout.types import Group, Trajectory, Turn

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(slots=True)
class TokenArrays:
    """Data for each of ``n`` tokens; every array has the shape (n,)."""

    ids: Ints
    mask: Mask
    """True for tokens that the policy sampled."""
    logprobs: Floats
    """Log-probabilities at sampling; 0 where ``mask`` is false."""
    versions: Ints
    """Versions of the weights that sampled the tokens; -1 where ``mask`` is false."""
    turns: Ints
    """Number of the turn in its trajectory; -1 where ``mask`` is false."""
    rewards: Floats
    """Reward of each turn, on its last token."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(slots=True)
class Sample(TokenArrays):
    """Consecutive turns of one trajectory."""

    group: int = 0
    trajectory: int = 0
    routes: NDArray[np.int16] | None = None
    """(n - 1, layers k) experts of all tokens but the last at their first forward pass; None if a turn lacks them."""


@dataclass(slots=True)
class Batch(TokenArrays):
    """Concatenated samples, as attention kernels for variable-length sequences expect them."""

    positions: Ints
    """(n,) position of each token in its sample."""
    cu_seqlens: NDArray[np.int32]
    """(samples + 1,) start of each sample, and the end."""
    groups: Ints
    """(samples,)"""
    trajectories: Ints
    """(samples,)"""
    samples: Ints
    """(samples,) index of each sample in the input of :func:`pack`."""


def make_samples(
    groups: Iterable[Group], mode: Literal["trajectory", "step"] = "trajectory", *, incomplete: bool = False
) -> list[Sample]:
    """Convert all trajectories to samples, labelled with the number of the group and of the trajectory, from 0 on.

    Args:
        mode: "trajectory" merges turns as far as prompts allow; "step" makes one sample of every turn.
        incomplete: include trajectories that failed or were cancelled.
    """
    make = {"trajectory": trajectory_samples, "step": step_samples}.get(mode)
    if make is None:
        raise UsageError(f"the mode of samples is 'trajectory' or 'step', not {mode!r}")
    samples: list[Sample] = []
    number = 0
    for label, group in enumerate(groups):
        for trajectory in group:
            if trajectory.complete or incomplete:
                samples += make(trajectory, group=label, number=number)
            number += 1
    return samples


def trajectory_samples(trajectory: Trajectory, *, group: int = 0, number: int = 0) -> list[Sample]:
    """Convert a trajectory to few samples: a new one starts where a prompt does not continue the last."""
    samples: list[Sample] = []
    run = _Run()
    for index, turn in enumerate(trajectory.turns):
        _check(trajectory, index, turn)
        if not run.continues(turn):
            samples += run.sample(group, number)
            run = _Run()
        run.append(index, turn)
    return samples + run.sample(group, number)


def step_samples(trajectory: Trajectory, *, group: int = 0, number: int = 0) -> list[Sample]:
    """Convert a trajectory to one sample per turn; see :func:`trajectory_samples`."""
    samples = []
    for index, turn in enumerate(trajectory.turns):
        _check(trajectory, index, turn)
        run = _Run()
        run.append(index, turn)
        samples += run.sample(group, number)
    return samples


def drift(trajectory: Trajectory, samples: Sequence[Sample]) -> int:
    """Count the turns whose tokens are not unchanged in the samples. Must be 0.

    A turn counts as present if its prompt and response are a prefix of a sample's tokens, and the turn's number marks
    exactly the response.
    """
    return sum(not any(_holds(s, i, turn) for s in samples) for i, turn in enumerate(trajectory.turns))


def _holds(sample: Sample, index: int, turn: Turn) -> bool:
    start, end = len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.response_ids)
    same = np.array_equal(sample.ids[:end], (*turn.prompt_ids, *turn.response_ids))
    return same and np.array_equal(np.flatnonzero(sample.turns == index), np.arange(start, end))


def pack(samples: Sequence[Sample], max_tokens: int | None = None) -> list[Batch]:
    """Pack samples into few batches by first-fit decreasing.

    Samples keep their order inside a batch; none is cut or dropped.

    Args:
        max_tokens: maximum tokens per batch; None puts all samples into one.
    """
    if not samples:
        return []
    if max_tokens is None:
        return [_batch(samples, range(len(samples)))]
    sizes = [len(s) for s in samples]
    longest = max(range(len(sizes)), key=sizes.__getitem__)
    if sizes[longest] > max_tokens:
        raise UsageError(
            f"sample {longest} has {sizes[longest]} tokens, more than max_tokens={max_tokens}; raise max_tokens, or "
            "limit the agents' context"
        )
    room: list[int] = []
    bins: list[list[int]] = []
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        fitting = next((b for b, left in enumerate(room) if left >= sizes[i]), None)
        if fitting is None:
            fitting = len(bins)
            bins.append([])
            room.append(max_tokens)
        bins[fitting].append(i)
        room[fitting] -= sizes[i]
    return [_batch(samples, sorted(members)) for members in sorted(bins, key=min)]


def _batch(samples: Sequence[Sample], members: Sequence[int]) -> Batch:
    chosen = [samples[i] for i in members]
    joined = {name: np.concatenate([getattr(s, name) for s in chosen]) for name in TokenArrays.__dataclass_fields__}
    sizes = [len(s) for s in chosen]
    return Batch(
        **joined,
        positions=np.concatenate([np.arange(size) for size in sizes]),
        cu_seqlens=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
        groups=np.array([s.group for s in chosen], dtype=np.int64),
        trajectories=np.array([s.trajectory for s in chosen], dtype=np.int64),
        samples=np.array(members, dtype=np.int64),
    )


class _Run:
    """Consecutive turns that become one sample."""

    def __init__(self) -> None:
        self.ids: tuple[int, ...] = ()
        self.turns: list[tuple[int, Turn]] = []

    def continues(self, turn: Turn) -> bool:
        return turn.prompt_ids[: len(self.ids)] == self.ids

    def append(self, index: int, turn: Turn) -> None:
        self.turns.append((index, turn))
        self.ids = (*turn.prompt_ids, *turn.response_ids)

    def sample(self, group: int, number: int) -> list[Sample]:
        """Build the sample; return an empty list if there are no turns."""
        if not self.turns:
            return []
        n = len(self.ids)
        sample = Sample(
            ids=np.array(self.ids, dtype=np.int64),
            mask=np.zeros(n, dtype=np.bool_),
            logprobs=np.zeros(n),
            versions=np.full(n, -1, dtype=np.int64),
            turns=np.full(n, -1, dtype=np.int64),
            rewards=np.zeros(n),
            group=group,
            trajectory=number,
            routes=self._routes(),
        )
        for index, turn in self.turns:
            end = len(turn.prompt_ids) + len(turn.response_ids)
            response = slice(len(turn.prompt_ids), end)
            sample.mask[response], sample.turns[response] = True, index
            sample.logprobs[response] = turn.logprobs
            sample.versions[response] = turn.versions or turn.policy_version
            sample.rewards[end - 1] += turn.reward
        return [sample]

    def _routes(self) -> NDArray[np.int16] | None:
        if not all(turn.routes for _, turn in self.turns):
            return None
        parts, known = [], 0
        for _, turn in self.turns:
            read = len(turn.prompt_ids) + len(turn.response_ids) - 1
            parts.append(read_routes(turn.routes, read)[known:])
            known = max(known, read)
        return np.concatenate(parts)


def _check(trajectory: Trajectory, index: int, turn: Turn) -> None:
    n = len(turn.response_ids)
    where = f"turn {index} of an episode of {trajectory.task.env_id}"
    if not n and not turn.prompt_ids:
        raise UsageError(f"{where} has no tokens; training needs episodes of an agent with its own model")
    if len(turn.logprobs) != n:
        raise UsageError(f"{where} has {n} response tokens but {len(turn.logprobs)} log-probabilities")
    if turn.versions and len(turn.versions) != n:
        raise UsageError(f"{where} has {n} response tokens but {len(turn.versions)} versions")
