"""Random batches of trajectories of unequal length, and the plain statistics that the tests' own formulas use."""

import math
import random
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

REWARDS = [-0.1, 0.0, 0.5, 1.0, 10.0]


@dataclass
class Case:
    rewards: list[list[float]]
    groups: np.ndarray
    states: list[str]
    penalties: list[list[float]]

    @property
    def totals(self):
        return np.array([math.fsum(r) for r in self.rewards])

    @property
    def turns(self):
        """(trajectory, place in it) of every turn."""
        return [(n, t) for n, r in enumerate(self.rewards) for t in range(len(r))]


@st.composite
def cases(draw):
    """Sizes are drawn one by one, so that they shrink; what fills them comes from a seed, which is ten times faster."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=7))
    rng = random.Random(draw(st.integers(0, 10**6)))
    return Case(
        [rng.choices(REWARDS, k=size) for size in sizes],
        np.array(rng.choices(range(3), k=len(sizes))),
        rng.choices(["ab", "abc", "xyz"], k=sum(sizes)),
        [rng.choices([0.0, 0.1], k=size) for size in sizes],
    )


def mean(values):
    return math.fsum(values) / len(values)


def deviation(values, ddof=1):
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / max(len(values) - ddof, 1))


def score(value, members, std, ddof=1):
    """The standard score among the members; 0 among alike ones."""
    spread = deviation(members, ddof)
    if spread <= 1e-6:
        return 0.0
    return (value - mean(members)) / (spread + 1e-6) if std else value - mean(members)
