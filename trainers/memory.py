"""Memory of an update, estimated from the shape of the model and the settings, without loading the model.

It counts weights, optimizer and the peak of the largest forward and backward pass. It does not count the player's
caches, kernel buffers and fragmentation: leave a tenth free.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

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
    """Width of the queries and keys that a layer normalises, as in Qwen3, or rotates in float32."""
    vision: Shape | None = None
    """The part that only pictures pass, of those parameters."""


@dataclass(frozen=True, slots=True)
class Update:
    """The settings of an update that determine its memory."""

    tokens: int
    """Tokens of a forward pass."""
    product: int = _FULL
    """Bytes of a number in products: 4, or 2 for bfloat16 and float16."""
    checkpointing: bool = False
    player: int = 0
    """Bytes per parameter of the player's copy; 0 if it plays with the trained weights."""
    reference: bool = False
    critic: Literal["none", "head", "model"] = "none"
    most_logits: int = MOST_LOGITS
    teacher: int = 0
    """Number of the teacher's parameters."""
    moments: float = 2 * _FULL
    """Bytes of Adam's moments on the device per trained parameter."""
    lora: int = 0
    """Rank of adapters on all linear layers; 0 trains the model itself."""
    vision: bool = False
    """Train the part that pictures pass."""
    patches: float = 0.0
    """Patches of pictures for each token of a forward pass."""
    early: bool = False
    """Sum gradients group by group (``batches.kind=early``)."""


def update_memory(shape: Shape, update: Update) -> dict[str, int]:
    """Return the bytes of each part of an update; they add up to its peak."""
    weights, product, vision = _FULL * shape.parameters, update.product, shape.vision
    trained = weights - _FULL * vision.parameters if vision and not update.vision else weights
    if update.lora:
        trained = _FULL * adapter_parameters(shape, update.lora)
    if update.critic == "model":  # it computes in float32
        product = _FULL
    chunk = min(update.tokens, max(1, update.most_logits // shape.vocabulary)) * shape.vocabulary
    parts = {
        "weights in float32": weights,
        "Adam's two moments": int(update.moments * trained) // _FULL,
        "gradients": trained,
        "the sum of gradients in float64": 2 * trained * update.early,
        "the adapters in float32": 0,
        "the player's copy": update.player * shape.parameters,
        "the reference in float32": update.reference * weights,
        "the teacher in float32": _FULL * update.teacher,
        "the critic with Adam and gradients": 4 * weights * (update.critic == "model"),
        "weights in the type of products": 0,
        "activations": update.tokens * held_bytes(shape, product, update.checkpointing),
        "activations of pictures": 0,
        # the chunk in its own type and in float32, divided by the temperature, and two more in the backward pass
        "logits at a time": chunk * (update.product + 4 * _FULL),
    }
    if vision and update.vision:
        each = held_bytes(vision, product, update.checkpointing)
        parts["activations of pictures"] = round(update.tokens * update.patches * each)
    if update.lora:  # the policy without its adapters is the reference
        parts |= {"weights in float32": 0, "the adapters in float32": trained, "the reference in float32": 0}
    if update.lora or update.product != _FULL:
        parts["weights in the type of products"] = update.product * shape.parameters
    return parts


#: Common device sizes in GB: 4090, L40S, H100, H200.
DEVICES = (24, 48, 80, 141)

#: The share of a device that the estimate may fill.
_USABLE = 0.9


def longest_sample(shape: Shape, update: Update, gigabytes: float) -> int:
    """Return the maximum number of tokens of a forward pass on a device; 0 if the model does not fit."""

    def needed(tokens: int) -> int:
        return sum(update_memory(shape, replace(update, tokens=tokens)).values())

    return max(0, bisect.bisect_right(range(1 << 24), _USABLE * gigabytes * 1e9, key=needed) - 1)


def adapter_parameters(shape: Shape, rank: int) -> int:
    """Number of weights in adapters on all linear layers, two factors each."""
    ends = 2 * (shape.width + shape.queries) + 2 * (shape.width + shape.keys) + 3 * (shape.width + shape.intermediate)
    return shape.layers * rank * ends


def held_bytes(shape: Shape, product: int, checkpointing: bool) -> int:
    """Bytes that all layers keep per token, or per patch of a picture, for the backward pass."""
    layer = layer_bytes(shape, product)
    if checkpointing:  # the layers' inputs, and all of one layer
        return shape.layers * _FULL * shape.width + layer
    return shape.layers * layer


def layer_bytes(shape: Shape, product: int) -> int:
    """Bytes that a layer keeps per token, or per patch of a picture, for the backward pass.

    The inputs of attention and MLP, two normalised copies of each in float32 (with lower precision each product casts
    its own), queries, keys, values, the attention output twice, and four tensors of the intermediate width; queries and
    keys once more in float32 if they are normalised (or rotated in float32, as in vision parts).
    """
    cast = (3 + 2) * product
    if product == _FULL:
        cast = 2 * _FULL
    states = 2 * 2 * _FULL + cast
    own = product * (3 * shape.queries + 2 * shape.keys + 4 * shape.intermediate)
    return states * shape.width + own + _FULL * shape.normalised


def update_of(
    config: TrainConfig, longest: int, *, player: int, teacher: int = 0, together: int | None = None
) -> Update:
    """Return the update settings of a run.

    Args:
        longest: tokens of the longest sample, which is never split, even beyond ``optimizer.micro_batch_tokens``.
        player: bytes of a number in the player's weights.
        together: tokens of a forward pass, if a batch has fewer than a micro-batch may have.
    """
    model, algorithm, settings, roles = config.model, config.algorithm, config.optimizer, config.placement.roles
    moments = {"adamw": 2 * _FULL, "adamw8bit": _EIGHT_BITS}[settings.kind]
    return Update(
        max(settings.micro_batch_tokens if together is None else together, longest),
        {"float32": _FULL}.get(model.precision, 2),
        model.gradient_checkpointing,
        player * (not config.shares_weights),
        config.kl.name != "none" and not roles.reference.actors,
        algorithm.critic.kind if isinstance(algorithm, Ppo) else "none",
        teacher=teacher * (not roles.teacher.actors),
        moments=moments * (not settings.offload),
        lora=model.lora.rank,
        early=config.batches.kind == "early",
        vision=model.vision == "trained",
    )


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
        _vision_shape(settings, vision_parts(model)),
    )


def _vision_shape(settings: Any, parts: Mapping[str, Any]) -> Shape | None:
    """Compute the shape of the part that pictures pass, as a decoder's; sizes that its configuration lacks are 0."""
    if not parts:
        return None
    own: Any = getattr(settings, "vision_config", None)
    width = int(getattr(own, "embed_dim", None) or getattr(own, "hidden_size", None) or 0)
    inner = getattr(own, "intermediate_size", None) or int(getattr(own, "mlp_ratio", 0) * width)
    parameters = sum(p.numel() for part in parts.values() for p in part.parameters())
    rotated = 2 * width if getattr(own, "rope_parameters", None) else 0
    return Shape(parameters, getattr(own, "num_hidden_layers", 0), width, inner, width, width, 0, rotated)


def table(memory: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return rows with names and sizes in GB (10^9 bytes), the largest first, then their sum."""
    rows = sorted(((name, size) for name, size in memory.items() if size), key=lambda row: -row[1])
    return [(name, f"{size / 1e9:.2f} GB") for name, size in [*rows, ("at the peak", sum(memory.values()))]]
