"""Vectors give what their environments give alone, in a loop and in threads."""

from __future__ import annotations

import numpy as np
import pytest

import rollenv
from rollenv import UsageError
from rollenv.vector import AutoresetMode, make_vec

IDS = ["game:Sokoban-v0-easy", "roll:FrozenLake-v0", "game:Sokoban-v0-tiny"]


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def is_async(request) -> bool:
    return request.param


def test_a_vector_equals_its_environments_alone(is_async):
    with make_vec(IDS, async_mode=is_async, autoreset_mode="Disabled") as vector:
        alone = [rollenv.make(env_id) for env_id in IDS]
        observations, infos = vector.reset(seed=7)
        expected = [env.reset(7 + i) for i, env in enumerate(alone)]
        assert list(zip(observations, infos, strict=True)) == expected
        actions = [env.sample_random_action() for env in alone]
        observations, rewards, terminated, truncated, infos = vector.step(actions)
        steps = [env.step(a) for env, a in zip(alone, actions, strict=True)]
        assert list(zip(observations, rewards, terminated, truncated, infos, strict=True)) == steps
        assert (rewards.dtype, terminated.dtype, truncated.dtype) == (np.float64, np.bool_, np.bool_)


def test_the_seed_of_make_vec_decides_the_games(is_async):
    first = [make_vec(IDS, seed=s, async_mode=is_async).reset() for s in (5, 5, 6)]
    assert first[0] == first[1]
    assert first[0] != first[2]


def test_only_the_named_environments_are_stepped(is_async):
    with make_vec([IDS[0]] * 4, async_mode=is_async) as vector:
        vector.reset(seed=0)
        observations, rewards, *_ = vector.step({2: "\\boxed{up}", 0: "\\boxed{down}"})
        assert len(observations) == len(rewards) == 2
        assert [env.turn for env in vector.envs] == [1, 0, 1, 0]


def test_same_step_keeps_the_last_observation(is_async):
    with make_vec([IDS[0]] * 2, async_mode=is_async) as vector:
        vector.reset(seed=0)
        observations, _, terminated, _, infos = vector.step(["nonsense", "\\boxed{up}"])
        assert list(terminated) == [True, False]
        assert "not a valid action" in infos[0]["final_obs"]
        assert infos[0]["final_info"]["success"] is False
        assert "Sokoban" in observations[0]
        assert "final_obs" not in infos[1]
        vector.step(["\\boxed{up}", "\\boxed{up}"])


def test_next_step_resets_on_the_step_after(is_async):
    with make_vec([IDS[0]], async_mode=is_async, autoreset_mode=AutoresetMode.NEXT_STEP) as vector:
        vector.reset(seed=0)
        observations, _, terminated, *_ = vector.step(["nonsense"])
        assert terminated[0]
        assert "not a valid action" in observations[0]
        observations, rewards, terminated, *_ = vector.step(["ignored"])
        assert (rewards[0], terminated[0]) == (0.0, False)
        assert "Sokoban" in observations[0]


def test_kwargs_reach_their_environment_and_are_not_changed():
    kwargs = [{"max_turns": 3}, {"max_turns": 4}]
    vector = make_vec([IDS[0]] * 2, vec_kwargs=kwargs, rewards="ragen")
    assert [env.max_turns for env in vector.envs] == [3, 4]
    assert kwargs == [{"max_turns": 3}, {"max_turns": 4}]
    folder = {"env1_kwargs": {"options": {"index": 0}}}
    with pytest.raises(UsageError, match="levels from a file"):
        vector.reset(seed=0, **folder)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda v: v.reset(seed=[1]), "3 environments, but 1 seeds"),
        (lambda v: v.reset(env9_kwargs={}), "env9_kwargs"),
        (lambda v: v.step(["x"]), "3 environments, but 1 actions"),
        (lambda v: v.step({5: "x"}), "no environment 5"),
        (lambda _: make_vec(IDS, vec_kwargs=[{}]), "3 environments, but 1 vec_kwargs"),
        (lambda _: make_vec(IDS, autoreset_mode="Never"), "SameStep"),
    ],
)
def test_bad_calls_are_explained(call, says):
    with pytest.raises(UsageError, match=says):
        call(make_vec(IDS))


def test_close_can_be_repeated(is_async):
    vector = make_vec(IDS, async_mode=is_async)
    vector.close()
    vector.close()


def test_arguments_of_one_environment_win_over_those_of_all():
    vector = make_vec([IDS[0]] * 2, vec_kwargs=[{"max_turns": 3}, {}], max_turns=9)
    assert [env.max_turns for env in vector.envs] == [3, 9]


@pytest.mark.parametrize("seed", [np.int64(3), np.array([3, 4, 5]), [np.int32(3), 4, 5], (3, 4, 5)])
def test_seeds_may_be_numpy_integers(seed):
    plain, other = make_vec(IDS), make_vec(IDS, seed=np.int64(0))
    assert plain.reset(seed=3) == other.reset(seed=seed)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("fails", ["constructor", "wrapper"])
def test_environments_are_closed_if_a_later_one_cannot_be_built(fails, is_async):
    built, closed = [], []

    class Closes(rollenv.Wrapper):
        def close(self):
            closed.append(self)
            super().close()

    def wrap(env):
        if fails == "wrapper" and len(built) == 2:
            env.close = lambda: closed.append("the last")
            raise RuntimeError("no more")
        built.append(Closes(env))
        return built[-1]

    arguments = [{}, {}, {"no_such": 1} if fails == "constructor" else {}]
    with pytest.raises((UsageError, RuntimeError)):
        make_vec([IDS[0]] * 3, wrappers=[wrap], vec_kwargs=arguments, async_mode=is_async)
    assert len(closed) == len(built) + (fails == "wrapper") == (3 if fails == "wrapper" else 2)


def test_one_that_cannot_be_closed_keeps_no_other_open():
    vector, closed = make_vec([IDS[0]] * 3), []

    def refuse():
        raise RuntimeError("no")

    vector.envs[1].close = refuse
    for i in (0, 2):
        vector.envs[i].close = lambda i=i: closed.append(i)
    with pytest.raises(RuntimeError):
        vector.close()
    assert sorted(closed) == [0, 2]


def test_without_a_seed_the_games_are_left_to_chance():
    vectors = [make_vec(IDS[:1], seed=None) for _ in range(3)]
    for vector in vectors:
        vector.reset()
    assert len({vector.envs[0].render() for vector in vectors}) > 1
