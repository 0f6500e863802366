"""Playing tasks: groups, redundancy, failures, reproducibility. Environments live in this process here."""

import asyncio
import itertools
import json
import math
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
from troubled import ID, Echo, Troubled, assert_whole, chain

import rollenv
from rollenv import UsageError
from rollenv.agents.base import Action, AgentFailed, ConstantAgent, ContextFull, OracleAgent, RandomAgent, Session
from rollenv.rollout import filters
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.manager import RolloutManager as AnyManager
from rollenv.rollout.records.health import EnvUnhealthy, RewardUnhealthy
from rollenv.rollout.types import Task


@pytest.fixture(autouse=True)
def _closed():
    Troubled.open_now = 0
    yield
    assert Troubled.open_now == 0, "an environment was left open"


def RolloutManager(agent, limits=None, **settings):
    """A manager that does not rest between attempts."""
    return AnyManager(agent, limits=replace(limits or EpisodeLimits(), max_backoff=0.0), **settings)


class Scripted(Session):
    """Says its number; in turn ``at`` does what it is told."""

    def __init__(self, trouble=None, at=2):
        self.trouble, self.at, self.turn, self.closed = trouble, at, 0, 0

    def start(self, env, seed):
        session = Scripted(self.trouble, self.at)
        self.last = session
        return session

    async def act(self, observation, info):
        self.turn += 1
        await asyncio.sleep(0)
        if self.turn == self.at and self.trouble:
            await self.trouble()
        return Action(str(self.turn))

    def close(self):
        self.closed += 1


async def run_out():
    raise ContextFull("4,096 tokens are not enough")


async def give_up():
    raise AgentFailed("the endpoint answered 500 four times")


async def bug():
    raise KeyError("temperature")


async def never():
    await asyncio.sleep(1000)


def test_a_group_starts_in_one_state_and_its_members_go_their_own_ways():
    groups = RolloutManager(RandomAgent()).collect([Task("game:Sokoban-v0-easy", s) for s in range(4)], 6)
    assert [g.task.seed for g in groups] == [0, 1, 2, 3]
    for group in groups:
        assert len({t.turns[0].state_key for t in group}) == 1
        assert len({tuple(turn.text for turn in t.turns) for t in group}) > 1
        assert [t.member for t in group] == list(range(6))
    assert len({g.trajectories[0].turns[0].state_key for g in groups}) == 4


def test_trajectories_tell_what_happened():
    (group,) = RolloutManager(OracleAgent(), keep_views=True).collect([Task("game:Sokoban-v0-easy", 1)])
    (trajectory,) = group
    assert (trajectory.status, trajectory.success, trajectory.reward) == ("terminated", True, 1.0)
    replay = rollenv.make("game:Sokoban-v0-easy")
    observation, _ = replay.reset(1)
    for turn in trajectory.turns:
        assert (turn.observation, turn.view, turn.state_key) == (observation, replay.render(), replay.state_key())
        observation, reward, *_ = replay.step(turn.text)
        assert turn.reward == reward
    assert (trajectory.final_observation, trajectory.final_view) == (observation, replay.render())


def test_the_same_tasks_give_the_same_trajectories():
    tasks = [Task("game:Sokoban-v0-easy", s) for s in range(3)]
    assert RolloutManager(OracleAgent(0.5)).collect(tasks, 3) == RolloutManager(OracleAgent(0.5)).collect(tasks, 3)


# -- environments that fail --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trouble", "at", "turns"), [("raise", 1, 0), ("raise", 3, 2), ("exit", 2, 1), ("reset", 0, 0)]
)
def test_an_environment_that_fails_for_good_fails_its_own_group_only(trouble, at, turns):
    tasks = [Task(ID, 0, {"trouble": trouble, "at": at}), Task(ID, 1)]
    manager = RolloutManager(Echo())
    bad, good = manager.collect(tasks, 2)
    assert all(t.status == "terminated" and t.success and len(t.turns) == 4 for t in good)
    limits = manager.limits
    for trajectory in bad:
        assert trajectory.status == "failed"
        assert (
            trajectory.error
            == {
                "raise": f"{ID}: step raised ValueError: lost my board",
                "exit": f"{ID}: step raised SystemExit: 3",
                "reset": f"{ID}: reset raised OSError: the level server is down",
            }[trouble]
        )
        assert (len(trajectory.turns), trajectory.replays) == (turns, limits.max_replays)
    assert manager.stats.replacements == 2 * limits.max_replacements
    assert manager.stats.metrics()["failed/trajectories"] == 2 + 2 * limits.max_replacements


@pytest.mark.parametrize("trouble", ["raise", "exit", "reset"])
def test_an_episode_goes_on_after_a_failure_as_if_nothing_had_been(trouble, tmp_path):
    task = Task(ID, 5, {"trouble": trouble, "at": 3, "once": str(tmp_path / "happened")})
    groups = RolloutManager(Echo()).collect([task])
    assert_whole(groups, [task])
    assert [trajectory.replays for trajectory in groups[0]] == [1]


def test_random_actions_are_replayed_with_the_rest(tmp_path):
    plain, troubled = Task(ID, 5), Task(ID, 5, {"trouble": "raise", "at": 3, "once": str(tmp_path / "happened")})
    ((one,),) = RolloutManager(RandomAgent()).collect([plain])
    ((two,),) = RolloutManager(RandomAgent()).collect([troubled])
    assert (one.replays, two.replays) == (0, 1)
    assert one.turns == two.turns


def test_an_environment_that_cannot_be_replayed_says_so():
    class Moody(Troubled):
        made = 0

        def _reset(self, options):
            Moody.made += 1
            self.mood = Moody.made
            return super()._reset(options)

        def _step(self, action):
            if self.turn == 2 and self.mood == 1:
                raise ValueError("once")
            return (f"{super()._step(action)[0]} {self.mood}", 0.0, self.turn == 4, False, {})

    rollenv.register("test:Moody-v0", Moody)
    manager = RolloutManager(Echo(), limits=EpisodeLimits(max_replacements=0))
    ((trajectory,),) = manager.collect([Task("test:Moody-v0", 0)])
    assert trajectory.status == "failed"
    assert "call 1" in trajectory.error
    assert "rollenv check test:Moody-v0" in trajectory.error


def test_an_environment_that_always_fails_stops_the_rollout_and_says_since_when_and_why():
    tasks = [Task(ID, s, {"trouble": "raise"}) for s in range(200)]
    with pytest.raises(EnvUnhealthy, match=r"test:Troubled-v0.*lost my board"):
        RolloutManager(Echo(), unhealthy_after=10, limits=EpisodeLimits(max_replays=0)).collect(tasks)


# -- agents that fail --------------------------------------------------------------------------------------------------


def test_a_full_context_truncates_the_trajectory():
    agent = Scripted(run_out)
    ((trajectory,),) = RolloutManager(agent).collect([Task(ID, 0)])
    assert (trajectory.status, len(trajectory.turns), agent.last.closed) == ("truncated", 1, 1)
    assert trajectory.final_observation == chain(trajectory.task, ["1"])[-1]


@pytest.mark.parametrize("turns", [1, 3])
def test_an_episode_may_be_given_fewer_turns(turns):
    with RolloutManager(RandomAgent(), EpisodeLimits(turns=turns)) as manager:
        ((short,),) = manager.collect([Task("game:Sokoban-v0-easy", 1)])
    with RolloutManager(RandomAgent()) as manager:
        ((whole,),) = manager.collect([Task("game:Sokoban-v0-easy", 1)])
    assert (len(short.turns), short.status) == (turns, "truncated")
    assert [turn.text for turn in short.turns] == [turn.text for turn in whole.turns[:turns]]
    assert short.final_observation == whole.turns[turns].observation
    with pytest.raises(UsageError, match="turn"):
        EpisodeLimits(turns=0)


def test_an_agent_that_gives_up_fails_the_trajectory_and_not_the_environment():
    manager = RolloutManager(Scripted(give_up), limits=EpisodeLimits(max_replacements=0), unhealthy_after=1)
    ((trajectory,),) = manager.collect([Task(ID, 0)])
    assert (trajectory.status, trajectory.error) == ("failed", "the endpoint answered 500 four times")


def test_a_bug_in_the_agent_ends_the_rollout_and_closes_everything():
    agent = Scripted(bug)
    with pytest.raises(KeyError, match="temperature") as caught:
        RolloutManager(agent).collect([Task(ID, s) for s in range(3)], 2)
    assert agent.last.closed == 1
    assert "Scripted" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("limits", "text"), [(EpisodeLimits(agent=0.05), "did not answer"), (EpisodeLimits(episode=0.05), "longer")]
)
def test_deadlines_hold_for_agents(limits, text):
    limits = replace(limits, max_replacements=0)
    agent = Scripted(never)
    ((trajectory,),) = RolloutManager(agent, limits=limits).collect([Task(ID, 0)])
    assert trajectory.status == "failed"
    assert text in trajectory.error
    assert agent.last.closed == 1


@pytest.mark.parametrize("wrong", [{"group_size": 0}, {"extra_groups": -1}, {"extra_members": -1}, {"groups": -1}])
def test_sizes_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UsageError, match="negative"):
        RolloutManager(Echo()).batch([Task(ID, 0)], **{"groups": 1, **wrong})


# -- redundancy --------------------------------------------------------------------------------------------------------


class Slow(Session):
    """Members whose number is below ``slow`` never answer."""

    def __init__(self, slow=0, cancelled=None):
        self.slow, self.cancelled = slow, [] if cancelled is None else cancelled

    def start(self, env, seed):
        session = Slow(self.slow, self.cancelled)
        session.member = seed % 1_000_003
        return session

    async def act(self, observation, info):
        try:
            await asyncio.sleep(1000 if self.member < self.slow else 0)
        except asyncio.CancelledError:
            self.cancelled.append(self.member)
            raise
        return Action("go")


def test_the_first_members_win_and_the_others_are_cancelled():
    agent = Slow(2)
    manager = RolloutManager(agent)
    (group,) = manager.collect([Task(ID, 0)], 4, extra_members=2)
    assert [t.member for t in group] == [2, 3, 4, 5]
    assert sorted(agent.cancelled) == [0, 1]
    metrics = manager.stats.metrics()
    assert (metrics["kept/trajectories"], metrics["cancelled/trajectories"]) == (4, 2)
    assert metrics["bias/turns"] == pytest.approx(4 / (16 / 6))


class SlowTasks(Session):
    """Never answers in episodes whose seed is divisible by three."""

    def start(self, env, seed):
        session = SlowTasks()
        session.seed = seed // 1_000_003
        return session

    async def act(self, observation, info):
        await asyncio.sleep(1000 if self.seed % 3 == 0 else 0)
        return Action("go")


def test_the_first_groups_win_and_the_tasks_of_the_others_are_reported():
    manager = RolloutManager(SlowTasks())
    groups = manager.batch((Task(ID, s) for s in itertools.count()), 4, 2, extra_groups=2)
    assert [g.task.seed for g in groups] == [1, 2, 4, 5]
    assert [t.seed for t in manager.stats.unfinished] == [0, 3]
    assert all(len(g.trajectories) == 2 for g in groups)


def test_groups_that_a_filter_drops_are_replaced_at_once():
    manager = RolloutManager(Echo())
    groups = manager.batch((Task(ID, s) for s in itertools.count()), 5, 2, keep=lambda g: g.task.seed % 2 == 1)
    assert [g.task.seed for g in groups] == [1, 3, 5, 7, 9]
    assert manager.stats.metrics()["filtered/trajectories"] == 10
    few = manager.batch([Task(ID, s) for s in range(4)], 4, keep=lambda g: g.task.seed % 2 == 1)
    assert [g.task.seed for g in few] == [1, 3], "the source ended"


def test_no_more_episodes_than_allowed_are_played_at_once():
    class Counting(Echo):
        now = most = 0

        async def act(self, observation, info):
            Counting.now += 1
            Counting.most = max(Counting.most, Counting.now)
            await asyncio.sleep(0)
            Counting.now -= 1
            return Action("go")

    groups = RolloutManager(Counting(), max_concurrent=3).collect([Task(ID, s) for s in range(10)], 2)
    assert Counting.most == 3
    assert all(t.complete for g in groups for t in g)


# -- rewards, reports, records -----------------------------------------------------------------------------------------


def test_rewards_are_asked_for_while_others_still_play():
    order = []

    async def reward(trajectory):
        order.append("reward")
        return 10.0

    class Noting(Echo):
        async def act(self, observation, info):
            order.append("turn")
            return Action("go")

    groups = RolloutManager(Noting(), reward=reward, max_concurrent=1).collect([Task(ID, s) for s in range(3)])
    assert order == (["turn"] * 4 + ["reward"]) * 3
    assert all(t.reward == 14.0 for g in groups for t in g)


def by_member(members):
    return [float(t.member) for t in members]


async def later(members):
    await asyncio.sleep(0)
    return np.array(by_member(members))


@pytest.mark.parametrize("function", [by_member, later, lambda members: tuple(range(len(members)))])
@pytest.mark.parametrize("sizes", [{}, {"extra_groups": 1, "extra_members": 1}])
def test_a_group_reward_sees_the_members_and_pays_each(function, sizes):
    seen = []

    def noting(members):
        seen.append([t.reward for t in members])
        return function(members)

    manager = RolloutManager(Echo(), group_reward=noting)
    groups = manager.batch((Task(ID, s) for s in itertools.count()), 2, 3, **sizes)
    assert seen[0] == [4.0] * 3
    assert all([t.reward - 4 for t in g] == [0, 1, 2] for g in groups) or sizes
    assert manager.group_reward.metrics()["added/group"] > 0
    assert manager.group_reward.metrics() == {}


def test_a_group_reward_decides_which_groups_are_kept():
    def by_seed(members):
        return [t.member * (t.task.seed % 2) for t in members]

    manager = RolloutManager(Echo(), group_reward=by_seed)
    groups = manager.batch((Task(ID, s) for s in range(8)), 3, 2, keep=filters.varied())
    assert [g.task.seed for g in groups] == [1, 3, 5]


@pytest.mark.parametrize(
    ("returned", "fact"),
    [
        *((wrong, "a list of 2") for wrong in ([1.0], [1.0] * 3, 1.0, None, {0: 1.0, 1: 2.0}, "12", np.float64(1))),
        *((wrong, "number 1") for wrong in ([1.0, math.nan], np.array([1, np.inf]), [1.0, 10**400], [1.0, "2"])),
        ([[1.0], [2.0]], "number 0"),
    ],
)
def test_a_group_reward_that_pays_no_number_for_each_ends_the_rollout(returned, fact):
    def pays(members):
        return returned

    with pytest.raises(UsageError, match=rf"{ID}.*{fact}"):
        RolloutManager(Echo(), group_reward=pays).collect([Task(ID, 0)], 2)


def test_a_group_reward_that_raises_fails_its_group_and_then_the_rollout():
    def moody(members):
        if members[0].task.seed % 2:
            raise OSError("the judge is away")
        return by_member(members)

    manager = RolloutManager(Echo(), group_reward=moody)
    groups = manager.batch((Task(ID, s) for s in range(9)), 3, 2)
    assert [g.task.seed for g in groups] == [0, 2, 4]
    assert manager.stats.of["failed"].trajectories == 4
    with pytest.raises(RewardUnhealthy, match=r"moody.*judge"):
        manager.collect([Task(ID, s) for s in (1, 3, 5, 7)], 2)


def test_every_trajectory_is_reported_as_it_ends():
    seen = []
    RolloutManager(Echo(), on_trajectory=seen.append).collect([Task(ID, s) for s in range(3)], 2)
    assert len(seen) == 6


def test_the_flight_recorder_tells_what_every_environment_does(tmp_path, capfd):
    async def look():
        manager = RolloutManager(SlowTasks(), run_dir=tmp_path)
        playing = asyncio.create_task(manager.collect_async([Task(ID, s) for s in range(3)], 2))
        rows = []
        async with asyncio.timeout(60):
            while [(r["group"], r["phase"]) for r in rows] != [(0, "agent")] * 2:
                await asyncio.sleep(0.01)
                rows = manager.flight.now()
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(0)
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        return rows, manager.flight.now()

    before = signal.getsignal(signal.SIGUSR1)
    rows, after = asyncio.run(look())
    found = sorted((r["group"], r["member"], r["phase"], r["turn"]) for r in rows)  # rows come longest phase first
    assert found == [(0, 0, "agent", 0), (0, 1, "agent", 0)]
    assert all(r["seconds"] > 0 and r["env"] == ID for r in rows)
    assert after == []
    text = (tmp_path / "flight.txt").read_text()
    assert "2 episodes: 2 agent" in text
    assert "group     0 member   1  test:Troubled-v0 seed 0 turn 0: agent for" in text
    assert text.strip() in capfd.readouterr().err
    assert signal.getsignal(signal.SIGUSR1) is before


def test_health_is_kept_beside_the_run(tmp_path):
    once = str(tmp_path / "happened")
    tasks = [Task(ID, 0, {"trouble": "raise", "once": once}), *[Task(ID, s) for s in range(1, 6)]]
    RolloutManager(Echo(), run_dir=tmp_path).collect(tasks)
    health = json.loads((tmp_path / "health.json").read_text())
    (env,) = health["envs"]
    assert (env["name"], env["state"], env["counts"]["completed"], env["counts"]["raised"]) == (ID, "up", 6, 1)
    assert env["latency"]["step"]["p50"] <= env["latency"]["step"]["p99"]
    (worker,) = health["workers"]
    assert (worker["worker"], worker["envs"], worker["counts"]["completed"]) == ("inline", 0, 6)
    (event,) = health["events"]
    assert event[1:] == [ID, "inline", "raised", f"{ID}: step raised ValueError: lost my board"]


def test_inside_an_event_loop_the_plain_call_says_what_to_do():
    async def wrong():
        RolloutManager(Echo()).collect([Task(ID, 0)])

    with pytest.raises(UsageError, match=r"await manager\.collect_async"):
        asyncio.run(wrong())


class Endless(rollenv.Env):
    """Presses Ctrl-C at its third turn, and never ends."""

    played = 0

    def _reset(self, options):
        return "go", {}

    def _step(self, action):
        Endless.played += 1
        if Endless.played == 3:
            signal.raise_signal(signal.SIGINT)
        return "on", 0.0, Endless.played > 1000, False, {}


def test_ctrl_c_ends_an_episode_that_never_waits():
    rollenv.register("test:Endless-v0", Endless)
    with AnyManager(ConstantAgent("on")) as manager, pytest.raises(KeyboardInterrupt):
        manager.collect([Task("test:Endless-v0", 0)])
    assert Endless.played < 10
