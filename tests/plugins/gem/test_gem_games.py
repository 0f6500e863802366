"""Every game beside GEM's own: the same hidden state, the same actions; the same rewards and ends.

What differs must be listed in gem_differences.py, and what is listed there must differ.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import math
import random
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from both import GEM as PYTHON
from both import needs_gem
from gem_actions import action
from gem_differences import BROKEN_IDS, DIFFERENCES, GEM, ROLLENV, Result, Turn, raised

import rollenv
from rollenv import EpisodeOver
from rollenv.plugins.gem import games

HERE = Path(__file__).parent
pytestmark = needs_gem

SEQUENCES = 200

#: Of every game, the attributes that hold its size, and those that hide its solution, by GEM's names.
STATE = {
    "GuessTheNumber": "min_number max_number max_turns game_number",
    "Mastermind": "code_length num_numbers max_turns game_code",
    "Minesweeper": "rows cols num_mines max_turns",
    "Wordle": "word_length max_turns secret_word",
    "FifteenPuzzle": "num_rows max_turns board",
    "Hangman": "word_length max_turns secret_word",
    "Sudoku": "max_turns scale board full_grid",
    "TowerofHanoi": "num_disks max_turns board",
    "Game2048": "target_tile max_turns board max_tile_achieved init_max_tile_achieved",
    "Sokoban": "dim_room num_boxes max_turns room_fixed room_state player_position",
    "Crosswords": "max_turns num_words board solution total_letter_cells",
    "WordSearch": "max_turns num_words game_board placed_words",
}
IDS = [
    spec.id
    for spec in rollenv.list_envs("game:")
    if "WikiGame" not in spec.id and spec.id != "game:Sokoban-v0-tiny"  # what GEM 0.1.0 does not have
]


class Gem:
    """GEM in a process of its own."""

    def __init__(self):
        command = [str(PYTHON), str(HERE / "gem_driver.py")]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def __call__(self, do, **request):
        self.process.stdin.write(json.dumps({"do": do, **request}, default=plain) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=30)


def plain(value):
    return value.tolist()


@pytest.fixture(scope="module")
def gem():
    process = Gem()
    yield process
    process.close()


@pytest.fixture(scope="module")
def gem_ids(gem):
    return gem("ids")


def name_of(env_id):
    return env_id.removeprefix("game:").partition("-")[0]


def own_class(env_id):
    module, _, name = rollenv.spec(env_id).entry_point.partition(":")
    return getattr(importlib.import_module(module), name)


def under_gem(env_id, **kwargs):
    """The environment that GEM's callers get."""
    own = own_class(env_id)
    cls = getattr(games, games.CLASSES[f"{own.__module__}:{own.__name__}"])
    return cls(**{**rollenv.spec(env_id).kwargs, **kwargs})


# -- playing -----------------------------------------------------------------------------------------------------------


def read(env, text):
    """The move that an environment finds in an action, None if it finds none."""
    if not hasattr(env, "_read"):  # Sokoban
        moves, valid = env._parse(text)
        return moves[0] if valid else None
    move = env._read(text)
    return tuple(move) if isinstance(move, list) else move


def step(env, text):
    try:
        _, reward, terminated, truncated, _ = env.step(text)
    except EpisodeOver:
        return raised("EpisodeOver")
    return Result(float(reward), terminated, truncated)


def notes(env, move):
    """What some differences depend on."""
    if isinstance(env, games.MinesweeperEnv) and move and move[1] >= 0:
        flagged = env.flagged & env.mines
        return {"unflagged": flagged.bit_count() < env.num_mines, "flagged": bool(flagged >> move[1] & 1)}
    if isinstance(env, games.WordSearchEnv) and move:
        stretches = {(r, c, *end(word, r, c, way)): word for word, (r, c, way) in env.placed.items()}
        there = stretches.get(move) or stretches.get((*move[2:], *move[:2]))
        return {"found_before": there in env.correct_words, "elsewhere": there is None}
    return dict.fromkeys(("unflagged", "flagged", "found_before", "elsewhere"), False)


def end(word, row, col, way):
    return (row, col + len(word) - 1) if way == "across" else (row + len(word) - 1, col)


def hidden_state(env, name):
    state = {attribute: getattr(env, attribute) for attribute in STATE[name].split()}
    if name == "WordSearch":
        env.placed = state["placed_words"]
    return state


def start(env_id, seed, arrange=None):
    """The game as GEM's callers get it and as rollenv's do, in one state, and this state in GEM's terms."""
    env, own = under_gem(env_id), rollenv.make(env_id)
    env.reset(seed)
    state = hidden_state(env, name_of(env_id))
    if arrange:
        arrange(env, state)
    own.reset(seed)
    own.set_state(env.get_state())
    if isinstance(env, games.MinesweeperEnv):
        own._lay_mines = lambda _: env.mines
    return env, own, state


def watch_tiles(env):
    """A list that gets row, column and tile of everything that appears in a game of 2048 from now on."""
    tiles, add = [], env._add_tile

    def adding():
        before = env.board
        add()
        tiles.extend([r, c, v] for r, row in enumerate(env.board) for c, v in enumerate(row) if before[r][c] != v)

    env._add_tile = adding
    return tiles


def play(env, own, name, actions, extra):
    """Both play what ``actions(env, played)`` gives, and ``extra`` actions after the end: turns, and both results."""
    turns, results = [], []
    ended = 0
    while extra >= 0:
        text = actions(env, [turn.action for turn in turns])
        move = read(env, text)
        turns.append(
            Turn(name, text, env.turn_count + 1, env.max_turns, ended > 0, move, read(own, text), notes(env, move))
        )
        result = step(env, text)
        results.append({GEM: result, ROLLENV: step(own, text)})
        ended += result.over
        extra -= result.over
    return turns, results


def compare(env_id, turns, results, steps, seen):
    """Raise at the first difference that is not listed; count those that are."""
    same = {GEM, ROLLENV}
    for turn, here, there in zip(turns, results, steps, strict=False):
        gem = raised(there["error"]) if isinstance(there, dict) else Result(*there)
        for layer in sorted(same):
            if not equal(gem, here[layer]):
                found = [i for i, d in enumerate(DIFFERENCES) if listed(d, layer, turn, gem, here[layer])]
                assert found, f"{env_id}, {layer}: not listed: {turn}, {gem}, {here[layer]}"[:1500]
                seen[found[0]] += 1
            elif layer == GEM or turn.read == turn.read_here:
                continue  # else both took a turn, but not the same one
            same.discard(layer)


def listed(difference, layer, turn, gem, here):
    named = difference.games == "all" or turn.game in difference.games.split(", ")
    return difference.layer == layer and named and difference.occurs(turn, gem, here)


def equal(a, b):
    return abs(a.reward - b.reward) < 1e-9 and a.ends == b.ends


def check(gem, gem_ids, env_id, seed, actions, extra=0, seen=None, arrange=None):
    name = name_of(env_id)
    env, own, state = start(env_id, seed, arrange)
    tiles = watch_tiles(env) if name == "Game2048" else []
    turns, results = play(env, own, name, actions, extra)
    if name == "Minesweeper":
        state["mines_to_lay"] = env.grid
    as_gem = env_id if "error" not in gem_ids.get(env_id, {"error"}) else f"game:{name}-v0-easy"
    played = [turn.action for turn in turns]
    steps = gem("play", id=as_gem, state=state, tiles=tiles, actions=played)["steps"]
    compare(env_id, turns, results, steps, Counter() if seen is None else seen)


def sequence(env_id, number):
    """The seed, the player and how long it goes on after the end, of one of the sequences of an id."""
    rng = random.Random(f"{env_id} {number}")
    clever = number % (100 if "Sokoban" in env_id or "2048" in env_id else 8) == 0  # these experts are slow
    oddity = (0, 0.05, 0.3, 0.9)[number // 2 % 4]
    player = functools.partial(action, random=rng, clever=clever, oddity=oddity)
    return number, lambda env, played: player(env, played=played), rng.choice([0, 0, 0, 2])


# -- the tests ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seen():
    """How often each difference of the list was met."""
    return Counter()


@pytest.mark.parametrize("env_id", IDS)
def test_rewards_and_ends_are_gem_s_or_the_difference_is_listed(gem, gem_ids, env_id, seen):
    for number in range(SEQUENCES):
        seed, actions, extra = sequence(env_id, number)
        check(gem, gem_ids, env_id, seed, actions, extra, seen)


def late_letters(env, played):
    """In Hangman, the last hidden letter with the last turn."""
    hidden = sorted(set(env.secret_word) - set(env.board))
    return f"\\boxed{{{hidden[0]}}}" if env.turn_count + len(hidden) >= env.max_turns else "\\boxed{xx}"


def flagged_mine(env, played):
    """In Minesweeper, a mine that has a flag is revealed."""
    mine = (env.mines & -env.mines).bit_length() - 1
    cell = f"{mine // env.cols} {mine % env.cols}"
    return ["\\boxed{reveal 2 2}", f"\\boxed{{flag {cell}}}", f"\\boxed{{reveal {cell}}}"][min(len(played), 2)]


#: What chance seldom leads to.
RARE = [
    ("game:Minesweeper-v0-hard", flagged_mine),
    ("game:Hangman-v0-easy", late_letters),
    ("game:Hangman-v0-easy", lambda env, played: "\\boxed{ſ}" if not played else "no box"),
    ("game:Sokoban-v0-easy", lambda env, played: "\\boxed{rıght}"),
    ("game:Game2048-v0-easy", lambda env, played: "\\boxed{LEFt} \\boxed{rıght}" if not played else "no box"),
    ("game:GuessTheNumber-v0-hard", lambda env, played: "\\boxed{0}"),
]


def test_every_listed_difference_occurs(gem, gem_ids, seen):
    check(gem, gem_ids, "game:WordSearch-v0-easy", 0, second_place, 0, seen, arrange=write_a_word_again)
    for env_id, actions in RARE:
        check(gem, gem_ids, env_id, 0, actions, 0, seen)
    for number in range(SEQUENCES):
        missing = set(range(len(DIFFERENCES))) - set(seen)
        for env_id in IDS:
            if any(name_of(env_id) in DIFFERENCES[i].games or DIFFERENCES[i].games == "all" for i in missing):
                seed, actions, extra = sequence(env_id, number)
                check(gem, gem_ids, env_id, seed, actions, extra, seen)
        if not missing:
            return
    missing = [d for i, d in enumerate(DIFFERENCES) if i not in seen]
    assert not [(d.layer, d.games, d.condition) for d in missing]


def write_a_word_again(env, state):
    """Let a hidden word stand in the last row too, and remember where."""
    (word, *_), side = env.hidden, env.side
    free = [r for r in range(side) if not any(r in rows(w, *place) for w, place in state["placed_words"].items())]
    row = free[-1]
    env.grid = env.grid[: row * side] + word + env.grid[row * side + len(word) :]
    env.again = f"{row} 0 {row} {len(word) - 1}"
    state["game_board"] = env.game_board


def rows(word, row, col, way):
    return range(row, end(word, row, col, way)[0] + 1)


def second_place(env, played):
    return f"\\boxed{{{env.again}}}" if not played else "the end"


@pytest.mark.smoke
def test_all_of_gem_s_ids_are_here_with_the_same_class_and_sizes(gem_ids):
    own = {spec.id for spec in rollenv.list_envs("game:")}
    assert set(gem_ids) <= own
    for env_id in own - set(gem_ids):
        assert "-" not in env_id.partition("-v0")[2] or "WikiGame" in env_id or "Sokoban-v0-tiny" in env_id
    for env_id, there in gem_ids.items():
        env = under_gem(env_id)
        assert there["class"].endswith(f":{type(env).__name__}")
        for name, value in there["kwargs"].items():
            if value is None:
                assert getattr(env, "sizes_vary", True)
            else:
                assert plain_value(getattr(env, name)) == value, (env_id, name)


def plain_value(value):
    return list(value) if isinstance(value, tuple) else value


def test_the_ids_that_gem_cannot_make(gem_ids):
    assert {env_id: there["error"] for env_id, there in gem_ids.items() if "error" in there} == BROKEN_IDS


def test_constructors_take_gem_s_arguments_in_gem_s_order(gem, gem_ids):
    for where in sorted({there["class"] for there in gem_ids.values()}):
        cls = getattr(games, where.partition(":")[2])
        parameters = [p for p in inspect.signature(cls).parameters.values() if p.kind is not p.VAR_KEYWORD]
        ours = [[p.name, plain_value(p.default)] for p in parameters]
        assert ours == gem("signature", **{"class": where}), where


#: How often GEM's random ids are reset to see what they draw (an empty 9x9 takes GEM half a second).
DRAWS = {"GuessTheNumber": 400, "Sudoku": 12}


@pytest.mark.parametrize("name", [name for name in STATE if f"game:{name}-v0-random" not in BROKEN_IDS])
def test_random_ids_draw_the_sizes_that_gem_draws(gem, name):
    env_id = f"game:{name}-v0-random"
    env = under_gem(env_id)
    names = size_names(env)
    draws = DRAWS.get(name, 60)
    there = {tuple(map(str, sizes)) for sizes in gem("draws", id=env_id, names=names, n=draws)}
    here = set()
    for _ in range(draws):
        env.reset()
        here.add(tuple(str(plain_value(getattr(env, n))) for n in names))
    if name == "GuessTheNumber":
        assert min(len(there), len(here)) > 100
        assert all(int(t) == math.ceil(math.sqrt(int(b) - int(a))) + 1 for a, b, t in there | here)
        bounds = [(min(x), max(x)) for x in zip(*[(int(a), int(b) - int(a)) for a, b, _ in there | here], strict=True)]
        assert bounds == [(1, 10), (5, 50)]
    else:
        assert here == there


# -- prompts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STATE)
@pytest.mark.parametrize("variant", ["easy", "hard"])
def test_prompts_say_what_gem_s_say_in_the_same_order(gem, name, variant):
    env_id = f"game:{name}-v0-{variant}"
    env = under_gem(env_id)
    here, info = env.reset(0)
    there = gem("prompt", id=env_id)
    told = there["observation"]
    for size in size_names(env):
        value = getattr(env, size)
        if size != "hardcore" and size != "dim_room" and value in numbers_in(told):
            assert value in numbers_in(here), f"GEM tells {size}"
    order = [(f"{env.max_turns} turns", "limit"), ("\\boxed{", "box")]
    if all(words in told for words, _ in order):
        ours = [here.index(words) for words, _ in order]
        theirs = [told.index(words) for words, _ in order]
        assert (ours[0] < ours[1]) == (theirs[0] < theirs[1])
    examples = [box for box in re.findall(r"\\boxed\{[^{}]*\}", here) if "ROW" not in box]
    assert examples
    assert all(read(env, example) is not None for example in examples)
    assert ("history" in told) == ("so far are listed below" in here)
    assert info["suffix"].endswith("?") == there["suffix"].endswith(".") or name == "Mastermind"


def numbers_in(text):
    return set(map(int, re.findall(r"\d+", text)))


def size_names(env):
    return list(getattr(env, "size_names", ("dim_room", "num_boxes", "max_turns")))
