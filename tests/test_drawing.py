"""Boards as pictures."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollenv
from rollenv.core.drawing import Cell, Drawing, ansi, draw, svg
from rollenv.core.errors import UsageError
from rollenv.envs import pictures
from rollenv.report.episodes import picture_of

#: An id of every family that has a picture, and the cells of its board.
BOARDS = {
    "game:Sokoban-v0-easy": 36,
    "ragen:Sokoban-v0": 36,
    "roll:FrozenLake-v0": 16,
    "game:Minesweeper-v0-easy": 36,
    "game:Sudoku-v0-easy": 25,
    "game:Game2048-v0": 16,
    "game:FifteenPuzzle-v0-easy": 4,
    "game:TowerofHanoi-v0-easy": 12,
    "game:WordSearch-v0-easy": 81,
    "multi:Nim-v0": None,
    "game:Wordle-v0-easy": None,
    "game:Mastermind-v0-easy": None,
    "game:Hangman-v0-easy": None,
    "game:Crosswords-v0-easy": None,
}
PICTURES = [value for value in vars(pictures).values() if callable(value) and value.__module__ == pictures.__name__]


def plain(text: str) -> str:
    """The text without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("env_id", BOARDS)
def test_every_state_of_an_episode_can_be_drawn(env_id):
    env = rollenv.make(env_id)
    env.reset(3)
    drawn, over = 0, False
    while not over:
        text = env.render()
        drawing = draw(env.picture, text)
        if drawing is not None:
            drawn += 1
            ElementTree.fromstring(svg(drawing))
            assert len(plain(ansi(drawing)).split("\n")) == len(drawing.rows) + len(drawing.notes)
            if BOARDS[env_id]:
                assert sum(map(len, drawing.rows)) == BOARDS[env_id]
        _, _, terminated, truncated, _ = env.step(env.oracle_action())
        over = terminated or truncated
    assert drawn >= 1


def test_what_the_text_shows_is_in_the_drawing():
    drawing = pictures.sokoban("# # #\n# S √\n# P X")
    pieces = [cell.pieces for row in drawing.rows for cell in row if cell.pieces]
    assert pieces == [("target", "player"), ("target", "done"), ("player",), ("box",)]
    rows = pictures.wordle("Guesses so far:\nEAT XYG").rows
    assert [(cell.text, cell.ground) for cell in rows[0]] == [("E", "miss"), ("A", "near"), ("T", "good")]
    widths = [cell.wide for row in pictures.hanoi("A: 3 2 1\nB:\nC:").rows for cell in row if cell.text.isdigit()]
    assert widths == sorted(widths)
    assert len(pictures.mastermind("Guesses so far:\n1 2 3: 1 black, 2 white").rows[0]) == 3 + 1 + 3
    assert [len(row) for row in pictures.nim("pile 1: 3\npile 2: 0\nnext: player_0").rows] == [4, 1]


def test_render_modes_draw_and_change_nothing_else():
    plain_env, coloured, picture = (
        rollenv.make("game:Sokoban-v0-easy", render_mode=m) for m in ("text", "ansi", "svg")
    )
    assert [env.reset(1) for env in (coloured, picture)] == [plain_env.reset(1)] * 2
    assert "\x1b[" in coloured.render()
    assert "\x1b[" not in plain_env.render()
    assert picture.render().startswith("<svg ")
    action = plain_env.oracle_action()
    results = [env.step(action) for env in (plain_env, coloured, picture)]
    assert results[0] == results[1] == results[2]
    assert plain_env.state_key() == coloured.state_key() == picture.state_key()
    assert coloured.spawn(same_state=True).render() == coloured.render()
    assert (plain_env.render_mode, coloured.render_mode, picture.render_mode) == ("text", "ansi", "svg")
    assert coloured.spec == plain_env.spec
    with pytest.raises(UsageError, match="'human'"):
        rollenv.make("game:Sokoban-v0-easy", render_mode="human")


def test_an_environment_without_a_picture_is_drawn_as_its_text():
    svg_env = rollenv.make("game:GuessTheNumber-v0-easy", render_mode="svg")
    svg_env.reset(1)
    assert "Guesses so far" in "".join(ElementTree.fromstring(svg_env.render()).itertext())
    ansi_env = rollenv.make("game:GuessTheNumber-v0-easy", render_mode="ansi")
    ansi_env.reset(1)
    assert ansi_env.render() == svg_env.unwrapped.render()


@given(st.sampled_from(PICTURES), st.text() | st.from_regex(r"(\w+: ?[\w ,]*\n?|[ #_OXP\d]+\n)*", fullmatch=True))
def test_a_text_of_any_kind_never_breaks_a_drawing(picture, text):
    drawing = draw(picture, text)
    ElementTree.fromstring(svg(text if drawing is None else drawing))
    if drawing is not None:
        ansi(drawing)


def test_markup_in_a_board_stays_text():
    drawing = Drawing([[Cell("open", text="<b>&")]], notes=["</svg><script>\x1b[31m"])
    texts = list(ElementTree.fromstring(svg(drawing)).itertext())
    assert "<b>&" in texts
    assert "</svg><script>[31m" in texts


def test_what_is_too_large_is_no_drawing():
    assert draw(pictures.sokoban, "# " * 50_000) is None
    assert draw(pictures.sokoban, "\n".join(["# #"] * 500)) is None


def test_a_picture_is_found_by_id_and_its_absence_is_no_error():
    assert picture_of("game:Sokoban-v0-hard") is pictures.sokoban
    assert picture_of("multi:Nim-v0") is pictures.nim
    assert picture_of("nobody:Knows-v0") is None
