"""TextArena: the table of games, private seeding, opponents, and games that break."""

import importlib
import importlib.util
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest

import rollenv
from rollenv import UsageError
from rollenv.envs.ta.env import TextArena, candidates
from rollenv.envs.ta.games import GAMES, LEFT_OUT, NO_SAMPLER

#: Games that the benchmark's simple player of 2048 does not come far in.
HOPELESS = {"2048-v0-5x5", "2048-v0-6x6", "2048-v0-8x8", "2048-v0-10x10"}

pytestmark = pytest.mark.skipif(importlib.util.find_spec("textarena") is None, reason="needs textarena")


def test_every_game_of_the_installed_package_is_in_the_table():
    from textarena.envs.registration import ENV_REGISTRY

    there = {game for game in ENV_REGISTRY if not game.endswith(("-raw", "-train"))}
    assert set(GAMES) | set(LEFT_OUT) == there
    assert not set(GAMES) & set(LEFT_OUT)
    assert set(GAMES) >= NO_SAMPLER


def test_the_process_wide_generators_are_left_alone():
    env = rollenv.make("ta:PigDice-v0")
    random.seed(1)
    np.random.seed(1)
    expected = random.Random(1).random(), np.random.RandomState(1).random()
    env.reset(0)
    for _ in range(5):
        env.step(env.sample_random_action())
    assert (random.random(), np.random.random()) == expected


def test_interleaved_episodes_do_not_disturb_each_other():
    def episode(env, others=()):
        told = [env.reset(3)[0]]
        for _ in range(10):
            for other in others:
                other.step("[roll]")
            told.append(env.step("[roll]")[0])
        return told

    alone = episode(rollenv.make("ta:PigDice-v0-500"))
    beside = rollenv.make("ta:PigDice-v0-500")
    beside.reset(8)
    assert episode(rollenv.make("ta:PigDice-v0-500"), [beside]) == alone


def test_both_seats_and_an_opponent_of_ones_own():
    heard = []

    def left_to_right(observation):
        heard.append(observation)
        return f"[{len(heard) - 1}]"

    env = rollenv.make("ta:TicTacToe-v0", seat=1, opponent=left_to_right)
    observation, _ = env.reset(0)
    assert "[0]" in observation, "the other seat has moved first"
    assert env.step("[8]")[4]["valid"] is True
    _, reward, terminated, _, info = env.step("[7]")
    assert (reward, terminated, info["success"]) == (-1.0, True, False), "0, 1 and 2 are a row"
    assert len(heard) == 3


def test_the_second_mistake_ends_the_game():
    env = rollenv.make("ta:TicTacToe-v0")
    env.reset(0)
    first = env.step("[99]")
    assert first[4] == {"valid": False}
    _, reward, terminated, truncated, info = env.step("[99]")
    assert (reward, terminated, truncated) == (-1.0, True, False)
    assert info == {"valid": False, "success": False}


def test_text_without_brackets_is_put_in_them_and_long_text_is_cut():
    env = rollenv.make("ta:GuessTheNumber-v0")
    env.reset(0)
    assert env.step("7")[4]["valid"] is True
    observation, *_ = env.step("x" * 10**6)
    assert len(observation) < 5000


def test_a_game_that_breaks_ends_the_episode():
    env = rollenv.make("ta:TicTacToe-v0")
    env.reset(0)

    def fall(action):
        raise KeyError("board")

    env._game.step = fall
    observation, reward, terminated, _, info = env.step("[4]")
    assert (reward, terminated, info["valid"], info["success"]) == (-1.0, True, False, False)
    assert "KeyError" in info["error"]
    assert "KeyError" in observation
    env.reset(0)
    assert "error" not in env.step("[4]")[4]


def test_an_opponent_that_breaks_the_game_costs_the_agent_nothing():
    env = TextArena("TicTacToe-v0", 2, seat=1)
    env.reset(0)
    moves = env._game.step

    def fall_for_the_other(action):
        if env._state.current_player_id == 0:
            raise ValueError("no")
        return moves(action)

    env._game.step = fall_for_the_other
    free = next(n for n in range(9) if f"[{n}]" != f"[{env.render()[-2]}]")
    _, reward, terminated, _, info = env.step(f"[{free}]")
    assert terminated
    assert info["success"] is False
    assert reward in (0.0, -1.0)
    assert "error" in info or not info["valid"]


def test_ones_own_turn_limit_truncates():
    env = rollenv.make("ta:2048-v0", max_turns=3)
    env.reset(0)
    results = [env.step(env.sample_random_action()) for _ in range(3)]
    assert [r[2:4] for r in results] == [(False, False), (False, False), (False, True)]
    assert results[-1][4]["success"] is False


def test_states_are_replayed():
    env, other = rollenv.make("ta:PigDice-v0-500"), rollenv.make("ta:PigDice-v0-500")
    env.reset(4)
    for _ in range(4):
        env.step("[roll]")
    state = json.loads(json.dumps(env.get_state()))
    assert state["env"]["actions"] == ["[roll]"] * 4
    other.set_state(state)
    assert other.render() == env.render()
    for _ in range(4):
        assert other.step("[roll]") == env.step("[roll]")


def test_likely_moves_come_from_the_text():
    text = "[GAME] Place tiles with '[row col]', for example '[2 3]'. [Player 0] said [pass] "
    moves = candidates(text, random.Random(0))
    first = [next(moves) for _ in range(300)]
    assert set(first[:3]) == {"[row col]", "[2 3]", "[pass]"}
    assert {"[4 1]", "[0 2]"} <= set(first)
    assert "[GAME]" not in first


@pytest.mark.parametrize(
    "kwargs", [{"seat": 2}, {"opponent": "expert"}, {"max_turns": 0}, {"num_players": 0}, {"size": 3}]
)
def test_wrong_settings_are_refused(kwargs):
    with pytest.raises(UsageError):
        rollenv.make("ta:TicTacToe-v0", **kwargs)


@pytest.mark.parametrize(
    ("game", "share"),
    [("Countdown", "_calculate_progress"), ("Cryptarithm", "_progress"), ("Slitherlink", "_progress")],
)
def test_a_reward_and_a_reason_that_a_game_has_swapped_are_put_right(game, share):
    """These end over an invalid move with the share reached as their reward."""
    env = rollenv.make(f"ta:{game}-v0")
    env.reset(3)
    env.step("[nonsense]")
    reached = getattr(env._game, share)()
    _, reward, terminated, _, info = env.step("[nonsense]")
    assert (reward, terminated, info["success"]) == (pytest.approx(reached), True, reached >= 1)


@pytest.fixture(scope="module")
def played():
    """The players of the benchmark whose table the docs quote."""
    folder = Path(__file__).parents[3] / "benchmarks"
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("textarena_rewards")
    finally:
        sys.path.remove(str(folder))


@pytest.mark.parametrize("game_id", ["Bandit-v0", "FifteenPuzzle-v0", "Set-v0", "FrozenLake-v0", "GuessTheNumber-v0"])
def test_the_right_player_is_paid_most(played, game_id):
    right, wrong, lazy = (played.episode(game_id, 1, who)[0] for who in ("right", "wrong", "lazy"))
    assert right > max(0.99, wrong, lazy)


@pytest.mark.integration
@pytest.mark.parametrize("game_id", [game for game in GAMES if GAMES[game] == 1 and game not in HOPELESS])
def test_the_right_player_is_paid_most_in_every_game(played, game_id):
    right, wrong, lazy = (
        sum(played.episode(game_id, seed, who)[0] for seed in range(3)) for who in ("right", "wrong", "lazy")
    )
    assert right > max(wrong, lazy)


def test_a_guess_in_the_last_turn_is_paid():
    env = rollenv.make("ta:GuessTheNumber-v0")
    env.reset(seed=1)
    game = env.unwrapped._game
    wrong = [n for n in range(game.min_number, game.max_number + 1) if n != game.game_number]
    for number in wrong[: game.state.max_turns - 1]:
        assert not any(env.step(f"[{number}]")[2:4])
    assert env.step(f"[{game.game_number}]")[1] == 1.0


def test_points_without_the_tile_are_not_the_whole_reward():
    env = rollenv.make("ta:2048-v0-ultra-easy")
    env.reset(seed=1)
    env.unwrapped._game.state.game_state["score"] = 10_000
    env.step("[nothing]")
    _, reward, terminated, _, info = env.step("[nothing]")
    assert (terminated, 0 < reward < 1, info["success"]) == (True, True, False)


def test_satisfied_clues_without_a_loop_are_not_the_whole_reward():
    env = rollenv.make("ta:Slitherlink-v0")
    env.reset(seed=1)
    game = env.unwrapped._game
    game.clues = [[None] * game.C for _ in range(game.R)]
    env.step("[nothing]")
    assert env.step("[nothing]")[1] < 1


def test_a_set_is_three_cards():
    env = rollenv.make("ta:Set-v0")
    env.reset(seed=1)
    assert not env.step("[2, 02, 2]")[4]["valid"]
    assert env.unwrapped._game.state.game_state["score"] == 0
