"""The key-value cache of running sequences, and cached distributions of next tokens."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from rollenv.agents.engines.base import Ids, vision_of
from rollenv.agents.engines.decode_graphs import DecodeGraphs
from rollenv.agents.engines.onednn import PackedLinears
from rollenv.agents.engines.routing import Routing
from rollenv.agents.engines.scoring import pad_left
from rollenv.agents.vision import Sight, attended, joined

#: Maximum number of tokens, padding included, in one call of the model.
_CHUNK_TOKENS = 4096


def cache_argument(model: PreTrainedModel) -> str:
    """Return the name of the cache argument of a model's forward(), which transformers 5.24 renamed."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


@dataclass(slots=True)
class _Plan:
    """The rows and columns of the cache that a call of the model reads and writes."""

    rows: int = 0
    length: int = 0
    first: int = 0
    last: int = 0
    longest: int = 0
    row_index: torch.Tensor | None = None
    slots: torch.Tensor | None = None


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """One layer: tensors of shape (rows, heads, length + 1, head size); padding writes to the last column.

    Token ``i`` of a sequence is in column ``i``, so sequences can be cut, copied and continued without moving. Tensors
    are initialised with zeros, because attention multiplies masked values with zero, which would keep a NaN.
    """

    def __init__(self, plan: _Plan):
        super().__init__()
        self.plan = plan

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = (self._zeros(new) for new in (key_states, value_states))
        self.is_initialized = True

    def _zeros(self, like: torch.Tensor) -> torch.Tensor:
        return like.new_zeros(self.plan.rows, like.shape[1], self.plan.length + 1, like.shape[3])

    def resize(self) -> None:
        """Change to the plan's size, with the contents that fit into it."""
        if not self.is_initialized:
            return
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = self._zeros(old)
            rows, length = min(old.shape[0], new.shape[0]), min(old.shape[2], new.shape[2]) - 1
            new[:rows, :, :length] = old[:rows, :, :length]
            setattr(self, name, new)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        plan = self.plan
        self.keys[plan.row_index, :, plan.slots] = key_states.transpose(1, 2)
        self.values[plan.row_index, :, plan.slots] = value_states.transpose(1, 2)
        rows = slice(plan.first, plan.last)
        return self.keys[rows, :, : plan.longest], self.values[rows, :, : plan.longest]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.plan.longest, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


class BatchCache:
    """The keys and values of a batch of sequences with different lengths, added and removed row by row.

    The tensors are written in place: a step reads the cache once and does not copy it.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype = torch.float32):
        self.model = model
        self._plan = _Plan()
        self._cache = Cache(
            layers=[_Layer(self._plan) for _ in range(model.config.get_text_config().num_hidden_layers)]
        )
        self._routing, self._routes = Routing(model), _Layer(self._plan)  # experts have the layout of keys
        self._cache_kwargs = {cache_argument(model): self._cache}
        self._packed = PackedLinears(model, dtype)  # weights do not change while a batch is in use
        self._family = vision_of(model)
        self.features: dict[int, list[torch.Tensor]] = {}
        """Those of pictures, by number."""
        captures = model.device.type == "cuda" and not self._routing.routers  # experts are read by hooks
        self.graphs = DecodeGraphs(self._step) if captures else None

    def reserve(self, rows: int, length: int, bound: int) -> None:
        """Grow to a number of rows and columns; existing contents are kept.

        More than needed is allocated, up to the bound, so that growth is rare.

        Args:
            bound: total number of tokens up to which more than needed is allocated.
        """
        plan = self._plan
        if rows <= plan.rows and length <= plan.length:
            return
        more_rows, more_length = plan.rows, plan.length
        if rows > plan.rows:
            more_rows = max(rows, plan.rows * 3 // 2)
        if more_rows * length <= bound:
            rows = more_rows
        if length > plan.length:
            more_length = max(length, plan.length * 3 // 2)
        length = max(length, min(more_length, bound // rows))
        plan.rows, plan.length = rows, length
        for layer in self._layers:
            layer.resize()
        if self.graphs:
            self.graphs.clear()

    def forward(
        self, first: int, new: Sequence[Sequence[int]], ends: Sequence[int], sights: Sequence[Sight | None] = ()
    ) -> torch.Tensor:
        """Run the model on the last tokens of sequences and cache their keys and values.

        Args:
            first: the row of the first sequence; the others follow it.
            new: the tokens to compute, at least one for each sequence; those before them are cached.
            ends: the total number of tokens of each sequence.
            sights: the pictures of each sequence, if any has some.

        Returns:
            Logits for the next token of each sequence, of shape (sequences, vocabulary); valid until the next call.
        """
        plan, device = self._plan, self.model.device
        seeing = any(sights)
        if self.graphs and not seeing and first == 0 and all(len(tokens) == 1 for tokens in new):
            logits = self.graphs.step([tokens[0] for tokens in new], ends, plan.rows, plan.length, device)
            if logits is not None:
                return logits
        ids, real = pad_left(new, device)
        width = ids.shape[1]
        position = torch.tensor(ends, device=device)[:, None] + torch.arange(-width, 0, device=device)
        slots = position
        if real is not None:
            slots = torch.where(real.bool(), position, plan.length)
        position = position.clamp(min=0)
        places = rope = None
        chunk = max(1, _CHUNK_TOKENS // len(new))
        horizon = position
        if seeing:
            places, rope = joined(sights, ends, [len(tokens) for tokens in new], width, position)
            if any(sight and sight.last is not None for sight in sights):
                chunk, horizon = width, attended(sights, ends, [len(tokens) for tokens in new], position)
        plan.first, plan.last = first, first + len(new)
        plan.row_index = torch.arange(plan.first, plan.last, device=device)[:, None]
        for start in range(0, width, chunk):
            columns = slice(start, start + chunk)
            plan.slots, plan.longest = slots[:, columns], max(ends) - width + min(start + chunk, width)
            here = None if places is None else places[:, columns]
            where = position[:, columns] if rope is None else rope[..., columns]
            logits = self._call(ids[:, columns], horizon[:, columns], where, here)
        return logits

    def _step(
        self, rows: int, longest: int, ids: torch.Tensor, position: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        plan = self._plan
        plan.first, plan.last, plan.longest, plan.slots = 0, rows, longest, slots
        plan.row_index = torch.arange(rows, device=ids.device)[:, None]
        return self._call(ids, position, position)

    def _call(
        self, ids: torch.Tensor, last: torch.Tensor, rope: torch.Tensor, places: torch.Tensor | None = None
    ) -> torch.Tensor:
        inputs: dict[str, Any] = {"input_ids": ids}
        if self._family:
            inputs = self._family.embedded(self.model, ids, places, self.features)
            inputs.pop("token_type_ids", None)  # for a mask that is given here
        hidden = torch.arange(self._plan.longest, device=ids.device) > last[:, None, :, None]
        mask = torch.zeros(hidden.shape, dtype=self.model.dtype, device=ids.device).masked_fill_(hidden, -torch.inf)
        with self._packed():
            out = self.model(
                **inputs, attention_mask=mask, position_ids=rope, **self._cache_kwargs, use_cache=True, logits_to_keep=1
            )
        if self._routing.routers:
            taken = self._routing.taken().view(len(ids), 1, ids.shape[1], -1)
            self._routes.update(taken, taken[..., :0])
        logits: torch.Tensor = out.logits[:, -1]
        return logits

    @property
    def _layers(self) -> list[_Layer]:
        return [*self._cache.layers, *([self._routes] if self._routing.routers else [])]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Keys and values of every layer, each of shape (rows, heads, length + 1, head size), and the experts.

        Layers that read those of others (Gemma 4) have none.
        """
        return [tensor for layer in self._layers if layer.is_initialized for tensor in (layer.keys, layer.values)]

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in all layers."""
        return sum(t.shape[1] * t.shape[3] * t.element_size() for t in self.tensors)

    @property
    def routers(self) -> int:
        """The number of layers with experts."""
        return len(self._routing.routers)

    def routes(self, row: int, length: int) -> NDArray[np.int16]:
        """Return the experts of the first tokens of a row.

        Returns:
            (length, layers k)
        """
        experts: NDArray[np.int16] = self._routes.keys[row, 0, :length].cpu().numpy()
        return experts

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` tokens of the source rows to the target rows."""
        tensors = self.tensors
        source, target = torch.tensor([sources, targets], device=tensors[0].device)
        for tensor in tensors:
            tensor[:, :, :length].index_copy_(0, target, tensor[:, :, :length].index_select(0, source))

    def wipe(self, rows: Sequence[int]) -> None:
        """Set rows with NaN values to zero."""
        for tensor in self.tensors:
            tensor[list(rows)] = 0


class Distributions:
    """Cached next-token logits of prompts, for the current weights and within a bound on memory."""

    def __init__(self, vocabulary: int, max_elements: int = 1 << 24):
        self.capacity = max_elements // vocabulary
        self._row: dict[Ids, int] = {}
        self._table = torch.empty(0, vocabulary)

    def __contains__(self, prompt: Ids) -> bool:
        return prompt in self._row

    def add(self, prompts: list[Ids], logits: torch.Tensor) -> None:
        """Store the logits of new prompts."""
        first, last = len(self._row), len(self._row) + len(prompts)
        if last > len(self._table):  # half more than needed, so that few additions copy the table
            old = self._table[:first].to(logits)
            self._table = logits.new_empty(last * 3 // 2, logits.shape[1])
            self._table[:first] = old
        self._table[first:last] = logits
        self._row.update(zip(prompts, range(first, last), strict=True))

    def look_up(self, prompts: Sequence[Ids]) -> torch.Tensor:
        """Return the logits of known prompts, in order; drop all stored logits if they exceed the bound."""
        logits = self._table[torch.tensor([self._row[p] for p in prompts], device=self._table.device)]
        if len(self._row) > self.capacity:
            self.clear()
        return logits

    def clear(self) -> None:
        """Drop everything."""
        self._row.clear()
        self._table = self._table[:0].clone()
