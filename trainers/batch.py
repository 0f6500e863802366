"""From groups of trajectories to rows for the policy update."""

from __future__ import annotations

import heapq
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


@dataclass(slots=True)
class Minibatch:
    """Rows of one optimizer step, and what their sums over tokens are divided by."""

    rows: list[Row]
    tokens: float


def minibatches(rows: Sequence[Row], sequences: int, rng: random.Random, *, idle: bool = True) -> list[Minibatch]:
    """All rows, spread at random over minibatches with as many response tokens each as possible.

    There is one minibatch for about every ``sequences`` different model inputs. Rows with the same input (see
    :func:`rollenv.agents.scoring.score`) stay together, since they cost one forward pass, unless they are more than a
    minibatch. Every token weighs the same: sums are divided by the mean number of tokens to a minibatch.

    Args:
        rows: of the whole batch.
        sequences: different inputs to a minibatch.
        rng: decides what comes together.
        idle: keep the rows whose advantage is 0. Without them they still count as tokens.
    """
    by_input: dict[Ids, list[Row]] = {}
    for row in rows:
        by_input.setdefault(row.prompt + row.response[:-1], []).append(row)
    count = max(1, round(len(by_input) / sequences))
    mean = sum(len(row.response) for row in rows) / count
    pieces = [piece for together in by_input.values() for piece in _pieces(together, mean)]
    rng.shuffle(pieces)
    pieces.sort(key=_tokens, reverse=True)
    batches = [Minibatch([], mean) for _ in range(count)]
    lightest = [(0, i) for i in range(count)]
    for piece in pieces:
        load, i = heapq.heappop(lightest)
        heapq.heappush(lightest, (load + _tokens(piece), i))
        batches[i].rows += [row for row in piece if idle or row.advantage]
    rng.shuffle(batches)
    return [batch for batch in batches if batch.rows]


def _tokens(rows: Sequence[Row]) -> int:
    return sum(len(row.response) for row in rows)


def _pieces(rows: list[Row], most: float) -> Iterator[list[Row]]:
    """The rows in runs of at most so many tokens, or of one row."""
    start = size = 0
    for i, row in enumerate(rows):
        if i > start and size + len(row.response) > most:
            yield rows[start:i]
            start, size = i, 0
        size += len(row.response)
    yield rows[start:]
