"""Sokoban: rules, levels, solver, text."""

import hashlib
import itertools
import json
import pickle
import statistics
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from played import to_the_end

import rollenv
from rollenv import EpisodeOver, Unsolvable, UsageError
from rollenv.envs.game.sokoban.board import DIRECTIONS, BoardState, parse_level
from rollenv.envs.game.sokoban.levels import Rules, generate, load_levels
from rollenv.envs.game.sokoban.solver import Solver, solve

CORRIDOR = "#######\n#@ $ .#\n#######"


def shortest_by_brute_force(board, start):
    """Breadth first over single moves, by the rules alone."""
    seen, queue = {start}, deque([(start, 0)])
    while queue:
        state, moves = queue.popleft()
        if state.boxes == board.targets:
            return moves
        for step in board.steps:
            after = board.move(state, step)
            if after is not None and after not in seen:
                seen.add(after)
                queue.append((after, moves + 1))
    return None


def level(seed, **rules):
    given_rules = {"height": 6, "width": 6, "boxes": 2, "max_moves": 20} | rules
    return generate(Rules(**given_rules), np.random.default_rng(seed).random)


def test_moving_pushing_and_being_blocked():
    board, start = parse_level(CORRIDOR)
    right, left, up = board.steps[3], board.steps[2], board.steps[0]
    assert board.move(start, up) is None
    assert board.move(start, left) is None
    beside = board.move(start, right)
    pushed = board.move(beside, right)
    assert pushed.boxes == beside.boxes << 1
    done = board.move(pushed, right)
    assert done.boxes == board.targets
    assert board.move(done, right) is None


def test_two_boxes_in_a_row_do_not_move():
    board, start = parse_level("########\n#@$$ ..#\n########")
    assert board.move(start, 1) is None


@given(st.integers(0, 10**6), st.sampled_from([(5, 6, 1), (6, 6, 1), (6, 6, 2), (7, 6, 2)]))
def test_the_solver_finds_a_shortest_solution(seed, size):
    height, width, boxes = size
    made = level(seed, height=height, width=width, boxes=boxes)
    moves = solve(made.board, made.start)
    assert len(moves) == shortest_by_brute_force(made.board, made.start)
    state = made.start
    for step in moves:
        state = made.board.move(state, step)
    assert state.boxes == made.board.targets


@given(st.integers(0, 10**6), st.lists(st.integers(0, 3), max_size=25))
def test_the_solver_knows_when_there_is_no_solution(seed, wander):
    made = level(seed)
    state = made.start
    for direction in wander:
        state = made.board.move(state, made.board.steps[direction]) or state
    moves = solve(made.board, state)
    shortest = shortest_by_brute_force(made.board, state)
    assert (None if moves is None else len(moves)) == shortest


@given(st.integers(0, 10**6), st.integers(5, 9), st.integers(5, 9), st.integers(1, 4), st.integers(6, 60))
def test_a_generated_level_can_be_solved_in_time(seed, height, width, boxes, max_moves):
    try:
        made = level(seed, height=height, width=width, boxes=boxes, max_moves=max_moves)
    except UsageError:
        assert boxes > 1  # a small room or few moves may really not allow it
        return
    board, start = made.board, made.start
    ring = [r * width + c for r in range(height) for c in range(width) if r in (0, height - 1) or c in (0, width - 1)]
    assert all(board.walls >> i & 1 for i in ring)
    assert board.targets.bit_count() == start.boxes.bit_count() == boxes
    assert not board.walls & (board.targets | start.boxes | 1 << start.player)
    assert not start.boxes & (board.targets | 1 << start.player)
    moves = solve(board, start, weights=(1,), budget=200_000)
    assert 1 <= len(moves) <= made.solution_bound <= max_moves


def test_levels_vary_and_follow_the_seed_alone():
    levels = [level(seed) for seed in range(300)]
    assert levels == [level(seed) for seed in range(300)]
    assert len({(m.board, m.start) for m in levels}) > 295
    lengths = [len(solve(m.board, m.start)) for m in levels]
    assert len(set(lengths)) > 10
    assert statistics.mean(lengths) > 6


def test_a_range_of_least_lengths_is_drawn_from():
    drawn = [rollenv.make("game:Sokoban-v0-tiny", min_moves=[1, 7], seed=s) for s in range(60)]
    lengths = []
    for env in drawn:
        env.reset()
        lengths.append(len(solve(env.board, env.state)))
    assert min(lengths) <= 3
    assert max(lengths) >= 8


def test_demands_that_contradict_each_other_are_refused():
    with pytest.raises(UsageError, match="level"):
        level(0, boxes=1, max_moves=5, min_moves=6)


@pytest.mark.slow
def test_train_and_test_never_share_a_room():
    rooms = {}
    for split in ("train", "test"):
        env = rollenv.make("game:Sokoban-v0-tiny", split=split)
        rooms[split] = set()
        for seed in range(600):
            env.reset(seed)
            rooms[split].add((env.board.walls, env.board.targets))
    assert rooms["train"]
    assert rooms["test"]
    assert not rooms["train"] & rooms["test"]


# -- the environment -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "room", "boxes", "turns"),
    [("game:Sokoban-v0-easy", (6, 6), 2, 20), ("game:Sokoban-v0-hard", (8, 8), 4, 50)],
)
def test_gem_ids_have_gem_parameters(env_id, room, boxes, turns):
    env = rollenv.make(env_id)
    env.reset(0)
    assert (env.board.height, env.board.width) == room
    assert env.state.boxes.bit_count() == boxes
    assert env.max_turns == turns


def test_the_random_variant_draws_its_size_at_every_reset():
    env = rollenv.make("game:Sokoban-v0-random")
    sizes = set()
    for seed in range(20):
        env.reset(seed)
        sizes.add((env.board.height, env.board.width, env.state.boxes.bit_count(), env.max_turns))
    assert sizes == {(6, 6, 2, 20), (8, 8, 5, 50)}


def corridor(tmp_path, **kwargs):
    file = tmp_path / "corridor.txt"
    file.write_text(f"; 0\n{CORRIDOR}\n")
    env = rollenv.make("game:Sokoban-v0-easy", levels=str(file), **kwargs)
    env.reset(0)
    return env


def test_gem_rewards(tmp_path):
    env = corridor(tmp_path)
    assert [env.step(r"\boxed{right}")[1:4] for _ in range(3)] == [(0, False, False)] * 2 + [(1, True, False)]
    env.reset()
    _, reward, terminated, truncated, info = env.step("right")
    assert (reward, terminated, truncated) == (-0.1, True, False)
    assert info["valid"] is False
    assert info["success"] is False


def test_a_wall_costs_nothing_and_the_turn_limit_truncates(tmp_path):
    env = corridor(tmp_path, max_turns=2)
    assert env.step(r"\boxed{up}")[1:4] == (0, False, False)
    observation, reward, terminated, truncated, info = env.step(r"\boxed{up}")
    assert (reward, terminated, truncated, info["success"]) == (0, False, True, False)
    assert "last turn" in observation


def test_the_share_of_boxes_on_target_pays_at_the_limit(tmp_path):
    file = tmp_path / "two.txt"
    file.write_text("; 0\n########\n#@$. $.#\n########\n")
    env = rollenv.make("game:Sokoban-v0-easy", levels=str(file), max_turns=1)
    env.reset(0)
    assert env.step(r"\boxed{right}")[1:4] == (0.5, False, True)


@pytest.mark.parametrize(("scheme", "malformed"), [("ragen", -0.1), ("roll", -0.15)])
def test_ragen_and_roll_rewards(tmp_path, scheme, malformed):
    env = corridor(tmp_path, rewards=scheme, action_format="answer", actions_per_turn=5)
    assert env.step("up")[1:4] == (malformed, False, False)
    result = env.step("<answer>Right || jump || Right</answer>")
    assert result[1] == pytest.approx(2 * -0.1 + malformed)
    assert result[4]["valid"] is False
    result = env.step("<answer>right</answer>")
    assert result[1:4] == (pytest.approx(-0.1 + 1 + 10), True, False)


def test_leaving_a_target_takes_its_reward_back(tmp_path):
    file = tmp_path / "off.txt"
    file.write_text("; 0\n##########\n#@$. $   #\n#       .#\n##########\n")
    env = rollenv.make("ragen:Sokoban-v0", levels=str(file), max_turns=9)
    env.reset(0)
    assert env.step("<answer>right</answer>")[1] == pytest.approx(0.9)
    assert env.step("<answer>right</answer>")[1] == pytest.approx(-1.1)


def test_moves_are_limited_over_turns(tmp_path):
    env = corridor(tmp_path, action_format="answer", rewards="ragen", actions_per_turn=5, max_actions=4)
    assert env.step("<answer>left||up||down</answer>")[3] is False
    assert env.step("<answer>left||up||down</answer>")[3] is True
    assert env.actions == 4


def test_over_long_turns_are_cut(tmp_path):
    env = corridor(tmp_path, action_format="answer", rewards="ragen", actions_per_turn=2)
    env.step("<answer>right||right||right</answer>")
    assert env.actions == 2
    assert not env.state.boxes & env.board.targets


def test_observations(tmp_path):
    def suffix(**kwargs):
        env = corridor(tmp_path, **kwargs)
        return env.reset(0)[1]["suffix"]

    assert "# P _ X _ O #\n" in suffix()
    assert "#P_X_O#\n" in suffix(observation="dense")
    assert "P1,1 X1,3 O1,5" in suffix(observation="coords")
    assert suffix(observation="compact") == "_____\nPaa Xac Oae"


@given(st.integers(0, 10**6), st.lists(st.sampled_from(DIRECTIONS), max_size=20))
def test_every_observation_tells_the_whole_state(seed, walk):
    """Environments in different formats go through the same states, and equal texts mean equal states."""
    formats = ("grid", "dense", "coords", "compact")
    envs = [rollenv.make("game:Sokoban-v0-easy", observation=f, action_format="bare") for f in formats]
    texts = [{env.reset(seed)[1]["suffix"]: env.state_key()} for env in envs]
    for direction in walk:
        results = [env.step(direction) for env in envs]
        assert len({env.state_key() for env in envs}) == 1
        for known, env, result in zip(texts, envs, results, strict=True):
            assert known.setdefault(result[4]["suffix"], env.state_key()) == env.state_key()
        if results[0][2] or results[0][3]:
            break


def test_the_prompt_names_rules_format_and_limit():
    env = rollenv.make("game:Sokoban-v0-easy")
    instructions, info = env.reset(0)
    assert r"\boxed{up}" in instructions
    assert "20 turns" in instructions
    assert "P" in info["suffix"]
    several, _ = rollenv.make("ragen:Sokoban-v0").reset(0)
    assert "<answer>up || down</answer>" in several


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"dim_room": (3, 3)}, "5 x 5"),
        ({"num_boxes": 0}, "one box"),
        ({"num_boxes": None}, "num_boxes"),
        ({"max_turns": 0}, "max_turns"),
        ({"rewards": "gold"}, "gem, ragen, roll"),
        ({"action_format": "json"}, "boxed, answer, bare"),
        ({"observation": "pixels"}, "grid, dense, coords, compact"),
        ({"split": "dev"}, "all, train, test"),
        ({"min_moves": (5, 2)}, "pair"),
        ({"levels": "no/such/file.txt"}, "no/such/file.txt"),
    ],
)
def test_wrong_settings_say_what_is_right(kwargs, says):
    with pytest.raises(UsageError, match=says):
        rollenv.make("game:Sokoban-v0-easy", **kwargs)


# -- the oracle and saved states -------------------------------------------------------------------------------------


def test_the_oracle_recovers_from_detours_and_gives_up_when_stuck(tmp_path):
    file = tmp_path / "room.txt"
    file.write_text("; 0\n#######\n#     #\n# @$. #\n#     #\n#######\n")
    env = rollenv.make("game:Sokoban-v0-easy", levels=str(file))
    env.reset(0)
    assert env.oracle_action() == r"\boxed{right}"
    env.step(r"\boxed{down}")
    assert to_the_end(env)[-1][4]["success"]
    with pytest.raises(EpisodeOver):
        env.oracle_action()
    env.reset(0)
    for move in ("down", "right", "up"):
        env.step(f"\\boxed{{{move}}}")
    with pytest.raises(Unsolvable):
        env.oracle_action()


def test_a_saved_state_is_json_with_exact_large_numbers():
    env = rollenv.make("game:Sokoban-v0-hard")
    env.reset(0)
    state = json.loads(json.dumps(env.get_state()))
    other = rollenv.make("game:Sokoban-v0-hard")
    other.set_state(state)
    assert other.render() == env.render()
    assert other.state == env.state


# -- level files -----------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_boxoban_levels_load_and_the_oracle_solves_them(data):
    levels = load_levels(data("boxoban/unfiltered/test"))
    assert len(levels) == 1000
    assert all((m.board.height, m.board.width) == (10, 10) for m in levels)
    assert all(m.start.boxes.bit_count() == 4 for m in levels)
    for made in levels[:10]:
        state = made.start
        for step in solve(made.board, made.start):
            state = made.board.move(state, step)
        assert state.boxes == made.board.targets


def test_a_numbered_level_can_be_asked_for(tmp_path):
    file = tmp_path / "two.txt"
    file.write_text(f"; 0\n{CORRIDOR}\n\n; 1\n#####\n#@$.#\n#####\n")
    env = rollenv.make("game:Sokoban-v0-easy", levels=str(file))
    env.reset(options={"index": 1})
    assert env.board.width == 5
    with pytest.raises(UsageError, match="2"):
        env.reset(options={"index": 2})
    with pytest.raises(UsageError, match="levels=PATH"):
        rollenv.make("game:Sokoban-v0-easy").reset(options={"index": 0})
    assert {env.reset(seed)[1]["suffix"] for seed in range(20)} == {
        env.reset(options={"index": i})[1]["suffix"] for i in (0, 1)
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("; 0\n###\n# #\n###\n", "level 0: .*player"),
        ("; 0\n#####\n#@$ #\n#####\n", "targets"),
        ("; 0\n#####\n#@? #\n#####\n", "character"),
        (f"; 0\n{CORRIDOR}\n; 1\n####\n#@@#\n####\n", "level 1"),
        ("", "no Sokoban levels"),
    ],
)
def test_a_malformed_level_file_names_file_and_level(tmp_path, text, says):
    file = tmp_path / "bad.txt"
    file.write_text(text)
    with pytest.raises(UsageError, match=says) as caught:
        load_levels(file)
    assert "bad.txt" in str(caught.value)


def test_a_level_without_an_outer_wall_gets_one():
    board, start = parse_level("@$.\n   ")
    assert (board.height, board.width) == (4, 5)
    assert solve(board, start) == [1]
    assert all(board.walls >> i & 1 for i in itertools.chain(range(5), range(15, 20)))
    assert isinstance(start, BoardState)


@pytest.mark.parametrize("env_id", ["game:Sokoban-v0-tiny", "game:Sokoban-v0-easy"])
def test_an_environment_can_be_pickled_in_the_middle_of_an_episode(env_id):
    env = rollenv.make(env_id)
    env.reset(3)
    env.step(env.oracle_action())
    assert pickle.loads(pickle.dumps(env)).get_state() == env.get_state()


@pytest.mark.parametrize(
    ("env_id", "kwargs", "seeds", "digest"),
    [
        ("game:Sokoban-v0-tiny", {}, 250, "37d7a10c9dfb5eaa"),
        ("game:Sokoban-v0-tiny", {"min_moves": [2, 10], "split": "train"}, 120, "914e1559cf695606"),
        ("game:Sokoban-v0-easy", {"min_moves": 4, "split": "test"}, 80, "27dd8cc16ced5a7a"),
        ("game:Sokoban-v0-hard", {}, 50, "9a9a6cc6e6abd21c"),
    ],
)
def test_a_seed_gives_the_same_level_in_every_version(env_id, kwargs, seeds, digest):
    """500 levels, and where the random stream stands after each: recipes, splits and evaluations are made of these."""
    env, seen = rollenv.make(env_id, **kwargs), hashlib.sha256()
    for seed in range(seeds):
        env.reset(seed)
        seen.update(f"{env.state_key()} {env.board.height} {env.np_random.random()}\n".encode())
    assert seen.hexdigest()[:16] == digest


@given(st.integers(0, 10**6), st.integers(1, 3), st.lists(st.integers(0, 3), max_size=12))
def test_a_solver_that_was_used_before_answers_as_a_new_one(seed, boxes, wander):
    made = level(seed, height=7, width=7, boxes=boxes)
    solver, state = Solver(made.board), made.start
    for direction in wander:
        assert solver.solve(state) == solve(made.board, state)
        state = made.board.move(state, made.board.steps[direction]) or state


def test_a_generated_level_keeps_both_its_bounds():
    rules = {"boxes": 1, "min_moves": 6, "max_moves": 9}
    for seed in range(30):
        made = level(seed, **rules)
        moves = solve(made.board, made.start)
        assert 6 <= len(moves) <= made.solution_bound <= 9
