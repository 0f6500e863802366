"""``openenv``, and ``openenv-core``, which came before it: their clients, unmodified, against a real server."""

from __future__ import annotations

import subprocess

import pytest
from clients import ROOT, expected, run

pytestmark = pytest.mark.integration
both = pytest.mark.parametrize("client", ["openenv", "openenv-core"])

GENERIC = """
import asyncio, os
from openenv.core import GenericEnvClient
from openenv.auto import AutoEnv
base = os.environ["URL"] + "/openenv/"
url = base + "game:Sokoban-v0-tiny"

with GenericEnvClient(base_url=url).sync() as env:
    try:
        env.step({"action": "x"})
    except RuntimeError as error:
        assert "EXECUTION_ERROR" in str(error), error
    else:
        raise SystemExit("a step before the first reset was taken")
    result = env.reset(seed=3, episode_id="ep")
    print(repr(result.observation["text"]))
    actions = os.environ["ACTIONS"].split("|")
    for action in actions:
        result = env.step({"action": action})
        seen = result.observation
        print(repr((seen["text"], result.reward, seen["terminated"], seen["truncated"])))
    assert result.done
    assert env.state() == {"episode_id": "ep", "step_count": len(actions)}
    late = env.step({"action": "x"})  # OpenEnv's environments may be stepped after the end
    assert late.done and late.reward == 0.0 and late.observation["text"] == seen["text"]
    assert env.state()["step_count"] == len(actions)
    for wrong in ({"wrong": 1}, {"action": 5}, {}):
        try:
            env.step(wrong)
        except RuntimeError as error:
            assert "VALIDATION_ERROR" in str(error), error
        else:
            raise SystemExit(f"{wrong} was taken")
    assert env.reset(seed=4).done is False

async def two():
    async with GenericEnvClient(base_url=url) as one, GenericEnvClient(base_url=url) as other:
        first, second = await asyncio.gather(one.reset(seed=3), other.reset(seed=5))
        assert first.observation["info"] != second.observation["info"]  # the boards

asyncio.run(two())
env = AutoEnv.from_env("game:Sokoban-v0-tiny", base_url=url, skip_install=True).sync()
with env:
    assert env.reset(seed=3).observation["text"]

try:
    with GenericEnvClient(base_url=base + "game:Sokobam-v0").sync() as env:
        env.reset()
except RuntimeError as error:
    assert "FACTORY_ERROR" in str(error) and "Sokoban" in str(error), error
else:
    raise SystemExit("it was made")
"""

TOOLS = """
import asyncio, os
from openenv.core.mcp_client import MCPToolClient
from openenv.core.env_server.mcp_types import CallToolAction
url = os.environ["URL"] + "/openenv/game:Sokoban-v0-tiny"

async def play():
    async with MCPToolClient(base_url=url) as env:
        assert [tool.name for tool in await env.list_tools()] == ["reset", "step"]
        assert (await env.get_tool("step")).input_schema["required"] == ["action"]
        print(repr((await env.call_tool("reset", seed=3))["text"]))
        for action in os.environ["ACTIONS"].split("|"):
            result = await env.step(CallToolAction(tool_name="step", arguments={"action": action}))
            seen = result.observation.result
            print(repr((seen["text"], result.reward, seen["terminated"], seen["truncated"])))
        assert result.done
        for name, given, kind in (("fly", {}, "tool_not_found"), ("step", {"x": 1}, "invalid_args"),
                                  ("reset", {"seed": -1}, "execution_error")):
            try:
                await env.call_tool(name, **given)
            except RuntimeError as error:
                assert kind in str(error), error
            else:
                raise SystemExit(f"{name} {given} was carried out")

async def play_over_http():
    env = MCPToolClient(base_url=url)
    env.use_production_mode = True
    try:
        assert [tool.name for tool in await env.list_tools()] == ["reset", "step"]
        first = (await env.call_tool("reset", seed=3))["structuredContent"]
        assert first["observation"]["text"]
        moved = await env.call_tool("step", action=os.environ["ACTIONS"].split("|")[0])
        assert moved["structuredContent"]["reward"] is not None
        try:
            await env.call_tool("fly")
        except RuntimeError as error:
            assert "no tool" in str(error), error
        else:
            raise SystemExit("it was carried out")
    finally:
        await env.close()

asyncio.run(play())
asyncio.run(play_over_http())
"""

GONE = """
import os, signal
from openenv.core import GenericEnvClient
url = os.environ["URL"] + "/openenv/game:Sokoban-v0-tiny"
with GenericEnvClient(base_url=url, connect_timeout_s=3, message_timeout_s=5).sync() as env:
    env.reset(seed=3)
    os.kill(int(os.environ["SERVER"]), signal.SIGKILL)
    try:
        env.step({"action": "x"})
    except Exception as error:
        print(type(error).__name__)
try:
    with GenericEnvClient(base_url=url, connect_timeout_s=3).sync() as env:
        env.reset()
except ConnectionError as error:
    print(type(error).__name__)
"""


@pytest.mark.smoke
@both
def test_the_generic_client_plays(server, client):
    seen, actions = expected(3)
    assert run(client, GENERIC, URL=server.http, ACTIONS=actions) == seen


def test_the_client_of_tools_plays(server):
    seen, actions = expected(3)
    assert run("openenv-core", TOOLS, URL=server.http, ACTIONS=actions) == seen


def test_a_server_that_is_gone_is_an_error(serve):
    served = serve()
    found = run("openenv-core", GONE, URL=served.http, SERVER=str(served.process.pid))
    assert found == ["ConnectionClosedError", "ConnectionError"]


@pytest.mark.smoke
@both
def test_its_validation_passes(server, client):
    command = ROOT / ".bench" / client / "bin" / "openenv"
    if not command.exists():
        pytest.skip(f"`make peers` puts {client} into .bench/{client}")
    url = f"{server.http}/openenv/game:Sokoban-v0-tiny"
    done = subprocess.run([command, "validate", "--url", url], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"openenv": "Verdict: PASS", "openenv-core": '"passed": true'}[client] in done.stdout
