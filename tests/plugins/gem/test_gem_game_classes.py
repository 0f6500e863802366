"""GEM's game classes as its callers use them; test_gem_games.py compares their rewards with GEM's own."""

from __future__ import annotations

import copy
import importlib
import random
from pathlib import Path

import numpy as np
import pytest
from gem_differences import page

import rollenv
from rollenv.envs.game.sokoban.env import RANDOM_SIZES
from rollenv.plugins.gem import core, games, utils

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


POSITIONAL = [
    (games.SokobanEnv, ((7, 7), 50, 2), "dim_room max_turns num_boxes"),
    (games.FifteenPuzzleEnv, (30, 3), "max_turns num_rows"),
    (games.WordleEnv, (4, True, 9), "word_length only_real_words max_turns"),
    (games.MastermindEnv, (3, 5, True, 8), "code_length num_numbers duplicate_numbers max_turns"),
]


@pytest.mark.parametrize(("cls", "given", "names"), POSITIONAL)
def test_positional_arguments_are_in_gem_s_order(cls, given, names):
    env = cls(*given)
    assert tuple(getattr(env, name) for name in names.split()) == given


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


HIDDEN = [
    (games.GuessTheNumberEnv, "game_number", 7, "7"),
    (games.WordleEnv, "secret_word", "crane", "crane"),
    (games.HangmanEnv, "secret_word", "crane", "CRANE"),
    (games.MastermindEnv, "game_code", [4, 3, 2, 1], "4 3 2 1"),
]


@pytest.mark.parametrize(("cls", "name", "value", "action"), HIDDEN)
def test_hidden_answers_can_be_set_and_the_episode_goes_on(cls, name, value, action):
    env = cls()
    env.reset()
    env.step("bad")
    env.turn_count = 0
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


def test_odd_ranges_and_limits_of_guesses():
    for low, ended in ((1, True), (0, False), (-2, False)):
        env = games.GuessTheNumberEnv(low, 9, 5)
        env.reset()
        env.game_number = 5
        assert env.step("\\boxed{0}")[1:3] == (-0.1 if ended else 0.0, ended)
    assert games.GuessTheNumberEnv(5, 5, 4).step("\\boxed{5}")[1:4] == (1.0, True, False)
    env = games.GuessTheNumberEnv(1, 10, 0)
    env.game_number = 5
    assert env.step("\\boxed{6}")[1:4] == (pytest.approx(8 / 9), True, True)


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


class OwnReset(games.GuessTheNumberEnv):
    """An author's reset that calls the base of all environments alone."""

    def reset(self, seed=None):
        core.Env.reset(self, seed)
        self.game_number = random.randint(self.min_number, self.max_number)
        self.previous_guesses = set()
        self.turn_count = 0
        return "x", {"suffix": self.get_task_suffix(), "draw": random.random()}


def test_an_author_s_reset_need_not_call_ours():
    env = OwnReset(1, 9, 4)
    first, number = env.reset(seed=3), env.game_number
    assert env.reset(seed=3) == first
    assert env.step(f"\\boxed{{{number}}}")[1:4] == (1.0, True, False)
    env.reset()
    assert env.step(f"\\boxed{{{number % 9 + 1}}}")[2] == (env.game_number == number % 9 + 1)
    assert OwnReset(1, 9, 4).step("no box")[1:4] == (-0.1, True, False)


def test_an_author_s_reset_may_do_nothing_to_the_game():
    class Bare(games.SokobanEnv):
        def reset(self, seed=None):
            return self.get_task_suffix(), {}

    env = Bare()
    for _ in range(2):
        assert env.reset()[0] == env.get_task_suffix()
        assert env.step("no box")[1:3] == (-0.1, True)


@pytest.mark.parametrize("cls", ENVS)
def test_an_author_s_texts_are_used(cls):
    class Mine(cls):
        def get_task_suffix(self):
            return f"suffix: {super().get_task_suffix()}"

        def _get_instructions(self):
            return f"rules: {super()._get_instructions()}"

        def sample_random_action(self):
            return "my action"

    env = Mine()
    told, info = env.reset(0)
    assert told.startswith("rules: ")
    assert "my action" in told
    assert info["suffix"].startswith("suffix: ")
    assert env.step("no box")[4]["suffix"].startswith("suffix: ")
    assert cls()._get_instructions()


def test_rewards_that_a_user_changes_are_paid(monkeypatch):
    def paid(cls, action, *args, **state):
        env = cls(*args)
        env.reset(0)
        for name, value in state.items():
            setattr(env, name, value)
        return env.step(f"\\boxed{{{action}}}")[1]

    names = ("success", "internal_step", "fail", "invalid_action", "format_error")
    for name, value in zip(names, (10.0, 0.5, -3.0, -2.0, -1.0), strict=True):
        monkeypatch.setattr(utils.LanguageGameReward, f"{name}_reward", value)
    guess = games.GuessTheNumberEnv
    assert [paid(guess, action, game_number=5) for action in ("5", "6", "99", "x")] == [10, 0.5, -2, -1]
    assert paid(guess, "6", game_number=6, turn_count=19) == 10
    assert paid(guess, "99", game_number=6, turn_count=19) == -2
    assert paid(games.WordleEnv, "crane", secret_word="crane") == 5.5
    assert paid(games.WordleEnv, "cr", secret_word="crane") == -2
    assert paid(games.MastermindEnv, "5 5 5 5", game_code=[1, 2, 3, 4]) == 0
    assert [paid(games.TowerofHanoiEnv, move) for move in ("A B", "B A")] == [0.5, -2]
    assert paid(games.TowerofHanoiEnv, "A B", turn_count=99) == 0
    mines = {"grid": [[-1, 1], [1, 1]], "first_reveal": False}
    assert [paid(games.MinesweeperEnv, f"{cell}", 2, 2, 1, **mines) for cell in ("reveal 0 0", "flag 0 0")] == [-3, 0.5]
    room = np.array([[0] * 5, [0, 5, 4, 2, 0], [0, 1, 1, 1, 0], [0] * 5])
    moves = [paid(games.SokobanEnv, move, (5, 5), 9, 1, room_state=room) for move in ("right", "down", "up", "x")]
    assert moves == [10, 0.5, -2, -1]
    crossword = {"solution": [["C", "A", "T"]], "board": [["_", "_", "T"]]}
    assert [paid(games.CrosswordsEnv, cell, **crossword) for cell in ("0 0 x", "0 2 t", "0 0 c")] == [0.5, -2, 1 / 3]
    letters = {"game_board": [list("CAT"), list("XYZ"), list("XYZ")], "placed_words": {"CAT": (0, 0, "across")}}
    assert [paid(games.WordSearchEnv, cells, **letters) for cells in ("1 0 1 2", "0 0 1 2", "0 0 0 2")] == [0.5, -2, 1]


@pytest.mark.parametrize("cls", ENVS)
def test_every_piece_of_the_state_can_be_set_to_what_it_is(cls):
    derived = {"action_rng", "greatest_num", "legend", "move_limit", "np_random", "np_random_seed", "page", "unwrapped"}
    derived |= {"own_spec"}
    env = cls()
    env.reset(4)
    told = env.get_task_suffix()
    for name in [n for n in dir(cls) if isinstance(getattr(cls, n), property) and n not in derived]:
        value = getattr(env, name)
        setattr(env, name, copy.deepcopy(value))
        assert np.array_equal(getattr(env, name), value), name
    assert env.get_task_suffix() == told
    twin = cls()
    twin.set_state(env.get_state())
    assert twin.get_task_suffix() == told


def test_boards_that_are_set_are_played():
    env = games.Game2048Env(16, 50)
    env.board, env.max_tile_achieved, env.init_max_tile_achieved = [[8, 8, 0, 0]] + [[0] * 4] * 3, 8, 2
    assert env.step("\\boxed{left}")[1:4] == (pytest.approx(1 / 3), True, False)
    env = games.TowerofHanoiEnv(2, 10)
    env.board = {"A": [], "B": [1], "C": [2]}
    assert env.step("\\boxed{B C}")[1:4] == (1.0, True, False)
    env = games.FifteenPuzzleEnv(10, 2)
    env.board = [[1, 2], [None, 3]]
    assert not env._is_solved()
    assert env.step("\\boxed{left}")[1:4] == (1.0, True, False)
    full = [[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]
    env = games.SudokuEnv(5, 9, 4)
    env.full_grid, env.board, env.init_num_empty = full, [[0, *full[0][1:]], *full[1:3], [0, *full[3][1:]]], 2
    assert env.is_safe(env.board, 0, 0, 1)
    assert not env.is_safe(env.board, 0, 0, 2)
    assert [env.step(f"\\boxed{{{move}}}")[1:3] for move in ("1 1 1", "4 1 4")] == [(0.5, False), (0.5, True)]
    env = games.HangmanEnv(4)
    env.secret_word, env.board = "hello", ["_"] * 5
    assert env.step("\\boxed{l}")[1] == 0.2
    assert env.guessed_letters == {"L"}
    assert env.step("\\boxed{hello}")[1:4] == (0.8, True, False)
    env = games.CrosswordsEnv()
    env.solution, env.clues, env.total_letter_cells = [list("CAT"), list("A.."), list("R..")], {"cat": "Purrs"}, 10
    assert "Purrs" in env.get_task_suffix()
    assert env.placed_words == {"CAT": (0, 0, "across"), "CAR": (0, 0, "down")}
    assert env.step("\\boxed{2 0 r}")[1] == 0.1


def test_what_gem_s_games_tell_of_themselves():
    mastermind, wordle, hangman = games.MastermindEnv(), games.WordleEnv(), games.HangmanEnv()
    mastermind.game_code, wordle.secret_word = [1, 2, 3, 4], "crane"
    assert mastermind._evaluate_guess([1, 3, 2, 6]) == (1, 2)
    assert [mastermind.get_current_success_internal_reward(n) for n in (1, 3, 2)] == [0.25, 0.5, 0]
    assert mastermind.milestone == 3
    assert wordle._evaluate_guess("caner") == list("GYYYY")
    assert wordle.get_current_success_internal_reward("GXXXX") == 0.1
    assert wordle.milestones == [1, 0, 0, 0, 0]
    assert {len(word) for word in hangman.available_words} == {5}
    assert set(wordle.available_words) < set(wordle.all_words)
    assert hangman.get_current_success_internal_reward("A") is None
    sokoban = games.SokobanEnv()
    assert sokoban.action_space == ["up", "down", "left", "right"]
    assert sokoban._parse_action("go \\boxed{Up}") == "up"
    assert (len(sokoban.box_mapping), sokoban.num_gen_steps) == (3, 20)
    assert sokoban._count_boxes_on_targets() < 3
    sokoban.box_mapping = {}
    assert sokoban.box_mapping == {}
    assert games.Game2048Env()._parse_action("none") is None
    assert games.CrosswordsEnv()._parse_action("\\boxed{1 2 a}") == (1, 2, "A")
    search = games.WordSearchEnv()
    assert search._parse_action("\\boxed{1 2 3 4}") == (1, 2, 3, 4)
    search.step("\\boxed{0 0 0 1}")
    assert (search.attempts, search.highlighted_positions) == ([(0, 0, 0, 1)], set())
    assert search.word_list
    assert games.CrosswordsEnv().word_data[0].keys() == {"word", "clues", "hardcore"}
    for cls in ENVS:
        assert cls()._is_random is False
        assert isinstance(cls()._render_board(), str)


def test_state_is_drawn_as_gem_holds_it():
    env = games.SokobanEnv(None, None, None)
    env.reset(0)
    assert (env.dim_room, env.num_boxes, env.max_turns) in RANDOM_SIZES
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


def test_the_page_about_the_differences_is_up_to_date():
    path = Path(__file__).parents[3] / "docs" / "gem" / "games.md"
    assert path.read_text(encoding="utf-8") == page(), (
        "run: python tests/plugins/gem/gem_differences.py > docs/gem/games.md"
    )


@pytest.mark.combinations
@pytest.mark.slow
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
