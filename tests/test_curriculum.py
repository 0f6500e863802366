"""Curricula: bundled levels can be made; a schedule stays in range, survives a checkpoint, finds the right level."""

import importlib.util
import json
import random

import pytest
from available import variants
from hypothesis import given
from hypothesis import strategies as st

import rollenv
from rollenv import UnknownEnv, UsageError
from rollenv.core.curriculum import Curriculum, Schedule

LAKE = "roll:FrozenLake-v0"


def ids_with_levels():
    """Every id that has levels, of reasoning-gym's a few."""
    some = {"rg:chain_sum", "rg:maze", "rg:n_queens", "rg:rubiks_cube"}
    for env_spec in rollenv.list_envs():
        if env_spec.levels and not env_spec.missing and (env_spec.namespace != "rg" or env_spec.id in some):
            yield env_spec.id


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("env_id", variants(list(ids_with_levels())))
def test_every_bundled_level_can_be_made_and_played(env_id):
    curriculum = Curriculum.for_env(env_id)
    seen = set()
    for level in range(len(curriculum)):
        env = curriculum.make(level)
        observation, _ = env.reset(3)
        seen.add(str(curriculum[level]))
        assert observation
        env.close()
    assert len(seen) == len(curriculum), "levels differ"


@pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="needs reasoning-gym")
def test_levels_of_reasoning_gym_get_harder():
    curriculum = Curriculum.for_env("rg:chain_sum")

    def length(level):
        return sum(len(curriculum.make(level).reset(seed)[0]) for seed in range(20))

    assert length(0) < length(1) < length(3)


def test_lists_of_values_are_levels():
    curriculum = Curriculum(LAKE, {"size": [3, 4, 5], "max_actions": [8, 10]})
    assert [curriculum[i] for i in range(3)] == [
        {"size": 3, "max_actions": 8},
        {"size": 4, "max_actions": 10},
        {"size": 5, "max_actions": 10},
    ]
    env = curriculum.make(2, max_actions=12)
    assert (env.size, env.max_actions) == (5, 12)
    curriculum[0]["size"] = 99
    assert curriculum[0]["size"] == 3, "a level that was handed out is a copy"


@pytest.mark.parametrize("levels", [[], {}, {"size": []}, {"size": 3}, {"size": "345"}, [3], ["size"]])
def test_levels_that_are_none_are_refused(levels):
    with pytest.raises(UsageError, match="levels of"):
        Curriculum(LAKE, levels)


def test_unknown_ids_and_levels_are_refused():
    with pytest.raises(UnknownEnv, match="FrozenLake"):
        Curriculum("roll:FrozenLak-v0", [{}])
    with pytest.raises(UnknownEnv):
        Curriculum.for_env("rg:chain_sums")
    with pytest.raises(UsageError, match="levels"):
        Curriculum.for_env("gym:Taxi-v3")
    with pytest.raises(UsageError, match="levels"):
        Curriculum.for_env("rg:acre")
    with pytest.raises(UsageError, match="not 1"):
        Curriculum(LAKE, [{}])[1]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"levels": 0},
        {"levels": 3, "start": 3},
        {"levels": 3, "window": 0},
        {"levels": 3, "up": 0.2, "down": 0.2},
        {"levels": 3, "up": 1.1},
        {"levels": 3, "down": -0.1},
        {"levels": 3, "review": 1.0},
    ],
)
def test_wrong_settings_are_refused(kwargs):
    with pytest.raises(UsageError, match="got"):
        Schedule(**kwargs)


outcomes = st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=200)
settings = st.fixed_dictionaries({"window": st.integers(1, 8), "start": st.integers(0, 4), "review": st.floats(0, 0.9)})


@given(outcomes, settings)
def test_the_level_stays_in_range_and_moves_by_one(outcomes, settings):
    schedule = Schedule(5, **settings)
    for episode, (level, success) in enumerate(outcomes):
        before = schedule.level
        schedule.record(level, success)
        assert 0 <= schedule.level < 5
        assert abs(schedule.level - before) <= 1
        assert level == before or schedule.level == before, "other levels do not move it"
        assert 0 <= schedule.choose(episode) <= schedule.level


@given(outcomes, outcomes, settings)
def test_a_checkpoint_goes_on_where_it_was(before, after, settings):
    one, other = Schedule(5, **settings), Schedule(5, **settings)
    for level, success in before:
        one.record(level, success)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for episode, (level, success) in enumerate(after):
        assert one.choose(episode) == other.choose(episode)
        one.record(level, success)
        other.record(level, success)
    assert one.state_dict() == other.state_dict()
    assert one.rates() == other.rates()


@pytest.mark.parametrize(
    "state",
    [{}, {"level": 0}, {"level": 0, "recent": [[]]}, {"level": 5, "recent": [[]] * 5}, {"level": "x", "recent": []}],
)
def test_a_state_that_does_not_fit_is_refused(state):
    with pytest.raises(UsageError, match="state"):
        Schedule(5).load_state_dict(state)


@pytest.mark.parametrize("start", [0, 3, 7])
@pytest.mark.parametrize("seed", range(4))
def test_it_finds_the_level_that_is_neither_too_easy_nor_too_hard(start, seed):
    chances = [1.0, 0.97, 0.95, 0.9, 0.5, 0.1, 0.02, 0.0]
    agent = random.Random(seed)
    schedule = Schedule(len(chances), seed=seed, start=start)
    at = []
    for episode in range(3000):
        level = schedule.choose(episode)
        schedule.record(level, agent.random() < chances[level])
        at.append(schedule.level)
    assert sum(level == 4 for level in at[1000:]) > 0.95 * 2000


def test_one_lucky_episode_after_a_move_does_not_move_it_again():
    schedule = Schedule(3, window=10, review=0)
    for _ in range(10):
        schedule.record(0, True)
    assert schedule.level == 1
    for _ in range(9):
        schedule.record(1, True)
        assert schedule.level == 1
    schedule.record(1, True)
    assert schedule.level == 2


def test_earlier_levels_get_their_share():
    schedule = Schedule(5, review=0.3, start=3)
    chosen = [schedule.choose(episode) for episode in range(4000)]
    assert chosen == [schedule.choose(episode) for episode in range(4000)]
    assert 0.27 < sum(level < 3 for level in chosen) / 4000 < 0.33
    assert {*chosen} == {0, 1, 2, 3}
    assert [Schedule(5, seed=1, review=0.3, start=3).choose(e) for e in range(100)] != chosen[:100]


def test_recording_an_unknown_level_is_refused():
    with pytest.raises(UsageError, match="not 3"):
        Schedule(3).record(3, True)
    assert Schedule(3).rates() == [None, None, None]
