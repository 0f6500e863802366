"""Numbers of an update: rounding, values that are not finite, dropped episodes, weights of tokens."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import rank_runs
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import policy_of, start, trained

from rollenv import UsageError
from rollenv.rollout.types import Group, Task, Trajectory, Turn
from rollenv.trainers import checkpoint
from rollenv.trainers.columns import TrainingError
from rollenv.trainers.experience import experience, micro_batches, minibatches
from rollenv.trainers.objective import POLICY_LOSSES
from rollenv.trainers.policies.packed import pack
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.trainer import Trainer


def test_episodes_that_repeat_themselves_change_no_weight_and_are_counted(tmp_path, small, caplog):
    with start(tmp_path / "run", [*small, "rewards.drop_repetition=1"]) as trainer:
        learner = trainer.learner
        before = {name: w.clone() for name, w in learner.state.policy.named_weights()}
        groups = trainer._collect({})

        def update():
            data = learner.compute_advantages(groups, {})
            data.columns["advantages"][:] = 1.0
            return data, learner.update(data)

        for turn in (turn for group in groups for trajectory in group for turn in trajectory.turns):
            turn.logprobs = (0.0,) * len(turn.response_ids)
        data, metrics = update()
        assert metrics["dropped/repetition"] == len(data.trajectories)
        assert (metrics["trained_samples"], metrics["optimizer_steps"]) == (0, 0)
        assert all(torch.equal(w, before[name]) for name, w in learner.state.policy.named_weights())
        assert f"{len(data.trajectories)} by rewards.drop_repetition" in caplog.text
        for turn in data.trajectories[0].turns:
            turn.logprobs = (-0.5,) * len(turn.response_ids)
        data, metrics = update()
        assert metrics["dropped/repetition"] == len(data.trajectories) - 1
        assert metrics["trained_samples"] == sum(s.trajectory == 0 for s in data.samples)


def test_gibberish_beyond_the_vocabulary_is_reported(tmp_path, small):
    with pytest.raises(UsageError, match="drop_gibberish"):
        start(tmp_path / "run", [*small, "rewards.drop_gibberish=100000"])


@pytest.mark.integration
def test_at_small_steps_bfloat16_weights_move_as_float32_ones_do():
    exact, rounded = trained(torch.float32)[0], trained(torch.bfloat16)[0]
    plain = trained(torch.bfloat16, masters=False)[0]
    real = exact.abs() > 1e-6
    assert (plain[real] != 0).float().mean() < 0.2, "what is mended: nearly no weight moved"
    assert (rounded[real] != 0).float().mean() > 0.95
    assert torch.corrcoef(torch.stack([exact[real], rounded[real]]))[0, 1] > 0.9
    assert rounded[real].abs().mean().item() == pytest.approx(exact[real].abs().mean().item(), rel=0.1)


@pytest.mark.slow
def test_the_players_weights_are_the_rounded_trained_ones_and_keep_their_type():
    _, model, policy = trained(torch.bfloat16, lr=1e-2, steps=3)
    assert {weight.dtype for weight in policy.weights.values()} == {torch.float32}
    for name, weight in model.named_parameters():
        assert weight.dtype == torch.bfloat16
        assert torch.equal(weight, policy.weights[name].bfloat16())
    model, policy = policy_of(torch.float32, share=True)
    assert all(policy.weights[name] is weight for name, weight in model.named_parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_that_would_round_small_steps_away_are_not_trained_in_place(dtype):
    with pytest.raises(UsageError, match=r"float32.*model\.sync"):
        policy_of(dtype, share=True)


def poison(monkeypatch, times, value=float("nan")):
    """Have the loss of the steps with these numbers be no number."""
    real, calls = POLICY_LOSSES["ppo_clip"], iter(range(10**6))

    def loss(x, **settings):
        result = real(x, **settings)
        return replace(result, values=result.values * value) if next(calls) in times else result

    monkeypatch.setitem(POLICY_LOSSES, "ppo_clip", loss)


@pytest.mark.integration
def test_a_run_of_which_no_step_is_left_ends_with_what_was_finite(tmp_path, small, monkeypatch):
    poison(monkeypatch, range(3, 10**6))
    overrides = [*small, "checkpoint_every=1", "keep_checkpoints=1", "optimizer.minibatch_sequences=1000"]
    with start(tmp_path / "run", overrides) as run, pytest.raises(TrainingError):
        run.fit()
    (saved,) = checkpoint.checkpoints(run.run.checkpoints)
    agent, *_ = checkpoint.load(saved)
    assert all(torch.isfinite(p).all() for p in agent.model.parameters())


def turn(prompt, response):
    return Turn(prompt, response, (-1.0,) * len(response), 0.0, "", "")


def batch_of(turns):
    """Each turn as a trajectory."""
    task = Task("test:Any-v0", 0)
    return experience([Group(task, [Trajectory(task, [one], "terminated") for one in turns])], "turn")


TURN = st.builds(
    turn,
    st.lists(st.integers(0, 3), min_size=1, max_size=1).map(tuple),
    st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple),
)


@pytest.mark.integration
@given(st.lists(TURN, min_size=1, max_size=60), st.integers(1, 20), st.integers(0, 5), st.data())
def test_every_token_weighs_the_same_in_whichever_minibatch(turns, sequences, seed, data):
    made = batch_of(turns)
    useful = np.array(data.draw(st.lists(st.booleans(), min_size=len(turns), max_size=len(turns))))
    steps = minibatches(made, sequences, random.Random(seed), useful=useful)
    whole = minibatches(made, sequences, random.Random(seed))
    assert sorted(i for step in steps for i in step) == np.flatnonzero(useful).tolist()
    assert [set(step) for step in steps] == [{i for i in step if useful[i]} for step in whole], "the same steps"
    different = len({one.prompt_ids + one.response_ids[:-1] for one in turns})
    assert len(whole) == max(1, round(different / sequences)), "the factor that makes a step's weights add up to 1"
    loads = [sum(len(turns[i].response_ids) for i in step) for step in whole]
    assert max(loads) <= 2 * sum(loads) / len(loads) + max(len(one.response_ids) for one in turns), "no giant"


def test_a_last_minibatch_is_no_smaller_than_the_others():
    made = batch_of([turn((i,), (1, 2)) for i in range(101)])
    assert sorted(len(step) for step in minibatches(made, 25, random.Random(0))) == [25, 25, 25, 26]


@given(st.lists(TURN, min_size=1, max_size=30), st.integers(1, 40))
def test_a_micro_batch_has_no_more_tokens_than_allowed(turns, most):
    made = batch_of(turns)
    pieces = micro_batches(made, range(len(turns)), most)
    assert sorted(i for piece in pieces for i in piece) == list(range(len(turns)))
    for piece in pieces:
        inputs = {turns[i].prompt_ids + turns[i].response_ids[:-1] for i in piece}
        assert len(inputs) == 1 or sum(map(len, inputs)) <= most


@pytest.mark.slow
def test_the_scale_of_the_loss_does_not_follow_the_share_of_informative_groups(tmp_path, small):
    """A batch whose other half teaches nothing moves the weights half as far as one of the first half alone."""
    with start(tmp_path / "run", [*small, "loss.entropy=0", "optimizer.lr=1e-12"]) as run:
        moved = []
        for groups in ([(1.0, 0.0)], [(1.0, 0.0), (0.0, 0.0)]):
            played = [
                Group(
                    Task("test:Any-v0", 0),
                    [
                        Trajectory(Task("test:Any-v0", 0), [replace(turn((1, 2), (k,)), reward=r)], "terminated")
                        for k, r in enumerate(rewards)
                    ],
                )
                for rewards in groups
            ]
            moved.append(run.learner.update(run.learner.compute_advantages(played, {}))["grad_norm"])
    assert moved[0] == pytest.approx(2 * moved[1], rel=1e-4)


@pytest.mark.parametrize("kind", ["model", "head"])
@pytest.mark.parametrize("end", ["false", "true"])
def test_a_cut_episode_is_valued_by_the_critic_in_the_state_that_would_have_followed(tmp_path, kind, end):
    ppo = ["algorithm.name=ppo", f"algorithm.critic.kind={kind}", "algorithm.gamma=0.9"]
    config = rank_runs.settings(f"env.kwargs={{end={end}, turns=2}}", *ppo, f"run_dir={tmp_path / 'run'}")
    with Trainer(config, RunDir.create(config, "sokoban")) as trainer:
        learner, state = trainer.learner, trainer.state
        torch.nn.init.normal_(state.critic.head.weight, generator=torch.Generator().manual_seed(1))  # 0 at first
        groups = trainer._collect({})
        groups[0].trajectories[0].final_ids = ()  # as after the last prompt that fits
        data = learner.compute_advantages(groups, {})
        for number, trajectory in enumerate(data.trajectories):
            last = trajectory.turns[-1]
            expected = last.reward
            if end == "false":
                follows = state.base_agent.encode(f"{trajectory.final_observation}>")
                assert trajectory.final_ids == (follows if number else ())
                cut = replace(last, prompt_ids=trajectory.final_ids or last.prompt_ids + last.response_ids)
                alone = experience([Group(trajectory.task, [replace(trajectory, turns=[cut])])], "turn")
                value = state.critic.values(pack(alone, [0]), learner.hidden_states(pack(alone, [0])))[0]
                assert abs(value.item()) > 1e-3
                expected += 0.9 * value.item()
            at = np.flatnonzero(data.trajectory == number)[-1]
            assert data.columns["returns"][at] == pytest.approx(expected, abs=1e-5)
