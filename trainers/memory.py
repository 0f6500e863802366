"""Memory of an update, estimated from the shape of the model and the settings, without loading the model.

It counts weights, optimizer and the peak of the largest forward and backward pass of texts. It does not count the
player's caches, the activations of pictures, kernel buffers and fragmentation: leave a tenth free.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollenv.trainers.config.algorithms import Ppo

if TYPE_CHECKING:
    from rollenv.trainers.config import TrainConfig

#: See :data:`rollenv.trainers.policies.head.MOST_LOGITS`.
MOST_LOGITS = 1 << 26

#: Bytes of a float32 number.
_FULL = 4

#: Bytes of two 8-bit moments, with a float32 scale for each 256 numbers.
_EIGHT_BITS = 2 * (1 + _FULL / 256)


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder that determine its memory."""

    parameters: int
    layers: int
    width: int
    """Width of the states between layers."""
    intermediate: int
    queries: int
    """Width of all heads' queries together."""
    keys: int
    """Width of all heads' keys together; values have the same."""
    vocabulary: int
    normalised: int = 0
    """Width of the queries and keys that a layer normalises, as in Qwen3."""
    vision: int = 0
    """Those of the parameters that only pictures pass."""


def update_memory(
    shape: Shape,
    config: TrainConfig,
    tokens: int,
    *,
    player: int = _FULL,
    teacher: int = 0,
    most_logits: int = MOST_LOGITS,
) -> dict[str, int]:
    """Return the bytes of each part of an update; they add up to its peak.

    Args:
        tokens: tokens of a forward pass. A sample is never split, even beyond ``optimizer.micro_batch_tokens``.
        player: bytes of a number in the player's weights.
        teacher: number of the teacher's parameters.
    """
    model, algorithm, settings, roles = config.model, config.algorithm, config.optimizer, config.placement.roles
    critic = algorithm.critic.kind if isinstance(algorithm, Ppo) else "none"
    product, lora = {"float32": _FULL}.get(model.precision, 2), model.lora.rank
    weights = _FULL * shape.parameters
    trained = weights - _FULL * shape.vision * (model.vision != "trained")
    if lora:
        trained = _FULL * adapter_parameters(shape, lora)
    moments = {"adamw": 2 * _FULL, "adamw8bit": _EIGHT_BITS}[settings.kind] * (not settings.offload)
    held = held_bytes(shape, _FULL if critic == "model" else product, model.gradient_checkpointing)
    chunk = min(tokens, max(1, most_logits // shape.vocabulary)) * shape.vocabulary
    return {
        "weights in float32": 0 if lora else weights,
        "Adam's two moments": int(moments * trained) // _FULL,
        "gradients": trained,
        "the sum of gradients in float64": 2 * trained * (config.batches.kind == "early"),
        "the adapters in float32": trained if lora else 0,
        "the player's copy": 0 if config.shares_weights else player * shape.parameters,
        # the policy without its adapters is the reference
        "the reference in float32": weights * (config.kl.name != "none" and not roles.reference.actors and not lora),
        "the teacher in float32": _FULL * teacher * (not roles.teacher.actors),
        "the critic with Adam and gradients": 4 * weights * (critic == "model"),
        "weights in the type of products": product * shape.parameters * (lora > 0 or product != _FULL),
        "activations": tokens * held,
        # the chunk in its own type and in float32, divided by the temperature, and two more in the backward pass
        "logits at a time": chunk * (product + 4 * _FULL),
    }


#: Common device sizes in GB: 4090, L40S, H100, H200.
DEVICES = (24, 48, 80, 141)

#: The share of a device that the estimate may fill.
_USABLE = 0.9


def longest_sample(shape: Shape, config: TrainConfig, gigabytes: float, **how: int) -> int:
    """Return the maximum number of tokens of a forward pass on a device; 0 if the model does not fit.

    Args:
        how: further arguments of :func:`update_memory`.
    """

    def needed(tokens: int) -> int:
        return sum(update_memory(shape, config, tokens, **how).values())

    return max(0, bisect.bisect_right(range(1 << 24), _USABLE * gigabytes * 1e9, key=needed) - 1)


def adapter_parameters(shape: Shape, rank: int) -> int:
    """Number of weights in adapters on all linear layers, two factors each."""
    ends = 2 * (shape.width + shape.queries) + 2 * (shape.width + shape.keys) + 3 * (shape.width + shape.intermediate)
    return shape.layers * rank * ends


def held_bytes(shape: Shape, product: int, checkpointing: bool) -> int:
    """Bytes that all layers keep per token for the backward pass.

    Of a layer these are the inputs of attention and MLP, two normalised copies of each in float32 (with lower precision
    each product casts its own), queries, keys, values, the attention output twice, and four tensors of the intermediate
    width; queries and keys once more in float32 if they are normalised.
    """
    cast = 2 * _FULL if product == _FULL else (3 + 2) * product
    states = (2 * 2 * _FULL + cast) * shape.width
    own = product * (3 * shape.queries + 2 * shape.keys + 4 * shape.intermediate)
    layer = states + own + _FULL * shape.normalised
    if checkpointing:  # the layers' inputs, and all of one layer
        return shape.layers * _FULL * shape.width + layer
    return shape.layers * layer


def shape_of(settings: Any) -> Shape:
    """Compute the shape of a model from its Hugging Face configuration, without allocating its weights."""
    import torch

    from rollenv.agents.local import text_model
    from rollenv.agents.vision import vision_parts

    with torch.device("meta"):
        model = text_model("from_config", settings)
    text = settings.get_text_config()
    heads = text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    queries, keys = heads * size, (getattr(text, "num_key_value_heads", None) or heads) * size
    return Shape(
        sum(p.numel() for p in model.parameters()),
        text.num_hidden_layers,
        text.hidden_size,
        text.intermediate_size,
        queries,
        keys,
        text.vocab_size,
        (queries + keys) * any(name.endswith("q_norm") for name, _ in model.named_modules()),
        sum(p.numel() for part in vision_parts(model).values() for p in part.parameters()),
    )


def table(memory: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return rows with names and sizes in GB (10^9 bytes), the largest first, then their sum."""
    rows = sorted(((name, size) for name, size in memory.items() if size), key=lambda row: -row[1])
    return [(name, f"{size / 1e9:.2f} GB") for name, size in [*rows, ("at the peak", sum(memory.values()))]]
