"""Low-rank adapters (LoRA, arXiv 2106.09685): peft's layers inside a model of transformers."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor, nn
from transformers import PreTrainedModel

from rollenv.agents.engines.adapters import Adapter
from rollenv.agents.engines.routing import Routing
from rollenv.core.errors import UsageError
from rollenv.core.needs import extra
from rollenv.trainers.policies.base import LOGPROBS, Output, Outputs, Policy
from rollenv.trainers.policies.packed import Packed
from rollenv.trainers.policies.state import whole

#: peft's name for the adapter.
_NAME = "default"

#: The first release of peft that gives adapters to experts, which are parameters.
FOR_EXPERTS = "0.20"

#: Name of the adapter's folder in the folder of a checkpoint.
FOLDER = "adapter"


@dataclass(frozen=True)
class Lora:
    """Settings of adapters: W + alpha / rank · B A, with A (rank, inputs) initially random and B (outputs, rank) zero.

    Args:
        targets: name suffixes of the layers with adapters; "all-linear" for all but the output layer.
    """

    rank: int
    alpha: float = 32.0
    targets: str | Sequence[str] = "all-linear"
    seed: int = 0


def adapt(model: PreTrainedModel, lora: Lora, frozen: Collection[str] = ()) -> None:
    """Add adapters in float32 to a model, and freeze its other weights.

    Args:
        frozen: names of parts that get no adapters.
    """
    with extra("lora", "Training with LoRA"):
        from peft import LoraConfig, __version__, inject_adapter_in_model

    # Routers that are linear layers (Phi-3.5-MoE, Llama 4) return their choice too, which no adapter can.
    routers = Routing(model).routers
    if routers and Version(__version__) < Version(FOR_EXPERTS):  # it leaves experts without adapters, silently
        raise UsageError(
            f"adapters of a mixture of experts need peft {FOR_EXPERTS} or newer, and {__version__} is installed: "
            f"pip install --upgrade 'peft>={FOR_EXPERTS}'"
        )
    linear = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    whole_parts = tuple(f"{part}." for part in frozen)
    scores = getattr(model, "score", None)  # the head of a reward model is new, and trained as a whole
    excluded = [name for name, layer in linear if layer in (*routers, scores) or name.startswith(whole_parts)]
    widest = max((min(layer.weight.shape) for _, layer in linear), default=lora.rank)
    if lora.rank > widest:
        raise UsageError(
            f"model.lora.rank={lora.rank} is above {widest}, the highest rank of the model's layers: lower it, or "
            "train the model itself with model.lora.rank=0"
        )
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    alpha: Any = lora.alpha  # peft takes fractions too
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=alpha,
        target_modules=targets,
        exclude_modules=excluded or None,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lora.seed)
        try:
            inject_adapter_in_model(config, model, _NAME)  # transformers' own way may want a peft that is not out yet
            left = model.peft_config[_NAME].target_modules  # peft takes experts out, which are parameters
            _check(model, [] if isinstance(targets, str) else [name for name in targets if name in left])
        except (ValueError, re.error) as error:
            raise UsageError(f"model.lora.targets={targets!r}: {error}") from error
    if hasattr(model.get_output_embeddings(), "lora_A"):
        raise UsageError(f"model.lora.targets={targets!r}: the output layer cannot have an adapter here")
    adapter_of(model)  # raises if it cannot be merged and played
    for name, weight in model.named_parameters():
        weight.requires_grad_(".lora_" in name or (scores is not None and name.startswith("score.")))
        if weight.requires_grad:
            weight.data = weight.data.float()


def _check(model: nn.Module, targets: Collection[str]) -> None:
    """Check that every target has adapters, and that only linear layers and parameters have any."""
    adapted = {name: layer for name, layer in model.named_modules() if hasattr(layer, "lora_A")}
    if unmatched := [end for end in targets if not any(f".{name}".endswith(f".{end}") for name in adapted)]:
        raise ValueError(f"no layer has a name that ends with {unmatched[0]!r}; leave it out")
    if others := [name for name, layer in adapted.items() if _NAME not in layer.lora_A]:
        raise ValueError(f"{others[0]} is not a linear layer; leave it out")


def merged_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all weights, unsharded and with adapters merged, under their names without adapters.

    If the model is sharded, all ranks call this together.
    """
    adapter, wrappers = adapter_of(model), wrapped_parameters(model)
    if adapter is None:
        return _base_weights(model)
    own = {_peft_name(f"{name}.lora_{side}.weight") for name, _ in wrappers.values() for side in "AB"}
    linear = {name: tensor for name, tensor in adapter.tensors.items() if name not in own}
    weights = _with_parameters(_base_weights(model), adapter.tensors, wrappers)
    return Adapter(adapter.config, linear).merged(weights) if linear else weights


def _base_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all weights without adapters."""
    for name, tensor in model.state_dict().items():
        if ".lora_" not in name:
            yield name.replace(".base_layer", ""), whole(tensor.detach())


def wrapped_parameters(model: nn.Module) -> dict[str, tuple[str, Any]]:
    """Return the parameters with adapters that are no linear layer's, as are all experts of a layer in one tensor.

    Returns:
        The name and module of peft's wrapper, by the parameter's name. Wrappers of one module are nested.
    """
    layers = [(name, layer) for name, layer in model.named_modules() if hasattr(layer, "parameter_name")]
    return {f"{name}.{layer.parameter_name}".replace(".base_layer", ""): (name, layer) for name, layer in layers}


def _with_parameters(
    base: Iterator[tuple[str, Tensor]], tensors: Mapping[str, Tensor], wrappers: Mapping[str, tuple[str, Any]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield weights with the adapters of parameters merged, each expert's by peft's order of numbers."""
    for name, weight in base:
        if name in wrappers:
            where, layer = wrappers[name]
            down, up = (tensors[_peft_name(f"{where}.lora_{side}.weight")].float() for side in "AB")
            experts = len(weight) if weight.ndim == 3 else 1
            down = down.reshape(experts, -1, down.shape[1])
            change = torch.einsum("ore,eri->eoi", up.reshape(len(up), -1, experts), down) * layer.scaling[_NAME]
            if weight.ndim == 3 and getattr(layer.get_base_layer(), "is_transposed", False):
                change = change.mT
            weight = weight + change.reshape(weight.shape).to(weight)
        yield name, weight


def _peft_name(name: str) -> str:
    return f"base_model.model.{name}"


def adapter_of(model: Any) -> Adapter | None:
    """Return a model's adapter, unsharded, or None. If the model is sharded, all ranks call this together."""
    if _NAME not in getattr(model, "peft_config", {}):
        return None
    names = [name for name, _ in model.named_parameters() if ".lora_" in name]
    state = model.state_dict()
    tensors = {_peft_name(name.replace(f".{_NAME}.", ".")): whole(state[name].detach()) for name in names}
    config = {k: sorted(v) if isinstance(v, set) else v for k, v in model.peft_config[_NAME].to_dict().items()}
    return Adapter({**config, "inference_mode": True}, tensors)


@contextlib.contextmanager
def without(model: nn.Module) -> Iterator[None]:
    """Disable adapters while the block runs."""
    layers = [m for m in model.modules() if hasattr(m, "lora_A") and hasattr(m, "scaling")]
    before = [layer.scaling[_NAME] for layer in layers]
    for layer in layers:
        layer.scaling[_NAME] = 0.0
    try:
        yield
    finally:
        for layer, scaling in zip(layers, before, strict=True):
            layer.scaling[_NAME] = scaling


class Unadapted:
    """The policy without its adapters: a reference that needs no copy of the model."""

    def __init__(self, policy: Policy, model: PreTrainedModel):
        self.policy, self.model, self.packs = policy, model, policy.packs

    def logprobs(
        self, batch: Packed, outputs: Collection[Output] = LOGPROBS, *, entropy_gradient: bool = False
    ) -> Outputs:
        """See :class:`~rollenv.trainers.policies.base.Policy`."""
        with without(self.model):
            return self.policy.logprobs(batch, outputs, entropy_gradient=entropy_gradient)
