"""Programs of the user's on this host, which read an observation and print an action."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys

import pytest

import rollenv
from rollenv import UsageError
from rollenv.agents import LocalAgent, Sampling
from rollenv.agents.harness.agent import HarnessAgent
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task

ASKS = """
import json, os, sys, urllib.request
def said(text):
    asked = {"model": "policy", "messages": [{"role": "user", "content": text}]}
    url, key = os.environ["OPENAI_BASE_URL"] + "/chat/completions", os.environ["OPENAI_API_KEY"]
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + key}
    answer = urllib.request.urlopen(urllib.request.Request(url, json.dumps(asked).encode(), headers))
    return json.load(answer)["choices"][0]["message"]["content"]
task = sys.stdin.read()
"""


@pytest.fixture(scope="module")
def model():
    tokenizer = build_tokenizer(["What is 2 + 3? 5"] * 9, 300, chat=True)
    size = TinySize(hidden=32, layers=1, heads=2, context=2048)
    return LocalAgent(build_model(size, tokenizer, seed=0), tokenizer, sampling=Sampling(max_new_tokens=6))


def played(model, tmp_path, program, env="math:Arithmetic-v0-digit", **settings):
    script = tmp_path / "program.py"
    script.write_text(ASKS + program)
    words = shlex.join([sys.executable, str(script)])
    with RolloutManager(HarnessAgent(model, f"command:{words}", **settings)) as manager:
        (group,) = manager.batch([Task(env, 0)], 1, 1)
    return group.trajectories[0]


def test_what_it_prints_is_the_action_and_its_calls_are_trained(model, tmp_path):
    with contextlib.closing(rollenv.make("math:Arithmetic-v0-digit")) as env:
        env.reset(0)
        answer = env.unwrapped.oracle_action()
    program = f"first = said('Think: ' + task)\nsaid('Check: ' + first)\nprint({answer!r})\n"
    episode = played(model, tmp_path, program)
    assert episode.complete, episode.error
    assert len([turn for turn in episode.turns if turn.response_ids]) == 2
    assert episode.success
    assert any("What is" in model.decode(turn.prompt_ids) for turn in episode.turns)
    assert episode.record["exit_code"] == 0


def test_every_observation_of_an_episode_is_read(model, tmp_path):
    episode = played(model, tmp_path, "said('x')\nprint(chr(92) + 'boxed{up}')\n", "game:Sokoban-v0-easy")
    assert episode.complete, episode.error
    assert len(episode.turns) > 1


@pytest.mark.parametrize(
    ("program", "settings", "error"),
    [
        ("said('x')\nraise SystemExit('no key for the weather')\n", {}, "exit code 1: .*no key for the weather"),
        ("said('x')\nimport time\ntime.sleep(600)\n", {"seconds": 1.0}, "has not ended after 1 s"),
        ("print('4')\n", {}, "made no call of the model"),
    ],
)
def test_a_program_that_fails_ends_its_episode(model, tmp_path, program, settings, error):
    episode = played(model, tmp_path, program, **settings)
    assert episode.status == "failed"
    assert re.search(error, episode.error)


def test_a_program_that_leaves_a_process_behind_has_ended(model, tmp_path):
    leaves = "import subprocess\nsubprocess.Popen(['sleep', '600'])\n"
    episode = played(model, tmp_path, f"said('x')\n{leaves}print('4')\n")
    assert episode.complete, episode.error
    assert episode.record["exit_code"] == 0


def test_a_program_that_is_not_there_is_an_error(model):
    agent, missing = HarnessAgent(model, "command:no-such-program-here"), "cannot run no-such-program-here"
    with RolloutManager(agent) as manager, pytest.raises(UsageError, match=missing):
        manager.batch([Task("math:Arithmetic-v0-digit", 0)], 1, 1)
