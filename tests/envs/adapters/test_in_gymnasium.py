"""rollenv's ids in Gymnasium's registry."""

import pickle
import subprocess
import sys
import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import rollenv
from rollenv.envs.adapters.in_gymnasium import gymnasium_id, register_in_gymnasium


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
    assert env.reset(seed=5) == ours.reset(5)
    action = ours.sample_random_action()
    assert env.step(action) == ours.step(action)
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
        "env = gymnasium.make('rollenv.envs.adapters.in_gymnasium:rollenv/multi.Nim-v0');"
        "print(env.reset(seed=0)[0][:11])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "This is Nim\n"
