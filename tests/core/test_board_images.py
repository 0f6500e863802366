"""Boards as pixels: ``render_mode="rgb_array"`` and ``images="only"`` or ``"also"``."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollenv
from rollenv.core.checker.digests import digest
from rollenv.core.drawing import GROUNDS, PIECES, Cell, Drawing, draw
from rollenv.core.errors import Broken, UsageError
from rollenv.core.pictures import MARK, picture
from rollenv.core.pixels import pixels
from rollenv.core.wrappers import ObservationWrapper, wrap
from rollenv.report.episodes import picture_of
from rollenv.trainers.config.load import load_config, with_settings

#: An id of every family with a board, and settings that change how its text shows the board.
BOARDS = [
    ("game:Sokoban-v0-easy", {}),
    ("game:Sokoban-v0-easy", {"observation": "coords"}),
    ("game:Sokoban-v0-easy", {"observation": "compact"}),
    ("ragen:Sokoban-v0", {}),
    ("roll:FrozenLake-v0", {}),
    ("game:Minesweeper-v0-easy", {}),
    ("game:Sudoku-v0-easy", {}),
    ("game:Game2048-v0", {}),
    ("game:FifteenPuzzle-v0-easy", {}),
    ("game:TowerofHanoi-v0-easy", {}),
    ("game:WordSearch-v0-easy", {}),
    ("game:Wordle-v0-easy", {}),
    ("game:Mastermind-v0-easy", {}),
    ("game:Hangman-v0-easy", {}),
    ("game:Crosswords-v0-easy", {}),
    ("multi:Nim-v0", {}),
    ("multi:Nim-v0-seats", {}),
    ("rg:maze", {}),
]
boards = pytest.mark.parametrize(("env_id", "kwargs"), BOARDS)


def results(env, seed, actions):
    """All that a reset and steps return."""
    observation, info = env.reset(seed=seed)
    yield observation, 0.0, False, False, info
    for action in actions:
        result = env.step(action)
        yield result
        if result[2] or result[3]:
            return


def texts(result):
    return "\n".join([result[0], str(result[4].get("suffix", ""))])


def others(info):
    """The info without what a player reads."""
    return {name: value for name, value in info.items() if name not in ("suffix", "images", "observations")}


def without_gaps(text):
    return "".join(text.split())


def played(env_id, kwargs, seed=5):
    """Actions of the oracle, with an invalid one between them."""
    env = rollenv.make(env_id, **kwargs)
    env.reset(seed=seed)
    actions = []
    for turn in range(12):
        actions.append("no action" if turn == 2 and env.players == 1 else env.oracle_action())
        if any(env.step(actions[-1])[2:4]):
            break
    return actions


@boards
def test_pictures_replace_the_text_of_the_board_and_nothing_else_changes(env_id, kwargs):
    plain, seen = rollenv.make(env_id, **kwargs), rollenv.make(env_id, images="only", **kwargs)
    actions, pictures = played(env_id, kwargs), 0
    for before, after in zip(results(plain, 5, actions), results(seen, 5, actions), strict=True):
        assert after[1:4] == before[1:4]
        assert others(after[4]) == others(before[4])
        assert seen.render() == plain.render()
        assert seen.state_key() == plain.state_key()
        images = after[4].get("images", [])
        assert texts(after).count(MARK) == len(images) <= 1
        drawing = draw(plain.unwrapped.picture, plain.render())
        if images:
            pictures += 1
            assert np.array_equal(images[0].array(), pixels(drawing))
        if drawing:
            said = without_gaps("\n".join([texts(after), *after[4].get("observations", ())]))
            for line in set(plain.render().split("\n")) - set(drawing.notes):
                assert len(without_gaps(line)) < 3 or without_gaps(line) not in said, line
    assert pictures >= 1


@boards
def test_also_adds_a_mark_and_keeps_every_word(env_id, kwargs):
    plain, seen = rollenv.make(env_id, **kwargs), rollenv.make(env_id, images="also", **kwargs)
    actions = played(env_id, kwargs)
    for before, after in zip(results(plain, 5, actions), results(seen, 5, actions), strict=True):
        assert texts(after).replace(f"{MARK}\n", "") == texts(before)
        assert texts(after).count(MARK) == len(after[4].get("images", []))


@pytest.mark.parametrize(
    ("env_id", "kwargs", "symbols"),
    [
        ("game:Sokoban-v0-easy", {}, ["# a wall", "_ floor", "P is you"]),
        ("roll:FrozenLake-v0", {}, ["P is you", "_ is ice"]),
        ("game:Minesweeper-v0-easy", {}, ["F a flag"]),
        ("game:Sudoku-v0-easy", {}, [". is an empty cell"]),
        ("game:FifteenPuzzle-v0-easy", {}, ["__"]),
        ("game:Hangman-v0-easy", {}, ["_ is a place"]),
        ("game:Wordle-v0-easy", {}, ["G is in the right place", ", marked"]),
        ("game:Mastermind-v0-easy", {}, [": 0 black", ": 1 black"]),
        ("game:WordSearch-v0-easy", {}, ["lower case"]),
        ("game:Crosswords-v0-easy", {}, ["_ is a cell"]),
        ("rg:maze", {}, ["Legend", "= Wall"]),
    ],
)
def test_symbols_are_described_only_where_they_are_shown(env_id, kwargs, symbols):
    def said(**given):
        env = rollenv.make(env_id, **kwargs, **given)
        return "\n".join(texts(result) for result in results(env, 5, played(env_id, kwargs)))

    plain, seen = said(), said(images="only")
    assert any(symbol in plain for symbol in symbols)
    assert not [symbol for symbol in symbols if symbol in seen]


def test_the_pixels_of_a_seed_are_the_same_everywhere():
    shown = {}
    for env_id, tile in (("game:Sokoban-v0-easy", 28), ("game:Sudoku-v0-easy", 28), ("multi:Nim-v0", 56)):
        env = rollenv.make(env_id, render_mode="rgb_array", tile=tile)
        env.reset(seed=3)
        board = env.render()
        assert board.dtype == np.uint8
        assert board.shape[0] % tile == board.shape[1] % tile == 0
        shown[env_id] = hashlib.sha256(board.tobytes()).hexdigest()[:12]
    assert shown == {
        "game:Sokoban-v0-easy": "5aac26b23e73",
        "game:Sudoku-v0-easy": "0e75dadc98b0",
        "multi:Nim-v0": "d79ab9cc3c70",
    }


def test_text_is_drawn_where_there_is_no_board():
    env = rollenv.make("game:Wordle-v0-easy", render_mode="rgb_array")
    assert env.render().ndim == 3
    env.reset(seed=1)
    page = env.render()
    assert page.shape[2] == 3
    assert len(np.unique(page)) > 1


@given(
    st.lists(
        st.lists(
            st.builds(
                Cell,
                ground=st.sampled_from(sorted(GROUNDS)),
                pieces=st.lists(st.sampled_from(sorted(PIECES)), max_size=2).map(tuple),
                text=st.text(max_size=20),
                wide=st.floats(-1, 3),
            ),
            max_size=4,
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 3),
    st.sampled_from([1.0, 1.5, 3.0]),
    st.integers(8, 60),
)
def test_any_drawing_has_the_size_of_its_cells(rows, block, across, tile):
    drawing = Drawing(rows, block=block, origin=min(block, 1), across=across)
    assert pixels(drawing, tile).shape == (len(rows) * tile, drawing.columns * round(across * tile), 3)


def test_what_cannot_be_shown_is_refused():
    with pytest.raises(UsageError, match="no board to draw"):
        rollenv.make("game:GuessTheNumber-v0", images="only")
    with pytest.raises(UsageError, match=r"'only' .* or 'also'"):
        rollenv.make("game:Sokoban-v0-easy", images="yes")
    for tile in (3, 1000, "28", True):
        with pytest.raises(UsageError, match="8 to 256"):
            rollenv.make("game:Sokoban-v0-easy", images="only", tile=tile)
    with pytest.raises(UsageError, match="no argument 'tile'"):
        rollenv.make("game:Sokoban-v0-easy", tile=28)


def test_spawned_environments_see_too():
    env = rollenv.make("game:Sokoban-v0-easy", images="only", tile=14)
    first = env.reset(seed=2)
    assert env.spawn().reset(seed=2) == first
    assert "images" not in env.spawn(images=None).reset(seed=2)[1]
    twin = env.spawn(same_state=True)
    assert twin.step("\\boxed{up}") == env.step("\\boxed{up}")


def test_a_recipe_shows_pictures_in_training_and_evaluation():
    config = load_config("sokoban", ["env.images=only", "env.kwargs.tile=14"])
    assert {**config.env.kwargs, "images": "only", "tile": 14} == config.env.kwargs
    assert {**config.eval.kwargs, "images": "only", "tile": 14} == config.eval.kwargs
    again = with_settings(config, ["env.images=also"])
    assert again.env.kwargs["images"] == again.eval.kwargs["images"] == "also"
    with pytest.raises(UsageError, match=r"env\.images"):
        load_config("sokoban", ["env.images=true"])


class Seen(rollenv.Env):
    """An environment with pictures of its own, with marks in every place where a text can be."""

    def _picture(self):
        return pixels(Drawing([[Cell("open", text=str(self.randint(1000)))]]))

    def _reset(self, options):
        return "No mark.", {"images": [self._picture(), self._picture()]}

    def _step(self, action):
        info = {"prefix": f"before {MARK}", "suffix": f"after {MARK}", "images": [self._picture() for _ in range(3)]}
        return f"seen {MARK}", 0.0, action == "end", False, info if action == "all" else {}


def test_a_history_has_the_pictures_of_all_its_observations():
    plain, whole = Seen(), wrap(Seen(), {"concat": {}})
    last = ObservationWrapper(Seen(), max_history_length=1)
    steps = [list(results(env, 1, ["all", "none", "all"])) for env in (plain, whole, last)]
    own = [list(result[4].get("images", [])) for result in steps[0]]
    first, second = own[0], own[1]
    assert steps[1][0][4]["images"] == first
    assert steps[1][1][4]["images"] == [second[0], *first, *second[1:]]
    assert steps[1][3][4]["images"] == [own[3][0], *first, second[1], *own[3][1:]]
    assert steps[2][3][4]["images"] == [own[3][0], *first, *own[3][1:]]
    assert [result[0].count(MARK) for result in steps[1][:2]] == [2, 5]
    text = steps[1][3][0]
    assert text.index("before") < text.index("No mark.") < text.index("after")


def test_a_history_of_boards_shows_the_last_one_and_can_be_saved():
    env = rollenv.make("game:Sokoban-v0-easy", images="only")
    env = ObservationWrapper(env)
    env.reset(seed=1)
    other = ObservationWrapper(rollenv.make("game:Sokoban-v0-easy", images="only"))
    env.step("\\boxed{up}")
    other.set_state(json.loads(json.dumps(env.get_state())))
    result = env.step("\\boxed{left}")
    assert result[0].count(MARK) == len(result[4]["images"]) == 1
    assert other.step("\\boxed{left}") == result


#: Ids whose boards are drawn for people: an agent reads commands and answers.
FOR_PEOPLE = ["textcraft:Generated-v0"]


@pytest.mark.parametrize("env_id", FOR_PEOPLE)
def test_a_board_that_the_text_does_not_show_is_no_picture_for_agents(env_id):
    with pytest.raises(UsageError, match="images='only'"):
        rollenv.make(env_id, images="only").reset(seed=0)


@pytest.mark.combinations
@pytest.mark.parametrize(
    "env_id", [s.id for s in rollenv.list_envs() if picture_of(s.id) and not s.missing and s.id not in FOR_PEOPLE]
)
@pytest.mark.parametrize("images", ["only", "also"])
def test_every_id_with_a_board_keeps_the_contract_with_pictures(env_id, images):
    slippery = "FrozenLake" in env_id  # its expert loses some episodes to the ice
    rollenv.check_env(rollenv.make(env_id, images=images), episodes=20 if slippery else 2)


def test_the_checker_counts_marks():
    class Wrong(rollenv.Env):
        marks = 1

        def _reset(self, options):
            return MARK * self.marks, {"images": [pixels("a"), pixels("b")]}

        def _step(self, action):
            return "", 0.0, True, False, {}

    with pytest.raises(Broken, match="1 marks <image> for 2 pictures"):
        rollenv.check_env(Wrong)
    Wrong.marks = 2
    rollenv.check_env(Wrong)


def test_a_changed_pixel_is_a_changed_digest():
    one, other = picture(pixels("a")), picture(pixels("b"))
    assert digest("", {"images": [one]}) == digest("", {"images": [picture(one.data)]})
    assert digest("", {"images": [one]}) != digest("", {"images": [other]})


def test_the_command_takes_arguments(rollenv_command):
    done = rollenv_command("check", "game:Sokoban-v0-tiny", "images=only", "-n", "2")
    assert done.returncode == 0, done.stdout
    wrong = rollenv_command("check", "game:GuessTheNumber-v0", "images=only", "-n", "2")
    assert "no board to draw" in " ".join(wrong.stdout.split())
