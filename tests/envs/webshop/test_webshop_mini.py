"""Generated shops: the small ids, their splits, and the generator at any size."""

import dataclasses
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from played import to_the_end

import rollenv
from rollenv import UsageError
from rollenv.envs.webshop.generate import KINDS, REALISTIC, STYLES, Style, generate_catalogue, generated

IDS = ("webshop:mini-easy", "webshop:mini", "webshop:mini-hard")


@pytest.mark.slow
def test_an_id_keeps_what_it_promises():
    rollenv.check_env("webshop:mini-easy", episodes=10)


@pytest.mark.parametrize("env_id", IDS)
def test_splits_ask_for_different_things(env_id):
    goals = rollenv.make(env_id).goals
    seen = {}
    for name in ("train", "eval", "test"):
        assert len(goals.split(name)) > 10
        for number in goals.split(name)[:3000]:
            goal = goals[int(number)]
            assert seen.setdefault((goal.query, goal.attributes, str(goal.options)), name) == name
    assert sum(len(goals.split(name)) for name in ("train", "eval", "test")) == len(goals) == len(goals.split("all"))
    with pytest.raises(UsageError, match="'dev'"):
        goals.split("dev")


def test_the_split_of_a_goal_does_not_change_with_the_shop():
    split_of = {}
    for products in (240, 120):
        goals = rollenv.make("webshop:mini", size={"products": products}).goals
        for name in ("train", "eval", "test"):
            for number in map(int, goals.split(name)):
                goal = goals[number]
                assert split_of.setdefault((goal.query, goal.attributes, str(goal.options)), name) == name


@pytest.mark.parametrize("env_id", IDS)
def test_pages_are_short(env_id):
    env = rollenv.make(env_id)
    lengths, clicks = [], []
    for seed in range(40):
        observation, info = env.reset(seed)
        over = False
        while not over:
            lengths.append(len(observation.split()))
            clicks.append(len(info["available_actions"]["clickables"]))
            observation, _, terminated, truncated, info = env.step(env.oracle_action())
            over = terminated or truncated
    assert statistics.median(lengths) < 80
    assert max(clicks) <= 16


def test_every_goal_can_be_reached_and_most_prices_matter():
    env = rollenv.make("webshop:mini")
    assert env.goals.unreachable() == []
    assert all(env.goals[n].price_upper < 200 for n in range(len(env.goals)))
    easy = rollenv.make("webshop:mini-easy")
    assert not any("price" in easy.goals[n].instruction for n in range(len(easy.goals)))


def test_an_equal_product_wins_too():
    """Success is to buy what was asked for, not one product."""
    env = rollenv.make("webshop:mini", size={"products": 48, "kinds": 4, "qualities": 2, "options": 0}, split="all")
    won = 0
    for seed in range(30):
        env.reset(seed)
        twins = [
            p
            for p in env.shop.catalogue
            if p.title == env.goal.name and p.asin != env.goal.asin and p.price() <= env.goal.price_upper
        ]
        if twins:
            info = env.step(f"search[{env.goal.name}]")[4]
            while twins[0].asin.lower() not in info["available_actions"]["clickables"]:
                info = env.step("click[next >]")[4]
            env.step(f"click[{twins[0].asin}]")
            won += env.step("click[buy now]")[4]["success"]
            assert env.reward == 1.0
    assert won > 5


STYLE = st.builds(
    Style,
    products=st.integers(1, 60),
    kinds=st.integers(1, len(KINDS)),
    qualities=st.integers(3, 30),
    qualities_each=st.integers(1, 3),
    options=st.integers(0, 4),
    values=st.integers(1, 4),
    limits=st.booleans(),
    bullets=st.integers(0, 3),
    words=st.integers(0, 5),
    brands=st.sampled_from([0, 5]),
)


@settings(max_examples=25, deadline=None)
@given(STYLE, st.integers(0, 5))
def test_any_style_makes_a_shop_that_can_be_played(style, seed):
    size = dataclasses.asdict(style)
    env = rollenv.make("webshop:mini", size=size, shop_seed=seed, split="all", max_steps=40)
    assert env.reset(seed)[0] == rollenv.make("webshop:mini", size=size, shop_seed=seed, split="all").reset(seed)[0]
    assert to_the_end(env)[-1][4]["success"]


def test_products_follow_from_style_and_seed():
    one, other = (list(generated(STYLES["medium"], seed)) for seed in (0, 1))
    assert one == list(generated(STYLES["medium"], 0))
    assert one != other
    assert len({p.asin for p in one}) == len(one)
    assert generate_catalogue(STYLES["medium"], 0) == generate_catalogue(STYLES["medium"], 0)
    assert generate_catalogue(STYLES["medium"], 0) != generate_catalogue(STYLES["medium"], 1)


def test_the_large_style_makes_products_like_the_real_ones():
    some = list(generated(dataclasses.replace(REALISTIC, products=500)))
    assert 50 < statistics.mean(len(p.document().split()) for p in some) < 200
    assert len({p.asin for p in some}) == 500
    assert all(len(p.asin) <= 10 for p in some)
    assert len({p.title for p in some}) > 490


@pytest.mark.parametrize(
    "kwargs",
    [
        {"size": "giant"},
        {"size": {"products": 0}},
        {"size": {"qualities": 2, "qualities_each": 3}},
        {"size": {"options": 9}},
        {"data": "x"},
        {"num_products": 5},
        {"size": {"colour": 3}},
    ],
)
def test_wrong_settings_are_named(kwargs):
    with pytest.raises(UsageError):
        rollenv.make("webshop:mini", **kwargs)
