"""The contract that Env and Wrapper enforce by themselves."""

import gymnasium
import pytest

import rollenv
import rollenv.core.wrappers
from rollenv import Env, EpisodeOver, TextSpace, UsageError, Wrapper


class Count(Env):
    """Says how often it was stepped; ends after ``turns``."""

    reset_options = frozenset({"start"})

    def __init__(self, turns=3):
        self.turns = turns

    def _reset(self, options):
        self.done = options.get("start", 0)
        return f"start {self.randint(1000)}", {}

    def _step(self, action):
        self.done += 1
        return f"{self.done} {action}", 1.0, False, self.done >= self.turns, {}


def test_an_env_is_a_gymnasium_env_with_text_spaces():
    env = Count()
    assert isinstance(env, gymnasium.Env)
    assert env.observation_space == env.action_space == TextSpace()
    assert env.action_space.contains(env.action_space.sample())
    assert not env.action_space.contains(b"bytes")


def test_step_before_reset_and_after_the_end_raises():
    env = Count(turns=1)
    with pytest.raises(EpisodeOver):
        env.step("a")
    env.reset()
    env.step("a")
    with pytest.raises(EpisodeOver):
        env.step("a")
    env.reset()
    env.step("a")


def test_a_reset_that_fails_leaves_no_episode_to_step():
    class Fails(Count):
        reset_options = frozenset({"fail"})

        def _reset(self, options):
            if options.get("fail"):
                raise OSError("no level")
            return super()._reset(options)

    env = Fails()
    env.reset()
    with pytest.raises(OSError, match="no level"):
        env.reset(options={"fail": True})
    with pytest.raises(EpisodeOver):
        env.step("a")


def test_reset_takes_the_seed_by_position_or_name_and_passes_options():
    env = Count()
    assert env.reset(5) == env.reset(seed=5)
    env.reset(options={"start": 2})
    assert env.step("x")[3]


def test_an_action_that_is_not_text_is_refused():
    env = Count()
    env.reset()
    with pytest.raises(TypeError, match="bytes"):
        env.step(b"up")


@pytest.mark.parametrize("returned", [None, "text", ("text", 1.0, True, {}), ("text", 1.0, True, False, None)])
def test_a_result_of_another_shape_is_said_to_be_one(returned):
    class Odd(rollenv.Env):
        def _reset(self, options):
            return returned if options else ("begin", {})

        def _step(self, action):
            return returned

        reset_options = frozenset({"odd"})

    env = Odd()
    with pytest.raises(TypeError, match="observation, info"):
        env.reset(options={"odd": 1})
    env.reset()
    with pytest.raises(TypeError, match="terminated, truncated"):
        env.step("a")


def test_resets_without_a_seed_continue_the_private_stream():
    one, two = Count(), Count()
    first = [one.reset(3)[0], one.reset()[0], one.reset()[0]]
    two.reset(99)
    assert [two.reset(3)[0], two.reset()[0], two.reset()[0]] == first
    assert len(set(first)) > 1


class Shout(Wrapper):
    """Answers in capitals."""

    def step(self, action):
        observation, *rest = self.env.step(action)
        return (observation.upper(), *rest)


def test_a_wrapper_passes_everything_on_as_it_is_now():
    env = Shout(rollenv.make("game:Sokoban-v0-easy"))
    plain = rollenv.make("game:Sokoban-v0-easy")
    env.reset(1)
    plain.reset(1)
    assert env.turn == 0
    action = env.sample_random_action()
    assert env.step(action)[0] == plain.step(action)[0].upper()
    assert env.turn == plain.turn == 1
    assert env.state_key() == plain.state_key()
    assert env.oracle_action() == plain.oracle_action()
    assert env.unwrapped is env.env
    assert env.spec.id == "game:Sokoban-v0-easy"
    with pytest.raises(AttributeError):
        _ = env.no_such_thing


def test_a_wrapped_twin_and_a_restored_one_continue_alike():
    env = Shout(rollenv.make("game:Sokoban-v0-easy"))
    env.reset(1)
    twin, restored = env.spawn(same_state=True), Shout(rollenv.make("game:Sokoban-v0-easy"))
    restored.set_state(env.get_state())
    for action in ("\\boxed{up}", "\\boxed{left}"):
        assert env.step(action) == twin.step(action) == restored.step(action)
    fresh = env.spawn()
    assert isinstance(fresh, Shout)
    assert fresh.reset(1) == twin.reset(1)


def test_spawn_says_what_it_cannot_do():
    with pytest.raises(UsageError, match=r"rollenv\.make"):
        Count().spawn()
    env = rollenv.make("game:Sokoban-v0-easy", seed=0)
    env.reset()
    with pytest.raises(UsageError, match="max_turns"):
        env.spawn(same_state=True, max_turns=3)
    assert env.spawn(max_turns=7).max_turns == 7


ABILITIES = ["get_state", "set_state", "sample_random_action", "oracle_action", "state_key", "num_tasks"]


class Able(Count):
    def _get_state(self):
        return {"done": self.done}

    def _set_state(self, state):
        self.done = state["done"]

    def sample_random_action(self):
        return "any"

    oracle_action = state_key = sample_random_action

    def num_tasks(self):
        return 3


@pytest.mark.parametrize("ability", ABILITIES)
def test_an_ability_that_is_not_there_is_no_attribute(ability):
    for wrap in (lambda env: env, Wrapper, lambda env: Wrapper(Wrapper(env))):
        assert not hasattr(wrap(Count()), ability)
        assert callable(getattr(wrap(Able()), ability))
        with pytest.raises(NotImplementedError, match="Count"):
            getattr(wrap(Count()), ability)()


def test_half_of_a_state_is_not_the_other_half():
    class Half(Count):
        def _get_state(self):
            return {}

    assert hasattr(Half(), "get_state")
    assert not hasattr(Wrapper(Half()), "set_state")


class OnlyASeed(Env):
    """Written for GEM: its reset takes a seed and nothing else."""

    def reset(self, seed=None):
        self.seeded = seed
        return "go", {}

    def step(self, action):
        return action, 0.0, True, False, {}


def test_a_wrapper_resets_an_environment_that_takes_only_a_seed():
    env = Wrapper(Wrapper(OnlyASeed()))
    env.reset(4)
    assert env.seeded == 4
    with pytest.raises(TypeError):  # options are not lost without a word
        env.reset(options={"start": 1})


def test_wrappers_pass_on_whatever_else_reset_takes():
    class Rows(OnlyASeed):
        def reset(self, seed=None, idx=None, **more):
            return f"{seed} {idx} {more}", {}

    for wrapper in (Wrapper, rollenv.core.wrappers.EpisodeTrackingWrapper, rollenv.core.wrappers.ObservationWrapper):
        assert wrapper(Rows()).reset(1, idx=3, split="x")[0].strip() == "1 3 {'split': 'x'}"


def test_gymnasiums_wrappers_stand_between():
    inner = gymnasium.wrappers.TransformObservation(gymnasium.wrappers.TimeLimit(Able(), 5), str.upper, None)
    env = Wrapper(gymnasium.wrappers.OrderEnforcing(inner))
    assert env.reset(3)[0].startswith("START")
    env.step("a")
    twin = env.spawn(same_state=True)
    assert [e.step("b")[0] for e in (env, twin)] == ["2 B", "2 B"]
    assert env.oracle_action() == "any"
    assert env.turns == 3
    assert not hasattr(env, "get_state")  # Gymnasium's wrappers have a state that nobody can read


def test_the_id_and_the_entry_point_can_be_set():
    env = rollenv.make("multi:Nim-v0")
    wrapped = Wrapper(env)
    assert (wrapped.env_id, wrapped.entry_point) == (env.spec.id, env.spec.entry_point)
    env.env_id = "mine"
    assert wrapped.env_id == "mine"
    wrapped.env_id = "yours"
    assert (env.env_id, wrapped.env_id) == ("mine", "yours")
    assert Count().env_id is Count().entry_point is None


def test_a_seed_reaches_the_constructor_and_the_stream():
    class Seeded(Count):
        def __init__(self, turns=3, seed=None):
            super().__init__(turns)
            self.given = seed

    rollenv.register("test:Seeded", Seeded)
    rollenv.register("test:Unseeded", Count)
    try:
        env = rollenv.make("test:Seeded", seed=7)
        assert env.given == 7
        assert (
            env.reset() == rollenv.make("test:Seeded", seed=7).reset() == rollenv.make("test:Unseeded", seed=7).reset()
        )
        assert rollenv.make("test:Seeded").given is None
    finally:
        for env_id in ("test:Seeded", "test:Unseeded"):
            del rollenv.core.registry.ENV_REGISTRY[env_id]


def test_an_entry_point_that_cannot_be_loaded_is_an_import_error_too():
    spec = rollenv.EnvSpec("test:Bad", "no_such_module:Env")
    for kind in (ImportError, ValueError, UsageError):
        with pytest.raises(kind, match=r"test:Bad.*no_such_module"):
            spec.make()


def test_names_of_ones_own_collide_with_none_of_the_base():
    class Own(rollenv.Env):
        _begun = _random_actions = "mine"

        def _over(self):
            return self.turn == 2

        def _twin(self):
            raise AssertionError

        _restore = _whole_state = _checked_options = _twin

        def _reset(self, options):
            self.turn = 0
            return "", {}

        def _step(self, action):
            self.turn += 1
            return "", 0.0, self._over(), False, {}

        def _get_state(self):
            return {"turn": self.turn}

        def _set_state(self, state):
            self.turn = state["turn"]

    env = Own()
    env.reset(seed=1)
    twin = env.spawn(same_state=True)
    assert [each.step("")[2] for each in (env, twin, env)] == [False, False, True]
    twin.set_state(env.get_state())
    with pytest.raises(rollenv.EpisodeOver):
        twin.step("")


@pytest.mark.parametrize("name", ["action_rng", "seed_stream", "_np_random_seed", "_rollenv_over", "players"])
def test_a_class_that_replaces_what_the_base_needs_is_refused_with_file_and_line(name):
    def mine(self):
        return 2

    with pytest.raises(rollenv.UsageError, match=rf"{__file__}, line {mine.__code__.co_firstlineno}: Bad.{name}:"):
        type("Bad", (rollenv.Env,), {name: mine, "__module__": __name__, "__qualname__": "Bad"})
    with pytest.raises(rollenv.UsageError, match=__file__):

        class Worse(rollenv.Env):
            _np_random = None
