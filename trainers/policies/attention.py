"""Attention in a row of segments: each attends to its path from the root of a tree."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface

logger = logging.getLogger(__name__)

ATTENTION = "rollenv_packed"

#: (count, tokens before, tokens) for consecutive segments of equal shape.
Runs = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class PackedRow:
    """The segments of a row, and the tokens that each of them attends to."""

    runs: Runs
    paths: Tensor | None = None
    """Positions of all tokens on each segment's path, its own last. None if no segment has any before it."""
    readers: list[str] = field(default_factory=list)
    """The attention layers that have read this row."""

    @classmethod
    def of(cls, *lengths: int) -> PackedRow:
        """Create a row of whole sequences without shared prefixes."""
        return cls(tuple((len(list(same)), 0, length) for length, same in itertools.groupby(lengths)))

    def positions(self, device: torch.device | str = "cpu") -> Tensor:
        """Return the (L,) int64 position of every token in its sequence."""
        parts = [torch.arange(before, before + n, device=device).repeat(count) for count, before, n in self.runs]
        return torch.cat(parts)


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
    """Causal attention of each segment of a row to its path from the root of the tree.

    Keys and values are gathered along the paths, so the gradients of a token on several paths add up (Tree Training,
    arXiv 2511.00413).

    Args:
        query: (1, heads, L, size).
        key: (1, key heads, L, size).
        value: (1, key heads, L, size).

    Returns:
        (1, L, heads, size), and no weights.

    Raises:
        NotImplementedError: the layer needs a sliding window, attention sinks or a softcap.
    """
    if unsupported := [name for name in ("sliding_window", "softcap", "s_aux") if kwargs.get(name) is not None]:
        raise NotImplementedError(f"packed attention has no {', '.join(unsupported)}")
    row: PackedRow = kwargs["packed_row"]
    row.readers.append(type(module).__name__)
    kind = query.device.type
    if torch.is_autocast_enabled(kind):  # rotated queries and keys are float32 there; fast kernels need the lower type
        query, key, value = (t.to(torch.get_autocast_dtype(kind)) for t in (query, key, value))
    if row.paths is not None:
        key, value = (t.index_select(2, row.paths) for t in (key, value))
    grouped = query.shape[1] != key.shape[1]
    fast = query.is_cuda and varlen_works(query.device, query.dtype, query.shape[-1], grouped)
    attend = by_one_kernel if fast else by_shape
    return attend(row.runs, query[0], key[0], value[0], scaling)[None], None


def by_shape(runs: Runs, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """Return the attention (L, heads, size) by one call of PyTorch's for each run of segments of equal shape.

    Returns:
        (L, heads, size)
    """
    own = [count * length for count, _, length in runs]
    whole = [count * (before + length) for count, before, length in runs]
    out = []
    cut = zip(runs, query.split(own, 1), key.split(whole, 1), value.split(whole, 1), strict=True)
    for (count, _, _), *tensors in cut:
        q, k, v = (t.unflatten(1, (count, -1)).transpose(0, 1) for t in tensors)
        out.append(_causal(q, k, v, scaling).transpose(1, 2).flatten(0, 1))
    return torch.cat(out)


def _causal(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """Attend from the last tokens of sequences to all tokens before them; (count, heads, length, size) each."""
    late = query.shape[2] < key.shape[2]
    grouped = query.shape[1] != key.shape[1]
    if grouped and late and query.is_cuda:  # no fast kernel supports both a mask and groups
        key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
        grouped = False
    n, whole = query.shape[2], key.shape[2]
    masked = late and n > 1
    mask = torch.ones(n, whole, dtype=torch.bool, device=query.device).tril(whole - n) if masked else None
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=not late, scale=scaling, enable_gqa=grouped
    )


# -- one kernel for segments of any lengths ----------------------------------------------------------------------------


def by_one_kernel(runs: Runs, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """Return the same as :func:`by_shape`, by one call of a kernel for variable lengths (FlashAttention's).

    Returns:
        (L, heads, size)
    """
    from torch.nn.attention.varlen import varlen_attn

    begins, paths = bounds(runs, query.device)
    most = max(n for _, _, n in runs), max(before + n for _, before, n in runs)
    grouped = query.shape[0] != key.shape[0]
    tensors = (t.transpose(0, 1).contiguous() for t in (query, key, value))
    groups = {"enable_gqa": grouped} if _names_groups() else {}
    # a window that ends at the last token of the path: causal, with the ends of both aligned
    out: Tensor = varlen_attn(*tensors, begins, paths, *most, scale=scaling, window_size=(-1, 0), **groups)
    return out


@functools.cache
def _names_groups() -> bool:
    """Return whether the kernel has the argument ``enable_gqa``; PyTorch 2.11 needs none."""
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in inspect.signature(varlen_attn).parameters


@functools.lru_cache(maxsize=8)
def bounds(runs: Runs, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Return the boundaries of ``S`` segments in the row, and of their paths in ``paths``; (S + 1,) int32 each.

    Returns:
        (S + 1,) int32 each, the ends included.
    """
    counts, before, lengths = torch.tensor(runs).T
    sizes = (lengths.repeat_interleave(counts), (before + lengths).repeat_interleave(counts))
    begins, paths = (functional.pad(size.cumsum(0), (1, 0)).int().to(device) for size in sizes)
    return begins, paths


@functools.cache
def varlen_works(device: torch.device, dtype: torch.dtype, size: int, grouped: bool = False) -> bool:
    """Return whether :func:`by_one_kernel` works and equals :func:`by_shape`, gradients included."""
    if dtype not in (torch.float16, torch.bfloat16):
        return False
    runs, results = ((1, 0, 9), (2, 9, 3)), []
    try:
        with _plain(device.type):
            paths = torch.tensor([*range(9), *range(12), *range(9), 12, 13, 14], device=device)
            values = torch.randn(3, 2, 15, size, generator=torch.Generator().manual_seed(0)).to(device, dtype)
            for attend in (by_shape, by_one_kernel):
                q, k, v = values.clone().requires_grad_(True).unbind()
                q = q.repeat_interleave(2, 0) if grouped else q
                out = attend(runs, q, k.index_select(1, paths), v.index_select(1, paths), None)
                (gradient,) = torch.autograd.grad(out.float().square().sum(), k)
                results.append((out.float(), gradient.float()))
            equal = all(bool((one - other).norm() < 0.05 * one.norm()) for one, other in zip(*results, strict=True))
    except Exception as error:
        logger.info("no variable-length attention kernel on %s: %s", device, error)
        return False
    if not equal:
        logger.warning("the variable-length attention kernel is wrong on %s: using one call for each shape", device)
    return equal


@contextlib.contextmanager
def _plain(kind: str) -> Iterator[None]:
    """Isolate gradients from the caller's: a checkpointed layer would count tensors saved here as its own."""
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(kind, enabled=False), hooks:
        yield


AttentionInterface.register(ATTENTION, packed_attention)
AttentionMaskInterface.register(ATTENTION, lambda *_, **__: None)
