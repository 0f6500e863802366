"""Nim: the rules, perfect play, and the view from one seat."""

import itertools

import pytest
from played import to_the_end

import rollenv
from rollenv import UsageError
from rollenv.envs.multi.nim import Nim, NimSeat, legal_moves, win_chance


def wins_by_search(piles, max_take):
    """Whether the player to move wins, by looking at everything."""
    return any(
        not wins_by_search(tuple(p - amount * (i == pile - 1) for i, p in enumerate(piles)), max_take)
        for amount, pile in legal_moves(piles, max_take)
    )


@pytest.mark.parametrize("max_take", [None, 1, 2, 3])
def test_the_nim_sum_tells_who_wins(max_take):
    game = Nim(max_take=max_take)
    for piles in itertools.product(range(4), repeat=3):
        assert (game._nim_sum(piles) != 0) == wins_by_search(piles, max_take), piles


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize("opponent", ["random", "expert"])
def test_the_expert_wins_from_every_seat_with_two_players(seat, opponent):
    env = rollenv.make("multi:Nim-v0", seat=seat, opponent=opponent)
    assert all(play(env, seed) for seed in range(50))


def play(env, seed):
    env.reset(seed)
    _, reward, _, _, info = to_the_end(env)[-1]
    assert reward == float(info["success"])
    return info["success"]


def test_win_chances_of_three():
    assert win_chance((1,), 0, 3, 3) == 1.0
    assert win_chance((1,), 1, 3, 3) == 0.0
    assert win_chance((1, 1), 1, 3, 3) == 1.0
    # the next player takes one or both of a pile of two; after one, the second player takes the last
    assert win_chance((2,), 1, 2, 3) == 0.5


def test_more_players_and_a_search_that_beats_chance():
    for players in (3, 4):
        env = rollenv.make("multi:Nim-v0-3p", players=players)
        assert sum(play(env, seed) for seed in range(200)) / 200 > 1.3 / players


def test_all_seats_as_a_game_of_several_agents():
    game = Nim(players=3)
    game.reset(4)
    totals = dict.fromkeys(game.possible_agents, 0.0)
    while game.agents:
        agent = game.agent_selector.selected
        _, rewards, *_ = game.step({agent: game.expert_action(agent)})
        for name, reward in rewards.items():
            totals[name] += reward
    assert sorted(totals.values()) == [0.0, 0.0, 1.0]
    assert totals == game.cumulative_rewards


@pytest.mark.parametrize(
    "action",
    ["take 1 from pile 1", "\\boxed{take 9 from pile 1}", "\\boxed{take 0 from pile 1}", "\\boxed{take 1 from pile 4}"],
)
def test_an_illegal_move_forfeits(action):
    env = rollenv.make("multi:Nim-v0")
    env.reset(0)
    _, reward, terminated, _, info = env.step(action)
    assert (reward, terminated) == (-0.1, True)
    assert info == {"valid": False, "success": False}
    assert env.game.infos["player 2"]["success"] is True
    game = Nim(players=3)
    game.reset(0)
    game.step({"player 1": action})
    assert game.agents == ["player 2", "player 3"]
    assert game.agent_selector.selected == "player 2"


def test_an_opponent_of_ones_own_sees_its_own_observation():
    seen = []

    def greedy(observation):
        seen.append(observation)
        pile = next(line for line in observation.splitlines() if line.startswith("pile") and not line.endswith(" 0"))
        return f"\\boxed{{take 1 from {pile.partition(':')[0]}}}"

    env = NimSeat(seat=1, opponent=greedy)
    env.reset(0)
    while not env.step(env.oracle_action())[2]:
        pass
    assert all("You are player 1" in observation for observation in seen)


def test_moves_are_read_generously():
    env = rollenv.make("multi:Nim-v0")
    env.reset(0)
    assert env.step("I think \\boxed{Take 1 from 1}")[4]["valid"] is True


@pytest.mark.parametrize(
    "kwargs",
    [
        {"players": 5},
        {"num_piles": 0},
        {"max_pile": 1},
        {"max_take": 0},
        {"seat": 2},
        {"opponent": "perfect"},
        {"num_piles": 1, "max_take": None, "seat": 1},
    ],
)
def test_wrong_settings_are_refused(kwargs):
    with pytest.raises(UsageError):
        rollenv.make("multi:Nim-v0", **kwargs)
