"""rollenv's ids in Gymnasium's registry."""

import pickle
import random
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence

import rollenv
from rollenv.plugins.adapters.gymnasium import gymnasium_id, register_in_gymnasium


def test_every_id_is_there_once():
    size = len(gymnasium.registry)
    register_in_gymnasium()
    assert len(gymnasium.registry) == size
    names = [gymnasium_id(s.id) for s in rollenv.list_envs()]
    assert len(set(names)) == len(names)
    assert set(names) <= set(gymnasium.registry)


@pytest.mark.parametrize("env_id", ["game:Sokoban-v0-easy", "roll:FrozenLake-v0", "gym:Taxi-v3", "multi:Nim-v0"])
def test_gymnasium_makes_and_checks_them(env_id):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(gymnasium_id(env_id))
        check_env(env.unwrapped)
    ours = rollenv.make(env_id)
    observation, info = ours.reset(5)
    seen, about = env.reset(seed=5)
    assert seen.startswith(observation.rstrip())
    assert about == info
    action = ours.sample_random_action()
    assert env.step(action)[1:] == ours.step(action)[1:]
    assert pickle.loads(pickle.dumps(env.spec)) == env.spec
    env.close()


def test_arguments_and_rendering():
    env = gymnasium.make("rollenv/roll.FrozenLake-v0", size=6, render_mode="ansi")
    env.reset(seed=1)
    assert len(env.render().splitlines()) == 6
    assert env.unwrapped.env.spec.id == "roll:FrozenLake-v0"


def test_naming_the_module_is_enough_and_gymnasium_alone_stays_light():
    script = (
        "import gymnasium, sys; assert 'rollenv' not in sys.modules;"
        "env = gymnasium.make('rollenv.plugins.adapters.gymnasium:rollenv/multi.Nim-v0');"
        "print(env.reset(seed=0)[0][:11])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "This is Nim\n"


@pytest.mark.parametrize("env_id", [s.id for s in rollenv.list_envs("game:") if "-v0" in s.id] + ["roll:Sokoban-v0"])
def test_observations_are_complete_for_those_who_see_nothing_else(env_id):
    ours, env = rollenv.make(env_id), gymnasium.make(gymnasium_id(env_id), disable_env_checker=True)
    (observation, info), (_, expected) = env.reset(seed=3), ours.reset(3)
    action = ours.sample_random_action()
    for _ in range(2):
        assert expected.get("suffix", "").strip() in observation
        assert info == expected
        observation, *_, info = env.step(action)
        *_, terminated, truncated, expected = ours.step(action)
        if terminated or truncated:
            break
    assert gymnasium.make(gymnasium_id(env_id), complete=False).reset(seed=3)[0] == rollenv.make(env_id).reset(3)[0]


@pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnraisableExceptionWarning")  # garbage of other tests
def test_gymnasium_wrappers_have_a_spec():
    for env in (rollenv.make("roll:FrozenLake-v0"), gymnasium.make("rollenv/roll.FrozenLake-v0")):
        wrapped = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.wrappers.TimeLimit(env, 3))
        assert [w.name for w in wrapped.spec.additional_wrappers][-1] == "RecordEpisodeStatistics"
        assert wrapped.spec.max_episode_steps == 3
        assert "FrozenLake-v0" in wrapped.spec.id
    assert rollenv.spec("roll:FrozenLake-v0").additional_wrappers == ()


@pytest.mark.combinations
@pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnraisableExceptionWarning")  # garbage of other tests
@pytest.mark.parametrize("env_id", ["game:Hangman-v0-easy", "game:Sokoban-v0-easy", "gym:Taxi-v3", "rg:countdown"])
def test_gymnasium_checks_what_rollenv_makes(env_id):
    check_env(rollenv.make(env_id))


def test_a_render_mode_that_is_not_there_is_refused():
    assert rollenv.make("multi:Nim-v0", render_mode=None).render_mode is None
    assert rollenv.make("multi:Nim-v0", render_mode="ansi").render_mode == "ansi"
    with pytest.raises(rollenv.UsageError, match="human"):
        rollenv.make("multi:Nim-v0", render_mode="human")


class Parrot(rollenv.Env):
    """Says after one what it hears."""

    def _reset(self, options):
        return "", {}

    def _step(self, action):
        return action, 0.0, False, False, {}


@pytest.mark.slow
def test_shared_memory_holds_texts():
    vec = gymnasium.vector.AsyncVectorEnv([Parrot, Parrot], shared_memory=True)
    try:
        assert vec.reset(seed=1)[0] == ("", "")
        said = ["short", "é\0" * 20_000], ["\ud800", ""]
        seen = [vec.step(words)[0] for words in said]
        assert seen == [tuple(words) for words in said]  # each step its own, long after it
        with pytest.raises(ValueError, match="shared_memory=False"):
            vec.step(["x" * 70_000, ""])
    finally:
        vec.close(terminate=True)


def from_hub(**kwargs):
    return rollenv.make("game:Sokoban-v0-easy", **kwargs)


@pytest.mark.parametrize("entry_point", [Parrot, from_hub])
def test_whatever_is_an_env_can_be_registered(entry_point):
    gymnasium.register("Own-v0", entry_point=entry_point, max_episode_steps=2)
    try:
        env = gymnasium.make("Own-v0")
        env.reset(seed=1)
        assert [env.step("\\boxed{up}")[3] for _ in range(2)] == [False, True]
        assert env.unwrapped.spec.id == "Own-v0"
        assert gymnasium.make(env.spec).spec == env.spec
        vector = gymnasium.make_vec("Own-v0", num_envs=2, vectorization_mode="sync")
        assert len(vector.reset(seed=1)[0]) == 2
    finally:
        del gymnasium.registry["Own-v0"]


def test_rollenvs_own_spec_is_kept_beside_gymnasiums():
    env = rollenv.make("game:Sokoban-v0-easy", images="also")
    env.unwrapped.spec = gymnasium.spec("rollenv/game.Sokoban-v0-easy")
    assert env.spec is env.unwrapped.spec
    assert env.own_spec.kwargs["images"] == "also"
    assert env.spawn().reset(1)[1]["images"] == env.reset(1)[1]["images"]


@pytest.mark.parametrize(
    "env_id", ["tools:Files-v0-hard", "shell:Text-v0-easy", "webshop:mini", "game:Sokoban-v0-easy"]
)
def test_a_pickled_copy_goes_on_with_the_episode(env_id):
    env = gymnasium.make(gymnasium_id(env_id))
    fresh = pickle.loads(pickle.dumps(env))
    assert env.reset()[0] == fresh.reset()[0]
    env.step(env.unwrapped.env.oracle_action())
    twin = pickle.loads(pickle.dumps(env))
    assert env.step("pwd")[:4] == twin.step("pwd")[:4]
    for each in (env, twin, fresh):
        each.close()


def test_options_of_others_are_named_and_ignored():
    env = gymnasium.make("rollenv/rg.countdown")
    with pytest.warns(UserWarning, match="others"):
        known, _ = env.reset(seed=1, options={"others": 1, "index": 3})
    assert known == env.reset(seed=1, options={"index": 3})[0]


def passes_wrappers(name):
    wrappers = gymnasium.wrappers
    space = rollenv.make("multi:Nim-v0").observation_space
    for wrap in (
        wrappers.OrderEnforcing,
        wrappers.PassiveEnvChecker,
        wrappers.RecordEpisodeStatistics,
        wrappers.Autoreset,
        wrappers.NormalizeReward,
        lambda env: wrappers.TimeAwareObservation(wrappers.TimeLimit(env, 3)),
        lambda env: wrappers.ClipReward(env, -1, 1),
        lambda env: wrappers.TransformObservation(env, str.upper, space),
        lambda env: wrappers.TransformAction(env, str.strip, space),
        lambda env: wrappers.DelayObservation(env, 1),
        lambda env: wrappers.FrameStackObservation(env, 2),
        lambda env: wrappers.StickyAction(env, 0.3),
    ):
        env = wrap(gymnasium.make(name, disable_env_checker=True))
        assert env.reset(seed=1, options={})[0] in env.observation_space
        env.step(env.action_space.sample())
        env.close()


def is_deterministic(name):
    one, other = gymnasium.make(name), gymnasium.make(name)
    assert data_equivalence(one.reset(seed=0), other.reset(seed=0))
    for _ in range(50):
        action = one.action_space.sample()
        result = one.step(action)
        assert data_equivalence(result, other.step(action))
        if result[2] or result[3]:
            assert data_equivalence(one.reset(), other.reset())
    one.close()
    other.close()


def renders(name):
    for mode in gymnasium.make(name).metadata["render_modes"]:
        env = gymnasium.make(name, render_mode=mode)
        env.reset()
        env.step(env.action_space.sample())
        assert isinstance(env.render(), np.ndarray if mode == "rgb_array" else str)
        env.close()


def makes_vectors(name):
    for mode in ("sync", "async"):
        vector = gymnasium.make_vec(name, num_envs=2, vectorization_mode=mode)
        assert vector.reset(seed=1)[0] in vector.observation_space
        for _ in range(4):
            observations, rewards, *_ = vector.step(vector.action_space.sample())
            assert observations in vector.observation_space
            assert rewards.shape == (2,)
        vector.close()


def pickles(name):
    env = gymnasium.make(name, disable_env_checker=True)
    copy = pickle.loads(pickle.dumps(env))
    assert data_equivalence(env.reset(), copy.reset())
    action = env.action_space.sample()
    assert data_equivalence(env.step(action), pickle.loads(pickle.dumps(copy)).step(action))
    env.close()


DRAWN = random.Random(61).sample([s.id for s in rollenv.list_envs() if not s.missing], 60)


@pytest.mark.integration
@pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnraisableExceptionWarning")  # garbage of other tests
@pytest.mark.parametrize("env_id", DRAWN)
@pytest.mark.parametrize("suite", [pickles, is_deterministic, renders, makes_vectors, passes_wrappers, check_env])
def test_what_gymnasium_tests_of_its_own_ids(suite, env_id):
    name = gymnasium_id(env_id)
    suite(gymnasium.make(name, disable_env_checker=True).unwrapped if suite is check_env else name)
