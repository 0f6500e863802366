"""A program that plays by itself is an agent: its calls are the episode's turns, and the task's reward is theirs."""

from __future__ import annotations

import json
import os
import shlex
import signal

import pytest
from gateway_calls import ScriptEngine, scripted
from seeing import seeing

import rollenv
from rollenv.agents.engine_agent import EngineAgent
from rollenv.agents.engines.base import Sampling
from rollenv.agents.gateway.session import Caps
from rollenv.agents.harness.agent import HarnessAgent, TrainedHarnessAgent
from rollenv.core.pictures import is_picture_token, numbered
from rollenv.core.tools.calls import write_calls
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.exports.chats import chats_of
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.records.plain import from_plain, to_plain
from rollenv.rollout.records.samples import drift, trajectory_samples
from rollenv.rollout.records.stored import StoredEpisode
from rollenv.rollout.types import Task, Trajectory
from rollenv.rollout.workers.factory import make_workers
from rollenv.sandbox.machine import why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no machines: {why_not()}")

#: Asks the model, runs the command of its call, shows it the result, and ends.
PROGRAM = """
import json, os, subprocess, sys, urllib.request
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
messages = [{"role": "user", "content": sys.stdin.read()}]
for turn in range(2):
    asked = {"model": "m", "messages": messages, "tools": [TOOL]}
    head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(asked).encode(), head)) as answer:
        said = json.load(answer)["choices"][0]["message"]
    messages.append(said)
    for call in said.get("tool_calls") or ():
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout})
"""
HARNESS = "command:python3 -c " + shlex.quote(PROGRAM)
ENV, SEED = "shell:Logs-v0-easy", 5


@pytest.fixture(scope="module")
def command():
    """What solves the task."""
    env = rollenv.make(ENV)
    env.reset(SEED)
    oracle = env.unwrapped.task.oracle
    env.close()
    return " && ".join(oracle)


def play(agent, workers="inline", env=ENV, **kwargs):
    with make_workers(workers) as places, RolloutManager(agent, places) as manager:
        (played,) = manager.play([Trajectory(Task(env, SEED, kwargs))])
    agent.gateway.close()
    return played


@pytest.mark.parametrize("workers", ["inline", "1"])
def test_a_program_plays_in_its_machine_to_the_reward_of_the_task(workers, command):
    agent = scripted([write_calls([("bash", {"command": command})]), "Done."])
    played = play(TrainedHarnessAgent(agent, HARNESS), workers)
    assert (played.status, played.success, played.reward) == ("terminated", True, 1.0), played.error
    assert [turn.prompt_ids for turn in played.turns] == agent.engine.prompts
    assert [turn.reward for turn in played.turns] == [0.0, 1.0]
    (sample,) = trajectory_samples(played)
    assert drift(played, [sample]) == 0
    nodes = played.record["nodes"]
    assert [(node["kind"], node["turn"], node["parent"]) for node in nodes] == [("main", 0, None), ("main", 1, 0)]
    assert played.record["exit_code"] == 0
    stored = from_plain(Trajectory, json.loads(json.dumps(to_plain(played))), "here")
    (chat,) = chats_of(StoredEpisode(stored))
    assert [m["role"] for m in chat["messages"]][-3:] == ["assistant", "tool", "assistant"]
    assert chat["tools"][0]["function"]["name"] == chat["messages"][-3]["tool_calls"][0]["function"]["name"] == "bash"


@pytest.mark.combinations
@pytest.mark.parametrize("dies", [0, 1])
def test_a_program_whose_worker_is_lost_plays_anew(command, dies):
    """Nothing of the lost play is in the episode, whose seed is the same."""
    lines = [write_calls([("bash", {"command": command})]), "Done."]

    def says(number):
        if number == dies:
            os.kill(places.report()[0]["pid"], signal.SIGKILL)
        return (lines[: dies + 1] + lines)[number]

    agent = scripted(says)
    harness, ended = TrainedHarnessAgent(agent, HARNESS), []
    harness.gateway.on_finish = ended.append
    with make_workers("1") as places, RolloutManager(harness, places) as manager:
        (played,) = manager.play([Trajectory(Task(ENV, SEED))])
    harness.gateway.close()
    assert (played.status, played.success, played.replays) == ("terminated", True, 1), played.error
    assert [turn.prompt_ids for turn in played.turns] == agent.engine.prompts[dies + 1 :]
    assert agent.engine.prompts[dies + 1] == agent.engine.prompts[0]
    assert len(ended) == 2


def test_a_program_that_never_asks_has_failed():
    played = play(TrainedHarnessAgent(scripted([]), "command:echo I would rather not"))
    assert played.status == "failed"
    assert "I would rather not" in played.error


def test_an_engine_that_fails_ends_the_episode():
    agent = scripted([])  # has nothing to say: it raises
    agent.engine.generate = broken
    played = play(TrainedHarnessAgent(agent, HARNESS))
    assert played.status == "failed"
    assert "the device is gone" in played.error


async def broken(*_, **__):
    raise rollenv.agents.engines.base.EngineFailed("the device is gone")


@pytest.mark.integration
def test_a_deadline_grades_what_is_there(command):
    agent = scripted([write_calls([("bash", {"command": f"{command}; sleep 600"})])])
    played = play(TrainedHarnessAgent(agent, HARNESS, seconds=8.0, caps=Caps(calls=2)), "1")
    assert (played.status, played.reward) == ("terminated", 1.0), played.error
    assert played.record["exit_code"] is None


def test_an_environment_without_a_machine_needs_a_harness_with_tools():
    with pytest.raises(rollenv.UsageError, match="machine"):
        play(TrainedHarnessAgent(scripted([]), "pi"), env="game:Sokoban-v0-easy")


def test_unknown_kinds_of_calls_are_refused():
    with pytest.raises(rollenv.UsageError, match="'titles'"):
        HarnessAgent(scripted([]), HARNESS, kinds=["titles"])


#: Hands the tools of its MCP server to the model, and the model's calls to the server, until the server says no more.
PLAYER = """
import json, os, sys, urllib.error, urllib.request
def post(url, data):
    head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(data).encode(), head)) as answer:
        return json.load(answer) if answer.status == 200 else None
def rpc(method, **params):
    return post(sys.argv[1], {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})["result"]
assert rpc("initialize", protocolVersion="2025-06-18")["capabilities"] == {"tools": {}}
post(sys.argv[1], {"jsonrpc": "2.0", "method": "notifications/initialized"})
told = rpc("tools/list")["tools"]
tools = [{"type": "function", "function": {"name": t["name"], "parameters": t["inputSchema"]}} for t in told]
messages = [{"role": "user", "content": sys.stdin.read()}]
while True:
    asked = {"model": "m", "messages": messages, "tools": tools}
    said = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", asked)["choices"][0]["message"]
    messages.append(said)
    for call in said.get("tool_calls") or sys.exit():
        done = rpc("tools/call", name=call["function"]["name"], arguments=json.loads(call["function"]["arguments"]))
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done["content"][0]["text"]})
"""
OVER_TOOLS = "command:python3 -c " + shlex.quote(PLAYER) + " {mcp_url}"
ROOM = "game:Sokoban-v0-tiny"


@pytest.fixture(scope="module")
def moves():
    """What wins the room."""
    env = rollenv.make(ROOM)
    env.reset(SEED)
    actions, over = [], False
    while not over:
        actions.append(env.oracle_action())
        over = env.step(actions[-1])[2]
    env.close()
    return actions


def test_an_environment_without_a_machine_is_played_over_mcp(moves):
    agent = scripted([write_calls([("step", {"action": action})]) for action in moves])
    played = play(TrainedHarnessAgent(agent, OVER_TOOLS), env=ROOM)
    assert (played.status, played.success) == ("terminated", True), played.error
    assert [turn.prompt_ids for turn in played.turns] == agent.engine.prompts
    assert len(trajectory_samples(played)) == 1
    assert [node["turn"] for node in played.record["nodes"]] == list(range(len(moves)))


#: Shows the model the contents of its tools' results, with pictures.
SEEING_PLAYER = PLAYER.replace(
    'done["content"][0]["text"]',
    """[
        {"type": "text", "text": part["text"]} if part["type"] == "text" else
        {"type": "image_url", "image_url": {"url": "data:" + part["mimeType"] + ";base64," + part["data"]}}
        for part in done["content"]]""",
)


def test_a_harness_plays_a_visual_environment_with_a_model_that_sees(moves):
    tokenizer = seeing().tokenizer
    said = [write_calls([("look", {})]), *(write_calls([("step", {"action": action})]) for action in moves)]
    agent = EngineAgent(ScriptEngine(tokenizer, said), tokenizer, sampling=Sampling(max_new_tokens=400))
    harness = TrainedHarnessAgent(agent, "command:python3 -c " + shlex.quote(SEEING_PLAYER) + " {mcp_url}")
    played = play(harness, env=ROOM, images="only")
    assert (played.status, played.success) == ("terminated", True), played.error
    with rollenv.make(ROOM, images="only") as env:
        boards = [*env.reset(SEED)[1]["images"]]
        boards += [image for action in moves[:-1] for image in env.step(action)[4]["images"]]
    looked = dict.fromkeys(token for token in agent.engine.prompts[-1] if is_picture_token(token))
    assert [numbered(token) for token in looked] == [*dict.fromkeys(boards)]
    assert all(token in {image.number for image in played.turns[-1].prompt_images} for token in looked)
    (sample,) = trajectory_samples(played)
    assert sum(map(is_picture_token, sample.ids.tolist())) == sum(map(is_picture_token, agent.engine.prompts[-1]))
    assert drift(played, [sample]) == 0
    assert "base64" not in repr(played.record)


def test_calls_of_one_answer_are_several_turns_and_the_end_of_the_program_is_a_limit(moves):
    both = write_calls([("step", {"action": action}) for action in moves[:2]])
    agent = scripted([both, "I give up."])
    played = play(TrainedHarnessAgent(agent, OVER_TOOLS), env=ROOM)
    assert played.status == "truncated", played.error
    assert [len(turn.response_ids) > 0 for turn in played.turns] == [True, False]
    (sample,) = trajectory_samples(played)
    assert sample.mask.sum() == len(played.turns[0].response_ids)


def test_a_limit_on_turns_holds_for_calls_too(moves):
    """An action of several calls does not step over it."""

    class Three(rollenv.agents.Session):
        async def act(self, observation, info):
            return rollenv.agents.Action(moves[0], calls=(rollenv.agents.Action("a"),) * 3)

        def record(self):
            return {"asked": 3}

    class Agent:
        def start(self, env, seed):
            return Three()

    with RolloutManager(Agent(), limits=EpisodeLimits(turns=2)) as manager:
        (played,) = manager.play([Trajectory(Task(ROOM, SEED))])
    assert (played.status, len(played.turns), played.record) == ("truncated", 3, {"asked": 3})
