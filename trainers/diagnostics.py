"""Training diagnostics from flat per-token arrays (NumPy or torch), as floats.

Empty input gives no numbers, and finite input finite ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Exclusive upper bounds of the buckets of positions.
POSITIONS = (16, 64, 256, 1024, 4096, 16384)
#: Exclusive upper bounds of the buckets of turns.
TURNS = (1, 2, 4, 8, 16, 32)
#: Exclusive upper bounds of the buckets of staleness.
AGES = (1, 2, 3, 4, 5, 9)
LEVELS = (0.0, 0.1, 0.5, 0.9, 1.0)


def mismatch(policy: Any, behavior: Any) -> dict[str, float]:
    """Measure the difference between the log-probabilities of sampler and trainer for the same weights.

    With d = log π - log μ and ρ = exp(d): ``mismatch_kl``, the mean of ρ - d - 1, an estimate of KL(μ || π);
    ``logprob_drift`` and ``logprob_drift_max``, mean and largest |d|; ``mismatch_ess``, the effective sample size of ρ.

    Args:
        policy: (n,) log-probabilities in the trainer.
        behavior: (n,) log-probabilities in the sampler.
    """
    d = floats(policy) - floats(behavior)
    if not len(d):
        return {}
    return {
        "mismatch_kl": float((np.exp(np.minimum(d, 60)) - d - 1).mean()),
        "logprob_drift": float(np.abs(d).mean()),
        "logprob_drift_max": float(np.abs(d).max()),
        "mismatch_ess": effective_sample_size(np.exp(d - d.max())),
    }


def effective_sample_size(weights: Any) -> float:
    """(Σ w)² / (n Σ w²) of weights (n,) of at least 0: 1 if all are equal, 1/n if only one is above 0, 0 if none is."""
    w = floats(weights)
    if not len(w) or w.max() == 0:
        return 0.0
    w = w / w.max()
    return float(w.sum() ** 2 / (len(w) * (w**2).sum()))


def quantiles(name: str, values: Any) -> dict[str, float]:
    """Quantiles of ``values`` (n,), as metrics ``name/q00`` to ``name/q100``; none for empty input."""
    v = floats(values)
    if not len(v):
        return {}
    return {f"{name}/q{round(100 * q):02d}": float(at) for q, at in zip(LEVELS, np.quantile(v, LEVELS), strict=True)}


def explained_variance(values: Any, returns: Any) -> float:
    """1 - Var(R - V) / Var(R): 1 for a perfect critic, 0 for a constant one, less for a harmful one.

    0 where the returns do not vary.
    """
    v, r = floats(values), floats(returns)
    if not len(r) or r.var() <= 1e-12 * (r**2).mean():  # equal numbers may vary by rounding
        return 0.0
    return float(1 - (r - v).var() / r.var())


def by_bucket(name: str, values: Any, positions: Any, ends: Sequence[int]) -> dict[str, float]:
    """Means of ``values`` (n,) over buckets of ``positions``, such as entropy by turn or by position.

    Args:
        name: prefix of the metrics ``name/0-15``, ``name/16-63`` ... ``name/16384+``. Empty buckets are left out.
        positions: (n,) integers from 0, such as turns of a trajectory or positions in a response.
        ends: ascending exclusive upper bounds of the buckets, such as :data:`TURNS` or :data:`POSITIONS`.
    """
    v, p = floats(values), floats(positions)
    bucket = np.searchsorted(np.asarray(ends), p, side="right")
    out = {}
    for i in np.unique(bucket):
        first = [0, *ends][i]
        if i == len(ends):
            label = f"{first}+"
        elif ends[i] - 1 == first:
            label = f"{first}"
        else:
            label = f"{first}-{ends[i] - 1}"
        out[f"{name}/{label}"] = float(v[bucket == i].mean())
    return out


def floats(values: Any) -> Floats:
    """Convert to float64 on the host; NumPy has no bfloat16."""
    if isinstance(values, torch.Tensor):
        values = values.detach().double().cpu().numpy()
    return np.asarray(values, dtype=np.float64)
