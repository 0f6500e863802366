"""Where GEM's manners and rollenv's contract differ, each has its own; the table is in docs/gem/index.md."""

from __future__ import annotations

import inspect
import pickle
import random
import sys
import types

import numpy as np
import pytest

import rollenv
from rollenv.core import wrappers
from rollenv.core.errors import EpisodeOver, UsageError
from rollenv.core.registry import ENV_REGISTRY
from rollenv.core.tools.python import PythonCodeTool
from rollenv.envs.multi import MultiAgentEnv
from rollenv.plugins.gem import MODULES, core, multiagent, registration, tools
from rollenv.plugins.gem import wrappers as gem_wrappers

GUESS, NIM = "game:GuessTheNumber-v0-easy", "multi:Nim-v0"
MAKE = {"rollenv": rollenv.make, "gem": registration.make}


@pytest.fixture
def env_id():
    """An id that is free, and free again after the test."""
    before = set(ENV_REGISTRY)
    yield "test:Layer"
    for name in ENV_REGISTRY.keys() - before:
        del ENV_REGISTRY[name]


def limited(make):
    env = make(GUESS, max_turns=1)
    env.reset(seed=0)
    outcomes = []
    for number in range(1, 4):
        env.reset(seed=0)
        outcomes.append(env.step(f"\\boxed{{{number}}}"))
    return next(o for o in outcomes if o[1] < 1)[2:4]


def test_a_limit_ends_in_both_ways_only_under_gems_name():
    assert limited(rollenv.make) == (False, True)
    assert limited(registration.make) == (True, True)


@pytest.mark.parametrize("name", [GUESS, NIM, "ragen:FrozenLake-v0"])
def test_steps_out_of_turn(name):
    with pytest.raises(EpisodeOver):
        rollenv.make(name).step("x")
    env = registration.make(name, seed=1)
    while not env.step("x")[2]:
        pass
    assert len(env.step("again")) == 5


def test_actions_that_are_no_text():
    env = rollenv.make(GUESS)
    env.reset(seed=1)
    with pytest.raises(TypeError):
        env.step(np.array("\\boxed{1}"))
    twins = [registration.make(GUESS) for _ in range(2)]
    for twin in twins:
        twin.reset(seed=1)
    assert twins[0].step(np.array("\\boxed{1}")) == twins[1].step("\\boxed{1}")


@pytest.mark.combinations
@pytest.mark.parametrize("name", [GUESS, NIM, "ragen:FrozenLake-v0", "rg:leg_counting"])
def test_arguments_that_nobody_knows(name):
    with pytest.raises(UsageError):
        rollenv.make(name, verbose=True)
    env = registration.make(name, verbose=True)
    assert isinstance(env, rollenv.Env)
    assert isinstance(env, core.Env)


@pytest.mark.parametrize("name", [GUESS, NIM, "ragen:FrozenLake-v0"])
def test_the_environments_are_the_same(name):
    ours, theirs = rollenv.make(name), registration.make(name)
    assert isinstance(theirs, type(ours))
    assert pickle.loads(pickle.dumps(theirs)).reset(seed=2)[0] == theirs.reset(seed=2)[0]
    assert type(theirs.spawn()) is type(theirs)
    assert registration.make(name, seed=3).reset() == registration.make(name, seed=3).reset()


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_rollenvs_environments_leave_the_process_alone(make):
    random.seed(1)
    before = random.getstate()
    env = make(GUESS, seed=2)
    env.reset(seed=3)
    env.step(env.sample_random_action())
    assert random.getstate() == before


def test_a_class_of_ones_own_is_found_without_a_name(env_id):
    class Own(rollenv.Env):
        def _reset(self, options):
            return "", {}

        def _step(self, action):
            return "", 0.0, False, True, {}

    registration.register(env_id, Own)
    for name, over in (("rollenv", (False, True)), ("gem", (True, True))):
        env = MAKE[name](env_id)
        env.reset()
        assert env.step("x")[2:4] == over


def test_ids_and_keywords_of_register(env_id):
    with pytest.raises(UsageError, match="namespace"):
        rollenv.register("no namespace", "a:b")
    registration.register("no namespace", lambda **given: types.SimpleNamespace(given=given), needs=1, wrappers=2)
    assert registration.make("no namespace", seed=4).given == {"needs": 1, "wrappers": 2, "seed": 4}
    with pytest.raises(UsageError, match="returned SimpleNamespace"):
        rollenv.make("no namespace")


def test_a_seed_of_an_authors_own_kind(env_id):
    class Odd(core.Env):
        def __init__(self, seed):
            self.seed = seed

        def reset(self, seed=None):
            return "", {}

        step = reset

    registration.register(env_id, Odd)
    assert registration.make(env_id, seed="a phrase").seed == "a phrase"


def test_which_arguments_of_make_vec_win():
    given = {"vec_kwargs": [{"max_turns": 2}], "max_turns": 3}
    assert rollenv.make_vec(GUESS, **given).envs[0].max_turns == 2
    assert registration.make_vec(GUESS, **given).envs[0].max_turns == 3


def test_errors_are_of_both_kinds():
    vec = registration.make_vec(GUESS)
    for call in (lambda: vec.step([]), lambda: vec.reset(seed=[1, 2]), lambda: gem_wrappers.ObservationWrapper(vec)):
        with pytest.raises(AssertionError) as caught:
            call()
        assert isinstance(caught.value, UsageError)
    with pytest.raises(KeyError):
        gem_wrappers.get_wrapper_fns("nothing")


def test_observations_by_default():
    assert wrappers.ObservationWrapper(rollenv.make(GUESS)).reset(seed=1)[0]
    with pytest.raises(UsageError, match="tokenizer"):
        gem_wrappers.ObservationWrapper(rollenv.make(GUESS))


def test_states_through_wrappers():
    env = gem_wrappers.EpisodeTrackingWrapper(gem_wrappers.ObservationWrapper(registration.make(NIM), True, False))
    env.reset(seed=5)
    env.step(env.sample_random_action())
    state = env.get_state()
    assert state.keys() == env.unwrapped.get_state().keys() | {"wrappers"}
    after = env.step("x")
    env.set_state(state)
    assert env.step("x") == after
    env.set_state(env.unwrapped.get_state())  # as GEM saves it: of the environment alone


def test_the_fifth_place_of_the_tool_wrapper():
    env = registration.make(GUESS)
    cases = ((5,), 5, 0.0), ((-0.5,), 10, -0.5), ((-0.5, 3), 3, -0.5), ((None,), float("inf"), 0.0)
    for places, limit, penalty in cases:
        wrapped = gem_wrappers.ToolEnvWrapper(env, [], 0.1, 0.2, *places)
        assert (wrapped.max_tool_uses, wrapped.tool_execute_error_reward) == (limit, penalty)
    with pytest.raises(TypeError):
        gem_wrappers.ToolEnvWrapper(env, [], 0.1, 0.2, 0.3, 4, 5)


def test_tools_and_actions_that_are_not_theirs():
    assert PythonCodeTool().execute_action("none") == (False, False, "", "")
    assert tools.PythonCodeTool().execute_action("none") == (False, True, "", "none")
    assert not PythonCodeTool().common_imports
    assert tools.PythonCodeTool().common_imports


def test_mcp_handlers_are_refused_and_tokens_are_sent():
    with pytest.raises(UsageError, match="log_handler"):
        tools.MCPTool("http://127.0.0.1:9/mcp", log_handler=print, validate_on_init=False)
    tool = tools.MCPTool("http://127.0.0.1:9/mcp", "secret", {"X-A": "b"}, validate_on_init=False)
    server = tool.normalized_config["mcpServers"]["default"]
    assert server["headers"] == {"X-A": "b", "Authorization": "Bearer secret"}


def test_gems_agents_are_environments_too():
    assert issubclass(multiagent.MultiAgentEnv, rollenv.Env)
    assert not issubclass(MultiAgentEnv, multiagent.MultiAgentEnv)
    assert issubclass(registration.SyncVectorEnv, core.Env)
    assert not issubclass(int, core.Env)


def test_a_module_that_is_not_here_says_what_does_its_work():
    script = "import gem.tools.search_engine.retrieval_server"
    from rollenv.plugins import gem

    finder = gem._Finder()
    with pytest.raises(ModuleNotFoundError, match="CorpusSearchTool"):
        finder.find_spec(script.split()[1], None)
    assert finder.find_spec("gem.nothing", None) is None
    assert "gem" not in sys.modules


def test_every_module_of_the_table_is_small_and_named():
    assert all(name == "gem" or name.rpartition(".")[0] in MODULES for name in MODULES)
    assert inspect.signature(registration.make_vec).parameters["seed"].default == 0
