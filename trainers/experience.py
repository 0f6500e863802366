"""Experience: samples of a batch of trajectories, and numbers for each of their response tokens.

There is no padding. Columns are flat arrays over the response tokens of all samples, concatenated: the number of a
turn or trajectory is repeated for its tokens.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rollenv.core.errors import UsageError
from rollenv.rollout.records.samples import Sample, step_samples, trajectory_samples
from rollenv.rollout.types import Group, Trajectory, Turn
from rollenv.trainers.prefixes import depth_first, path_to, tree

#: Cost of a sample's own token relative to one of a shared prefix, for which only keys and values are copied.
_COPIED = 16

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(slots=True)
class Experience:
    """A batch of ``N`` trajectories with ``T`` turns as ``M`` samples with ``R`` response tokens."""

    trajectories: list[Trajectory]
    groups: Ints
    """(N,) the task of each trajectory."""
    samples: list[Sample]
    starts: Ints
    """(M + 1,) offset of each sample's response tokens in the columns."""
    sequence: Ints
    """(R,) the sample of each token."""
    turn: Ints
    """(R,) the turn of each token, counted over all trajectories."""
    inputs: list[Ints]
    """(M,) the model's input for each sample: all tokens before its last response token."""
    keys: list[bytes]
    """(M,) equal for samples with equal inputs."""
    routed: Ints | None = None
    """(U, 1 + layers k) distinct pairs of a token and its experts, if routing is replayed: ``inputs`` are then indices
    of pairs, so that samples share only tokens with the same experts."""
    columns: dict[str, Floats] = field(default_factory=dict)
    """(R,) each: "behavior", "advantages", "weights", and others that the algorithm needs."""
    dropped: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    """(N,) masks of the trajectories that are not trained on, by reason. They count in their group's baseline."""
    preferences: Any = None
    """The pairs of trajectories, if the policy learns from preferences (:mod:`rollenv.trainers.preferences`)."""

    def __len__(self) -> int:
        """The number of response tokens."""
        return len(self.sequence)

    @property
    def turns(self) -> list[Turn]:
        """(T,) the turns of all trajectories, concatenated."""
        return [turn for t in self.trajectories for turn in t.turns]

    @property
    def kept(self) -> NDArray[np.bool_]:
        """(N,) mask of the trajectories that are not dropped."""
        kept = np.ones(len(self.trajectories), dtype=bool)
        for mask in self.dropped.values():
            kept &= ~mask
        return kept

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
        """(R,) mask of the first token of each turn."""
        first: NDArray[np.bool_] = np.diff(self.turn, prepend=-1) != 0
        return first

    @property
    def turn_number(self) -> Ints:
        """(R,) the turn of each token, counted in its trajectory."""
        begins = np.cumsum(self.lengths) - self.lengths
        return self.turn - begins[self.trajectory]

    @property
    def versions(self) -> Ints:
        """(R,) the version of the weights that sampled each token."""
        parts = [s.versions[s.mask] for s in self.samples]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    @property
    def position(self) -> Ints:
        """(R,) the position of each token in its response."""
        firsts = np.flatnonzero(self.first_of_turn)
        return np.arange(len(self)) - np.repeat(firsts, np.diff(firsts, append=len(self)))

    @property
    def drift(self) -> int:
        """Number of turns whose tokens in the sample are not those of their prompt and response; must be 0."""
        answered = sum(bool(turn.response_ids) for t in self.trajectories for turn in t.turns)
        return answered - sum(map(self._unchanged_turns, self.samples))

    def _unchanged_turns(self, sample: Sample) -> int:
        """Count the turns whose tokens in a sample are those that were played."""
        turns, unchanged = self.trajectories[sample.trajectory].turns, 0
        ids, marks = sample.ids.tolist(), sample.turns.tolist()
        for index in dict.fromkeys(marks).keys() - {-1}:
            begin, length = len(turns[index].prompt_ids), len(turns[index].response_ids)
            played = turns[index].prompt_ids + turns[index].response_ids
            marked = marks[begin : begin + length].count(index)
            unchanged += tuple(ids[: len(played)]) == played and marked == length == marks.count(index)
        return unchanged

    @property
    def observed(self) -> int:
        """Number of tokens between responses."""
        return sum(len(self.between(i)) for i in range(len(self.samples)))

    def rows(self, numbers: Sequence[int]) -> Ints:
        """Return the positions of some samples' response tokens in the columns."""
        return np.concatenate([np.arange(self.starts[i], self.starts[i + 1]) for i in numbers])

    def between(self, number: int) -> Ints:
        """Return the positions of the tokens between responses in a sample's input, without those of pictures."""
        mask = self.samples[number].mask[: len(self.inputs[number])]
        texts = self.samples[number].ids[: len(mask)] >> 62 == 0
        positions: Ints = np.flatnonzero(~mask & texts)
        return positions[positions > mask.argmax()] if mask.any() else positions[:0]

    def of_turns(self, values: Floats) -> Floats:
        """Repeat the number of each turn for its response tokens.

        Returns:
            (R,)
        """
        return values[self.turn]

    def _of_samples(self, values: Sequence[int]) -> Ints:
        return np.array(values, dtype=np.int64)[self.sequence]


def experience(groups: Sequence[Group], samples: Literal["turn", "trajectory"], *, replay: bool = False) -> Experience:
    """Build the experience of the trajectories that did not fail.

    Args:
        samples: one sample for every turn, or for all turns of a trajectory as long as each prompt continues the last.
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


def last_states(data: Experience) -> tuple[Ints, Experience]:
    """Build an experience with one placeholder token in the state where a limit cut each episode.

    The state is the prompt that would have followed; if it did not fit the context, all tokens until then.

    Returns:
        The numbers of those trajectories in the batch; and the experience, with a trajectory for each of them.
    """
    numbers, groups = [], []
    for number, trajectory in enumerate(data.trajectories):
        last = trajectory.turns[-1] if trajectory.turns else None
        state = trajectory.final_ids or ((*last.prompt_ids, *last.response_ids) if last else ())
        if trajectory.status == "truncated" and state:
            placeholder = Turn(state, (0,), (0.0,), 0.0, "", "")
            groups.append(Group(trajectory.task, [Trajectory(trajectory.task, [placeholder], "truncated")]))
            numbers.append(number)
    return np.array(numbers, dtype=np.int64), experience(groups, "turn")


def _with_experts(samples: Sequence[Sample], inputs: Sequence[Ints]) -> tuple[Ints, list[Ints]]:
    """Return the distinct pairs of a token and its experts, and the inputs as indices of pairs."""
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

    There is one step for about every ``sequences`` distinct model inputs. Samples with the same input stay together,
    since they need only one forward pass, unless they exceed a step.

    Returns:
        The indices of the samples of each step; steps without useful samples are empty.
    """
    sizes = np.diff(data.starts).tolist()
    by_input: dict[bytes, list[int]] = {}
    for number, key in enumerate(data.keys):
        by_input.setdefault(key, []).append(number)
    count = max(1, round(len(by_input) / sequences))
    limit = sum(sizes) / count
    pieces = [piece for together in by_input.values() for piece in _pieces(together, sizes, limit)]
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


def _pieces(numbers: list[int], sizes: Sequence[int], limit: float) -> Iterator[list[int]]:
    """Split samples into runs of at most ``limit`` tokens, or of a single sample."""
    start = load = 0
    for i, number in enumerate(numbers):
        if i > start and load + sizes[number] > limit:
            yield numbers[start:i]
            start, load = i, 0
        load += sizes[number]
    yield numbers[start:]


def micro_batches(data: Experience, step: Sequence[int], max_tokens: int, *, share: bool = False) -> list[list[int]]:
    """Split an optimizer step into micro-batches; samples with equal inputs count once.

    A longer sample is a micro-batch of its own. With shared prefixes, a micro-batch may have a few more tokens, as its
    own tree may not share the shorter ones (:data:`~rollenv.trainers.prefixes.LEAST_SHARED`).
    """
    segments, leaf_of = tree((data.keys[i] for i in step), share=share)
    by_leaf: dict[int, list[int]] = {}
    for number in step:
        by_leaf.setdefault(leaf_of[data.keys[number]], []).append(number)
    pieces: list[list[int]] = []
    load, held = max_tokens, set[int]()  # tokens and segments of the last piece
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
    """Distribute samples over ranks with about equal numbers of input tokens.

    Samples that share a prefix stay together if the shares remain even.
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
    """Prepend the tokens of a successful member's episode to each sample of the others (SDPO, arXiv 2601.20802).

    These are the tokens of all samples of that episode, concatenated. Each member gets the next successful one of its
    group, in cyclic order; a sample is unchanged if there is no other, or if both together exceed the context.
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
        shown.samples[i] = _prepend(before, sample)
        shown.inputs[i] = np.concatenate([before, data.inputs[i]])
        shown.keys[i] = shown.inputs[i].tobytes()
        taught.append(i)
    return shown, taught


def _prepend(before: Ints, sample: Sample) -> Sample:
    """Return a sample with tokens before it that are not trained on."""
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
