"""Patterns: vectors."""

from __future__ import annotations

import asyncio
import contextlib
import io
from functools import partial

import gem
from common import classes, pattern, raises, registered
from gem.utils.debug import (
    ppprint,
    run_and_print_episode,
    run_and_print_episode_async,
    run_and_print_episode_with_selective_step,
)
from gem.vector.async_vector_env import AsyncVectorEnv
from gem.vector.sync_vector_env import SyncVectorEnv
from gem.vector.vector_env import AutoresetMode, VectorEnv
from gem.wrappers.episode_tracking_wrapper import EpisodeTrackingWrapper


@pattern
def arguments_of_vectors():
    with contextlib.redirect_stdout(io.StringIO()):
        vec = gem.make_vec("game:GuessTheNumber-v0-easy")
    assert vec.num_envs == 1 and len(vec.envs) == 1 and vec.env_ids == ["game:GuessTheNumber-v0-easy"]
    vec = gem.make_vec([registered(classes()[0])] * 2, vec_kwargs=[{"top": 3}, {"top": 4, "seed": 50}], top=5, seed=20)
    assert [(env.top, env.seed) for env in vec.envs] == [(5, 20), (5, 50)]
    vec = gem.make_vec([registered(classes()[0])], vec_kwargs=[{"top": 3}, {"top": 4}])
    assert vec.envs[0].top == 3


@pattern
def selective_steps():
    vec = gem.make_vec([registered(classes()[0])] * 3, async_mode=True)
    vec.reset(seed=1)
    observations, rewards, *_ = vec.step({2: "a", 0: "b"})
    assert observations == ["turn 1", "turn 1"] and rewards.shape == (2,)
    assert [env.turn for env in vec.envs] == [1, 0, 1]


@pattern
def wrong_numbers_fail_an_assertion():
    vec = gem.make_vec([registered(classes()[0])] * 2)
    raises(AssertionError, vec.reset, seed=[1])
    vec.reset(seed=[1, 2])
    raises(AssertionError, vec.step, ["only one"])


@pattern
def vectors_reset_themselves():
    vec = gem.make_vec([registered(classes()[0])] * 2, wrappers=[EpisodeTrackingWrapper])
    vec.reset(seed=1)
    right = [f"\\boxed{{{2 * env.unwrapped.number}}}" for env in vec.envs]
    observations, rewards, terminated, truncated, infos = vec.step([right[0], "x"])
    assert observations[0].startswith("Double") and observations[1] == "turn 1"
    assert rewards.tolist() == [1.0, 0.0] and terminated.tolist() == [True, False] and not truncated.any()
    assert infos[0]["prev_ep_step_counter"] == 1 and infos[1]["step_counter"] == 1
    assert bool((terminated | truncated).any())


@pattern
def vectors_by_hand():
    cls = classes()[0]
    for kind in (SyncVectorEnv, AsyncVectorEnv):
        vec = kind(env_ids=["a", "b"], env_fns=[cls, partial(cls, top=2)], autoreset_mode=AutoresetMode.NEXT_STEP)
        vec.reset(seed=0)
        assert isinstance(vec, VectorEnv) and vec.autoreset_mode == AutoresetMode.NEXT_STEP and len(vec.env_fns) == 2
        vec.step([f"\\boxed{{{2 * env.number}}}" for env in vec.envs])
        observations, rewards, terminated, *_ = vec.step(["x", "y"])
        assert observations[0].startswith("Double") and not rewards.any() and not terminated.any()


@pattern
def the_debug_helpers():
    with contextlib.redirect_stdout(io.StringIO()) as out:
        run_and_print_episode(classes()[0](), lambda _: "\\boxed{0}")
        vec = gem.make_vec([registered(classes()[0])] * 2)
        run_and_print_episode(vec, lambda observations: ["a"] * len(observations), max_steps=4)
        run_and_print_episode_with_selective_step(vec, lambda _: ["a", "b"], ignore_done=True, max_steps=3)
        ppprint(["a", "b"])
    assert "turn 1" in out.getvalue()


@pattern
def the_debug_helper_for_coroutines():
    class Awaited:
        def __init__(self):
            self.env = classes()[0]()

        async def reset(self):
            return self.env.reset()

        async def step(self, action):
            return self.env.step(action)

    with contextlib.redirect_stdout(io.StringIO()):
        asyncio.run(run_and_print_episode_async(Awaited(), lambda _: "a"))


@pattern
def envs_that_go_on_writing_into_what_they_returned():
    class Log(gem.Env):
        def __init__(self, **_):
            super().__init__()
            self.log, self.info = [], {"n": 0}

        def reset(self, seed=None):
            self.log.clear()
            return self.log, self.info

        def step(self, action):
            self.log.append(action)
            self.info["n"] += 1
            return self.log, 0.0, len(self.log) == 2, False, self.info

    vec = gem.make_vec([registered(Log)])
    vec.reset()
    first, *_, infos = vec.step(["a"])
    vec.step(["b"])
    assert first == [["a"]] and infos[0]["n"] == 1 and "final_obs" not in vec.envs[0].info


@pattern
def errors_come_out_of_threads():
    class Broken(classes()[0]):
        def step(self, action):
            raise KeyError(action)

    vec = gem.make_vec([registered(Broken)] * 2, async_mode=True)
    vec.reset(seed=3)
    assert "a" in raises(KeyError, vec.step, ["a", "a"])


@pattern
def what_a_vector_remembers():
    name = registered(classes()[0])
    env = gem.make_vec([name, name], seed=1)
    env.reset(seed=1)
    assert env._terminations.tolist() == [False, False] and len(env._env_obs) == 2
    env.step({1: "x"})
    assert env._env_obs[1] == "turn 1" and env._rewards.tolist() == [0.0, 0.0]
    assert env._env_infos[1] == {"suffix": "Again."} and not env._autoreset_envs.any() and not env._truncations.any()

    class Bare(gem.Env):
        def __init__(self, seed):
            super().__init__()

        def reset(self, seed=None):
            return None, None

        def step(self, action):
            return None, 1, True, False, None

    env = gem.make_vec([registered(Bare)])
    assert env.reset() == ([None], [None])
    assert env.step(["x"])[0] == [None] and env.step(["x"])[4] == [None]
