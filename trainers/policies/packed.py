"""Samples packed for a forward pass: the segments of their prefix tree, concatenated without padding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from rollenv.core.pictures import Picture, numbered
from rollenv.trainers.experience import Experience, Ints
from rollenv.trainers.policies.attention import PackedRow
from rollenv.trainers.prefixes import tree

V = TypeVar("V")


@dataclass(slots=True)
class Labels:
    """Tokens to predict. Samples that predict the same token from the same context share a label."""

    at: Tensor
    """(u,) the position in the row that predicts each label."""
    targets: Tensor
    """(u,) the token of each label."""
    of: Tensor
    """(n,) the label of each token."""


@dataclass(slots=True)
class Packed:
    """A micro-batch: ``L`` input tokens, with common prefixes only once, and ``n`` response tokens."""

    ids: Tensor
    """(L,) int64"""
    row: PackedRow
    drawn: Labels
    """The response tokens."""
    observed: Labels
    """The observation tokens between the responses, if they were requested."""
    sequences: Tensor
    """(n,) the sample of each response token, 0 to S - 1."""
    turns: Tensor
    """(n,) the turn of each response token, 0 to K - 1."""
    columns: dict[str, Tensor]
    """(n,) float32 each."""
    readers: Tensor
    """(L,) the number of samples that contain each input token."""
    routes: Tensor | None = None
    """(L, layers k) the experts of each token in the trained model; None for its own choice."""
    pictures: tuple[Picture, ...] = ()
    """Those of the input tokens."""

    def __len__(self) -> int:
        """The number of response tokens."""
        return len(self.drawn.of)


def on(device: torch.device | str, value: V) -> V:
    """Copy a dataclass with its tensors to a device, including nested ones."""

    def moved(part: Any) -> Any:
        if isinstance(part, Tensor):
            return part.to(device)
        if isinstance(part, dict):
            return {name: moved(each) for name, each in part.items()}
        return on(device, part) if is_dataclass(part) else part

    made: Any = value
    return type(value)(*(moved(getattr(made, field.name)) for field in fields(made)))


def pack(
    data: Experience,
    numbers: Sequence[int],
    device: torch.device | str = "cpu",
    *,
    observations: bool = False,
    share: bool = False,
) -> Packed:
    """Pack samples into a micro-batch. Equal inputs are included once.

    Args:
        observations: include labels of the observations between the responses.
        share: include common prefixes once, which requires packed attention.
    """
    samples = [data.samples[i] for i in numbers]
    layout = _Layout({data.keys[i]: data.inputs[i] for i in numbers}, share=share)

    def tensor(values: Any, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(values), dtype=dtype).to(device)

    def labels(positions: Sequence[Ints]) -> Labels:
        at = layout.find([data.keys[i] for i in numbers], [before - 1 for before in positions])
        targets = np.concatenate([sample.ids[here] for sample, here in zip(samples, positions, strict=True)])
        return Labels(*map(tensor, _distinct(at, targets)))

    read = np.concatenate(layout.ids)
    routes = None
    if data.routed is not None:
        read, routes = data.routed[read, 0], tensor(data.routed[read, 1:])
    drawn = [s.mask.nonzero()[0] for s in samples]
    rows = data.rows(numbers)
    _, turns = np.unique(data.turn[rows], return_inverse=True)
    return Packed(
        tensor(read),
        PackedRow(layout.runs, None if layout.paths is None else tensor(layout.paths)),
        labels(drawn),
        labels([data.between(i) for i in numbers]) if observations else Labels(*[tensor([])] * 3),
        tensor(np.repeat(np.arange(len(samples)), [len(positions) for positions in drawn])),
        tensor(turns),
        {name: tensor(values[rows], torch.float32) for name, values in data.columns.items()},
        tensor(layout.readers([data.keys[i] for i in numbers])),
        routes,
        tuple(map(numbered, np.unique(read[read >> 62 == 1]).tolist())),
    )


def _distinct(at: Ints, targets: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the distinct pairs as two arrays, and the index of each pair among them."""
    if not len(at):
        return at, targets, at
    size = int(targets.max()) + 1
    pairs, of = np.unique(at * size + targets, return_inverse=True)
    return pairs // size, pairs % size, of


class _Layout:
    """The layout of segments in a row, sorted by the number of tokens before them, then by length.

    Args:
        inputs: token ids of each input, by their bytes.
    """

    def __init__(self, inputs: dict[bytes, Ints], *, share: bool):
        self._inputs = inputs
        segments, self._leaf = tree(inputs, share=share)
        shapes = [(segment.before, segment.end - segment.before) for segment in segments]
        order = sorted(range(len(segments)), key=shapes.__getitem__)
        self.ids = [inputs[segments[i].owner][segments[i].before : segments[i].end] for i in order]
        self.runs = tuple((len(list(same)), *shape) for shape, same in itertools.groupby(shapes[i] for i in order))
        lengths = np.array([shapes[i][1] for i in order], dtype=np.int64)
        self._begin = np.empty_like(lengths)
        self._begin[order] = np.cumsum(lengths) - lengths
        self.paths: Ints | None = None
        self._paths: list[Ints] = []
        """Positions of the tokens from the root to the end of each segment."""
        if any(segment.parent >= 0 for segment in segments):
            for segment, begin in zip(segments, self._begin.tolist(), strict=True):
                own = np.arange(begin, begin + segment.end - segment.before)
                above = [self._paths[segment.parent]] if segment.parent >= 0 else []
                self._paths.append(np.concatenate([*above, own]))
            self.paths = np.concatenate([self._paths[i] for i in order])

    def readers(self, keys: Sequence[bytes]) -> Ints:
        """Return how many of the inputs contain each token of the row."""
        lengths = [len(self._inputs[key]) for key in keys]
        return np.bincount(self.find(keys, [np.arange(n) for n in lengths]))

    def find(self, keys: Sequence[bytes], positions: Sequence[Ints]) -> Ints:
        """Return the row positions of tokens, given by their positions in inputs."""
        leaves = [self._leaf[key] for key in keys]
        if self._paths:
            return np.concatenate([self._paths[leaf][here] for leaf, here in zip(leaves, positions, strict=True)])
        rows: Ints = np.repeat(self._begin[leaves], [len(here) for here in positions]) + np.concatenate(positions)
        return rows


def with_zero_weight(batch: Packed) -> Packed:
    """Return a copy of a micro-batch without loss and gradients: zero weights, and no targets for the critic."""
    none = {"weights": 0.0, "returns": math.nan}
    zeros = {name: torch.full_like(batch.columns[name], none[name]) for name in none.keys() & batch.columns.keys()}
    return replace(batch, columns=batch.columns | zeros, readers=torch.zeros_like(batch.readers))
