"""Patterns: the registry."""

from __future__ import annotations

import contextlib
import io
import os
import pkgutil
import sys
from functools import partial

import gem
from common import classes, pattern, raises, registered
from gem.envs.game_env.guess_the_number import GuessTheNumberEnv
from gem.envs.registration import ENV_REGISTRY, EnvSpec
from gem.utils.seeding import set_seed


@pattern
def what_the_package_holds():
    assert {"Env", "make", "make_vec", "print_envs", "register"} <= set(gem.__all__)
    scope = {}
    exec("from gem import *\nfrom gem.core import *\nfrom gem.utils.parsing import *", scope)
    assert scope["make"] and scope["Env"] and scope["extract_last_boxed_answer"] and scope["EnvWrapper"]
    names = {module.name for module in pkgutil.iter_modules(gem.__path__)}
    assert os.path.dirname(gem.__file__) and {"core", "envs"} <= names


@pattern
def ids_without_a_namespace():
    gem.register("Plain", classes()[0])
    gem.register("Plain with spaces/and-more:x:y", classes()[0])
    assert gem.make("Plain").reset(1)[0].startswith("Double")
    assert gem.make("Plain with spaces/and-more:x:y").reset(1)[0].startswith("Double")


@pattern
def specs_in_the_registry():
    ENV_REGISTRY["hand:made"] = EnvSpec(id="hand:made", entry_point=classes()[0], kwargs={"top": 4})
    assert gem.make("hand:made").top == 4
    del ENV_REGISTRY["hand:made"]
    raises(ValueError, gem.make, "hand:made")
    gem.register("hand:made", classes()[0])
    ENV_REGISTRY.pop("hand:made")
    assert "game:Sokoban-v0-easy" in ENV_REGISTRY and len(ENV_REGISTRY) > 100
    spec = ENV_REGISTRY["game:GuessTheNumber-v0-hard"]
    assert spec.kwargs["max_turns"] == 7 and spec.id == "game:GuessTheNumber-v0-hard"
    assert sorted(ENV_REGISTRY)[0] and [i for i in ENV_REGISTRY if i.startswith("rg:")]
    name = registered(classes()[0], top=3)
    ENV_REGISTRY[name].kwargs["top"] = 4
    assert gem.make(name).top == 4 and name in list(ENV_REGISTRY.keys())


@pattern
def ids_that_cannot_be_made():
    assert "already registered" in raises(ValueError, gem.register, "game:Sokoban-v0-easy", classes()[0])
    assert "not found in registry" in raises(ValueError, gem.make, "game:NoSuchGame-v0")
    gem.register("bad:module", "no_such_module_anywhere:Env")
    gem.register("bad:name", "json:NoSuchName")
    raises(ImportError, gem.make, "bad:module")
    raises(ImportError, gem.make, "bad:name")


@pattern
def entry_points_of_every_kind():
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
    class Settings(classes()[0]):
        def __init__(self, options=None, wrappers=None, needs=None, abilities=None, indexed=None, **_):
            super().__init__()
            self.given = (options, wrappers, needs, abilities, indexed)

    env = gem.make(registered(Settings, options=[1], wrappers="x", needs=2, abilities=3, indexed=4))
    assert env.given == ([1], "x", 2, 3, 4)


@pattern
def env_id_and_entry_point_are_attributes():
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
    with contextlib.redirect_stdout(io.StringIO()) as out:
        gem.print_envs()
    assert "game:Sokoban-v0-easy" in out.getvalue() and "max_turns" in out.getvalue()


@pattern
def a_seed_for_a_class_over_one_of_gems():
    class Mine(GuessTheNumberEnv):
        def __init__(self, **kwargs):
            self.given = kwargs
            super().__init__(min_number=1, max_number=9, max_turns=4)

    name = registered(Mine)
    assert gem.make(name, seed=5).given == {"seed": 5}
    assert [env.given["seed"] for env in gem.make_vec([name, name], seed=5).envs] == [5, 6]


@pattern
def a_seed_for_the_process():
    codes = []
    for _ in range(2):
        set_seed(9)
        env = gem.make("game:Mastermind-v0-hard")
        env.reset()
        codes.append(list(env.game_code))
    assert codes[0] == codes[1]


@pattern
def a_spec_of_the_authors_own():
    Doubling, _, _ = classes()

    class Read(Doubling):
        @property
        def spec(self):
            return "mine"

    class Set(Doubling):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.spec = {"a": 1}

    assert gem.make(registered(Read)).spec == "mine" and gem.make(registered(Set)).spec == {"a": 1}
