"""Messages of a run: before it starts, while it goes on, and its counts."""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace

import pytest

import rollenv
from rollenv import UsageError
from rollenv.agents.engines import cpu_threads
from rollenv.cli import common
from rollenv.cli import train as train_command
from rollenv.cli.dry_run import first_prompt, most_turns, refuse_without_room
from rollenv.rollout.types import Task, Trajectory, Turn
from rollenv.trainers import models
from rollenv.trainers.config import load_config
from rollenv.trainers.model_plan import ModelPlan, model_plan
from rollenv.trainers.trainer import rollout_metrics

SUMS = ["env.id=math:Arithmetic-v0-digit", "env.kwargs={}", "eval.kwargs={}", "model.path=a/b"]


def played(reward: float, success: bool = False) -> Trajectory:
    turn = Turn((1,), (2,), (0.0,), reward, "x", "y")
    return Trajectory(Task("a:B-v0", 0), turns=[turn], status="terminated", success=success)


def test_a_group_is_informative_by_the_rewards_that_teach():
    graded, won = [played(0.2), played(0.8)], [played(1.0, True), played(0.8)]
    assert rollout_metrics([graded, won])["informative_groups"] == 1.0
    assert rollout_metrics([graded, won], success_only=True)["informative_groups"] == 0.5


@pytest.mark.parametrize(("niceness", "idle"), [(0, 2), (15, 1)])
def test_work_of_lower_priority_takes_no_core_from_a_run(monkeypatch, tmp_path, niceness, idle):
    stat, tick = tmp_path / "stat", os.sysconf("SC_CLK_TCK")
    stat.write_text("cpu0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0\n")
    busy = f"cpu0 0 {tick} 0 0 0 0 0 0\ncpu1 0 0 0 {tick} 0 0 0 0\n"
    monkeypatch.setattr(cpu_threads, "_STAT", stat)
    monkeypatch.setattr(cpu_threads, "cores", lambda: [0, 1])
    monkeypatch.setattr(cpu_threads.os, "nice", lambda _: niceness)
    monkeypatch.setattr(cpu_threads.time, "sleep", lambda _: stat.write_text(busy))
    assert cpu_threads.idle_cores(1.0) == idle


def test_a_log_hears_of_a_long_run_between_evaluations_with_all_digits(monkeypatch, capsys):
    clock = [0.0]
    told = []
    monkeypatch.setattr(train_command.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(common.progress_console, "print", lambda text="", **_: told.append(text))
    display = train_command.Display()
    for iteration in range(1, 8):
        clock[0] += 10
        display.watch("training", iteration, 100, {"tokens_per_s": 127.5 * 10 ** (iteration // 6), "reward": 0.25})
    assert told == [
        "training 1/100 reward 0.25 128 tokens/s",
        "training 4/100 reward 0.25 128 tokens/s about 16 min left",
        "training 7/100 reward 0.25 1275 tokens/s about 16 min left",
    ]


def test_progress_shows_a_gain_once_there_is_a_second_evaluation(monkeypatch):
    told = []
    monkeypatch.setattr(common.progress_console, "print", lambda text="", **_: told.append(text))
    display = train_command.Display()
    for iteration, success in ((0, 0.07), (10, 0.4), (20, 0.5)):
        display.watch("training", iteration, 100, {"eval/success": success})
    assert told == [
        "training 0/100 unseen 0.070",
        "training 10/100 unseen 0.070 -> 0.400",
        "training 20/100 unseen 0.070 -> 0.500",
    ]


class Words:
    """A tokenizer by words."""

    chat_template = None

    def encode(self, text, add_special_tokens=False):
        return text.split()


@pytest.mark.parametrize(
    ("settings", "room"), [([], "there is room for 3"), (["rollout.max_prompt_tokens=2"], "for 2")]
)
def test_a_first_prompt_that_leaves_no_room_stops_the_dry_run(settings, room):
    config, plan = load_config("rlvr_gsm8k", [*SUMS, *settings]), ModelPlan("", 4, Words())
    with pytest.raises(UsageError, match=rf"4 tokens.*{room}.*prompt.template"):
        refuse_without_room(config, plan, "a b c d")
    refuse_without_room(config, plan, "a b")


@pytest.mark.parametrize("env_id", ["rg:chain_sum", "math:Arithmetic-v0-digit"])
def test_turns_of_one_turn_tasks_are_known(env_id):
    if rollenv.spec(env_id).missing:
        pytest.skip(str(rollenv.spec(env_id).missing[0]))
    with contextlib.closing(rollenv.make(env_id)) as env:
        assert most_turns(env) == 1


def test_a_dry_run_shows_plain_prompts_with_their_examples():
    settings = ["prompt.kind=step", "prompt.chat=false", "prompt.template='{state}'", "prompt.examples=2"]
    config = load_config("rlvr_gsm8k", [*SUMS, *settings])
    with contextlib.closing(rollenv.make(config.env.id)) as env:
        lines = first_prompt(env, config).splitlines()
    assert len(lines) == 3
    assert [line.endswith("=") for line in lines] == [False, False, True]


def test_a_dry_run_refuses_a_broken_gguf_file_in_a_sentence(tmp_path):
    pytest.importorskip("gguf", reason="the package gguf is not installed")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\0\0\0")
    config = load_config("rlvr_gsm8k", [f"model.path={tmp_path / 'broken.gguf'}"])
    with pytest.raises(UsageError, match=r"broken\.gguf"):
        model_plan(config)


def test_examples_of_a_mixture_have_the_wrappers_of_its_first_part(monkeypatch):
    monkeypatch.setattr(models.LocalAgent, "load", lambda path, **how: SimpleNamespace())
    parts = "tasks={kind='mixture', parts=[{env={id='math:Arithmetic-v0-digit'}}]}"
    settings = ["model=a/model", "env.wrappers=python_tool", "prompt.template='{instructions}'", "prompt.examples=1"]
    config = load_config("smollm2_arithmetic", [*settings, parts])
    player = models.initial_agent(config, config.env.wrappers, lambda *_: None)
    ((asked, _),) = player.prompt.examples
    assert "What is" in asked
    assert "<python>" not in asked, "the wrapper is that of the evaluation's environment"
