"""Advantages of trajectories, turns and tokens, and reward shaping: pure functions of numbers.

Shapes: ``N`` trajectories, ``T`` turns of all trajectories, concatenated, ``n`` tokens sampled by the policy,
concatenated. Batches are ragged, without padding or masks. ``groups`` holds one integer label for each trajectory.

Unless a function says otherwise, standard deviations are unbiased (n - 1), 1e-6 is added to them before a division, and
where the compared values are equal (a deviation of at most 1e-6, or one value) the result is 0. A number that is not
finite, or beyond 1e100, raises ``UsageError`` naming the trajectory: one such reward would corrupt its group or batch.
"""

from rollenv.trainers.advantages.batch import AdvantageInput
from rollenv.trainers.advantages.entropy import empg
from rollenv.trainers.advantages.gae import Gae, bi_level_gae, token_gae, turn_gae
from rollenv.trainers.advantages.groups import (
    group_normalize,
    grpo,
    maxrl,
    reinforce,
    reinforce_pp,
    rloo,
    role_baseline,
)
from rollenv.trainers.advantages.history import hgpo
from rollenv.trainers.advantages.moments import EPSILON, Floats, Ints, RunningMoments
from rollenv.trainers.advantages.shaping import (
    Scope,
    difficulty_weights,
    length_weights,
    normalize,
    overlong_penalty,
    whiten,
)
from rollenv.trainers.advantages.turns import Statistics, discounted_returns, gigpo, mt_grpo, rebn, step_reinforce

__all__ = [
    "EPSILON",
    "AdvantageInput",
    "Floats",
    "Gae",
    "Ints",
    "RunningMoments",
    "Scope",
    "Statistics",
    "bi_level_gae",
    "difficulty_weights",
    "discounted_returns",
    "empg",
    "gigpo",
    "group_normalize",
    "grpo",
    "hgpo",
    "length_weights",
    "maxrl",
    "mt_grpo",
    "normalize",
    "overlong_penalty",
    "rebn",
    "reinforce",
    "reinforce_pp",
    "rloo",
    "role_baseline",
    "step_reinforce",
    "token_gae",
    "turn_gae",
    "whiten",
]
