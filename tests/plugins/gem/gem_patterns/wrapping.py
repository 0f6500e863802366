"""Patterns: wrappers."""

from __future__ import annotations

import contextlib
import io
from collections import deque
from functools import partial

import gem
from common import FakeTokenizer, classes, pattern, raises
from gem.core import EnvWrapper
from gem.wrappers.episode_tracking_wrapper import EpisodeTrackingWrapper
from gem.wrappers.observation_wrapper import ObservationWrapper
from gem.wrappers.wrapper_factory import TOKENIZER_REQUIRED, WRAPPER_FACTORY, get_wrapper_fns


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
    _, Loud, _ = classes()
    env = Loud(gem.make("game:GuessTheNumber-v0-hard"))
    env.reset(seed=2)
    assert env.max_number == 50 and env.env_id == "game:GuessTheNumber-v0-hard" and env.unwrapped is env.env
    raises(AttributeError, lambda: env.nothing)


@pattern
def a_wrapper_that_changes_the_action_and_reward():
    Doubling, _, _ = classes()

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
    env = EpisodeTrackingWrapper(classes()[0]())
    env.reset(3)
    for _ in range(2):
        *_, info = env.step("\\boxed{0}")
    assert info["step_counter"] == 2 and info["cumulative_rewards"] == 0
    _, info = env.reset(seed=4)
    assert info["prev_ep_step_counter"] == 2 and info["step_counter"] == 0 and "prev_ep_cumulative_rewards" in info


@pattern
def observations_by_position():
    env = ObservationWrapper(classes()[0](), True, False, False, None, None)
    first, _ = env.reset(seed=1)
    second, *_ = env.step("\\boxed{0}")
    assert second.startswith(first.split("\n")[0]) and "\\boxed{0}" in second and second.endswith("Again.")
    assert first.endswith("Answer now.")
    env = WRAPPER_FACTORY["concat"](classes()[0]())
    env.reset(seed=1)
    assert "\\boxed" not in env.step("\\boxed{0}")[0]
    env = ObservationWrapper(classes()[0](), include_chat_template=False, max_history_length=2)
    env.reset(seed=1)
    for word in ("first", "second", "third"):
        text = env.step(word)[0]
    assert "third" in text and "second" in text and "first" not in text


@pattern
def observations_by_default_need_a_tokenizer():
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
def chat_templates():
    env = ObservationWrapper(classes()[0](), tokenizer=FakeTokenizer())
    env.reset(seed=1)
    text = env.step("mine")[0]
    assert "<assistant>mine</assistant><user>turn 1</user><assistant>" in text and text.startswith("<user>Double")
    (wrap,) = get_wrapper_fns("concat_chat_on_reset", tokenizer=FakeTokenizer())
    env = wrap(classes()[0]())
    assert env.reset(seed=1)[0].startswith("<user>Double")
    assert "mine\nturn 1\n" in env.step("mine")[0]


@pattern
def wrappers_by_name():
    with contextlib.redirect_stdout(io.StringIO()):
        assert get_wrapper_fns("") == [] and len(get_wrapper_fns("concat,episode_tracking")) == 2
        raises(KeyError, get_wrapper_fns, "no_such_wrapper")
        env = classes()[0]()
        for wrap in get_wrapper_fns("python_tool_no_int_reward,concat_with_action,episode_tracking"):
            env = wrap(env)
    assert sorted(TOKENIZER_REQUIRED) == ["concat_chat", "concat_chat_on_reset"]
    assert set(WRAPPER_FACTORY) >= {"python_tool", "search_tool", "concat_chat", "episode_tracking"}
    assert env.reset(seed=1)[1]["tool_use_counter"] == 0
    tool = classes()[2]()
    wrap = partial(WRAPPER_FACTORY["python_tool"], max_tool_uses=2)
    assert wrap(classes()[0]()).max_tool_uses == 2
    assert partial(WRAPPER_FACTORY["python_tool"], tools=[tool])(classes()[0]()).tool_reward == 0.05
    assert WRAPPER_FACTORY["search_tool"].keywords["max_tool_uses"] == 5
    assert partial(WRAPPER_FACTORY["concat_chat"], tokenizer=FakeTokenizer())(classes()[0]()).reset(1)[0]


@pattern
def a_factory_entry_of_ones_own():
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


@pattern
def an_author_changes_the_observation_wrapper():
    class Last(ObservationWrapper):
        def __init__(self, env, **kwargs):
            super().__init__(env, include_chat_template=False, **kwargs)

        def observation(self, info):
            return f"{len(self.obs_queue)} {len(self.act_queue)}\n" + super().observation(info)

    env = Last(classes()[0](), max_history_length=None)
    assert env.reset(seed=1)[0].startswith("1 0\nDouble") and env.step("a")[0].startswith("2 1\nDouble")
    assert env.obs_queue[-1] == ("turn 1", False) and list(env.act_queue) == ["a"]


@pattern
def states_of_any_kind():
    Doubling, Loud, _ = classes()

    class Saved(Doubling):
        def get_state(self, deep=False):
            return {"deep": True} if deep else (self.number, self.turn)

        def set_state(self, state):
            self.number, self.turn = state

    assert issubclass(Loud, EnvWrapper)
    for wrap in (Loud, EpisodeTrackingWrapper):
        env = wrap(Saved())
        env.reset(seed=1)
        state = env.get_state()
        env.step("x")
        env.set_state(state)
        assert state == (env.unwrapped.number, 0) and env.unwrapped.turn == 0
        assert env.get_state(deep=True) == {"deep": True}


@pattern
def the_queues_are_what_is_shown():
    env = ObservationWrapper(classes()[0](), include_chat_template=False)
    env.reset(seed=1)
    env.obs_queue[0] = ("Other", False)
    assert env.step("x")[0] == "Other\nx\nturn 1\nAgain." and isinstance(env.act_queue, deque)
    env.obs_queue, env.act_queue = deque([("New", False)]), deque()
    assert env.step("y")[0] == "New\ny\nturn 2\nAgain."
    assert ObservationWrapper(classes()[0](), include_chat_template=False, max_history_length=3).obs_queue.maxlen == 4
