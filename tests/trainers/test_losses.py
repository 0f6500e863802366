"""Every loss against plain Python written from its paper: values and gradients; and what all losses must keep."""

import math
from dataclasses import replace

import duals
import pytest
import torch
from duals import Tokens, clip, dual, exp, mean, stop
from hypothesis import given, settings
from hypothesis import strategies as st

from rollenv.core.errors import UsageError
from rollenv.trainers import losses as L

# -- the papers, token by token: each gives the loss of token t -------------------------------------------------------


def log_ratio(b, t, old="proximal"):
    return b.logprobs[t] - getattr(b, old)[t]


def ppo(b, t, low=0.2, high=0.2, dual_clip=None, labels=None):
    members = [t] if labels is None else b.same(t, getattr(b, labels))
    ratio, a = exp(mean([log_ratio(b, u) for u in members])), b.advantages[t]
    objective = min(ratio * a, clip(ratio, 1 - low, 1 + high) * a)
    if dual_clip is not None and a < 0:
        objective = max(objective, dual(dual_clip * a))
    return -objective


def gspo_token(b, t, low=3e-4, high=4e-4):
    s = stop(exp(mean([log_ratio(b, u) for u in b.same(t, b.sequences)])))
    ratio, a = s * exp(b.logprobs[t] - stop(b.logprobs[t])), b.advantages[t]
    return -min(ratio * a, clip(ratio, 1 - low, 1 + high) * a)


def gmpo(b, t, epsilon=0.4):
    kept = []
    for u in b.same(t, b.sequences):
        r = log_ratio(b, u)
        held = clip(r, -epsilon, epsilon)
        kept.append(min(r, held) if b.advantages[u] > 0 else max(r, held) if b.advantages[u] < 0 else dual(0))
    return -b.advantages[t] * exp(mean(kept))


def sapo(b, t):
    tau = 1.0 if b.advantages[t] > 0 else 1.05
    z = tau * (exp(log_ratio(b, t)) - 1)
    sigmoid = 1 / (1 + math.exp(-z.v))
    gate = duals.Dual(sigmoid, sigmoid * (1 - sigmoid) * z.d)
    return gate * (-4 / tau * b.advantages[t])


def reinforce(b, t):
    return -b.advantages[t] * b.logprobs[t]


def cispo(b, t, floor=0.0, cap=5.0):
    return stop(clip(exp(log_ratio(b, t)), floor, cap)) * -b.advantages[t] * b.logprobs[t]


def topr(b, t, positive=1.0, negative=1.0, whole=True):
    a = b.advantages[t]
    if a >= 0:
        return -positive * a * b.logprobs[t]
    product = 1.0
    for u in b.same(t, b.sequences) if whole else [t]:
        product *= exp(log_ratio(b, u, "behavior")).v
    return -negative * min(product, 1.0) * a * b.logprobs[t]


def outside(b, t, low, high, kind):
    p, q = math.exp(b.logprobs[t].v), math.exp(b.behavior[t])
    moved = abs(p - q) if kind == "tv" else q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    return (p > q and moved > high) if b.advantages[t] > 0 else (p < q and moved > low)


def dppo(b, t, low=0.2, high=0.2, kind="tv"):
    r = log_ratio(b, t, "behavior")
    policy = dual(0) if outside(b, t, low, high, kind) else exp(r) * -b.advantages[t]
    return policy + 1e-3 * (r * r)


def dppo_truncated(b, t, low=0.05, high=0.05, kind="kl"):
    kept = 0 if outside(b, t, low, high, kind) else 1
    return -b.advantages[t] * kept * min(exp(log_ratio(b, t, "behavior")).v, 2.0) * b.logprobs[t]


def kl3(b, t, weight=1.0):
    d = b.logprobs[t] - b.reference[t]
    return weight * min(exp(-d) + d - 1, dual(10))


def k2_gradient(b, t):
    d = b.logprobs[t] - b.reference[t]
    return duals.Dual(0.3 * kl3(b, t).v, 0.3 * d.v * d.d)


def distill(b, t):
    r, gap = log_ratio(b, t, "behavior"), b.reference[t] - b.logprobs[t].v
    kept = math.exp(b.logprobs[t].v) - math.exp(b.behavior[t]) >= -0.2
    return exp(r) * (-gap * kept) + 1e-3 * (r * r)


CASES = {
    "ppo": (L.ppo_clip, ppo),
    "ppo higher, dual": (
        lambda x: L.ppo_clip(x, low=0.2, high=0.28, dual=1.4),
        lambda b, t: ppo(b, t, 0.2, 0.28, 1.4),
    ),
    "ppo turn": (lambda x: L.ppo_clip(x, ratio="turn"), lambda b, t: ppo(b, t, labels="turns")),
    "ppo sequence": (
        lambda x: L.ppo_clip(x, ratio="sequence", dual=3.0),
        lambda b, t: ppo(b, t, dual_clip=3.0, labels="sequences"),
    ),
    "gspo": (L.gspo, lambda b, t: ppo(b, t, 3e-4, 4e-4, labels="sequences")),
    "gspo token": (L.gspo_token, gspo_token),
    "gmpo": (L.gmpo, gmpo),
    "sapo": (L.sapo, sapo),
    "reinforce": (L.reinforce, reinforce),
    "cispo": (L.cispo, cispo),
    "cispo, ROLL": (lambda x: L.cispo(x, floor=0.9, cap=1.1), lambda b, t: cispo(b, t, 0.9, 1.1)),
    "topr": (lambda x: L.topr(x, positive=0.5, negative=2.0), lambda b, t: topr(b, t, 0.5, 2.0)),
    "topr token": (lambda x: L.topr(x, level="token"), lambda b, t: topr(b, t, whole=False)),
    "dppo": (L.dppo, dppo),
    "dppo kl": (lambda x: L.dppo(x, distance="kl", low=0.01, high=0.05), lambda b, t: dppo(b, t, 0.01, 0.05, "kl")),
    "dppo truncated": (
        lambda x: L.dppo(x, variant="truncated", distance="kl", low=0.05, high=0.05, cap=2.0),
        dppo_truncated,
    ),
    "kl loss": (lambda x: L.kl_loss(x, 0.3), lambda b, t: kl3(b, t, 0.3)),
    "kl loss, k2's gradient": (lambda x: L.kl_loss(x, 0.3, gradient="k2"), k2_gradient),
    "distill": (lambda x: L.distill(x, x.reference), distill),
    "imitation": (lambda x: L.imitation(x.logprobs), lambda b, t: -b.logprobs[t]),
    "echo": (lambda x: L.echo(x.logprobs), lambda b, t: b.logprobs[t] * -0.05),
    "value": (
        lambda x: L.value_loss(x.logprobs, x.reference, old=x.proximal, clip=0.2),
        lambda b, t: 0.5 * max(*(
            (v - b.reference[t]) * (v - b.reference[t])
            for v in (b.logprobs[t], b.proximal[t] + clip(b.logprobs[t] - b.proximal[t], -0.2, 0.2))
        )),
    ),
    "decoupled ppo": (
        lambda x: L.corrected(L.ppo_clip(x), L.tis(x, cap=None)),
        lambda b, t: ppo(b, t) * math.exp(b.proximal[t] - b.behavior[t]),
    ),
}  # fmt: skip
each = pytest.mark.parametrize("name", CASES)
quick = settings(max_examples=8, deadline=None)


def gradient(loss, x, weights=None):
    total = (loss.values if weights is None else weights * loss.values).sum()
    return torch.autograd.grad(total, x.logprobs)[0]


@each
@quick
@given(duals.batches(), st.integers(0, 99))
def test_value_and_gradient_are_those_of_the_paper(name, x, seed):
    ours, paper = CASES[name]
    loss, b = ours(x), Tokens(x)
    weights = torch.rand(b.n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    expected = [dual(paper(b, t)) for t in range(b.n)]
    torch.testing.assert_close(
        loss.values.detach(), torch.tensor([e.v for e in expected], dtype=torch.float64), rtol=1e-10, atol=1e-12
    )
    total = sum((w * e for w, e in zip(weights.tolist(), expected, strict=True)), dual(0))
    there = torch.zeros(b.n, dtype=torch.float64) + torch.as_tensor(total.d, dtype=torch.float64)
    torch.testing.assert_close(gradient(loss, x, weights), there, rtol=1e-9, atol=1e-11)


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_ratios_of_fifty_stay_finite(name, dtype):
    x = duals.extreme(dtype)
    assert (x.logprobs - x.behavior).abs().min() == 50
    loss = CASES[name][0](x)
    assert torch.isfinite(loss.values).all()
    assert torch.isfinite(gradient(loss, x)).all()
    assert all(torch.isfinite(m).all() for m in loss.metrics.values())


@each
def test_metrics_are_numbers_of_tokens_without_gradient_and_no_token_is_no_problem(name):
    x = duals.batch([[2, 1], [3]], 0.5)
    for part in (x, duals.cut(x, torch.zeros(0, dtype=torch.int64))):
        loss = CASES[name][0](part)
        n = len(part.logprobs)
        assert loss.values.shape == (n,)
        assert loss.metrics
        assert all(m.shape == (n,) and not m.requires_grad for m in loss.metrics.values())
        assert gradient(loss, part).shape == (n,)


# -- by hand ----------------------------------------------------------------------------------------------------------


def tokens(logprobs, old, advantages, sequences=None, turns=None, **more):
    n = len(logprobs)
    f = torch.tensor
    return L.LossInput(
        f(logprobs, requires_grad=True),
        f(old),
        f(old),
        f(advantages),
        f(sequences or [0] * n),
        f(turns or [0] * n),
        **more,
    )


def ratios(values, advantages, **kwargs):
    return tokens([math.log(v) - 1 for v in values], [-1.0] * len(values), advantages, **kwargs)


def test_the_clip_by_hand():
    x = ratios([1.5, 1.5, 0.5, 0.5, 1.1], [1.0, -1.0, 1.0, -1.0, 2.0])
    loss = L.ppo_clip(x, low=0.2, high=0.28)
    assert loss.values.tolist() == pytest.approx([-1.28, 1.5, -0.5, 0.8, -2.2])
    assert loss.metrics["clipped"].tolist() == [1, 0, 0, 1, 0]
    assert gradient(loss, x).tolist() == pytest.approx([0, 1.5, -0.5, 0, -2.2])


def test_the_dual_clip_bounds_only_what_is_bad_and_far():
    x = ratios([5.0, 2.0, 5.0], [-1.0, -1.0, 1.0])
    loss = L.ppo_clip(x, dual=3.0)
    assert loss.values.tolist() == pytest.approx([3.0, 2.0, -1.2])
    assert loss.metrics["clipped"].tolist() == [1, 0, 1]
    assert gradient(loss, x).tolist() == pytest.approx([0, 2.0, 0])


def test_dppo_drops_by_probability_where_ppo_drops_by_ratio():
    rare = tokens([math.log(0.03)], [math.log(0.01)], [1.0])
    common = tokens([math.log(0.9)], [math.log(0.6)], [1.0])
    back = tokens([math.log(0.6)], [math.log(0.9)], [1.0])
    assert [L.dppo(x).metrics["clipped"].item() for x in (rare, common, back)] == [0, 1, 0]
    assert gradient(L.dppo(rare, square=0.0), rare).item() == pytest.approx(-3)
    assert gradient(L.dppo(common, square=0.0), common).item() == 0


def test_sapo_and_gmpo_are_the_policy_gradient_at_the_start():
    x = ratios([1.0, 1.0], [2.0, -1.0], sequences=[0, 1])
    for loss in (L.sapo, L.gmpo, L.gspo, L.gspo_token, L.ppo_clip, L.reinforce, L.cispo, L.topr, L.dppo):
        assert gradient(loss(x), x).tolist() == pytest.approx([-2, 1]), loss


def test_a_ratio_out_of_reach_is_finite_and_what_is_no_number_stays_none():
    x = tokens([-1.0, -500.0], [-500.0, -1.0], [-1.0, 1.0], sequences=[0, 1])
    for loss in (L.ppo_clip, L.gspo, L.gmpo, L.sapo, L.dppo, L.cispo, L.topr):
        assert torch.isfinite(loss(x).values).all()
        assert torch.isfinite(gradient(loss(x), x)).all()
    poisoned = tokens([math.nan, -1.0], [-1.0, -1.0], [1.0, 1.0], sequences=[0, 1])
    for loss in (L.ppo_clip, L.gspo, L.gspo_token, L.gmpo, L.sapo, L.dppo, L.cispo, L.topr, L.reinforce):
        assert torch.isnan(loss(poisoned).values).tolist() == [True, False]


def test_an_entropy_bonus_rewards_entropy():
    x = duals.batch([[2]], 0.1)
    loss = L.entropy_bonus(x, 0.5)
    assert torch.autograd.grad(loss.values.sum(), x.entropy)[0].tolist() == [-0.5, -0.5]
    with pytest.raises(UsageError, match="entropy"):
        L.entropy_bonus(replace(x, entropy=None), 0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: L.ppo_clip(x, dual=1.0),
        lambda x: L.ppo_clip(x, low=-0.1),
        lambda x: L.ppo_clip(x, high=-0.1),
        lambda x: L.ppo_clip(x, ratio="episode"),
        lambda x: L.gmpo(x, low=-1),
        lambda x: L.sapo(x, negative=0.0),
        lambda x: L.cispo(x, floor=2.0, cap=1.0),
        lambda x: L.topr(x, level="turn"),
        lambda x: L.topr(x, negative=-1.0),
        lambda x: L.dppo(x, distance="js"),
        lambda x: L.dppo(x, variant="verl"),
        lambda x: L.dppo(x, cap=0.0),
        lambda x: L.distill(x, x.reference, square=-1.0),
        lambda x: L.kl_loss(replace(x, reference=None), 0.1),
        lambda x: L.kl_loss(x, 0.1, gradient="k3"),
        lambda x: L.value_loss(x.logprobs, x.reference, clip=0.2),
        lambda x: L.value_loss(x.logprobs, x.reference, old=x.proximal, clip=0.0),
    ],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(UsageError):
        wrong(duals.batch([[2]], 0.1))
