"""The WebShop recipe measures what it says: goals that training never asks for, in a shop that training knows."""

from __future__ import annotations

import pytest

import rollenv
from rollenv.trainers.config import load_config

pytest.importorskip("bm25s")


@pytest.fixture(scope="module")
def shops():
    config = load_config("webshop")
    return rollenv.make(config.env.id, **config.env.kwargs), rollenv.make(config.env.id, **config.eval.kwargs)


def asked(env) -> set[str]:
    return {env.goals[int(number)].instruction for number in env.goals.split(env.split)}


def test_no_goal_is_trained_on_and_tested(shops):
    train, test = map(asked, shops)
    assert len(test) >= 20
    assert not train & test


def test_every_product_of_the_test_is_in_the_shop_of_the_training(shops):
    train, test = (env.shop.catalogue for env in shops)
    for number in range(48):
        assert train.product(number).title == test.product(number).title
        assert train.product(number).options == test.product(number).options
