"""The clipped loss against its definition, token by token."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollenv.trainers.losses import ppo_clip, token_mean

TOKEN = st.tuples(st.floats(-3, 0), st.floats(-3, 0), st.floats(-2, 2), st.booleans())


def tensors(rows):
    flat = [torch.tensor([[float(t[i]) for t in row] for row in rows], dtype=torch.float64) for i in range(4)]
    return flat


@given(st.lists(st.lists(TOKEN, min_size=3, max_size=3), min_size=1, max_size=4))
def test_value_and_metrics_are_means_over_real_tokens(rows):
    logprobs, old, advantages, mask = tensors(rows)
    loss = ppo_clip(logprobs, old, advantages, mask, low=0.2, high=0.28)
    tokens = [t for row in rows for t in row if t[3]]
    objective, clipped, kl = [], 0, []
    for new, before, advantage, _ in tokens:
        ratio = math.exp(new - before)
        bounded = min(max(ratio, 0.8), 1.28)
        objective.append(min(ratio * advantage, bounded * advantage))
        clipped += ratio * advantage > bounded * advantage
        kl.append(ratio - 1 - (new - before))
    n = max(len(tokens), 1)
    assert loss.value.item() == pytest.approx(-sum(objective) / n, abs=1e-9)
    assert loss.clip_fraction == pytest.approx(clipped / n)
    assert loss.kl == pytest.approx(sum(kl) / n, abs=1e-9)


def test_on_policy_the_gradient_is_the_policy_gradient():
    logprobs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    loss = ppo_clip(logprobs, logprobs.detach(), torch.tensor([[2.0]]), torch.ones(1, 2))
    loss.value.backward()
    assert logprobs.grad.tolist() == [[-1.0, -1.0]]
    assert loss.ratio == 1.0
    assert loss.kl == 0.0


def test_a_token_pushed_too_far_gets_no_gradient():
    logprobs = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    old = torch.tensor([[-2.0, -0.5]])  # more likely than before, and less
    ppo_clip(logprobs, old, torch.tensor([[1.0]]), torch.ones(1, 2)).value.backward()
    assert logprobs.grad[0, 0] == 0
    assert logprobs.grad[0, 1] != 0


def test_padding_never_counts():
    values = torch.tensor([[1.0, 3.0], [float("1e9"), 5.0]])
    mask = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    assert token_mean(values, mask) == 3.0
    assert token_mean(values, torch.zeros(2, 2)) == 0.0
