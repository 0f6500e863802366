"""Adapters that are trained instead of the model: exact, saved, resumed, exported."""

from __future__ import annotations

import json

import pytest
import rank_runs
import torch
from tiny_runs import numbers, saved
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from rollenv import MissingExtra, UsageError
from rollenv.agents.engines.adapters import Adapter
from rollenv.agents.engines.local import load_weights
from rollenv.agents.local import LocalAgent
from rollenv.trainers.config import load_config
from rollenv.trainers.policies.local import LocalPolicy
from rollenv.trainers.policies.lora import FOR_EXPERTS, Lora, adapt, adapter_of, merged_weights, without
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.trainer import Trainer
from rollenv.trainers.training_state import begin

LORA = ["model.lora.rank=4", "optimizer.lr=2e-2", "iterations=4", "checkpoint_every=2", "model.sync=auto"]
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def parts_of(*overrides):
    return begin(rank_runs.settings(*LORA, *overrides), {}, lambda *_: None)


def fit(path, *overrides) -> Trainer:
    config = rank_runs.settings(*LORA, *overrides, f"run_dir={path}")
    run = RunDir(path) if path.exists() else RunDir.create(config, "sokoban")
    with Trainer(config, run) as trainer:
        trainer.fit()
    return trainer


def logits(model, **how):
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False, **how).logits


@pytest.mark.smoke
def test_only_adapters_learn_and_what_the_player_gets_is_the_whole(tmp_path):
    trainer = fit(tmp_path / "run")
    policy, home = trainer.state.policy, trainer.state.base_agent
    begun = begin(rank_runs.settings(*LORA), {}, lambda *_: None).base_agent.model.state_dict()
    own = dict(policy.model.named_parameters())
    assert policy.weights.keys() == {name for name in own if ".lora_" in name}
    for name, weight in own.items():
        if ".lora_" not in name:
            assert torch.equal(weight, begun[name.replace(".base_layer", "")])
    policy.model.set_attn_implementation("sdpa")
    torch.testing.assert_close(logits(home.model), logits(policy.model), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(logits(home.model), logits(AutoModelForCausalLM.from_config(home.model.config)), atol=0.1)
    with without(policy.model):
        without_it = logits(policy.model)
    home.model.load_state_dict(begun)
    torch.testing.assert_close(logits(home.model), without_it, atol=1e-6, rtol=1e-6)


@pytest.mark.integration
def test_a_checkpoint_has_the_whole_model_and_the_adapter_for_others(tmp_path):
    from peft import PeftModel

    trainer = fit(tmp_path / "run")
    saved = tmp_path / "run" / "checkpoints" / "step-000004"
    whole = AutoModelForCausalLM.from_pretrained(saved)
    torch.testing.assert_close(logits(whole), logits(trainer.state.base_agent.model))
    base = begin(rank_runs.settings(*LORA), {}, lambda *_: None).base_agent.model
    peft = PeftModel.from_pretrained(base, saved / "adapter")
    torch.testing.assert_close(logits(peft), logits(whole), atol=1e-5, rtol=1e-4)
    manifest = json.loads((saved / "MANIFEST.json").read_text())
    assert {"adapter/adapter_model.safetensors", "adapter/adapter_config.json"} <= manifest.keys()


def test_the_reference_is_the_model_without_its_adapters(tmp_path):
    trainer = fit(tmp_path / "run", "kl.name=loss", "optimizer.minibatch_sequences=10000", "optimizer.lr=0.2")
    assert trainer.state.reference.policy is trainer.state.policy
    distances = [row["reference_kl"] for row in numbers(tmp_path / "run")[1:]]
    assert distances[0] == pytest.approx(0.0, abs=1e-6), "nothing was learned before the first step"
    assert distances[-1] > 1e-4


def test_adapters_of_a_stream_and_of_half_precision_learn(tmp_path):
    trainer = fit(tmp_path / "run", "batches.kind=stream", "model.precision=bfloat16")
    assert {w.dtype for w in trainer.state.policy.weights.values()} == {torch.float32}
    frozen = {p.dtype for n, p in trainer.state.policy.model.named_parameters() if ".lora_" not in n}
    assert frozen == {torch.bfloat16}
    assert adapter_of(trainer.state.policy.model).tensors
    assert all(torch.isfinite(w).all() for _, w in merged_weights(trainer.state.policy.model))


def test_what_cannot_work_is_said(monkeypatch):
    with pytest.raises(UsageError, match=r"model\.lora\.targets"):
        parts_of("model.lora.targets=['nothing']")
    with pytest.raises(UsageError, match="output layer"):
        parts_of("model.lora.targets=['q_proj','lm_head']")
    with pytest.raises(UsageError, match="in_place"):
        load_config("sokoban", ["model.lora.rank=4", "model.sync=in_place"])
    vllm = ["player.kind=vllm", "model.lora.rank=4"]
    for wrong, why in (
        ("player.sleep=2", "player.sleep cannot be 2 with player.lora=adapter"),
        ("model.lora.rank=600", "take player.lora=merged"),
        ("model.lora.rank=0", "player.lora does nothing here"),
        ("player.options={enable_lora=true}", "player.options: cannot have enable_lora"),
    ):
        with pytest.raises(UsageError, match=why):
            load_config("sokoban", [*vllm, "player.lora=adapter", wrong])
    with pytest.raises(UsageError, match=r"lora\.alpha"):
        load_config("sokoban", ["model.lora.alpha=4"])
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(MissingExtra, match=r"rollenv\[lora\]"):
        parts_of()


def test_adapters_begin_as_nothing_and_follow_the_seed():
    one, two, other = (parts_of(f"seed={seed}").policy for seed in (3, 3, 4))
    assert isinstance(one.adapter(), Adapter)
    ours, same, others = (p.adapter().tensors for p in (one, two, other))
    assert all(torch.equal(ours[name], same[name]) for name in ours)
    assert any(not torch.equal(ours[name], others[name]) for name in ours)
    assert all(not tensor.any() for name, tensor in ours.items() if ".lora_B." in name)
    assert Lora(4).alpha == 32.0


@pytest.mark.parametrize(
    ("targets", "tied", "why"),
    [
        (("embed_tokens",), False, "embed_tokens is not a linear layer"),
        (("q_proj", "lm_head"), True, "the output layer cannot have an adapter"),
        (("q_proj", "q_porj"), False, "no layer has a name that ends with 'q_porj'"),
        ((), False, "targets"),
        ("(", False, "targets"),
    ],
)
def test_targets_that_could_not_be_merged_or_do_nothing_are_errors(targets, tied, why):
    with pytest.raises(UsageError, match=r"model\.lora\.targets=.*") as caught:
        adapt(small_model(tied), Lora(2, targets=targets))
    assert why in str(caught.value)


def test_a_rank_above_that_of_every_layer_is_an_error():
    with pytest.raises(UsageError, match=r"lora\.rank=17"):
        adapt(small_model(False), Lora(17))


def small_model(tied: bool) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=20, tie_word_embeddings=tied, **sizes, **heads))


SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_key_value_heads": 2}


def mixture(kind="qwen", vocabulary=40):
    pytest.importorskip("peft", minversion=FOR_EXPERTS, reason=f"needs peft >= {FOR_EXPERTS}")
    torch.manual_seed(0)
    if kind == "qwen":
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=vocabulary, **SMALL, **EXPERTS)).eval()
    config = GptOssConfig(vocab_size=40, **SMALL, num_local_experts=4, num_experts_per_tok=2, num_key_value_heads=2)
    return GptOssForCausalLM(config).eval()


@pytest.mark.parametrize(
    ("kind", "targets", "adapted"),
    [
        ("qwen", "all-linear", "mlp.experts"),
        ("qwen", ["q_proj", "gate_proj", "up_proj", "down_proj"], "mlp.experts"),
        ("qwen", ["q_proj"], "q_proj"),
        ("gpt-oss", "all-linear", "o_proj"),
    ],
)
def test_the_player_of_a_mixture_of_experts_computes_what_was_trained(kind, targets, adapted):
    model = mixture(kind)
    begun, player = logits(model), mixture(kind)
    policy = LocalPolicy(model, lora=Lora(4, targets=targets))
    assert any(adapted in name for name in policy.weights)
    for name, weight in policy.weights.items():
        if "lora_B" in name:  # as after some steps
            weight.data.normal_(0, 0.2)
    load_weights(player, policy.named_weights())
    policy.model.set_attn_implementation("eager")
    assert not torch.allclose(logits(player), begun, atol=0.1)
    torch.testing.assert_close(logits(player), logits(policy.model), atol=1e-5, rtol=1e-4)
    with without(policy.model):
        torch.testing.assert_close(logits(policy.model), begun, atol=1e-5, rtol=1e-4)


def test_adapters_of_experts_are_merged_for_vllm(tmp_path):
    saved(lambda tokenizer: mixture(vocabulary=len(tokenizer)), tmp_path)
    settings = ["player.kind=vllm", "model.lora.rank=4", f"model={tmp_path}"]
    with pytest.raises(UsageError, match=r"player\.lora=merged"):
        begin(load_config("math:Arithmetic-v0-digit", settings), {}, lambda *_: None)
    begin(load_config("math:Arithmetic-v0-digit", [*settings, "player.lora=merged"]), {}, lambda *_: None)


def test_an_older_peft_is_refused_for_experts_that_it_would_leave_out(monkeypatch):
    model = mixture()
    monkeypatch.setattr("peft.__version__", "0.19.1")
    with pytest.raises(UsageError, match=r"peft 0\.20 or newer, and 0\.19\.1 is installed"):
        adapt(model, Lora(4))
    adapt(small_model(tied=False), Lora(4))


def test_an_adapter_in_place_of_a_model_is_refused_at_once(tmp_path):
    policy = LocalPolicy(mixture(), lora=Lora(4, targets=["q_proj"]))
    policy.adapter().save(tmp_path)
    with pytest.raises(UsageError, match="is a LoRA adapter, not a model: merge it"):
        begin(load_config("math:Arithmetic-v0-digit", [f"model={tmp_path}"]), {}, lambda *_: None)
    saved(lambda tokenizer: mixture(vocabulary=len(tokenizer)), tmp_path)  # transformers would load both
    with pytest.raises(UsageError, match="is a LoRA adapter"):
        LocalAgent.load(tmp_path)
