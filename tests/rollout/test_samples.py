"""Samples: what a trainer sees is what the sampler saw, once each, and sums are kept."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.core.errors import UsageError
from rollenv.rollout.records.samples import drift, make_samples, pack, step_samples, trajectory_samples
from rollenv.rollout.types import Group, Task, Trajectory, Turn

TASK = Task("game:Test-v0", 0)
ids = st.lists(st.integers(0, 9), max_size=5).map(tuple)


@st.composite
def trajectories(draw, statuses=("terminated",)):
    """Turns that append to the history or begin anew, with responses of any length and mixed versions."""
    turns, history = [], ()
    for _ in range(draw(st.integers(0, 6))):
        prompt = history if draw(st.booleans()) else ()
        prompt += draw(st.lists(st.integers(0, 9), min_size=not prompt, max_size=4).map(tuple))
        response = draw(ids)
        n = len(response)
        numbers = st.lists(st.integers(0, 5), min_size=n, max_size=n).map(tuple)
        logprobs = draw(st.lists(st.floats(-9, 0), min_size=n, max_size=n).map(tuple))
        versions = draw(st.just(()) | numbers)
        reward = draw(st.floats(-2, 2))
        turns.append(Turn(prompt, response, logprobs, reward, "text", "seen", policy_version=7, versions=versions))
        history = prompt + response
    return Trajectory(TASK, turns, status=draw(st.sampled_from(statuses)))


@pytest.mark.integration
@pytest.mark.parametrize("make", [trajectory_samples, step_samples])
@given(trajectory=trajectories())
def test_every_drawn_token_is_there_once_after_what_it_was_drawn_after(make, trajectory):
    samples = make(trajectory, group=3, number=5)
    assert drift(trajectory, samples) == 0
    assert sum(int(s.mask.sum()) for s in samples) == sum(len(t.response_ids) for t in trajectory.turns)
    assert sum(s.rewards.sum() for s in samples) == pytest.approx(trajectory.reward, abs=1e-12)
    for index, turn in enumerate(trajectory.turns):
        holders = [s for s in samples if (s.turns == index).any()]
        assert len(holders) == bool(turn.response_ids)
        for sample in holders:
            at = sample.turns == index
            before = int(np.flatnonzero(at)[0])
            assert tuple(sample.ids[:before]) == turn.prompt_ids
            assert tuple(sample.ids[at]) == turn.response_ids
            assert tuple(sample.logprobs[at]) == turn.logprobs
            assert tuple(sample.versions[at]) == (turn.versions or (7,) * len(turn.response_ids))
    for sample in samples:
        assert (sample.group, sample.trajectory) == (3, 5)
        assert (sample.mask == (sample.turns >= 0)).all()
        assert not sample.logprobs[~sample.mask].any()
        assert (sample.versions[~sample.mask] == -1).all()


@pytest.mark.slow
@given(trajectory=trajectories())
def test_samples_are_as_few_as_can_be(trajectory):
    turns = trajectory.turns
    breaks = 0
    for before, after in itertools.pairwise(turns):
        seen = before.prompt_ids + before.response_ids
        breaks += after.prompt_ids[: len(seen)] != seen
    assert len(trajectory_samples(trajectory)) == (breaks + 1 if turns else 0)
    assert len(step_samples(trajectory)) == len(turns)


@pytest.mark.integration
@given(played=st.lists(trajectories(), max_size=6), slack=st.integers(0, 20), bounded=st.booleans())
def test_packing_keeps_every_sample_whole_and_once(played, slack, bounded):
    samples = make_samples([Group(TASK, [t]) for t in played])
    limit = max(map(len, samples), default=1) + slack if bounded else None
    batches = pack(samples, limit)
    assert sorted(i for b in batches for i in b.samples) == list(range(len(samples)))
    for batch in batches:
        assert limit is None or len(batch) <= limit
        assert batch.cu_seqlens[-1] == len(batch)
        for place, number in enumerate(batch.samples):
            span = slice(batch.cu_seqlens[place], batch.cu_seqlens[place + 1])
            sample = samples[number]
            for name in ("ids", "mask", "logprobs", "versions", "turns", "rewards"):
                assert np.array_equal(getattr(batch, name)[span], getattr(sample, name))
            assert np.array_equal(batch.positions[span], np.arange(len(sample)))
            assert (batch.groups[place], batch.trajectories[place]) == (sample.group, sample.trajectory)
    if limit is not None and len(batches) > 1:
        fullest = sorted(len(b) for b in batches)
        assert fullest[0] + fullest[1] > limit, "no two batches would have fitted into one"


@pytest.mark.slow
@given(members=st.lists(trajectories(("terminated", "truncated", "failed", "cancelled")), max_size=5))
def test_failed_trajectories_are_left_out_but_counted(members):
    kept = {s.trajectory for s in make_samples([Group(TASK, members)])}
    assert kept == {i for i, t in enumerate(members) if t.turns and t.status in ("terminated", "truncated")}
    everything = {s.trajectory for s in make_samples([Group(TASK, members)], incomplete=True)}
    assert everything == {i for i, t in enumerate(members) if t.turns}


def turn(**changes):
    whole = {"prompt_ids": (1,), "response_ids": (2, 3), "logprobs": (-1.0, -2.0), "reward": 1.0}
    return Turn(**{**whole, "text": "", "observation": "", **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logprobs": (-1.0,)}, "2 response tokens but 1 log-prob"),
        ({"logprobs": ()}, "2 response tokens but 0 log-prob"),
        ({"versions": (1,)}, "2 response tokens but 1 versions"),
        ({"prompt_ids": (), "response_ids": (), "logprobs": ()}, "no tokens"),
    ],
)
@pytest.mark.parametrize("mode", ["trajectory", "step"])
def test_turns_that_do_not_add_up_are_refused(changes, message, mode):
    group = Group(TASK, [Trajectory(TASK, [turn(), turn(**changes)], status="terminated")])
    with pytest.raises(UsageError, match=rf"turn 1 .*game:Test-v0.*{message}"):
        make_samples([group], mode)


def test_what_does_not_fit_is_not_cut():
    samples = trajectory_samples(Trajectory(TASK, [turn()]))
    with pytest.raises(UsageError, match="sample 0"):
        pack(samples, 2)
    assert pack([], 2) == pack([]) == []
    with pytest.raises(UsageError, match="'episode'"):
        make_samples([], "episode")  # type: ignore[arg-type]


def test_drift_sees_a_changed_token_a_wrong_mask_and_a_lost_turn():
    played = Trajectory(TASK, [turn(), turn(prompt_ids=(1, 2, 3, 4))])
    for spoil in ("ids", "turns"):
        (sample,) = trajectory_samples(played)
        getattr(sample, spoil)[5] += 1
        assert drift(played, [sample]) == 1
    assert drift(played, step_samples(played)[:1]) == 1
