"""Model inputs as a tree: a beginning that several of them have is there once."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

#: A segment that others continue has at least so many tokens: a shorter one costs more than it saves.
LEAST_SHARED = 16

_BYTES = np.dtype(np.int64).itemsize
_LEAST_BYTES = LEAST_SHARED * _BYTES


class Segment(NamedTuple):
    """Tokens that the same inputs have, after those of the segments above it."""

    parent: int
    """The segment that it continues; -1 for none."""
    before: int
    """The number of tokens of the segments above it."""
    end: int
    """The number of tokens with its own."""
    owner: bytes
    """An input that begins with all of these: int64 token ids as bytes."""


def tree(inputs: Iterable[bytes], *, share: bool = True) -> tuple[list[Segment], dict[bytes, int]]:
    """The tree of inputs that begin alike.

    Args:
        inputs: int64 token ids as bytes; equal ones count once.
        share: whether beginnings are shared at all; otherwise each input is a segment of its own.

    Returns:
        The segments, each after its parent; and for every input the leaf that has it on its path from the root. A
        causal model that reads this path computes the same for the input. Where no input has :data:`LEAST_SHARED`
        tokens, each is alone.
    """
    distinct = sorted(set(inputs))
    if not share or tokens_in(max(distinct, key=len, default=b"")) < LEAST_SHARED:
        alone = [Segment(-1, 0, tokens_in(one), one) for one in distinct]
        return alone, {one: number for number, one in enumerate(distinct)}
    leaves, leaf_of = _leaves(distinct)
    depths, parents = _branches(leaves)
    segments: list[Segment] = []
    kept = [-1] * len(depths)  # by node: the segment that ends there, or the last one above
    for node in sorted(range(1, len(depths)), key=depths.__getitem__):
        above = kept[parents[node]]
        before = segments[above].end if above >= 0 else 0
        if node <= len(leaves) or depths[node] - before >= LEAST_SHARED:
            kept[node] = len(segments)
            segments.append(Segment(above, before, depths[node], leaves[node - 1] if node <= len(leaves) else b""))
        else:
            kept[node] = above
    for segment in reversed(segments):  # one that others continue gets the owner of one of them
        if segment.parent >= 0 and not segments[segment.parent].owner:
            segments[segment.parent] = segments[segment.parent]._replace(owner=segment.owner)
    return segments, {one: kept[1 + number] for one, number in leaf_of.items()}


def _leaves(distinct: Sequence[bytes]) -> tuple[list[bytes], dict[bytes, int]]:
    """Sorted inputs that no other continues, in order; and for every input the number of the one that continues it."""
    leaves: list[bytes] = []
    back: dict[bytes, int] = {}
    for one in reversed(distinct):
        if not (leaves and leaves[-1].startswith(one)):
            leaves.append(one)
        back[one] = len(leaves)
    return leaves[::-1], {one: len(leaves) - number for one, number in back.items()}


def _branches(leaves: Sequence[bytes]) -> tuple[list[int], list[int]]:
    """The depth and the parent of every node of the compact tree: the root, the leaves in order, then branchings."""
    depths = [0, *map(tokens_in, leaves)]
    parents = [0] * len(depths)
    path = [0]
    for node, (last, leaf) in enumerate(itertools.pairwise([b"", *leaves]), 1):
        common = shared(last, leaf) if last[:_LEAST_BYTES] == leaf[:_LEAST_BYTES] else 0
        below = 0
        while depths[path[-1]] > common:
            below = path.pop()
        if depths[path[-1]] < common:
            depths.append(common)
            parents.append(path[-1])
            parents[below] = len(depths) - 1
            path.append(len(depths) - 1)
        parents[node] = path[-1]
        path.append(node)
    return depths, parents


def path_to(segments: Sequence[Segment], number: int) -> list[int]:
    """The numbers of a segment and of those above it, upwards.

    Args:
        segments: all segments, as :func:`tree` returns them.
    """
    path = []
    while number >= 0:
        path.append(number)
        number = segments[number].parent
    return path


def depth_first(segments: Sequence[Segment], leaves: Collection[int]) -> Iterator[int]:
    """Leaves in an order that visits every part of the tree once, and the longest paths first.

    Args:
        segments: all segments, as :func:`tree` returns them.
        leaves: all of it; those of equal length and parent stay in this order.
    """
    rank = {leaf: (-segments[leaf].end, position) for position, leaf in enumerate(leaves)}
    if any(segments[leaf].parent >= 0 for leaf in leaves):
        for number in reversed(range(len(segments))):
            above = segments[number].parent
            if above >= 0:
                rank[above] = min(rank.get(above, rank[number]), rank[number])
        yield from sorted(leaves, key=lambda leaf: [rank[number] for number in reversed(path_to(segments, leaf))])
    else:
        yield from sorted(leaves, key=rank.__getitem__)


def shared(one: bytes, two: bytes) -> int:
    """Return the number of tokens that two inputs share at their beginning.

    Args:
        one: int64 token ids as bytes.
    """
    n = min(tokens_in(one), tokens_in(two))
    differ = np.frombuffer(one, dtype=np.int64, count=n) != np.frombuffer(two, dtype=np.int64, count=n)
    return int(differ.argmax()) if differ.any() else n


def tokens_in(one: bytes) -> int:
    """Return the number of tokens of an input.

    Args:
        one: int64 token ids as bytes.
    """
    return len(one) // _BYTES
