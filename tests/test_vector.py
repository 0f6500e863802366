"""Vectors give what their environments give alone, in a loop and in threads."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

import rollenv
from rollenv import UsageError
from rollenv.core.errors import EnvTimeout
from rollenv.core.vector import AsyncVectorEnv, AutoresetMode, make_vec

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
    one, other = make_vec([IDS[0]] * 2, seed=5, async_mode=is_async).reset()[1]
    assert one["suffix"] != other["suffix"]


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
    kwargs = [{"max_turns": 3}, {}]
    vector = make_vec([IDS[0]] * 2, vec_kwargs=kwargs, max_turns=9)
    assert [env.max_turns for env in vector.envs] == [3, 9]
    assert kwargs == [{"max_turns": 3}, {}]
    folder = {"env1_kwargs": {"options": {"index": 0}}}
    with pytest.raises(UsageError, match="file"):
        vector.reset(seed=0, **folder)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda v: v.reset(seed=[1]), "1 seeds"),
        (lambda v: v.reset(env9_kwargs={}), "env9_kwargs"),
        (lambda v: v.step(["x"]), "1 actions"),
        (lambda v: v.step({5: "x"}), "5"),
        (lambda _: make_vec(IDS, vec_kwargs=[{}]), "1 vec_kwargs"),
        (lambda _: make_vec(IDS, autoreset_mode="Never"), "SameStep"),
        (lambda _: make_vec(IDS, step_timeout=1), "async_mode"),
        (lambda _: make_vec(IDS[0], 2), rf"make_vec\(\['{IDS[0]}'\] \* 2\)"),
        (lambda _: make_vec(IDS[0], num_envs=2), rf"make_vec\(\['{IDS[0]}'\] \* 2\)"),
        (lambda _: make_vec(IDS, [3]), "list of functions"),
        (lambda _: make_vec([IDS[0], 3]), "an id is a text"),
        *(
            (lambda _, seconds=seconds: make_vec(IDS, async_mode=True, step_timeout=seconds), "above 0")
            for seconds in (0, -1, float("nan"), float("inf"), True, "1")
        ),
        (lambda _: AsyncVectorEnv(IDS, [], max_workers=2, step_timeout=1), "max_workers"),
    ],
)
def test_bad_calls_are_explained(call, says):
    with pytest.raises(UsageError, match=says):
        call(make_vec(IDS))


def test_close_can_be_repeated(is_async):
    vector = make_vec(IDS, async_mode=is_async)
    vector.close()
    vector.close()


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


class Sleeps(rollenv.Env):
    """Answers, ends, or sleeps until it is woken."""

    def __init__(self, i: int, made: list, asleep: set):
        self.i, self.asleep, self.woken, self.closed = i, asleep, threading.Event(), threading.Event()
        made.append(self)

    def _reset(self, options):
        if self.i in self.asleep:
            self.woken.wait()
        return "begin", {}

    def _step(self, action):
        if action == "sleep":
            self.woken.wait()
        return action, 1.0, action == "end", False, {}

    def close(self):
        self.closed.set()


def sleepy(mode="SameStep", seconds=0.4):
    made, asleep = [], set()
    builds = [lambda i=i: Sleeps(i, made, asleep) for i in range(3)]
    return AsyncVectorEnv(["a", "b", "c"], builds, mode, step_timeout=seconds), made, asleep


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_step_that_takes_too_long_costs_its_own_episode(mode, caplog):
    vector, made, _ = sleepy(mode)
    vector.reset(seed=0)
    observations, rewards, terminated, truncated, infos = vector.step(["x", "sleep", "end"])
    assert observations == ["x", "", "begin" if mode is AutoresetMode.SAME_STEP else "end"]
    assert (list(rewards), list(terminated), list(truncated)) == ([1, 0, 1], [False, False, True], [False, True, False])
    assert infos[1] == {"timed_out": 0.4}
    assert "1 (b)" in caplog.text
    if mode is AutoresetMode.DISABLED:
        with pytest.raises(rollenv.EpisodeOver):
            vector.step({1: "x"})
        vector.reset()
    else:
        assert [part[0] for part in vector.step({1: "ignored"})[:4]] == ["begin", 0.0, False, False]
    assert vector.step({1: "y"})[0] == ["y"]
    assert len(made) == 4
    made[1].woken.set()
    assert made[1].closed.wait(30)  # once it wakes up, and nobody waits for it
    assert vector.step({1: "z"})[0] == ["z"]
    vector.close()
    assert all(env.closed.is_set() for env in made)


def test_a_reset_that_takes_too_long_is_an_error_and_the_next_one_makes_another():
    vector, made, asleep = sleepy()
    asleep |= {0, 2}
    with pytest.raises(EnvTimeout, match=r"0 \(a\), 2 \(c\).*step_timeout"):
        vector.reset(seed=0)
    asleep.clear()
    assert vector.reset(seed=0)[0] == ["begin"] * 3
    assert [env.i for env in made] == [0, 1, 2, 0, 2] or [env.i for env in made] == [0, 1, 2, 2, 0]
    for env in made:
        env.woken.set()


@pytest.mark.integration
def test_an_environment_that_hangs_keeps_no_interpreter_from_its_end():
    program = (
        "import threading, rollenv\nfrom rollenv.core.vector import AsyncVectorEnv\n"
        "class Hangs(rollenv.Env):\n    def _reset(self, options): return '', {}\n"
        "    def _step(self, action): threading.Event().wait()\n"
        "    def close(self): threading.Event().wait()\n"
        "vector = AsyncVectorEnv(['a'], [Hangs], step_timeout=0.1)\nvector.reset()\n"
        "print(vector.step(['x'])[3])\nvector.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.returncode) == ("[ True]", 0)
