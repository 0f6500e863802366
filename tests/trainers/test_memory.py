"""The arithmetic of an update's memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from rollenv.trainers.config import load_config  # noqa: E402
from rollenv.trainers.memory import (  # noqa: E402
    Shape,
    adapter_parameters,
    longest_sample,
    shape_of,
    table,
    update_memory,
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


def webshop(*changes):
    return load_config("webshop_published", changes)


def test_the_guide_shows_what_the_function_computes():
    config = webshop()
    memory = update_memory(LARGE, config, config.optimizer.micro_batch_tokens, player=2)
    text = GUIDE.read_text()
    for name, value in table(memory):
        assert re.search(rf"^\| {re.escape(name)} \| {value.split()[0]} \|$", text, re.MULTILINE), name
    assert sum(memory.values()) < 80e9


def test_the_longest_sample_fills_a_device_and_one_token_more_does_not_fit():
    for size in (48, 80, 141):
        most = longest_sample(LARGE, webshop(), size, player=2)
        peaks = [sum(update_memory(LARGE, webshop(), most + n, player=2).values()) for n in (0, 1)]
        assert peaks[0] <= 0.9 * size * 1e9 < peaks[1]
    assert longest_sample(LARGE, webshop(), 24, player=2) == 0


@pytest.mark.parametrize(
    ("keys", "how", "grows"),
    [
        ([], {"tokens": 40_000}, {"activations"}),
        (["model.gradient_checkpointing=false"], {}, {"activations"}),
        ([], {"player": 4}, {"the player's copy"}),
        ([], {"most_logits": 1 << 40}, {"logits at a time"}),
    ],
)
def test_what_grows_with_what(keys, how, grows):
    base = {"tokens": 16_384, "player": 2}
    before, after = update_memory(LARGE, webshop(), **base), update_memory(LARGE, webshop(*keys), **(base | how))
    assert {name for name in before if after[name] > before[name]} == grows
    assert all(after[name] >= before[name] for name in before)


def test_a_critic_that_is_a_model_needs_as_much_again():
    head, model = (
        update_memory(LARGE, load_config("sokoban", ["algorithm.name=ppo", f"algorithm.critic.kind={kind}"]), 100)
        for kind in ("head", "model")
    )
    assert model["the critic with Adam and gradients"] == 16 * LARGE.parameters
    assert head["the critic with Adam and gradients"] == 0 == head["the player's copy"]


def test_the_vision_part_has_no_moments_unless_it_is_trained():
    shape = Shape(*[1_543_714_304, 28, 1536, 8960, 1536, 256, 151_936], vision=600_000_000)
    frozen, trained = (update_memory(shape, webshop(*more), 100) for more in ([], ["model.vision=trained"]))
    assert trained["gradients"] - frozen["gradients"] == 4 * 600_000_000


def test_adapters_are_counted_and_need_little():
    from rollenv.trainers.policies.lora import Lora, adapt

    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings = transformers.Qwen2Config(vocab_size=50, num_key_value_heads=2, tie_word_embeddings=True, **sizes)
    model = transformers.Qwen2ForCausalLM(settings)
    adapt(model, Lora(3))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert adapter_parameters(shape_of(settings), 3) == trained
    whole, adapted = (
        sum(update_memory(LARGE, webshop(*more), 16_384, player=2).values()) for more in ([], ["model.lora.rank=16"])
    )
    assert adapted < whole / 2.5
