"""Patterns: environments of authors."""

from __future__ import annotations

import abc
import copy
import dataclasses
import pickle
import random

import gem
import numpy as np
from common import classes, pattern, raises, registered
from gem.core import Env, EnvWrapper
from gem.tools.tool_env_wrapper import ToolEnvWrapper
from gem.wrappers.episode_tracking_wrapper import EpisodeTrackingWrapper


@pattern
def seeds_of_resets():
    env = classes()[0]()
    env.reset(seed=5)
    drawn = env.number, random.random(), np.random.rand()
    env.reset(5)
    assert (env.number, random.random(), np.random.rand()) == drawn
    env = classes()[0](top=10**9)
    env.reset(seed=5)
    first = env.number
    env.reset()
    assert env.number != first


@pattern
def seeds_reach_the_constructors():
    assert gem.make(registered(classes()[0]), seed=7).seed == 7
    vec = gem.make_vec([registered(classes()[0])] * 3, seed=10)
    assert [env.seed for env in vec.envs] == [10, 11, 12]


@pattern
def what_an_author_leaves_out():
    class Half(gem.Env):
        def reset(self, seed=None):
            return "", {}

    raises(TypeError, Half)

    class Least(gem.Env):
        def reset(self, seed=None):
            super().reset(seed)
            return "x", {}

        def step(self, action):
            return "x", 0, True, True, {}

    env = Least()
    raises(NotImplementedError, env.sample_random_action)
    raises(NotImplementedError, env.spawn)
    raises(NotImplementedError, env.spawn, same_state=True)
    assert hasattr(env, "spawn") and env.unwrapped is env


@pattern
def abilities_that_are_missing():
    env = classes()[0]()
    env.reset(1)
    assert not hasattr(env, "get_state") and not hasattr(env, "set_state")
    child = copy.deepcopy(env) if not hasattr(env, "get_state") else None
    assert child.number == env.number and getattr(env, "get_state", None) is None
    Doubling, Loud, _ = classes()
    assert not hasattr(Loud(Doubling()), "get_state")
    assert not hasattr(Loud(Loud(Doubling())), "set_state")


@pattern
def states_of_authors():
    Doubling, Loud, _ = classes()

    class Saved(Doubling):
        def get_state(self):
            return {"number": self.number, "turn": self.turn}

        def set_state(self, state):
            self.number, self.turn = state["number"], state["turn"]

        def spawn(self, same_state=False, **kwargs):
            child = Saved(**{"top": self.top, **kwargs})
            if same_state:
                child.set_state(self.get_state())
            return child

    env = Saved()
    env.reset(3)
    child = env.spawn(same_state=True)
    assert child.step(f"\\boxed{{{2 * env.number}}}")[1] == 1.0
    wrapped = Loud(env)
    assert wrapped.get_state()["number"] == env.number


@pattern
def attributes_of_any_name():
    class Busy(classes()[0]):
        def __init__(self):
            super().__init__()
            self.metadata, self.spec, self.render_mode, self.seed = {"a": 1}, "spec", "human", 3
            self.action_space = self.observation_space = None
            self.np_random, self.np_random_seed = np.random.RandomState(0), 4
            self.action_rng, self.state, self.name, self.metadata2 = random.Random(1), {}, "busy", None
            self.reset_options, self.info, self.history = [], {}, []

    env = Busy()
    env.reset(1)
    assert env.metadata == {"a": 1} and env.spec == "spec" and env.np_random_seed == 4 and env.action_space is None
    assert env.step("x")[1] == 0 and env.action_rng.random() == random.Random(1).random()


@pattern
def methods_of_any_name():
    class Own(classes()[0]):
        def render(self, mode="human"):
            return mode

        def close(self, force=True):
            return force

        def randint(self, low, high):
            return low, high

        def state_key(self, sep="/"):
            return f"{sep}{self.turn}"

    env = Own()
    env.reset(0)
    wrapped = classes()[1](env)
    assert wrapped.render("rgb") == "rgb" and wrapped.close(force=False) is False
    assert wrapped.randint(1, 2) == (1, 2) and wrapped.state_key(sep="+") == "+0"


@pattern
def a_dataclass_as_an_env():
    @dataclasses.dataclass
    class Data(gem.Env):
        goal: int = 3
        log: list = dataclasses.field(default_factory=list)

        def reset(self, seed=None):
            super().reset(seed)
            self.log.clear()
            return "go", {}

        def step(self, action):
            self.log.append(action)
            return "x", 1.0, len(self.log) == self.goal, False, {}

    env = gem.make(registered(Data, goal=1))
    env.reset()
    assert env.step("a")[2]


@pattern
def envs_mixed_with_other_bases():
    class Mixin(abc.ABC):
        @abc.abstractmethod
        def prompt(self): ...

        def reset(self, seed=None):
            super().reset(seed)
            return self.prompt(), {}

    class Mixed(Mixin, gem.Env):
        def prompt(self):
            return "mixed"

        def step(self, action):
            return "", 0.0, True, False, {}

    env = Mixed()
    assert env.reset(seed=4)[0] == "mixed" and isinstance(env, gem.Env)


@pattern
def observations_that_are_no_text():
    class Pictures(gem.Env):
        def __init__(self, **_):
            super().__init__()

        def reset(self, seed=None):
            return {"problem": "?", "images": [1, 2]}, {}

        def step(self, action):
            return ["a"], 1, True, True, {"n": 1}

    vec = gem.make_vec([registered(Pictures)] * 2)
    observations, _ = vec.reset()
    assert observations[1]["images"] == [1, 2]


@pattern
def rewards_may_be_integers_and_flags_numpy():
    class Numbers(classes()[0]):
        def step(self, action):
            return "x", 1, np.bool_(True), np.bool_(False), {}

    vec = gem.make_vec([registered(Numbers)])
    vec.reset()
    _, rewards, terminated, truncated, _ = vec.step(["a"])
    assert rewards.dtype == np.float64 and terminated.dtype == truncated.dtype == np.bool_ and terminated[0]


@pattern
def everything_is_an_env():
    env = gem.make("game:GuessTheNumber-v0-easy")
    wrapped = EpisodeTrackingWrapper(env)
    assert isinstance(env, gem.Env) and isinstance(wrapped, (Env, EnvWrapper)) and isinstance(wrapped, EnvWrapper)
    assert issubclass(EpisodeTrackingWrapper, EnvWrapper) and not isinstance(env, EnvWrapper)
    assert isinstance(gem.make_vec("game:GuessTheNumber-v0-easy"), Env) and not isinstance(3, Env)
    assert not isinstance(env, classes()[0])


@pattern
def envs_can_be_copied_and_pickled():
    env = gem.make("game:GuessTheNumber-v0-hard")
    env.reset(seed=3)
    number = env.game_number
    assert copy.deepcopy(env).game_number == number and pickle.loads(pickle.dumps(env)).game_number == number


@pattern
def helpers_with_the_names_of_our_hooks():
    class Hooked(classes()[0]):
        def _get_state(self, deep):
            return deep

        def _set_state(self):
            return None

        def _reset(self):
            raise SystemError("nobody calls this")

        _step = _checked_options = _twin = _reset

    env = Hooked()
    env.reset(seed=1)
    env.step("x")
    assert not hasattr(env, "get_state") and not hasattr(env, "set_state") and env._get_state(2) == 2


@pattern
def deepcopies_of_wrapped_envs():
    Doubling, Loud, Echo = classes()
    env = EpisodeTrackingWrapper(Loud(ToolEnvWrapper(Doubling(), [Echo()])))
    env.reset(seed=1)
    env.step("<echo>a</echo>")
    twin = copy.deepcopy(env)
    env.step("<echo>b</echo>")
    assert twin.step_counter == 1 and twin.env.env.tools[0].calls == 1 and env.env.env.tools[0].calls == 2
    assert twin.unwrapped is not env.unwrapped and twin.unwrapped.number == env.unwrapped.number
