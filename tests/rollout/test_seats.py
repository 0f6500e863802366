"""Games with several players: the contract, seats, their rewards, and failures."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import card_game
import numpy as np
import pytest
from card_game import ID, Broken, Cards

import rollenv
from rollenv.agents.base import Action, ContextFull, OracleAgent, RandomAgent
from rollenv.agents.seats import Seats
from rollenv.core.env_spec import wrap
from rollenv.rollout.clock import Clock
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.records import storage
from rollenv.rollout.seats import by_seat, from_seat, score_of
from rollenv.rollout.types import Group, Task, Trajectory
from rollenv.rollout.workers.processes import ProcessWorkers


@pytest.fixture(scope="module", autouse=True)
def _games():
    with card_game.registered():
        yield


class Spy(RandomAgent):
    """Plays at random, and keeps what it was shown, by the seed of the task."""

    def __init__(self):
        self.seen = {}

    def start(self, env, seed):
        session = super().start(env, seed)
        seen = self.seen[env.trajectory.task.seed] = []
        act = session.act

        class Watched:
            async def act(self, observation, info):
                seen.append((observation, info))
                return await act(observation, info)

        return Watched()


def play(agent, n=20, **settings):
    with RolloutManager(agent, **settings) as manager:
        return manager.play([Trajectory(Task(ID, seed)) for seed in range(n)])


def test_a_seat_sees_its_own_observations_only():
    spies = [Spy(), Spy()]
    played = play(Seats(spies))
    assert all(t.status == "terminated" for t in played)
    for trajectory in played:
        env, seed = rollenv.make(ID), trajectory.task.seed
        env.reset(seed=seed)
        for seat, spy in enumerate(spies):
            own = "JQK"[env.unwrapped.cards[seat]]
            assert spy.seen[seed]
            assert all(f"card is {own}" in observation for observation, _ in spy.seen[seed])
            assert all(info["player"] == seat and "rewards" not in info for _, info in spy.seen[seed])


def test_rewards_of_seats_are_those_of_the_game_wherever_they_fall():
    for trajectory in play(RandomAgent()):
        views = [from_seat(trajectory, seat) for seat in range(2)]
        assert sum(view.reward for view in views) == 0
        assert views[trajectory.seat].reward == trajectory.reward
        assert [view.success for view in views] == [view.reward > 0 for view in views]
        assert sum(len(view.turns) for view in views) == len(trajectory.turns)
        assert {turn.player for turn in views[1].turns} == {1}


def test_rotation_shares_the_roles_and_members_of_a_group_sit_alike():
    agent = Seats([OracleAgent(), RandomAgent()], ["learner", "random"], rotate=True)
    with RolloutManager(agent) as manager:
        groups = manager.collect([Task(ID, seed) for seed in range(6)], 3)
    assert [{t.seat for t in group} for group in groups] == [{0}, {1}] * 3
    split = by_seat(groups)
    assert len(split) == len(groups)
    assert [{t.seat for t in group} for group in split] == [{0}, {1}] * 3


def test_self_play_gives_a_group_for_each_seat():
    with RolloutManager(RandomAgent()) as manager:
        groups = manager.collect([Task(ID, seed) for seed in range(3)], 4)
    assert [{t.seat for t in group} for group in groups] == [{0}, {1}, {0}]  # success is of one seat, in turn another
    split = by_seat(groups)
    assert [[t.seat for t in group] for group in split] == [[0] * 4, [1] * 4] * 3


@pytest.mark.parametrize("how", ["hangs", "raises", "ignores", "exits", "bad text", "start"])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("seconds", [600.0, 1e6])
def test_who_fails_forfeits_the_game(how, first, seconds):
    agents = [Broken(how), RandomAgent()] if first else [RandomAgent(), Broken(how)]
    agent = Seats(agents, ["learner", "other"], seconds=seconds)
    played = play(agent, 4, limits=EpisodeLimits(max_replacements=0), clock=Clock.VIRTUAL)
    loser = 0 if first else 1
    for game in played:
        assert game.status == "terminated"
        assert f"seat {loser}" in game.error
        assert (game.reward, game.success) == ((-1.0, False) if first else (1.0, True))
        assert score_of(game, loser) == 0.0
        assert score_of(game, 1 - loser) == 1.0
        assert from_seat(game, loser) is None
    taught = sum(len(group.trajectories) for group in by_seat([Group(played[0].task, played)]))
    assert taught == (0 if first or how == "start" else 4)


class Says(RandomAgent):
    """Says a text, however much it is shown; with ``room``, its context ends there."""

    def __init__(self, text, room=10**9):
        self.text, self.room = text, room

    def start(self, env, seed):
        said, read, room, text = [], [], self.room, self.text

        class Session:
            async def act(self, observation, info):
                read.append(observation)
                if sum(map(len, read)) + sum(map(len, said)) > room:
                    raise ContextFull("no room is left")
                said.append(text)
                return Action(text)

        return Session()


class Talk(Cards):
    """Two players talk, four times each; what one says is told with other words around it, in capitals."""

    forfeit_returns = (-2.0, 2.0)

    def _reset(self, options):
        self.said = []
        return "Say something.", {"player": 0}

    def _step(self, action):
        self.said.append(action)
        if action == "crash":
            raise ZeroDivisionError
        if len(self.said) < 8:
            return f"The other said: {action.upper()!r}. Answer!", 0.0, False, False, {"player": len(self.said) % 2}
        return "", 0.0, True, False, {"rewards": [0.0, 0.0], "observations": ["", ""], "success": [False, False]}


@pytest.mark.parametrize(("texts", "room", "loser"), [
    (("how are you? " * 4000, "fine"), 5_000, 0),
    (("what do you think? " * 20, "fine"), 1_000, 0),
    (("hello", "let me tell you everything about it " * 20), 1_000, 1),
    (("hello", "fine"), 20, 1),
    (("crash", "fine"), 10**9, 0),
])  # fmt: skip
def test_who_fills_a_context_or_breaks_the_game_forfeits_it(texts, room, loser):
    with card_game.registered(Talk=Talk):
        agent = Seats([Says(texts[0]), Says(texts[1], room)], ["a", "b"])
        with RolloutManager(agent) as manager:
            [game] = manager.play([Trajectory(Task("seats:Talk-v0", 0))])
    assert (game.status, game.reward) == ("terminated", -2.0 if loser == 0 else 2.0)
    assert f"seat {loser}" in game.error
    assert game.record["success"] == [seat != loser for seat in (0, 1)]
    assert max(len(turn.observation) for turn in game.turns) < 21_000


def test_who_spends_the_tokens_or_the_time_of_a_game_forfeits_it():
    class Slow(RandomAgent):
        def start(self, env, seed):
            act = super().start(env, seed).act

            class Session:
                async def act(self, observation, info):
                    await asyncio.sleep(80)
                    return replace(await act(observation, info), response_ids=(1,) * 50, logprobs=(0.0,) * 50)

            return Session()

    for limits in (EpisodeLimits(episode=100.0), EpisodeLimits(tokens=60)):
        agent = Seats([Slow(), Says("thinking")], ["learner", "other"])
        with card_game.registered(Talk=Talk), RolloutManager(agent, limits=limits, clock=Clock.VIRTUAL) as manager:
            [game] = manager.play([Trajectory(Task("seats:Talk-v0", 0))])
        assert (game.reward, game.status) == (-2.0, "terminated")
        assert "seat 0" in game.error


def test_an_invalid_move_is_the_movers():
    agent = Seats([RandomAgent(), Broken("")], ["learner", "other"])
    for trajectory in play(agent, 6):
        assert all(turn.valid == (turn.player == 0) for turn in trajectory.turns)


@pytest.mark.parametrize("wrong", [
    {"player": 2}, {"player": 0, "rewards": [1.0]}, {"player": 0, "success": [True]},
    {"player": 0, "rewards": ["a", 0.0]}, {"player": "me"}, {"player": 0, "observations": [b"", ""]}, {},
])  # fmt: skip
def test_what_breaks_the_contract_fails_with_the_key(wrong):
    class Wrong(Cards):
        def _reset(self, options):
            observation, _ = super()._reset(options)
            return observation, wrong

    manager = RolloutManager(RandomAgent(), limits=EpisodeLimits(max_replays=0))
    with card_game.registered(Wrong=Wrong), manager:
        [trajectory] = manager.play([Trajectory(Task("seats:Wrong-v0", 0))])
    assert trajectory.failure == "wrong"
    assert "info['" in trajectory.error


class Growing(Cards):
    """Has NumPy's numbers for players, and one more player after the first move."""

    def _reset(self, options):
        return super()._reset(options)[0], {"player": np.int64(0)}

    def _step(self, action):
        self.players = 3
        return "", 0.0, False, False, {"player": 2}


def test_a_game_whose_players_change_fails_alone(tmp_path):
    manager = RolloutManager(RandomAgent(), limits=EpisodeLimits(max_replays=0))
    with card_game.registered(Growing=Growing), manager:
        played = manager.play([Trajectory(Task("seats:Growing-v0", 0)), Trajectory(Task(ID, 0))])
    assert [t.failure for t in played] == ["wrong", ""]
    storage.write(tmp_path / "games.jsonl", played)


@pytest.mark.parametrize("turns", [1, 2])
def test_a_game_that_is_cut_off_shows_no_seat_what_another_sees(turns):
    for trajectory in play(RandomAgent(), limits=EpisodeLimits(turns=turns)):
        env = rollenv.make(ID)
        env.reset(seed=trajectory.task.seed)
        others = "JQK"[env.unwrapped.cards[1 - trajectory.seat]]
        assert f"card is {others}" not in trajectory.final_observation


def test_a_history_of_all_players_is_refused():
    with pytest.raises(rollenv.UsageError, match="several players"):
        wrap(rollenv.make(ID), {"concat": {}}).reset(seed=0)


class SometimesHangs(RandomAgent):
    """Hangs in two of 32 games."""

    def start(self, env, seed):
        return Broken("hangs").start(env, seed) if env.trajectory.task.seed % 16 == 3 else super().start(env, seed)


@pytest.mark.slow
def test_nothing_is_lost_when_workers_are_killed_and_a_seat_hangs():
    games = [Task("multi:Propose-v0", seed, {"solvers": 12}) for seed in range(32)]
    killed = []

    def kill_one(trajectory):
        alive = [report["pid"] for report in pool.report() if report["pid"] and report["pid"] not in killed]
        if alive and len(killed) < 3:
            os.kill(alive[0], signal.SIGKILL)
            killed.append(alive[0])

    with ProcessWorkers(2, ping_every=0.1, lost_after=4.0, close_deadline=1.0) as pool:
        agent = Seats([OracleAgent(0.5), SometimesHangs()], seconds=2.0)
        with RolloutManager(agent, pool, limits=EpisodeLimits(max_backoff=0.0)) as manager:
            played = manager.play([Trajectory(task) for task in games], kill_one)
    with RolloutManager(Seats([OracleAgent(0.5), RandomAgent()])) as manager:
        undisturbed = manager.play([Trajectory(task) for task in games])
    assert killed
    assert sum(t.replays for t in played) > 0
    assert all(t.status == "terminated" for t in played)
    for there, here in zip(played, undisturbed, strict=True):
        if there.task.seed % 16 == 3 and len(here.turns) > 1:
            assert "seat 1 (SometimesHangs) did not answer" in there.error
            assert there.turns[-1].player == 1
        else:
            assert there.error == ""
            assert (there.status, there.turns, there.reward) == (here.status, here.turns, here.reward)


def test_exports_of_a_game_have_the_words_of_one_seat_only(tmp_path):
    from rollenv.rollout.exports.files import export

    played = play(RandomAgent())
    storage.write(tmp_path / "games.jsonl", played)
    export(tmp_path / "games.jsonl", tmp_path / "games.chat.jsonl")
    for line in (tmp_path / "games.chat.jsonl").read_text().splitlines():
        shown = {card for card in "JQK" if f"card is {card}" in line}
        assert len(shown) == 1
