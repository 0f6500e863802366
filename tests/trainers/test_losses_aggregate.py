"""Weights of tokens, and distances to a reference."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollenv.core.errors import UsageError
from rollenv.trainers.losses import AdaptiveKL, kl_estimate, kl_loss, token_weights
from rollenv.trainers.losses.types import LossInput

quick = settings(max_examples=15, deadline=None)
# for each prompt, of each sample, how many tokens
SHAPES = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=4)


def labels(shape):
    samples = [n for prompt in shape for n in prompt]
    owner = [p for p, prompt in enumerate(shape) for _ in prompt]
    return np.repeat(np.arange(len(samples)), samples), np.repeat(owner, samples)


@quick
@given(SHAPES, st.integers(0, 99))
def test_weights_make_the_means_they_are_named_after(shape, seed):
    sequences, prompts = labels(shape)
    values = np.random.default_rng(seed).standard_normal(len(sequences))
    mean = lambda rows: sum(rows) / len(rows)  # noqa: E731
    by = lambda where: [mean([v for v, w in zip(values, where, strict=True) if w == k]) for k in sorted(set(where))]  # noqa: E731
    total = lambda kind, **more: (token_weights(kind, sequences, prompts, **more) * values).sum()  # noqa: E731
    assert total("token") == pytest.approx(mean(list(values)))
    assert total("sequence") == pytest.approx(mean(by(sequences)))
    assert total("prompt") == pytest.approx(mean(by(prompts)))
    assert total("fixed", length=7) == pytest.approx(sum(values) / len(set(sequences)) / 7)
    assert token_weights("token", torch.tensor(sequences)).dtype == torch.float64


@pytest.mark.parametrize("kind", ["token", "sequence", "prompt", "fixed"])
def test_no_token_has_no_weight(kind):
    none = torch.zeros(0, dtype=torch.int64)
    assert token_weights(kind, none, none, length=3 if kind == "fixed" else None).shape == (0,)


@pytest.mark.parametrize(
    ("kind", "more"),
    [("mean", {}), ("prompt", {"prompts": None}), ("fixed", {}), ("token", {"length": 3}), ("fixed", {"length": 0})],
)
def test_weights_refuse_what_would_do_nothing(kind, more):
    with pytest.raises(UsageError):
        token_weights(kind, np.zeros(2, dtype=np.int64), **more)


# -- KL ---------------------------------------------------------------------------------------------------------------

P, Q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)


def test_estimates_and_their_gradients_are_those_that_the_docstring_promises():
    logits = P.log().clone().requires_grad_()
    logp = logits.log_softmax(0)
    kl, reverse = (P * (P / Q).log()).sum(), (Q * (Q / P).log()).sum()
    mean = {kind: (P * kl_estimate(logp, Q.log(), kind)).sum() for kind in ("k1", "k2", "k3")}
    assert mean["k1"].item() == pytest.approx(kl.item())
    assert mean["k3"].item() == pytest.approx(kl.item())
    slope = {kind: torch.autograd.grad(m, logits, retain_graph=True)[0] for kind, m in mean.items()}
    of_kl = torch.autograd.grad((logp.exp() * (logp - Q.log())).sum(), logits, retain_graph=True)[0]
    of_reverse = torch.autograd.grad((Q * (Q.log() - logp)).sum(), logits)[0]
    assert reverse > 0
    torch.testing.assert_close(slope["k1"], torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(slope["k2"], of_kl)
    torch.testing.assert_close(slope["k3"], of_reverse)


@quick
@given(st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0)), max_size=5))
def test_estimates_by_their_formulas(pairs):
    p, q = (torch.tensor([pair[i] for pair in pairs], dtype=torch.float64) for i in (0, 1))
    d = [a - b for a, b in pairs]
    assert kl_estimate(p, q, "k1").tolist() == pytest.approx(d)
    assert kl_estimate(p, q, "k2").tolist() == pytest.approx([v * v / 2 for v in d])
    assert kl_estimate(p, q, "k3").tolist() == pytest.approx([min(math.exp(-v) + v - 1, 10) for v in d], abs=1e-12)


@pytest.mark.parametrize("far", [-200.0, 200.0])
def test_a_far_reference_gives_finite_values_and_k2_still_pulls_back(far):
    logprobs = torch.tensor([-201.0], requires_grad=True)
    labels = torch.zeros(1, dtype=torch.int64)
    x = LossInput(logprobs, *[logprobs.detach()] * 3, labels, labels, reference=logprobs.detach() - far)
    loss = kl_loss(x, 1.0, gradient="k2")
    loss.values.backward()
    assert loss.values.item() == 10
    assert logprobs.grad.item() == far
    assert torch.autograd.grad(kl_loss(x, 1.0).values.sum(), logprobs)[0].item() == 0


def test_the_coefficient_follows_its_target():
    beta = AdaptiveKL(0.2, target=0.1, horizon=1000)
    beta.update(0.11, 100)  # a tenth above
    assert beta.coefficient == pytest.approx(0.2 * 1.01)
    beta.update(50.0, 100)  # far above: by a fifth at most
    assert beta.coefficient == pytest.approx(0.2 * 1.01 * 1.02)
    beta.update(0.0, 100)
    assert beta.coefficient == pytest.approx(0.2 * 1.01 * 1.02 * 0.98)
    kept = AdaptiveKL(0.7, target=0.1, horizon=1000)
    kept.load_state_dict(beta.state_dict())
    kept.update(math.nan, 100)
    assert kept == beta
    fixed = AdaptiveKL(0.3)
    fixed.update(50.0, 10**9)
    assert fixed.coefficient == 0.3


def test_a_controller_that_would_reach_zero_is_refused():
    with pytest.raises(UsageError, match="horizon"):
        AdaptiveKL(0.2, target=0.1, horizon=20).update(0.0, 100)
    for wrong in ({"coefficient": -1.0}, {"target": 0.0}, {"horizon": 0}):
        with pytest.raises(UsageError):
            AdaptiveKL(**wrong)
    with pytest.raises(UsageError, match="k4"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "k4")
