"""A run whose episodes are played by a program: its calls are trained as turns."""

from __future__ import annotations

import json
import shlex

import pytest

from rollenv.agents import LocalAgent, Sampling
from rollenv.agents.prompts import ChatPrompt
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.core.errors import UsageError
from rollenv.sandbox.machine import why_not
from rollenv.trainers.config import load_config
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.trainer import Trainer

#: Asks twice without tools and once for a title; what is said is run.
PROGRAM = """
import json, os, subprocess, sys, urllib.request
def ask(*texts):
    asked = json.dumps({"model": "m", "messages": [{"role": r, "content": t} for r, t in texts]}).encode()
    head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, asked, head)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]
task = sys.stdin.read()
ask(("system", "Write a title."), ("user", task))
said = ask(("user", task))
subprocess.run(said.replace(chr(0), ""), shell=True, capture_output=True, timeout=20)
ask(("user", task), ("assistant", said), ("user", "go on"))
"""


@pytest.fixture
def settings(tmp_path):
    tokenizer = build_tokenizer(["Write the first line of app.log to answer.txt."] * 3, 300, chat=True)
    size = TinySize(hidden=16, layers=1, heads=2, intermediate=16, context=2048)
    LocalAgent(build_model(size, tokenizer, 0), tokenizer, ChatPrompt(), Sampling()).save(tmp_path / "model")
    name = json.dumps("command:python3 -c " + shlex.quote(PROGRAM))
    return [
        f"model={tmp_path / 'model'}", f"run_dir={tmp_path / 'run'}", f"harness.name={name}", "iterations=1",
        "rollout.groups_per_batch=2", "rollout.group_size=2", "rollout.max_new_tokens=4", "eval.episodes=2",
        "eval.every=1", "rollout.workers=1", "loss.entropy=0.1", "loss.entropy_samples=all", "threads=1",
    ]  # fmt: skip


@pytest.mark.integration
@pytest.mark.skipif(why_not() is not None, reason=f"no machines: {why_not()}")
def test_calls_of_a_program_are_the_turns_that_are_trained(settings):
    config = load_config("shell", settings)
    run = RunDir.create(config, "shell")
    with Trainer(config, run) as trainer:
        result = trainer.fit()
    rows = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    assert rows[-1]["drift"] == 0
    assert rows[-1]["turns"] == 3  # the title's too: where no call has tools, every line is trained
    assert result.after["eval/failed"] == 0
    for line in (run.path / "episodes.jsonl").read_text().splitlines():
        played = json.loads(line)
        assert [node["kind"] for node in played["record"]["nodes"]] == ["subagent", "main", "main"]
        _, first, second = played["turns"]
        history = first["prompt_ids"] + first["response_ids"]
        assert second["prompt_ids"][: len(history)] == history


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("model=tiny", "chat template"),
        ("rollout.shards=2", "rollout.shards"),
        ("harness.train=['titles']", "main"),
        ("harness.seconds=0", "harness.seconds"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, more, why):
    with pytest.raises(UsageError, match=why):
        load_config("shell", [*settings, more])


def test_settings_of_a_harness_without_one_are_refused():
    with pytest.raises(UsageError, match=r"harness\.name"):
        load_config("shell", ["harness.seconds=5"])
