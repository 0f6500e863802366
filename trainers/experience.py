"""Experience: samples of a batch of trajectories, and numbers for each of their response tokens.

There is no padding anywhere. Columns are flat arrays over the response tokens of all samples, one after another: a
turn's or a trajectory's number is spread over its tokens, a sample's tokens are found by where they begin.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rollenv.core import UsageError
from rollenv.rollout.records.samples import Sample, step_samples, trajectory_samples
from rollenv.rollout.types import Group, Trajectory, Turn
from rollenv.trainers.prefixes import depth_first, path_to, tree

#: A token that a sample has from others costs so many times less than one of its own: keys and values are copied.
_COPIED = 16

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(slots=True)
class Experience:
    """A batch of ``N`` trajectories with ``T`` turns as ``M`` samples with ``R`` response tokens."""

    trajectories: list[Trajectory]
    groups: Ints
    """(N,) which task each trajectory belongs to."""
    samples: list[Sample]
    starts: Ints
    """(M + 1,) where the response tokens of each sample begin in the columns."""
    sequence: Ints
    """(R,) the sample of each token."""
    turn: Ints
    """(R,) the turn of each token, counted over all trajectories."""
    inputs: list[Ints]
    """(M,) what the model has to read of each sample: all before its last response token."""
    keys: list[bytes]
    """(M,) equal for samples with equal inputs."""
    routed: Ints | None = None
    """(U, 1 + layers k) the pairs of a token and its experts where these are replayed: ``inputs`` are numbers of pairs
    then, so that samples share what they read by the same experts only."""
    columns: dict[str, Floats] = field(default_factory=dict)
    """(R,) each: "behavior", "advantages", "weights", and what else an algorithm needs."""

    def __len__(self) -> int:
        """The number of response tokens."""
        return len(self.sequence)

    @property
    def turns(self) -> list[Turn]:
        """(T,) of all trajectories, one after another."""
        return [turn for t in self.trajectories for turn in t.turns]

    @property
    def lengths(self) -> Ints:
        """(N,) the number of turns of each trajectory."""
        return np.array([len(t.turns) for t in self.trajectories], dtype=np.int64)

    @property
    def trajectory(self) -> Ints:
        """(R,) the trajectory of each token."""
        return self._of_samples([s.trajectory for s in self.samples])

    @property
    def prompt(self) -> Ints:
        """(R,) the group of each token."""
        return self._of_samples([s.group for s in self.samples])

    @property
    def first_of_turn(self) -> NDArray[np.bool_]:
        """(R,) whether a token is the first of its turn."""
        first: NDArray[np.bool_] = np.diff(self.turn, prepend=-1) != 0
        return first

    @property
    def turn_number(self) -> Ints:
        """(R,) the turn of each token, counted in its trajectory."""
        begins = np.cumsum(self.lengths) - self.lengths
        return self.turn - begins[self.trajectory]

    @property
    def versions(self) -> Ints:
        """(R,) the version of the weights that drew each token."""
        parts = [s.versions[s.mask] for s in self.samples]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    @property
    def position(self) -> Ints:
        """(R,) the position of each token in its response."""
        firsts = np.flatnonzero(self.first_of_turn)
        return np.arange(len(self)) - np.repeat(firsts, np.diff(firsts, append=len(self)))

    @property
    def drift(self) -> int:
        """The number of turns that are not in their sample with the prompt and response that were played. Must be 0."""
        answered = sum(bool(turn.response_ids) for t in self.trajectories for turn in t.turns)
        return answered - sum(map(self._held, self.samples))

    def _held(self, sample: Sample) -> int:
        """Return the number of turns whose tokens a sample has as they were played."""
        turns, held = self.trajectories[sample.trajectory].turns, 0
        ids, marks = sample.ids.tolist(), sample.turns.tolist()
        for index in dict.fromkeys(marks).keys() - {-1}:
            begin, length = len(turns[index].prompt_ids), len(turns[index].response_ids)
            played = turns[index].prompt_ids + turns[index].response_ids
            found = marks[begin : begin + length].count(index)
            held += tuple(ids[: len(played)]) == played and found == length == marks.count(index)
        return held

    @property
    def observed(self) -> int:
        """The number of tokens between responses."""
        return sum(len(self.between(i)) for i in range(len(self.samples)))

    def rows(self, numbers: Sequence[int]) -> Ints:
        """The positions of some samples' response tokens in the columns."""
        return np.concatenate([np.arange(self.starts[i], self.starts[i + 1]) for i in numbers])

    def between(self, number: int) -> Ints:
        """The positions in a sample's input of the tokens between its responses."""
        mask = self.samples[number].mask[: len(self.inputs[number])]
        positions: Ints = np.flatnonzero(~mask)
        return positions[positions > mask.argmax()] if mask.any() else positions[:0]

    def by_trajectory(self, values: Floats) -> list[list[float]]:
        """A number for each response token, as one list for each trajectory."""
        counts = np.bincount(self.trajectory, minlength=len(self.trajectories))
        return [part.tolist() for part in np.split(values, np.cumsum(counts)[:-1])]

    def of_turns(self, values: Floats) -> Floats:
        """Spread a number for each turn over the turn's response tokens.

        Returns:
            (R,)
        """
        return values[self.turn]

    def _of_samples(self, values: Sequence[int]) -> Ints:
        return np.array(values, dtype=np.int64)[self.sequence]


def experience(groups: Sequence[Group], samples: Literal["turn", "trajectory"], *, replay: bool = False) -> Experience:
    """Build the experience of the trajectories that did not fail.

    Args:
        samples: one sample of every turn, or of all turns of a trajectory as far as each prompt continues the last.
        replay: keep the experts that tokens went to.

    Raises:
        UsageError: for turns without tokens or without a prompt, or whose log-probabilities do not match their tokens;
            or without experts to replay.
    """
    members = [(label, t) for label, group in enumerate(groups) for t in group if t.complete]
    make = step_samples if samples == "turn" else trajectory_samples
    made = [s for number, (label, t) in enumerate(members) for s in make(t, group=label, number=number)]
    made = [s for s in made if s.mask.any()]
    if any(s.mask[0] for s in made):
        raise UsageError(
            "a turn has no prompt; its first response token cannot be trained on, since nothing precedes it"
        )
    sizes = [int(s.mask.sum()) for s in made]
    lengths = [len(t.turns) for _, t in members]
    inputs = [s.ids[: len(s) - 1 - int(s.mask[::-1].argmax())] for s in made]
    routed, inputs = _with_experts(made, inputs) if replay and made else (None, inputs)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    turn = [s.turns[s.mask] + offsets[s.trajectory] for s in made]
    return Experience(
        [t for _, t in members],
        np.array([label for label, _ in members], dtype=np.int64),
        made,
        np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64),
        np.repeat(np.arange(len(made)), sizes),
        np.concatenate(turn).astype(np.int64) if turn else np.zeros(0, dtype=np.int64),
        inputs,
        [tokens.tobytes() for tokens in inputs],
        routed,
        {"behavior": np.concatenate([s.logprobs[s.mask] for s in made]) if made else np.zeros(0)},
    )


def _with_experts(samples: Sequence[Sample], inputs: Sequence[Ints]) -> tuple[Ints, list[Ints]]:
    """Every different pair of a token and its experts, and inputs as numbers of pairs."""
    pairs = []
    for sample, tokens in zip(samples, inputs, strict=True):
        if sample.routes is None:
            raise UsageError("a turn does not report the experts of its tokens, which loss.routing=replay needs")
        pairs.append(np.column_stack([tokens, sample.routes[: len(tokens)]]).astype(np.int64))
    distinct, numbers = np.unique(np.concatenate(pairs), axis=0, return_inverse=True)
    return distinct, np.split(numbers.astype(np.int64), np.cumsum([len(p) for p in pairs])[:-1])


def minibatches(
    data: Experience, sequences: int, rng: random.Random, *, useful: NDArray[np.bool_] | None = None
) -> list[list[int]]:
    """Distribute all samples at random over optimizer steps with about equal numbers of response tokens.

    There is one step for about every ``sequences`` different model inputs. Samples with the same input stay together,
    since they cost one forward pass, unless they are more than a step.

    Args:
        sequences: different inputs to a step.
        rng: decides which samples share a step.
        useful: (M,) the samples that change something; the others are left out, but count as tokens.

    Returns:
        The numbers of the samples of each step; steps without useful samples are empty.
    """
    sizes = np.diff(data.starts).tolist()
    by_input: dict[bytes, list[int]] = {}
    for number, key in enumerate(data.keys):
        by_input.setdefault(key, []).append(number)
    count = max(1, round(len(by_input) / sequences))
    most = sum(sizes) / count
    pieces = [piece for together in by_input.values() for piece in _pieces(together, sizes, most)]
    rng.shuffle(pieces)
    pieces.sort(key=lambda piece: sum(sizes[i] for i in piece), reverse=True)
    steps: list[list[int]] = [[] for _ in range(count)]
    lightest = [(0, i) for i in range(count)]
    for piece in pieces:
        load, i = heapq.heappop(lightest)
        heapq.heappush(lightest, (load + sum(sizes[k] for k in piece), i))
        steps[i] += [k for k in piece if useful is None or useful[k]]
    rng.shuffle(steps)
    return steps


def _pieces(numbers: list[int], sizes: Sequence[int], most: float) -> Iterator[list[int]]:
    """Samples in runs of at most so many tokens, or of one sample."""
    start = load = 0
    for i, number in enumerate(numbers):
        if i > start and load + sizes[number] > most:
            yield numbers[start:i]
            start, load = i, 0
        load += sizes[number]
    yield numbers[start:]


def micro_batches(data: Experience, step: Sequence[int], max_tokens: int, *, share: bool = False) -> list[list[int]]:
    """Cut an optimizer step into pieces of at most so many tokens; samples with equal inputs cost one.

    A sample that is longer than that is a piece of its own. Where beginnings are shared a piece may have a few tokens
    more, as its own tree may leave shorter ones apart (:data:`~rollenv.trainers.prefixes.LEAST_SHARED`).

    Args:
        max_tokens: that go through the model at once.
        share: whether what inputs have in common at their beginning costs one, too.

    Returns:
        The numbers of the samples of each piece. Those of a piece have similar lengths.
    """
    segments, leaf_of = tree((data.keys[i] for i in step), share=share)
    by_leaf: dict[int, list[int]] = {}
    for number in step:
        by_leaf.setdefault(leaf_of[data.keys[number]], []).append(number)
    pieces: list[list[int]] = []
    load, held = max_tokens, set[int]()  # of the last piece: its tokens, and its segments
    for leaf in depth_first(segments, by_leaf):
        path = path_to(segments, leaf)
        size = sum(segments[i].end - segments[i].before for i in path if i not in held)
        size += (segments[leaf].end - size) // _COPIED
        if load + size > max_tokens and (load or not pieces):
            pieces.append([])
            load, held, size = 0, set(), segments[leaf].end
        pieces[-1] += by_leaf[leaf]
        load += size
        held.update(path)
    return pieces


def shares(data: Experience, step: Sequence[int], count: int, *, share: bool = False) -> list[list[int]]:
    """Distribute samples over ranks, so that each reads about as many tokens.

    Samples that share a prefix stay together where that leaves the shares even.

    Args:
        share: compute common prefixes once; see :func:`micro_batches`.

    Returns:
        The numbers of the samples of each rank, in the order of ``step``; none for a rank without work.
    """
    if count == 1:
        return [list(step)]
    read = {data.keys[i]: len(data.inputs[i]) for i in step}
    parts = micro_batches(data, step, max(1, sum(read.values()) // (4 * count)), share=share)
    costs = [sum({data.keys[i]: read[data.keys[i]] for i in part}.values()) for part in parts]
    owner: dict[int, int] = {}
    lightest = [(0, rank) for rank in range(count)]
    for number in sorted(range(len(parts)), key=lambda number: -costs[number]):
        load, rank = heapq.heappop(lightest)
        heapq.heappush(lightest, (load + costs[number], rank))
        owner |= dict.fromkeys(parts[number], rank)
    return [[i for i in step if owner[i] == rank] for rank in range(count)]


def with_successful_sibling(data: Experience, context: int) -> tuple[Experience, list[int]]:
    """Put the tokens of a successful member's episode before each sample of the others (SDPO, arXiv 2601.20802).

    The tokens are those that were read and drawn, all samples of the episode one after another. Each member reads the
    next successful one of its group, in their order; a sample is left as it is where there is no other, or where both
    together are longer than the context.

    Args:
        context: the most tokens that the model reads.

    Returns:
        The batch with other inputs and no columns, and the numbers of the samples that got a sibling.
    """
    shown = replace(data, samples=list(data.samples), inputs=list(data.inputs), keys=list(data.keys), columns={})
    of_trajectory: dict[int, list[Ints]] = {}
    for sample in data.samples:
        of_trajectory.setdefault(sample.trajectory, []).append(sample.ids)
    taught = []
    for i, sample in enumerate(data.samples):
        mine = sample.trajectory
        members = np.flatnonzero(data.groups == data.groups[mine]).tolist()
        others = [*(m for m in members if m > mine), *(m for m in members if m < mine)]
        sibling = next((m for m in others if m in of_trajectory and data.trajectories[m].success), None)
        if sibling is None or len(before := np.concatenate(of_trajectory[sibling])) + len(sample) > context:
            continue
        shown.samples[i] = _after(before, sample)
        shown.inputs[i] = np.concatenate([before, data.inputs[i]])
        shown.keys[i] = shown.inputs[i].tobytes()
        taught.append(i)
    return shown, taught


def _after(before: Ints, sample: Sample) -> Sample:
    """A sample with something that was read first."""
    n = len(before)

    def longer(values: np.ndarray, fill: float) -> np.ndarray:
        return np.concatenate([np.full(n, fill, dtype=values.dtype), values])

    return replace(
        sample,
        ids=np.concatenate([before, sample.ids]),
        mask=longer(sample.mask, False),
        logprobs=longer(sample.logprobs, 0),
        versions=longer(sample.versions, -1),
        turns=longer(sample.turns, -1),
        rewards=longer(sample.rewards, 0),
    )
