"""A policy on one device: weights and steps in float32, products in the type that was chosen."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import math
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rollenv.core import UsageError
from rollenv.trainers.policies.base import LOGPROBS, Output, Outputs
from rollenv.trainers.policies.head import MOST_LOGITS, Head, token_logprobs
from rollenv.trainers.policies.packed import ATTENTION, Packed, positions

logger = logging.getLogger(__name__)

#: What losses are multiplied by at first where products are float16, whose largest number is 65504.
_FIRST_SCALE = 1024.0

#: How far two ways to compute the same logits may be apart.
_ALIKE = 1e-3


class LocalPolicy:
    """Trains a causal language model on its device.

    Args:
        model: to begin with. It is not changed itself.
        share: train the very weights of ``model``, in their type; otherwise a float32 copy of them.
        precision: of the products: float32, bfloat16 or float16 (with loss scaling).
        temperature: that responses are drawn with; divides the logits.
        betas: AdamW's (arXiv 1711.05101).
        weight_decay: AdamW's.
        max_grad_norm: gradients are cut to this norm.
        gradient_checkpointing: compute activations twice and keep few of them.
        most_logits: see :func:`~rollenv.trainers.policies.head.token_logprobs`.

    Raises:
        UsageError: weights to be shared are less exact than float32, or the model's logits are none of its head's.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        share: bool = False,
        precision: torch.dtype = torch.float32,
        temperature: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
        gradient_checkpointing: bool = False,
        most_logits: int = MOST_LOGITS,
    ):
        if share and (rounded := sorted({str(p.dtype) for p in model.parameters() if p.dtype.itemsize < 4})):
            raise UsageError(
                f"weights of the type {', '.join(rounded)} cannot be trained in place, where they would round small "
                "steps away: they have to be float32; choose model.sync='copy'"
            )
        # A module of its own: how it is set up for training does not reach the one that plays.
        self.shares = share
        self.model: PreTrainedModel = twin(model) if share else copy.deepcopy(model).float()
        self.model.requires_grad_(True)
        self.packs = choose_attention(self.model)
        self.head = head_of(self.model)
        if gradient_checkpointing:
            enable = getattr(self.model, "activation_checkpointing_enable", self.model.gradient_checkpointing_enable)
            enable({"use_reentrant": False})  # newer versions of transformers call it by the first name
        compute_as_player(self.model, gradient_checkpointing=gradient_checkpointing)
        self.precision, self.temperature = precision, temperature
        self.max_grad_norm, self.most_logits = max_grad_norm, most_logits
        self.weights = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.adam = torch.optim.AdamW(self.weights.values(), lr=0.0, betas=betas, weight_decay=weight_decay)
        self.scaler = torch.amp.GradScaler(
            self.device.type, init_scale=_FIRST_SCALE, enabled=precision == torch.float16
        )
        self.overflowed = False

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    def logprobs(
        self, batch: Packed, outputs: Collection[Output] = LOGPROBS, *, entropy_gradient: bool = False
    ) -> Outputs:
        """See :class:`~rollenv.trainers.policies.base.Policy`.

        Args:
            batch: to read.
            outputs: what to compute. The log-probabilities come too, unless only "hidden" is asked for.
            entropy_gradient: whether the entropy has gradients as well.
        """
        n = len(batch)
        with self._autocast():
            hidden = hidden_states(self.model, batch, packs=self.packs)
            if set(outputs) == {"hidden"}:
                return Outputs(hidden=hidden[:n].detach())
            head = functools.partial(
                token_logprobs,
                head=self.head,
                vocabulary=self.model.config.get_text_config().vocab_size,
                most_logits=self.most_logits,
            )
            chosen, entropy = head(
                hidden[:n],
                batch.targets,
                temperature=self.temperature,
                entropy="entropy" in outputs,
                entropy_gradient=entropy_gradient,
            )
            # what was not drawn has no temperature
            observations = head(hidden[n:], batch.ids[batch.seen])[0] if len(batch.seen) else None
        return Outputs(chosen, entropy, hidden[:n].detach() if "hidden" in outputs else None, observations)

    def backward(self, loss: Tensor) -> None:
        """See :class:`~rollenv.trainers.policies.base.Policy`."""
        self.scaler.scale(loss).backward()

    def step(self, lr: float, *, hold: bool = False) -> float:
        """See :class:`~rollenv.trainers.policies.base.Policy`.

        Args:
            lr: the learning rate.
            hold: take no step, only drop the gradients.
        """
        for group in self.adam.param_groups:
            group["lr"] = lr
        self.scaler.unscale_(self.adam)
        norm = float(nn.utils.clip_grad_norm_(self.weights.values(), self.max_grad_norm))
        if math.isfinite(norm) and not hold:
            self.scaler.step(self.adam)
        scale = self.scaler.get_scale()
        self.scaler.update()
        self.overflowed = 1 < scale > self.scaler.get_scale()
        self.adam.zero_grad()
        return norm

    def finite(self) -> bool:
        """Whether every weight is a finite number."""
        return all(bool(torch.isfinite(weight).all()) for weight in self.weights.values())

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """All weights under the model's own names."""
        yield from ((name, tensor.detach()) for name, tensor in self.model.state_dict().items())

    def state_dict(self) -> dict[str, Any]:
        """Adam's moments, the scale of the loss, and the float32 weights where they are not the player's."""
        masters = {} if self.shares else {name: weight.detach() for name, weight in self.weights.items()}
        return {"adam": self.adam.state_dict(), "scaler": self.scaler.state_dict(), "masters": masters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; its tensors may be on any device.

        Raises:
            ValueError: it is none of this model's; nothing was changed then.
        """
        if not isinstance(state, dict) or not {"masters", "adam"} <= state.keys():
            raise ValueError("its optimizer state has no float32 master weights, because an older version wrote it")
        own = {} if self.shares else {name: weight.shape for name, weight in self.weights.items()}
        saved = {name: weight.shape for name, weight in state["masters"].items()}
        if own != saved:
            wrong = sorted(name for name in own.keys() | saved.keys() if own.get(name) != saved.get(name))
            raise ValueError(f"its master weights belong to another model or type; {wrong[0]} differs first")
        for number, weight in enumerate(self.weights.values()):
            for name, value in state["adam"]["state"].get(number, {}).items():
                if value.ndim and value.shape != weight.shape:
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


def twin(model: PreTrainedModel) -> PreTrainedModel:
    """A module with the very parameters of another, and a configuration of its own."""
    shared = {id(p): p for p in model.parameters()}
    return copy.deepcopy(model, shared)


def compute_as_player(model: nn.Module, *, gradient_checkpointing: bool) -> None:
    """Have no dropout nor other noise of training: probabilities must be those that responses were drawn with.

    Args:
        model: which may be changed.
        gradient_checkpointing: layers do it in training mode only, so only they get it, not what they are made of.
    """
    model.eval()
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, float) and ("drop" in name or "jitter" in name):
                setattr(module, name, 0.0)
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if gradient_checkpointing and hasattr(module, "gradient_checkpointing"):
            module.training = True


def hidden_states(model: PreTrainedModel, batch: Packed, *, packs: bool) -> Tensor:
    """The last layer's states from which the response tokens of a micro-batch are predicted.

    Args:
        model: to run.
        batch: to read.
        packs: all sequences as one row; otherwise those of equal length are a batch.

    Returns:
        (n + m, width): of the response tokens, then of what was said between them.
    """
    at = torch.cat([batch.at, batch.seen - 1]) if len(batch.seen) else batch.at
    base = body(model)
    if packs:
        places = positions(batch.blocks, batch.ids.device)[None]
        out = base(input_ids=batch.ids[None], position_ids=places, use_cache=False, packed_blocks=batch.blocks)
        return out.last_hidden_state[0, at]
    if any(stem for stem, _ in batch.blocks):
        raise ValueError("this model cannot read samples that share their beginning: pack them with share=False")
    states, begin = [], 0
    for count, length in (run for _, runs in batch.blocks for run in runs):
        rows = batch.ids[begin : begin + count * length].view(count, length)
        states.append(base(input_ids=rows, use_cache=False).last_hidden_state.flatten(0, 1))
        begin += count * length
    return torch.cat(states)[at]


def body(model: PreTrainedModel) -> PreTrainedModel:
    """The model without its head.

    Raises:
        UsageError: it is not found.
    """
    for part in (model.base_model, model.get_decoder(), getattr(model, "model", None)):
        if isinstance(part, PreTrainedModel) and part is not model:
            return part
    raise UsageError(f"models of the type {model.config.model_type!r} cannot be trained here: their body is not found")


def choose_attention(model: PreTrainedModel) -> bool:
    """Let the model read packed sequences, if it computes the same that way; whether it does.

    What differs for long sequences only, such as attention in chunks, no short probe would show.
    """
    if set(getattr(model.config.get_text_config(), "layer_types", None) or ()) - {"full_attention"}:
        return False
    before = model.config._attn_implementation
    ids = torch.tensor([3, 1, 2, 1, 1, 3, 2, 2, 1, 3, 2, 2, 3], device=next(model.parameters()).device)
    whole = Packed(ids, ((0, ((1, 2), (1, 3), (2, 4))),), torch.arange(13), ids, ids, ids, {}, ids[:0])
    same = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7, 9])  # the last two share three tokens
    blocks = (0, ((1, 2), (1, 3))), (3, ((2, 1),))
    probe = Packed(torch.cat([ids[:9], ids[12:]]), blocks, same, ids, ids, ids, {}, ids[:0])
    with torch.no_grad():
        model.eval()
        expected = hidden_states(model, whole, packs=False)
        try:
            model.set_attn_implementation(ATTENTION)
            alike: bool = torch.allclose(hidden_states(model, probe, packs=True), expected, atol=_ALIKE, rtol=_ALIKE)
        except Exception as error:
            logger.info("%s cannot read packed sequences: %s", model.config.model_type, error)
            alike = False
    if not alike:
        model.set_attn_implementation(before)
    return alike


def head_of(model: PreTrainedModel) -> Head:
    """What makes logits of the last layer's states, as the model itself does.

    Raises:
        UsageError: the model does something else with them.
    """
    config, layer = model.config.get_text_config(), model.get_output_embeddings()
    cap = getattr(config, "final_logit_softcapping", None)
    scale = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)

    def head(states: Tensor) -> Tensor:
        logits: Tensor = layer(states)
        logits = logits if scale == 1 else logits * scale
        return torch.tanh(logits / cap) * cap if cap else logits

    ids = torch.tensor([[1, 2, 3, 1]], device=next(model.parameters()).device)
    how = {"packed_blocks": ((0, ((1, 4),)),)} if model.config._attn_implementation == ATTENTION else {}
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False, **how).logits
        logits = head(body(model)(input_ids=ids, use_cache=False, **how).last_hidden_state)
    if not torch.allclose(logits, expected, atol=_ALIKE, rtol=_ALIKE):
        raise UsageError(
            f"models of the type {model.config.model_type!r} cannot be trained here: their logits are not their output "
            "layer's, scaled or capped as the configuration says"
        )
    return head
