"""Pictures that tools return: functions, MCP servers and worlds."""

import sys

import numpy as np
import pytest

import rollenv
from rollenv.core.pictures import picture
from rollenv.core.tools.backend import Backend, tool
from rollenv.core.tools.calls import write_calls
from rollenv.core.tools.function import FunctionTool
from rollenv.core.tools.mcp import MCPTool
from rollenv.core.wrappers.tool_env import ToolEnvWrapper
from rollenv.envs.tools.base import Problem, ToolEnv

PIL = pytest.importorskip("PIL.Image")
RED, BLUE = (np.full((4, 6, 3), colour, np.uint8) for colour in ((255, 0, 0), (0, 0, 255)))


def draw(colour: str) -> object:
    """Draw a picture."""
    return {"red": RED, "blue": PIL.fromarray(BLUE), "kept": picture(RED), "huge": PIL.new("RGB", (5000, 4000))}[colour]


def describe(words: str) -> str:
    """Say it again."""
    return words


def compare() -> list[object]:
    """Show both pictures."""
    return ["First <image>:", RED, "then:", BLUE]


class Echo(rollenv.Env):
    def _reset(self, options):
        return "go", {}

    def _step(self, action):
        return "over", 0.0, True, False, {}


def step(*calls, tools=(draw, describe, compare)):
    with ToolEnvWrapper(Echo(), [FunctionTool(*tools)]) as env:
        env.reset(0)
        observation, _, _, _, info = env.step(write_calls(calls))
    return observation, info.get("images", []), info["tool_responses"]


def test_functions_return_pictures_arrays_and_pillows_images():
    for colour, pixels in (("red", RED), ("blue", BLUE), ("kept", RED)):
        assert step(("draw", {"colour": colour})) == ("<image>", [picture(pixels)], ["<image>"])
    text, images, _ = step(("compare", {}))
    assert (text, images) == ("First [image]:\n<image>\nthen:\n<image>", [picture(RED), picture(BLUE)])
    text, images, _ = step(("draw", {"colour": "huge"}))
    assert "5000x4000" in text
    assert images == []


def test_marks_are_those_of_pictures_whatever_texts_say():
    text, images, texts = step(("draw", {"colour": "red"}), ("describe", {"words": "<image>"}), ("<image>", {}))
    assert (text.count("<image>"), images) == (1, [picture(RED)])
    assert texts[:2] == ["<image>", "[image]"]
    assert step(("describe", {"words": "<image>"}))[:2] == ("<image>", []), "a word, where there are no pictures"
    name = f"<image:{picture(RED).sha256}>"
    text, images, _ = step(("draw", {"colour": "red"}), ("describe", {"words": name}))
    assert text.count("<image>") == len(images)


class Gallery(Backend):
    @tool
    def look(self, colour: str) -> object:
        """Look at a picture."""
        return [f"It is {colour}.", draw(colour)]


class Museum(ToolEnv):
    def problem(self, key):
        return Problem("What is there?", Gallery())


def test_worlds_show_pictures_in_their_environment():
    with Museum() as env:
        env.reset(0)
        text, _, _, _, info = env.step(write_calls([("look", {"colour": "red"}), ("look", {"colour": "<image>"})]))
    assert info["images"] == [picture(RED)]
    assert text.count("<image>") == 1
    assert info["tool_responses"][0] == "It is red.\n<image>"


#: A server of a picture in a colour, between texts.
SERVER = """
import sys
sys.path.insert(0, {here!r})
from mcp.server.mcpserver import MCPServer
from mcp.types import ImageContent
from rollenv.core.pictures import picture
from test_tool_pictures import draw

server = MCPServer("gallery")

@server.tool(structured_output=False)
def look(colour: str) -> list:
    return [f"It is {{colour}}.", ImageContent(data=picture(draw(colour)).as_json()["data"], mime_type="image/png")]

server.run()
"""


def test_pictures_of_an_mcp_server_are_shown(tmp_path):
    code = tmp_path / "a server.py"
    code.write_text(SERVER.format(here=str(__file__).rpartition("/")[0]))
    tools = MCPTool({"mcpServers": {"local": {"command": sys.executable, "args": [str(code)]}}})
    try:
        with ToolEnvWrapper(Echo(), [tools]) as env:
            env.reset(0)
            text, _, _, _, info = env.step(write_calls([("look", {"colour": "blue"}), ("look", {"colour": "none"})]))
    finally:
        tools.close()
    assert info["images"] == [picture(BLUE)]
    assert text.count("<image>") == 1
