"""Loops of one's own: a learner gets what a gateway recorded, and the gateway's engine gets its weights."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import httpx
import pytest
import torch

from rollenv import UsageError
from rollenv.agents import Gateway, LocalAgent, Sampling
from rollenv.agents.gateway.server import admin_app
from rollenv.agents.gateway.session import GatewaySample
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.cli.train_from import train_from
from rollenv.core.http_server import HttpServer
from rollenv.report import write_report
from rollenv.rollout.records.folders import open_run
from rollenv.rollout.types import Group, Task, Trajectory, Turn
from rollenv.trainers import Learner
from rollenv.trainers.learner import grouped

LR = "optimizer.lr=1e-2"


@pytest.fixture
def agent():
    tokenizer = build_tokenizer(["What is 2 + 3? 5"] * 9, 300, chat=True)
    model = build_model(TinySize(hidden=32, layers=1, heads=2, context=512), tokenizer, seed=0)
    return LocalAgent(model, tokenizer, sampling=Sampling(max_new_tokens=6))


def said(session, *texts):
    """The answers of a program that asks each of these in one chat."""
    messages = []
    for text in texts:
        messages.append({"role": "user", "content": text})
        asked = {"model": "policy", "messages": messages}
        answer = httpx.post(f"{session.base_url}/chat/completions", json=asked, timeout=60).raise_for_status()
        messages.append(answer.json()["choices"][0]["message"])


def played(gateway, tasks=("a", "b"), members=3):
    sessions = [gateway.open(task) for task in tasks for _ in range(members)]
    for number, session in enumerate(sessions):
        said(session, f"What is {number}?", "And then?")
        session.finish(reward=float(number % members))
    return sessions


def weights(policy):
    return {name: weight.clone() for name, weight in policy.named_weights()}


def test_sessions_their_samples_and_samples_read_from_json_are_the_same_groups(agent):
    with Gateway(agent) as gateway:
        sessions = played(gateway)
        sessions[0].set_reward(0.25)
    samples = [sample for session in sessions for sample in session.samples()]
    plain = json.loads(json.dumps([dataclasses.asdict(sample) for sample in samples]))
    groups = grouped(sessions)
    assert groups == grouped(samples) == grouped(GatewaySample(**each) for each in plain)
    assert [len(group.trajectories) for group in groups] == [3, 3]
    assert [t.reward for group in groups for t in group] == [0.25, 1.0, 2.0, 0.0, 1.0, 2.0]
    for session, trajectory in zip(sessions, (t for group in groups for t in group), strict=True):
        actions = [session.action(node) for node in session.trained_nodes()]
        assert [turn.prompt_ids for turn in trajectory.turns] == [action.prompt_ids for action in actions]
        assert [turn.response_ids for turn in trajectory.turns] == [action.response_ids for action in actions]


@pytest.mark.parametrize("more", [[], ["model.lora.rank=4"], ["kl.name=loss", "correction.name=tis"]])
def test_an_update_changes_what_the_gateway_says_once_it_is_published(agent, more):
    learner = Learner(agent, LR, *more)
    with Gateway(agent) as gateway:
        before = weights(learner.state.policy)
        metrics = learner.update(played(gateway))
        assert (metrics["drift"], metrics["optimizer_steps"]) == (0, 1)
        assert metrics["ratio"] == pytest.approx(1, abs=1e-4), "trained as it was sampled"
        own = agent.model.state_dict()
        assert all(torch.equal(own[name], weight) for name, weight in before.items() if name in own)
        gateway.run(learner.publish())
        after = weights(learner.state.policy)
        assert any(not torch.equal(after[name], before[name]) for name in before)
        own = agent.model.state_dict()
        assert all(torch.equal(own[name], weight) for name, weight in after.items())
        session = gateway.open()
        said(session, "What is 1?")
        assert set(session.samples()[0].versions) == {-1, 1}


def test_trajectories_and_groups_are_episodes_too(agent):
    learner = Learner(agent, LR, "algorithm.name=rloo")
    turn = Turn((3, 4), (5, 6), (-1.0, -1.0), 0.0, "", "")
    lost, won = Trajectory(Task("x", 0), [turn], "terminated"), Trajectory(Task("x", 0), [turn], "terminated")
    won = dataclasses.replace(won, turns=[dataclasses.replace(turn, response_ids=(7, 8), reward=1.0)])
    assert learner.update([lost, won])["trained_samples"] == 2
    assert learner.update([Group(lost.task, [lost, won])])["trained_samples"] == 2
    assert learner.state.iteration == 2


def test_rewards_less_a_kl_penalty_are_those_of_a_run(agent):
    turns = [[Turn((1, 2), (3, n), (-1.0, -1.0), float(n), "", "")] for n in range(2)]
    episodes = [Trajectory(Task("own", 0), each, "terminated") for each in turns]
    metrics = Learner(agent, LR, "kl.name=reward", "algorithm.name=reinforce").update(episodes)
    assert metrics["kl_coefficient"] > 0


def test_a_learner_continues_from_its_checkpoint_to_the_same_weights(agent, tmp_path):
    with Gateway(agent) as gateway:
        sessions = played(gateway)
    agent.save(tmp_path / "model")
    ends = []
    for stops in (False, True):
        run = tmp_path / f"run-{stops}"
        learner = Learner(LocalAgent.load(tmp_path / "model", plays=False), LR, run_dir=run)
        learner.update(sessions)
        if stops:
            assert learner.save().name == "step-000001"
            learner = Learner(LocalAgent.load(tmp_path / "model", plays=False), LR, run_dir=run)
        learner.update(sessions)
        ends.append(weights(learner.state.policy))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    learner.save()
    served = LocalAgent.load(tmp_path / "run-True" / "checkpoints" / "step-000002")
    assert all(torch.equal(served.model.state_dict()[name], weight) for name, weight in ends[0].items())


def test_the_folder_of_a_loop_is_that_of_a_run(agent, tmp_path):
    agent.save(tmp_path / "model")
    run = tmp_path / "run"
    learner = Learner(LocalAgent.load(tmp_path / "model", plays=False), LR, run_dir=run)
    with Gateway(agent) as gateway:
        learner.update(played(gateway))
        learner.save({"row": 7})
        learner.update(played(gateway))  # not saved
    shown = open_run(run)
    assert shown.settings["optimizer"]["lr"] == 1e-2
    assert [row["iteration"] for row in shown.metrics] == [1, 2]
    assert [(row["iteration"], row["member"]) for row in shown.episodes()] == [
        (i, m) for i in (1, 2) for m in [0, 1, 2] * 2
    ]
    assert write_report([run], tmp_path / "run.html").exists()
    del learner
    learner = Learner(LocalAgent.load(tmp_path / "model", plays=False), LR, run_dir=run)
    assert learner.about["row"] == 7
    assert [row["iteration"] for row in open_run(run).metrics] == [1], "what is lost is played again"
    with pytest.raises(UsageError, match=r"optimizer\.lr"):
        Learner(agent, "optimizer.lr=1", run_dir=run)


def test_a_rated_session_is_trained_on_once_and_dropped(agent, tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLENV_GATEWAY_KEY", "the key")
    agent.save(tmp_path / "model")
    own = [LR, "algorithm.name=reinforce_pp", "algorithm.baseline=false", "correction.name=tis"]
    own += [f"model.path={tmp_path / 'model'}", "iterations=2"]
    settings = [f"model={tmp_path / 'model'}", *own[:-2], f"run_dir={tmp_path / 'run'}", own[-1]]
    with Gateway(agent) as gateway:
        admin = HttpServer(admin_app(gateway, "the key"), "127.0.0.1", 0)
        gateway.run(admin.start())
        url = f"http://127.0.0.1:{admin.port}"
        first, second = played(gateway), played(gateway)
        unrated = gateway.open()
        said(unrated, "What is 1?")
        unrated.finish()

        # A trainer that was killed after its checkpoint, before it could drop what it had trained on.
        learner = Learner(LocalAgent.load(tmp_path / "model", plays=False), *own, run_dir=tmp_path / "run")
        learner.update(first)
        learner.save({"sessions": [session.id for session in first] + ["gone already"]})
        trained = weights(learner.state.policy)
        train_from(url, settings, batch=6)
        assert list(gateway.sessions) == [unrated.id]
        learner.update(second)
        gateway.run(admin.stop())
        admin.close()
    assert [row["iteration"] for row in open_run(tmp_path / "run").metrics] == [1, 2, 2]
    saved = LocalAgent.load(tmp_path / "run" / "checkpoints" / "step-000002", plays=False).model.state_dict()
    now = weights(learner.state.policy)
    assert all(torch.equal(saved[name], now[name]) for name in now)
    assert any(not torch.equal(trained[name], now[name]) for name in now)


def test_wrong_episodes_and_settings_are_errors(agent, tmp_path):
    for setting, why in (
        ("rollout.temperature=1", "'rollout' is no setting of updates"),
        ("algorithm.name=ppo", "needs a critic"),
        ("optimizer.lrr=1", "lr"),
    ):
        with pytest.raises(UsageError, match=why):
            Learner(agent, setting)
    learner = Learner(agent, LR, run_dir=tmp_path)
    with Gateway(agent) as gateway:
        session = gateway.open()
        said(session, "What is 1?")
        with pytest.raises(UsageError, match="not finished"):
            learner.update([session])
        session.set_reward(1.0)
        with pytest.raises(UsageError, match="not finished"):
            learner.update(session.samples())
        session.finish(reward=1.0)
        with pytest.raises(UsageError, match="not 3"):
            learner.update([session, 3])
        with pytest.raises(UsageError, match="none of 0"):
            learner.update([])
        learner.update([session])
        with pytest.raises(UsageError, match="publish"):
            learner.save()
    asyncio.run(learner.publish())
    learner.save()
    with pytest.raises(UsageError, match="run_dir"):
        Learner(agent).save()
    with pytest.raises(UsageError, match="model="):
        Learner(type("Other", (), {"sampling": agent.sampling})())
