"""``rollenv arena``: tables, the folder and its page, resuming."""

from __future__ import annotations

import json

import card_game
import pytest

AGENTS = ("--agents", "random", "oracle", "constant:bet")


@pytest.fixture(scope="module", autouse=True)
def _games():
    with card_game.registered():
        yield


def test_agents_are_rated_with_a_page_of_their_games(rollenv_command, tmp_path):
    done = rollenv_command("arena", card_game.ID, *AGENTS, "-n", "5", "--out", "an arena")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "an arena" / "result.json").read_text())
    assert sorted(s["name"] for s in result["standings"]) == sorted(AGENTS[1:])
    assert all(s["games"] == 20 and s["failed"] == 0 for s in result["standings"])
    assert len((tmp_path / "an arena" / "episodes.jsonl").read_text().splitlines()) == 30
    page = (tmp_path / "an arena" / "report.html").read_text()
    assert "oracle against constant:bet" in page
    assert f"{result['standings'][0]['rating'][0]:.0f} (" in page


def test_an_arena_is_continued_with_equal_numbers(rollenv_command, tmp_path):
    whole = rollenv_command("arena", card_game.ID, *AGENTS, "-n", "6", "--json")
    rollenv_command("arena", card_game.ID, *AGENTS, "-n", "4", "--out", "part")
    file = tmp_path / "part" / "episodes.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:11]) + lines[11][:30])  # as if it was killed while it wrote
    again = rollenv_command("arena", card_game.ID, *AGENTS, "-n", "6", "--out", "part", "--resume", "--json")
    assert json.loads(again.stdout)["standings"] == json.loads(whole.stdout)["standings"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("-a", "random"), "at least two"),
        (("-a", "random", "nobody"), "there is no agent 'nobody'"),
        (("top=3", "-a", "random", "oracle"), "top"),
        (("-a", "random", "oracle", "--threads", "2"), "--threads"),
        (("-a", "random", "oracle", "--resume"), "--out"),
    ],
)
def test_wrong_usage_is_said_in_a_line(rollenv_command, words, says):
    done = rollenv_command("arena", card_game.ID, *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_the_same_agent_may_play_itself(rollenv_command):
    done = rollenv_command("arena", card_game.ID, "-a", "random", "-a", "random", "-n", "2", "--json")
    assert {s["name"] for s in json.loads(done.stdout)["standings"]} == {"random", "random (2)"}


def test_an_agent_whose_moves_the_game_does_not_have_is_refused_instead_of_rated(rollenv_command, tmp_path):
    (tmp_path / "bare.py").write_text(
        "import rollenv\nclass Bare(rollenv.Env):\n    players = 2\n    def oracle_action(self):\n        return ''\n"
    )
    done = rollenv_command("arena", "bare.py:Bare", "-a", "oracle", "random")
    assert done.returncode == 2
    assert "sample_random_action" in done.stderr
