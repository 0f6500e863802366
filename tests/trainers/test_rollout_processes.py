"""Processes that play a part of a batch: what they play is what this one would have played."""

import pytest
import torch
from waiting import eventually

from rollenv.agents.engines.base import Sampling
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.core.errors import UsageError
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task
from rollenv.trainers import rollout_processes
from rollenv.trainers.rollout_processes import RolloutProcesses, start_rollout_processes

TASKS = [Task("ragen:FrozenLake-v0", seed) for seed in range(6)]


@pytest.fixture
def player():
    tokenizer = build_tokenizer(["P _ O G <answer>up down left right</answer>"], 60)
    size = TinySize(hidden=32, layers=1, heads=2, intermediate=64)
    model = build_model(size, tokenizer, 0).eval()
    return LocalAgent(model, tokenizer, StepPrompt("{state}", chat=False), Sampling(1.0, 1))


@pytest.fixture
def processes(player):
    started = RolloutProcesses(player, 3, EpisodeLimits())
    yield started
    started.close()


def play(player, processes=None, tasks=TASKS, size=4):
    player.weights_changed()
    with RolloutManager(player) as manager:
        manager.processes = processes
        groups = manager.batch(tasks, len(tasks), size)
        counts = manager.health.env("ragen:FrozenLake-v0").counts
    said = [[[(turn.text, turn.reward, turn.policy_version) for turn in t.turns] for t in group] for group in groups]
    assert all(t.task is group.task for group in groups for t in group)
    return said, dict(counts), manager.stats.metrics()["kept/turns"]


def test_a_batch_does_not_depend_on_how_many_play_it(player, processes):
    torch.set_num_threads(1)
    for version in (0, 4):
        player.version = version
        alone = play(player)
        drawn = player.engine.stats.drawn
        player.version = version
        assert play(player, processes) == alone
        assert player.engine.stats.drawn - drawn == sum(len(turns) for group in alone[0] for turns in group)
    assert processes.seconds > 0


def test_weights_that_were_trained_in_place_are_new_everywhere(player, processes):
    before = play(player, processes)[0]
    with torch.no_grad():
        for weights in player.model.parameters():
            weights.mul_(3.0)
    after = play(player, processes)[0]
    player.version -= 1
    alone = play(player)[0]
    assert after != before
    assert alone == after


def test_the_groups_of_a_process_that_dies_are_played_by_the_main_one(player, processes, caplog):
    expected = play(player)
    player.version -= 1
    processes.children[0].kill()
    for _ in range(2):
        assert play(player, processes) == expected
        player.version -= 1
    assert caplog.text.count("a rollout process has ended") == 1
    assert eventually(lambda: not any(child.is_running() for child in processes.children))


def test_the_groups_of_a_process_that_is_stopped_are_played_by_the_main_one(player, processes, monkeypatch):
    monkeypatch.setattr(rollout_processes, "LOOK_EVERY", 0.05)
    expected = play(player)
    player.version -= 1
    for child in processes.children:
        child.suspend()
    for _ in range(2):
        assert play(player, processes) == expected
        player.version -= 1


def test_an_error_is_raised_as_without_other_processes(player, processes):
    wrong = [Task("ragen:FrozenLake-v0", seed, {"size": -1} if seed == 1 else {}) for seed in range(4)]
    with pytest.raises(UsageError) as alone:
        play(player, tasks=wrong)
    with pytest.raises(UsageError) as helped:
        play(player, processes, tasks=wrong)
    assert str(helped.value) == str(alone.value)
    assert play(player, processes)[0]  # the processes are there for the next batch


def test_cores_that_are_free_decide_where_no_number_is_given(player, monkeypatch):
    assert start_rollout_processes(1, player, EpisodeLimits()) is None
    monkeypatch.setattr("rollenv.trainers.rollout_processes.cores", lambda: [0, 1, 2])
    started = start_rollout_processes(0, player, EpisodeLimits())
    for free, active in ((1, 0), (2, 1), (9, 2)):
        with started.sharing(free):
            assert started.active == active
            assert torch.get_num_threads() == max(1, free // (active + 1))
    torch.set_num_threads(1)
    started.close()
