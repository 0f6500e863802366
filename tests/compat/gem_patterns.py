"""Code as GEM's users write it. Every function works with GEM 0.1.0, and has to work unchanged under the shim.

``python gem_patterns.py`` runs them all with whatever ``gem`` is, and prints what failed as JSON;
``python gem_patterns.py --shim`` runs them with rollenv under GEM's name. They share a process, so each has ids of its own.
"""

# ruff: noqa: PLC0415, F401

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import functools
import io
import itertools
import json
import pickle
import random
import re
import sys
import traceback
from functools import partial

PATTERNS = {}


def pattern(function):
    PATTERNS[function.__name__] = function
    return function


def raises(kind, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind} was raised")


class FakeTokenizer:
    def apply_chat_template(self, conversation, tokenize=True, add_generation_prompt=False, **_):
        text = "".join(f"<{m['role']}>{m['content']}</{m['role']}>" for m in conversation)
        return text + ("<assistant>" if add_generation_prompt else "")


def classes():
    """An environment, a wrapper and a tool in the way of GEM's documentation."""
    import gem
    from gem.core import EnvWrapper
    from gem.tools.base_tool import BaseTool
    from gem.utils.parsing import extract_last_boxed_answer

    class Doubling(gem.Env):
        """Double the number; three turns."""

        def __init__(self, top=9, seed=None, **_):
            super().__init__()
            self.top, self.seed, self.turn = top, seed, 0

        def reset(self, seed=None):
            super().reset(seed)
            self.number, self.turn = random.randint(1, self.top), 0
            return f"Double {self.number}.", {"suffix": "Answer now."}

        def step(self, action):
            self.turn += 1
            right = extract_last_boxed_answer(action) == str(2 * self.number)
            over = right or self.turn == 3
            return f"turn {self.turn}", float(right), over, over and not right, {"suffix": "Again."}

        def sample_random_action(self):
            return f"\\boxed{{{random.randint(1, 2 * self.top)}}}"

    class Loud(EnvWrapper):
        def reset(self, seed=None):
            observation, info = self.env.reset(seed=seed)
            return observation.upper(), info

        def step(self, action):
            observation, *rest = self.env.step(action)
            return observation.upper(), *rest

    class Echo(BaseTool):
        tool_type = "echo"

        def __init__(self, mark="!"):
            super().__init__()
            self.mark, self.name, self.calls = mark, "echo", 0

        def instruction_string(self):
            return "Say <echo>something</echo>."

        def execute_action(self, action):
            match = re.search(r"<echo>(.*?)</echo>", action)
            if not match:
                return False, True, "", action
            self.calls += 1
            return True, "fail" in match[1], match[1] + self.mark, action[: match.end()]

    return Doubling, Loud, Echo


NAMES = itertools.count()


def registered(cls, **kwargs):
    from gem import register

    name = f"custom:P{next(NAMES)}"
    register(name, cls, **kwargs)
    return name


# -- the registry ------------------------------------------------------------------------------------------------------


@pattern
def the_five_public_names():
    import gem

    assert {"Env", "make", "make_vec", "print_envs", "register"} <= set(gem.__all__)


@pattern
def ids_without_a_namespace():
    import gem

    gem.register("Plain", classes()[0])
    gem.register("Plain with spaces/and-more:x:y", classes()[0])
    assert gem.make("Plain").reset(1)[0].startswith("Double")
    assert gem.make("Plain with spaces/and-more:x:y").reset(1)[0].startswith("Double")


@pattern
def the_registry_is_full_from_the_start():
    from gem.envs.registration import ENV_REGISTRY

    assert "game:Sokoban-v0-easy" in ENV_REGISTRY and len(ENV_REGISTRY) > 100
    spec = ENV_REGISTRY["game:GuessTheNumber-v0-hard"]
    assert spec.kwargs["max_turns"] == 7 and spec.id == "game:GuessTheNumber-v0-hard"
    assert sorted(ENV_REGISTRY)[0] and [i for i in ENV_REGISTRY if i.startswith("rg:")]


@pattern
def specs_by_hand():
    import gem
    from gem.envs.registration import ENV_REGISTRY, EnvSpec

    ENV_REGISTRY["hand:made"] = EnvSpec(id="hand:made", entry_point=classes()[0], kwargs={"top": 4})
    assert gem.make("hand:made").top == 4
    del ENV_REGISTRY["hand:made"]
    raises(ValueError, gem.make, "hand:made")
    gem.register("hand:made", classes()[0])
    ENV_REGISTRY.pop("hand:made")


@pattern
def an_id_that_is_taken():
    import gem

    assert "already registered" in raises(ValueError, gem.register, "game:Sokoban-v0-easy", classes()[0])


@pattern
def an_id_that_is_unknown():
    import gem

    assert "not found in registry" in raises(ValueError, gem.make, "game:NoSuchGame-v0")


@pattern
def entry_points_that_cannot_be_loaded():
    import gem

    gem.register("bad:module", "no_such_module_anywhere:Env")
    gem.register("bad:name", "json:NoSuchName")
    raises(ImportError, gem.make, "bad:module")
    raises(ImportError, gem.make, "bad:name")


@pattern
def entry_points_of_every_kind():
    import gem

    cls = classes()[0]
    sys.modules["patterns_module"] = type(sys)("patterns_module")
    sys.modules["patterns_module"].Cls = cls
    gem.register("kind:string", "patterns_module:Cls", top=3)
    gem.register("kind:function", lambda **kwargs: cls(**kwargs))
    gem.register("kind:partial", partial(cls, top=5))
    assert gem.make("kind:string").top == 3 and gem.make("kind:string", top=2).top == 2
    assert gem.make("kind:function", top=6).top == 6 and gem.make("kind:partial").top == 5


@pattern
def what_is_made_need_not_be_an_env():
    import gem

    class Duck:
        def __init__(self, weight=1):
            self.weight = weight

        def reset(self, seed=None):
            return "quack", {}

        def step(self, action):
            return "quack", 1.0, True, False, {}

    env = gem.make(registered(Duck, weight=2))
    assert env.weight == 2 and env.reset()[0] == "quack" and env.env_id.startswith("custom:")


@pattern
def keywords_of_register_are_the_constructors():
    import gem

    class Settings(classes()[0]):
        def __init__(self, options=None, wrappers=None, needs=None, abilities=None, indexed=None, **_):
            super().__init__()
            self.given = (options, wrappers, needs, abilities, indexed)

    env = gem.make(registered(Settings, options=[1], wrappers="x", needs=2, abilities=3, indexed=4))
    assert env.given == ([1], "x", 2, 3, 4)


@pattern
def env_id_and_entry_point_are_attributes():
    import gem

    env = gem.make("game:GuessTheNumber-v0-easy")
    assert env.env_id == "game:GuessTheNumber-v0-easy" and env.entry_point
    env.env_id = "mine"
    env.entry_point = None
    assert env.env_id == "mine" and env.entry_point is None
    own = classes()[0]()
    own.env_id = "theirs"
    assert own.env_id == "theirs"


@pattern
def print_envs_names_every_id():
    import gem

    with contextlib.redirect_stdout(io.StringIO()) as out:
        gem.print_envs()
    assert "game:Sokoban-v0-easy" in out.getvalue() and "max_turns" in out.getvalue()


# -- environments of authors -------------------------------------------------------------------------------------------


@pattern
def a_seed_seeds_the_process():
    import numpy as np

    env = classes()[0]()
    env.reset(seed=5)
    drawn = env.number, random.random(), np.random.rand()
    env.reset(5)
    assert (env.number, random.random(), np.random.rand()) == drawn


@pattern
def a_reset_without_a_seed_goes_on():
    env = classes()[0](top=10**9)
    env.reset(seed=5)
    first = env.number
    env.reset()
    assert env.number != first


@pattern
def the_seed_of_make_reaches_the_constructor():
    import gem

    assert gem.make(registered(classes()[0]), seed=7).seed == 7


@pattern
def the_seeds_of_make_vec_reach_the_constructors():
    import gem

    vec = gem.make_vec([registered(classes()[0])] * 3, seed=10)
    assert [env.seed for env in vec.envs] == [10, 11, 12]


@pattern
def an_env_without_its_methods_is_abstract():
    import gem

    class Half(gem.Env):
        def reset(self, seed=None):
            return "", {}

    raises(TypeError, Half)


@pattern
def what_an_author_leaves_out_is_not_implemented():
    import gem

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
def an_ability_that_is_missing_is_no_attribute():
    env = classes()[0]()
    env.reset(1)
    assert not hasattr(env, "get_state") and not hasattr(env, "set_state")
    child = copy.deepcopy(env) if not hasattr(env, "get_state") else None
    assert child.number == env.number and getattr(env, "get_state", None) is None


@pattern
def a_wrapper_lacks_what_the_env_lacks():
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
    import numpy as np

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
    import gem

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
    import abc
    import gem

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
    import gem

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
    import gem
    import numpy as np

    class Numbers(classes()[0]):
        def step(self, action):
            return "x", 1, np.bool_(True), np.bool_(False), {}

    vec = gem.make_vec([registered(Numbers)])
    vec.reset()
    _, rewards, terminated, truncated, _ = vec.step(["a"])
    assert rewards.dtype == np.float64 and terminated.dtype == truncated.dtype == np.bool_ and terminated[0]


@pattern
def everything_is_an_env():
    import gem
    from gem.core import Env, EnvWrapper
    from gem.wrappers.episode_tracking_wrapper import EpisodeTrackingWrapper

    env = gem.make("game:GuessTheNumber-v0-easy")
    wrapped = EpisodeTrackingWrapper(env)
    assert isinstance(env, gem.Env) and isinstance(wrapped, (Env, EnvWrapper)) and isinstance(wrapped, EnvWrapper)
    assert issubclass(EpisodeTrackingWrapper, EnvWrapper) and not isinstance(env, EnvWrapper)
    assert isinstance(gem.make_vec("game:GuessTheNumber-v0-easy"), Env) and not isinstance(3, Env)
    assert not isinstance(env, classes()[0])


@pattern
def envs_can_be_copied_and_pickled():
    import gem

    env = gem.make("game:GuessTheNumber-v0-hard")
    env.reset(seed=3)
    number = env.game_number
    assert copy.deepcopy(env).game_number == number and pickle.loads(pickle.dumps(env)).game_number == number


# -- playing -----------------------------------------------------------------------------------------------------------


@pattern
def a_random_agent_of_the_readme():
    import gem

    env = gem.make("game:GuessTheNumber-v0-easy")
    env.reset()
    for _ in range(20):
        _, reward, terminated, truncated, info = env.step(env.sample_random_action())
        assert isinstance(reward, (int, float)) and "suffix" in info
        if terminated or truncated:
            env.reset()


@pattern
def a_step_before_any_reset():
    import gem

    for name in ("game:GuessTheNumber-v0-easy", "game:Mastermind-v0-easy", "game:Sokoban-v0-easy"):
        assert len(gem.make(name).step("\\boxed{1}")) == 5


@pattern
def steps_after_the_end():
    import gem

    env = gem.make("game:GuessTheNumber-v0-easy")
    env.reset(seed=0)
    assert env.step("no box")[1:3] == (-0.1, True)
    for _ in range(10):
        assert len(env.step("\\boxed{1}")) == 5


@pattern
def a_limit_ends_both_ways():
    import gem

    env = gem.make("game:GuessTheNumber-v0-hard", max_turns=2)
    env.reset(seed=0)
    wrong = "\\boxed{1}" if env.game_number != 1 else "\\boxed{2}"
    env.step(wrong)
    assert env.step(wrong)[2:4] == (True, True)


@pattern
def arguments_nobody_knows():
    import gem

    env = gem.make("game:GuessTheNumber-v0-hard", seed=3, num_workers=2, eval=True, split="train", verbose=False)
    assert env.reset(seed=1)[0]
    assert gem.make("rg:leg_counting", size=5, seed=2, whatever=1).reset()[0]


@pattern
def subclasses_of_games():
    from gem.envs.game_env.guess_the_number import GuessTheNumberEnv

    class Kind(GuessTheNumberEnv):
        def step(self, action):
            observation, reward, terminated, truncated, info = super().step(action)
            return observation + " Well done.", reward + 1, terminated, truncated, {**info, "kind": True}

        def reset(self, seed=None):
            observation, info = super().reset(seed)
            return "Welcome. " + observation, info

    env = Kind(1, 10, 4)
    assert env.reset(3)[0].startswith("Welcome. ")
    observation, reward, *_, info = env.step(f"\\boxed{{{env.game_number}}}")
    assert reward == 2 and info["kind"] and observation.endswith("Well done.")


# -- wrappers ----------------------------------------------------------------------------------------------------------


@pattern
def a_wrapper_reads_the_envs_attributes():
    Doubling, Loud, _ = classes()
    env = Loud(Loud(Doubling(top=4)))
    assert env.top == 4 and env.reset(seed=1)[0].startswith("DOUBLE") and isinstance(env.unwrapped, Doubling)
    assert env.step("\\boxed{0}")[0] == "TURN 1"


@pattern
def a_wrapper_has_attributes_of_its_own():
    Doubling, Loud, _ = classes()

    class Counting(Loud):
        def __init__(self, env, limit=2):
            self.early = True
            super().__init__(env)
            self.top, self.limit, self.count = 100, limit, 0
            self.np_random, self.metadata, self.spec, self.env_id = 1, 2, 3, "mine"

        def step(self, action):
            self.count += 1
            return super().step(action)

    inner = Doubling(top=4)
    env = Counting(inner, limit=3)
    env.reset()
    env.step("x")
    assert (env.top, inner.top, env.count, env.limit, env.early) == (100, 4, 1, 3, True)
    assert (env.np_random, env.metadata, env.spec, env.env_id) == (1, 2, 3, "mine")


@pattern
def a_wrapper_over_a_game_over_make():
    import gem

    _, Loud, _ = classes()
    env = Loud(gem.make("game:GuessTheNumber-v0-hard"))
    env.reset(seed=2)
    assert env.max_number == 50 and env.env_id == "game:GuessTheNumber-v0-hard" and env.unwrapped is env.env
    with contextlib.suppress(AttributeError):
        env.nothing
        raise SystemError("an attribute that is nowhere was found")


@pattern
def a_wrapper_that_changes_the_action_and_reward():
    Doubling, _, _ = classes()
    from gem.core import EnvWrapper

    class Boxed(EnvWrapper):
        def reset(self, seed=None, **kwargs):
            return self.env.reset(seed, **kwargs)

        def step(self, action):
            observation, reward, terminated, truncated, info = self.env.step(f"\\boxed{{{action}}}")
            return observation, reward - 0.5, terminated, truncated, info

    env = Boxed(Doubling())
    env.reset(seed=1)
    assert env.step(str(2 * env.unwrapped.number))[1] == 0.5


@pattern
def tracking_around_an_env_that_takes_only_a_seed():
    from gem.wrappers.episode_tracking_wrapper import EpisodeTrackingWrapper

    env = EpisodeTrackingWrapper(classes()[0]())
    env.reset(3)
    for _ in range(2):
        *_, info = env.step("\\boxed{0}")
    assert info["step_counter"] == 2 and info["cumulative_rewards"] == 0
    _, info = env.reset(seed=4)
    assert info["prev_ep_step_counter"] == 2 and info["step_counter"] == 0 and "prev_ep_cumulative_rewards" in info


@pattern
def observations_by_position():
    from gem.wrappers.observation_wrapper import ObservationWrapper

    env = ObservationWrapper(classes()[0](), True, False, False, None, None)
    first, _ = env.reset(seed=1)
    second, *_ = env.step("\\boxed{0}")
    assert second.startswith(first.split("\n")[0]) and "\\boxed{0}" in second and second.endswith("Again.")
    assert first.endswith("Answer now.")


@pattern
def observations_without_actions():
    from gem.wrappers.wrapper_factory import WRAPPER_FACTORY

    env = WRAPPER_FACTORY["concat"](classes()[0]())
    env.reset(seed=1)
    assert "\\boxed" not in env.step("\\boxed{0}")[0]


@pattern
def observations_by_default_need_a_tokenizer():
    from gem.wrappers.observation_wrapper import ObservationWrapper

    raises(AssertionError, ObservationWrapper, classes()[0]())
    raises(AssertionError, ObservationWrapper, classes()[0](), include_action=False, tokenizer=FakeTokenizer())
    raises(
        ValueError,
        ObservationWrapper,
        classes()[0](),
        include_chat_template=True,
        apply_chat_template_on_reset=True,
        tokenizer=FakeTokenizer(),
    )


@pattern
def chat_templates_by_default():
    from gem.wrappers.observation_wrapper import ObservationWrapper

    env = ObservationWrapper(classes()[0](), tokenizer=FakeTokenizer())
    env.reset(seed=1)
    text = env.step("mine")[0]
    assert "<assistant>mine</assistant><user>turn 1</user><assistant>" in text and text.startswith("<user>Double")


@pattern
def chat_templates_on_reset():
    from gem.wrappers.wrapper_factory import get_wrapper_fns

    (wrap,) = get_wrapper_fns("concat_chat_on_reset", tokenizer=FakeTokenizer())
    env = wrap(classes()[0]())
    assert env.reset(seed=1)[0].startswith("<user>Double")
    assert "mine\nturn 1\n" in env.step("mine")[0]


@pattern
def a_history_of_some_turns():
    from gem.wrappers.observation_wrapper import ObservationWrapper

    env = ObservationWrapper(classes()[0](), include_chat_template=False, max_history_length=2)
    env.reset(seed=1)
    for word in ("first", "second", "third"):
        text = env.step(word)[0]
    assert "third" in text and "second" in text and "first" not in text


@pattern
def wrappers_by_name():
    from gem.wrappers.wrapper_factory import TOKENIZER_REQUIRED, WRAPPER_FACTORY, get_wrapper_fns

    with contextlib.redirect_stdout(io.StringIO()):
        assert get_wrapper_fns("") == [] and len(get_wrapper_fns("concat,episode_tracking")) == 2
        raises(KeyError, get_wrapper_fns, "no_such_wrapper")
        env = classes()[0]()
        for wrap in get_wrapper_fns("python_tool_no_int_reward,concat_with_action,episode_tracking"):
            env = wrap(env)
    assert sorted(TOKENIZER_REQUIRED) == ["concat_chat", "concat_chat_on_reset"]
    assert set(WRAPPER_FACTORY) >= {"python_tool", "search_tool", "concat_chat", "episode_tracking"}
    assert env.reset(seed=1)[1]["tool_use_counter"] == 0


@pattern
def partials_of_the_factory():
    from gem.wrappers.wrapper_factory import WRAPPER_FACTORY

    tool = classes()[2]()
    wrap = partial(WRAPPER_FACTORY["python_tool"], max_tool_uses=2)
    assert wrap(classes()[0]()).max_tool_uses == 2
    assert partial(WRAPPER_FACTORY["python_tool"], tools=[tool])(classes()[0]()).tool_reward == 0.05
    assert WRAPPER_FACTORY["search_tool"].keywords["max_tool_uses"] == 5
    assert partial(WRAPPER_FACTORY["concat_chat"], tokenizer=FakeTokenizer())(classes()[0]()).reset(1)[0]


@pattern
def a_factory_entry_of_ones_own():
    from gem.wrappers.wrapper_factory import TOKENIZER_REQUIRED, WRAPPER_FACTORY, get_wrapper_fns

    WRAPPER_FACTORY["loud"] = classes()[1]
    TOKENIZER_REQUIRED.append("needy")
    WRAPPER_FACTORY["needy"] = lambda env, tokenizer: (env, tokenizer)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            loud, needy = get_wrapper_fns("loud,needy", tokenizer="t")
        assert loud(classes()[0]()).reset(1)[0].startswith("DOUBLE")
        assert needy("env") == ("env", "t")
    finally:
        TOKENIZER_REQUIRED.remove("needy")
        del WRAPPER_FACTORY["loud"], WRAPPER_FACTORY["needy"]


# -- tools -------------------------------------------------------------------------------------------------------------


@pattern
def a_tool_of_ones_own():
    from gem.tools.tool_env_wrapper import ToolEnvWrapper

    Doubling, _, Echo = classes()
    tool = Echo()
    env = ToolEnvWrapper(Doubling(), [tool], tool_reward=0.1, tool_success_reward=0.2, max_tool_uses=2)
    observation, info = env.reset(seed=1)
    assert observation.endswith("Say <echo>something</echo>.") and info["use_tool"] is False
    observation, reward, terminated, _, info = env.step("well <echo>hi</echo> more")
    assert observation == "hi!" and abs(reward - 0.3) < 1e-9 and not terminated
    assert info["parsed_action"] == "well <echo>hi</echo>" and info["tool_type"] == "echo" and info["use_tool"]
    observation, reward, *_ = env.step("<echo>fail</echo>")
    assert observation.startswith("fail!") and len(observation) > 10 and abs(reward - 0.1) < 1e-9
    assert env.step("<echo>three</echo>")[0] == "turn 1" and tool.calls == 2
    assert env.tool_use_counter == 2 and env.tool_success_counter == 1 and env.tools[0].calls == 2
    assert env.reset()[1]["prev_ep_tool_use_counter"] == 2


@pattern
def tools_by_position():
    from gem.tools.tool_env_wrapper import ToolEnvWrapper

    Doubling, _, Echo = classes()
    env = ToolEnvWrapper(Doubling(), [Echo()], 0.5, 0.25)
    env.reset()
    assert env.step("<echo>a</echo>")[1] == 0.75 and env.max_tool_uses == 10


@pattern
def tools_without_a_limit():
    from gem.tools.tool_env_wrapper import ToolEnvWrapper

    Doubling, _, Echo = classes()
    env = ToolEnvWrapper(env=Doubling(), tools=[Echo("?")], max_tool_uses=None)
    env.reset()
    for _ in range(30):
        assert env.step("<echo>a</echo>")[0] == "a?"


@pattern
def a_tool_that_is_no_basetool():
    from gem.tools.tool_env_wrapper import ToolEnvWrapper

    class Duck:
        tool_type, name = "duck", "duck"

        def instruction_string(self):
            return "quack"

        def execute_action(self, action):
            return "quack" in action, False, "QUACK", action

    env = ToolEnvWrapper(classes()[0](), tools=[Duck()])
    assert env.reset(seed=1)[0].endswith("quack") and env.step("quack")[0] == "QUACK"


@pattern
def a_tool_with_methods_of_its_own():
    from gem.tools.tool_env_wrapper import ToolEnvWrapper

    _, _, Echo = classes()

    class Busy(Echo):
        def check(self, expression):
            return bool(expression)

        def reset(self, hard):
            raise SystemError("nobody calls this")

        def close(self, now):
            raise SystemError("nobody calls this")

        def spawn(self):
            raise SystemError("nobody calls this")

        def execute_action(self, action):
            return super().execute_action(action) if self.check(action) else (False, True, "", action)

    tool = Busy()
    tool.users = ["a"]
    env = ToolEnvWrapper(classes()[0](), tools=[tool, Echo()])
    assert env.reset()[0].count("<echo>") == 2 and env.step("<echo>x</echo>")[0] == "x!"


@pattern
def tools_before_reset_and_after_the_end():
    from gem.tools.tool_env_wrapper import ToolEnvWrapper

    env = ToolEnvWrapper(classes()[0](), tools=[classes()[2]()])
    assert env.step("<echo>early</echo>")[0] == "early!"
    env.reset(seed=1)
    env.step(f"\\boxed{{{2 * env.unwrapped.number}}}")
    assert env.step("<echo>late</echo>")[0] == "late!" and env.step("x", verbose=True)[1] == 0


@pattern
def states_of_envs_with_tools():
    from gem.tools.tool_env_wrapper import ToolEnvWrapper

    Doubling, _, Echo = classes()

    class Saved(Doubling):
        def get_state(self):
            return {"number": self.number}

        def set_state(self, state):
            self.number = state["number"]

    env = ToolEnvWrapper(Saved(), [Echo()])
    env.reset(seed=2)
    env.step("<echo>a</echo>")
    state = env.get_state()
    assert state["tool_use_counter"] == 1 and state["number"] == env.unwrapped.number
    env.step("<echo>b</echo>")
    env.set_state(state)
    assert env.tool_use_counter == 1 and env.tool_success_counter == 1


@pattern
def an_author_subclasses_the_tool_wrapper():
    from gem.tools.tool_env_wrapper import ToolEnvWrapper

    class Strict(ToolEnvWrapper):
        def __init__(self, env, tools, penalty=1.0, **kwargs):
            super().__init__(env, tools, **kwargs)
            self.penalty = penalty

        def step(self, action, verbose=False):
            observation, reward, *rest = super().step(action, verbose)
            return observation, reward - self.penalty, *rest

    env = Strict(classes()[0](), [classes()[2]()], penalty=2.0, tool_reward=0.5)
    env.reset()
    assert env.step("<echo>a</echo>")[1] == -1.5


@pattern
def the_python_tool():
    from gem.tools.base_tool import BaseTool
    from gem.tools.python_code_tool import PythonCodeTool

    tool = PythonCodeTool(timeout=8, sandbox_type="none", keep_error_last_line=False)
    assert isinstance(tool, BaseTool) and tool.tool_type == "python_code" and tool.instruction_string()
    valid, failed, text, parsed = tool.execute_action("so <python>print(6 * 7)</python> and more")
    assert valid and not failed and text.startswith("Code execution result: 42") and parsed.endswith("</python>")
    assert tool.execute_action("no code at all")[:3] == (False, True, "")
    assert tool.execute_action("```python\nraise ValueError('x')\n```")[1]


@pattern
def the_python_tool_supplies_forgotten_imports():
    from gem.tools.python_code_tool import PythonCodeTool

    code = "print(math.floor(2.5), Counter('aab').most_common(1), list(combinations([1, 2], 2)))"
    _, failed, text, _ = PythonCodeTool(timeout=9).execute_action(f"<python>{code}</python>")
    assert not failed and "2 [('a', 2)] [(1, 2)]" in text, text


@pattern
def the_python_tool_shows_the_last_line():
    from gem.tools.python_code_tool import PythonCodeTool

    tool = PythonCodeTool(5, "none", True)
    text = tool.execute_action("<python>\nx = 1\nx / 0\n</python>")[2]
    assert "ZeroDivisionError" in text and "Traceback" not in text


@pattern
def programs_in_the_sandbox():
    from gem.utils.sandbox import BASE_IMPORTS, check_forbidden_imports, run_python

    assert run_python("print(input()[::-1])", "none", stdin="abc\n")[:2] == (True, "cba\n")
    assert run_python("print(math.pi)", "none")[0] and run_python("print(nowhere)", "none")[0] is False
    assert "nowhere" in run_python("print(nowhere)", sandbox_type="none")[2]
    assert check_forbidden_imports("import socket") and not check_forbidden_imports("import math")
    scope = {}
    exec("\n".join(line for line in BASE_IMPORTS.splitlines() if "pandas" not in line), scope)
    assert scope["deque"] and scope["math"] and scope["lru_cache"]


@pattern
def the_search_tool_without_a_server():
    import os

    from gem.tools.search_tool import SearchTool
    from gem.tools.tool_env_wrapper import ToolEnvWrapper

    os.environ.pop("SEARCH_URL", None)
    tool = SearchTool(search_url=None, topk=2, timeout=1)
    env = ToolEnvWrapper(classes()[0](), tools=[tool])
    assert env.reset(seed=1)[0] and env.step("\\boxed{0}")[0] == "turn 1"
    assert SearchTool(1, "http://127.0.0.1:9/retrieve", 3, 1).execute_action("<search>x</search>")[:2] == (True, True)
    assert tool.execute_action("no search")[:2] == (False, True)


@pattern
def an_mcp_tool_that_cannot_connect():
    import logging

    from gem.tools.mcp_tool import MCPTool

    logging.disable(logging.CRITICAL)
    try:
        raises(ValueError, MCPTool, "http://127.0.0.1:9/mcp", max_retries=1, execution_timeout=2.0)
        tool = MCPTool("http://127.0.0.1:9/mcp", validate_on_init=False, max_retries=1, delay_between_retries=0.1)
        assert tool.tool_type == "mcp" and tool.execution_timeout == 30.0
    finally:
        logging.disable(logging.NOTSET)


# -- vectors -----------------------------------------------------------------------------------------------------------


@pattern
def one_id_is_a_vector_of_one():
    import gem

    with contextlib.redirect_stdout(io.StringIO()):
        vec = gem.make_vec("game:GuessTheNumber-v0-easy")
    assert vec.num_envs == 1 and len(vec.envs) == 1 and vec.env_ids == ["game:GuessTheNumber-v0-easy"]


@pattern
def which_arguments_win():
    import gem

    vec = gem.make_vec(
        [registered(classes()[0])] * 2, vec_kwargs=[{"top": 3}, {"top": 4, "seed": 50}], top=5, seed=20
    )
    assert [(env.top, env.seed) for env in vec.envs] == [(5, 20), (5, 50)]


@pattern
def more_settings_than_environments():
    import gem

    vec = gem.make_vec([registered(classes()[0])], vec_kwargs=[{"top": 3}, {"top": 4}])
    assert vec.envs[0].top == 3


@pattern
def selective_steps():
    import gem

    vec = gem.make_vec([registered(classes()[0])] * 3, async_mode=True)
    vec.reset(seed=1)
    observations, rewards, *_ = vec.step({2: "a", 0: "b"})
    assert observations == ["turn 1", "turn 1"] and rewards.shape == (2,)
    assert [env.turn for env in vec.envs] == [1, 0, 1]


@pattern
def wrong_numbers_fail_an_assertion():
    import gem

    vec = gem.make_vec([registered(classes()[0])] * 2)
    raises(AssertionError, vec.reset, seed=[1])
    vec.reset(seed=[1, 2])
    raises(AssertionError, vec.step, ["only one"])


@pattern
def vectors_reset_themselves():
    import gem
    from gem.wrappers.episode_tracking_wrapper import EpisodeTrackingWrapper

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
    from gem.vector.async_vector_env import AsyncVectorEnv
    from gem.vector.sync_vector_env import SyncVectorEnv
    from gem.vector.vector_env import AutoresetMode, VectorEnv

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
    import gem
    from gem.utils.debug import ppprint, run_and_print_episode, run_and_print_episode_with_selective_step

    with contextlib.redirect_stdout(io.StringIO()) as out:
        run_and_print_episode(classes()[0](), lambda _: "\\boxed{0}")
        vec = gem.make_vec([registered(classes()[0])] * 2)
        run_and_print_episode(vec, lambda observations: ["a"] * len(observations), max_steps=4)
        run_and_print_episode_with_selective_step(vec, lambda _: ["a", "b"], ignore_done=True, max_steps=3)
        ppprint(["a", "b"])
    assert "turn 1" in out.getvalue()


@pattern
def the_debug_helper_for_coroutines():
    from gem.utils.debug import run_and_print_episode_async

    class Awaited:
        def __init__(self):
            self.env = classes()[0]()

        async def reset(self):
            return self.env.reset()

        async def step(self, action):
            return self.env.step(action)

    with contextlib.redirect_stdout(io.StringIO()):
        asyncio.run(run_and_print_episode_async(Awaited(), lambda _: "a"))


# -- several agents ----------------------------------------------------------------------------------------------------


def pair_of_agents(mode="sequential"):
    from gem.multiagent import AgentSelector, MultiAgentEnv

    class Pair(MultiAgentEnv):
        def __init__(self, rounds=2):
            super().__init__()
            self.possible_agents, self.rounds, self.turn = ["ann", "bob"], rounds, 0
            self.agent_selector = AgentSelector(self.possible_agents, mode=mode)

        def observe(self, agent):
            return f"{agent} at {self.turn}"

        def _process_actions(self, actions):
            self.turn += 1
            for agent, action in actions.items():
                self.infos[agent] = {"said": action}
                self.terminations[agent] = action == "stop"
            return (
                {agent: self.observe(agent) for agent in self.agents},
                {agent: float(len(action)) for agent, action in actions.items()},
                dict(self.terminations),
                dict(self.truncations),
                dict(self.infos),
            )

        def reset(self, seed=None):
            self.turn = 0
            return super().reset(None if seed is None else None)

    return Pair()


@pattern
def agents_in_turns():
    env = pair_of_agents()
    observations, infos = env.reset(seed=None)
    assert observations == {"ann": "ann at 0", "bob": "bob at 0"} and infos == {"ann": {}, "bob": {}}
    assert env.agent_selector.selected == "ann"
    observations, rewards, terminated, truncated, infos = env.step({"ann": "hi"})
    assert rewards == {"ann": 2.0} and env.agent_selector.selected == "bob" and infos["ann"] == {"said": "hi"}
    assert env.get_state("ann") == ("ann at 1", 2.0, False, False, {"said": "hi"})
    assert list(env.get_active_states()) == ["bob"]
    env.step({"bob": "hello"})
    assert env.agent_selector.selected == "ann" and env.get_state("bob")[1] == 5.0


@pattern
def agents_at_once():
    env = pair_of_agents("parallel")
    env.reset()
    env.step({"ann": "stop", "bob": "go"})
    assert env.agents == ["bob"] and list(env.get_active_states()) == ["bob"]
    raises(ValueError, env.get_state, "ann")


@pattern
def actions_of_the_wrong_agents():
    env = pair_of_agents()
    env.reset()
    raises(ValueError, env.step, ["hi"])
    raises(ValueError, env.step, {"bob": "hi"})
    raises(ValueError, env.step, {})


@pattern
def agents_that_come_go_and_talk():
    env = pair_of_agents("parallel")
    env.reset()
    env.add_agent("cy")
    env.add_agent("cy")
    assert env.agents == ["ann", "bob", "cy"] and env.agent_selector.get_active_agents()[-1] == "cy"
    env.send_message("ann", "cy", "psst")
    env.broadcast_message("bob", "all")
    assert env.shared_memory[0] == {"from": "ann", "to": "cy", "message": "psst"} and len(env.shared_memory) == 3
    raises(ValueError, env.send_message, "ann", "nobody", "x")
    env.remove_agent("cy")
    env.remove_agent("cy")
    assert env.agents == ["ann", "bob"] and "cy" not in env.rewards


@pattern
def whose_turn_it_is():
    from gem.multiagent.multi_agent_env import AgentSelector

    selector = AgentSelector(["a", "b", "c"])
    assert (selector.selected, selector.is_first(), selector.is_last()) == ("a", True, False)
    selector.next()
    selector.next()
    assert selector.selected == "c" and selector.is_last()
    selector.remove_agent("c")
    assert selector.selected == "b"
    selector.add_agent("d")
    selector.add_agent("d")
    selector.next()
    assert selector.selected == "d" and selector.get_active_agents() == ["d"]
    selector.reinit(["x"])
    assert selector.selected == "x" and AgentSelector([]).selected is None
    raises(ValueError, AgentSelector(["a"], mode="odd").get_active_agents)


# -- helpers -----------------------------------------------------------------------------------------------------------


@pattern
def submodules_as_attributes():
    import gem

    assert gem.core.Env is gem.Env and gem.envs.registration.make is gem.make
    assert gem.utils.seeding.set_seed and gem.vector.vector_env.VectorEnv


@pattern
def both_paths_of_a_game():
    from gem.envs.game_env.crosswords import CrosswordsEnv
    from gem.envs.game_env.crosswords.crosswords import CrosswordsEnv as Same
    from gem.envs.game_env.sokoban import SokobanEnv
    from gem.envs.game_env.sokoban.sokoban import SokobanEnv as SameToo

    assert CrosswordsEnv is Same and SokobanEnv is SameToo


@pattern
def constants():
    from gem.utils.constants import BASE_IMPORTS, BASE_LEETCODE_IMPORTS, TERMINAL_STATE, LanguageGameReward

    assert len(TERMINAL_STATE) == len("<|TERMINAL_STATE|>") and "TERMINAL_STATE" in TERMINAL_STATE
    assert (LanguageGameReward.success_reward, LanguageGameReward.format_error_reward) == (1.0, -0.1)
    scope = {}
    exec("from typing import *\nfrom collections import deque\n" + BASE_LEETCODE_IMPORTS, scope)
    assert scope["is_same_list"](scope["list_node"]([1, 2]), scope["list_node"]([1, 2]))
    tree = scope["tree_node"]([1, 2, 3, None, 4])
    assert tree.left.right.val == 4 and scope["is_same_tree"](tree, scope["tree_node"]([1, 2, 3, None, 4]))
    assert not scope["is_same_tree"](tree, scope["tree_node"]([1, 2, 3])) and isinstance(BASE_IMPORTS, str)


@pattern
def rewards_for_mathematics():
    from gem.utils.math_grader import (
        answer_tag_reward_fn,
        answer_tag_reward_fn_for_orz,
        boxed_reward_fn,
        extract_boxed_answer,
        grade,
        r1_distill_qwen_math_reward_fn,
    )

    assert boxed_reward_fn("so \\boxed{42}", "42") == ({"formatted": True}, 1.0)
    assert boxed_reward_fn("so 42", "42") == ({"formatted": False}, 0.0)
    assert boxed_reward_fn("\\boxed{41}", 42, correct_reward=2, incorrect_reward=-1) == ({"formatted": True}, -1)
    assert boxed_reward_fn("\\boxed{2}", ["1", "2"], fast=True)[1] == 1.0
    assert r1_distill_qwen_math_reward_fn("<think>x</think> \\boxed{7}", "7")[1] == 1.0
    assert r1_distill_qwen_math_reward_fn("\\boxed{7}", "7") == ({"formatted": False}, 0.0)
    assert answer_tag_reward_fn("<think> </think> <answer> 5 </answer>", "5")[1] == 1.0
    assert answer_tag_reward_fn("<answer>5</answer>", "5") == ({"formatted": False}, 0.0)
    assert answer_tag_reward_fn_for_orz("<answer>\\boxed{5}</answer>", 5)[1] == 1.0
    assert grade("\\frac{1}{2}", "0.5") and not grade("1", "2") and extract_boxed_answer("\\boxed{x}") == "x"


@pattern
def a_function_with_a_time_limit():
    import logging

    from gem.utils.math_grader import run_with_timeout_signal

    logging.disable(logging.CRITICAL)
    try:
        assert run_with_timeout_signal(lambda a, b=1: a + b, args=(1,), kwargs={"b": 2}, timeout_seconds=2) == 3
        assert run_with_timeout_signal(lambda: 1 / 0) is None
    finally:
        logging.disable(logging.NOTSET)


@pattern
def finding_answers():
    from gem.utils.parsing import (
        extract_code_from_model,
        extract_last_boxed_answer,
        extract_last_tagged_answer,
        last_boxed_only_string,
        remove_boxed,
    )

    assert extract_last_boxed_answer("\\boxed{1} \\boxed{\\frac{1}{2}}") == "\\frac{1}{2}"
    assert last_boxed_only_string("a \\boxed{b}") == "\\boxed{b}" and last_boxed_only_string("none") is None
    assert remove_boxed("\\boxed{b}") == "b" and remove_boxed("b") is None and remove_boxed(None) is None
    assert extract_code_from_model("```python\nx = 1\n```") == "x = 1" and extract_code_from_model("none") is None
    assert extract_last_tagged_answer("<answer>a</answer><answer> b </answer>") == "b"


@pattern
def normal_forms_of_answers():
    from gem.utils.qa_em import em_check, normalize_answer

    assert normalize_answer("The  Cat!") == "cat" and em_check("the cat", ["Dog", "Cat."]) and not em_check("a", "b")


@pattern
def seeds_and_generators():
    import numpy as np
    from gem.utils.seeding import RNG, np_random, set_seed

    set_seed(3)
    drawn = random.random(), np.random.rand()
    set_seed(3)
    assert (random.random(), np.random.rand()) == drawn
    generator, seed = np_random(5)
    assert isinstance(generator, RNG) and seed == 5 and generator.random() == np_random(5)[0].random()
    raises(Exception, np_random, -1)


@pattern
def types_for_annotations():
    from typing import Optional, Union

    from gem.core import ActType, ObsType
    from gem.vector.vector_env import ArrayType
    from gem.wrappers.observation_wrapper import WrapperObsType

    def step(action: ActType) -> tuple[ObsType, Optional[WrapperObsType], Union[ArrayType, None]]: ...

    assert step


@pattern
def rows_by_number_through_wrappers():
    from datasets import Dataset
    from gem.envs.math_env import MathEnv
    from gem.wrappers.episode_tracking_wrapper import EpisodeTrackingWrapper

    rows = Dataset.from_list([{"problem": f"{i} + 1?", "answer": str(i + 1)} for i in range(4)])
    env = MathEnv(dataset=rows, use_mp=False)
    env.reset(idx=3)
    wrapped = EpisodeTrackingWrapper(env)
    wrapped.reset(seed=1)
    assert wrapped.step(f"\\boxed{{{env.answer}}}")[1] == 1.0


def main():
    if "--shim" in sys.argv:
        from rollenv.compat import gem as compat

        compat.install()
    failed = {}
    for name, function in PATTERNS.items():
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                function()
        except BaseException:
            failed[name] = traceback.format_exc(limit=-4)
    print(json.dumps({"ran": list(PATTERNS), "failed": failed}))


if __name__ == "__main__":
    main()
