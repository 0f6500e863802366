"""GEM's game classes as its callers use them; test_gem_games.py compares their rewards with GEM's own."""

from __future__ import annotations

import copy
import importlib
from pathlib import Path

import numpy as np
import pytest
from gem_differences import page

import rollenv
from rollenv.compat.gem import games
from rollenv.envs.sokoban.env import RANDOM_SIZES

PAIRS = [(importlib.import_module(where.partition(":")[0]), where, name) for where, name in games.CLASSES.items()]
ENVS = [getattr(games, name) for _, _, name in PAIRS]


@pytest.mark.parametrize(("module", "where", "name"), PAIRS)
def test_every_class_is_one_of_rollenv_s_own_too(module, where, name):
    own = getattr(module, where.partition(":")[2])
    assert own.__module__ == module.__name__
    assert issubclass(getattr(games, name), own)
    assert issubclass(own, rollenv.Env)


def test_every_game_has_its_class():
    for spec in rollenv.list_envs("game:"):
        own = type(rollenv.make(spec.id))
        assert f"{own.__module__}:{own.__name__}" in games.CLASSES


def test_positional_arguments_are_in_gem_s_order():
    env = games.SokobanEnv((7, 7), 50, 2)
    assert (env.dim_room, env.max_turns, env.num_boxes) == ((7, 7), 50, 2)
    env = games.FifteenPuzzleEnv(30, 3)
    assert (env.max_turns, env.num_rows) == (30, 3)
    env = games.WordleEnv(4, True, 9)
    assert (env.word_length, env.max_turns, env.only_real_words) == (4, 9, True)
    assert games.MastermindEnv(3, 5, True, 8).duplicate_numbers is True


@pytest.mark.parametrize("cls", ENVS)
def test_unknown_arguments_are_swallowed_and_rollenv_s_own_are_kept(cls):
    env = cls(seed=3, room_size=None, no_such_argument=1)
    env.reset(0)
    dense = games.SokobanEnv(observation="dense", rewards="ragen")
    assert dense.observation == "dense"
    assert dense.rewards.success == 10


@pytest.mark.parametrize("cls", ENVS)
@pytest.mark.parametrize("turns", [1, 3])
def test_every_limit_works_as_gem_s_tests_use_it(cls, turns):
    env = cls(max_turns=turns)
    env.reset(seed=1)
    ends = [env.step(env.sample_random_action())[2:4] for _ in range(turns)]
    assert ends[-1][0]
    assert env.turn_count <= turns


@pytest.mark.parametrize("cls", [cls for cls in ENVS if cls is not games.WikiGameEnv])
def test_one_size_of_none_draws_all(cls):
    sizes = set()
    name = cls.size_names[0] if hasattr(cls, "size_names") else "num_boxes"
    env = cls(**{name: None})
    for _ in range(30):
        env.reset()
        sizes.add(env.max_turns if "hardcore" not in getattr(cls, "size_names", ()) else env.hardcore)
    assert len(sizes) > 1


@pytest.mark.parametrize("cls", ENVS)
def test_attributes_can_be_read_before_a_reset_and_stay_what_they_are(cls):
    for name in [n for n in dir(cls) if isinstance(getattr(cls, n), property) and not n.startswith("_")]:
        if name != "page":  # WikiGame's own, which needs an episode
            getattr(cls(), name)
    env = cls()
    assert isinstance(env.sample_random_action(), str)
    assert env.get_task_suffix()
    assert len(env.step(env.sample_random_action())) == 5


@pytest.mark.parametrize("cls", [games.GuessTheNumberEnv, games.WordleEnv, games.HangmanEnv, games.MastermindEnv])
def test_hidden_answers_can_be_set(cls):
    name, value, action = {
        games.GuessTheNumberEnv: ("game_number", 7, "7"),
        games.WordleEnv: ("secret_word", "crane", "crane"),
        games.HangmanEnv: ("secret_word", "crane", "CRANE"),
        games.MastermindEnv: ("game_code", [4, 3, 2, 1], "4 3 2 1"),
    }[cls]
    env = cls()
    env.reset()
    setattr(env, name, value)
    assert env.step(f"\\boxed{{{action}}}")[1:4] == (1.0, True, False)


def test_random_actions_are_drawn_as_gem_draws_them():
    mines = games.MinesweeperEnv(5, 5, 5, 25)
    mines.reset(0)
    assert all(mines.sample_random_action("flag").startswith("\\boxed{flag ") for _ in range(5))
    flags = sum("flag" in mines.sample_random_action() for _ in range(1000))
    assert 50 < flags < 150
    hangman = games.HangmanEnv(5)
    assert len(hangman.sample_random_word()) == len("\\boxed{}") + 5
    assert len(hangman.sample_random_letter()) == len("\\boxed{}") + 1
    assert {len(hangman.sample_random_action()) for _ in range(50)} == {9, 13}


def test_zero_is_a_guess_where_the_range_has_it():
    for low, ended in ((1, True), (0, False), (-2, False)):
        env = games.GuessTheNumberEnv(low, 9, 5)
        env.reset()
        env.game_number = 5
        assert env.step("\\boxed{0}")[1:3] == (-0.1 if ended else 0.0, ended)


def test_turn_count_can_be_set():
    env = games.TowerofHanoiEnv(max_turns=10)
    env.reset()
    env.turn_count = 9
    assert env.step("\\boxed{A C}")[1:4] == (pytest.approx(1 / 3), True, True)


@pytest.mark.parametrize("cls", ENVS)
def test_a_malformed_action_ends_the_episode_and_says_so_at_the_limit(cls):
    env = cls(max_turns=2)
    if cls is not games.WikiGameEnv:
        env.reset(0)
        assert env.step("no box")[1:4] == (-0.1, True, False)
    env.reset(0)
    env.turn_count = 1
    assert env.step("no box")[2:4] == (True, True)


def test_state_is_drawn_as_gem_holds_it():
    env = games.SokobanEnv((6, 6), 20, 2)
    env.reset(3)
    row, col = env.player_position
    assert env.room_state[row, col] == 5
    assert (env.room_state == 4).sum() + (env.room_state == 3).sum() == (env.room_fixed == 2).sum() == 2
    assert np.array_equal(env.room_state == 0, env.room_fixed == 0)
    puzzle = games.FifteenPuzzleEnv(20, 3)
    puzzle.reset(0)
    assert sorted(tile or 0 for row in puzzle.board for tile in row) == list(range(9))
    assert games.TowerofHanoiEnv().board == {"A": [3, 2, 1], "B": [], "C": []}
    sudoku = games.SudokuEnv(10, 15, 4)
    sudoku.reset(1)
    assert sum(row.count(0) for row in sudoku.board) == sudoku.init_num_empty
    assert all(
        a in (0, b) for x, y in zip(sudoku.board, sudoku.full_grid, strict=True) for a, b in zip(x, y, strict=True)
    )
    mines = games.MinesweeperEnv(5, 5, 5, 25)
    mines.reset(0)
    mines.step("\\boxed{flag 0 0}")
    mines.step("\\boxed{reveal 2 2}")
    assert sum(row.count(-1) for row in mines.grid) == 5
    assert mines.flags[0][0]
    assert mines.revealed[2][2]


@pytest.mark.parametrize("cls", ENVS)
def test_state_is_saved_and_restored(cls):
    env, other = cls(), cls()
    env.reset(5)
    env.step(env.sample_random_action())
    other.set_state(env.get_state())
    twin, copied = env.spawn(same_state=True), copy.deepcopy(env)
    assert type(twin) is cls
    for _ in range(3):
        action = env.sample_random_action()
        assert env.step(action) == other.step(action) == twin.step(action) == copied.step(action)


def test_sokoban_draws_gem_s_random_sizes():
    env = games.SokobanEnv(None, None, None)
    env.reset(0)
    assert (env.dim_room, env.num_boxes, env.max_turns) in RANDOM_SIZES


def test_the_page_about_the_differences_is_up_to_date():
    path = Path(__file__).parents[2] / "docs" / "gem_games.md"
    assert path.read_text(encoding="utf-8") == page(), "run: python tests/compat/gem_differences.py > docs/gem_games.md"


@pytest.mark.parametrize("cls", ENVS)
@pytest.mark.parametrize(
    "piece",
    ["\\boxed{", "\\boxed{1 }", "\\boxed{a}", "a ", "aB", "1 ", "9" * 5000 + " ", "\\boxed{A" + " " * 5000 + "} "],
    ids=lambda piece: piece[:12],
)
def test_reading_an_action_takes_time_linear_in_its_length(cls, piece):
    """Half a megabyte of anything is read in a moment; a quadratic reader would take minutes."""
    env, n = cls(), 500_000 // len(piece)
    for text in ("\\boxed{" + piece * n, piece * n + "}"):
        env.reset(0)
        env.step(text)
