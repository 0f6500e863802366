"""A policy on one device: weights and optimizer in float32, forward and backward pass in a configurable type."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rollenv.agents.engines.adapters import Adapter
from rollenv.agents.engines.base import vision_of
from rollenv.agents.engines.local import fix_frequencies
from rollenv.agents.engines.onednn import use_onednn
from rollenv.agents.engines.routing import Routing
from rollenv.agents.vision import vision_parts, why_blind
from rollenv.core.errors import UsageError
from rollenv.trainers.policies.attention import ATTENTION, PackedRow
from rollenv.trainers.policies.base import LOGPROBS, Output, Outputs
from rollenv.trainers.policies.head import MOST_LOGITS, token_logprobs
from rollenv.trainers.policies.lora import Lora, adapt, adapter_of, merged_weights
from rollenv.trainers.policies.optimizers import Kind, make_optimizer
from rollenv.trainers.policies.packed import Labels, Packed
from rollenv.trainers.policies.routing import experts_per_token, loads
from rollenv.trainers.policies.state import MOMENTS, all_finite, tensors_of, whole

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=nn.Module)

#: The initial loss scale for float16, whose largest number is 65504.
_FIRST_SCALE = 1024.0

#: Maximum relative difference between two computations of the same states: of each number in float32, and of the norm
#: in lower precision, where kernels round differently in every layer.
_ALIKE = 1e-3
_ALIKE_ROUNDED = 0.1


class Scorer(nn.Module):  # type: ignore[misc]
    """A causal language model with the computation of log-probabilities, as one module with one forward pass.

    A model with a head for scores computes these instead, in place of log-probabilities: before a token, the score of
    all tokens until then.

    Args:
        temperature: sampling temperature; divides the logits.
        vision: train the part that pictures pass too.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        temperature: float = 1.0,
        most_logits: int = MOST_LOGITS,
        lora: Lora | None = None,
        vision: bool = False,
    ):
        super().__init__()
        self.model, self.temperature, self.most_logits = model.requires_grad_(True), temperature, most_logits
        fix_frequencies(model)
        use_onednn(model)
        self.packs = choose_attention(model)
        self.scores: nn.Module | None = getattr(model, "score", None)
        self.head = None if self.scores else head_of(model)
        self.experts_per_token = experts_per_token(model)
        frozen = {} if vision else vision_parts(model)
        for part in frozen.values():
            part.requires_grad_(False)
        if lora:
            adapt(model, lora, [*frozen])
        self.routing = Routing(model)

    def forward(
        self, batch: Packed, outputs: Collection[Output], entropy_gradient: bool = False
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """Return the fields of :class:`~rollenv.trainers.policies.base.Outputs`; None for those not computed.

        Returns:
            (n,) log-probabilities, (n,) entropies, (n, width) states, (m,) log-probabilities of observations, (3,
            layers, E) the loads of experts; None for those not computed.
        """
        drawn, observed = batch.drawn, batch.observed
        self.routing.replay(batch.routes)  # until the next batch, since checkpointed layers are recomputed
        self.routing.record()
        hidden, others = hidden_states(self.model, batch, packs=self.packs)
        routed = self.routing.recorded()
        states = hidden.detach()[drawn.of] if "hidden" in outputs else None
        if set(outputs) == {"hidden"}:
            return None, None, states, None, None
        if self.head is None:
            assert self.scores is not None
            return self.scores(hidden)[drawn.of, 0].float(), None, states, None, None
        head = functools.partial(
            token_logprobs,
            head=self.head,
            vocabulary=self.model.config.get_text_config().vocab_size,
            most_logits=self.most_logits,
        )
        chosen, entropy = head(
            hidden,
            drawn.targets,
            temperature=self.temperature,
            entropy="entropy" in outputs,
            entropy_gradient=entropy_gradient,
        )
        # observations were not sampled: no temperature
        observations = head(others, observed.targets)[0][observed.of] if len(observed.of) else None
        router = None
        if routed and self.experts_per_token:
            router = loads(routed, self.experts_per_token, batch.readers)
        if entropy is not None:
            entropy = entropy[drawn.of]
        return chosen[drawn.of], entropy, states, observations, router


class LocalPolicy:
    """Trains a causal language model on its device.

    Args:
        model: the initial model; its configuration is not changed.
        share: train the weights of ``model`` in place; otherwise a float32 copy.
        lora: adapters to train instead; the copy then has the type of ``precision``.
        precision: type of the forward and backward pass: float32, bfloat16 or float16 (with loss scaling).
        betas: AdamW's decay rates of its two moments (arXiv 1711.05101).
        vision: train the part that pictures pass too.
        optimizer: AdamW, or with 8-bit moments (arXiv 2110.02861).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        share: bool = False,
        lora: Lora | None = None,
        precision: torch.dtype = torch.float32,
        temperature: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.0,
        optimizer: Kind = "adamw",
        offload: bool = False,
        max_grad_norm: float = 1.0,
        gradient_checkpointing: bool = False,
        most_logits: int = MOST_LOGITS,
        vision: bool = False,
    ):
        if share and (rounded := sorted({str(p.dtype) for p in model.parameters() if p.dtype.itemsize < 4})):
            raise UsageError(
                f"weights of the type {', '.join(rounded)} cannot be trained in place: rounding would discard small "
                "steps. Use float32 weights or model.sync='copy'"
            )
        self.shares = share
        # A separate module: its training setup does not affect the player's.
        own = twin(model) if share else copy.deepcopy(model).to(precision if lora else torch.float32)
        scorer = Scorer(own, temperature=temperature, most_logits=most_logits, lora=lora, vision=vision)
        compute_as_player(scorer.model, gradient_checkpointing=gradient_checkpointing)
        adam = {"betas": betas, "weight_decay": weight_decay, "kind": optimizer, "offload": offload}
        self._begin(scorer, precision, max_grad_norm, adam)

    def _begin(self, scorer: Scorer, precision: torch.dtype, max_grad_norm: float, adam: Mapping[str, Any]) -> None:
        """Set up the optimizer for the current weights."""
        self.scorer, self.model, self.packs = scorer, scorer.model, scorer.packs
        self.precision, self.max_grad_norm = precision, max_grad_norm
        self.weights = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.adam = make_optimizer(self.weights.values(), fusible=precision != torch.float16, **adam)
        self.scaler = torch.amp.GradScaler(
            self.device.type, init_scale=_FIRST_SCALE, enabled=precision == torch.float16
        )
        self.overflowed = False

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.model.parameters()).device

    def logprobs(
        self, batch: Packed, outputs: Collection[Output] = LOGPROBS, *, entropy_gradient: bool = False
    ) -> Outputs:
        """See :class:`~rollenv.trainers.policies.base.Policy`."""
        with self._autocast():
            return Outputs(*self.scorer(batch, tuple(outputs), entropy_gradient))

    def last_piece(self, last: bool) -> None:
        """See :class:`~rollenv.trainers.policies.base.Policy`; one device has no gradients to synchronise."""

    def backward(self, loss: Tensor) -> None:
        """See :class:`~rollenv.trainers.policies.base.Policy`."""
        self.scaler.scale(loss).backward()

    def step(self, lr: float, *, hold: bool = False) -> float:
        """See :class:`~rollenv.trainers.policies.base.Policy`."""
        for group in self.adam.param_groups:
            group["lr"] = lr
        self.scaler.unscale_(self.adam)
        norm = float(whole(nn.utils.clip_grad_norm_(self.weights.values(), self.max_grad_norm)))
        if math.isfinite(norm) and not hold:
            self.scaler.step(self.adam)
        scale = self.scaler.get_scale()
        self.scaler.update()
        self.overflowed = 1 < scale > self.scaler.get_scale()
        self.adam.zero_grad()
        return norm

    def finite(self) -> bool:
        """Return whether every weight is a finite number."""
        return all_finite(self.weights.values())

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all weights under the model's own names, with adapters merged."""
        return merged_weights(self.model)

    def adapter(self) -> Adapter | None:
        """Return the trained adapter; None if the model itself is trained."""
        return adapter_of(self.model)

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights and Adam's moments by name, not copied."""
        return tensors_of(self.weights, self.adam)

    def state_dict(self) -> dict[str, Any]:
        """Return Adam's moments, the loss scale, and the float32 weights unless they are shared with the player."""
        masters = {name: weight.detach() for name, weight in self._masters.items()}
        return {"adam": self.adam.state_dict(), "scaler": self.scaler.state_dict(), "masters": masters}

    @property
    def _masters(self) -> dict[str, Tensor]:
        """The float32 weights that the player does not have."""
        return {} if self.shares else self.weights

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state; its tensors may be on any device."""
        if not isinstance(state, dict) or not {"masters", "adam"} <= state.keys():
            raise ValueError("its optimizer state has no float32 master weights: an older version wrote it")
        own = {name: weight.shape for name, weight in self._masters.items()}
        saved = {name: weight.shape for name, weight in state["masters"].items()}
        if own != saved:
            wrong = sorted(name for name in own.keys() | saved.keys() if own.get(name) != saved.get(name))
            raise ValueError(f"its master weights belong to another model or type; {wrong[0]} differs first")
        for number, weight in enumerate(self.weights.values()):
            for name, value in state["adam"]["state"].get(number, {}).items():
                if name in MOMENTS and value.shape != weight.shape:
                    raise ValueError(f"its optimizer belongs to another model: {name} {number} is {tuple(value.shape)}")
        self.adam.load_state_dict(state["adam"])
        if self.scaler.is_enabled() and state.get("scaler"):
            self.scaler.load_state_dict(state["scaler"])
        with torch.no_grad():
            for name, master in state["masters"].items():
                self.weights[name].copy_(master)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.precision == torch.float32:
            return contextlib.nullcontext()
        product: contextlib.AbstractContextManager[Any] = torch.autocast(self.device.type, dtype=self.precision)
        return product


def twin(model: M, make: Callable[[Tensor], Tensor] | None = None) -> M:
    """Copy a module but share its parameters.

    Args:
        make: converts parameters and buffers, instead of sharing parameters.
    """
    shared: dict[int, Any] = {
        id(p): p if make is None else nn.Parameter(make(p.detach()), requires_grad=p.requires_grad)
        for p in model.parameters()
    }
    if make is not None:
        shared |= {id(b): make(b) for b in model.buffers()}
    return copy.deepcopy(model, shared)


def compute_as_player(model: PreTrainedModel, *, gradient_checkpointing: bool) -> None:
    """Turn off dropout and other training noise: probabilities must equal those during sampling.

    Noise needs the training mode. Without it, nothing is changed: Phi-3.5-MoE's ``router_jitter_noise`` is a threshold
    between experts, in sampling too.

    Args:
        gradient_checkpointing: recompute activations in the backward pass. Layers do so in training mode only, which is
            therefore set for them, but not for their submodules; their own rates of dropout become 0.
    """
    if gradient_checkpointing:
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable({"use_reentrant": False})  # newer versions of transformers have the first name
    model.eval()
    for module in model.modules():
        if gradient_checkpointing and hasattr(module, "gradient_checkpointing"):
            module.training = True
            for name, value in vars(module).items():
                if isinstance(value, float) and ("drop" in name or "jitter" in name):
                    setattr(module, name, 0.0)


def hidden_states(model: PreTrainedModel, batch: Packed, *, packs: bool) -> tuple[Tensor, Tensor]:
    """Compute the last layer's states that predict the labels of a micro-batch.

    Args:
        packs: read all sequences as one row; otherwise batch those of equal length.

    Returns:
        (u, width) for the response tokens, and the same for the observations between them.
    """
    base, row = body(model), batch.row
    places, positions = seen(model, batch)

    def read(ids: Tensor, places: Tensor | None, **how: Any) -> Tensor:
        family = vision_of(model)
        inputs = family.embedded(model, ids, places) if family else {"input_ids": ids}
        last: Tensor = base(**inputs, use_cache=False, **how).last_hidden_state
        return last

    if packs:
        positions = row.positions(batch.ids.device)[None] if positions is None else positions[:, None]
        states = read(batch.ids[None], None if places is None else places[None], position_ids=positions, packed_row=row)
        states = states[0]
    elif row.paths is not None:
        raise ValueError("this model cannot read samples with shared prefixes: pack them with share=False")
    else:
        parts, begin = [], 0
        for count, _, length in row.runs:
            here = slice(begin, begin := begin + count * length)
            how = {} if positions is None else {"position_ids": positions[:, here].unflatten(1, (count, length))}
            shown = None if places is None else places[here].view(count, length)
            parts.append(read(batch.ids[here].view(count, length), shown, **how).flatten(0, 1))
        states = torch.cat(parts)
    at = batch.drawn.at, batch.observed.at
    responses, observed = states[torch.cat(at)].split([*map(len, at)])
    return responses, observed


def seen(model: PreTrainedModel, batch: Packed) -> tuple[Tensor | None, Tensor | None]:
    """Return each token's place in its picture, (L,), and positions (3, L), if the batch needs them."""
    family, row = vision_of(model), batch.row
    if not batch.pictures:
        return None, None
    if family is None:
        raise UsageError(f"the samples have pictures, but {why_blind(model.config)}")
    ids, device = batch.ids.cpu().numpy(), batch.ids.device
    shapes = [(before, n) for count, before, n in row.runs for _ in range(count)]
    paths = (torch.arange(len(ids)) if row.paths is None else row.paths.cpu()).split([sum(shape) for shape in shapes])
    places, ropes, counted = [], [], True
    for path, (before, n) in zip(paths, shapes, strict=True):
        rope = np.arange(before, before + n)[None].repeat(3, 0)
        place = np.full(n, -1)
        if sight := family.look(model, ids[path.numpy()]):
            place, own = sight.part(before, before + n)
            if own is not None:
                rope, counted = own, False
        places.append(place)
        ropes.append(rope)
    joint = torch.from_numpy(np.concatenate(ropes, 1)).to(device)
    return torch.from_numpy(np.concatenate(places)).to(device), None if counted else joint


def body(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model without its head."""
    for part in (model.base_model, model.get_decoder(), getattr(model, "model", None)):
        if isinstance(part, PreTrainedModel) and part is not model:
            return part
    raise UsageError(f"models of the type {model.config.model_type!r} cannot be trained here: their body is not found")


def choose_attention(model: PreTrainedModel) -> bool:
    """Set packed attention if the model then computes the same; return whether it does.

    All layers must be full attention. Recurrent layers would carry the state of one sequence into the next. Windows and
    chunks would differ in long sequences only, which a short probe does not find.
    """
    config, before = model.config.get_text_config(), model.config._attn_implementation
    others = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    family = vision_of(model)
    if family and family.mutual:
        why = "the tokens of its pictures attend to later ones"
    elif others:
        why = f"it has layers of the type {', '.join(others)}"
    else:
        why = _packs_wrongly(model)
    if why:
        model.set_attn_implementation(before)
        logger.info(
            "models of the type %r read samples separately and compute shared prefixes repeatedly: %s",
            model.config.model_type,
            why,
        )
    return not why


def _packs_wrongly(model: PreTrainedModel) -> str:
    """Return the reason why the model cannot read packed segments; empty if it can."""
    ids = torch.tensor([3, 1, 2, 1, 1, 3, 2, 2, 1, 3], device=next(model.parameters()).device)
    same = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7, 9], device=ids.device)  # the last two share three tokens
    row = PackedRow(((1, 0, 2), (2, 0, 3), (2, 3, 1)), torch.cat([same[:8], same[5:]]))
    no_labels = Labels(ids[:0], ids[:0], ids[:0])

    def states(tokens: Tensor, row: PackedRow, at: Tensor, packs: bool) -> Tensor:
        batch = Packed(tokens, row, Labels(at, at, at), no_labels, at, at, {}, torch.ones_like(tokens))
        return hidden_states(model, batch, packs=packs)[0]

    model.eval()
    with torch.no_grad():
        expected = states(ids[same], PackedRow.of(2, 3, 4, 4), torch.arange(13, device=ids.device), False)
        try:
            packed = ("", *(name for name in model.config.sub_configs if "vision" not in name))
            model.set_attn_implementation(dict.fromkeys(packed, ATTENTION))
            same_states = alike(states(ids, row, same, True), expected)
        except Exception as error:
            return str(error)
    layers = model.config.get_text_config().num_hidden_layers
    if len(row.readers) != layers:
        return f"{len(row.readers)} of its {layers} layers are attention"
    return "" if same_states else "packed segments give other states"


def alike(found: Tensor, expected: Tensor) -> bool:
    """Return whether two computations of the same states or logits agree up to rounding."""
    if expected.dtype.itemsize >= 4:
        return bool(torch.allclose(found, expected, atol=_ALIKE, rtol=_ALIKE))
    found, expected = found.float(), expected.float()
    return bool(((found - expected).norm(dim=-1) <= _ALIKE_ROUNDED * expected.norm(dim=-1)).all())


class _Head:
    """Maps the last layer's states to logits, by a model's configuration."""

    def __init__(self, model: PreTrainedModel):
        config = model.config.get_text_config()
        self.layer = model.get_output_embeddings()
        self.cap = getattr(config, "final_logit_softcapping", None)
        self.scale = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)

    def __call__(self, states: Tensor) -> Tensor:
        logits: Tensor = self.layer(states)
        if self.scale != 1:
            logits = logits * self.scale
        if self.cap:
            logits = torch.tanh(logits / self.cap) * self.cap
        return logits


def head_of(model: PreTrainedModel) -> _Head:
    """Return the model's head, which maps the last layer's states to logits."""
    head = _Head(model)
    ids = torch.tensor([[1, 2, 3, 1]], device=next(model.parameters()).device)
    how = {}
    if model.config._attn_implementation == ATTENTION:
        how["packed_row"] = PackedRow.of(4)
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False, **how).logits
        logits = head(body(model)(input_ids=ids, use_cache=False, **how).last_hidden_state)
    if not alike(logits, expected):
        raise UsageError(
            f"models of the type {model.config.model_type!r} cannot be trained here: their logits are not their output "
            "layer's, scaled or capped by the configuration"
        )
    return head
