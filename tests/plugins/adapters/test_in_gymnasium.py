"""rollenv's ids in Gymnasium's registry."""

import pickle
import subprocess
import sys
import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

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
