"""A prefix cache of keys and values, shared between requests.

A radix tree over token ids, as in SGLang's RadixAttention (https://arxiv.org/abs/2312.07104): a path from the root is
a sequence of computed tokens, and sequences with a common prefix share its nodes.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from rollenv.agents.engines.base import Ids
from rollenv.agents.engines.kv_cache import BatchCache


@dataclass(slots=True, eq=False)
class RadixNode:
    """A run of tokens after those of its parent, and their slots in the pools of keys and values."""

    tokens: Ids
    slots: list[int]
    parent: RadixNode
    children: dict[int, RadixNode] = field(default_factory=dict)
    """Child nodes by their first token."""


class RadixTree:
    """Slots of at most ``bound`` tokens, shared between sequences with a common prefix.

    The least recently used leaves are dropped to make room. Slots are the numbers from 0 to ``bound - 1``, used in
    ascending order.
    """

    def __init__(self, bound: int):
        self.bound = max(bound, 0)
        self.clear()

    def clear(self) -> None:
        """Drop everything."""
        self._root = RadixNode.__new__(RadixNode)
        self._root.children = {}
        # Ordered by last use. A child is always before its parent, so the first node is a leaf.
        self._nodes: OrderedDict[RadixNode, None] = OrderedDict()
        self._free: list[int] = []
        self.size = 0
        """All slots in use are below this."""

    @property
    def tokens(self) -> int:
        """Number of tokens in the tree."""
        return self.size - len(self._free)

    def find(self, tokens: Ids) -> list[int]:
        """Return the slots of the longest known prefix, and mark it as used."""
        path, length = self._walk(tokens)
        self._touch(path)
        return list(itertools.chain.from_iterable(node.slots for node in path))[:length]

    def insert(self, tokens: Ids) -> tuple[int, list[int], int]:
        """Add tokens, or as many of the first ones as there is room for.

        Returns:
            The number of known tokens, the slots of the new ones, and the number of dropped tokens of others.
        """
        path, start = self._walk(tokens)
        if start == len(tokens):
            self._touch(path)
            return start, [], 0
        inside = start - sum(len(node.tokens) for node in path[:-1])
        if path and inside < len(path[-1].tokens):
            # Split the node: a new parent takes its first tokens.
            lower = path[-1]
            path[-1] = upper = RadixNode(
                lower.tokens[:inside], lower.slots[:inside], lower.parent, {lower.tokens[inside]: lower}
            )
            lower.parent.children[lower.tokens[0]] = upper
            lower.tokens, lower.slots, lower.parent = lower.tokens[inside:], lower.slots[inside:], upper
        self._touch(path)
        dropped = self._make_room(len(tokens) - start, path[-1] if path else None)
        count = min(len(tokens) - start, self.bound - self.tokens)
        reused = min(count, len(self._free))
        slots = self._free[len(self._free) - reused :]
        del self._free[len(self._free) - reused :]
        slots += range(self.size, self.size + count - reused)
        self.size += count - reused
        if slots:
            parent = path[-1] if path else self._root
            node = parent.children[tokens[start]] = RadixNode(tokens[start : start + len(slots)], slots, parent)
            self._touch([*path, node])
        return start, slots, dropped

    def _walk(self, tokens: Ids) -> tuple[list[RadixNode], int]:
        """Return the nodes of the longest known prefix, which may end inside the last one, and its length."""
        path: list[RadixNode] = []
        node, length = self._root, 0
        while length < len(tokens) and (child := node.children.get(tokens[length])):
            common = common_prefix(child.tokens, tokens[length : length + len(child.tokens)])
            path.append(child)
            length += common
            if common < len(child.tokens):
                break
            node = child
        return path, length

    def _touch(self, path: list[RadixNode]) -> None:
        for node in reversed(path):
            self._nodes[node] = None
            self._nodes.move_to_end(node)

    def _make_room(self, wanted: int, end: RadixNode | None) -> int:
        """Drop leaves, except on the path to ``end``, until there is room; return the number of dropped tokens."""
        dropped = 0
        while self.bound - self.tokens < wanted and (oldest := next(iter(self._nodes), end)) is not end:
            assert oldest is not None
            del self._nodes[oldest], oldest.parent.children[oldest.tokens[0]]
            self._free += oldest.slots
            dropped += len(oldest.slots)
        return dropped


class PrefixCache:
    """The keys and values of a radix tree's tokens, on the model's device.

    Every token is stored once. A prefix is copied into the row of a request, and the row's new tokens are copied back,
    so a running request does not depend on the cache.
    """

    def __init__(self, bound: int):
        self._tree = RadixTree(bound)
        self._pools: list[torch.Tensor] = []  # one for each tensor of the batch: (slots, heads, head size)

    @property
    def tokens(self) -> int:
        """Number of cached tokens."""
        return self._tree.tokens

    def limit(self, tokens: int) -> None:
        """Lower the maximum number of tokens, before the first are stored."""
        self._tree.bound = min(self._tree.bound, tokens)

    def clear(self) -> None:
        """Drop everything and free the memory."""
        self._tree.clear()
        self._pools = []

    def find(self, tokens: Ids) -> list[int]:
        """Return the slots of the longest known prefix, for :meth:`load`; valid until the next :meth:`save`."""
        return self._tree.find(tokens)

    def load(self, batch: BatchCache, first: int, found: Sequence[list[int]]) -> None:
        """Copy known prefixes into rows of a batch. After a shorter prefix, a row gets arbitrary values.

        Args:
            first: the row of the first prefix; the others follow it.
        """
        width = max(map(len, found), default=0)
        if not width:
            return
        slots = torch.tensor([[*known, *[0] * (width - len(known))] for known in found], device=self._pools[0].device)
        for pool, rows in zip(self._pools, batch.tensors, strict=True):
            tokens = pool.index_select(0, slots.flatten()).unflatten(0, slots.shape)
            rows[first : first + len(found), :, :width] = tokens.transpose(1, 2)

    def save(self, batch: BatchCache, computed: Iterable[tuple[int, Ids]]) -> int:
        """Store the new keys and values of rows of a batch."""
        sources: dict[int, tuple[int, int]] = {}  # a small tree may reuse a slot; the last use counts
        dropped = 0
        try:
            for row, tokens in computed:
                start, slots, more = self._tree.insert(tokens)
                sources.update(zip(slots, zip(itertools.repeat(row), itertools.count(start)), strict=False))
                dropped += more
            if sources:
                self._write(batch, sources)
        except BaseException:
            self.clear()  # the tree may have slots that were not written
            raise
        return dropped

    def _write(self, batch: BatchCache, sources: dict[int, tuple[int, int]]) -> None:
        """Fill slots from pairs of row and column."""
        self._grow(batch.tensors)
        device = self._pools[0].device
        slots = torch.tensor(list(sources), device=device)
        rows, columns = torch.tensor(list(sources.values()), device=device).T
        for pool, tensor in zip(self._pools, batch.tensors, strict=True):
            pool.index_copy_(0, slots, tensor[rows, :, columns])

    def _grow(self, like: list[torch.Tensor]) -> None:
        """Grow the pools to the tree's size, by doubling up to its bound."""
        length = len(self._pools[0]) if self._pools else 0
        if self._tree.size <= length:
            return
        size = min(self._tree.bound, max(self._tree.size, 2 * length))
        for number, tensor in enumerate(like):
            pool = tensor.new_zeros(size, tensor.shape[1], tensor.shape[3])
            if length:
                pool[:length] = self._pools[number]
                self._pools[number] = pool
            else:
                self._pools.append(pool)


def common_prefix(one: Sequence[int], two: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences, in tokens."""
    low, high = 0, min(len(one), len(two))
    while low < high:  # all before low is equal
        middle = (low + high + 1) // 2
        if one[low:middle] == two[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
