"""Meters of play in OpenSpiel's games."""

import asyncio
import dataclasses
from types import SimpleNamespace

import pytest

import rollenv
from rollenv.agents.base import ConstantAgent, OracleAgent, RandomAgent
from rollenv.core.errors import UsageError

pyspiel = pytest.importorskip("pyspiel", reason="open-spiel is not installed: pip install 'rollenv[players]'")

from rollenv.plugins.players.meters import (  # noqa: E402
    average,
    exploitability,
    exploitability_of,
    information_states,
    losses,
    policy_of,
)
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


def test_probabilities_of_a_local_model_are_those_that_it_samples_with():
    torch = pytest.importorskip("torch")
    from rollenv.agents.engines.base import Sampling
    from rollenv.agents.engines.scoring import score
    from rollenv.agents.local import LocalAgent
    from rollenv.agents.prompts import StepPrompt
    from rollenv.agents.tiny.model import build_model, build_tokenizer
    from rollenv.agents.tiny.settings import TinySize

    env = rollenv.make("spiel:kuhn_poker", action_format="number").unwrapped
    places = information_states(env.game)
    tokenizer = build_tokenizer(["0 0pb 1 2b"], 257)
    size = TinySize(hidden=16, layers=1, heads=2, intermediate=32, context=16, vocabulary=257)
    model = build_model(size, tokenizer, 0)
    agent = LocalAgent(model, tokenizer, StepPrompt("{state}", chat=False), Sampling(max_new_tokens=1))
    prompts = [agent.encode(env.turns_to(place.history)[-1][1]["brief"]) for place in places.values()]
    zero, one = (tuple(tokenizer.encode(move)) for move in "01")
    wanted = torch.linspace(0.1, 0.9, len(places))  # the chance of a bet in each information state
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    for _ in range(60):
        logprobs = score(model, prompts * 2, [zero] * len(places) + [one] * len(places)).logprobs[:, -1]
        loss = -(torch.cat([1 - wanted, wanted]) * logprobs).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    agent.weights_changed()
    policy, legal = policy_of(agent, env, places)
    assert legal > 0.95
    for key, place in list(places.items())[::3]:
        turns = env.turns_to(place.history)

        async def answers(turns=turns):
            sessions = [agent.start(None, seed) for seed in range(400)]
            return await asyncio.gather(*(session.act(*turns[-1][:2]) for session in sessions))

        said = [env.read(action.text) for action in asyncio.run(answers())]
        assert said.count(1) / 400 == pytest.approx(policy[key][1], abs=0.1)
    cold = dataclasses.replace(agent.sampling, temperature=0.1)
    agent.sampling = cold
    assert max(policy_of(agent, env, places)[0]["0"].values()) > max(policy["0"].values())
