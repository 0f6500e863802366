"""Playing tasks: groups, failures, reproducibility."""

import asyncio

import pytest

import rollenv
from rollenv import Env, UnknownEnv, UsageError, registry
from rollenv.agents.base import Action, OracleAgent, RandomAgent
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task


class Fussy(Env):
    """Fails in the way and at the turn it was told to; knows how many of its kind are open."""

    open_now = 0

    def __init__(self, fail_at=None, where="step"):
        self.fail_at, self.where = fail_at, where
        Fussy.open_now += 1

    def _reset(self, options):
        self.turn = 0
        if self.where == "reset":
            raise OSError("the level server is down")
        return "go", {}

    def _step(self, action):
        self.turn += 1
        if self.turn == self.fail_at:
            raise ValueError("lost my board")
        done = self.turn == 4
        return f"turn {self.turn}", 1.0, done, False, {"success": True} if done else {}

    def close(self):
        Fussy.open_now -= 1


class SayTurn:
    """An agent that yields to the others in every turn, and may fail."""

    def __init__(self, fail_after=None):
        self.said, self.fail_after = 0, fail_after

    def start(self, env, seed):
        return self

    async def act(self, observation, info):
        self.said += 1
        if self.said == self.fail_after:
            raise RuntimeError("the model server is gone")
        await asyncio.sleep(0)
        return Action(f"after {observation}")


@pytest.fixture(autouse=True)
def fussy(monkeypatch):
    rollenv.list_envs()
    monkeypatch.setattr(registry, "ENV_REGISTRY", dict(registry.ENV_REGISTRY))
    rollenv.register("test:Fussy-v0", Fussy)
    Fussy.open_now = 0


def test_a_group_starts_in_one_state_and_its_members_go_their_own_ways():
    groups = RolloutManager(RandomAgent()).collect([Task("game:Sokoban-v0-easy", s) for s in range(4)], 6)
    assert [g.task.seed for g in groups] == [0, 1, 2, 3]
    for group in groups:
        assert len({t.turns[0].state_key for t in group}) == 1
    assert len({g.trajectories[0].turns[0].state_key for g in groups}) == 4


def test_trajectories_tell_what_happened():
    (group,) = RolloutManager(OracleAgent(), keep_views=True).collect([Task("game:Sokoban-v0-easy", 1)])
    (trajectory,) = group
    assert trajectory.status == "terminated"
    assert trajectory.success
    assert trajectory.reward == 1.0
    replay = rollenv.make("game:Sokoban-v0-easy")
    observation, _ = replay.reset(1)
    for turn in trajectory.turns:
        assert (turn.observation, turn.view, turn.state_key) == (observation, replay.render(), replay.state_key())
        observation, reward, *_ = replay.step(turn.text)
        assert turn.reward == reward
    assert (trajectory.final_observation, trajectory.final_view) == (observation, replay.render())


def test_the_same_tasks_give_the_same_trajectories():
    tasks = [Task("game:Sokoban-v0-easy", s) for s in range(3)]

    def play():
        return [t.to_dict() for g in RolloutManager(OracleAgent(0.5)).collect(tasks, 3) for t in g]

    assert play() == play()


@pytest.mark.parametrize(("fail_at", "turns"), [(1, 0), (3, 2)])
def test_an_environment_that_raises_fails_its_own_trajectory_only(fail_at, turns):
    tasks = [Task("test:Fussy-v0", 0, {"fail_at": fail_at}), Task("test:Fussy-v0", 1)]
    bad, good = RolloutManager(SayTurn()).collect(tasks, 2)
    assert all(t.status == "terminated" and t.success and len(t.turns) == 4 for t in good)
    for trajectory in bad:
        assert trajectory.status == "failed"
        assert trajectory.error == "ValueError: lost my board"
        assert len(trajectory.turns) == turns
    assert Fussy.open_now == 0


def test_a_reset_that_raises_fails_its_group_only():
    tasks = [Task("test:Fussy-v0", 0, {"where": "reset"}), Task("test:Fussy-v0", 1)]
    bad, good = RolloutManager(SayTurn()).collect(tasks, 2)
    assert {t.status for t in bad} == {"failed"}
    assert {t.error for t in bad} == {"OSError: the level server is down"}
    assert {t.status for t in good} == {"terminated"}
    assert Fussy.open_now == 0


def test_an_agent_that_raises_ends_the_rollout_and_closes_every_environment():
    with pytest.raises(RuntimeError, match="model server"):
        RolloutManager(SayTurn(fail_after=5)).collect([Task("test:Fussy-v0", s) for s in range(3)], 2)
    assert Fussy.open_now == 0


def test_a_wrong_task_is_an_error_not_a_failed_episode():
    with pytest.raises(UnknownEnv):
        RolloutManager(RandomAgent()).collect([Task("game:Nothing-v0", 0)])
    with pytest.raises(UsageError, match="num_box"):
        RolloutManager(RandomAgent()).collect([Task("game:Sokoban-v0-easy", 0, {"num_box": 1})])


def test_every_trajectory_is_reported_as_it_ends():
    seen = []
    RolloutManager(SayTurn(), on_trajectory=seen.append).collect([Task("test:Fussy-v0", s) for s in range(3)], 2)
    assert len(seen) == 6
