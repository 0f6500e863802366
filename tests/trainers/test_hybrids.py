"""Models that other engines play in their own way, or alone: trained here, played there."""

from __future__ import annotations

import pytest
import torch
from tiny_runs import saved
from transformers import Lfm2Config, Lfm2ForCausalLM, Phi3Config, Phi3ForCausalLM

from rollenv import UsageError
from rollenv.agents.local import LocalAgent
from rollenv.trainers.config import load_config
from rollenv.trainers.preflight import preflight
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.training_state import begin, restore


@pytest.fixture
def settings(tmp_path):
    size = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    layers = {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"], "max_position_embeddings": 64}

    def make(tokenizer):
        return Lfm2ForCausalLM(Lfm2Config(vocab_size=len(tokenizer), **size, **layers))

    return [f"model={saved(make, tmp_path / 'model')}", f"run_dir={tmp_path / 'run'}"]


def config_of(settings, *more):
    return load_config("math:Arithmetic-v0-digit", [*settings, *more])


def test_the_local_player_refuses_them_before_anything_is_loaded(settings):
    with pytest.raises(UsageError, match=r"no cache for conv layers; .*player\.kind=vllm"):
        preflight(config_of(settings))
    with pytest.raises(UsageError, match="no cache for conv layers"):
        LocalAgent.load(settings[0].removeprefix("model="))


@pytest.mark.parametrize(
    "player", [["vllm"], ["vllm", "player.url=http://127.0.0.1:9"], ["sglang", "player.url=http://127.0.0.1:9"]]
)
def test_with_another_player_they_are_trained_and_saved(settings, player):
    config = config_of(settings, f"player.kind={player[0]}", *player[1:], "kl.name=loss")
    run = RunDir.create(config, "arithmetic")
    state = begin(config, {}, lambda *_: None)
    assert state.context == 64
    with torch.no_grad():
        for weight in state.policy.weights.values():
            weight += 1
    state.base_agent.version, state.iteration = 3, 3
    state.save(run, 1, {"source": state.source.state_dict()})
    again = restore(config, run, {}, lambda *_: None)
    assert (again.iteration, again.base_agent.version) == (3, 3)
    weights = zip(again.policy.model.parameters(), state.policy.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)


def long_rope(tokenizer):
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 256}
    rope |= {"short_factor": [1.0 + i for i in range(16)], "long_factor": [4.0 + i for i in range(16)]}
    size = {"hidden_size": 128, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4}
    size |= {"num_hidden_layers": 2, "max_position_embeddings": 1024, "original_max_position_embeddings": 256}
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "initializer_range": 0.1}
    return Phi3ForCausalLM(Phi3Config(vocab_size=len(tokenizer), **size, **ends, rope_parameters=rope))


@pytest.mark.parametrize(("longest", "table"), [(0, "short"), (256, "short"), (257, "long")])
def test_a_model_with_two_tables_of_frequencies_is_trained_with_that_of_its_player(tmp_path, longest, table):
    path = saved(long_rope, tmp_path / "model")
    options = [f"player.options={{max_model_len={longest}}}"] if longest else []
    config = config_of([f"model={path}", f"run_dir={tmp_path / 'run'}"], "player.kind=vllm", *options)
    state = begin(config, {}, lambda *_: None)
    (rotary,) = (m for m in state.policy.model.modules() if hasattr(m, "inv_freq"))
    factors = torch.tensor(rotary.config.rope_parameters[f"{table}_factor"])
    expected = 1 / (factors * 1e4 ** (torch.arange(0, 32, 2) / 32))
    torch.testing.assert_close(rotary.inv_freq, expected)
