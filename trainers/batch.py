"""From groups of trajectories to rows for the policy update."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rollenv.agents.generation import Ids
from rollenv.rollout.types import Group
from rollenv.trainers.advantages import Floats, gigpo, grpo
from rollenv.trainers.config import Algorithm


@dataclass(slots=True)
class Row:
    """One turn: a prompt, the response to it, and how much better it was than its group."""

    prompt: Ids
    response: Ids
    logprobs: tuple[float, ...]
    advantage: float


def turn_rows(groups: Sequence[Group], algorithm: Algorithm) -> list[Row]:
    """One row for every turn of every trajectory that did not fail."""
    members = [(label, t) for label, group in enumerate(groups) for t in group if t.status != "failed"]
    labels = np.array([label for label, _ in members], dtype=np.int64)
    rewards = [[turn.reward for turn in t.turns] for _, t in members]
    turns = [turn for _, t in members for turn in t.turns]
    advantages: Floats
    if algorithm.name == "gigpo":
        advantages = gigpo(
            rewards,
            labels,
            [turn.state_key for turn in turns],
            gamma=algorithm.gamma,
            step_weight=algorithm.step_weight,
            std=algorithm.normalize_std,
        )
    else:
        totals = np.array([sum(r) for r in rewards], dtype=np.float64)
        advantages = np.repeat(grpo(totals, labels, std=algorithm.normalize_std), [len(r) for r in rewards])
    return [
        Row(turn.prompt_ids, turn.response_ids, turn.logprobs, advantage)
        for turn, advantage in zip(turns, advantages.tolist(), strict=True)
    ]


def minibatches(rows: Sequence[Row], sequences: int, rng: random.Random) -> Iterator[list[Row]]:
    """Rows in random order, with about ``sequences`` different model inputs to a minibatch.

    Rows with the same input (see :func:`rollenv.agents.scoring.score`) stay together, since they cost one forward pass.
    """
    by_input: dict[Ids, list[Row]] = {}
    for row in rows:
        by_input.setdefault(row.prompt + row.response[:-1], []).append(row)
    together = list(by_input.values())
    rng.shuffle(together)
    for start in range(0, len(together), sequences):
        yield [row for rows_of_input in together[start : start + sequences] for row in rows_of_input]
