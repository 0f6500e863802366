"""CUDA graphs of decoding steps."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

#: Steps of a shape before its graph is captured, which takes as long as a few of them.
_PLAIN_STEPS = 4
#: A graph is for a multiple of this number of columns.
_COLUMNS = 256


@dataclass(slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: Tensor
    """(3, rows, 1) tokens, positions, and columns of the cache to write to."""
    logits: Tensor


class DecodeGraphs:
    """Steps of one token per sequence, each launched as one CUDA graph instead of kernel by kernel.

    A graph is for a number of rows and columns, which are rounded up so that few are needed. It holds the addresses of
    the cache and of the weights: call :meth:`clear` when the cache's tensors are replaced.

    Args:
        call: runs the model: (rows, longest, ids, positions, columns to write to) to logits (rows, vocabulary).
    """

    def __init__(self, call: Callable[[int, int, Tensor, Tensor, Tensor], Tensor]):
        self._call = call
        self._pool = torch.cuda.graph_pool_handle()
        self._steps: Counter[tuple[int, int]] = Counter()
        self.captured: dict[tuple[int, int], _Graph] = {}
        self.failed = False

    def clear(self) -> None:
        """Drop all graphs."""
        self.captured.clear()
        self._pool = torch.cuda.graph_pool_handle()  # a pool ends with its last graph

    def step(
        self, ids: Sequence[int], ends: Sequence[int], rows: int, length: int, device: torch.device
    ) -> Tensor | None:
        """Compute the logits after one more token of each of the first sequences of the cache.

        Args:
            ends: the total number of tokens of each sequence.
            length: number of columns of the cache, without the last, which nothing reads.

        Returns:
            (sequences, vocabulary) logits, valid until the next step; None if there is no graph of this shape yet.
        """
        n = len(ids)
        shape = min(1 << (n - 1).bit_length(), rows), min(-(-max(ends) // _COLUMNS) * _COLUMNS, length)
        self._steps[shape] += 1
        if self.failed or self._steps[shape] <= _PLAIN_STEPS:
            return None
        if shape not in self.captured:
            try:
                self.captured[shape] = self._capture(*shape, length, device)
            except RuntimeError as error:
                self.failed = True
                logger.warning("decoding steps are launched kernel by kernel, without CUDA graphs: %s", error)
                return None
        graph, unused = self.captured[shape], shape[0] - n
        columns = [end - 1 for end in ends]
        inputs = [[*ids, *[0] * unused], [*columns, *[0] * unused], [*columns, *[length] * unused]]
        graph.inputs.copy_(torch.tensor(inputs)[..., None])
        graph.graph.replay()
        return graph.logits[:n]

    def _capture(self, rows: int, longest: int, length: int, device: torch.device) -> _Graph:
        inputs = torch.zeros(3, rows, 1, dtype=torch.int64, device=device)
        inputs[2] = length
        side, current = torch.cuda.Stream(device), torch.cuda.current_stream(device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            self._call(rows, longest, *inputs)  # what kernels set up in their first call cannot be captured
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # A failed capture leaves its stream current. Another thread may train meanwhile: its calls must not end this.
        with torch.cuda.stream(current), torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            logits = self._call(rows, longest, *inputs)
        return _Graph(graph, inputs, logits)
