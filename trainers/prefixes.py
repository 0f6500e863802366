"""Model inputs that begin alike: what they share has to be computed once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

#: A shared beginning of fewer tokens is not worth the bookkeeping.
LEAST_SHARED = 64

_BYTES = np.dtype(np.int64).itemsize


@dataclass(frozen=True, slots=True)
class Family:
    """Inputs that share their first tokens, and of which none is the beginning of another."""

    stem: int
    """How many tokens they share; 0 for an input of its own."""
    leaves: tuple[bytes, ...]
    """The int64 token ids of each."""


def families(inputs: Iterable[bytes], *, share: bool = True) -> tuple[list[Family], dict[bytes, bytes]]:
    """Divide inputs into families that save much.

    Inputs are taken in alphabetical order. One joins the family of its predecessor if that saves at least as many
    tokens as the family saves without it.

    Args:
        inputs: int64 token ids as bytes; equal ones count once.
        share: whether beginnings are shared at all.

    Returns:
        The families, and for every input the leaf that it is the beginning of (itself, as a rule). A causal model that
        reads the leaf computes the same for it. Where all are shorter than :data:`LEAST_SHARED` each is alone.
    """
    distinct = sorted(set(inputs))
    if not share or tokens_in(max(distinct, key=len, default=b"")) < LEAST_SHARED:
        return [Family(0, (one,)) for one in distinct], {one: one for one in distinct}
    within: dict[bytes, bytes] = {}
    leaves: list[bytes] = []
    for one in reversed(distinct):
        leaf = leaves[-1] if leaves and leaves[-1].startswith(one) else one
        within[one] = leaf
        if leaf is one:
            leaves.append(one)
    found: list[Family] = []
    members: list[bytes] = []
    stem = 0
    for leaf in reversed(leaves):
        common = shared(members[-1], leaf) if members else 0
        common = min(stem, common) if len(members) > 1 else common
        if common >= LEAST_SHARED and len(members) * common >= (len(members) - 1) * stem:
            members.append(leaf)
            stem = common
            continue
        if members:
            found.append(Family(stem if len(members) > 1 else 0, tuple(members)))
        members, stem = [leaf], 0
    if members:
        found.append(Family(stem if len(members) > 1 else 0, tuple(members)))
    return found, within


def shared(one: bytes, two: bytes) -> int:
    """How many tokens two inputs have in common from the beginning.

    Args:
        one: int64 token ids as bytes.
        two: the same.
    """
    n = min(tokens_in(one), tokens_in(two))
    differ = np.frombuffer(one, dtype=np.int64, count=n) != np.frombuffer(two, dtype=np.int64, count=n)
    return int(differ.argmax()) if differ.any() else n


def tokens_in(one: bytes) -> int:
    """How many tokens an input has.

    Args:
        one: int64 token ids as bytes.
    """
    return len(one) // _BYTES
