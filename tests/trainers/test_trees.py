"""Gradients of samples in a tree are those of a padded batch, to the rounding of float64."""

from __future__ import annotations

import copy
import functools
import logging
import random

import numpy as np
import pytest
import torch
import transformers as hf
from token_turns import TASK, gradients, trajectory
from torch.utils.checkpoint import checkpoint

from rollenv.rollout.types import Group
from rollenv.trainers import losses
from rollenv.trainers.config import load_config
from rollenv.trainers.experience import Experience, experience, micro_batches
from rollenv.trainers.objective import Objective
from rollenv.trainers.policies import attention
from rollenv.trainers.policies.attention import PackedRow, bounds, by_shape
from rollenv.trainers.policies.base import Outputs
from rollenv.trainers.policies.critic import Critic
from rollenv.trainers.policies.local import LocalPolicy
from rollenv.trainers.policies.lora import Lora
from rollenv.trainers.policies.packed import pack

WORDS = 40
SIZE = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24, "pad_token_id": 0}
SIZE |= {"num_attention_heads": 4, "num_key_value_heads": 2}
MODELS = {
    "qwen2": lambda tied: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SIZE, tie_word_embeddings=tied)),
    "llama": lambda tied: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZE, tie_word_embeddings=tied)),
    "qwen3": lambda tied: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SIZE, head_dim=8, tie_word_embeddings=tied)),
}
EXACT = {"rtol": 1e-9, "atol": 1e-12}
TEMPERATURE = 0.7


def model_of(name: str, *, tied: bool = False) -> hf.PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = MODELS[name](tied).eval()
        for weight in model.parameters():  # larger than usual, so that attention matters
            if weight.ndim > 1:
                weight.data.mul_(4)
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.__class__ = type("Exact", (type(module),), {"forward": exact_norm})
    return model.double()


def exact_norm(self, states: torch.Tensor) -> torch.Tensor:
    """The library's goes through float32."""
    return self.weight * states * (states.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()


def batch(samples: str, seed: int = 0) -> Experience:
    """Groups with one system text: members part at once, late in a response, after a turn, or never."""
    rng = random.Random(seed)
    drawn = lambda n: tuple(rng.choices(range(2, WORDS), k=n))  # noqa: E731
    system, groups = drawn(20), []
    for _ in range(2):
        question, answer, said = system + drawn(18), drawn(19), drawn(3)
        other, long = drawn(17), drawn(25)
        members = [
            trajectory((question, answer), (question + answer + said, other), (question + answer + said + other, (7,))),
            trajectory((question, answer), (question + answer + said, other[:1] + drawn(4))),
            trajectory((question, answer), (question + answer + drawn(5), drawn(2))),
            trajectory((question, (*answer[:-1], 3))),
            trajectory((question, (*answer[:-1], 3))),
            trajectory((question, drawn(2))),
            trajectory((question + long, drawn(2))),
            trajectory((question + long, drawn(1))),
            trajectory((drawn(4), drawn(6))),
        ]
        groups.append(Group(TASK, members))
    data = experience(groups, samples)
    noise = np.random.default_rng(seed)
    columns = ("advantages", "reference", "returns", "values")
    data.columns |= {name: noise.standard_normal(len(data)) for name in columns}
    data.columns["reference"] -= 3
    return data


def read(model: hf.PreTrainedModel, data: Experience) -> tuple[Outputs, torch.Tensor]:
    """What padded rows say, and the states that the response tokens are predicted from."""
    rows = [torch.from_numpy(sample.ids) for sample in data.samples]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    out = model(input_ids=ids, attention_mask=mask, use_cache=False, output_hidden_states=True)
    scaled, plain = (out.logits / TEMPERATURE).log_softmax(-1), out.logits.log_softmax(-1)
    found: list[list[torch.Tensor]] = [[], [], [], []]
    for i, sample in enumerate(data.samples):
        drawn, said = (torch.from_numpy(at) for at in (np.flatnonzero(sample.mask), data.between(i)))
        found[0].append(scaled[i, drawn - 1, ids[i, drawn]])
        found[1].append(-(scaled[i].exp() * scaled[i]).sum(-1)[drawn - 1])
        found[2].append(plain[i, said - 1, ids[i, said]])
        found[3].append(out.hidden_states[-1][i, drawn - 1])
    logprobs, entropy, said, hidden = map(torch.cat, found)
    return Outputs(logprobs, entropy, None, said if len(said) else None), hidden


def objective(*overrides: str) -> Objective:
    return Objective(load_config("sokoban", list(overrides)))


CHAT = ["rollout.samples=trajectory", "prompt.kind=conversation", "model.path=somewhere"]
LOSSES = {
    "clip, entropy, mean of sequences": ["loss.entropy=0.1", "loss.aggregate=sequence"],
    "KL, fixed length": ["kl.name=loss", "kl.coef=0.3", "loss.aggregate=fixed", "loss.entropy=0"],
    "sequence ratios, observations": ["loss.name=gspo", "loss.observations=0.2", "loss.aggregate=token", *CHAT],
}


def both(name, data, settings, *, checkpointing=False, tied=False, most=10**6):
    """Gradients of a padded batch and of trees."""
    made, model = objective(*settings), model_of(name, tied=tied)
    kind = made.config.loss.aggregate
    data.columns["weights"] = losses.token_weights(
        kind, data.sequence, data.prompt, length=30 if kind == "fixed" else None
    )
    said = made.config.loss.observations > 0
    everything = list(range(len(data.samples)))
    out, _ = read(model, data)
    loss, _ = made(pack(data, everything), out, entropy=made.config.loss.entropy, observed=data.observed)
    loss.backward()
    expected = gradients(model)
    policy = LocalPolicy(model, share=True, temperature=TEMPERATURE, gradient_checkpointing=checkpointing)
    assert policy.packs
    for numbers in micro_batches(data, everything, most, share=True):
        packed = pack(data, numbers, share=True, observations=said)
        found = policy.logprobs(packed, ("logprobs", "entropy"), entropy_gradient=True)
        loss, _ = made(packed, found, entropy=made.config.loss.entropy, observed=data.observed)
        policy.backward(loss)
    return expected, gradients(policy.model)


@pytest.mark.combinations
@pytest.mark.parametrize("samples", ["turn", "trajectory"])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_are_those_of_a_padded_batch(loss, samples):
    data = batch(samples)
    torch.testing.assert_close(*both("qwen2", data, LOSSES[loss])[::-1], **EXACT)
    torch.testing.assert_close(*both("qwen2", data, LOSSES[loss], most=90)[::-1], **EXACT)


@pytest.mark.parametrize("kind", ["model", "head"])
def test_a_critic_learns_the_same_from_trees(kind):
    data, model = batch("turn"), model_of("qwen2")
    policy = LocalPolicy(model, share=True)
    critic = Critic(policy.model, kind=kind, lr=0.1)
    torch.nn.init.normal_(critic.head.weight)
    expected = Critic(policy.model, kind="head", lr=0.1)
    expected.module.head = copy.deepcopy(critic.head)
    everything = list(range(len(data.samples)))
    _, hidden = read(model, data)
    expected.backward(pack(data, everything), hidden if kind == "model" else hidden.detach(), 1.0)
    packed = pack(data, everything, share=True)
    critic.backward(packed, policy.logprobs(packed, ("hidden",)).hidden, 1.0)
    torch.testing.assert_close(critic.head.weight.grad, expected.head.weight.grad, rtol=1e-5, atol=1e-5)
    if critic.module.model is not None:
        torch.testing.assert_close(gradients(critic.module.model), gradients(model), rtol=1e-5, atol=1e-5)


def test_a_tree_has_fewer_tokens_and_one_label_for_each_token_after_a_context():
    data = batch("trajectory")
    everything = list(range(len(data.samples)))
    flat, shared = (pack(data, everything, share=share) for share in (False, True))
    assert len(shared.ids) < len(flat.ids) < sum(map(len, data.inputs))
    wanted = {s.ids[: i + 1].tobytes() for s in data.samples for i in np.flatnonzero(s.mask)}
    assert len(wanted) <= len(shared.drawn.at) < len(flat.drawn.at) <= len(data) == len(shared)
    for made in (flat, shared):
        assert torch.equal(
            made.drawn.targets[made.drawn.of], torch.cat([torch.tensor(s.ids[s.mask]) for s in data.samples])
        )
    before = shared.row.positions()[shared.drawn.at[shared.drawn.of]]
    assert torch.equal(before, torch.cat([torch.tensor(np.flatnonzero(s.mask) - 1) for s in data.samples]))


def test_pieces_hold_about_so_many_tokens_of_the_tree_and_fewer_than_without_it():
    data = batch("turn")
    everything = range(len(data.samples))
    for most in (60, 100, 300):
        pieces = micro_batches(data, everything, most, share=True)
        assert sorted(i for piece in pieces for i in piece) == list(everything)
        sizes = [len(pack(data, numbers, share=True).ids) for numbers in pieces]
        longest = [max(len(data.inputs[i]) for i in numbers) for numbers in pieces]
        assert all(size <= max(most + 48, one) for size, one in zip(sizes, longest, strict=True))
        assert len(pieces) <= len(micro_batches(data, everything, most))


def test_a_kernel_for_many_lengths_gets_the_bounds_of_segments_and_paths():
    """What one call of it has to compute, segment by segment, is what calls by shape compute."""
    packed = pack(batch("turn"), range(12), share=True)
    runs, paths = packed.row.runs, packed.row.paths
    query, key, value = torch.randn(3, 2, len(packed.ids), 4, dtype=torch.float64).unbind()
    key, value = key[:, paths], value[:, paths]
    begins, ends = bounds(runs)
    parts = []
    for i in range(len(begins) - 1):
        q, k, v = query[:, begins[i] : begins[i + 1]], key[:, ends[i] : ends[i + 1]], value[:, ends[i] : ends[i + 1]]
        visible = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        weights = (q @ k.transpose(1, 2) / 2).masked_fill(~visible, -torch.inf).softmax(-1)
        parts.append((weights @ v).transpose(0, 1))
    torch.testing.assert_close(by_shape(runs, query, key, value, None), torch.cat(parts))


@pytest.mark.parametrize("name", MODELS)
def test_attention_gets_the_type_of_the_products(name, monkeypatch):
    """Kernels for many lengths take nothing else, and rotated queries and keys would be float32."""
    kinds = set()

    def attend(runs, query, key, value, scaling):
        kinds.update((query.dtype, key.dtype, value.dtype))
        return by_shape(runs, query, key, value, scaling)

    policy = LocalPolicy(MODELS[name](True), precision=torch.bfloat16)
    assert policy.packs
    monkeypatch.setattr(attention, "by_shape", attend)
    policy.backward(policy.logprobs(pack(batch("turn"), range(4), share=True)).logprobs.sum())
    assert kinds == {torch.bfloat16}


@pytest.mark.parametrize("wrong", [False, True])
def test_another_rounding_is_no_other_attention(wrong, monkeypatch):
    """Adapters train beside weights of few digits, and kernels of GPUs do not round alike."""

    def attend(runs, query, key, value, scaling):
        out = by_shape(runs, query.float(), key.float(), value.float(), scaling).to(query.dtype)
        return out.roll(1, 0) if wrong else out

    monkeypatch.setattr(attention, "by_shape", attend)
    model = model_of("qwen3").bfloat16()
    assert LocalPolicy(model, lora=Lora(2), precision=torch.bfloat16).packs is not wrong


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("size", [64, 128, 192, 256])
def test_a_kernel_is_used_that_rounds_otherwise_but_none_that_is_wrong(size, grouped, monkeypatch):
    def kernel(late, runs, query, key, value, scaling):
        """Probabilities are rounded before they are summed, as FlashAttention does."""
        out, ends = [], bounds(runs)
        key, value = (t.repeat_interleave(len(query) // len(t), 0) for t in (key, value))
        for i in range(len(ends[0]) - 1):
            own, path = (slice(end[i], end[i + 1]) for end in ends)
            q, k, v = query[:, own].float(), key[:, path].float(), value[:, path].float()
            hidden = ~torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1] - late)
            weights = (q @ k.transpose(1, 2) * size**-0.5).masked_fill(hidden, -1e9).softmax(-1).bfloat16()
            out.append((weights.float() @ v).bfloat16())
        return torch.cat(out, 1).transpose(0, 1)

    for late, works in ((0, True), (1, False)):
        monkeypatch.setattr(attention, "by_one_kernel", functools.partial(kernel, late))
        attention.varlen_works.cache_clear()
        assert attention.varlen_works(torch.device("cpu"), torch.bfloat16, size, grouped) is works
    attention.varlen_works.cache_clear()


@pytest.mark.parametrize("grouped", [False, True])
def test_a_kernel_can_be_tried_inside_a_checkpointed_layer(grouped, monkeypatch):
    """What is saved for the trial's gradients is none of the layer's."""
    monkeypatch.setattr(attention, "by_one_kernel", by_shape)
    attention.varlen_works.cache_clear()
    weight, works = torch.randn(4, 4, requires_grad=True), []

    def layer(states):
        states = (states @ weight).tanh()
        works.append(attention.varlen_works(torch.device("cpu"), torch.bfloat16, 16, grouped))
        return (states @ weight).sum()

    with torch.autocast("cpu", torch.bfloat16):
        out = checkpoint(layer, torch.randn(4, 4, requires_grad=True), use_reentrant=False)
    out.backward()
    assert works == [True, True]
    attention.varlen_works.cache_clear()
    with torch.inference_mode():
        assert attention.varlen_works(torch.device("cpu"), torch.bfloat16, 16, grouped)
    attention.varlen_works.cache_clear()


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (hf.MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, state_size=4), "linear_attention"),
        (hf.Qwen2Config(**SIZE, use_sliding_window=True, sliding_window=99, max_window_layers=1), "sliding_attention"),
        (hf.MistralConfig(**SIZE, sliding_window=99), "sliding_window"),
        (hf.Lfm2Config(**SIZE, layer_types=["conv", "full_attention"]), "type conv"),
        (
            hf.Qwen3NextConfig(
                **SIZE,
                head_dim=8,
                num_experts=0,
                layer_types=["linear_attention", "full_attention"],
                linear_num_key_heads=2,
                linear_num_value_heads=2,
                linear_key_head_dim=8,
                linear_value_head_dim=8,
            ),
            "linear_attention",
        ),
    ],
    ids=lambda value: getattr(value, "model_type", None),
)
def test_layers_that_cannot_share_are_reported_and_read_samples_one_by_one(config, why, caplog):
    model = hf.AutoModelForCausalLM.from_config(config)
    with caplog.at_level(logging.INFO, "rollenv"):
        policy = LocalPolicy(model, share=True)
    assert not policy.packs
    assert why in caplog.text
    data = batch("turn")
    with pytest.raises(ValueError, match="share=False"):
        policy.logprobs(pack(data, range(len(data.samples)), share=True))
    assert len(policy.logprobs(pack(data, range(4))).logprobs) == len(data.rows(range(4)))


def test_whole_sequences_of_a_row_are_where_their_lengths_say():
    assert PackedRow.of(3, 3, 2).positions().tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
