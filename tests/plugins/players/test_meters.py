"""Meters of play in OpenSpiel's games."""

from types import SimpleNamespace

import pytest

from rollenv.agents.base import ConstantAgent, OracleAgent, RandomAgent
from rollenv.core.errors import UsageError

pyspiel = pytest.importorskip("pyspiel", reason="open-spiel is not installed: pip install 'rollenv[players]'")

from rollenv.plugins.players.meters import average, exploitability, exploitability_of, information_states, losses  # noqa: E402
from rollenv.plugins.players.solve import KUHN  # noqa: E402


def config(env_id, run_dir="", **kwargs):
    return SimpleNamespace(env=SimpleNamespace(id=env_id, kwargs=kwargs), run_dir=str(run_dir))


def kuhn(bets):
    return {key: {0: 1 - bet, 1: bet} for key, bet in bets.items()}


@pytest.mark.parametrize(("move", "value"), [("pass", 1.0), ("bet", 1 / 3)])
def test_exploitability_of_constant_play(move, value):
    found = exploitability(ConstantAgent(move), config("spiel:kuhn_poker"))
    assert found == {
        "exploitability": pytest.approx(value),
        "average_exploitability": pytest.approx(value),
        "illegal": 0,
    }


def test_the_oracle_is_exploited_less_than_random_play():
    oracle, random = (exploitability(agent, config("spiel:kuhn_poker")) for agent in (OracleAgent(), RandomAgent()))
    assert oracle["exploitability"] < 0.05 < 0.4 < random["exploitability"]


def test_illegal_answers_are_told():
    assert exploitability(ConstantAgent("what?"), config("spiel:kuhn_poker"))["illegal"] == 1


def test_the_average_plays_each_policy_for_a_whole_game():
    game = pyspiel.load_game("kuhn_poker")
    places = information_states(game)
    always, never = kuhn(dict.fromkeys(KUHN, 1.0)), kuhn(dict.fromkeys(KUHN, 0.0))
    mixed = average([always, never], places)
    assert mixed["0"] == {0: 0.5, 1: 0.5}
    assert mixed["0pb"] == never["0pb"]  # who always bets does not get there
    assert exploitability_of(game, average([kuhn(KUHN)] * 3, places)) == pytest.approx(0, abs=1e-12)


def test_a_run_keeps_its_policies_for_the_average(tmp_path):
    here = config("spiel:kuhn_poker", tmp_path / "a b")
    (tmp_path / "a b").mkdir()
    agents = [ConstantAgent(move) for move in ("pass", "pass", "bet", "pass")]
    for version, agent in enumerate(agents):
        agent.version = version
        last = exploitability(agent, here)
    assert last["exploitability"] == 1
    assert last["average_exploitability"] < 0.6  # of the later half: one that bets, one that passes
    agents[2].version = 0
    assert exploitability(agents[2], here)["average_exploitability"] == pytest.approx(1 / 3)  # it begins again


def test_lost_games_are_counted_over_all_replies():
    assert losses(ConstantAgent("no move"), config("spiel:tic_tac_toe")) == {
        "losses": 10,  # forfeited at once: as the first, and after each of nine replies
        "games": 10,
        "losses_first": 1,
        "losses_second": 9,
    }
    assert losses(RandomAgent(), config("spiel:hex(board_size=2)"))["games"] > 2


def test_the_oracle_loses_no_game():
    found = losses(OracleAgent(), config("spiel:hex(board_size=2)"))
    assert (found["losses_first"], found["games"] > 5) == (0, True)


@pytest.mark.parametrize(
    ("meter", "env_id", "fact"),
    [
        (losses, "spiel:kuhn_poker", "hidden information"),
        (losses, "spiel:connect_four", "at most 20000 states"),
        (exploitability, "game:Sokoban-v0-tiny", "no game of OpenSpiel"),
        (exploitability, "spiel:liars_dice", "histories"),
        (exploitability, "spiel:matrix_pd", "cannot measure"),
    ],
)
def test_what_cannot_be_measured_is_refused(meter, env_id, fact):
    with pytest.raises(UsageError, match=fact):
        meter(ConstantAgent("0"), config(env_id))
