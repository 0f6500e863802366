"""The arithmetic of an update's memory."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import seeing  # noqa: E402

from rollenv.trainers.config import load_config  # noqa: E402
from rollenv.trainers.memory import (  # noqa: E402
    Shape,
    Update,
    adapter_parameters,
    held_bytes,
    longest_sample,
    shape_of,
    table,
    update_memory,
    update_of,
)

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "training.md"
#: Qwen2.5-1.5B.
LARGE = Shape(1_543_714_304, 28, 1536, 8960, 1536, 256, 151_936)


def test_the_shape_is_counted_from_a_configuration():
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings = transformers.Qwen2Config(vocab_size=50, num_key_value_heads=2, tie_word_embeddings=True, **sizes)
    attention = 8 * 8 + 8 + 2 * (8 * 4 + 4) + 8 * 8
    parameters = 50 * 8 + 2 * (attention + 3 * 8 * 16 + 2 * 8) + 8
    assert shape_of(settings) == Shape(parameters, 2, 8, 16, 8, 4, 50)
    settings = transformers.Qwen3Config(vocab_size=50, num_key_value_heads=2, head_dim=3, **sizes)
    assert shape_of(settings).normalised == 4 * 3 + 2 * 3


def test_the_guide_shows_what_the_function_computes():
    memory = update_memory(LARGE, update_of(load_config("webshop_published"), 4096 + 512, player=2))
    text = GUIDE.read_text()
    for name, value in table(memory):
        assert re.search(rf"^\| {re.escape(name)} \| {value.split()[0]} \|$", text, re.MULTILINE), name
    assert sum(memory.values()) < 80e9


def test_the_longest_sample_fills_a_device_and_one_token_more_does_not_fit():
    update = Update(1, 2, checkpointing=True, player=2)
    for size in (48, 80, 141):
        most = longest_sample(LARGE, update, size)
        peaks = [sum(update_memory(LARGE, dataclasses.replace(update, tokens=most + n)).values()) for n in (0, 1)]
        assert peaks[0] <= 0.9 * size * 1e9 < peaks[1]
    assert longest_sample(LARGE, update, 24) == 0


@pytest.mark.parametrize(
    ("change", "grows"),
    [
        ({"tokens": 40_000}, {"activations"}),
        ({"checkpointing": False}, {"activations"}),
        ({"player": 4}, {"the player's copy"}),
        ({"critic": "model"}, {"activations", "the critic with Adam and gradients"}),
        ({"most_logits": 1 << 40}, {"logits at a time"}),
    ],
)
def test_what_grows_with_what(change, grows):
    base = Update(16_384, 2, checkpointing=True, player=2, reference=True)
    before, after = update_memory(LARGE, base), update_memory(LARGE, dataclasses.replace(base, **change))
    assert {name for name in before if after[name] > before[name]} == grows
    assert all(after[name] >= before[name] for name in before)


def test_a_sample_longer_than_a_micro_batch_counts_whole():
    config = load_config("webshop_published", ["optimizer.micro_batch_tokens=1000"])
    assert update_of(config, 4608, player=2).tokens == 4608
    assert update_of(load_config("sokoban"), 0, player=4).player == 0, "the tiny model's weights are shared"


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", seeing.FAMILY)
def test_activations_of_pictures_are_near_what_autograd_keeps(family, checkpointing, monkeypatch):
    image, kept = seeing.drawn(1, 168, 112), []
    for layers in (2, 5):
        monkeypatch.setitem(seeing._VISION, "depth", layers)
        agent = seeing.seeing(family)
        settings, eyes = agent.model.config, agent.model.rollenv_vision
        settings.vision_config.num_hidden_layers = layers
        model = type(agent.model)(settings).train()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        found = []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor, all=found: all.append(tensor) or tensor, abs):
            eyes.features(model, [image])
        sizes = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in found}
        kept.append(sum(size for at, size in sizes.items() if at not in own) / eyes.patches(image))
    shape = shape_of(settings).vision
    expected = held_bytes(dataclasses.replace(shape, layers=5), 4, checkpointing) - held_bytes(
        dataclasses.replace(shape, layers=2), 4, checkpointing
    )
    assert 0.95 <= expected / (kept[1] - kept[0]) <= 1.6


def test_pictures_count_if_their_part_is_trained():
    shape = dataclasses.replace(LARGE, vision=Shape(600_000_000, 32, 1280, 3420, 1280, 1280, 0))
    frozen, trained = (update_memory(shape, Update(16_384, 2, patches=0.5, vision=vision)) for vision in (False, True))
    assert frozen["activations of pictures"] == 0
    assert trained["activations of pictures"] == 8192 * held_bytes(shape.vision, 2, False)
    assert trained["gradients"] - frozen["gradients"] == 4 * 600_000_000
    assert trained["activations"] == frozen["activations"]


def test_adapters_are_counted_and_need_little():
    from rollenv.trainers.policies.lora import Lora, adapt

    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings = transformers.Qwen2Config(vocab_size=50, num_key_value_heads=2, tie_word_embeddings=True, **sizes)
    model = transformers.Qwen2ForCausalLM(settings)
    adapt(model, Lora(3))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert adapter_parameters(shape_of(settings), 3) == trained
    whole = update_memory(LARGE, update_of(load_config("webshop_published"), 4608, player=2))
    config = load_config("webshop_published", ["model.lora.rank=16"])
    assert sum(update_memory(LARGE, update_of(config, 4608, player=2)).values()) < sum(whole.values()) / 2.5
