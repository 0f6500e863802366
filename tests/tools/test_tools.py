"""Tools as an agent meets them: what is a call, what comes back, and what a mistake is answered with."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import pytest
import uvicorn
from listening import Answers, listening
from mcp.server import MCPServer

import rollenv
from rollenv import MissingExtra, UsageError
from rollenv.core.tools.base import NOT_CALLED, BaseTool, ToolResult
from rollenv.core.tools.function import FunctionTool
from rollenv.core.tools.mcp import MCPError, MCPTool
from rollenv.core.tools.python import MAX_CHARACTERS, PythonCodeTool
from rollenv.core.tools.search import CorpusSearchTool, SearchTool
from rollenv.core.wrappers import ToolEnvWrapper, wrap
from rollenv.envs.calculator import calculator
from rollenv.sandbox import RunResult


def add(a: int, b: int = 1, unit: Literal["m", "km"] = "m") -> str:
    """Add two lengths.

    The rest of this text is not for the agent.
    """
    return f"{a + b} {unit}"


def fail(text: str) -> str:
    """Always fails."""
    raise RuntimeError(text)


HERMES = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
GEM = '<tool_call><tool_name>add</tool_name><arguments>{"a": 2, "b": 3}</arguments></tool_call>'
OPENAI = json.dumps({"tool_calls": [{"function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}]})


@pytest.mark.parametrize("action", [HERMES, GEM, OPENAI, f"I think.\n{HERMES} and more"])
def test_the_same_call_in_every_syntax(action):
    done = FunctionTool(add).execute_action(action)
    assert (done.is_valid, done.has_error, done.observation) == (True, False, "5 m")
    assert action.startswith(done.parsed_action)
    assert not done.parsed_action.endswith("more")


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ('<tool_call>{"name": "add"', "not closed"),
        ("<tool_call>{'name': 'add'</tool_call>", "not valid JSON"),
        ("<tool_call>[1]</tool_call>", "not of the form"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "not valid JSON"),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "JSON object"),
        ('<tool_call>{"name": "add", "arguments": {}}</tool_call>', "a: Field required"),
        ('<tool_call>{"name": "add", "arguments": {"a": "x"}}</tool_call>', "a: Input should be a valid integer"),
        ('<tool_call>{"name": "add", "arguments": {"a": 1, "c": 2}}</tool_call>', "c: Extra inputs"),
        ('<tool_call>{"name": "add", "arguments": {"a": 1, "unit": "mile"}}</tool_call>', "'m' or 'km'"),
        ("<tool_call><tool_name>add</tool_name><arguments>{oops}</arguments></tool_call>", "not valid JSON"),
        ('{"tool_calls": []}', "no function"),
        ('{"tool_calls": [{"function": {"name": "add", "arguments": "{"}}]}', "not valid JSON"),
        ('<tool_call>{"name": "fail", "arguments": {"text": "on purpose"}}</tool_call>', "RuntimeError: on purpose"),
    ],
)
def test_a_mistake_is_answered_with_what_was_wrong(action, says):
    done = FunctionTool(add, fail).execute_action(action)
    assert (done.is_valid, done.has_error) == (True, True)
    assert says in done.observation


def test_schemas_come_from_hints_and_docstring():
    (schema,) = FunctionTool(add).schemas()
    function = schema["function"]
    assert (function["name"], function["description"]) == ("add", "Add two lengths.")
    assert function["parameters"]["required"] == ["a"]
    assert function["parameters"]["properties"]["unit"]["enum"] == ["m", "km"]
    assert '"add"' in FunctionTool(add).instruction_string()
    with pytest.raises(UsageError, match="tool"):
        FunctionTool(print)


@pytest.mark.parametrize(
    ("expression", "says", "failed"),
    [("12 * (3 + 4)", "84", False), ("9**9**9", "ValueError", True), ("import os", "not an", True)],
)
def test_the_calculator(expression, says, failed):
    call = json.dumps({"name": "calculator", "arguments": {"expression": expression}})
    done = FunctionTool(calculator).execute_action(f"<tool_call>{call}</tool_call>")
    assert says in done.observation
    assert done.has_error == failed


# -- python ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def python():
    return PythonCodeTool(timeout=2)


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "says", "failed"),
    [
        ("<python>print(6 * 7)</python>", "42", False),
        ("```python\nprint(6 * 7)\n```", "42", False),
        ("```py\nprint('a')\n```\n```py\nprint('b')\n```", "a", False),
        ("<python>1 / 0</python>", "ZeroDivisionError", True),
        ("<python>while True: pass</python>", "Stopped after 2 seconds", True),
        ("<python>import os; os._exit(3)</python>", "exited with 3", True),
        ("<python>print('x' * 10 ** 7)</python>", "too much output", True),
        ("<python>x = bytearray(1 << 33)</python>", "MemoryError", True),
        ("<python>import sys; print('note', file=sys.stderr)</python>", "note", False),
        ("<python>import socket; socket.create_connection(('127.0.0.1', 1))</python>", "refused", True),
        ("<python>print('\udcff')</python>", "", True),
    ],
)
def test_python(python, action, says, failed):
    done = python.execute_action(action)
    assert done.is_valid
    assert says in done.observation
    assert done.has_error == failed
    assert len(done.observation) < MAX_CHARACTERS + 200
    assert action.startswith(done.parsed_action)


def test_python_is_fresh_or_keeps_its_state(python):
    python.execute_action("<python>x = 1</python>")
    assert "NameError" in python.execute_action("<python>print(x)</python>").observation
    stateful = PythonCodeTool(stateful=True, keep_error_last_line=True)
    stateful.execute_action("<python>x = 20</python>")
    assert "21" in stateful.execute_action("<python>x + 1</python>").observation
    error = stateful.execute_action("<python>def f():\n    1 / 0\nf()</python>").observation
    assert error == "Code execution result: ZeroDivisionError: division by zero\n"
    stateful.close()


def test_the_python_wrappers_of_the_factory():
    env = wrap(rollenv.make("game:Sokoban-v0-easy"), {"python_tool": {}})
    assert "<python>" in env.reset(0)[0]
    said, reward, *_ = env.step("<python>print(1 + 1)</python>")
    assert said == "Code execution result: 2\n"
    assert reward == pytest.approx(0.3)


# -- search ----------------------------------------------------------------------------------------------------------

DOCUMENTS = ["Paris\nThe capital of France.", "Rome\nThe capital of Italy.", "Etna\nA volcano in Sicily."]


def test_a_corpus_in_memory(tmp_path):
    tool = CorpusSearchTool(DOCUMENTS, topk=2)
    assert (
        tool.execute_action("<search>volcano sicily</search>").observation == "Doc 1 (Title: Etna) A volcano in Sicily."
    )
    assert tool.execute_action("<search>zebra</search>").observation == "Nothing was found."
    assert tool.execute_action("<search> </search>").has_error
    assert not tool.execute_action("volcano").is_valid
    file = tmp_path / "corpus.jsonl"
    file.write_text("".join(json.dumps({"contents": d}) + "\n" for d in DOCUMENTS))
    assert "Paris" in CorpusSearchTool(file).execute_action("<search>France</search>").observation
    file.write_text("{}\n")
    with pytest.raises(UsageError, match="corpus"):
        CorpusSearchTool(file)
    with pytest.raises(UsageError, match="document"):
        CorpusSearchTool([])


def test_a_retrieval_server(retrieval_url, monkeypatch):
    tool = SearchTool(search_url=retrieval_url, topk=2)
    assert tool.execute_action("<search>hi</search>").observation == "Doc 1 (Title: T0) hi\nDoc 2 (Title: T1) hi"
    for query in ("error", "broken"):
        done = tool.execute_action(f"<search>{query}</search>")
        assert done.has_error
        assert "search failed" in done.observation
    monkeypatch.setenv("SEARCH_URL", retrieval_url)
    assert "hey" in SearchTool().execute_action("<search>hey</search>").observation
    monkeypatch.delenv("SEARCH_URL")
    with pytest.raises(UsageError, match="SEARCH_URL"):
        SearchTool().execute_action("<search>hey</search>")
    with pytest.raises(UsageError, match="SEARCH_URL"):
        ToolEnvWrapper(rollenv.make("game:GuessTheNumber-v0"), [SearchTool()])


# -- MCP -------------------------------------------------------------------------------------------------------------

SERVER = '''
import os, time
from mcp.server import MCPServer
server = MCPServer("test")

@server.tool()
def add(a: int, b: int) -> str:
    """Add."""
    return str(a + b)

@server.tool()
def slow() -> str:
    """Slow."""
    time.sleep(30)
    return "late"

@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(1)

server.run("stdio")
'''


@pytest.fixture
def mcp_server(tmp_path):
    file = tmp_path / "server.py"
    file.write_text(SERVER)
    return {"mcpServers": {"local": {"command": sys.executable, "args": [str(file)]}}}


@pytest.mark.smoke
def test_an_mcp_server(mcp_server):
    tool = MCPTool(mcp_server, execution_timeout=10)
    assert tool.names() == ["add", "slow", "die"]
    done = tool.execute_action(GEM)
    assert (done.has_error, done.observation) == (False, "5")
    assert tool.execute_action(HERMES.replace("2", '"x"')).has_error
    with ThreadPoolExecutor(8) as threads:
        calls = [HERMES.replace("2", str(i)) for i in range(40)]
        answers = list(threads.map(tool.execute_action, calls))
    assert [a.observation for a in answers] == [str(i + 3) for i in range(40)]
    tool.close()
    tool.close()
    assert tool.execute_action(HERMES).observation == "5", "it connects again when used again"
    tool.close()


@pytest.mark.slow
@pytest.mark.integration
def test_an_mcp_call_that_is_slow_or_ends_the_server(mcp_server):
    tool = MCPTool(mcp_server, execution_timeout=3, max_retries=1)
    slow = tool.execute_action("<tool_call><tool_name>slow</tool_name></tool_call>")
    assert slow.has_error
    assert "longer than 3 s" in slow.observation
    tool.close()
    assert tool.execute_action("<tool_call><tool_name>die</tool_name></tool_call>").has_error
    tool.close()
    assert tool.execute_action(HERMES).observation == "5"
    tool.close()


@pytest.fixture
def guarded_mcp_server():
    """A server over HTTP that answers only those who show the key."""
    server = MCPServer("guarded")
    server.add_tool(add)
    inner = server.streamable_http_app()

    async def app(scope, receive, send):
        if scope["type"] == "http" and dict(scope["headers"]).get(b"authorization") != b"Bearer key":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"no"})
            return
        await inner(scope, receive, send)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        running = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=running.run, args=([listening],))
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        running.should_exit = True
        thread.join()


def test_headers_reach_an_mcp_server(guarded_mcp_server):
    with pytest.raises(MCPError):
        MCPTool(guarded_mcp_server)
    server = {"url": guarded_mcp_server, "headers": {"Authorization": "Bearer key"}, "type": "http"}
    tool = MCPTool({"mcpServers": {"guarded": server}})
    assert tool.execute_action(HERMES).observation == "5 m"
    tool.close()


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"mcpServers": {}},
        {"mcpServers": {"x": {}}},
        {"mcpServers": {"x": {"url": "http://127.0.0.1:9/mcp", "header": {}}}},
        {"mcpServers": {"x": {"url": "http://127.0.0.1:9/mcp", "command": "python"}}},
        "absent.json",
    ],
)
def test_bad_mcp_configurations(config):
    with pytest.raises(UsageError):
        MCPTool(config)


def test_an_mcp_server_that_is_not_there():
    with pytest.raises(MCPError):
        MCPTool({"mcpServers": {"local": {"command": "no-such-program"}}})
    with pytest.raises(MCPError):
        MCPTool("http://127.0.0.1:9/mcp", execution_timeout=5)


def test_a_search_without_its_package_is_an_error_and_not_an_answer(monkeypatch):
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(MissingExtra, match="rollenv\\[tools\\]"):
        SearchTool(search_url="http://127.0.0.1:9").execute_action("<search>hey</search>")


class Remembers(BaseTool):
    """Answers with how often it was called since its reset."""

    def __init__(self):
        super().__init__()
        self.calls, self.closed = 0, 0

    def instruction_string(self):
        return "Write count."

    def execute_action(self, action):
        self.calls += 1
        return ToolResult(True, False, str(self.calls), action)

    def reset(self):
        self.calls = 0

    def spawn(self, same_state=False):
        twin = Remembers()
        twin.calls = self.calls if same_state else 0
        return twin

    def close(self):
        self.closed += 1


def test_a_tool_is_reset_copied_and_closed_with_its_environment():
    tool = Remembers()
    env = ToolEnvWrapper(rollenv.make("game:GuessTheNumber-v0"), [tool])
    env.reset(0)
    assert [env.step("count")[0] for _ in range(2)] == ["1", "2"]
    twin, fresh = env.spawn(same_state=True), env.spawn()
    assert twin.step("count")[0] == "3"
    assert env.step("count")[0] == "3", "the twin has a tool of its own"
    fresh.reset(0)
    assert fresh.step("count")[0] == "1"
    env.reset(1)
    assert env.step("count")[0] == "1"
    env.close()
    env.close()
    assert (tool.closed, twin.tools[0].closed, fresh.tools[0].closed) == (1, 0, 0)


def test_a_tool_that_several_environments_share_is_closed_by_the_last():
    tool = Remembers()
    first, second = (ToolEnvWrapper(rollenv.make("game:GuessTheNumber-v0"), [tool]) for _ in range(2))
    first.close()
    assert not tool.closed
    second.close()
    assert tool.closed == 1


def test_a_stateful_interpreter_starts_each_episode_anew():
    env = ToolEnvWrapper(rollenv.make("game:GuessTheNumber-v0"), [PythonCodeTool(stateful=True)])
    env.reset(0)
    env.step("<python>x = 41</python>")
    assert "42" in env.step("<python>print(x + 1)</python>")[0]
    with pytest.raises(UsageError, match="copied"):
        env.spawn(same_state=True)
    other = env.spawn()
    other.reset(0)
    assert "NameError" in other.step("<python>print(x)</python>")[0]
    env.reset(1)
    assert "NameError" in env.step("<python>print(x)</python>")[0]
    sandbox = env.tools[0]._sandbox
    env.close()
    other.close()
    assert not sandbox.alive


@pytest.mark.parametrize(
    ("action", "code"),
    [
        ("<python>1</python> ```python\n2\n```", "1"),
        ("```py\n2\n``` <python>1</python>", "2\n"),
        ("```Python3\n2\n```", "2\n"),
        ("use ```x``` then\n```python\n3\n```", "3\n"),
        ("```js\n1\n```", None),
        ("<python>1", None),
    ],
)
def test_which_program_is_run(action, code):
    class Kept:
        def run(self, code, timeout):
            self.code = code
            return RunResult("", "", 0, False, 0.0, False)

    runner = Kept()
    done = PythonCodeTool(runner=runner).execute_action(action)
    assert done.is_valid is (code is not None)
    assert getattr(runner, "code", None) == code


ODD_ANSWERS = {
    "number": b'{"result": [{"document": {"contents": 5}}]}',
    "deep": b"[" * 200_000,
    "huge": b'{"result": [{"document": {"contents": "' + b"x" * 5_000_000 + b'"}}]}',
    "long": b'{"result": [{"document": {"contents": "' + b"x" * 1_000_000 + b'"}}]}',
    "null": b'{"result": [null]}',
}


@pytest.fixture
def odd_server():
    """Answers what the path asks for; ``/slow`` says a little, again and again."""

    class Odd(Answers):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(ODD_ANSWERS.get(self.path[1:], b" "))
                for _ in range(4000 if self.path == "/slow" else 0):
                    time.sleep(0.1)
                    self.wfile.write(b" ")

    with listening(Odd) as address:
        yield f"http://{address}/"


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("odd", [*ODD_ANSWERS, "slow"])
def test_whatever_a_retrieval_server_says_is_an_answer_of_bounded_size_and_time(odd_server, odd):
    found = SearchTool(search_url=odd_server + odd, timeout=0.5).execute_action("<search>x</search>")
    assert found.is_valid
    assert len(found.observation) < 25_000
    assert found.has_error is (odd not in ("number", "long"))


@pytest.mark.parametrize("url", ["not an address", "ftp://127.0.0.1/", "http://"])
def test_an_address_that_is_none_is_an_error_and_not_an_answer(url):
    with pytest.raises(UsageError, match="http"):
        SearchTool(search_url=url).check()


def test_a_tool_that_cannot_be_copied_leaves_no_other_open():
    class Counted(BaseTool):
        closed = 0

        def instruction_string(self):
            return ""

        def execute_action(self, action):
            return NOT_CALLED

        def close(self):
            self.closed += 1

    class Fails(Counted):
        def spawn(self, same_state=False):
            raise RuntimeError("no copy")

    good, bad = Counted(), Fails()
    env = ToolEnvWrapper(rollenv.make("game:GuessTheNumber-v0"), [good, bad])
    with pytest.raises(RuntimeError, match="no copy"):
        env.spawn()
    env.close()
    assert (good.closed, bad.closed) == (1, 1)


# -- imports that a program forgot -------------------------------------------------------------------------------------


def run_forgetful(code):
    return PythonCodeTool(common_imports=True).execute_action(f"<python>{code}</python>")


def test_a_forgotten_import_is_supplied_where_it_is_asked_for():
    code = "x = Counter('aab')\nprint(math.floor(2.5), x['a'])"
    assert run_forgetful(code).observation == "Code execution result: 2 2\n"
    assert "NameError" in PythonCodeTool().execute_action(f"<python>{code}</python>").observation


def test_a_name_of_a_module_and_a_function_is_what_it_is_used_as():
    assert run_forgetful("print(time() > 1, bisect([1, 3], 2))").observation.split()[-2:] == ["True", "1"]
    assert run_forgetful("print(time.time() > 1, bisect.bisect([1], 2))").observation.split()[-2:] == ["True", "1"]


@pytest.mark.parametrize(
    ("code", "error", "line"),
    [
        ("print(nowhere)", "name 'nowhere' is not defined", 1),
        ("x = math.pi\n\nprint(nowhere)", "name 'nowhere' is not defined", 3),
        ("def f():\n    return math.pi / 0\nf()", "ZeroDivisionError", 2),
        ("print(deque([1]), quux.math)", "name 'quux' is not defined", 1),
    ],
)
def test_a_forgotten_import_hides_no_other_error(code, error, line):
    result = run_forgetful(code)
    assert result.has_error
    assert error in result.observation.splitlines()[-1]
    assert f"line {line}, in" in result.observation
