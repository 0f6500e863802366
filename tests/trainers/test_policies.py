"""What a policy says about tokens, however they are laid out: as a plain forward pass of each sample says it."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import transformers as hf
from token_turns import TASK, gradients, trajectory

from rollenv import UsageError
from rollenv.agents.engines.base import Sampling
from rollenv.agents.engines.local import LocalEngine
from rollenv.agents.engines.scoring import score
from rollenv.rollout.types import Group, Trajectory, Turn
from rollenv.trainers.experience import Experience, experience, micro_batches
from rollenv.trainers.policies.base import Output
from rollenv.trainers.policies.critic import Critic
from rollenv.trainers.policies.local import LocalPolicy
from rollenv.trainers.policies.packed import pack

BOTH: tuple[Output, ...] = ("logprobs", "entropy")

_LAYERS = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2}
_FULL = _LAYERS | {"intermediate_size": 24, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": None}
_ROTARY = _FULL | {"num_attention_heads": 4, "eos_token_id": 1}
_GROUPED = _ROTARY | {"num_key_value_heads": 2}
_DROPS = {"attention_dropout": 0.5}

#: By name: whether sequences are packed, and the configuration. Those with a window see less than a sample.
MODELS: dict[str, tuple[bool, Callable[[], hf.PretrainedConfig]]] = {
    "qwen2": (True, lambda: hf.Qwen2Config(**_GROUPED, **_DROPS)),
    "qwen2 tied": (True, lambda: hf.Qwen2Config(**_GROUPED, tie_word_embeddings=True)),
    "qwen2 window": (
        False,
        lambda: hf.Qwen2Config(**_GROUPED, use_sliding_window=True, sliding_window=3, max_window_layers=1),
    ),
    "llama": (True, lambda: hf.LlamaConfig(**_GROUPED, **_DROPS)),
    "llama4": (
        False,
        lambda: hf.Llama4TextConfig(
            **_GROUPED, head_dim=4, intermediate_size_mlp=24, attention_chunk_size=6, num_local_experts=2
        ),
    ),
    "qwen3": (True, lambda: hf.Qwen3Config(**_GROUPED, head_dim=8, tie_word_embeddings=True)),
    "mistral": (False, lambda: hf.MistralConfig(**_GROUPED, sliding_window=5)),
    "gemma2": (
        False,
        lambda: hf.Gemma2Config(
            **_GROUPED, head_dim=4, sliding_window=5, query_pre_attn_scalar=4, final_logit_softcapping=2.0, **_DROPS
        ),
    ),
    "gpt2": (True, lambda: hf.GPT2Config(vocab_size=40, n_positions=128, n_embd=16, n_layer=2, n_head=4)),
    "opt": (
        True,
        lambda: hf.OPTConfig(
            **_LAYERS,
            num_attention_heads=4,
            ffn_dim=24,
            max_position_embeddings=128,
            word_embed_proj_dim=16,
            dropout=0.5,
        ),
    ),
    "bloom": (False, lambda: hf.BloomConfig(vocab_size=40, hidden_size=16, n_layer=2, n_head=4, hidden_dropout=0.5)),
    "granite": (
        True,
        lambda: hf.GraniteConfig(**_GROUPED, logits_scaling=3.0, embedding_multiplier=2.0, residual_multiplier=0.5),
    ),
    "cohere": (True, lambda: hf.CohereConfig(**_GROUPED, logit_scale=0.25)),
    "mamba": (False, lambda: hf.MambaConfig(**_LAYERS, state_size=4)),
    "lfm2": (False, lambda: hf.Lfm2Config(**_GROUPED, layer_types=["conv", "full_attention"])),
    "qwen3 moe": (
        True,
        lambda: hf.Qwen3MoeConfig(
            **_GROUPED, head_dim=8, moe_intermediate_size=12, num_experts=4, num_experts_per_tok=2
        ),
    ),
    "mixtral": (True, lambda: hf.MixtralConfig(**_GROUPED, num_local_experts=2, router_jitter_noise=0.5)),
    "phimoe": (True, lambda: hf.PhimoeConfig(**_GROUPED, num_local_experts=4, router_jitter_noise=0.4)),
}

#: Libraries have no float64 for what these do.
SINGLE = {"mamba", "mixtral", "phimoe", "qwen3 moe", "llama4"}
COMMON = ("qwen2", "qwen2 tied", "gemma2", "mamba")


def model_of(name: str, dtype: torch.dtype | None = None) -> hf.PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = hf.AutoModelForCausalLM.from_config(MODELS[name][1]()).eval()
        for weight in model.parameters():  # larger than usual, so that attention matters
            if weight.ndim > 1:
                weight.data.mul_(4)
    return model.to(dtype or (torch.float32 if name in SINGLE else torch.float64))


def tolerance(name: str) -> dict[str, float]:
    """Most libraries normalise in float32, whatever the type."""
    if name in SINGLE:
        return {"atol": 5e-4, "rtol": 5e-3}
    return {"atol": 1e-9, "rtol": 1e-7} if name == "gpt2" else {"atol": 2e-5, "rtol": 1e-4}


def batch(samples: str) -> Experience:
    """Samples of many lengths: the same ones twice, some with equal inputs, some that others begin with, a family."""
    rng = random.Random(5)
    drawn = lambda n: tuple(rng.choices(range(2, 40), k=n))  # noqa: E731
    first, second, third = drawn(4), drawn(3), drawn(7)
    long = drawn(9)
    talk = [(first, second), (first + second + third, drawn(1)), (long, drawn(6)), (long + drawn(2), drawn(3))]
    members = [
        trajectory(*talk),
        trajectory(*talk),
        trajectory((first, second[:1])),
        trajectory((first, second[:2]), (first + second[:2], (39,))),
        trajectory((first + second + third, drawn(1))),
        trajectory(),
        trajectory((drawn(1), drawn(1))),
        trajectory((first, ()), (long, drawn(4)), (long + drawn(30), ())),
    ]
    question = drawn(70)
    members += [trajectory((question, answer := drawn(n)), (question + answer + drawn(3), drawn(2))) for n in (5, 5, 9)]
    data = experience([Group(TASK, members)], samples)
    noise = np.random.default_rng(1)
    data.columns |= {name: noise.standard_normal(len(data)) for name in ("a", "b")}
    return data


def plain(model: hf.PreTrainedModel, data: Experience, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of the response tokens, sample by sample."""
    logprobs, entropies = [], []
    for sample in data.samples:
        ids = torch.from_numpy(sample.ids)
        rows = (model(input_ids=ids[None], use_cache=False).logits[0, :-1] / temperature).log_softmax(-1)
        drawn = torch.from_numpy(np.flatnonzero(sample.mask))
        logprobs.append(rows[drawn - 1, ids[drawn]])
        entropies.append(-(rows.exp() * rows).sum(-1)[drawn - 1])
    return torch.cat(logprobs), torch.cat(entropies)


def asked(policy: LocalPolicy, data: Experience, pieces: list[list[int]]) -> tuple[torch.Tensor, ...]:
    """The same of a policy, with the gradients of a loss of both, over micro-batches."""
    logprobs, entropies = (torch.zeros(len(data), dtype=torch.float64) for _ in range(2))
    for numbers in pieces:
        made = pack(data, numbers, share=policy.packs)
        out = policy.logprobs(made, BOTH, entropy_gradient=True)
        rows = data.rows(numbers)
        logprobs[rows], entropies[rows] = out.logprobs.detach().double(), out.entropy.detach().double()
        policy.backward(loss_of(out.logprobs, out.entropy, torch.from_numpy(rows), data))
    return logprobs, entropies, gradients(policy.model)


def loss_of(logprobs, entropies, rows, data):
    a, b = (torch.from_numpy(data.columns[name])[rows] for name in ("a", "b"))
    return (a * logprobs).sum() + (b * entropies).sum()


def alike(some, others, **within):
    for one, other in zip(some, others, strict=True):
        torch.testing.assert_close(one, other.to(one.dtype), **within)


@pytest.fixture(scope="module", params=["turn", "trajectory"])
def data(request) -> Experience:
    return batch(request.param)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in COMMON else pytest.mark.integration) for n in MODELS]
)
def test_packed_rows_pieces_and_one_by_one_are_a_plain_forward_pass(name, data):
    temperature = 0.7
    model = model_of(name)
    logprobs, entropies = plain(model, data, temperature)
    loss_of(logprobs, entropies, slice(None), data).backward()
    expected = logprobs.detach(), entropies.detach(), gradients(model)
    policy = LocalPolicy(model, share=True, temperature=temperature)
    assert policy.packs is MODELS[name][0]
    everything = range(len(data.samples))
    layouts = [[list(everything)], [[i] for i in everything]]
    layouts += [micro_batches(data, everything, most) for most in (1, 17, 40)]
    layouts += [micro_batches(data, everything, most, share=True) for most in (1, 90, 400)]
    for pieces in layouts:
        alike(asked(policy, data, pieces), expected, **tolerance(name))
    policy = LocalPolicy(model, share=True, temperature=temperature, most_logits=40 * 5)
    alike(asked(policy, data, layouts[0]), expected, **tolerance(name))
    if policy.packs:
        policy.packs = policy.scorer.packs = False
        policy.model.set_attn_implementation("eager")
        alike(asked(policy, data, layouts[0]), expected, **tolerance(name))
    policy = LocalPolicy(model, share=True, temperature=temperature, gradient_checkpointing=True)
    alike(asked(policy, data, layouts[0]), expected, **tolerance(name))


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "gpt2"])
def test_padded_rows_say_the_same(name):
    data, model = batch("turn"), model_of(name)
    turns = [turn for turn in data.turns if turn.response_ids]
    scores = score(model, [t.prompt_ids for t in turns], [t.response_ids for t in turns], 1.5)
    policy = LocalPolicy(model, share=True, temperature=1.5)
    logprobs, entropies, _ = asked(policy, data, [list(range(len(data.samples)))])
    there = scores.mask.bool()
    within = {"atol": 2e-5, "rtol": 1e-4}  # padded rows are scored in float32
    alike((logprobs, entropies), (scores.logprobs[there].detach(), scores.entropy[there].detach()), **within)


@pytest.mark.parametrize("name", ["qwen2 tied", "gemma2"])
@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_products_of_less_precision_are_finite_and_near(name, precision, data):
    model = model_of(name, torch.float32)
    exact, rounded = (LocalPolicy(model, precision=p) for p in (torch.float32, precision))
    pieces = [list(range(len(data.samples)))]
    expected, found = asked(exact, data, pieces), asked(rounded, data, pieces)
    scale = rounded.scaler.get_scale()
    assert all(torch.isfinite(one).all() for one in found)
    alike(found[:2], expected[:2], atol=0.15, rtol=0.05)
    assert torch.nn.functional.cosine_similarity(found[2] / scale, expected[2], dim=0) > 0.98
    assert {p.dtype for p in rounded.weights.values()} == {torch.float32}


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_what_was_said_between_responses_is_scored_as_a_plain_forward_pass_does(temperature, data):
    """At temperature 1: nobody drew it. Samples that share an input count each."""
    model = model_of("qwen2")
    policy = LocalPolicy(model, share=True, temperature=temperature)
    numbers = list(range(len(data.samples)))
    out = policy.logprobs(pack(data, numbers, observations=True))
    expected = []
    for number, sample in enumerate(data.samples):
        rows = model(input_ids=torch.from_numpy(sample.ids)[None]).logits[0].log_softmax(-1)
        drawn = np.flatnonzero(sample.mask)
        between = [i for i in range(drawn[0], drawn[-1]) if not sample.mask[i]]
        assert data.between(number).tolist() == between
        expected += [rows[i - 1, sample.ids[i]] for i in between]
    if not expected:
        assert out.observations is None
        return
    torch.testing.assert_close(out.observations, torch.stack(expected))
    without = policy.logprobs(pack(data, numbers))
    assert without.observations is None
    torch.testing.assert_close(without.logprobs, out.logprobs)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("name", ["qwen2", "bloom", "gpt2"])
def test_the_players_module_stays_as_it_was(name, share):
    model = model_of(name, torch.float32)
    before = {n: dict(vars(m)) for n, m in model.named_modules()}
    config, weights = model.config.to_dict(), copy.deepcopy(model.state_dict())
    policy = LocalPolicy(model, share=share, gradient_checkpointing=True)
    data = batch("turn")
    asked(policy, data, [[0, 1]])
    for path, module in model.named_modules():
        after = vars(module)
        for key in ("training", "p", "gradient_checkpointing", "attention_dropout", "hidden_dropout"):
            assert after.get(key) == before[path].get(key), (path, key)
    assert model.config.to_dict() == config
    assert model.config._attn_implementation != policy.model.config._attn_implementation or not policy.packs
    assert all(torch.equal(weights[n], tensor) for n, tensor in model.state_dict().items())
    mine = dict(model.named_parameters())
    assert all((policy.weights[n] is mine[n]) is share for n in policy.weights)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("context", [256, 32])
def test_longrope_has_one_table_whatever_is_computed_together(context):
    """Its short table is for 32 tokens."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
    rope |= {"short_factor": [1.0, 1.0], "long_factor": [4.0, 4.0]}
    config = hf.LlamaConfig(**_GROUPED | {"max_position_embeddings": context}, rope_parameters=rope)
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(config).eval()
    for weight in model.parameters():
        weight.data.mul_(4 if weight.ndim > 1 else 1)
    ids = torch.randint(2, 40, (1, 20))
    short = model(ids).logits
    engine = LocalEngine(model, frozenset())
    longer = [28, 60] if context == 256 else []  # one that crosses the limit, one that is above it
    prompts = [tuple(random.Random(n).choices(range(2, 40), k=n)) for n in (10, *longer)]

    async def answers(prompts):
        every = (engine.generate(p, Sampling(max_new_tokens=12), random.Random(len(p))) for p in prompts)
        return await asyncio.gather(*every)

    together = asyncio.run(answers(prompts))
    (alone,) = asyncio.run(answers(prompts[:1]))
    assert together[0].logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    turns = [Turn(p, tuple(r.ids), tuple(r.logprobs), 0.0, "", "") for p, r in zip(prompts, together, strict=True)]
    data = experience([Group(TASK, [Trajectory(TASK, [turn], "terminated") for turn in turns])], "turn")
    policy = LocalPolicy(model)
    trained = policy.logprobs(pack(data, range(len(turns)), share=policy.packs)).logprobs.detach().numpy()
    np.testing.assert_allclose(trained, data.columns["behavior"], atol=1e-4)
    assert torch.allclose(model(ids).logits, short, atol=1e-5) == (context == 32), (
        "the long table where it may be needed"
    )


def test_a_policy_without_its_own_kind_of_logits_is_refused():
    model = model_of("qwen2")
    real = model.lm_head.forward
    model.forward = lambda *args, **kwargs: replaced(type(model).forward(model, *args, **kwargs))
    assert real is not None
    with pytest.raises(UsageError, match="logits"):
        LocalPolicy(model, share=True)


def replaced(out):
    out.logits = out.logits + torch.arange(out.logits.shape[-1])
    return out


def test_a_prompt_without_a_token_is_reported():
    with pytest.raises(UsageError, match="no prompt"):
        experience([Group(TASK, [trajectory(((), (1, 2)))])], "turn")


# -- steps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_changes_nothing(precision, bad):
    policy, data = LocalPolicy(model_of("qwen2", torch.float32), precision=precision), batch("turn")
    good = policy.logprobs(pack(data, [0, 1, 2]))
    policy.backward(good.logprobs.sum())
    assert np.isfinite(policy.step(1e-3))
    before = copy.deepcopy(policy.state_dict())
    out = policy.logprobs(pack(data, [0, 1, 2]))
    policy.backward(out.logprobs.sum() * bad)
    assert not np.isfinite(policy.step(1e-3))
    after = policy.state_dict()
    assert all(torch.equal(before["masters"][n], w) for n, w in after["masters"].items())
    for number, moments in before["adam"]["state"].items():
        assert all(torch.equal(value, after["adam"]["state"][number][key]) for key, value in moments.items())
    policy.backward(policy.logprobs(pack(data, [0, 1, 2])).logprobs.sum())
    assert np.isfinite(policy.step(1e-3)), "no gradient of the bad step is left"


@pytest.mark.parametrize("kind", ["model", "head"])
def test_a_critic_learns_its_targets_and_leaves_the_policy_alone(kind):
    model = model_of("qwen2", torch.float32)
    policy, data = LocalPolicy(model, share=True), batch("turn")
    before = copy.deepcopy(model.state_dict())
    critic = Critic(policy.model, kind=kind, lr=1e-2, clip=0, packs=policy.packs)
    data.columns |= {"values": np.zeros(len(data)), "returns": np.where(np.arange(len(data)) % 2, 1.0, np.nan)}
    made = pack(data, list(range(len(data.samples))))
    hidden = policy.logprobs(made, ("hidden",)).hidden
    assert torch.equal(critic.values(made, hidden), torch.zeros(len(data)))
    losses = []
    for _ in range(30):
        losses.append(float(critic.backward(made, hidden, 2 / len(data))["value_loss"].sum()))
        critic.step()
    assert losses[-1] < losses[0] / 4
    assert all(torch.equal(before[n], tensor) for n, tensor in model.state_dict().items())
