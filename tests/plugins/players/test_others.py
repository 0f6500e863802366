"""Games of TextArena and PettingZoo, and our own, with a player in each seat."""

import json
import os
import random
from pathlib import Path

import pytest

import rollenv
from rollenv.core.errors import RollenvError, UnknownEnv, UsageError
from rollenv.envs.multi.nim import Nim
from rollenv.plugins.players.multi import MultiTable

HERE = str(Path(__file__).parent)


@pytest.fixture
def aec(monkeypatch):
    pytest.importorskip("pettingzoo", reason="pettingzoo is not installed: pip install 'rollenv[players]'")
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]))


def finished(env, seed, act=None):
    """Play an episode, and return the last info and the sum of rewards by player."""
    _, info = env.reset(seed)
    totals, over = [0.0] * env.players, False
    while not over:
        mover = info["player"]
        _, reward, terminated, truncated, info = env.step(act(env) if act else env.sample_random_action())
        assert info["rewards"][mover] == reward
        totals = [total + gain for total, gain in zip(totals, info["rewards"], strict=True)]
        over = terminated or truncated
    return info, totals


# -- PettingZoo ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["aec_games", "aec_games:Chain"])
def test_an_aec_environment_keeps_the_contract(aec, module):
    rollenv.check_env(f"pettingzoo:{module}", episodes=5)


def test_the_loser_gets_its_last_reward(aec):
    env = rollenv.make("pettingzoo:aec_games")
    for seed in range(10):
        info, totals = finished(env, seed)
        assert sorted(totals) == [-1, 1]
        assert info["success"] == [total == 1 for total in totals]
        assert all("0 left" in told for told in info["observations"])


def test_a_masked_action_forfeits(aec):
    env = rollenv.make("pettingzoo:aec_games")
    env.reset(0)
    while env.unwrapped.game.left > 1:
        env.step("\\boxed{1}")
    mover = env.unwrapped.mover()
    info = env.step("\\boxed{2}")[4]
    assert info["rewards"][mover] == -1
    assert (info["valid"], info["metrics"], any(info["success"])) == (False, {"forfeits": 1.0}, False)


def test_a_limit_of_the_environment_truncates(aec):
    env = rollenv.make("pettingzoo:aec_games:Short")
    for _ in range(2):
        env.reset(0)
        ends = [env.step("\\boxed{1}")[2:4] for _ in range(4)]
        assert ends == [(False, False)] * 3 + [(False, True)]


def test_players_of_a_game_of_texts_may_win_together(aec):
    env = rollenv.make("pettingzoo:aec_games:Chain")
    words = iter(["tea", "apple", "egg"])
    info, totals = finished(env, 0, lambda env: next(words))
    assert info["success"] == [True, True]
    assert totals == [1.5, 1.5]


def test_names_of_players_are_arguments_of_the_function(aec):
    env = rollenv.make("pettingzoo:aec_games", names=["x", "y", "z"])
    assert "You are x, one of x, y, z." in env.reset(0)[0]
    assert env.players == 3


@pytest.mark.parametrize(
    ("module", "error", "fact"),
    [
        ("no_such_module", UsageError, "no_such_module"),
        ("aec_games:none", UsageError, "none"),
        ("json:loads", UsageError, "cannot be made"),
        ("random:Random", UsageError, "no AEC"),
    ],
)
def test_what_is_no_aec_environment_is_refused(aec, module, error, fact):
    with pytest.raises(error, match=fact):
        rollenv.make(f"pettingzoo:{module}")


def test_an_environment_that_raises_fails_the_episode(aec):
    env = rollenv.make("pettingzoo:aec_games:Failing")
    env.reset(0)
    with pytest.raises(RollenvError, match="no such stick"):
        env.step("\\boxed{1}")


# -- TextArena -------------------------------------------------------------------------------------------------------

textarena = pytest.mark.parametrize("game", ["TicTacToe-v0", "SimpleNegotiation-v0-short"])


@textarena
def test_a_game_of_textarena_keeps_the_contract(game):
    pytest.importorskip("textarena", reason="textarena is not installed")
    rollenv.check_env(f"ta2:{game}", episodes=3)


@textarena
def test_other_games_do_not_change_a_deal(game):
    pytest.importorskip("textarena", reason="textarena is not installed")
    one, other = rollenv.make(f"ta2:{game}"), rollenv.make("ta2:KuhnPoker-v0-short")
    before = random.getstate()
    alone = finished(one, 3)
    one.reset(3)
    other.reset(8)
    assert finished(one, 3) == alone
    assert random.getstate() == before


@pytest.mark.parametrize(
    "game",
    [
        "Chopsticks-v0",
        "ColonelBlotto-v0-small",
        "Briscola-v0",
        "TwoDollar-v0",
        "Golf-v0",
        "Nim-v0-large",
        "Alquerque-v0",
    ],
)
def test_random_players_move_by_the_rules(game):
    pytest.importorskip("textarena", reason="textarena is not installed")
    env = rollenv.make(f"ta2:{game}")
    for seed in range(2):
        info, _ = finished(env, seed)
        assert info["valid"]
        assert "forfeits" not in info.get("metrics", {})


def test_a_negotiator_sees_only_its_own_values():
    pytest.importorskip("textarena", reason="textarena is not installed")
    env = rollenv.make("ta2:SimpleNegotiation-v0")
    first, info = env.reset(1)
    second, _, _, _, after = env.step("Shall we trade wheat? [Offer: 1 Wheat -> 1 Wood]")
    assert (info["player"], after["player"]) == (0, 1)
    values = [line for line in first.splitlines() if "Value" in line]
    assert values
    assert not [line for line in values if line in second]
    assert "Shall we trade wheat?" in second


def test_two_wrong_moves_in_a_row_forfeit():
    pytest.importorskip("textarena", reason="textarena is not installed")
    env = rollenv.make("ta2:TicTacToe-v0")
    env.reset(0)
    again = env.step("[99]")
    assert (again[2], again[4]["valid"], again[4]["player"]) == (False, False, 0)
    *_, info = env.step("[99]")
    assert info["rewards"] == [-1, 1]
    assert info["metrics"] == {"forfeits": 1.0}


@pytest.mark.parametrize("game", ["Sudoku-v0", "Wordle-v0", "TicTacToe-v9"])
def test_a_game_for_one_player_or_none_is_refused(game):
    with pytest.raises(UnknownEnv, match=game):
        rollenv.make(f"ta2:{game}")


def test_a_wrong_number_of_players_is_refused():
    pytest.importorskip("textarena", reason="textarena is not installed")
    with pytest.raises(UsageError, match="has to be 2"):
        rollenv.make("ta2:TicTacToe-v0", num_players=3).reset(0)


# -- our own ---------------------------------------------------------------------------------------------------------


def test_nim_is_won_by_who_can():
    for seed in range(20):
        env = rollenv.make("multi:Nim-v0-seats")
        env.reset(seed)
        first = bool(env.unwrapped.game._nim_sum(env.unwrapped.game.piles))
        info, totals = finished(env, seed, lambda env: env.oracle_action())
        assert info["success"] == [first, not first]
        assert totals == [float(first), float(not first)]


def test_a_player_who_is_out_no_longer_moves():
    env = rollenv.make("multi:Nim-v0-seats", players=3)
    _, info = env.reset(0)
    state = json.loads(json.dumps(env.get_state()))
    *_, info = env.step("give up")
    assert (info["valid"], info["rewards"], info["player"]) == (False, [-0.1, 0.0, 0.0], 1)
    movers = {1}
    while "observations" not in info:
        *_, info = env.step(env.sample_random_action())
        movers.add(info.get("player", 1))
    assert movers == {1, 2}
    env.set_state(state)
    assert env.unwrapped.mover() == 0


def test_a_game_of_simultaneous_moves_is_refused():
    game = Nim()
    game.agent_selector.mode = "parallel"
    with pytest.raises(UsageError, match="sequential"):
        MultiTable(game)
