"""Plain Python in float64 that knows its derivatives, and random batches to compare losses on."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from hypothesis import strategies as st

from rollenv.trainers.losses import LossInput


@dataclass
class Dual:
    """A number and its derivatives by the log-probabilities of all tokens."""

    v: float
    d: np.ndarray | float = 0.0

    def __add__(self, other):
        other = dual(other)
        return Dual(self.v + other.v, self.d + other.d)

    def __mul__(self, other):
        other = dual(other)
        return Dual(self.v * other.v, self.v * other.d + other.v * self.d)

    def __truediv__(self, number):
        return self * (1 / number)

    def __neg__(self):
        return self * -1.0

    def __sub__(self, other):
        return self + -dual(other)

    def __rsub__(self, other):
        return dual(other) - self

    def __lt__(self, other):
        return self.v < dual(other).v

    def __gt__(self, other):
        return self.v > dual(other).v

    __radd__, __rmul__ = __add__, __mul__


def dual(x):
    return x if isinstance(x, Dual) else Dual(float(x))


def exp(x):
    x = dual(x)
    return Dual(math.exp(x.v), math.exp(x.v) * x.d)


def stop(x):
    return Dual(dual(x).v)


def clip(x, low, high):
    return Dual(low) if dual(x).v < low else Dual(high) if dual(x).v > high else dual(x)


def mean(xs):
    return sum(xs, Dual(0.0)) / len(xs)


class Tokens:
    """The same tokens for a reference: lists, the log-probabilities as duals."""

    def __init__(self, x: LossInput):
        n = len(x.logprobs)
        self.n = n
        self.logprobs = [Dual(v, row) for v, row in zip(x.logprobs.tolist(), np.eye(n), strict=True)]
        for name in ("proximal", "behavior", "advantages", "sequences", "turns", "reference"):
            setattr(self, name, getattr(x, name).tolist())

    def same(self, t, labels):
        return [u for u in range(self.n) if labels[u] == labels[t]]


@st.composite
def batches(draw):
    """Samples of turns of tokens; log-ratios from tiny to large, advantages of a sample, a turn or a token, some 0."""
    shape = draw(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=4))
    spread = draw(st.sampled_from([3e-4, 0.1, 0.5, 2.0]))
    return batch(shape, spread, draw(st.sampled_from(["sequences", "turns", "tokens"])), draw(st.integers(0, 2**31)))


def batch(shape, spread, by="tokens", seed=0):
    rng = np.random.default_rng(seed)
    sequences = [s for s, turns in enumerate(shape) for k in turns for _ in range(k)]
    turns = [t for t, k in enumerate(k for turns in shape for k in turns) for _ in range(k)]
    n = len(sequences)
    behavior = -rng.exponential(1.0, n) - 1e-3
    proximal = behavior + spread * rng.standard_normal(n)
    labels = {"sequences": sequences, "turns": turns, "tokens": range(n)}[by]
    values = rng.standard_normal(n + 1) * (rng.random(n + 1) > 0.2)
    columns = {
        "logprobs": np.minimum(proximal + spread * rng.standard_normal(n), -1e-6),
        "proximal": proximal,
        "behavior": behavior,
        "advantages": [values[i] for i in labels],
        "reference": proximal + rng.standard_normal(n),
        "entropy": rng.random(n),
    }
    tensors = {name: torch.tensor(np.asarray(c), dtype=torch.float64) for name, c in columns.items()}
    for name in ("logprobs", "entropy"):
        tensors[name].requires_grad_()
    return LossInput(sequences=torch.tensor(sequences), turns=torch.tensor(turns), **tensors)


def cut(x: LossInput, keep: torch.Tensor) -> LossInput:
    """The tokens at ``keep``, with a leaf of their own; labels are counted anew."""
    parts = {f.name: getattr(x, f.name)[keep] for f in fields(x)}
    for name in ("logprobs", "entropy"):
        parts[name] = parts[name].detach().requires_grad_()
    for name in ("sequences", "turns"):
        parts[name] = torch.unique(parts[name], return_inverse=True)[1]
    return LossInput(**parts)


def extreme(dtype=torch.float32) -> LossInput:
    """Log-ratios of 50 either way, with advantages of both signs."""
    x = batch([[2, 1], [4], [1], [3, 2]], 0.5, seed=1)
    sign = torch.tensor([1.0, -1.0])[torch.arange(len(x.logprobs)) % 2]
    same = torch.tensor([1.0, 1.0, -1.0, -1.0])[x.sequences]  # whole samples too
    logprobs = torch.where(x.sequences < 2, sign, same) * 25 - 26
    far = -26 - (logprobs + 26)
    x = replace(x, logprobs=logprobs, proximal=far, behavior=far, reference=far)
    parts = {f.name: getattr(x, f.name).detach() for f in fields(x)}
    parts = {k: v.to(dtype) if v.is_floating_point() else v for k, v in parts.items()}
    return LossInput(**parts | {k: parts[k].requires_grad_() for k in ("logprobs", "entropy")})
