"""Weights between sampler and trainer, against products and means taken one by one."""

import math
from dataclasses import replace

import duals
import pytest
import torch
from hypothesis import given, settings

from rollenv.core.errors import UsageError
from rollenv.trainers import losses as L


class Ratios:
    """ρ of each token, and over its sample the product and the geometric mean."""

    def __init__(self, x, policy="proximal"):
        target = (x.proximal if policy == "proximal" else x.logprobs.detach()).tolist()
        self.token = [math.exp(p - b) for p, b in zip(target, x.behavior.tolist(), strict=True)]
        labels = x.sequences.tolist()
        members = [[self.token[u] for u in range(len(labels)) if labels[u] == mine] for mine in labels]
        self.product = [math.prod(m) for m in members]
        self.mean = [math.prod(m) ** (1 / len(m)) for m in members]
        self.advantages = x.advantages.tolist()


CASES = {
    "tis": (L.tis, lambda r, t: min(r.token[t], 2.0)),
    "tis floor": (lambda x: L.tis(x, cap=1.2, floor=0.8), lambda r, t: max(min(r.token[t], 1.2), 0.8)),
    "decoupled": (lambda x: L.tis(x, cap=None), lambda r, t: r.token[t]),
    "seq tis": (L.seq_tis, lambda r, t: min(r.product[t], 2.0)),
    "mis": (L.mis, lambda r, t: r.product[t] * (r.product[t] <= 3.0)),
    "mis token": (lambda x: L.mis(x, cap=1.5, level="token"), lambda r, t: r.token[t] * (r.token[t] <= 1.5)),
    "geo": (lambda x: L.geo(x, band=0.1), lambda r, t: 0.9 <= r.mean[t] <= 1.1),
    "icepop": (L.icepop, lambda r, t: r.token[t] * (0.5 <= r.token[t] <= 5.0)),
    "geo and tis": (
        lambda x: L.combine(L.geo(x, band=0.1), L.tis(x)),
        lambda r, t: (0.9 <= r.mean[t] <= 1.1) * min(r.token[t], 2.0),
    ),
    "opsm": (
        lambda x: L.opsm(x, delta=0.05, policy="proximal"),
        lambda r, t: not (r.advantages[t] < 0 and -math.log(r.mean[t]) > 0.05),
    ),
}
each = pytest.mark.parametrize("name", CASES)
quick = settings(max_examples=6, deadline=None)


@each
@quick
@given(duals.batches())
def test_weights_are_those_of_the_definition(name, x):
    ours, definition = CASES[name]
    c, r = ours(x), Ratios(x)
    n = len(r.token)
    expected = torch.tensor([float(definition(r, t)) for t in range(n)], dtype=torch.float64)
    torch.testing.assert_close(c.weights, expected)
    assert not c.weights.requires_grad
    assert torch.equal(c.metrics["masked"], (expected == 0).double())
    kl = torch.tensor([v - math.log(v) - 1 for v in r.token], dtype=torch.float64)
    torch.testing.assert_close(c.metrics["mismatch_kl"], kl)
    torch.testing.assert_close(c.metrics["weight"], expected)
    torch.testing.assert_close(c.metrics["weight_squared"], expected**2)


@each
def test_far_ratios_are_finite_and_no_token_is_no_problem(name):
    x = duals.extreme()
    for apart in (x, replace(x, proximal=-x.proximal), duals.cut(x, torch.zeros(0, dtype=torch.int64))):
        c = CASES[name][0](apart)
        assert torch.isfinite(c.weights).all()
        assert all(torch.isfinite(m).all() and m.shape == c.weights.shape for m in c.metrics.values())


def pair(log_ratios, advantages, sequences):
    f = torch.tensor
    behavior = torch.full((len(log_ratios),), -1.0)
    proximal = behavior + f(log_ratios)
    return L.LossInput(proximal.clone().requires_grad_(), proximal, behavior, f(advantages), f(sequences), f(sequences))


def test_weights_by_hand():
    x = pair([math.log(4), math.log(0.25), math.log(2)], [1.0, -1.0, -1.0], [0, 0, 1])
    assert L.tis(x).weights.tolist() == pytest.approx([2, 0.25, 2])
    assert L.tis(x).metrics["clipped"].tolist() == [1, 0, 0]
    assert L.seq_tis(x, cap=1.5).weights.tolist() == pytest.approx([1, 1, 1.5])
    assert L.seq_tis(x, cap=1.5).metrics["clipped"].tolist() == [0, 0, 1]
    assert L.mis(x, cap=1.5).weights.tolist() == pytest.approx([1, 1, 0])
    assert L.geo(x).weights.tolist() == [1, 1, 0]
    assert L.icepop(x).weights.tolist() == pytest.approx([4, 0, 2])


def test_opsm_forgets_only_mistakes_that_became_unlikely():
    away = pair([-0.5, 0.1, -0.5, 0.5], [-1.0, 1.0, 1.0, -1.0], [0, 0, 1, 2])
    assert L.opsm(away).weights.tolist() == [0, 1, 1, 1]
    moved = replace(away, logprobs=away.behavior)
    assert L.opsm(moved).weights.tolist() == [1, 1, 1, 1]  # it is the current policy that counts


def test_masked_tokens_lose_their_gradient_and_the_metrics_are_prefixed():
    x = pair([0.0, 3.0], [1.0, 1.0], [0, 1])
    loss = L.corrected(L.reinforce(x), L.icepop(x))
    loss.values.sum().backward()
    assert x.logprobs.grad.tolist() == [-1, 0]
    assert loss.metrics["correction/masked"].tolist() == [0, 1]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: L.tis(x, cap=0.5, floor=0.6),
        lambda x: L.seq_tis(x, cap=0.0),
        lambda x: L.mis(x, cap=-1.0),
        lambda x: L.mis(x, level="turn"),
        lambda x: L.geo(x, band=0.0),
        lambda x: L.icepop(x, low=2.0, high=1.0),
        lambda x: L.opsm(x, delta=-1.0),
        lambda x: L.tis(x, policy="behavior"),
    ],
)
def test_corrections_out_of_range_are_refused(wrong):
    with pytest.raises(UsageError):
        wrong(duals.batch([[2]], 0.1))
