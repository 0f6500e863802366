"""FifteenPuzzle, Sudoku, TowerofHanoi, Game2048."""

import itertools
from collections import Counter

import numpy as np
import pytest
from boards import at, boxed
from hypothesis import given
from hypothesis import strategies as st
from played import to_the_end

import rollenv
from rollenv import UsageError
from rollenv.envs.game.fifteen_puzzle import near_positions, solved
from rollenv.envs.game.game_2048 import slide, slide_left, slide_right, stuck
from rollenv.envs.game.sudoku_square import square_of

# -- FifteenPuzzle -----------------------------------------------------------------------------------------------------


def starts(env_id, n):
    env = rollenv.make(env_id)
    env.reset(0)
    seen = []
    for _ in range(n):
        env.reset()
        seen.append(env.tiles)
    return seen


def test_small_starts_are_uniform_over_all_solvable_positions():
    counts = Counter(starts("game:FifteenPuzzle-v0-easy", 2200))
    assert len(counts) == 11  # 4! / 2 positions can be solved; one of them is solved
    assert all(140 < n < 260 for n in counts.values()), counts


def test_there_are_many_starts():
    assert len(set(starts("game:FifteenPuzzle-v0", 300))) > 290
    assert len(set(starts("game:FifteenPuzzle-v0-hard", 300))) > 295


@pytest.mark.integration
def test_all_positions_of_the_eight_puzzle_are_known():
    positions, _ = near_positions(3, 31)
    assert len(positions) == 181_440 - 1
    assert len(near_positions(3, 30)[0]) == 181_440 - 3, "two positions need 31 moves"


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_starts_can_be_solved_and_are_not_solved(n):
    env = rollenv.make("game:FifteenPuzzle-v0-hard", num_rows=n)
    for seed in range(20):
        env.reset(seed)
        assert env.tiles != solved(n)
        assert solvable(env.tiles, n)


def solvable(tiles, n):
    inversions = sum(a > b for a, b in itertools.combinations([t for t in tiles if t], 2))
    empty_row_from_below = n - tiles.index(0) // n
    return inversions % 2 == 0 if n % 2 else (inversions + empty_row_from_below) % 2 == 1


def test_tiles_move_as_named():
    env = at("game:FifteenPuzzle-v0", tiles=[1, 2, 3, 4, 0, 5, 7, 8, 6], home=["up", "left"])
    assert env.render() == "  1  2  3\n  4 __  5\n  7  8  6"
    assert env.step(boxed("LEFT"))[1:4] == (0.0, False, False)
    assert env.render() == "  1  2  3\n  4  5 __\n  7  8  6"
    assert "no tile" in env.step(boxed("left"))[0]
    assert env.step(boxed("up"))[1:4] == (1.0, True, False)


def test_the_oracle_finds_home_after_a_detour():
    for seed in range(5):
        env = rollenv.make("game:FifteenPuzzle-v0-hard")
        env.reset(seed)
        env.max_turns = 100
        for _ in range(20):
            env.step(env.sample_random_action())
        assert to_the_end(env)[-1][4]["success"]


def test_the_turn_limit_pays_the_share_of_cells_that_are_right():
    env = at("game:FifteenPuzzle-v0-easy", tiles=[0, 1, 3, 2], home=["left", "up"], turn=9)
    assert env.step(boxed("right"))[1:4] == (pytest.approx(1 / 4), False, True)


# -- Sudoku ------------------------------------------------------------------------------------------------------------


def solutions(grid, scale, limit=2):
    """The number of ways to fill a grid, up to a limit."""
    peers = square_of(scale).peers
    best = None
    for cell, digit in enumerate(grid):
        if not digit:
            free = set(range(1, scale + 1)) - {grid[p] for p in peers[cell]}
            if best is None or len(free) < len(best[1]):
                best = cell, sorted(free)
    if best is None:
        return 1
    found = 0
    for digit in best[1]:
        found += solutions([*grid[: best[0]], digit, *grid[best[0] + 1 :]], scale, limit - found)
        if found >= limit:
            break
    return found


@pytest.mark.parametrize("env_id", ["game:Sudoku-v0-easy", "game:Sudoku-v0", "game:Sudoku-v0-hard"])
def test_puzzles_have_exactly_one_solution(env_id):
    env = rollenv.make(env_id)
    for seed in range(15):
        env.reset(seed)
        assert env.grid.count(0) == env.clues <= env.max_turns
        assert solutions(env.grid, env.scale) == 1


@pytest.mark.parametrize("scale", [4, 9])
def test_filled_squares_obey_the_rules_and_vary(scale):
    square, rng = square_of(scale), np.random.default_rng(0)
    filled = [square.fill(rng) for _ in range(60)]
    for grid in filled:
        assert all(grid[cell] not in {grid[p] for p in square.peers[cell]} for cell in range(len(grid)))
    assert len(set(map(tuple, filled))) > 50
    assert len(square.peers[0]) == {4: 7, 9: 20}[scale]


def test_every_rule_bound_step_of_the_oracle_follows():
    env = rollenv.make("game:Sudoku-v0-hard")
    for seed in range(3):
        env.reset(seed)
        over = False
        while not over:
            row, col, digit = map(int, env.oracle_action()[7:-1].split())
            assert square_of(9).follows(env.grid, (row - 1) * 9 + col - 1, digit)
            _, _, terminated, truncated, _ = env.step(boxed(f"{row} {col} {digit}"))
            over = terminated or truncated


def test_wrong_digits_are_refused():
    env = rollenv.make("game:Sudoku-v0-easy")
    env.reset(0)
    cell = env.grid.index(0)
    row, col = divmod(cell, 4)
    for digit in range(1, 5):
        if digit != env.solution[cell]:
            assert env.step(boxed(f"{row + 1} {col + 1} {digit}"))[1:4] == (0.0, False, False)
    assert env.grid[cell] == 0
    assert env.step(boxed(f"{row + 1},{col + 1},{env.solution[cell]}"))[1] == pytest.approx(0.1)
    assert "filled" in env.step(boxed(f"{row + 1} {col + 1} 1"))[0]


@pytest.mark.parametrize("kwargs", [{"scale": 6}, {"clues": 51}, {"clues": 0}])
def test_impossible_squares_are_refused(kwargs):
    with pytest.raises(UsageError, match="scale=4"):
        rollenv.make("game:Sudoku-v0", **kwargs)


# -- TowerofHanoi ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("move", ["A A", "B C", "C A", "B B"])
def test_illegal_moves_change_nothing(move):
    env = rollenv.make("game:TowerofHanoi-v0-easy")
    env.reset(0)
    assert env.step(boxed(move))[1:4] == (0.0, False, False)
    assert env.render() == "A: 3 2 1\nB:\nC:"


def test_a_larger_disk_never_lies_on_a_smaller_one():
    env = rollenv.make("game:TowerofHanoi-v0-easy")
    env.reset(0)
    assert "disk 1" in env.step(boxed("a,c"))[0]
    assert "cannot go on" in env.step(boxed("A C"))[0]
    assert env.render() == "A: 3 2\nB:\nC: 1"


@given(st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_the_oracle_is_shortest_from_anywhere(where):
    env = at("game:TowerofHanoi-v0", where=where, sizes={"num_disks": len(where), "max_turns": 100})
    goal, moves = 2, 0
    for disk in reversed(range(len(where))):
        if where[disk] != goal:
            moves += 2**disk
            goal = 3 - where[disk] - goal
    for _ in range(moves):
        result = env.step(env.oracle_action())
    assert moves == 0 or result[4].get("success")


def test_the_turn_limit_pays_the_share_of_disks_on_c():
    env = at("game:TowerofHanoi-v0-easy", where=[1, 2, 2], turn=9)
    assert env.step(boxed("B A"))[1:4] == (pytest.approx(2 / 3), False, True)


# -- Game2048 ----------------------------------------------------------------------------------------------------------

rows_of_tiles = st.lists(st.sampled_from([0, 0, 1, 1, 2, 3, 4]), min_size=4, max_size=4).map(tuple)
boards = st.tuples(*[rows_of_tiles] * 4)


def total(row):
    return sum(1 << tile for tile in row if tile)


@given(rows_of_tiles)
def test_a_slide_keeps_the_sum_and_packs_the_tiles(row):
    after = slide_left(row)
    assert total(after) == total(row)
    assert len(after) == 4
    tiles = [tile for tile in after if tile]
    assert after == (*tiles, *[0] * (4 - len(tiles)))
    before = sum(tile > 0 for tile in row)
    assert before / 2 <= len(tiles) <= before
    assert slide_right(row) == slide_left(row[::-1])[::-1]


@pytest.mark.parametrize(
    ("row", "after"),
    [
        ((1, 1, 1, 1), (2, 2, 0, 0)),
        ((1, 1, 2, 0), (2, 2, 0, 0)),
        ((1, 0, 0, 1), (2, 0, 0, 0)),
        ((1, 1, 1, 0), (2, 1, 0, 0)),
        ((1, 2, 1, 2), (1, 2, 1, 2)),
    ],
)
def test_a_tile_merges_once(row, after):
    assert slide_left(row) == after


@given(boards)
def test_directions_are_the_same_move_seen_from_elsewhere(board):
    transposed = tuple(zip(*board, strict=True))
    assert slide(board, "up") == tuple(zip(*slide(transposed, "left"), strict=True))
    assert slide(board, "down") == tuple(zip(*slide(transposed, "right"), strict=True))
    still = all(slide(board, d) == board for d in ("up", "down", "left", "right"))
    assert stuck(board) == (still and any(map(any, board)))


def test_a_move_without_effect_adds_no_tile():
    env = at("game:Game2048-v0-easy", rows=[[1, 0, 0, 0]] + [[0] * 4] * 3)
    look = env.render()
    assert env.step(boxed("left"))[1:4] == (0.0, False, False)
    assert env.render() == look
    assert env.step(boxed("right"))[1:4] == (0.0, False, False)
    assert sum(tile > 0 for row in env.rows for tile in row) == 2


def test_a_four_that_appears_pays_with_the_next_move():
    env = at("game:Game2048-v0-easy", rows=[[1, 0, 2, 0]] + [[0] * 4] * 3, top=1, first=1)
    assert env.step(boxed("left"))[1] == pytest.approx(1 / 5)
    for seed in range(100):
        env.reset(seed)
        moved, first = max(map(max, slide(env.rows, "left"))), env.first
        assert env.step(boxed("left"))[1] == pytest.approx((moved - first) / (6 - first))


def test_a_stuck_board_is_lost():
    rows = [[1, 2, 3, 4], [2, 3, 4, 5], [1, 2, 3, 4], [0, 5, 1, 6]]
    env = at("game:Game2048-v0-extreme-hard", rows=rows, top=6)
    _, _, terminated, truncated, info = env.step(boxed("left"))
    assert (terminated, truncated, info["success"]) == (True, False, False)


def test_one_new_tile_in_ten_is_a_four():
    env = rollenv.make("game:Game2048-v0")
    fours = 0
    for seed in range(1000):
        env.reset(seed)
        tiles = [tile for row in env.rows for tile in row if tile]
        assert len(tiles) == 2
        fours += tiles.count(2)
    assert 150 < fours < 250


@pytest.mark.parametrize(
    ("env_id", "reachable"), [("game:Game2048-v0-hard", 208), ("game:Game2048-v0-extreme-hard", 408)]
)
def test_unwinnable_targets_are_out_of_reach(env_id, reachable):
    """A move adds 4 at most, and two tiles of 4 are the best start."""
    env = rollenv.make(env_id)
    assert 8 + 4 * env.max_turns == reachable < env.target_tile
    assert env.spec.oracle_success == 0.0
