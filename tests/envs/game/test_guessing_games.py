"""GuessTheNumber, Mastermind, Minesweeper."""

import pytest
from boards import at, boxed
from hypothesis import given
from hypothesis import strategies as st

import rollenv
from rollenv import UsageError
from rollenv.envs.game.mastermind import pegs
from rollenv.envs.game.minesweeper import bits, grid_of, neighbours

# -- GuessTheNumber ----------------------------------------------------------------------------------------------------


def test_hints_are_true_and_on_the_board():
    env = at("game:GuessTheNumber-v0-hard", secret=30)
    assert "higher" in env.step(boxed(10))[0]
    observation, reward, _, _, info = env.step(boxed(40))
    assert "lower" in observation
    assert reward == 0
    assert "10 (higher), 40 (lower)" in info["suffix"]
    assert env.step(boxed(30))[1:3] == (1.0, True)


def test_the_turn_limit_pays_for_being_near_even_with_a_repeat():
    env = at("game:GuessTheNumber-v0-easy", secret=7)
    for guess in (1, 2, 5):
        env.step(boxed(guess))
    _, reward, terminated, truncated, info = env.step(boxed(5))
    assert (terminated, truncated, info["success"]) == (False, True, False)
    assert reward == pytest.approx(1 - 2 / 9)


def test_numbers_outside_the_range_cost_a_turn():
    env = at("game:GuessTheNumber-v0-easy", secret=7)
    for guess in (0, -3, 11):
        assert env.step(boxed(guess))[1:4] == (0.0, False, False)
    assert env.render() == "Guesses so far: "


@pytest.mark.parametrize(("last", "paid"), [(11, 0), (0, 0), (-3, 0), (10, 1 - 3 / 9), (1, 1 - 6 / 9)])
def test_the_turn_limit_pays_nothing_for_a_number_outside_the_range(last, paid):
    env = at("game:GuessTheNumber-v0-easy", secret=7, turn=3)
    assert env.step(boxed(last))[1:4] == (pytest.approx(paid), False, True)


def test_secrets_are_uniform():
    env = rollenv.make("game:GuessTheNumber-v0-easy")
    env.reset(0)
    counts = [0] * 11
    for _ in range(2000):
        env.reset()
        counts[env.secret] += 1
    assert counts[0] == 0
    assert all(150 < n < 250 for n in counts[1:]), counts


# -- Mastermind --------------------------------------------------------------------------------------------------------

codes = st.lists(st.integers(1, 6), min_size=4, max_size=4)


@given(codes, codes)
def test_pegs_agree_with_counting(code, guess):
    black, white = pegs(code, guess)
    assert black == sum(a == b for a, b in zip(code, guess, strict=True))
    assert black + white == sum(min(code.count(n), guess.count(n)) for n in range(1, 7))


@given(st.lists(st.permutations(range(1, 7)).map(lambda p: p[:4]), min_size=1, max_size=15))
def test_only_a_new_best_pays(guesses):
    env = at("game:Mastermind-v0", code=[1, 2, 3, 4])
    best = 0
    for guess in guesses:
        reward, won = env.step(boxed(" ".join(map(str, guess))))[1:3]
        black = pegs([1, 2, 3, 4], guess)[0]
        assert reward == max(0, black - best) / 4
        best = max(best, black)
        assert won == (black == 4)
        if won:
            break


@pytest.mark.parametrize("move", ["1 2 3", "1 2 3 4 5", "0 1 2 3", "1 2 3 9"])
def test_codes_of_the_wrong_form_cost_a_turn(move):
    env = at("game:Mastermind-v0", code=[1, 2, 3, 4])
    assert env.step(boxed(move))[1:4] == (0.0, False, False)
    assert env.step(boxed("1 2 3 4"))[1] == 1.0


def test_codes_repeat_numbers_only_if_asked():
    plain = rollenv.make("game:Mastermind-v0")
    double = rollenv.make("game:Mastermind-v0", duplicate_numbers=True)
    repeats = [0, 0]
    for seed in range(100):
        for i, env in enumerate((plain, double)):
            env.reset(seed)
            repeats[i] += len(set(env.code)) < 4
    assert repeats[0] == 0
    assert repeats[1] > 40


def test_impossible_codes_are_refused():
    with pytest.raises(UsageError, match="duplicate_numbers=True"):
        rollenv.make("game:Mastermind-v0", code_length=7)


# -- Minesweeper -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["game:Minesweeper-v0-easy", "game:Minesweeper-v0-hard", "game:Minesweeper-v0"])
def test_the_first_reveal_opens_an_area(env_id):
    env = rollenv.make(env_id)
    for seed in range(50):
        env.reset(seed)
        cell = seed % (env.rows * env.cols)
        reward, over = env.step(boxed(f"reveal {cell // env.cols} {cell % env.cols}"))[1:3]
        assert reward > 0
        assert env.mines.bit_count() == env.num_mines
        near = sum(1 << c for c in neighbours(env.rows, env.cols, cell))
        assert not env.mines & (near | 1 << cell)
        assert over == (env.open.bit_count() == env.rows * env.cols - env.num_mines)


def test_a_crowded_board_still_starts_safely():
    env = rollenv.make("game:Minesweeper-v0-easy", num_mines=24)
    for seed in range(20):
        env.reset(seed)
        assert env.step(boxed("reveal 2 2"))[1:3] == (1.0, True)


def test_revealing_all_safe_cells_wins_without_flags():
    env = at("game:Minesweeper-v0-easy", mines=1, open=0)
    env.num_mines = 1
    assert env.step(boxed("reveal 4 4"))[1:3] == (pytest.approx(1.0), True)


def test_a_mine_ends_the_game_with_nothing():
    env = at("game:Minesweeper-v0-easy", mines=0b11111)
    _, reward, terminated, truncated, info = env.step(boxed("reveal 0 3"))
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)


def test_flags_come_and_go_and_protect():
    env = at("game:Minesweeper-v0-easy", mines=0b11111)
    assert "  0  F" in env.step(boxed("flag 0 0"))[4]["suffix"]
    assert env.step(boxed("reveal 0 0"))[1:3] == (0.0, False)
    assert "F" not in env.step(boxed("flag 0 0"))[4]["suffix"]
    assert env.step(boxed("reveal 0 0"))[2]


def test_flags_stop_what_opens_by_itself():
    env = at("game:Minesweeper-v0-easy", mines=0b11111 << 20)
    for col in range(5):
        env.step(boxed(f"flag 1 {col}"))
    assert env.step(boxed("reveal 0 0"))[1:3] == (pytest.approx(5 / 20), False)
    assert env.render().count("F") == 5
    assert env.step(boxed("reveal 2 2"))[1] == pytest.approx(10 / 20)
    for col in range(5):
        env.step(boxed(f"flag 1 {col}"))
        reward, won = env.step(boxed(f"reveal 1 {col}"))[1:3]
        assert (reward, won) == (pytest.approx(1 / 20), col == 4)


@pytest.mark.parametrize("verb", ["open", "mark", "UNFLAG"])
def test_unknown_verbs_cost_a_turn(verb):
    env = at("game:Minesweeper-v0-easy", mines=0b11111)
    assert env.step(boxed(f"{verb} 0 0"))[1:4] == (0.0, False, False)
    assert "F" not in env.render()


@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_an_opened_area_is_closed(rows, cols, data):
    """Around every opened cell without a mine near it, everything is open; no mine is."""
    grid = grid_of(rows, cols)
    mines = data.draw(st.integers(0, grid.full))
    start = data.draw(st.integers(0, grid.size - 1))
    opened = grid.opened_from(start, mines)
    for cell in bits(opened):
        near = sum(1 << c for c in neighbours(rows, cols, cell))
        assert near & mines or not near & ~opened
    assert not opened & mines & ~(1 << start)


def test_numbers_count_the_mines_around():
    env = rollenv.make("game:Minesweeper-v0-hard")
    for seed in range(10):
        env.reset(seed)
        env.step(boxed("reveal 4 4"))
        rows = [line.split()[1:] for line in env.render().splitlines()[1:]]
        for cell in range(64):
            shown = rows[cell // 8][cell % 8]
            count = sum(env.mines >> c & 1 for c in neighbours(8, 8, cell))
            assert shown == (str(count) if env.open >> cell & 1 else ".")


@pytest.mark.parametrize("kwargs", [{"num_mines": 0}, {"num_mines": 64}, {"rows": 0}])
def test_impossible_boards_are_refused(kwargs):
    with pytest.raises(UsageError, match="mine"):
        rollenv.make("game:Minesweeper-v0", **kwargs)


def test_mines_are_hidden():
    """Boards that differ in their mines alone look alike."""
    views = []
    for mines in (0b11111, 0b11111 << 20):
        env = at("game:Minesweeper-v0-easy", mines=mines)
        views.append((env.render(), env.step(boxed("reveal 2 2"))[0]))
    assert views[0] == views[1]
