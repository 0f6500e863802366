"""What is learned from an export is what the agent said, after what it saw: by rollenv, and by TRL."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import tiny_runs

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "agents")]
from chat_server import ChatServer, completion
from chat_templates import QWEN3
from seeing import seeing

from rollenv.agents import ChatAgent, Gateway, LocalAgent
from rollenv.agents.base import ConstantAgent, OracleAgent
from rollenv.agents.chat.endpoint import Endpoint
from rollenv.agents.demonstrator import Demonstrator
from rollenv.agents.gateway.endpoint import Upstream
from rollenv.agents.prompts import ChatPrompt
from rollenv.core.errors import UsageError
from rollenv.rollout import RolloutManager, Task
from rollenv.rollout.exports import export
from rollenv.rollout.records import storage
from rollenv.trainers.config.algorithms import Dpo
from rollenv.trainers.stored_episodes import read_stored

PEER = Path(__file__).parents[2] / ".bench" / "trl" / "bin" / "python"
SOURCES = {
    "a board": Task("game:Sokoban-v0-tiny", 3),
    "a number": Task("game:GuessTheNumber-v0-easy", 3),
    "functions": Task("tools:Tiny-v0", 3),
    "one seat of two": Task("multi:Nim-v0-seats", 3),
}


@pytest.fixture
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
    learned = [turn for group in read_stored([str(file)], agent, None) for turn in group.trajectories[0].turns]
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


@pytest.mark.parametrize("form", ["chat", "completions"])
@pytest.mark.parametrize("kwargs", [{}, {"calls": "native"}])
@pytest.mark.parametrize("env_id", ["tools:Tiny-v0", "tool:Calculator-v0"])
def test_results_of_tools_have_the_tokens_of_play(agent, tmp_path, env_id, kwargs, form):
    agent.engine.max_context = 100_000
    agent.tokenizer.chat_template = QWEN3 if kwargs else tiny_runs.CHATML
    agent.prompt = ChatPrompt(tools="template" if kwargs else "text")
    with RolloutManager(Demonstrator(agent, 0.4)) as manager:
        groups = manager.collect([Task(env_id, seed, kwargs) for seed in range(3)], group_size=2)
    episodes = [t for group in groups for t in group]
    storage.write(tmp_path / "episodes.jsonl", episodes)
    export(tmp_path / "episodes.jsonl", tmp_path / f"out.{form}.jsonl")

    def tokens(path):
        learned = (t for group in read_stored([str(path)], agent, None) for t in group)
        return {(turn.prompt_ids, turn.response_ids) for t in learned for turn in t.turns}

    expert = tokens(tmp_path / "episodes.jsonl")  # random moves are played, and not learned
    assert tokens(tmp_path / f"out.{form}.jsonl") == expert
    assert len(expert) < len({(turn.prompt_ids, turn.response_ids) for t in episodes for turn in t.turns})


def test_an_endpoints_episode_is_exported_with_all_that_was_sent(tmp_path):
    call = {"name": "calculator", "arguments": '{"expression": "2 + 3"}'}
    sent = []

    async def behave(exchange):
        sent.append(exchange.body)
        first = len(sent) == 1
        calls = {"tool_calls": [{"id": "one", "type": "function", "function": call}]} if first else {}
        await exchange.json(completion("" if first else "\\boxed{5}", message=calls))

    with ChatServer(behave) as server, RolloutManager(ChatAgent("m", base_url=server.url, tools="env")) as manager:
        (group,) = manager.collect([Task("tool:Calculator-v0", 1, {"calls": "native"})], group_size=1)
    storage.write(tmp_path / "episodes.jsonl", group.trajectories)
    export(tmp_path / "episodes.jsonl", tmp_path / "out.chat.jsonl")
    (chat,) = map(json.loads, (tmp_path / "out.chat.jsonl").read_text().splitlines())
    assert json.loads(chat["tools"]) == sent[1]["tools"]
    assert chat["messages"][:-1] == sent[1]["messages"]
    assert "3 more turns" in chat["messages"][2]["content"]


def test_a_record_of_an_endpoint_teaches_each_line_of_calls_with_its_functions(agent, tmp_path):
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "find", "description": "", "parameters": schema}}]

    async def behave(exchange):
        await exchange.json(completion(f"It is {len(exchange.body['messages'])}."))

    with (
        ChatServer(behave) as server,
        Gateway(Upstream(Endpoint(server.url), "m"), record=tmp_path / "calls.jsonl") as gateway,
    ):
        for offered in (None, tools):
            session, messages = gateway.open("a task"), [{"role": "user", "content": "What is 2 + 3?"}]
            for chat in (messages, [{"role": "user", "content": "Another thing."}] * 2):
                body = {"model": "m", "messages": chat, "tools": offered}
                httpx.post(f"{session.base_url}/chat/completions", json=body).raise_for_status()
            session.finish(reward=1.0)
    agent.engine.max_context = 100_000
    paths = [tmp_path / name for name in ("calls.jsonl", "out.chat.jsonl", "out.chat.parquet", "out.completions.jsonl")]
    for path in paths[1:]:
        export(paths[0], path)
    record, *others = (
        {
            (turn.prompt_ids, turn.response_ids)
            for group in read_stored([str(path)], agent, None)
            for t in group
            for turn in t.turns
        }
        for path in paths
    )
    assert others == [record] * 3
    assert {words(agent.decode(said)) for _, said in record} == {"Itis1.", "Itis2."}
    prompts = [agent.decode(prompt) for prompt, _ in record]
    assert ["find" in prompt for prompt in prompts].count(True) == 2
    assert not any("2 + 3" in prompt and "Another" in prompt for prompt in prompts)


@pytest.mark.parametrize("name", ["own.jsonl", "chat.jsonl", "chat.parquet", "completions.jsonl", "verl.parquet"])
def test_pictures_are_learned_as_they_were_shown(agent, tmp_path, name):
    seer = seeing()
    seer.prompt = ChatPrompt()
    task = Task("game:Sokoban-v0-tiny", 3, {"images": "also", "max_turns": 3})
    with RolloutManager(Demonstrator(seer)) as manager:
        (group,) = manager.collect([task], group_size=1)
    storage.write(tmp_path / "episodes.jsonl", group.trajectories)
    file = tmp_path / "exported" / f"out.{name}"
    export(tmp_path / "episodes.jsonl", file)
    learned = [turn for each in read_stored([str(file)], seer, None) for turn in each.trajectories[0].turns]
    played = group.trajectories[0].turns
    assert [(turn.prompt_ids, turn.response_ids) for turn in learned] == [
        (turn.prompt_ids, turn.response_ids) for turn in played
    ]
    shown = {image.sha256 for turn in played for image in turn.images}
    assert {image.sha256 for turn in learned for image in (*turn.images, *turn.prompt_images)} == shown != set()
    if "own" not in name:
        with pytest.raises(UsageError, match="it has pictures"):
            read_stored([str(file)], agent, None)


def said_by_trl(program, agent, file, folder):
    agent.save(folder / "model")
    command = [PEER, "-c", program, file, folder / "model", folder / "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


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
    own = [turn for group in read_stored([str(file)], agent, None) for turn in group.trajectories[0].turns]
    theirs = said_by_trl(TRAINER, agent, file, tmp_path)
    for turn, (prompt, answer) in zip(own, theirs, strict=True):
        assert prompt == list(turn.prompt_ids)
        learned = len(turn.response_ids)
        assert answer[:learned] == list(turn.response_ids)
        assert agent.decode(tuple(answer[learned:])).strip() == ""  # the template ends a turn with a new line


COMPARER = """
import json, sys
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer
file, model, out = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(model)
args = DPOConfig(out, report_to=[], use_cpu=True, max_length=None, bf16=False)
rows = load_dataset("json", data_files=file, split="train")
model = AutoModelForCausalLM.from_pretrained(model)
trainer = DPOTrainer(model, args=args, train_dataset=rows, processing_class=tokenizer)
print(json.dumps([[row[f"{name}_ids"] for name in ("prompt", "chosen", "rejected")] for row in trainer.train_dataset]))
"""


@pytest.mark.integration
@pytest.mark.skipif(not PEER.exists(), reason="needs trl: make peers")
def test_trl_compares_the_same_tokens_of_pairs(agent, tmp_path):
    tasks = [Task("math:Arithmetic-v0-digit", seed) for seed in range(4)]
    episodes = []
    for player in (OracleAgent(), ConstantAgent("\\boxed{-1}")):
        with RolloutManager(player) as manager:
            episodes += [t for group in manager.collect(tasks, group_size=1) for t in group]
    storage.write(tmp_path / "episodes.jsonl", episodes)
    file = tmp_path / "out.pairs.jsonl"
    export(tmp_path / "episodes.jsonl", file)
    agent.engine.max_context = 100_000
    own = read_stored([str(file)], agent, Dpo())
    assert len(own) == len(tasks)
    theirs = said_by_trl(COMPARER, agent, file, tmp_path)
    for group, (prompt, *answers) in zip(own, theirs, strict=True):
        for trajectory, answer in zip(group, answers, strict=True):
            (turn,) = trajectory.turns
            assert prompt == list(turn.prompt_ids)
            learned = len(turn.response_ids)
            assert answer[:learned] == list(turn.response_ids)
            assert agent.decode(tuple(answer[learned:])).strip() == ""
