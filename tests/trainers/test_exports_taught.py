"""What is learned from an export is what the agent said, after what it saw: by rollenv, and by TRL."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import tiny_runs

from rollenv.agents.base import OracleAgent
from rollenv.agents.local import LocalAgent
from rollenv.rollout import RolloutManager, Task
from rollenv.rollout.exports import export
from rollenv.rollout.records import storage
from rollenv.trainers.given_episodes import read_given

PEER = Path(__file__).parents[2] / ".bench" / "trl" / "bin" / "python"
SOURCES = {
    "a board": Task("game:Sokoban-v0-tiny", 3),
    "a number": Task("game:GuessTheNumber-v0-easy", 3),
    "functions": Task("tools:Tiny-v0", 3),
    "one seat of two": Task("multi:Nim-v0-seats", 3),
}


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    path = tiny_runs.chat_model(tmp_path_factory.mktemp("a chat model"))
    return LocalAgent.load(path, plays=False)


def exported(task, folder, form):
    with RolloutManager(OracleAgent()) as manager:
        (group,) = manager.collect([task], group_size=1)
    storage.write(folder / "episodes.jsonl", group.trajectories)
    export(folder / "episodes.jsonl", folder / f"out.{form}.jsonl")
    turns = [turn for turn in group.trajectories[0].turns if turn.player == group.trajectories[0].seat]
    return folder / f"out.{form}.jsonl", turns


def words(text):
    return "".join(text.split())


@pytest.mark.parametrize("form", ["chat", "completions"])
@pytest.mark.parametrize("source", SOURCES)
def test_each_answer_is_learned_once_after_all_that_was_shown(agent, tmp_path, source, form):
    file, turns = exported(SOURCES[source], tmp_path, form)
    agent.engine.max_context = 100_000
    learned = [turn for group in read_given([str(file)], agent, None) for turn in group.trajectories[0].turns]
    assert len(learned) == len(turns)
    for taught, turn in zip(learned, turns, strict=True):
        read, said = words(agent.decode(taught.prompt_ids)), words(agent.decode(taught.response_ids))
        at = 0
        for earlier in turns[: turns.index(turn) + 1]:
            shown = words(earlier.shown or earlier.observation)
            shown = shown.removeprefix("<tool_response>").removesuffix("</tool_response>")
            assert shown in read[at:]
            at = read.index(shown, at)
        name = turn.text.partition('"name": "')[2].partition('"')[0]
        assert name in said if name else said == words(turn.text)


TRAINER = """
import json, sys
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer
file, model, out = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(model)
args = SFTConfig(out, report_to=[], use_cpu=True, max_length=None, bf16=False)
rows = load_dataset("json", data_files=file, split="train")
trainer = SFTTrainer(AutoModelForCausalLM.from_pretrained(model), args, train_dataset=rows, processing_class=tokenizer)
seen = []
for row in trainer.train_dataset:
    pairs = [*zip(row["input_ids"], row["labels"])]
    seen.append([[i for i, label in pairs if label == -100], [i for i, label in pairs if label != -100]])
print(json.dumps(seen))
"""


@pytest.mark.integration
@pytest.mark.skipif(not PEER.exists(), reason="needs trl: make peers")
@pytest.mark.parametrize("source", ["a board", "a number", "one seat of two"])
def test_trl_learns_the_same_tokens_from_completions(agent, tmp_path, source):
    file, _ = exported(SOURCES[source], tmp_path, "completions")
    agent.engine.max_context = 100_000
    own = [turn for group in read_given([str(file)], agent, None) for turn in group.trajectories[0].turns]
    agent.save(tmp_path / "model")
    command = [PEER, "-c", TRAINER, file, tmp_path / "model", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    for turn, (prompt, answer) in zip(own, theirs, strict=True):
        assert prompt == list(turn.prompt_ids)
        learned = len(turn.response_ids)
        assert answer[:learned] == list(turn.response_ids)
        assert agent.decode(tuple(answer[learned:])).strip() == ""  # the template ends a turn with a new line
