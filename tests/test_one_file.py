"""examples/one_file/one_file.py, unmodified, in nine dialects: each plays the expert's episode and earns the same."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
from clients import run
from gymnasium.utils.env_checker import check_env
from stub_endpoint import Endpoint

import rollenv

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples/one_file"
ENV, SEED = "one_file:Pile", 3
pytestmark = [pytest.mark.smoke, pytest.mark.integration]


@pytest.fixture(autouse=True)
def _found(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{EXAMPLES}")


@pytest.fixture(scope="module")
def served():
    from serving import Served

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(EXAMPLES))
        found = Served(ENV)
    yield found
    found.stop()


@pytest.fixture
def episode():
    """What the expert's episode shows, its actions and its rewards."""
    env = rollenv.make(ENV)
    seen, actions, rewards, over = [env.reset(SEED)[0]], [], [], False
    while not over:
        actions.append(env.oracle_action())
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        seen.append(observation)
        rewards.append(reward)
        over = terminated or truncated
    return seen, actions, rewards


def in_peer(name, code, **environ):
    """A program in ``.bench/NAME`` with this checkout beside it; the last line that it printed, as JSON."""
    return json.loads(run(name, code, **environ)[-1])


def test_gymnasium(episode):
    seen, actions, rewards = episode
    gymnasium.register("Pile-v0", entry_point="one_file:Pile")
    try:
        env = gymnasium.make("Pile-v0")
        check_env(env.unwrapped, skip_render_check=True)
        assert env.reset(seed=SEED)[0] == seen[0]
        assert [env.step(action)[1] for action in actions] == rewards
    finally:
        del gymnasium.registry["Pile-v0"]


def test_pettingzoo():
    pytest.importorskip("pettingzoo")
    from pettingzoo.test import api_test

    from rollenv.plugins.players import pettingzoo_export

    with pytest.warns(UserWarning, match="space"):  # it advises numbers as observations
        api_test(pettingzoo_export.env(ENV, seats=2), num_cycles=50)
    game, twin = pettingzoo_export.env(ENV, seats=2), rollenv.make(ENV, seats=2)
    game.reset(seed=SEED)
    twin.reset(SEED)
    total = dict.fromkeys(game.possible_agents, 0.0)
    for agent in game.agent_iter():
        observation, reward, terminated, truncated, _ = game.last()
        total[agent] += reward
        if terminated or truncated:
            game.step(None)
            continue
        assert f"{twin.unwrapped.coins} coins are left" in observation["text"]
        action = twin.oracle_action()
        twin.step(action)
        game.step(action)
    assert total == {"player_0": 1.0, "player_1": 0.0}


IN_PROCESS = {
    "gem": """
import json, gem
gem.register("one:Pile-v0", entry_point="one_file:Pile")
env = gem.make("one:Pile-v0")
seen = [env.reset(seed=3)[0]]
rewards = []
for action in json.loads(ACTIONS):
    observation, reward, *_ = env.step(action)
    seen.append(observation)
    rewards.append(reward)
print(json.dumps([seen, rewards]))
""",
    "skyrl": """
import json, skyrl_gym
import rollenv.plugins.adapters.skyrl as bridge
bridge.register()
env = skyrl_gym.make("rollenv", env_config={}, extras={"env_id": "one_file:Pile", "seed": 3, "max_turns": 100})
chat, _ = env.init([])
seen, rewards = [chat[-1]["content"]], []
for action in json.loads(ACTIONS):
    out = env.step(action)
    seen += [message["content"] for message in out["observations"]]
    rewards.append(out["reward"])
assert out["done"]
print(json.dumps([seen, rewards]))
""",
    "nemo": """
import json
from unittest.mock import MagicMock
from fastapi.testclient import TestClient
from nemo_gym.server_utils import ServerClient
from rollenv.plugins.adapters.nemo_gym import RollenvConfig, RollenvServer
config = RollenvConfig(host="", port=0, entrypoint="", name="ours", env_id="one_file:Pile")
client = TestClient(RollenvServer(config=config, server_client=MagicMock(spec=ServerClient)).setup_webserver())
asked = {"responses_create_params": {"input": [{"role": "system", "content": "Play."}]}, "seed": 3}
seen, rewards = [client.post("/reset", json=asked).json()["observation"]], []
for action in json.loads(ACTIONS):
    content = [{"type": "output_text", "text": action, "annotations": []}]
    said = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}
    response = {"id": "r", "created_at": 1, "model": "stub", "object": "response", "output": [said]}
    response |= {"parallel_tool_calls": False, "tool_choice": "auto", "tools": []}
    told = client.post("/step", json=asked | {"response": response}).json()
    seen.append(told["observation"])
    rewards.append(told["reward"])
print(json.dumps([seen, rewards]))
""",
}


@pytest.mark.parametrize("peer", IN_PROCESS)
def test_frameworks_in_their_own_process(peer, episode):
    seen, actions, rewards = episode
    told, earned = in_peer(peer, IN_PROCESS[peer].replace("ACTIONS", repr(json.dumps(actions))))
    assert earned == rewards
    assert told == seen[: len(told)]
    assert len(told) >= len(seen) - 1, "SkyRL shows nothing after the end"


OVER_HTTP = {
    "openenv": """
import json, os
from openenv import GenericEnvClient
with GenericEnvClient(base_url=os.environ["URL"] + "/openenv/one_file:Pile").sync() as env:
    seen, rewards = [env.reset(seed=3).observation["text"]], []
    for action in json.loads(os.environ["ACTIONS"]):
        result = env.step({"action": action})
        seen.append(result.observation["text"])
        rewards.append(result.reward)
    assert result.done
print(json.dumps([seen, rewards]))
""",
    "openreward": """
import json, os
from openreward import OpenReward
env = OpenReward().environments.get("one_file:Pile")
with env.session(split="test", index=3) as session:
    seen, rewards = [session.get_prompt()[0].text], []
    for action in json.loads(os.environ["ACTIONS"]):
        told = session.call_tool("step", {"action": action})
        seen.append(told.blocks[0].text)
        rewards.append(told.reward)
    assert told.finished
print(json.dumps([seen, rewards]))
""",
    "mcp": """
import asyncio, json, os
from mcp import Client
async def main():
    async with Client(os.environ["URL"] + "/mcp/env/one_file:Pile") as client:
        first = (await client.call_tool("reset", {"seed": 3})).structured_content
        seen, rewards = [first["observation"]], []
        session = {"session": first["session"]} if "session" in first else {}
        for action in json.loads(os.environ["ACTIONS"]):
            told = (await client.call_tool("step", session | {"action": action})).structured_content
            seen.append(told["observation"])
            rewards.append(told["reward"])
    print(json.dumps([seen, rewards]))
asyncio.run(main())
""",
}


@pytest.mark.parametrize("peer", OVER_HTTP)
def test_clients_of_a_server(peer, episode, served):
    seen, actions, rewards = episode
    keys = ("URL", "OPENREWARD_API_URL", "OPENREWARD_SESSION_URL")
    if peer == "openreward":  # its rows have seeds of their own
        seen, actions, rewards = None, ["\\boxed{9}"], [0.0]
    environ = dict.fromkeys(keys, served.http) | {"ACTIONS": json.dumps(actions), "OPENREWARD_API_KEY": "any"}
    told, earned = in_peer(peer, OVER_HTTP[peer], **environ)
    assert earned == rewards
    assert seen is None or told == seen


class Expert(Endpoint):
    """A model that leaves a multiple of four."""

    def answer(self, body):
        coins = int(re.findall(r"(\d+) coins are left", str(body["messages"]))[-1])
        return f"\\boxed{{{coins % 4 or 1}}}", None


def test_verifiers(tmp_path):
    bin_ = ROOT / ".bench/verifiers/bin"
    if not bin_.exists():
        pytest.skip("`make .bench/verifiers/installed` makes it")
    environ = os.environ | {"PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}"}
    environ["PYTHONPATH"] += f"{os.pathsep}{tmp_path / 'pile-tasks'}"
    package = [
        bin_ / "python",
        "-W",
        "ignore",
        "-m",
        "rollenv.plugins.adapters.verifiers",
        tmp_path / "pile-tasks",
        ENV,
    ]
    subprocess.run(package, check=True, env=environ, cwd=tmp_path, timeout=300)
    model = Expert(commands=[])
    command = [
        bin_ / "vf-eval", "pile-tasks", "--env.player.harness.id", "null", "--env.player.runtime.type", "subprocess",
        "--model", "stub", "--client.base-url", f"http://{model.address}/v1", "--client.api-key-var", "NO_KEY",
        "--no-push", "--no-rich", "--run.dir", "run", "-n", "2", "-r", "1",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=600)
    model.close()
    written = tmp_path / "outputs/run/traces.jsonl"
    assert written.exists(), done.stdout + done.stderr
    scores = [json.loads(line)["traces"][0]["rewards"]["reward"]["score"] for line in written.read_text().splitlines()]
    assert scores == [1.0, 1.0]


def test_it_is_accepted_evaluated_shown_and_trained(tmp_path):
    def command(*words):
        line = [sys.executable, "-m", "rollenv", *words]
        return subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=900)

    assert command("accept", ENV, "-n", "12").returncode == 0
    result = json.loads(command("eval", ENV, "-a", "oracle", "-n", "20", "--json").stdout)
    assert result["success"] == 1.0
    assert len(rollenv.make(ENV, images="also").reset(1)[1]["images"]) == 1
    small = ["iterations=2", "model.warm_up.episodes=60", "model.warm_up.steps=20", "eval.episodes=10", "run_dir=run"]
    trained = command("train", ENV, *small, "--json")
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["run"] == "run"


def test_it_has_at_most_150_lines():
    assert len((EXAMPLES / "one_file.py").read_text().splitlines()) <= 150
