"""Patterns: tools."""

from __future__ import annotations

import logging
import os
import re

from common import classes, pattern, raises
from gem.tools import python_code_tool
from gem.tools.base_tool import BaseTool
from gem.tools.mcp_tool import MCPTool
from gem.tools.python_code_tool import PythonCodeTool
from gem.tools.search_tool import SearchTool
from gem.tools.tool_env_wrapper import ToolEnvWrapper
from gem.utils.sandbox import BASE_IMPORTS, check_forbidden_imports, run_python


@pattern
def a_tool_of_ones_own():
    Doubling, _, Echo = classes()
    tool = Echo()
    env = ToolEnvWrapper(Doubling(), [tool], tool_reward=0.1, tool_success_reward=0.2, max_tool_uses=2)
    observation, info = env.reset(seed=1)
    assert observation.endswith("Say <echo>something</echo>.") and info["use_tool"] is False
    observation, reward, terminated, _, info = env.step("well <echo>hi</echo> more")
    assert observation == "hi!" and abs(reward - 0.3) < 1e-9 and not terminated
    assert info["parsed_action"] == "well <echo>hi</echo>" and info["tool_type"] == "echo" and info["use_tool"]
    observation, reward, *_ = env.step("<echo>fail</echo>")
    assert observation.startswith("fail!") and len(observation) > 10 and abs(reward - 0.1) < 1e-9
    assert env.step("<echo>three</echo>")[0] == "turn 1" and tool.calls == 2
    assert env.tool_use_counter == 2 and env.tool_success_counter == 1 and env.tools[0].calls == 2
    assert env.reset()[1]["prev_ep_tool_use_counter"] == 2


@pattern
def limits_of_tool_use():
    Doubling, _, Echo = classes()
    env = ToolEnvWrapper(Doubling(), [Echo()], 0.5, 0.25)
    env.reset()
    assert env.step("<echo>a</echo>")[1] == 0.75 and env.max_tool_uses == 10
    Doubling, _, Echo = classes()
    env = ToolEnvWrapper(env=Doubling(), tools=[Echo("?")], max_tool_uses=None)
    env.reset()
    for _ in range(30):
        assert env.step("<echo>a</echo>")[0] == "a?"
    assert ToolEnvWrapper(classes()[0](), [], max_tool_uses=None).max_tool_uses == float("inf")


@pattern
def a_tool_that_is_no_basetool():
    class Duck:
        tool_type, name = "duck", "duck"

        def instruction_string(self):
            return "quack"

        def execute_action(self, action):
            return "quack" in action, False, "QUACK", action

    env = ToolEnvWrapper(classes()[0](), tools=[Duck()])
    assert env.reset(seed=1)[0].endswith("quack") and env.step("quack")[0] == "QUACK"


@pattern
def a_tool_with_methods_of_its_own():
    _, _, Echo = classes()

    class Busy(Echo):
        def check(self, expression):
            return bool(expression)

        def reset(self, hard):
            raise SystemError("nobody calls this")

        def close(self, now):
            raise SystemError("nobody calls this")

        def spawn(self):
            raise SystemError("nobody calls this")

        def execute_action(self, action):
            return super().execute_action(action) if self.check(action) else (False, True, "", action)

    tool = Busy()
    tool.users = ["a"]
    env = ToolEnvWrapper(classes()[0](), tools=[tool, Echo()])
    assert env.reset()[0].count("<echo>") == 2 and env.step("<echo>x</echo>")[0] == "x!"


@pattern
def tools_before_reset_and_after_the_end():
    env = ToolEnvWrapper(classes()[0](), tools=[classes()[2]()])
    assert env.step("<echo>early</echo>")[0] == "early!"
    env.reset(seed=1)
    env.step(f"\\boxed{{{2 * env.unwrapped.number}}}")
    assert env.step("<echo>late</echo>")[0] == "late!" and env.step("x", verbose=True)[1] == 0


@pattern
def states_of_envs_with_tools():
    Doubling, _, Echo = classes()

    class Saved(Doubling):
        def get_state(self):
            return {"number": self.number}

        def set_state(self, state):
            self.number = state["number"]

    env = ToolEnvWrapper(Saved(), [Echo()])
    env.reset(seed=2)
    env.step("<echo>a</echo>")
    state = env.get_state()
    assert state["tool_use_counter"] == 1 and state["number"] == env.unwrapped.number
    env.step("<echo>b</echo>")
    env.set_state(state)
    assert env.tool_use_counter == 1 and env.tool_success_counter == 1


@pattern
def an_author_subclasses_the_tool_wrapper():
    class Strict(ToolEnvWrapper):
        def __init__(self, env, tools, penalty=1.0, **kwargs):
            super().__init__(env, tools, **kwargs)
            self.penalty = penalty

        def step(self, action, verbose=False):
            observation, reward, *rest = super().step(action, verbose)
            return observation, reward - self.penalty, *rest

    env = Strict(classes()[0](), [classes()[2]()], penalty=2.0, tool_reward=0.5)
    env.reset()
    assert env.step("<echo>a</echo>")[1] == -1.5


@pattern
def the_python_tool():
    tool = PythonCodeTool(timeout=8, sandbox_type="none", keep_error_last_line=False)
    assert isinstance(tool, BaseTool) and tool.tool_type == "python_code" and tool.instruction_string()
    valid, failed, text, parsed = tool.execute_action("so <python>print(6 * 7)</python> and more")
    assert valid and not failed and text.startswith("Code execution result: 42") and parsed.endswith("</python>")
    assert tool.execute_action("no code at all")[:3] == (False, True, "")
    assert tool.execute_action("```python\nraise ValueError('x')\n```")[1]
    tool = PythonCodeTool(5, "none", True)
    text = tool.execute_action("<python>\nx = 1\nx / 0\n</python>")[2]
    assert "ZeroDivisionError" in text and "Traceback" not in text
    tool = PythonCodeTool(timeout=9)
    assert tuple(tool.execute_action("<python>print('Hello')</python>"))[2] == "Code execution result: Hello\n\n"
    assert tool.execute_action("```python print(2)```")[0] and not tool.execute_action("```py\nprint(2)\n```")[0]
    text = tool.execute_action("<python>print(' \\n 1')\n1 / 0</python>")[2]
    assert text.startswith("Code execution result: 1\n\nTraceback")
    assert text.endswith("ZeroDivisionError: division by zero\n")
    assert tool.execute_action("<python>...</python>")[:2] == (True, True)
    for name in ("exit", "quit"):
        assert tool.execute_action(f"<python>print(3); {name}()</python>")[1:3] == (
            False,
            "Code execution result: 3\n\n",
        )


@pattern
def the_python_tool_supplies_forgotten_imports():
    code = "print(math.floor(2.5), Counter('aab').most_common(1), list(combinations([1, 2], 2)))"
    _, failed, text, _ = PythonCodeTool(timeout=9).execute_action(f"<python>{code}</python>")
    assert not failed and "2 [('a', 2)] [(1, 2)]" in text, text
    code = "print(time() > 1, bisect([1, 3], 2) if False else insort, deepcopy([1]))"
    assert not PythonCodeTool(timeout=9).execute_action(f"<python>{code}</python>")[1]


@pattern
def programs_in_the_sandbox():
    assert run_python("print(input()[::-1])", "none", stdin="abc\n")[:2] == (True, "cba\n")
    assert run_python("print(math.pi)", "none")[0] and run_python("print(nowhere)", "none")[0] is False
    assert "nowhere" in run_python("print(nowhere)", sandbox_type="none")[2]
    assert check_forbidden_imports("import socket") and not check_forbidden_imports("import math")
    scope = {}
    exec("\n".join(line for line in BASE_IMPORTS.splitlines() if "pandas" not in line), scope)
    assert scope["deque"] and scope["math"] and scope["lru_cache"]


@pattern
def the_search_tool_without_a_server():
    os.environ.pop("SEARCH_URL", None)
    tool = SearchTool(search_url=None, topk=2, timeout=1)
    env = ToolEnvWrapper(classes()[0](), tools=[tool])
    assert env.reset(seed=1)[0] and env.step("\\boxed{0}")[0] == "turn 1"
    assert SearchTool(1, "http://127.0.0.1:9/retrieve", 3, 1).execute_action("<search>x</search>")[:2] == (True, True)
    assert tool.execute_action("no search")[:2] == (False, True)
    tool = SearchTool(search_url="http://127.0.0.1:9")
    tool._search = lambda query: f"found {query}"
    valid, failed, text, parsed = tool.execute_action("I <search> cats </search> dogs")
    assert (valid, failed, parsed) == (True, False, "I <search> cats </search>")
    assert text.strip() == "<information>found cats</information>"
    rows = [{"document": {"contents": '"A"\nText\nmore'}, "score": 1.0}, {"document": {"contents": "B"}}]
    assert SearchTool()._passages2string(rows) == 'Doc 1(Title: "A") Text\nmore\nDoc 2(Title: B) \n'
    assert SearchTool()._passages2string([]) == ""


@pattern
def an_mcp_tool_that_cannot_connect():
    logging.disable(logging.CRITICAL)
    try:
        raises(ValueError, MCPTool, "http://127.0.0.1:9/mcp", max_retries=1, execution_timeout=2.0)
        tool = MCPTool("http://127.0.0.1:9/mcp", validate_on_init=False, max_retries=1, delay_between_retries=0.1)
        assert tool.tool_type == "mcp" and tool.execution_timeout == 30.0
    finally:
        logging.disable(logging.NOTSET)


@pattern
def other_tags_for_the_python_tool():
    class Tagged(PythonCodeTool):
        def _parse_action(self, action):
            match = re.search(r"<run>(.*?)</run>", action)
            return (match[1], action[: match.end()], True) if match else (None, action, False)

    tool = Tagged(timeout=6)
    assert tool.sandbox_type == "none" and tool.timeout == 6
    valid, failed, text, parsed = tool.execute_action("<run>print(5)</run>x")
    assert valid and not failed and "5" in text and parsed == "<run>print(5)</run>"
    assert tool.execute_action("<python>print(5)</python>")[:2] == (False, True)


@pattern
def tools_stay_what_was_given():
    Doubling, _, Echo = classes()
    tools = [Echo()]
    env = ToolEnvWrapper(Doubling(), tools=tools)
    env.reset(seed=1)
    assert env.tools is tools and isinstance(env.tools[0], Echo) and isinstance(env.tools[0], BaseTool)
    env.tools[0].mark = "?"
    assert env.step("<echo>a</echo>")[0] == "a?"


@pattern
def a_sandbox_that_is_mocked():
    before = python_code_tool.run_python
    python_code_tool.run_python = lambda code, sandbox_type, timeout: (True, f"{code} {sandbox_type} {timeout}", "")
    try:
        text = python_code_tool.PythonCodeTool(timeout=3).execute_action("<python>x</python>")[2]
    finally:
        python_code_tool.run_python = before
    assert text == "Code execution result: x none 3\n"
