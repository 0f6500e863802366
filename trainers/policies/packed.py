"""Samples for a forward pass, one after another without padding, and the attention that keeps them apart."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from rollenv.trainers.experience import Experience, Ints
from rollenv.trainers.prefixes import families

ATTENTION = "rollenv_packed"

#: (how many, how long) for sequences of equal length that follow each other.
Runs = tuple[tuple[int, int], ...]

#: A beginning of so many tokens, then the rests of the sequences that share it; 0 for whole sequences.
Blocks = tuple[tuple[int, Runs], ...]


@dataclass(slots=True)
class Packed:
    """A micro-batch: ``L`` tokens of different model inputs and ``n`` response tokens.

    What inputs have in common at their beginning is there once.
    """

    ids: Tensor
    """(L,) int64"""
    blocks: Blocks
    at: Tensor
    """(n,) the place in ``ids`` from which each response token is predicted."""
    targets: Tensor
    """(n,) the response tokens."""
    sequences: Tensor
    """(n,) the sample of each, 0 to S - 1."""
    turns: Tensor
    """(n,) the turn of each, 0 to K - 1."""
    columns: dict[str, Tensor]
    """(n,) float32 each."""
    seen: Tensor
    """(m,) the places in ``ids`` of what was said between the responses, where that was asked for."""

    def __len__(self) -> int:
        """The number of response tokens."""
        return len(self.targets)


def pack(
    data: Experience,
    numbers: Sequence[int],
    device: torch.device | str = "cpu",
    *,
    observations: bool = False,
    share: bool = False,
) -> Packed:
    """Lay samples one after another. Samples with equal inputs share them.

    Args:
        data: the whole batch.
        numbers: of the samples.
        device: of the tensors.
        observations: whether what was said between the responses is trained on too.
        share: whether inputs that begin alike share that too; only :func:`packed_attention` can read those.
    """
    samples = [data.samples[i] for i in numbers]
    layout = _Layout({data.keys[i]: data.inputs[i] for i in numbers}, share=share)
    drawn = [np.flatnonzero(s.mask) for s in samples]
    at = [layout.find(data.keys[i], places - 1) for i, places in zip(numbers, drawn, strict=True)]
    said = [layout.find(data.keys[i], data.between(i)) for i in numbers] if observations else []
    rows = data.rows(numbers)
    _, turns = np.unique(data.turn[rows], return_inverse=True)

    def tensor(values: Any, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(values), dtype=dtype).to(device)

    return Packed(
        tensor(np.concatenate(layout.ids)),
        tuple(layout.blocks),
        tensor(np.concatenate(at)),
        tensor(np.concatenate([s.ids[s.mask] for s in samples])),
        tensor(np.repeat(np.arange(len(samples)), [len(places) for places in drawn])),
        tensor(turns),
        {name: tensor(values[rows], torch.float32) for name, values in data.columns.items()},
        tensor(np.concatenate(said) if observations else []),
    )


class _Layout:
    """Where inputs are in a row: those of their own first, then families, each with the shortest first.

    Args:
        inputs: by their bytes.
        share: see :func:`pack`.
    """

    def __init__(self, inputs: dict[bytes, Ints], *, share: bool):
        self.ids: list[Ints] = []
        self.blocks: list[tuple[int, Runs]] = []
        self._inputs, self._length = inputs, 0
        self._places: dict[bytes, tuple[int, int, int]] = {}  # of the stem: where and how long; of the rest: where
        found, self._within = families(inputs, share=share)
        alone = {leaf for family in found for leaf in family.leaves if not family.stem}
        if alone:
            self._add(0, [key for key in inputs if key in alone])
        for family in found:
            if family.stem:
                self._add(family.stem, family.leaves)

    def _add(self, stem: int, leaves: Sequence[bytes]) -> None:
        begin = self._append(self._inputs[leaves[0]][:stem])
        ordered = sorted((self._inputs[leaf][stem:] for leaf in leaves), key=len)
        for leaf in sorted(leaves, key=len):
            self._places[leaf] = (begin, stem, self._append(self._inputs[leaf][stem:]))
        runs = tuple((len(list(same)), length) for length, same in itertools.groupby(map(len, ordered)))
        self.blocks.append((stem, runs))

    def _append(self, tokens: Ints) -> int:
        begin = self._length
        self.ids.append(tokens)
        self._length += len(tokens)
        return begin

    def find(self, key: bytes, places: Ints) -> Ints:
        """Where some tokens of an input are."""
        begin, stem, rest = self._places[self._within[key]]
        if not stem:
            return rest + places
        return np.where(places < stem, begin + places, rest + places - stem)


def positions(blocks: Blocks, device: torch.device | str = "cpu") -> Tensor:
    """The place of every token in its sequence.

    Args:
        blocks: of ``L`` tokens in all.
        device: of the result.

    Returns:
        (L,) int64
    """
    parts = []
    for stem, runs in blocks:
        parts.append(torch.arange(stem, device=device))
        parts += [torch.arange(stem, stem + length, device=device).repeat(count) for count, length in runs]
    return torch.cat(parts)


# -- attention ---------------------------------------------------------------------------------------------------------


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention inside each of the sequences of a packed row; those of equal length are one call.

    Sequences that share a beginning all look back at the one copy of it (Prefix Grouper, arXiv 2506.05433).

    Args:
        module: the attention layer.
        query: (1, heads, L, size).
        key: (1, key heads, L, size).
        value: (1, key heads, L, size).
        attention_mask: not used.
        scaling: of the products.
        dropout: not used.
        kwargs: ``packed_blocks``, the lengths of the sequences.

    Returns:
        (1, L, heads, size), and no weights.

    Raises:
        NotImplementedError: the layer wants a window, sinks or capped products.
    """
    if wants := [name for name in ("sliding_window", "softcap", "s_aux") if kwargs.get(name) is not None]:
        raise NotImplementedError(f"packed attention has no {', '.join(wants)}")
    out, begin = [], 0

    def cut(count: int, length: int) -> list[Tensor]:
        """(count, heads, length, size) of queries, keys and values."""
        nonlocal begin
        rows = slice(begin, begin + count * length)
        begin = rows.stop
        return [t[0, :, rows].unflatten(1, (count, length)).transpose(0, 1) for t in (query, key, value)]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> None:
        out.append(_causal(q, k, v, scaling).transpose(1, 2).flatten(0, 1))

    for stem, runs in kwargs["packed_blocks"]:
        before = cut(1, stem)
        if stem:
            attend(*before)
        for count, length in runs:
            q, k, v = cut(count, length)
            if stem:
                k, v = (torch.cat([b.expand(count, -1, -1, -1), t], 2) for b, t in zip(before[1:], (k, v), strict=True))
            attend(q, k, v)
    return torch.cat(out)[None], None


def _causal(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """Attention of the last tokens of sequences to all before them."""
    late = query.shape[2] < key.shape[2]
    grouped = query.shape[1] != key.shape[1]
    if grouped and late and query.is_cuda:  # no fast kernel has both a mask and groups
        key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
        grouped = False
    sizes = query.shape[2], key.shape[2]
    mask = torch.ones(sizes, dtype=torch.bool, device=query.device).tril(sizes[1] - sizes[0]) if late else None
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=not late, scale=scaling, enable_gqa=grouped
    )


AttentionInterface.register(ATTENTION, packed_attention)
AttentionMaskInterface.register(ATTENTION, lambda *_, **__: None)
