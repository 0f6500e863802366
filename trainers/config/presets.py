"""Published algorithms by name, as settings of a recipe."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

from rollenv.core.errors import UsageError, did_you_mean


class Preset(NamedTuple):
    """A published method."""

    formula: str
    """The advantage A and the loss of a token, in terms of the ratio p = pi / pi_old."""
    paper: str
    settings: dict[str, Any]
    """Sections of a recipe."""


_GROUP = "A = (R - mean) / std of the group"
_CLIP = {"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.2}
_GIVEN = {"name": "likelihood", "entropy": 0.0}
_ONE_STEP = {"rollout": {"samples": "trajectory"}, "optimizer": {"epochs": 1}}
_GRPO = {"name": "grpo", "normalize_std": True}

PRESETS: dict[str, Preset] = {
    "grpo": Preset(
        f"{_GROUP}; -min(p A, clip(p, 0.8, 1.2) A) + 0.04 KL, mean of samples",
        "arXiv 2402.03300",
        {
            "algorithm": _GRPO,
            "loss": _CLIP | {"aggregate": "sequence"},
            "kl": {"name": "loss", "coef": 0.04, "kind": "k3"},
        },
    ),
    "dr_grpo": Preset(
        "A = R - mean of the group; -min(p A, clip(p, 0.8, 1.2) A), sum over tokens / max_new_tokens",
        "arXiv 2503.20783",
        {"algorithm": {"name": "grpo", "normalize_std": False}, "loss": _CLIP | {"aggregate": "fixed"}},
    ),
    "dapo": Preset(
        f"{_GROUP}, groups of equal rewards played again; -min(p A, clip(p, 0.8, 1.28) A), mean of tokens",
        "arXiv 2503.14476",
        {"algorithm": _GRPO, "loss": _CLIP | {"clip_high": 0.28, "aggregate": "token"}, "rollout": {"refill": 256}},
    ),
    "gspo": Preset(
        f"{_GROUP}; -min(s A, clip(s, 1 - 3e-4, 1 + 4e-4) A), s = exp(mean log p of the sample)",
        "arXiv 2507.18071",
        {"algorithm": _GRPO, "loss": {"name": "gspo", "clip_low": 3e-4, "clip_high": 4e-4, "aggregate": "sequence"}},
    ),
    "cispo": Preset(
        f"{_GROUP}; -sg(min(p, cap)) A log pi, mean of tokens",
        "arXiv 2506.13585",
        {"algorithm": _GRPO, "loss": {"name": "cispo", "floor": 0.0, "cap": 5.0, "aggregate": "token"}},
    ),
    "topr": Preset(
        "A = 1 for success, else -1; -A log pi, for A < 0 times sg(min(p, 1)), p of the whole sample",
        "arXiv 2503.14286",
        {
            "algorithm": {"name": "reinforce"},
            "rewards": {"success_only": True, "scale": 2.0, "shift": -1.0},
            "loss": {"name": "topr", "positive": 1.0, "negative": 1.0, "ratio": "sequence", "aggregate": "sequence"},
        },
    ),
    "sapo": Preset(
        f"{_GROUP}; -A 4/t sigmoid(t (p - 1)), t = 1 for A > 0, else 1.05",
        "arXiv 2511.20347",
        {"algorithm": _GRPO, "loss": {"name": "sapo", "positive": 1.0, "negative": 1.05, "aggregate": "sequence"}},
    ),
    "gigpo": Preset(
        "A = GRPO's + (step return - mean) / std of equal states in the group; clipped as PPO",
        "arXiv 2505.10978",
        {"algorithm": {"name": "gigpo", "gamma": 0.95, "step_weight": 1.0}, "loss": _CLIP},
    ),
    "hgpo": Preset(
        "A = weighted sum of GiGPO's step advantages over groups with longer equal histories; clipped as PPO",
        "arXiv 2602.22817",
        {"algorithm": {"name": "hgpo", "gamma": 0.95, "history": 2}, "loss": _CLIP},
    ),
    "ppo": Preset(
        "A by GAE(gamma 1, lambda 0.95) of a critic over tokens; -min(p A, clip(p, 0.8, 1.2) A)",
        "arXiv 1707.06347",
        {"algorithm": {"name": "ppo", "credit": "token", "gamma": 1.0, "lam": 0.95}, "loss": _CLIP},
    ),
    "turn_ppo": Preset(
        "A by GAE(gamma 0.99, lambda 0.9) of a critic over turns; clipped as PPO",
        "arXiv 2512.17008",
        {"algorithm": {"name": "ppo", "credit": "turn", "turn_gamma": 0.99, "turn_lam": 0.9}, "loss": _CLIP},
    ),
    "reinforce_pp": Preset(
        "A = (R - 0.01 KL) whitened over the batch; clipped as PPO",
        "arXiv 2501.03262",
        {
            "algorithm": {"name": "reinforce_pp", "baseline": False},
            "loss": _CLIP,
            "kl": {"name": "reward", "coef": 0.01, "kind": "k1"},
        },
    ),
    "rloo": Preset(
        "A = R - mean of the others of the group; -A log pi of the whole answer",
        "arXiv 2402.14740",
        {"algorithm": {"name": "rloo"}, "loss": {"name": "reinforce", "aggregate": "sequence"}},
    ),
    "raft_pp": Preset(
        "A = 1 for success, else 0; clipped as PPO",
        "arXiv 2504.11343",
        {"algorithm": {"name": "reinforce"}, "rewards": {"success_only": True}, "loss": _CLIP},
    ),
    "maxrl": Preset(
        "A = (R - mean) / mean of the group; clipped as PPO",
        "arXiv 2602.02710",
        {"algorithm": {"name": "maxrl"}, "loss": _CLIP},
    ),
    "spiral": Preset(
        "A = R - running mean of the environment and seat; -A log pi, mean of tokens",
        "arXiv 2506.24119",
        {"algorithm": {"name": "role_baseline"}, "loss": {"name": "reinforce", "aggregate": "token"}},
    ),
    "raft": Preset(
        "A = 1 for success, else 0; -A log pi, mean of tokens (rejection sampling)",
        "arXiv 2304.06767",
        {
            "algorithm": {"name": "reinforce"},
            "rewards": {"success_only": True},
            "loss": {"name": "likelihood", "aggregate": "token"},
        },
    ),
    "sft": Preset(
        "-log pi of given answers, mean of tokens; needs batches.kind=stored (rollenv sft)",
        "arXiv 2203.02155",
        {
            "algorithm": {"name": "imitation"},
            "loss": _GIVEN | {"aggregate": "token"},
            "batches": {"kind": "stored"},
            "rollout": {"samples": "trajectory"},
            "optimizer": {"epochs": 1, "minibatch_sequences": 1_000_000},
        },
    ),
    "dpo": Preset(
        "-log sigmoid(b m), m = log pi/pi_ref of the preferred less that of the rejected trajectory",
        "arXiv 2305.18290",
        {"algorithm": {"name": "dpo"}, "loss": _GIVEN, **_ONE_STEP},
    ),
    "ipo": Preset(
        "(m - 1/2b)^2, m as in DPO but means over tokens",
        "arXiv 2310.12036",
        {"algorithm": {"name": "ipo"}, "loss": _GIVEN, **_ONE_STEP},
    ),
    "kto": Preset(
        "1 - sigmoid(b (s - z)) of a good trajectory, s = log pi/pi_ref; z the mean of mismatched ones",
        "arXiv 2402.01306",
        {"algorithm": {"name": "kto"}, "loss": _GIVEN, **_ONE_STEP},
    ),
    "simpo": Preset(
        "-log sigmoid(b m - gamma), m of mean log pi, without a reference",
        "arXiv 2405.14734",
        {"algorithm": {"name": "simpo"}, "loss": _GIVEN, **_ONE_STEP},
    ),
    "dmpo": Preset(
        "DPO whose turn t of T weighs g^t (1 - g^(T-t)) / (1 - g^T)",
        "arXiv 2406.14868",
        {"algorithm": {"name": "dmpo"}, "loss": _GIVEN, **_ONE_STEP},
    ),
    "opd": Preset(
        "A = log teacher - log pi of each drawn token, no rewards; needs distill.path",
        "arXiv 2306.13649",
        {"distill": {"name": "teacher", "alone": True, "coef": 1.0}},
    ),
    "sdpo": Preset(
        "A = log pi' - log pi of each drawn token; pi', a moving mean of pi, has read a success of the group",
        "arXiv 2601.20802",
        {"distill": {"name": "sibling", "alone": True, "coef": 1.0, "decay": 0.95}},
    ),
}


def preset(name: str) -> dict[str, Any]:
    """Return the sections that a method sets; reinforce++ is another spelling of reinforce_pp."""
    name = name.replace("++", "_pp")
    if name not in PRESETS:
        hint = did_you_mean(name, PRESETS, f"take one of {', '.join(PRESETS)}, or set algorithm.name", form=repr)
        raise UsageError(f"algorithm={name!r} is not a preset; {hint}")
    return deepcopy(PRESETS[name].settings)
