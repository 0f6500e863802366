"""A round robin: ratings, pairs of agents in their seats, forfeits and failures."""

from __future__ import annotations

import asyncio
import math

import card_game
import numpy as np
import pytest
from card_game import Broken
from hypothesis import given
from hypothesis import strategies as st

from rollenv import UsageError
from rollenv.agents.base import Action, Agent, ConstantAgent, NothingToSay, OracleAgent, RandomAgent, Session
from rollenv.agents.seats import SeatFailed
from rollenv.plugins.players.arena import RoundRobin, pairs_of, ratings, results
from rollenv.rollout.clock import Clock
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task, Trajectory
from rollenv.rollout.workers.base import EnvFailure

FORFEIT = "seats:Forfeit-v0"


class Forfeit(card_game.Cards):
    """Kuhn poker in which a move against the rules loses the game."""

    def _step(self, action):
        mover = len(self.said) % 2
        if action in ("pass", "bet"):
            return super()._step(action)
        rewards = [-1.0 if seat == mover else 1.0 for seat in range(2)]
        told, won = ["You lose.", "You win."], [seat != mover for seat in range(2)]
        info = {"rewards": rewards, "observations": told, "success": won, "valid": False, "metrics": {"forfeits": 1.0}}
        return told[0], -1.0, True, False, info


@pytest.fixture(scope="module", autouse=True)
def _games():
    with card_game.registered(Forfeit=Forfeit):
        yield


def play(agents, deals=6, env_id=card_game.ID):
    """Results and games of a round robin, in virtual time: who hangs costs none."""
    table = RoundRobin(agents)
    games = [Trajectory(Task(env_id, seed), member=m) for seed in range(deals) for m in range(len(table.pairs))]
    with RolloutManager(table, limits=EpisodeLimits(max_replacements=0), clock=Clock.VIRTUAL) as manager:
        manager.play(games)
    return results([*agents], games), games


strengths = st.lists(st.floats(-2, 2), min_size=2, max_size=6)


@given(strengths, st.floats(0, 2))
def test_ratings_recover_the_strengths_that_games_came_from(given_, drawn):
    true = np.array(given_) - np.mean(given_)
    chance = 1 / (1 + np.exp(true[None] - true[:, None]))
    draws = 1e6 * drawn * chance * chance.T * (1 - np.eye(len(true)))
    found = ratings(1e6 * chance * (1 - np.eye(len(true))) - draws / 2, draws)
    for (elo, low, high), strength in zip(found, true, strict=True):
        assert elo == pytest.approx(1000 + 400 / math.log(10) * strength, abs=0.1)
        assert low <= elo <= high


@given(st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=4, max_size=4))
def test_ratings_have_a_mean_of_1000_and_follow_their_agents(rows):
    wins = np.array(rows, float) * (1 - np.eye(4))
    found, order = np.array(ratings(wins, np.zeros((4, 4)))), [2, 0, 3, 1]
    assert found[:, 0].mean() == pytest.approx(1000)
    assert np.isfinite(found).all()
    assert (found[:, 1] <= found[:, 0]).all()
    assert (found[:, 0] <= found[:, 2]).all()
    assert np.array(ratings(wins[np.ix_(order, order)], np.zeros((4, 4))))[:, 0] == pytest.approx(found[order, 0])


def test_more_games_give_narrower_intervals_and_a_clean_score_gives_a_wide_one():
    def width(games, share=0.7):
        wins = games * np.array([[0, share], [1 - share, 0]])
        _, low, high = ratings(wins, np.zeros((2, 2)))[0]
        return high - low

    assert width(1000) < width(100) / 2 < width(10)
    assert width(20, 1.0) > 100


def test_draws_bring_ratings_together():
    wins, draws = np.array([[0, 9.0], [1, 0]]), np.array([[0, 90.0], [90, 0]])
    apart = [ratings(wins, each)[0][0] - 1000 for each in (draws * 0, draws)]
    assert 0 < apart[1] < apart[0] / 3


def test_every_two_agents_play_each_deal_from_both_seats():
    agents = {"a": RandomAgent(), "b": OracleAgent(), "c": ConstantAgent("bet")}
    found, games = play(agents)
    assert {tuple(game.record["seats"]) for game in games} == {(a, b) for a in agents for b in agents if a != b}
    for game in games:
        i, j = pairs_of(3)[game.member]
        assert game.record["seats"] == [[*agents][i], [*agents][j]]
        assert "bet" in [turn.text for turn in game.turns] or "c" not in game.record["seats"]
    assert {s.games for s in found.standings} == {24}
    for standing in found.standings:
        assert standing.wins + standing.draws + standing.losses == standing.games
    assert sum(s.returns for s in found.standings) == 0
    assert [s.rating[0] for s in found.standings] == sorted((s.rating[0] for s in found.standings), reverse=True)
    for i, row in enumerate(found.scores):
        assert row[i] is None
        assert all(row[j] + found.scores[j][i] == pytest.approx(1) for j in range(3) if i != j)


def test_a_forfeit_is_a_loss_of_who_made_it():
    found, _ = play({"wrong": ConstantAgent("resign"), "right": ConstantAgent("pass")}, env_id=FORFEIT)
    right, wrong = found.standings
    assert (right.name, right.wins, right.forfeits) == ("right", 12, 0)
    assert (wrong.losses, wrong.forfeits, wrong.failed) == (12, 12, 0)


@pytest.mark.parametrize("how", ["hangs", "raises", "start", "bytes"])
def test_a_broken_agent_forfeits_its_games(how):
    agents = {"broken": Broken(how), "a": ConstantAgent("bet"), "b": ConstantAgent("pass")}
    found, games = play(agents, deals=3)
    assert all(game.complete for game in games)
    by_name = {standing.name: standing for standing in found.standings}
    broken = by_name["broken"]
    assert (broken.games, broken.losses, broken.forfeits, broken.failed) == (12, 12, 12, 0)
    assert [(by_name[name].games, by_name[name].forfeits) for name in "ab"] == [(12, 0), (12, 0)]
    assert found.standings[-1] is broken


class Points(card_game.Cards):
    """Each move is a point for who makes it, but "stop" ends the game against the rules."""

    def _reset(self, options):
        self.said = []
        return "", {"player": 0}

    def _step(self, action):
        self.said.append(action)
        rewards = [float(seat == (len(self.said) - 1) % 2) for seat in range(2)]
        if action != "stop":
            return "", 1.0, False, False, {"player": len(self.said) % 2, "rewards": rewards}
        info = {"rewards": rewards, "observations": ["", ""], "valid": False, "metrics": {"forfeits": 1.0}}
        return "", 1.0, True, False, info


def test_a_forfeit_is_lost_whatever_was_gained_before():
    with card_game.registered(Points=Points):
        found, _ = play({"stops": ConstantAgent("stop"), "goes on": ConstantAgent("go")}, env_id="seats:Points-v0")
    assert [(s.name, s.wins, s.forfeits) for s in found.standings] == [("goes on", 12, 0), ("stops", 0, 12)]


def test_only_games_of_two_are_played():
    with pytest.raises(UsageError, match="eval"):
        play({"a": RandomAgent(), "b": RandomAgent()}, env_id="game:GuessTheNumber-v0-easy")


class Foul(Agent):
    """Blames somebody else, breaks off, or plays for the other."""

    def __init__(self, how):
        self.how = how
        if how == "draw":
            self.draw = None

    @property
    def version(self):
        if self.how == "version":
            raise RuntimeError("not today")

    def start(self, env, seed):
        how = self.how

        class Unspeakable(Exception):
            def __str__(self):
                raise RuntimeError("no text")

        class Foul(Session):
            @property
            def replayable(self):
                if how == "replayable":
                    raise RuntimeError("not today")
                return True

            async def act(self, observation, info):
                other = 1 - info["player"]
                errors = {
                    "nothing": NothingToSay("it is lost anyway"),
                    "seat": SeatFailed(other, "it was the other"),
                    "no seat": SeatFailed(99, "it was nobody"),
                    "environment": EnvFailure("lost", "it was the machine"),
                    "text": Unspeakable(),
                }
                if how in errors:
                    raise errors[how]
                if how in ("reset", "step", "close"):
                    await env.call(how, *["pass"] * (how == "step"))
                return Action("pass")

        return Foul()


@pytest.mark.parametrize(
    "how", ["nothing", "seat", "no seat", "environment", "text", "replayable", "draw", "reset", "step", "close"]
)
@pytest.mark.parametrize("first", [False, True])
def test_who_plays_foul_has_lost(how, first):
    agents = {"foul": Foul(how), "fair": ConstantAgent("pass")}
    found, games = play(agents if first else dict(reversed(agents.items())), deals=2)
    assert all(game.complete for game in games)
    fair, foul = found.standings
    assert (foul.name, foul.losses, foul.forfeits, foul.failed) == ("foul", 4, 4, 0)
    assert (fair.wins, fair.forfeits) == (4, 0)


def test_no_agent_speaks_for_the_weights_of_all():
    found, _ = play({"foul": Foul("version"), "a": ConstantAgent("bet"), "b": ConstantAgent("pass")}, deals=2)
    assert [standing.forfeits for standing in found.standings] == [0, 0, 0]


class Endless(card_game.Cards):
    """Ends by its number of moves, before a turn of seat 0."""

    def _step(self, action):
        return "", 0.0, False, True, {"player": 0, "rewards": [0.0, 0.0]}


def test_what_trains_a_player_is_not_asked_in_an_arena():
    class Mute(ConstantAgent):
        def start(self, env, seed):
            session = super().start(env, seed)
            session.next_prompt = None
            return session

    with card_game.registered(Endless=Endless):
        found, _ = play({"mute": Mute("bet"), "b": ConstantAgent("pass")}, env_id="seats:Endless-v0")
    assert [(s.draws, s.failed) for s in found.standings] == [(12, 0), (12, 0)]


def test_calls_of_the_environment_do_not_renew_the_time_of_an_answer():
    class Slow(ConstantAgent):
        def start(self, env, seed):
            class Slow(Session):
                async def act(self, observation, info):
                    for _ in range(4):
                        await asyncio.sleep(200.0)
                        await env.call("sample_random_action")
                    return Action("bet")

            return Slow()

    found, _ = play({"slow": Slow("bet"), "b": ConstantAgent("pass")}, deals=2)
    assert {s.name: s.forfeits for s in found.standings} == {"slow": 4, "b": 0}
