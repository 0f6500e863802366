"""Model inputs as a prefix tree, with common prefixes only once."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

#: Minimum length of a shared segment: a shorter one costs more than it saves.
LEAST_SHARED = 16

_BYTES = np.dtype(np.int64).itemsize
_LEAST_BYTES = LEAST_SHARED * _BYTES


class Segment(NamedTuple):
    """Tokens of a node of the tree, after those of its ancestors."""

    parent: int
    """The segment before it; -1 for none."""
    before: int
    """The number of tokens of its ancestors."""
    end: int
    """The number of tokens including its own."""
    owner: bytes
    """An input with these tokens as prefix: int64 token ids as bytes."""


def tree(inputs: Iterable[bytes], *, share: bool = True) -> tuple[list[Segment], dict[bytes, int]]:
    """Build the prefix tree of inputs.

    Args:
        inputs: int64 token ids as bytes; equal inputs count once.
        share: share prefixes of at least :data:`LEAST_SHARED` tokens; otherwise each input is a segment of its own.

    Returns:
        The segments, each after its parent; and for every input a leaf whose path from the root begins with it.
    """
    distinct = sorted(set(inputs))
    if not share or tokens_in(max(distinct, key=len, default=b"")) < LEAST_SHARED:
        alone = [Segment(-1, 0, tokens_in(one), one) for one in distinct]
        return alone, {one: number for number, one in enumerate(distinct)}
    leaves, leaf_of = _leaves(distinct)
    depths, parents = _branches(leaves)
    segments: list[Segment] = []
    segment_of = [-1] * len(depths)  # by node: the segment that ends there, or the last one above
    for node in sorted(range(1, len(depths)), key=depths.__getitem__):
        above = segment_of[parents[node]]
        before = segments[above].end if above >= 0 else 0
        if node <= len(leaves) or depths[node] - before >= LEAST_SHARED:
            segment_of[node] = len(segments)
            segments.append(Segment(above, before, depths[node], leaves[node - 1] if node <= len(leaves) else b""))
        else:
            segment_of[node] = above
    for segment in reversed(segments):  # inner segments get the owner of one of their children
        if segment.parent >= 0 and not segments[segment.parent].owner:
            segments[segment.parent] = segments[segment.parent]._replace(owner=segment.owner)
    return segments, {one: segment_of[1 + number] for one, number in leaf_of.items()}


def _leaves(distinct: Sequence[bytes]) -> tuple[list[bytes], dict[bytes, int]]:
    """Return the inputs that are no prefix of another, sorted; and for every input the index of one that extends it."""
    leaves: list[bytes] = []
    back: dict[bytes, int] = {}
    for one in reversed(distinct):
        if not (leaves and leaves[-1].startswith(one)):
            leaves.append(one)
        back[one] = len(leaves)
    return leaves[::-1], {one: len(leaves) - number for one, number in back.items()}


def _branches(leaves: Sequence[bytes]) -> tuple[list[int], list[int]]:
    """Return the depth and the parent of every node of the compact tree: the root, the leaves in order, inner nodes."""
    depths = [0, *map(tokens_in, leaves)]
    parents = [0] * len(depths)
    path = [0]
    for node, (last, leaf) in enumerate(itertools.pairwise([b"", *leaves]), 1):
        common = common_length(last, leaf) if last[:_LEAST_BYTES] == leaf[:_LEAST_BYTES] else 0
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
    """Return the indices of a segment and its ancestors, upwards."""
    path = []
    while number >= 0:
        path.append(number)
        number = segments[number].parent
    return path


def depth_first(segments: Sequence[Segment], leaves: Collection[int]) -> Iterator[int]:
    """Yield leaves depth-first, those with the longest paths first.

    Args:
        leaves: all leaves of the tree; those of equal length and parent stay in this order.
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


def common_length(one: bytes, two: bytes) -> int:
    """Return the length in tokens of the common prefix of two inputs, given as int64 token ids as bytes."""
    n = min(tokens_in(one), tokens_in(two))
    differ = np.frombuffer(one, dtype=np.int64, count=n) != np.frombuffer(two, dtype=np.int64, count=n)
    return int(differ.argmax()) if differ.any() else n


def tokens_in(one: bytes) -> int:
    """Return the number of tokens of an input, given as int64 token ids as bytes."""
    return len(one) // _BYTES
