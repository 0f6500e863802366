"""Games of rollenv as environments of PettingZoo."""

import functools

import pytest

import rollenv

pytest.importorskip("pettingzoo")
from pettingzoo.test import api_test, render_test, seed_test

from rollenv.plugins.players import pettingzoo_export

GAMES = ["multi:Nim-v0-seats", "spiel:kuhn_poker", "spiel:connect_four", "ta2:TicTacToe-v0", "ta2:SimpleNegotiation-v0"]


@pytest.mark.combinations
@pytest.mark.filterwarnings("ignore::UserWarning")  # they advise numbers as observations and actions
@pytest.mark.parametrize("env_id", GAMES)
def test_pettingzoos_own_tests(env_id):
    api_test(pettingzoo_export.env(env_id), num_cycles=100)
    seed_test(lambda: pettingzoo_export.env(env_id), num_cycles=50)
    render_test(functools.partial(pettingzoo_export.env, env_id))


@pytest.mark.parametrize("env_id", ["spiel:kuhn_poker", "multi:Nim-v0-seats"])
def test_it_is_the_same_game(env_id):
    ours, theirs = rollenv.make(env_id), pettingzoo_export.env(env_id)
    observation, info = ours.reset(5)
    theirs.reset(seed=5)
    total = dict.fromkeys(theirs.possible_agents, 0.0)
    over = False
    while not over:
        agent = f"player_{info['player']}"
        assert theirs.agent_selection == agent
        assert observation in theirs.last()[0]["text"]
        action = ours.oracle_action()
        observation, _, terminated, truncated, info = ours.step(action)
        theirs.step(action)
        over = terminated or truncated
    for agent in theirs.agent_iter():
        seen, reward, terminated, truncated, its_info = theirs.last()
        seat = theirs.possible_agents.index(agent)
        assert (terminated, truncated, its_info["success"]) == (True, False, info["success"][seat])
        assert seen["text"] == info["observations"][seat]
        total[agent] += reward
        theirs.step(None)
    assert sum(total.values()) == 0 or env_id.startswith("multi")
    assert max(total.values()) > 0


def test_no_player_sees_what_another_was_shown():
    game = pettingzoo_export.env("spiel:kuhn_poker")
    game.reset(seed=1)
    assert game.observe("player_1") == {"text": ""}
    with pytest.raises(rollenv.UsageError):
        pettingzoo_export.env("spiel:kuhn_poker", render_mode="sound")
